"""What a machine lacks is skipped by name, counted in one line, and an error in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import NEEDS, summary

ROOT = Path(__file__).parents[1]
BARE = {"OCL_ICD_VENDORS": "/nonexistent", "OCL_ICD_FILENAMES": "/nonexistent", "PATH": "/nonexistent"}
CASES = [
    "tests/opencl/test_barriers.py",
    "tests/llvm/test_precision.py::test_under_emulation",
    "tests/test_needs.py::test_nothing_is_needed",
]


def pytest_on_a_bare_machine(**environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        k: v
        for k, v in os.environ.items()
        if k not in ("CI", "WEFT_REQUIRE_ALL", "PYTEST_ADDOPTS") and not k.startswith("PYTEST_XDIST")
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *CASES]
    return subprocess.run(
        command, cwd=ROOT, env={**inherited, **BARE, **environment}, capture_output=True, text=True, timeout=300
    )


def test_nothing_is_needed() -> None:
    """Runs anywhere."""


def test_without_a_driver_and_an_emulator_tests_are_skipped_by_name() -> None:
    done = pytest_on_a_bare_machine()
    assert done.returncode == 0, done.stdout
    *_, line, verdict = done.stdout.splitlines()
    found = re.fullmatch(
        r"(\d+) tests skipped for what this machine lacks: "
        r"(\d+) for an OpenCL driver \(apt install pocl-opencl-icd\), (\d+) for qemu-user \(apt install qemu-user\)",
        line,
    )  # fmt: skip
    assert found is not None, line
    assert int(found[1]) == int(found[2]) + int(found[3]) and int(found[2]) > 1 and int(found[3]) == 6
    assert verdict.startswith(f"1 passed, {found[1]} skipped")


@pytest.mark.parametrize("name", ["CI", "WEFT_REQUIRE_ALL"])
def test_in_ci_a_lack_is_an_error(name: str) -> None:
    done = pytest_on_a_bare_machine(**{name: "true"})
    assert done.returncode == 1
    assert (
        "needs an OpenCL driver (apt install pocl-opencl-icd): it is not here, and CI or WEFT_REQUIRE_ALL is set"
        in done.stdout
    )
    assert "needs qemu-user (apt install qemu-user): it is not here" in done.stdout
    assert re.search(r"^1 passed, \d+ errors", done.stdout, re.M) and "skipped" not in done.stdout


def test_ci_requires_everything() -> None:
    assert "WEFT_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text()


def test_skips_for_other_reasons_are_not_counted() -> None:
    assert summary(["Skipped: needs process priorities", "Skipped: the installed onnx has no such case"]) is None
    line = summary(["Skipped: needs qemu-user (apt install qemu-user)"])
    assert line == "1 test skipped for what this machine lacks: 1 for qemu-user (apt install qemu-user)"


def test_nothing_is_looked_for_elsewhere() -> None:
    """A lack that a test finds by itself would be missing in the line at the end, and be no error in CI."""
    ours = [
        p
        for p in (ROOT / "tests").rglob("*.py")
        if not {"weft-wave", "weft-tide"} & set(p.parts) and p.name not in ("needs.py", "test_needs.py")
    ]
    assert [p.name for p in ours if "importorskip" in p.read_text()] == []


@pytest.mark.parametrize("key", NEEDS)
def test_every_need_says_how_it_is_installed(key: str) -> None:
    assert re.match(r"(apt|pip) install ", NEEDS[key].install)
