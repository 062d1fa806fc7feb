"""Schedules for machines of groups of threads mean what the program meant: interpreted, over the samples of every operator and random shapes."""

from __future__ import annotations

import pytest
from tests.gpu.kernels import MACHINES, agree, cases, meaning, sample_programs, scheduled, stratified

CASES = cases()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sample" in metafunc.fixturenames:
        names = list(CASES) if metafunc.config.getoption("--full") else stratified(list(CASES), 8)
        metafunc.parametrize("sample", names)


def test_samples(sample: str) -> None:
    """Each kernel of a sample, scheduled by whichever rule takes it, for each machine."""
    for k, (program, inputs, want) in enumerate(sample_programs(sample)):
        for machine_name, machine in MACHINES.items():
            rule, s = scheduled(program, machine)
            got = meaning(s.program, inputs, seed=k)
            agree(got, want, CASES[sample].tolerance(), f"{rule} for '{machine_name}'\n{s.program}")
