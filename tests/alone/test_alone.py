"""Each package installed alone with its declared dependencies: `python -m tests.alone` does it with the package index
and all tests, this with linked dependencies and a few."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.alone import __main__ as program
from tests.alone.check import Row, check, copy_tests
from tests.alone.environment import Environment, Failed, Missing, closure, linked
from tests.alone.suites import SUITES
from tests.needs import lacks, require
from tests.runtime.saved import save_models
from tests.wheels.distributions import PACKAGES, ROOT, Wheel, build

ALWAYS = ("weft-runtime", "weft-core", "weft-ops", "weft-c-family", "weft-gpu")
"""Seconds each; the others are left to --full."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("hatchling")
    folder = tmp_path_factory.mktemp("alone")
    (folder / "saved").mkdir()
    save_models(folder / "saved", size=32, width=8)
    copy_tests(folder / "copy")
    return folder


@pytest.fixture(scope="module")
def wheels(work: Path) -> dict[str, Wheel]:
    (work / "wheels").mkdir()
    return build(PACKAGES, work / "wheels")


@pytest.mark.parametrize("package", [pytest.param(p, marks=[pytest.mark.full] * (p not in ALWAYS)) for p in SUITES])
def test_a_package_alone(work: Path, wheels: dict[str, Wheel], package: str) -> None:
    try:
        row = check(package, wheels, work, work / "copy", linked, quick=True, saved=work / "saved")
    except Missing as missing:
        lacks(str(missing), 'pip install ".[test]"')
    assert row.passed and row.modules


def test_every_package_has_a_suite_of_files_that_exist(wheels: dict[str, Wheel]) -> None:
    assert set(SUITES) == set(wheels)
    for name, suite in SUITES.items():
        assert all((ROOT / test).exists() for test in (*suite.tests, *suite.quick)), name
        assert suite.why if suite.tools else not suite.why, f"{name}: why these tools?"


def test_a_dependency_that_is_not_declared_is_found(wheels: dict[str, Wheel], tmp_path: Path) -> None:
    wheel = wheels["weft-c-family"]
    less = replace(wheel, file=tmp_path / wheel.file.name)
    with zipfile.ZipFile(wheel.file) as old, zipfile.ZipFile(less.file, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("METADATA"):
                data = b"".join(
                    line for line in data.splitlines(True) if not line.startswith(b"Requires-Dist: weft-core")
                )
            if not name.endswith("RECORD"):
                new.writestr(name, data)
            else:
                new.writestr(name, b"")
    assert [w.project["name"] for w in closure("weft-c-family", {**wheels, "weft-c-family": less})] == ["weft-c-family"]
    found = Environment.make(
        tmp_path / "env", tmp_path / "cwd", "weft-c-family", {**wheels, "weft-c-family": less}, linked
    )
    with pytest.raises(Failed, match="No module named 'weft'"):
        found.import_every_module("weft_c_family")


def test_the_copy_of_the_tests_has_no_package(work: Path) -> None:
    assert not [f for f in (work / "copy").rglob("weft*") if f.is_dir()]
    assert (work / "copy" / "tests" / "alone" / Path(__file__).name).exists()


@pytest.mark.parametrize("variable", ["CI", "WEFT_REQUIRE_ALL"])
def test_what_one_package_lacks_is_no_failure_in_ci(work: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "true")
    found = Environment(Path(sys.prefix), work / "copy")
    assert found.printed("from tests.needs import required; print(required())") == "False\n"


def test_tests_that_cannot_be_started_say_why(work: Path, wheels: dict[str, Wheel], tmp_path: Path) -> None:
    copy = copy_tests(tmp_path / "copy")
    (copy / "tests" / "conftest.py").write_text("import no_such_module\n")
    with pytest.raises(Failed, match=r"the tests of weft-runtime:\n(.|\n)*No module named 'no_such_module'"):
        check("weft-runtime", wheels, tmp_path, copy, linked, quick=True, saved=work / "saved")


def test_a_package_that_cannot_be_linked_leaves_the_others_to_be_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(package: str, *_: Any, **__: Any) -> Row:
        if package == "weft-onnx":
            raise Missing("onnx>=1.16")
        return Row(package, 1000, 1, 0.1, 7, 0, 1.0)

    monkeypatch.setattr(program, "check", checked)
    for name in ("build", "copy_tests", "save_models"):
        monkeypatch.setattr(program, name, lambda *_: {})
    monkeypatch.setattr(sys, "argv", ["tests.alone", "weft-onnx", "weft-darknet", "--linked"])
    assert program.main() == 1
    said = capsys.readouterr()
    assert "| `weft-darknet` |" in said.out and "`weft-onnx`" not in said.out
    assert "FAILED: weft-onnx\nthis environment lacks onnx>=1.16\n" in said.err
