"""Tensor cores: what the intrinsics say they mean, their code by NVRTC, and the layouts of fragments against an
emulation of PTX's instructions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.gpu.shim.shims import Library, ShimError, guarded
from tests.gpu.shim.targets import shimmed

from weft.loop.pipeline import lower_program
from weft.scheduling.intrinsic import Intrinsic
from weft_cuda.dialect import CUDA
from weft_cuda.intrinsics import MMAS, SIDE, Mma, intrinsics
from weft_cuda.nvrtc import cubin
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.passes import grid_passes
from weft_testing.conform import run
from weft_testing.conform.kernels import runner
from weft_testing.conform.kit import Kit
from weft_testing.intrinsics import check_intrinsic
from weft_testing.plugin import resolve_target
from weft_testing.warps import WarpCase

EVERY = {i.name: i for i in intrinsics()}
OF = {m.word: m for m in MMAS}
NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
}
PADDED = 8
"""Elements between rows in shared memory, beyond a matrix's own, in units of 16 bytes and more."""

TEXT = """// product
#include "weft_cuda.h"

extern "C" __global__ void __launch_bounds__(32) product(const {x} *__restrict__ a, const {x} *__restrict__ b, {y} *__restrict__ c, long long turns) {{
  __shared__ __align__(64) {x} left[{left}];
  __shared__ __align__(64) {x} right[{right}];
  __shared__ __align__(64) {y} result[{side} * {wide}];
  weft_fragment<{x}, {side} * {depth}> fa;
  weft_fragment<{x}, {side} * {depth}> fb;
  weft_fragment<{y}, 2 * {side} * {side}> fc;
  {fill};
  for (long long n = 0; n < turns; ++n) {{
    for (long long e = threadIdx.x; e < {side} * {depth}; e += 32) {{
      left[e / {depth} * {row_a} + e % {depth}] = a[n * {side} * {depth} + e];
      right[e / {side} * {row_b} + e % {side}] = b[n * {side} * {depth} + e];
    }}
    __syncthreads();
    {load_a};
    {load_b};
    {mma};
    __syncthreads();
  }}
  {store};
  __syncthreads();
  for (long long e = threadIdx.x; e < {side} * {side}; e += 32) c[e] = result[e / {side} * {wide} + e % {side}];
}}
"""  # noqa: E501


def call(name: str, *arguments: str) -> str:
    """An instruction as the dialect writes it; addresses are elements."""

    class Argument:
        def __init__(self, text: str) -> None:
            self.text = text

        def __format__(self, spec: str) -> str:
            return f"&{self.text}" if spec == "address" else self.text

    return CUDA.intrinsics[name].format(*map(Argument, arguments))


def text(m: Mma) -> str:
    """A product of several turns, in the second of two results that one fragment holds."""
    x, y = CUDA.types.get(m.factor.name, "unsigned short"), CUDA.types[m.result.name]
    row_a, row_b, wide = m.depth + 16 // m.factor.bytes, SIDE + PADDED * 2 // m.factor.bytes * 2, SIDE + 4
    at = f"fc[{SIDE * SIDE}]"
    return TEXT.format(
        x=x, y=y, side=SIDE, depth=m.depth, row_a=row_a, row_b=row_b, wide=wide, left=SIDE * row_a,
        right=m.depth * row_b,
        fill=call(f"fill_{m.word}", at), load_a=call(f"load_a_{m.word}", "left[0]", str(row_a), "fa[0]"),
        load_b=call(f"load_b_{m.word}", "right[0]", str(row_b), "fb[0]"), mma=call(f"mma_{m.word}", "fa[0]", "fb[0]",
            at),
        store=call(f"store_{m.result}", at, "result[0]", str(wide)),
    )  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_meanings(name: str) -> None:
    assert check_intrinsic(EVERY[name]) > 0


IN_CI = ("mma_tf32",)
"""Every form, and factors that are rounded."""


