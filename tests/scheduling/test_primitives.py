"""Each primitive on its own: what it makes, that the meaning stays, and what it refuses in which words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.scheduling.nests import argmax, conv, matmul, same, softmax, stencil

from weft.errors import ScheduleError
from weft.expr.nodes import const
from weft.loop.nodes import Allocate, Block, Program, Region, transform_stmts, walk_stmts
from weft.loop.parser import parse_program
from weft.scheduling import Schedule, Trace, dependence, replay
from weft.scheduling.primitives import PRIMITIVES
from weft.scheduling.region import Access, block_accesses
from weft_interpreter.interpret import interpret

SCAN = """program scan(x: float32[4, 3]) -> (y: float32[4, 3]) {
  allocate s: float32[3]
  for z in 3 { block zero(vz: 3 = z) { s[vz] = 0.0f32 } }
  for t in 4 { for i in 3 { block step(vt: scan 4 = t, vi: 3 = i) { s[vi] = s[vi]*0.5f32 + x[vt, vi] y[vt, vi] = s[vi] } } }
}"""  # noqa: E501


def sched(program: Program, *steps: tuple[Any, ...]) -> Schedule:
    s = Schedule(program, checked=True)
    for name, *args in steps:
        s.apply(name, *args)
    return s


def shape(s: Schedule, buffer: str) -> str:
    return next(
        ", ".join(map(str, x.buffer.shape))
        for x in walk_stmts(s.program.body)
        if isinstance(x, Allocate) and x.buffer.name == buffer
    )


# -- what they make ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRIMITIVES)
def test_docstring_shows_before_and_after(name: str) -> None:
    doc = inspect.getdoc(PRIMITIVES[name]) or ""
    assert "→" in doc, f"{name} shows no before → after"


def test_split_that_divides_has_no_condition() -> None:
    s = sched(matmul(8, 9, 5), ("split", "i", [None, 4]))
    assert s.loops("matmul") == ["i_0", "i_1", "j", "k0"]
    assert "where" not in str(s)


def test_split_that_overshoots_guards() -> None:
    s = sched(matmul(), ("split", "i", [2, None]))
    assert "where i_0*4 + i_1 < 7" in str(s)
    assert str(s.loop("i_1").extent) == "4"


def test_split_of_a_symbolic_multiple_needs_no_condition() -> None:
    p = parse_program(
        "program p(x: float32[n*8]) -> (y: float32[n*8]) dims(n) { for i in n*8 { block b(v: n*8 = i) { y[v] = x[v]"
        " } } }"
    )
    s = sched(p, ("split", "i", [None, 4]))
    assert "where" not in str(s) and str(s.loop("i_0").extent) == "n*2"
    same(p, s.program)


def test_split_twice_and_name() -> None:
    s = sched(matmul("m", 9, 5), ("split", "i", [None, 4], ["a", "b"]), ("split", "b", [2, 2]))
    assert s.loops("matmul")[:3] == ["a", "b_0", "b_1"]
    assert "a*4 + b_0*2 + b_1" in str(s)


def test_fuse_undoes_split() -> None:
    p = matmul(8, 9, 5)
    s = sched(p, ("split", "i", [None, 4]), ("fuse", "i_0", "i_1"))
    assert "vi: 8 = i_0_i_1," in str(s)
    same(p, s.program)


def test_fuse_with_loops_that_have_no_step() -> None:
    p = parse_program(
        "program f(x: int8[4, 0]) -> (y: int8[4, 0]) { for i in 4 { for j in 0 { block A(b: 4 = i, c: 0 = j) { y[b, c]"
        " = x[b, c] } } } }"
    )
    assert "for i_j in 0 {" in str(sched(p, ("fuse", "i", "j")).program)


@pytest.mark.parametrize("most", [128, 129])
def test_a_loop_of_one_step_or_none_that_was_fused_leaves_iterations_independent(most: int) -> None:
    """Its part of the index is zero and gone; of one with two steps that part is missed."""
    steps = f"(max(min(k, {most}), 0) + 127)//128"
    text = f"""
    program f(x: int8[2, 2, k]) -> (y: int8[2, 2]) dims(k) {{
      for i in ({steps})*4 {{ block A(a: 2 = i//(({steps})*2), b: 2 = i//({steps})%2) {{ y[a, b] = x[a, b, 0] }} }}
    }}"""
    p = parse_program(text)
    if most == 128:
        same(p, sched(p, ("parallel", "i")).program)
    else:
        with pytest.raises(ScheduleError, match="are not independent"):
            sched(p, ("parallel", "i"))


def test_reorder_keeps_loops_that_are_not_named_in_place() -> None:
    s = sched(matmul(), ("reorder", "k0", "i"))
    assert s.loops("matmul") == ["k0", "j", "i"]
    same(matmul(), s.program)


def test_split_guards_what_is_read_outside_of_blocks() -> None:
    """Definitions read memory, too: the interpreter refuses what lies beyond its end."""
    text = "program f(x: float32[5]) -> (y: float32[5]) { for i in 5 { let k: float32 = x[i] y[i] = k*2.0f32 } }"
    p = parse_program(text)
    same(p, sched(p, ("split", "i", [None, 4])).program)


FUSED = """
program f(x: float32[2, 3]) -> (y: float32[2, 3]) {
  allocate g: float32[2, 3]
  for a in 2 KIND {
    for b in 4 {
      block P(p: 2 = (a*4 + b)//3, q: 3 = (a*4 + b)%3) where a*4 + b < 6 { g[p, q] = x[p, q]*2.0f32 }
      block Q(p2: 2 = (a*4 + b)//3, q2: 3 = (a*4 + b)%3) where a*4 + b < 6 { y[p2, q2] = g[p2, q2] + 1.0f32 }
    }
  }
}
"""
CARRIED = """
program f(x: float32[4]) -> (y: float32[3, 4]) {
  allocate g: float32[5, 4]
  for i in 4 { block S(vi: 4 = i) { g[0, vi] = x[vi] } }
  for t in 3 {
    for j in 4 parallel {
      block P(vt: scan 3 = t, vj: 4 = j) { g[vt + 1, vj] = g[vt, (vj + 1)%4] + 1.0f32 }
      block Q(wt: scan 3 = t, wj: 4 = j) { y[wt, wj] = g[wt + 1, wj] }
    }
  }
}
"""


def test_reorder_of_parallel_loops() -> None:
    """A loop that is parallel moves inside of others without a proof; what runs in order does not."""
    p = parse_program(FUSED.replace("KIND", "parallel"))
    s = sched(p, ("reorder", "b", "a"))
    assert s.loops("P") == ["b", "a"]
    same(p, s.program)
    with pytest.raises(ScheduleError, match="'a' does not commute"):
        sched(parse_program(FUSED.replace(" KIND", "")), ("reorder", "b", "a"))
    with pytest.raises(ScheduleError, match="loop 't' does not commute"):
        sched(parse_program(CARRIED), ("reorder", "j", "t"))


def test_loop_kinds() -> None:
    s = sched(
        matmul(8, 8, 5),
        ("parallel", "i"),
        ("split", "j", [None, 4]),
        ("vectorize", "j_1"),
        ("unroll", "j_0"),
        ("bind", "i1", "blockIdx.x"),
    )
    s.bind("j1", "threadIdx.x")
    assert [s.loop(x).kind for x in ("i", "j_1", "j_0", "i1", "j1")] == [
        "parallel",
        "vectorized",
        "unrolled",
        "blockIdx.x",
        "threadIdx.x",
    ]


def test_pieces_of_a_parallel_loop_are_bound_though_their_formulas_show_no_more_that_they_are_independent() -> None:
    s = sched(matmul(6, 7, 5), ("fuse", "i1", "j1"))
    with pytest.raises(ScheduleError, match="are not independent"):
        sched(s.program, ("split", "i1_j1", [None, 2, 8]), ("bind", "i1_j1_2", "threadIdx.x"))
    s = sched(s.program, ("parallel", "i1_j1"), ("split", "i1_j1", [None, 2, 8]))
    assert [s.loop(x).kind for x in s.loops("add")] == ["parallel"] * 3
    s.bind("i1_j1_0", "blockIdx.x")
    s.bind("i1_j1_2", "threadIdx.x")
    s.serial("i1_j1_1")
    assert [s.loop(x).kind for x in s.loops("add")] == ["blockIdx.x", "serial", "threadIdx.x"]
    with pytest.raises(ScheduleError, match=r"'i1_j1_0' is blockIdx\.x already"):
        s.serial("i1_j1_0")
    same(matmul(6, 7, 5), s.program)


@pytest.mark.parametrize(
    ("index", "apart"),
    [
        ("(a*16 + v*2)%9", True),
        ("(a*16 + v*3)%9", False),
        ("(a*16 + v)%4", True),
        ("(a*16 + v)%3", False),
        ("(a*2 + v + w)%9", False),
    ],
)
def test_steps_of_a_remainder_are_told_apart_where_they_do_not_come_round(index: str, apart: bool) -> None:
    """Four steps of v: what they add is less than the divisor, and no loop inside moves along."""
    block = f"block A(a: 4 = i, v: 4 = j, w: 2 = k) {{ y[{index}] = x[a] }}"
    p = parse_program(
        f"program f(x: int8[64]) -> (y: int8[16]) {{ for i in 4 {{ for j in 4 {{ for k in 2 {{ {block} }} }} }} }}"
    )
    if apart:
        assert sched(p, ("parallel", "j")).loop("j").kind == "parallel"
    else:
        with pytest.raises(ScheduleError, match="are not independent"):
            sched(p, ("parallel", "j"))


def test_a_single_iteration_depends_on_no_other() -> None:
    s = sched(matmul(), ("split", "k0", [1, None]), ("reorder", "k0_0", "i", "j", "k0_1"), ("parallel", "k0_0"))
    assert s.loop("k0_0").kind == "parallel"
    same(matmul(), s.program)


def test_annotate_block_and_loop() -> None:
    s = sched(
        matmul(), ("annotate", "matmul", "role", "main"), ("annotate", "i", "pragma", 3), ("annotate", "i", "pragma", 4)
    )
    assert s.block("matmul").annotation("role") == "main" and s.block("matmul").annotation("op") == "MatMul"
    assert s.loop("i").annotations == (("pragma", 4),)


def test_compute_at_computes_the_box_with_its_halo() -> None:
    p = parse_program("""program p(x: float32[10]) -> (y: float32[8]) { allocate a: float32[10]
      for i in 10 { block A(v: 10 = i) { a[v] = x[v] + 1.0f32 } }
      for j in 8 { block B(w: 8 = j) { y[w] = a[w] + a[w + 2] } } }""")
    s = sched(p, ("split", "j", [None, 4]), ("compute_at", "A", "j_0"), ("compact_buffer", "a"))
    assert str(s.loop("i").extent) == "6" and shape(s, "a") == "6"
    same(p, s.program)


def test_compute_at_guards_what_leaves_the_buffer() -> None:
    p = matmul(7, 9, 5)
    s = sched(p, ("split", "j", [None, 6]), ("reorder", "j_0", "i"), ("compute_at", "pack", "j_0"))
    assert "< (9 + 3)//4" in str(s) or "< 3" in str(s)
    same(p, s.program)


def test_reverse_compute_at_covers_the_tail() -> None:
    p = matmul("m", 9, 5)
    s = sched(p, ("split", "i", [None, 4]), ("reverse_compute_at", "add", "i_0"))
    assert "where i_0*4 + i1 < m" in str(s)
    same(p, s.program, {"m": 7})


def test_tiles_end_with_the_part_that_they_lie_in() -> None:
    p = parse_program("""program p(x: float32[20]) -> (z: float32[20]) { allocate a: float32[20] allocate y: float32[20]
      for i in 20 { block A(v: 20 = i) { a[v] = x[v] + 1.0f32 } }
      for j in 20 { block B(w: 20 = j) { y[w] = a[w] * 2.0f32 } }
      for k in 20 { block C(u: 20 = k) { z[u] = y[u] - 3.0f32 } } }""")
    tiles = [("split", "j", [2, None]), ("split", "j_1", [None, 4])]
    s = sched(p, *tiles, ("compute_at", "A", "j_1_0"), ("reverse_compute_at", "C", "j_1_0"))
    assert "block A(v: 20 = j_0*10 + j_1_0*4 + i) where j_1_0*4 + i < 10 {" in str(s)
    assert "block C(u: 20 = j_0*10 + j_1_0*4 + k) where j_1_0*4 + k < 10 {" in str(s)
    same(p, sched(s.program, ("parallel", "j_0")).program)
    beyond = parse_program(str(s).replace("j_1_0*4 + k < 10", "j_0*10 + j_1_0*4 + k < 20"))
    with pytest.raises(ScheduleError, match="two iterations may touch the same element of buffer 'y'"):
        sched(beyond, ("parallel", "j_0"))


CELL = """program cell(x: float32[3, 2, 7], w: float32[2, 7, 7]) -> (y: float32[3, 7]) {
  allocate h: float32[7]
  allocate g: float32[2, 7]
  allocate c: float32[7]
  for z in 7 { block zero(vz: 7 = z) { h[vz] = 0.0f32 } }
  for t in 3 {
    for a in 2 { for j in 7 { for k in 7 {
      block gates(vt: scan 3 = t, va: 2 = a, vj: 7 = j, vk: reduce 7 = k) { init { g[va, vj] = 0.0f32 } g[va, vj] = g[va, vj] + h[vk]*w[va, vj, vk] }
    } } }
    for u in 7 { block new(vu: scan 3 = t, v: 7 = u) { c[v] = (g[0, v] + x[vu, 0, v])*0.5f32 - (g[1, v] + x[vu, 1, v])*0.25f32 } }
    for i in 7 { block carry(vc: scan 3 = t, vi: 7 = i) { h[vi] = c[vi] y[vc, vi] = c[vi] } }
  }
}"""  # noqa: E501


def test_reverse_compute_at_stays_in_its_step_of_a_scan() -> None:
    p = parse_program(CELL)
    s = sched(
        p,
        ("split", "j", [None, 4]),
        ("reorder", "j_0", "a", "j_1"),
        ("reverse_compute_at", "new", "j_0"),
        ("compact_buffer", "g"),
    )
    assert s.loops("new") == ["t", "j_0", "u"] and "vu: scan 3 = t, v: 7 = j_0*4 + u" in str(s)
    assert shape(s, "g") == "2, 4"
    s.parallel("j_0")
    same(p, s.program)


LINES = """program lines(x: float32[5, 3, 4]) -> (y: float32[5, 3, 4]) {
  allocate h: float32[3, 4]
  allocate c: float32[3, 4]
  for a in 3 { for z in 4 { block zero(va: 3 = a, vz: 4 = z) { h[va, vz] = 1.0f32 } } }
  for t in 5 {
    for b in 3 { for j in 4 { for k in 4 {
      block mix(vt: scan 5 = t, vb: 3 = b, vj: 4 = j, vk: reduce 4 = k) { init { c[vb, vj] = x[vt, vb, vj] } c[vb, vj] = c[vb, vj] + h[vb, vk]*0.5f32 }
    } } }
    for i in 3 { for m in 4 { block carry(vc: scan 5 = t, vi: 3 = i, vm: 4 = m) { h[vi, vm] = c[vi, vm]*0.5f32 y[vc, vi, vm] = h[vi, vm] } } }
  }
}"""  # noqa: E501


def test_stage_result_of_a_reduction_with_several_results_and_of_a_step() -> None:
    p = argmax(4, 6)
    s = sched(p, ("stage_result", "best", "k", "register"))
    start = s.decompose_reduction("best", "k")
    assert str(s).count("in register") == 2 and s.loops(start) == ["i"] and s.loops("best_copy") == ["i"]
    same(p, s.program)
    p = parse_program(LINES)
    s = sched(p, ("stage_result", "mix", "k", "register"))
    assert "mix_copy(mix" not in str(s) and s.block("mix_copy").iters[0].kind == "scan"
    same(p, s.program)


def test_lift_takes_independent_lines_out_of_the_steps_of_a_scan() -> None:
    p = parse_program(LINES)
    s = sched(p, ("lift", "t", ["b", "i"]))
    assert s.loops("mix") == ["b", "t", "j", "k"] and s.loops("carry") == ["b", "t", "m"]
    s.bind("b", "blockIdx.x")
    same(p, s.program)


def test_lift_refuses_what_steps_mix_and_what_is_not_alike() -> None:
    p = parse_program(LINES)
    with pytest.raises(ScheduleError, match=r"the nests inside 't' begin with \['b', 'i'\], not with \['b'\]"):
        sched(p, ("lift", "t", ["b"]))
    with pytest.raises(ScheduleError, match="the iterations of 'b_j' are not independent"):
        sched(p, ("fuse", "b", "j"), ("fuse", "i", "m"), ("lift", "t", ["b_j", "i_m"]))
    with pytest.raises(ScheduleError, match="have extents 2, 3"):
        sched(p, ("split", "b", [2, 2]), ("lift", "t", ["b_0", "i"]))
    with pytest.raises(ScheduleError, match="'i' is parallel already"):
        sched(p, ("parallel", "i"), ("lift", "t", ["b", "i"]))


def test_compute_inline_names_what_a_reduction_accumulates_into_as_it_stores_it() -> None:
    p = parse_program("""program one(x: float32[4]) -> (y: float32[1]) {
      allocate a: float32[4]
      for i in 4 { block A(v: 4 = i) { a[v] = x[v]*2.0f32 } }
      for j in 1 { for k in 4 { block S(u: 1 = j, r: reduce 4 = k) { init { y[u] = 0.0f32 } y[u] = y[u] + a[r] } } }
    }""")
    s = sched(p, ("compute_inline", "A"))
    assert "y[u] = y[u] + x[r]*2.0f32" in str(s)
    s.stage_result("S", "k", "register")
    same(p, s.program)


def test_compute_inline_and_back() -> None:
    p = conv()
    s = sched(p, ("compute_inline", "bias"))
    assert s.blocks() == ["conv", "relu"] and "biased" not in str(s)
    same(p, s.program)
    s = sched(p, ("reverse_compute_inline", "relu"))
    assert s.blocks() == ["conv", "bias"] and "y[van, vaco" in str(s)
    same(p, s.program)


HEADS = """program heads(x: float32[2, 4, 5]) -> (y: float32[5, 8]) {
  allocate a: float32[2, 4, 5]
  for g in 2 { for r in 4 { for n in 5 { block A(ag: 2 = g, ar: 4 = r, an: 5 = n) { a[ag, ar, an] = x[ag, ar, an]*2.0f32 } } } }
  for m in 5 { for h in 8 { block B(bm: 5 = m, bh: 8 = h) { y[bm, bh] = a[bh//4, bh%4, bm] + 1.0f32 } } }
}"""  # noqa: E501


def test_inlining_looks_at_the_blocks_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a group, one after another: each is looked at once, and again when it has changed."""
    looked = []

    def counted(block: Block, buffer: str | None = None) -> list[Access]:
        looked.append(block.name)
        return block_accesses(block, buffer)

    monkeypatch.setattr(dependence, "block_accesses", counted)

    def total(count: int) -> int:
        allocations = " ".join(f"allocate a{k}: float32[4]" for k in range(count))
        blocks = " ".join(
            f"for i{k} in 4 {{ block A{k}(v{k}: 4 = i{k}) {{ a{k}[v{k}] = x[v{k}] + {k}.0f32 }} }}"
            for k in range(count)
        )
        last = f"for j in 4 {{ block Y(w: 4 = j) {{ y[w] = {' + '.join(f'a{k}[w]' for k in range(count))} }} }}"
        s = Schedule(parse_program(f"program p(x: float32[4]) -> (y: float32[4]) {{ {allocations} {blocks} {last} }}"))
        looked.clear()
        for k in range(count):
            s.compute_inline(f"A{k}")
        assert s.blocks() == ["Y"] and "allocate" not in str(s)
        return len(looked)

    assert total(40) <= 2.5 * total(20)


def test_reverse_compute_inline_keeps_apart_what_the_consumer_takes_as_one() -> None:
    p = parse_program(HEADS)
    s = sched(p, ("reverse_compute_inline", "B"))
    assert s.blocks() == ["A"] and "y[an, ag*4 + ar]" in str(s)
    same(p, s.program)


def test_parallel_over_joined_loops_that_index_one_dimension_together() -> None:
    s = sched(parse_program(HEADS), ("reverse_compute_inline", "B"), ("fuse", "g", "r"), ("parallel", "g_r"))
    assert "g_r in 8 parallel" in str(s)
    overlapping = HEADS.replace("y[bm, bh]", "y[bm, bh//4*3 + bh%4]").replace(
        "y: float32[5, 8]", "y: float32[5, 7]"
    )  # 3 is both 0*3 + 3 and 1*3 + 0
    with pytest.raises(ScheduleError, match="two iterations may touch the same element of buffer 'y'"):
        sched(parse_program(overlapping), ("parallel", "h"))


def test_cache_read_then_compute_at() -> None:
    p = matmul(8, 9, 5)
    s = sched(p, ("cache_read", "matmul", "A", "local"))
    assert s.blocks() == ["pack", "A_local", "matmul", "add"]
    s.compute_at("A_local", "i")
    s.compact_buffer("A_local")
    assert shape(s, "A_local") == "5"
    same(p, s.program)


def test_rfactor_with_the_partial_results_as_last_dimension() -> None:
    p = matmul(7, 9, 8)
    s = sched(p, ("split", "k0", [None, 4]), ("rfactor", "matmul", "k0_1", True))
    assert shape(s, "matmul_rf") == "7, 9, 4"
    same(p, s.program)


def test_cache_read_in_another_order() -> None:
    p = matmul(8, 9, 5)
    s = sched(p, ("cache_read", "matmul", "A", "local", [1, 0]))
    assert shape(s, "A_local") == "5, 8" and "A_local[vk, vi]" in str(s)
    same(p, s.program)


def test_cache_write_in_another_order() -> None:
    p = matmul(8, 9, 5)
    s = sched(p, ("cache_write", "matmul", "local", [1, 0]))
    assert shape(s, "matmul_local") == "9, 8"
    assert "matmul_local[vj, vi] = matmul_local[vj, vi] + " in str(
        s
    ) and "init { matmul_local[vj, vi] = 0.0f32 }" in str(s)
    same(p, s.program)
    s.reverse_compute_at("matmul_copy", "j")
    s.compact_buffer("matmul_local")
    same(p, s.program)
    three = parse_program("""program turn(x: float32[2, 3, 4]) -> (y: float32[2, 3, 4]) {
      for i in 2 { for j in 3 { for k in 4 { block t(a: 2 = i, b: 3 = j, c: 4 = k) { y[a, b, c] = x[a, b, c]*2.0f32 } } } }
    }""")  # noqa: E501
    s = sched(three, ("cache_write", "t", "local", [2, 0, 1]))
    assert shape(s, "t_local") == "4, 2, 3"
    same(three, s.program)


def test_pad_loop_makes_tiles_whole() -> None:
    p = matmul(7, 9, 5)
    s = sched(p, ("pad_loop", "matmul", "j", 4))
    assert shape(s, "C") == "7, 12" and str(s.loop("j").extent) == "12" and str(s.loop("j1").extent) == "9"
    s.split("j", [None, 4])
    assert "where" not in str(s)
    same(p, s.program)


def test_pad_loop_of_a_copy_writes_zeros_where_its_operand_ends() -> None:
    p = matmul(7, 9, 5)
    s = sched(
        p,
        ("cache_read", "matmul", "A", "local"),
        ("pad_loop", "A_local", "A_local_i0", 4),
        ("pad_loop", "matmul", "i", 4),
    )
    assert shape(s, "A_local") == "8, 5" and "select(A_local_v0 < 7, A[A_local_v0, A_local_v1], 0.0f32)" in str(s)
    same(p, s.program)


def test_pad_loop_leaves_a_multiple_alone() -> None:
    p = matmul(8, 9, 5)
    assert str(sched(p, ("pad_loop", "matmul", "i", 4)).program) == str(p)


def test_cache_write_then_reverse_compute_at() -> None:
    p = softmax()
    s = sched(p, ("cache_write", "div", "local"))
    s.reverse_compute_at("div_copy", "i3")
    s.compact_buffer("div_local")
    assert shape(s, "div_local") == "6"
    same(p, s.program)


def test_decompose_gives_the_start_value_where_there_is_nothing_to_reduce() -> None:
    p = softmax("m", "n")
    s = sched(p, ("decompose_reduction", "sum", "k2"))
    assert s.blocks() == ["max", "exp", "sum_init", "sum", "div"]
    same(p, s.program, {"n": 3})


def test_decompose_of_a_tuple_reduction() -> None:
    p = argmax("m", "n")
    s = sched(
        p,
        ("split", "k", [None, 4]),
        ("decompose_reduction", "best", "k_0"),
        ("reverse_compute_at", "take", "i"),
        ("compact_buffer", "V"),
    )
    same(p, s.program, {"n": 6})


def test_set_scope() -> None:
    assert "allocate C: float32[7, 9] in local" in str(sched(matmul(), ("set_scope", "matmul", "local")))


def test_rfactor_with_a_tail() -> None:
    p = softmax("m", "n")
    s = sched(p, ("split", "k0", [None, 4]), ("rfactor", "max", "k0_1"))
    assert "select(" in str(s) and s.blocks()[:2] == ["max_rf", "max"]
    for n in (1, 3, 6):
        same(p, s.program, {"n": n})


PANELS = """program p(x: float32[7, 64], w: float32[4, 64, 16]) -> (y: float32[4, 7, 16]) {
  for p in 4 { for r in 7 { for k in 64 { for j in 16 {
    block C(vp: 4 = p, vr: 7 = r, vk: reduce 64 = k, vj: 16 = j) {
      init { y[vp, vr, vj] = 0.0f32 }
      y[vp, vr, vj] = y[vp, vr, vj] + x[vr, vk]*w[vp, vk, vj]
    } } } } }
}"""


def test_prefetch_of_the_next_panel_is_shared_by_rows() -> None:
    p = parse_program(PANELS)
    steps = (
        ("split", "k", [None, 8]),
        ("split", "r", [None, 3]),
        ("reorder", "r_0", "k_0", "k_1", "r_1"),
        ("prefetch", "C", "w", "p", "k_0"),
    )
    s = sched(p, *steps)
    # Eight lines for three row tiles: three each, the last one asks for its last line twice; after the last panel there
    # is none.
    assert "for ask in 3 unrolled {" in str(s)
    assert "@prefetch(w[min(p + 1, 3), k_0*8 + min(r_0*3 + ask, 7), 0], 2)" in str(s)
    s.vectorize("j")
    s.parallel("p")
    same(p, s.program)
    same(p, replay(p, Trace.from_json(s.trace.to_json())))


def test_prefetch_in_the_stream_itself() -> None:
    p = parse_program(PANELS)
    s = sched(p, ("prefetch", "C", "w", "k", "k", 32, 3))
    # 64 bytes a step are two lines of 32.
    assert "@prefetch(w[p, min(k + 1, 63), ask*8], 3)" in str(s)
    same(p, s.program)


def test_serpentine_turns_each_part_round() -> None:
    p = parse_program(CELL)
    steps = ("split", "j", [None, 1]), ("reorder", "j_0", "a", "j_1"), ("split", "u", [None, 1]), ("parallel", "u_0")
    s = sched(p, *steps, ("serpentine", "u_0", "t"))
    assert "v: 7 = select(t%2 == 0, u_0, u_0 + 6 - u_0%7*2)" in str(s)
    same(p, s.program)
    same(p, replay(p, Trace.from_json(s.trace.to_json())))
    p = parse_program(PANELS.replace("for p in 4 { for r in 7", "for r in 7 { for p in 4"))
    s = sched(p, ("serpentine", "p", "r", 2))
    assert "vp: 4 = select(r%2 == 0, p, p + 1 - p%2*2)" in str(s)
    same(p, s.program)


def test_an_old_name_of_a_primitive_warns_and_does_the_same() -> None:
    p = parse_program(PANELS.replace("for p in 4 { for r in 7", "for r in 7 { for p in 4"))
    new = sched(p, ("serpentine", "p", "r", 2))
    old = Schedule(p)
    with pytest.warns(DeprecationWarning, match="the primitive 'swing' has another name now: 'serpentine'"):
        old.swing("p", "r", 2)  # type: ignore[attr-defined]
    assert (str(old), old.trace) == (str(new), new.trace)
    steps = new.trace.to_json().replace("serpentine", "swing")
    with pytest.warns(DeprecationWarning, match="'serpentine'"):
        assert str(replay(p, Trace.from_json(steps))) == str(new)
    with pytest.warns(DeprecationWarning, match="'serpentine'"):
        from weft.scheduling.primitives import swing  # type: ignore[attr-defined]
    assert swing is PRIMITIVES["serpentine"]


def test_looking() -> None:
    s = Schedule(conv())
    assert s.blocks() == ["conv", "bias", "relu"]
    assert s.consumers("conv") == ["bias"] and s.producers("relu") == ["bias"] and s.producers("conv") == []
    assert s.buffers("conv") == ["acc"]
    assert str(s).startswith("program conv(")


# -- what they refuse -------------------------------------------------------------------------------------------------

M, C, S, T = matmul, conv, softmax, stencil
PAIR = "program p(x: float32[8]) -> (y: float32[8]) { for i in 8 { block A(v: 8 = i) { y[v] = x[v] } } }"


def scan() -> Program:
    return parse_program(SCAN)


REFUSALS: list[tuple[Callable[[], Program], list[tuple[Any, ...]], str]] = [
    (M, [("split", "ii", [None, 2])], "there is no loop 'ii'"),
    (M, [("compute_inline", "matmu")], "did you mean 'matmul'?"),
    (M, [("split", "i", [None, None])], "leave the extents open"),
    (M, [("split", "i", [2, 2])], "cover 4 of 7 iterations"),
    (lambda: M("m"), [("split", "i", [2, 2])], "nothing says that 4 iterations are enough"),
    (M, [("split", "i", [None, 0])], "not all positive"),
    (M, [("split", "i", [None, 2], ["j", "a"])], "the name 'j' is taken"),
    (M, [("split", "i", [None, 2], ["a"])], "1 names for 2 factors"),
    (M, [("unroll", "i"), ("split", "i", [None, 2])], "split first, then bind"),
    (M, [("fuse",)], "no loops are named"),
    (M, [("fuse", "i", "k0")], "loop 'k0' is not directly inside 'i'"),
    (M, [("parallel", "i"), ("fuse", "i", "j")], "parallel loops go with parallel ones"),
    (M, [("reorder", "i", "i")], "a loop is named twice"),
    (M, [("reorder", "i", "i1")], "name loops of one nest"),
    (M, [("reverse_compute_at", "add", "i"), ("reorder", "j", "i")], "the loops are not a perfect nest"),
    (scan, [("reorder", "i", "t")], "'t' runs the scan iterator 'vt'"),
    (lambda: M("m"), [("unroll", "i")], "the extent m of loop 'i' is not a constant"),
    (lambda: M("m"), [("vectorize", "i")], "split it first: split('i', [None, 8])"),
    (M, [("vectorize", "k0")], "it carries the reduce iterator 'vk' of block 'matmul'"),
    (M, [("parallel", "k0")], "rfactor the reduction"),
    (scan, [("parallel", "t")], "it carries the scan iterator 'vt'"),
    (M, [("parallel", "i"), ("unroll", "i")], "loop 'i' is parallel already"),
    (S, [("compute_at", "max", "j1"), ("parallel", "j1")], "two iterations may touch the same element of buffer 'M'"),
    (M, [("bind", "i", "threadIdx.w")], "there is no axis 'threadIdx.w'"),
    (M, [("bind", "i", "threadIdx.x"), ("bind", "j", "threadIdx.x")], "threadIdx.x is taken by loop 'i'"),
    (M, [("annotate", "nobody", "a", 1)], "there is no block or loop 'nobody'"),
    (M, [("compute_at", "add", "i")], "writes the output 'Y', which is wanted whole"),
    (M, [("decompose_reduction", "matmul", "k0"), ("compute_at", "matmul", "i1")],
        "compute_at before decompose_reduction"),
    (M, [("compute_at", "pack", "i1")], "its consumers ['matmul'] are not under 'i1'"),
    (M, [("compute_at", "matmul", "j1"), ("compute_at", "matmul", "j1")], "'matmul' is under 'j1' already"),
    (S, [("parallel", "j1"), ("compute_at", "max", "j1")], "decide about 'j1' last"),
    (S, [("compute_at", "exp", "i3")], "its consumers ['sum'] are not under 'i3'"),
    (scan, [("compute_at", "step", "z")], "writes the output 'y'"),
    (M, [("reverse_compute_at", "add", "po")], "no producer of 'add' is under 'po'"),
    (M, [("reverse_compute_at", "add", "k0")], "its reduction over 'k0' goes on outside"),
    (M, [("reorder", "k0", "i"), ("reverse_compute_at", "add", "i")], "'matmul' is not complete there"),
    (S, [("reverse_compute_at", "sum", "j1")], "'sum' reduces over more than one iteration of 'j1' completes"),
    (S, [("reverse_compute_at", "div", "i1")], "'sum' also writes what 'div' reads, after 'i1'"),
    (T, [("reverse_compute_at", "B", "j")], "'B' reads more of 'a' than one iteration of 'j' completes"),
    (M, [("split", "i", [None, 2]), ("reorder", "i_1", "i_0"), ("reverse_compute_at", "add", "i_1")],
        "only scattered elements"),
    (M, [("reverse_compute_at", "add", "i"), ("reverse_compute_at", "add", "i")], "'add' is under 'i' already"),
    (M, [("split", "i", [None, 2]), ("reverse_compute_at", "add", "i_0"), ("compact_buffer", "C"),
        ("reverse_compute_at", "add", "i_1")], "depend on"),
    (M, [("compute_inline", "matmul")], "'matmul' is a reduction"),
    (M, [("compute_inline", "add")], "'add' writes the output 'Y'"),
    (scan, [("compute_inline", "step")], "'step' is a step of a scan"),
    (M, [("reverse_compute_inline", "add")],
        "reverse_compute_at('add', a loop of 'matmul') keeps the block and moves it"),
    (T, [("reverse_compute_inline", "B")], "'B' is not elementwise in an intermediate buffer that only it reads"),
    (M, [("cache_read", "matmul", "B", "local")], "'matmul' does not read a buffer 'B'"),
    (M, [("cache_read", "matmul", "C", "local")], "'matmul' writes 'C'"),
    (M, [("compute_at", "pack", "i"), ("cache_read", "matmul", "P", "local")],
        "'P' is written under the same loop 'i'"),
    (M, [("cache_read", "matmul", "A", "local", [0, 2])],
        "the order (0, 2) does not name each of the 2 dimensions of 'A' once"),
    (M, [("cache_write", "matmul", "local", [0, 0])],
        "the order (0, 0) does not name each of the 2 dimensions of 'C' once"),
    (M, [("pad_loop", "matmul", "i", 4)], "'A' has no elements for so many steps of 'i'"),
    (M, [("split", "k0", [None, 2]), ("pad_loop", "matmul", "k0_0", 4)],
        "'k0_0' does not run over one spatial or reduce iterator of 'matmul'"),
    (M, [("pad_loop", "matmul", "k0", 4, 1.0)], "'k0' is of a reduction, whose new steps change nothing"),
    (M, [("pad_loop", "matmul", "k0", 0)], "0 is no multiple to pad to"),
    (M, [("pad_loop", "add", "j1", 4)], "'add' does not alone write one intermediate buffer"),
    (M, [("pad_loop", "matmul", "i1", 4)], "'i1' is not a loop of 'matmul' alone"),
    (lambda: matmul("m"), [("pad_loop", "matmul", "i", 4)], "'A' has no elements for so many steps of 'i'"),
    (argmax, [("cache_write", "best", "local")], "'best' writes 2 buffers"),
    (M, [("decompose_reduction", "matmul", "k0"), ("cache_write", "matmul", "local")],
        "cache_write before decompose_reduction"),
    (M, [("compute_at", "pack", "i"), ("compact_buffer", "P"), ("cache_write", "pack", "local")],
        "'P' is allocated under the loops that the copy comes after"),
    (M, [("set_scope", "add", "local")], "cache_write('add', 'local')"),
    (M, [("compact_buffer", "Y")], "'Y' is a parameter"),
    (M, [("compact_buffer", "Z")], "there is no buffer 'Z'"),
    (M, [("decompose_reduction", "add", "i1")], "'add' has no init"),
    (M, [("decompose_reduction", "matmul", "i1")], "loop 'i1' is not around 'matmul'"),
    (M, [("reorder", "k0", "i"), ("decompose_reduction", "matmul", "i")], "the reduction loop 'k0' is outside 'i'"),
    (S, [("compute_at", "sum", "i3"), ("compact_buffer", "S"), ("decompose_reduction", "sum", "i3")],
        "buffer 'S' is allocated inside 'i3'"),
    (M, [("rfactor", "matmul", "i")], "loop 'i' is no reduction loop of 'matmul'"),
    (M, [("rfactor", "add", "i1")], "is no reduction by one operation with an init"),
    (argmax, [("rfactor", "best", "k")], "is no reduction by one operation with an init"),
]  # fmt: skip


def text(body: str, buffers: str = "", more: str = "") -> Callable[[], Program]:
    """A program over x: float32[8], with y: float32[8] out, allocated buffers a and b: float32[8]."""
    return lambda: parse_program(
        f"program p(x: float32[8]{more}) -> (y: float32[8]) {{ allocate a: float32[8] allocate b: float32[8] {buffers}"
        f" {body} }}"
    )


A = "for i in 8 { block A(v: 8 = i) { a[v] = x[v]*2.0f32 } }"
B = "for j in 8 { block B(w: 8 = j) { y[w] = a[w] + 1.0f32 } }"
HALF = "for i in 8 { block A(v: 8 = i) where i < 4 { a[v] = x[v] } }"
SUM = (
    "for i in 2 { for k in 4 { block A(v: 8 = i, r: reduce 4 = k) { init { a[v] = 0.0f32 } a[v] = a[v] + x[v*4 + r]"
    " } } }"
)
TRIANGLE = (
    "for i in 8 { for k in i + 1 { block A(v: 8 = i, r: reduce 8 = k) { init { y[v] = 0.0f32 } y[v] = y[v] + x[r] } } }"
)
DIAGONAL = (
    "for i in 4 { for k in 2 { block A(v: 8 = i + k, r: reduce 2 = k) { init { y[v] = 0.0f32 } y[v] = y[v] +"
    " x[v]*2.0f32 } } }"
)
STEP = "for t in 8 { block S(u: scan 8 = t) { a[u] = x[u] + 1.0f32 } }"
OVER_A = "for o in 8 { block O(z: 8 = o) { a[z] = a[z]*2.0f32 } }"
PROD = (
    "for i in 8 { for k in 8 { block A(v: 8 = i, r: reduce 8 = k) { init { a[v] = 0.0f32 } a[v] = a[v]*0.5f32 - x[r]"
    " } } }"
)
C_OF_X = "for h in 8 { block C(z: 8 = h) { b[z] = x[z] } }"
PRIVATE_OUT = """for j in 2 { allocate c: float32[8] for k in 8 { block B(w: 8 = k) { c[w] = a[w] } }
  for l in 8 { block D(z: 8 = l) { y[z] = c[z] } } }"""
# Rows whose own buffer c differs: what an earlier row stored cannot be computed again, nor a later row's be taken at
# once.
BEFORE = """for i in 8 { allocate c: float32[1] block Q(p: 8 = i) { c[0] = x[p] } block A(v: 8 = i) { a[v] = c[0] }
  for z in 1 { block B(w: 8 = i, o: 1 = z) { y[w] = select(0 < w, a[w - 1], 0.0f32) } } }"""
LATER = """for i in 8 { allocate c: float32[1] block Q(p: 8 = i) { c[0] = x[p] } for q in 8 { block A(v: 8 = q) { a[v] = x[v] } }
  block B(w: 8 = i) { y[w] = a[w] + c[0] } }"""  # noqa: E501
MIXED = """for i in 2 { for j in 4 { for k in 4 {
  block A(v: 8 = i*4 + j, r: reduce 4 = k) where i + k < 4 { init { a[v] = 0.0f32 } a[v] = a[v] + x[r] }
} } }"""
PRIVATE = (
    "for i in 2 { allocate c: float32[8] for q in 8 { block Q(p: 8 = q) { c[p] = x[p] } } for k in 8 { block A(v: 8 ="
    " k) { a[v] = c[v] } } }"
)
PRIVATE_USE = (
    "for j in 8 { allocate c: float32[1] block P(p: 8 = j) { c[0] = x[p] } block B(w: 8 = j) { y[w] = a[w] + c[0] } }"
)

MORE: list[tuple[Callable[[], Program], list[tuple[Any, ...]], str]] = [
    (text(A + B + OVER_A), [("cache_read", "B", "a", "local")], "'O' writes 'a' after 'B' read it"),
    (text(OVER_A), [("cache_write", "O", "local")], "'O' updates 'a' in place: the new buffer would start empty"),
    (text(A + B), [("compact_buffer", "b")], "nothing uses 'b'"),
    (text(HALF + B), [("compute_at", "A", "j")], "'A' runs only where i < 4, which cannot move along"),
    (text(STEP + B), [("compute_at", "S", "j")], "'S' is a step of a scan"),
    (
        text(
            "for i in 8 { block A(v: 8 = i) { a[v] = b[v] } }" + B + "for o in 8 { block O(z: 8 = o) { b[z] = a[z] } }"
        ),
        [("compute_inline", "A")],
        "'O' changes what 'A' reads before it would be used",
    ),
    (
        text("for i in 8 { block A(v: 8 = i) { a[v] = b[v] } } for o in 8 { block O(z: 8 = o) { b[z] = x[z] } }" + B),
        [("compute_at", "A", "j")],
        "'O' changes what 'A' reads before it would run",
    ),
    (
        text("for j in 8 { block Q(z: 8 = j) { b[z] = x[z] } block B(w: 8 = j) { y[w] = a[w] + b[w] } }" + A),
        [("compute_at", "A", "j")],
        "'B' reads the buffer of 'A' before 'A' writes it",
    ),
    (text(PRIVATE + B), [("compute_at", "A", "j")], "buffer 'c' of 'A' does not exist under 'j'"),
    (
        text(C_OF_X + "for i in 8 { block A(v: 8 = i) { a[v] = b[v] } }" + B),
        [
            ("split", "i", [None, 4]),
            ("compute_at", "C", "i_0"),
            ("reverse_compute_at", "B", "i_0"),
            ("compact_buffer", "b"),
            ("compute_at", "A", "j"),
        ],
        "iterators 'v' and 'v_in' of 'A' depend on one another",
    ),
    (text(PRIVATE + B), [("compute_inline", "A")], "buffer 'c' of 'A' does not exist at 'B'"),
    (text(A + PRIVATE_OUT), [("reverse_compute_inline", "B")], "buffer 'c' of 'B' does not exist at 'A'"),
    (text(BEFORE), [("compute_inline", "A")], "'B' may read what 'A' stored in another iteration"),
    (text(BEFORE), [("compute_at", "A", "z")], "'A' would run over more of 'v' than one iteration's own buffers hold"),
    (text(LATER), [("reverse_compute_inline", "B")], "'A' stores more per iteration than 'B' takes"),
    (text(A + PRIVATE_USE), [("reverse_compute_at", "B", "i")], "buffer 'c' of 'B' does not exist under 'i'"),
    (
        text(
            "for k in 8 { block A(r: reduce 8 = k) { init { a[0] = 0.0f32 } a[0] = a[0] + x[r] } block C(z: 8 = k) {"
            " b[z] = x[z] } }"
        ),
        [("rfactor", "A", "k")],
        "the reduction loop 'k' is shared with other blocks",
    ),
    (
        text(SUM.replace("v: 8 = i,", "v: 8 = i*2,")),
        [("rfactor", "A", "k")],
        "the nest of 'A' stores scattered elements of 'a'",
    ),
    (text(MIXED), [("rfactor", "A", "k")], "a condition of 'A' mixes spatial and reduce loops"),
    (
        text("for i in 8 { block A(v: 8 = i) { a[v] = x[v] b[v] = x[v] } }" + B),
        [("compute_inline", "A")],
        "the body of 'A' is more than one store",
    ),
    (
        text("for i in 4 { block A(v: 4 = i) { a[v + 4] = x[v] } }" + B),
        [("compute_inline", "A")],
        "'A' does not store at its own iterators",
    ),
    (text(HALF + B), [("compute_inline", "A")], "'A' runs only where i < 4"),
    (text(A + OVER_A + B), [("compute_inline", "A")], "'a' has other writers, or 'A' updates it in place"),
    (text(A), [("compute_inline", "A")], "nothing reads 'a'"),
    (
        text("for i in 8 { block A(v: 8 = i, r: reduce 8 = i) { init { a[v] = 0.0f32 } a[v] = a[v] + x[r] } }"),
        [("decompose_reduction", "A", "i")],
        "loop 'i' drives spatial and reduce iterators at once",
    ),
    (
        text("for i in 8 { for k in i + 1 { block A(v: 8 = i, r: 8 = k) { y[r] = x[v] } } }"),
        [("fuse", "i", "k")],
        "the extent of 'k' varies in the nest",
    ),
    (text(TRIANGLE), [("reorder", "k", "i")], "the extent of 'k' needs 'i' outside it"),
    (
        text("for i in 4 { for j in 2 { block A(v: 8 = i*2 + j) { a[v] = x[v] } block B(w: 4 = i) { y[w] = a[w] } } }"),
        [("reorder", "j", "i")],
        "2 blocks are under the nest and loop",
    ),
    (
        text("for q in 8 { block Q(p: 8 = q) { y[p] = x[p] } }" + A + B),
        [("reverse_compute_at", "B", "i")],
        "blocks ['Q', 'B'] all write 'B's buffer",
    ),
    (
        text(A + "for t in 8 { block S(u: scan 8 = t) { y[u] = a[u] } }"),
        [("reverse_compute_at", "S", "i")],
        "'S' is a step of a scan over 't', which is not around 'i'",
    ),
    (
        text(A + "for j in 8 { block B(w: 8 = j) where j < 4 { y[w] = a[w] } }"),
        [("reverse_compute_at", "B", "i")],
        "'B' runs only where j < 4",
    ),
    (text(B + A), [("reverse_compute_at", "B", "i")], "'B' comes before the end of 'i'"),
    (
        text(A + "for h in 8 { block C(z: 8 = h) { b[z] = y[z] } }" + B),
        [("reverse_compute_at", "B", "i")],
        "'C' uses what 'B' writes, before it",
    ),
    (
        text("for q in 8 { block Q(p: 8 = q) { b[p] = y[p] } }" + A + B),
        [("reverse_compute_at", "B", "i")],
        "'Q' reads what 'B' writes, before it",
    ),
    (
        text(A + "for j in 8 { block B(w: 8 = j) { y[w] = y[w] + a[w] } }"),
        [("reverse_compute_at", "B", "i")],
        "it may run only once per element",
    ),
    (
        text(A + "for j in 8 { block B(w: 8 = j) where j < 4 { y[w] = a[w] } }"),
        [("reverse_compute_inline", "B")],
        "'B' runs only where j < 4",
    ),
    (text(A + OVER_A + B), [("reverse_compute_inline", "B")], "blocks ['A', 'O'] all write 'a'"),
    (
        text(A + "for j in 4 { block B(w: 4 = j) { y[w] = a[w] } }"),
        [("reverse_compute_inline", "B")],
        "'B' takes 4 of the 8 elements of 'a' in dimension 0",
    ),
    (
        text(
            A
            + "for o in 8 { block O(z: 8 = o) { b[z] = x[z] } } for j in 8 { block B(w: 8 = j) { y[w] = a[w] + b[0] } }"
        ),
        [("reverse_compute_inline", "B")],
        "'O' writes what 'B' reads only after 'A'",
    ),
    (
        text(A + "for o in 8 { block O(z: 8 = o) { b[z] = y[z] } }" + B),
        [("reverse_compute_inline", "B")],
        "'y' is used before 'B'",
    ),
    (M, [("decompose_reduction", "matmul", "k0"), ("rfactor", "matmul", "k0")], "rfactor before decompose_reduction"),
    (text(PROD), [("rfactor", "A", "k")], "'A' does not combine its result and a new value by one of add, mul"),
    (text(SUM + OVER_A), [("rfactor", "A", "k")], "'a' has other writers"),
    (text(DIAGONAL), [("rfactor", "A", "k")], "loop 'k' drives spatial and reduce iterators at once"),
    (S, [("reverse_compute_at", "exp", "k0")], "goes on outside"),
    (M, [("serpentine", "i", "j")], "loop 'i' is not under 'j'"),
    (M, [("serpentine", "j", "i", 2)], "'j' has no 2 equal parts"),
    (lambda: M("m"), [("reorder", "j", "i"), ("serpentine", "i", "j")], "the extent m of 'i' is not constant"),
    (M, [("serpentine", "k0", "j")], "the iterations of 'k0' are not independent"),
    (M, [("split", "j", [None, 2]), ("serpentine", "j_0", "i")], "'matmul' runs only where j_0*2 + j_1 < 9"),
    (M, [("prefetch", "matmul", "A", "po", "k0")], "loop 'po' is not around block 'matmul'"),
    (M, [("prefetch", "matmul", "A", "k0", "i")], "loop 'k0' lies inside loop 'i'"),
    (M, [("prefetch", "matmul", "P", "i", "j")], "'P' is no input of the program"),
    (M, [("prefetch", "matmul", "B", "i", "j")], "'matmul' reads 'B' at 0 places"),
    (T, [("prefetch", "A", "x", "i", "j")], "'A' reads 'x' at 2 places"),
    (lambda: M(k="k"), [("prefetch", "matmul", "A", "i", "j")], "the extent of loop 'k0' is no number"),
    (
        lambda: M("m"),
        [("reorder", "j", "k0", "i"), ("prefetch", "matmul", "A", "j", "k0")],
        "the extent of loop 'i' is no number",
    ),
    (
        text("for i in 8 { for j in 4 { block A(v: 8 = i, w: 4 = j) { a[v] = x[v*w//4] } } }"),
        [("prefetch", "A", "x", "i", "i")],
        "how far 'x' moves with loop 'j' is not a number",
    ),
]
REFUSALS += MORE


def test_compute_inline_leaves_what_opaque_blocks_read() -> None:
    p = text(A + B)()
    s = Schedule(p)
    b = s.block("B")
    a = next(x.buffer for x in walk_stmts(p.body) if isinstance(x, Allocate) and x.buffer.name == "a")
    opaque = replace(b, reads=(Region(a, ((b.iters[0].var, const(1)),)),))
    s.program = p.with_body(transform_stmts(p.body, lambda x: opaque if x == b else None))
    with pytest.raises(ScheduleError, match="an opaque block reads 'a' as a whole"):
        s.compute_inline("A")


def test_a_broken_primitive_is_caught_when_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Program) -> tuple[Program, None]:
        return program.with_body(program.body.body), None  # type: ignore[attr-defined]

    monkeypatch.setitem(PRIMITIVES, "broken", broken)
    with pytest.raises(ScheduleError, match="the program is ill-formed after broken") as caught:
        Schedule(matmul(), checked=True).apply("broken")
    assert "this is a mistake in the primitive, not in the schedule" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "steps", "words"), REFUSALS, ids=[f"{n}-{s[-1][0]}" for n, (_, s, _) in enumerate(REFUSALS)]
)
def test_refusal(make: Callable[[], Program], steps: list[tuple[Any, ...]], words: str) -> None:
    s = sched(make(), *steps[:-1])
    before, length = s.program, len(s.trace)
    with pytest.raises(ScheduleError) as caught:
        s.apply(steps[-1][0], *steps[-1][1:])
    text = str(caught.value)
    assert words in text, text
    assert (
        f"{steps[-1][0]} may not act on program" in text
        and "why: " in text
        and "program " in (caught.value.where or "")
    )
    assert s.program is before and len(s.trace) == length


def test_refusal_marks_the_place() -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule(matmul()).parallel("k0")
    marked = [line.strip() for line in str(caught.value).splitlines() if "# <-- here" in line]
    assert any(line.startswith("for k0 in 5") for line in marked) and any(
        line.startswith("block matmul") for line in marked
    )


def test_unknown_primitive_and_choice() -> None:
    s = Schedule(matmul(), overrides={"tile": 5})
    with pytest.raises(ScheduleError, match="there is no schedule primitive 'splitt'"):
        s.apply("splitt", "i")
    with pytest.raises(ScheduleError, match="choice 'tile' cannot be 5"):
        s.choose("tile", [4, 8], default=4)
    with pytest.raises(AttributeError):
        _ = s.tensorize_everything


BORDER = """program border(x: int32[9, 4]) -> (w: int32[8]) {
  allocate t: int32[9]
  for i in 9 { for k in 4 {
    block C(vi: 9 = i, vk: reduce 4 = k) { init { t[vi] = 0i32 } t[vi] = t[vi] + x[vi, vk] }
  } }
  for i1 in 8 { block D(a: 8 = i1) { w[a] = t[a] + t[a + 1] } }
}"""
OPEN = BORDER.replace("9", "n + 1").replace(" 8", " n").replace("[8]", "[n]").replace("[n]) {", "[n]) dims(n) {")
AGAIN = BORDER.replace("for i1 in 8 {", "for i1 in 8 { for again in 3 {").replace("t[a + 1] } }", "t[a + 1] } } }")


@pytest.mark.parametrize(("text", "loop"), [(BORDER, "i1"), (OPEN, "i1"), (AGAIN, "again"), (AGAIN, "i1")])
def test_elements_that_are_computed_again_start_again(text: str, loop: str) -> None:
    """In a border that tiles share, and in a loop that drives none of the block's iterators: stored once before the
    loop, the start would be added to several times."""
    naive = parse_program(text)
    s = Schedule(naive)
    s.compute_at("C", loop)
    with pytest.raises(ScheduleError, match=r"may compute the same element of 't', each from its start") as caught:
        s.decompose_reduction("C", "i1")
    assert "hint: decompose inside '" in str(caught.value)
    s.decompose_reduction("C", s.loops("C")[-2 if loop == "again" else -1])
    x = np.random.default_rng(0).integers(-4, 5, (9, 4)).astype(np.int32)
    sizes = {"n": 8} if text is OPEN else {}
    want, got = (interpret(p, [x], sizes)["w"] for p in (naive, s.program))
    np.testing.assert_array_equal(got, want)
