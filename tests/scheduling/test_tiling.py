"""The schedules that real kernels are made of, as golden texts: convolution and product in register tiles, softmax by
rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.scheduling.nests import conv, matmul, same, softmax

from weft.loop.nodes import Program
from weft.scheduling import Schedule, Trace, replay

GOLDEN = Path(__file__).parent / "golden"


def schedule_conv(program: Program, tile: int = 14, checked: bool = True) -> Schedule:
    """Epilogue in the accumulator's tile, tile in registers, vectors over the channel block, threads over the rest."""
    s = Schedule(program, checked=checked)
    s.compute_inline("bias")
    n, co, h, w, ci, *reductions = s.loops("conv")
    wo, wi = s.split(w, [None, s.choose("tile_w", [4, 14], default=tile)])
    s.reorder(n, co, h, wo, *reductions, wi, ci)
    s.reverse_compute_at("relu", wo)
    s.decompose_reduction("conv", reductions[0])
    s.set_scope("conv", "register")
    s.compact_buffer("acc")
    for b in ("conv_init", "conv", "relu"):
        *_, inner, lanes = s.loops(b)
        s.vectorize(lanes)
        s.unroll(inner)
    s.parallel(s.fuse(n, co, h))
    return s


def schedule_matmul(program: Program, mr: int = 6, nr: int = 4, checked: bool = True) -> Schedule:
    """mr × nr register tiles over a packed panel, tails guarded."""
    s = Schedule(program, checked=checked)
    i, j, k = s.loops("matmul")
    i0, i1 = s.split(i, [None, mr])
    j0, j1 = s.split(j, [None, nr])
    s.reorder(j0, i0, k, i1, j1)
    s.reverse_compute_at("add", i0)
    s.decompose_reduction("matmul", k)
    s.compute_at("pack", j0)
    s.compact_buffer("P")
    s.set_scope("matmul", "register")
    s.compact_buffer("C")
    for b in ("matmul_init", "matmul", "add"):
        *_, inner, lanes = s.loops(b)
        s.vectorize(lanes)
        s.unroll(inner)
    s.parallel(j0)
    return s


def schedule_softmax(program: Program, checked: bool = True) -> Schedule:
    """Everything of a row in one parallel loop, the sum in lanes."""
    s = Schedule(program, checked=checked)
    row = s.loops("div")[0]
    for b in ("sum", "exp", "max"):
        s.compute_at(b, row)
    _, lanes = s.split(s.loops("sum")[-1], [None, 4])
    partial = s.rfactor("sum", lanes)
    for b in ("M", "E", "S", partial):
        s.compact_buffer(b)
    s.vectorize(lanes)
    s.parallel(row)
    return s


CASES: dict[str, Any] = {
    "conv_divides": (schedule_conv, lambda: conv(2, 28, 2, 4, 1)),
    "conv_tail": (schedule_conv, lambda: conv(2, 20, 2, 4, 1)),
    "conv_symbolic": (schedule_conv, lambda: conv(2, "W", 2, 4, 1)),
    "matmul_tails": (schedule_matmul, lambda: matmul(7, 9, 5)),
    "matmul_symbolic": (schedule_matmul, lambda: matmul("m", "n", "k")),
    "softmax": (schedule_softmax, softmax),
    "softmax_symbolic": (schedule_softmax, lambda: softmax("r", "c")),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    apply, make = CASES[name]
    program = make()
    s = apply(program)
    same(program, s.program, {"n": 1 if "conv" in name else 9, "m": 7, "W": 17, "r": 3, "c": 7})
    path = GOLDEN / f"{name}.txt"
    assert str(s) + "\n" == path.read_text(), f"{path.name} differs; if the change is meant, write the new text there"
    assert str(replay(program, Trace.from_json(s.trace.to_json()))) == str(s)


@pytest.mark.parametrize("width", [1, 13, 14, 15])
def test_symbolic_width_takes_any(width: int) -> None:
    program = conv(1, "W", 1, 2, 1)
    same(program, schedule_conv(program).program, {"n": 1, "W": width})


def test_accumulator_is_a_constant_register_tile() -> None:
    s = schedule_conv(conv(2, "W", 2, 4, 1))
    text = str(s)
    assert "allocate acc: float32[14, 4] in register" in text
    assert "biased" not in text


def test_override_changes_the_tile() -> None:
    s = Schedule(conv(), overrides={"tile_w": 4})
    assert s.choose("tile_w", [4, 14], default=14) == 4
    assert s.trace.choices == {"tile_w": 4}


def test_a_conv_schedule_takes_milliseconds() -> None:
    program = conv(14, "W", 8, 16, 4)
    best = min(_timed(program) for _ in range(3))
    assert best < 0.1, f"{best * 1e3:.0f} ms"


def _timed(program: Program) -> float:
    start = time.process_time()  # other work on the machine does not count
    schedule_conv(program, checked=False)
    return time.process_time() - start
