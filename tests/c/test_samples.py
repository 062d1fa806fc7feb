"""Every sample of every operator through C: one native step whose results are the reference's, from texts that give no
warning and do nothing undefined."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.llvm.test_samples import SAMPLES, graph_of
from tests.ops.test_samples import assert_close, outputs_of

import weft
from weft import dtypes as dt
from weft_c import toolchain
from weft_ops import ALL_OPERATORS

WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror")
TRAPS = ("-fsanitize=undefined", "-fsanitize=float-cast-overflow", "-fsanitize-undefined-trap-on-error")
"""What is undefined ends the process: no library is needed to say so."""


def stratified() -> list[str]:
    """One sample of every operator and one of every dtype, the same ones every time."""
    chosen: dict[str, str] = {}
    for name in sorted(SAMPLES, key=lambda n: zlib.crc32(n.encode())):
        op, sample = SAMPLES[name]
        dtypes = [dt.dtype(x.dtype).name for x in sample.inputs if x is not None]
        for stratum in (op.__name__, *dtypes[:1]):
            chosen.setdefault(stratum, name)
    return [name for name in SAMPLES if name in chosen.values()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sample_name" in metafunc.fixturenames:
        metafunc.parametrize("sample_name", list(SAMPLES) if metafunc.config.getoption("--full") else stratified())


def check(name: str, options: str = "") -> None:
    """Compiles and runs a sample, and compares with the reference."""
    _, sample = SAMPLES[name]
    executable = weft.compile(graph_of(sample), target=f"c {options}".strip(), cache=False)
    assert [step.kind for step in executable.manifest.steps] == ["native"]
    results = executable.run({f"x{k}": x for k, x in enumerate(sample.inputs) if x is not None})
    want = outputs_of(sample.op, sample.inputs)
    assert len(results) == len(want)
    for got, expected in zip(results.values(), want):
        assert_close(sample.op, sample, got, expected)


@pytest.mark.one_in(2)
def test_sample(sample_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "CODE", (*toolchain.CODE, *WARNINGS))
    check(sample_name, "-opt=1")


def test_every_operator_has_a_sample_in_ci() -> None:
    assert {SAMPLES[name][0] for name in stratified()} == set(ALL_OPERATORS)


@pytest.mark.full
@pytest.mark.parametrize("part", range(16))
def test_nothing_is_undefined(part: int) -> None:
    """In a process of its own, which a trap would end; the last name that it prints is the sample that did."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.c.test_samples", *list(SAMPLES)[part::16]], cwd=root, env={**os.environ,
            "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode} after {done.stdout.splitlines()[-1:]}\n{done.stderr[-2000:]}"


if __name__ == "__main__":
    toolchain.CODE = (*toolchain.CODE, *TRAPS)
    for sample_name in sys.argv[1:]:
        print(sample_name, flush=True)
        check(sample_name, "-opt=1")
