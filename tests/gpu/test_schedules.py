"""Schedules for machines of groups of threads mean what the program meant: interpreted, over the samples of every
operator and random shapes."""

from __future__ import annotations

import pytest
from tests.gpu.kernels import (
    MACHINES,
    agree,
    cases,
    lowered,
    lowered_meaning,
    meaning,
    sample_programs,
    scheduled,
    stratified,
)

CASES = cases()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sample" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        names = list(CASES) if full else stratified(list(CASES), 12)
        order = sorted(MACHINES)
        pairs = [(n, m) for k, n in enumerate(names) for m in (order if full else [order[k % len(order)]])]
        metafunc.parametrize("sample,machine", pairs, ids=lambda x: x)


@pytest.mark.one_in(2)
def test_samples(sample: str, machine: str) -> None:
    """Each kernel of a sample, scheduled by whichever rule takes it, and lowered: threads in random order."""
    units = CASES[sample].tolerance()
    for k, (program, inputs, want) in enumerate(sample_programs(sample)):
        rule, s = scheduled(program, MACHINES[machine])
        agree(meaning(s.program, inputs, seed=k), want, units, f"{rule}\n{s.program}")
        agree(lowered_meaning(s.program, inputs, seed=k), want, units, f"{rule}, lowered\n{lowered(s.program)}")