@pytest.mark.parametrize("name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.full) for n in EVERY])
def test_texts_on_fragments(name: str) -> None:
    """What level 4 of the conformance kit does on a GPU, with the played instructions."""
    with shimmed(
        "cuda -arch=sm_90 -tf32", "cuda", GpuCodegen(CUDA, machine=resolve_target("cuda -arch=sm_90 -tf32").machine)
    ) as called:
        kit = Kit.open(called, quick=False)
        assert check_intrinsic(EVERY[name], run=runner(kit), copies=EVERY.values(), warp=32) >= 16


@pytest.mark.parametrize("name", EVERY)
def test_texts_on_fragments_compile(name: str) -> None:
    """The same texts, for tensor cores as they are."""
    target = resolve_target(f"cuda -arch={'sm_90a' if EVERY[name].warps > 1 else 'sm_80'} -tf32")
    codegen = target.codegen()
    for form in ("compute", "reset", "update"):
        if EVERY[name].code(form) is not None:
            program = WarpCase.make(EVERY[name], form, True, np.random.default_rng(0), EVERY.values(), 32).program
            (launch,) = Kernel.from_bytes(
                codegen.compile(lower_program(program, codegen.functions, extra=grid_passes())).object, name
            ).launches
            assert launch.group == (32 * EVERY[name].warps, 2, 1)


def test_without_a_gpu_they_are_interpreted_and_said_to_be() -> None:
    report = run("cuda -arch=sm_90", levels=(4,), keyword="intrinsic and mma_f16")
    (found,) = report.results
    assert found.outcome == "skipped" and "interpreted only: the device 'cuda' is not here" in found.message


@pytest.mark.parametrize("word", OF)
def test_layouts(word: str) -> None:
    """Factors through shared memory with gaps between rows, fragments, products of several turns, and the result back:
    the exact product."""
    m, turns = OF[word], 3
    rng = np.random.default_rng(0)
    low, high = (0, 256) if word == "u8" else (-128, 128) if word == "s8" else (-8, 9)
    a = guarded(rng.integers(low, high, (turns, SIDE, m.depth)).astype(NUMPY[word]))
    b = guarded(rng.integers(low, high, (turns, m.depth, SIDE)).astype(NUMPY[word]))
    c = guarded(np.zeros((SIDE, SIDE), m.result.numpy))
    Library("cuda", [("product", text(m))]).launch(
        0, [x.ctypes.data for x in (a, b, c)], [turns], (1, 1, 1), (32, 1, 1), seed=3
    )
    np.testing.assert_array_equal(
        c, sum(x.astype(np.float64) @ y.astype(np.float64) for x, y in zip(a, b)).astype(c.dtype)
    )


def test_tf32_rounds_factors() -> None:
    a, b = (
        guarded((1 + np.random.default_rng(k).random((1, *shape))).astype(np.float32))
        for k, shape in enumerate(((SIDE, 8), (8, SIDE)))
    )
    c = guarded(np.zeros((SIDE, SIDE), np.float32))
    Library("cuda", [("product", text(OF["tf32"]))]).launch(
        0, [x.ctypes.data for x in (a, b, c)], [1], (1, 1, 1), (32, 1, 1)
    )
    exact = a[0].astype(np.float64) @ b[0].astype(np.float64)
    error = np.abs(c - exact).max() / exact.max()
    assert 2.0**-20 < error < 2.0**-10


def test_a_row_that_is_not_aligned_is_said() -> None:
    wrong = text(OF["f16"]).replace("&left[0]", "&left[1]")
    data = [guarded(np.zeros(n, np.float32)) for n in (4096, 4096, 256)]
    with pytest.raises(ShimError, match="ldmatrix: a row does not begin at a multiple of 16 bytes"):
        Library("cuda", [("product", wrong)]).launch(0, [x.ctypes.data for x in data], [1], (1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize("word", OF)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_takes_them(word: str, arch: str) -> None:
    assert cubin(text(OF[word]), arch, "product")[:4] == b"\x7fELF"


def test_whoever_lacks_them_has_none() -> None:
    def offered(target: str) -> set[str]:
        found = resolve_target(target)
        return {name for name, i in found.intrinsics.items() if found.machine.features.issuperset(i.requires)}

    assert "mma_f16" in offered("cuda -arch=sm_80") and "mma_tf32" not in offered("cuda -arch=sm_80")
    assert {"mma_tf32", "load_a_tf32", "load_b_tf32"} <= offered("cuda -arch=sm_80 -tf32")
    assert not offered("cuda -arch=sm_75 -tf32")


def test_every_instruction_has_a_text() -> None:
    from weft.scheduling.intrinsic import Call

    def names(i: Intrinsic) -> list[str]:
        return [c.name for c in (i.compute, i.reset, i.update) if isinstance(c, Call)]

    assert {n for i in EVERY.values() for n in names(i)} <= set(CUDA.intrinsics)
