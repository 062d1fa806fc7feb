"""Copies to shared memory that threads do not wait for: which stores become such, that each wait is needed, and CUDA's
text of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu.shim import shims
from tests.gpu.test_grids import Writer, agree, group, inputs_of, joined_if_warps_can, run

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_cuda.dialect import CUDA
from weft_cuda.nvrtc import cubin
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.passes import grid_passes
from weft_gpu.passes.copy_async import copy_async

TURNS = """program turns(x: float32[n, 160], w: float32[160]) -> (y: float32[n, 160]) dims(n) {
  for b in n blockIdx.x {
    allocate s: float32[2, 32] in shared
    for t in 8 threadIdx.x { for l in 4 vectorized { s[0, t*4 + l] = x[b, t*4 + l] } }
    for k in 5 {
      for t2 in 8 threadIdx.x { if k < 4 { for l2 in 4 vectorized { s[(k + 1) % 2, t2*4 + l2] = select(t2 < 7, x[b, k*32 + 32 + t2*4 + l2], 0.0f32) } } }
      for t1 in 8 threadIdx.x { for u in 4 { y[b, k*32 + t1*4 + u] = s[k % 2, 31 - t1*4 - u]*w[k*32 + t1] } }
    }
  }
}"""  # noqa: E501


def lowered(text: str, extra: bool = True) -> Program:
    return lower_program(
        parse_program(text), GpuCodegen(CUDA).functions, extra=grid_passes(["cp.async"] if extra else [])
    )


def test_what_is_copied_waits_for_the_barrier() -> None:
    program, after = parse_program(TURNS), lowered(TURNS)
    agree(program, after)
    text = str(after)
    assert text.count("@barrier()") == text.count("@await_copies()") == 2 and text.count("@copy_async(") == 2
    assert (
        "@copy_async(s[t*4], x[b*160 + t*4], 16i32)" in text and "s[ramp(" in text
    )  # the zeros beyond the border are stored


@pytest.mark.parametrize("k", [0, 1])
def test_no_wait_too_few_goes_unseen(k: int) -> None:
    pieces = str(lowered(TURNS)).split("@await_copies()")
    broken = parse_program("".join(["@await_copies()".join(pieces[: k + 1]), "@await_copies()".join(pieces[k + 1 :])]))
    with pytest.raises(AssertionError):
        agree(parse_program(TURNS), broken)


@pytest.mark.parametrize("gone", [-1, 0, 1])
def test_cuda_runs_them(gone: int) -> None:
    """As text on this machine; without one of its waits it computes something else."""
    codegen = GpuCodegen(CUDA)
    code = codegen.compile(lowered(TURNS))
    kernel = Kernel.from_bytes(code.object, code.name)
    (launch,) = kernel.launches
    pieces = launch.code.decode().split("weft_await_copies();")
    assert len(pieces) == 3 and launch.code.decode().count("weft_copy_async<16>(&s[") == 2
    if gone >= 0:
        text = ";".join(
            ["weft_await_copies();".join(pieces[: gone + 1]), "weft_await_copies();".join(pieces[gone + 1 :])]
        )
        kernel = Kernel(kernel.name, (replace(launch, code=text.encode()),))
    program = parse_program(TURNS)
    arrays = [shims.guarded(a) for a in (*inputs_of(program, 3), np.zeros((3, 160), np.float32))]
    want = run(program, inputs_of(program, 3), 3)["y"]
    good = []
    for seed in range(3):
        shims.run(kernel, "cuda", arrays, [3], seed=seed)
        good.append(np.array_equal(arrays[-1].reshape(-1), want))
    assert all(good) if gone < 0 else not all(good)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_takes_them(arch: str) -> None:
    narrow = TURNS.replace("float32", "float16").replace("0.0f32", "0.0f16")
    for text, copy in ((TURNS, "weft_copy_async<16>"), (narrow, "weft_copy_async<8>")):
        source = GpuCodegen(CUDA).source(lowered(text))
        assert copy in source and cubin(source, arch, "turns")[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (("x[b, t*4 + l]", "x[b, t*4 + l + 1]"), 1),  # not at a multiple of 16 bytes
        (("x[b, t*4 + l]", "x[b, t*4 + l]*2.0f32"), 1),  # not as it is
        (("s[0, t*4 + l] = x[b, t*4 + l]", "s[0, t//2*4 + l] = x[b, t//2*4 + l]"), 1),  # two threads copy to one place
        (
            ("y[b, k*32 + t1*4 + u] = s[k % 2, 31 - t1*4 - u]", "y[b, k*32 + t1*4 + u] = s[k % 2, t1*4 + u]"),
            0,
        ),  # each thread reads its own, without a barrier
        (
            ("(y: float32[n, 160])", "(y: float32[n, 160]) dims(n) aliases(0 = 0)"),
            0,
        ),  # somebody writes where it comes from
        (("float32", "int8"), 2),  # 4 bytes
        (("for l in 4 vectorized", "for l in 4"), 2),  # one element at a time
    ],
)
def test_which_stores_become_copies(change: tuple[str, str], kept: int) -> None:
    text = TURNS.replace(*change)
    if "aliases" in text:
        text = text.replace(") dims(n) {\n  for", ") {\n  for", 1)
    text = text.replace("0.0f32", "0i8").replace("2.0f32", "2i8") if change[1] == "int8" else text
    after = lowered(text)
    assert str(after).count("@copy_async(") == kept, str(after)
    if "aliases" not in text:
        agree(parse_program(text), after, seeds=2)


CHANGED = """program changed(x: float32[16]) -> (y: float32[16], z: float32[16]) {
  for b in 1 blockIdx.x {
    allocate s: float32[16] in shared
    for t in 16 threadIdx.x { y[t] = 1.0f32 }
    for t1 in 16 threadIdx.x { atomic y[t1] += x[t1] }
    for t2 in 16 threadIdx.x { s[t2] = y[15 - t2] }
    for t3 in 16 threadIdx.x { z[t3] = s[15 - t3] }
  }
}"""


@pytest.mark.parametrize("what", ["y[t] = 1.0f32", "@fill(y[t])"])
def test_what_somebody_changes_is_not_copied(what: str) -> None:
    """By stores, by atomic updates, or by an instruction that gets its address."""
    text = CHANGED.replace("y[t] = 1.0f32", what)
    if what.startswith("@"):
        text = text.replace("for t1 in 16 threadIdx.x { atomic y[t1] += x[t1] }", "")
    assert "@copy_async" not in str(lowered(text)) and "@copy_async" in str(
        lowered(text.replace("s[t2] = y[", "s[t2] = x["))
    )


class Copier(Writer):
    """Every second phase copies what lies in global memory as it is."""

    def phase(self, loops: tuple[str, ...]) -> str:
        if self.draw(st.booleans()):
            return super().phase(loops)
        t, draw = self.fresh("t"), self.draw
        at = draw(st.sampled_from([t, f"{t}*5 % 12", f"({t} + 3) % 12", f"{t}//2"]))
        half = f"{draw(st.sampled_from(loops))} % 2" if loops else "1"
        to = draw(st.sampled_from([f"s[{at}]", f"d[{half}, {at}]"]))
        guard = draw(st.sampled_from(["", f"if {t} < 7 "]))
        source = (
            at if at == f"{t}//2" else draw(st.sampled_from([t, f"11 - {t}"]))
        )  # two threads that store to one place store the same
        store = f"{to} = x[{source}]"
        return (
            f"for {t} in 12 threadIdx.x {{ {guard}{{ {store} }} }}"
            if guard
            else f"for {t} in 12 threadIdx.x {{ {store} }}"
        )


@st.composite
def groups(draw: st.DrawFn) -> str:
    return group(Copier(draw), "x[t]", "x[11 - t]")


@settings(max_examples=25, deadline=None)
@given(groups())
def test_random_groups_mean_the_same(text: str) -> None:
    program = parse_program(text)
    for found in joined_if_warps_can(program)[-1:]:
        agree(program, copy_async(found), seeds=3)
