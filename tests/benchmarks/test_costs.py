"""`benchmarks.costs`: its figures, and one kernel measured."""

from __future__ import annotations

import pytest
from benchmarks.costs import Kernel, Measured, measure, of_kinds, of_rules, rank_correlation
from benchmarks.sweep_cases import draw


def kernel(kind: str, *candidates: tuple[str, float | None, float | None]) -> Kernel:
    return Kernel(kind, kind, kind, tuple(Measured(rule, cost, seconds, {}) for rule, cost, seconds in candidates))


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 2, 3, 4], [10, 200, 3000, 3001]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)


def test_the_loss_is_the_default_over_the_best() -> None:
    measured = kernel("conv", ("a", 1.0, 3.0), ("b", 2.0, None), ("a", None, 2.0))
    assert measured.loss == 1.5
    assert kernel("conv", ("a", 1.0, 2.0), ("b", 2.0, 3.0)).loss == 1.0
    assert kernel("conv", ("a", 1.0, None)).loss is None
    rows = of_kinds([measured, kernel("matmul", ("a", 1.0, 1.0))])
    assert [(r["kind"], r["count"]) for r in rows] == [("conv", 1), ("matmul", 1), ("all", 2)]
    assert rows[-1]["worst"] == 1.5


def test_rules_are_judged_by_what_they_predict() -> None:
    kernels = [kernel("x", ("a", float(n), 2.0 * n), ("b", 1.0, None), ("a", None, 9.0)) for n in (1, 2, 3)]
    (row,) = of_rules(kernels)
    assert (row["rule"], row["count"]) == ("a", 3)
    assert row["rank_correlation"] == pytest.approx(1.0) and row["mean"] == pytest.approx(2.0)


def test_a_case_is_measured() -> None:
    (case,) = draw(1, 0, ["transpose"])
    found = measure(case, "llvm -threads=1", 3, 0)
    assert found.kind == "transpose" and len(found.candidates) == 4
    assert found.candidates[0].predicted and found.candidates[0].seconds
    assert found.loss is not None and found.loss >= 1.0
