"""Every sample of every operator, compiled: one native step whose results are the reference's within the operator's
tolerance."""

from __future__ import annotations

import zlib

import pytest
from tests.ops.test_samples import assert_close, outputs_of, types_of

import weft
from weft import dtypes as dt
from weft.graph.nodes import Graph, GraphBuilder
from weft.graph.operator import Operator, Sample
from weft_ops import ALL_OPERATORS

SAMPLES = {
    f"{op.__name__}-{sample.name or k}": (op, sample) for op in ALL_OPERATORS for k, sample in enumerate(op.samples())
}


def stratum(op: type[Operator], sample: Sample) -> tuple[str, str]:
    """What one sample stands for: operator and dtype."""
    dtypes = [dt.dtype(x.dtype).name for x in sample.inputs if x is not None]
    return op.__name__, dtypes[0] if dtypes else ""


def stratified() -> list[str]:
    """A sample of every operator and of a third of its other dtypes, the same ones every time."""
    chosen: dict[tuple[str, str], str] = {}
    first: dict[str, str] = {}
    for name in sorted(SAMPLES, key=lambda n: zlib.crc32(n.encode())):
        stood_for = stratum(*SAMPLES[name])
        first.setdefault(stood_for[0], name)
        chosen.setdefault(stood_for, name)
    some = {name for name in chosen.values() if zlib.crc32(name.encode()) % 3 == 0}
    return [name for name in SAMPLES if name in some or name in first.values()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sample_name" in metafunc.fixturenames:
        metafunc.parametrize("sample_name", list(SAMPLES) if metafunc.config.getoption("--full") else stratified())


def graph_of(sample: Sample) -> Graph:
    builder = GraphBuilder("sample")
    inputs = [None if t is None else builder.input(f"x{k}", t) for k, t in enumerate(types_of(sample))]
    result = builder.add_all(sample.op, *inputs)
    for k, value in enumerate(result if isinstance(result, tuple) else (result,)):
        builder.output(value, f"y{k}")
    return builder.build()


def test_sample(sample_name: str) -> None:
    _, sample = SAMPLES[sample_name]
    executable = weft.compile(graph_of(sample), target="llvm", cache=False)
    assert [step.kind for step in executable.manifest.steps] == ["native"]
    results = executable.run({f"x{k}": x for k, x in enumerate(sample.inputs) if x is not None})
    want = outputs_of(sample.op, sample.inputs)
    assert len(results) == len(want)
    for got, expected in zip(results.values(), want):
        assert_close(sample.op, sample, got, expected)


def test_every_operator_has_a_sample_in_ci() -> None:
    assert {SAMPLES[name][0] for name in stratified()} == set(ALL_OPERATORS)
