"""The systolic array that was written by the guide alone: its own tests, and how many launches with products its
instructions do.

Which items of the guide's "Instructions in full" it uses stands in its README."""

from __future__ import annotations

import importlib.util

import pytest
from tests.guide.conftest import FOLDERS

from weft_testing.conform import run
from weft_testing.conform.report import Report

LEAST = 0.8
"""Of the launches that contain products, those that the instructions of a matrix unit are expected in."""

pytestmark = pytest.mark.usefixtures("tide")

_path = FOLDERS["tide"] / "tests" / "test_tide.py"
_spec = importlib.util.spec_from_file_location("weft_tide_tests", _path)
assert _spec and _spec.loader
_own = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_own)
globals().update({name: test for name, test in vars(_own).items() if name.startswith("test_")})


def share(report: Report) -> float:
    """Of the launches with products of all levels, those with an instruction."""
    counted = report.usage.products.values()
    return sum(p.by_intrinsics for p in counted) / sum(p.launches for p in counted)


def test_four_of_five_launches_with_products_are_the_arrays() -> None:
    report = run("tide", levels=(5, 10), quick=True)
    assert report.failed == [], report.summary()
    assert {5, 10} <= set(report.usage.products)
    assert share(report) >= LEAST, report.summary()


@pytest.mark.full
def test_tide_conforms_with_four_of_five_launches_with_products_on_the_arrays() -> None:
    """Every level but the first, which wants it installed: tests/wheels asks that."""
    report = run("tide", levels=range(2, 11))
    assert report.failed == [], report.summary()
    assert share(report) >= LEAST, report.summary()
