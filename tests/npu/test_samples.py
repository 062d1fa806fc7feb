"""Every kernel that the npu computes is made by tensorizing: of every operator's samples, and of the models. `pytest
--full` takes all, otherwise a few."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from weft.compilation import Kernel
from weft.errors import UnsupportedError
from weft.graph.nodes import Graph
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft.scheduling import replay
from weft.scheduling.tree import blocks_in
from weft_ops import ALL_OPERATORS
from weft_testing.conform.kit import Case
from weft_testing.models import resnet18

pytestmark = pytest.mark.usefixtures("npu")


def cases() -> dict[str, Case]:
    """Samples of float32 by name: what else there is, the npu declines by its dtype."""
    found = {}
    for op in ALL_OPERATORS:
        for k, sample in enumerate(op.samples()):
            if all(x is None or x.dtype == np.float32 for x in sample.inputs) and any(
                x is not None for x in sample.inputs
            ):
                found[f"{op.__name__} {sample.name or k}"] = Case(op, sample, "float32", sample.name)
    return found


CASES = cases()
ALWAYS = (
    "Conv",
    "MatMul",
    "MaxPool",
    "AveragePool",
    "Softmax",
    "Pad",
    "Relu",
    "Gelu",
    "Clip",
    "Concat",
    "ReduceSum",
    "Resize",
)
"""Operators of which a sample is in every run."""


def stratified() -> list[str]:
    order = sorted(CASES, key=lambda n: zlib.crc32(n.encode()))
    return [next(n for n in order if CASES[n].op.__name__ == op) for op in ALWAYS] + order[:12]


def pytest_generate_tests(metafunc: Any) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", list(CASES) if metafunc.config.getoption("--full") else sorted(set(stratified())))


def kernels(graph: Graph) -> Iterator[Kernel]:
    """What the npu computes of a graph."""
    compilation = MixedCompilation(resolve_targets("npu, llvm"), cache=False, by_cost=False)
    compilation.run(graph)
    for region in compilation.regions:
        if region.target.target.kind == "npu":
            yield from region.kernels.values()


def is_tensorized(kernel: Kernel) -> None:
    """Every block of a kernel is an instruction, its trace says which step made it one, and makes the kernel again."""
    from weft_npu.intrinsics import INTRINSICS

    assert kernel.scheduled is not None and kernel.trace is not None
    blocks = blocks_in(kernel.scheduled.body)
    assert blocks and [b.name for b in blocks if not b.annotation("tensorize")] == []
    made = {s.args[1] for s in kernel.trace.steps if s.do == "tensorize"}
    assert made == {b.annotation("tensorize") for b in blocks}
    named = type(kernel.naive)(
        kernel.scheduled.name,
        kernel.naive.inputs,
        kernel.naive.outputs,
        kernel.naive.dims,
        kernel.naive.body,
        kernel.naive.aliases,
    )
    assert str(replay(named, kernel.trace, {i.name: i for i in INTRINSICS})) == str(kernel.scheduled)


def test_every_kernel_of_a_sample_is_made_by_tensorize(name: str) -> None:
    case = CASES[name]
    compilation = MixedCompilation(resolve_targets("npu"), cache=False)
    try:
        exe = compilation.run(case.graph())
    except UnsupportedError as error:
        assert "npu: " in str(error) and "[" in str(error)  # a reason, and its code
        return
    for region in compilation.regions:
        for kernel in region.kernels.values():
            is_tensorized(kernel)
    eps = float(np.finfo(np.float32).eps)
    with np.errstate(all="ignore"):
        for got, want in zip(exe.run(case.inputs()).values(), case.expected()):
            greatest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
            np.testing.assert_allclose(
                got, want, rtol=0, atol=case.tolerance() * eps * max(float(greatest), 1e-30), equal_nan=True
            )


def test_every_kernel_of_a_residual_network_is_made_by_tensorize() -> None:
    found = list(kernels(resnet18(width=8, size=32)))
    assert {k.rule for k in found} == {"gemm", "vector"}
    for kernel in found:
        is_tensorized(kernel)
    assert all("'gemm8x8'" in str(k.trace) or "'gemm1x8'" in str(k.trace) for k in found if k.rule == "gemm")


def test_what_is_too_irregular_is_declined_with_a_reason() -> None:
    from weft_npu.schedules import rules

    from weft.loop.parser import parse_program
    from weft.resolve import resolve_target
    from weft.scheduling import Decline

    text = """
    program p(x: float32[1000]) -> (y: float32[1000]) {
      for i in 1000 { block b(v: 1000 = i) { y[v] = x[v*v % 7 * 100 + v//10] } }
    }
    """
    gemm, vector = (r.offer(parse_program(text), resolve_target("npu").machine) for r in rules())
    assert isinstance(gemm, Decline) and gemm.code == "no_product"
    assert isinstance(vector, Decline) and "its conditions cut it into more than" in vector.reason
