"""Blocks in parts: loops cut where conditions change, blocks as they are under their loops, formulas an operation at a
time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import ScheduleError
from weft.expr.nodes import Select, walk
from weft.loop.nodes import Program, Store
from weft.loop.parser import parse_program
from weft.scheduling import Schedule, replay
from weft.scheduling.access import LoopView
from weft_interpreter.interpret import interpret

PADDED = """
program p(x: float32[6, 5]) -> (y: float32[8, 7]) {
  for i in 8 { for j in 7 {
    block C(bi: 8 = i, bj: 7 = j) { y[bi, bj] = select(1 <= bi and bi < 7 and 1 <= bj and bj < 6, x[bi - 1, bj - 1], 0.0f32) }
  } }
}
"""  # noqa: E501
SUM = """
program p(x: float32[4, 9], w: float32[9]) -> (y: float32[4]) {
  for k in 9 { for i in 4 {
    block C(bi: 4 = i, rk: reduce 9 = k) { if 2 <= rk { y[bi] = y[bi] + exp(x[bi, rk]*w[rk]) } }
  } }
}
"""


def sched(text: str) -> Schedule:
    return Schedule(parse_program(text), checked=True)


def same(a: Program, b: Program) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(str(d)) for d in x.shape]).astype(np.float32) for x in a.inputs]
    for u, v in zip(interpret(a, inputs).values(), interpret(b, inputs).values()):
        np.testing.assert_array_equal(u, v)


def test_borders_apart_from_the_middle() -> None:
    s = sched(PADDED)
    rows = s.partition("i", [1, 7])
    assert rows == ["i_1", "i_2", "i_3"] and s.blocks() == ["C", "C_1", "C_2"]
    s.partition(s.loops("C_1")[-1], [1, 6])
    for name in s.blocks():
        s.specialize(name)
        (body,) = [b for b in [s.block(name).body] if isinstance(b, Store)]
        assert not any(isinstance(e, Select) for e in walk(body.value)), name
    assert "= x[" in str(s) and str(s).count("= 0.0f32") == 4
    same(parse_program(PADDED), s.program)
    assert str(replay(parse_program(PADDED), s.trace)) == str(s.program)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 7), unique=True, min_size=1).map(sorted),
    st.lists(st.integers(1, 6), unique=True, min_size=1).map(sorted),
)
def test_parts_mean_the_whole(rows: list[int], columns: list[int]) -> None:
    s = sched(PADDED)
    s.partition("i", rows)
    for name in s.blocks():
        s.partition(s.loops(name)[-1], columns)
    for name in s.blocks():
        s.specialize(name)
    same(parse_program(PADDED), s.program)


def test_what_does_nothing_is_gone() -> None:
    text = (
        "program p(x: float32[5]) -> (y: float32[5]) { for i in 8 { block C(b: 5 = i) where i < 5 { y[b] = x[b] } } }"
    )
    s = sched(text)
    assert s.partition("i", [5]) == ["i_1"]
    assert s.blocks() == ["C"] and "where" not in str(s)
    same(parse_program(text), s.program)


def test_a_condition_around_the_body_becomes_the_predicate_or_goes() -> None:
    s = sched(SUM)
    s.specialize("C")
    assert "where 2 <= k" in str(s)
    assert s.partition("k", [2]) == ["k_1"]  # below, nothing is left
    s.specialize("C")
    assert "where" not in str(s) and "if" not in str(s)


def test_a_formula_one_operation_at_a_time() -> None:
    s = sched(SUM)
    s.partition("k", [2])
    s.specialize("C")
    value = s.block("C").body.value  # type: ignore[union-attr]
    first = s.stage("C", "i", str(value.b.args[0]), "local")
    second = s.stage("C", "i", str(s.block("C").body.value.b), "local")  # type: ignore[union-attr]
    assert s.blocks() == [first, second, "C"] == ["C_part", "C_part_1", "C"]
    assert "C_local: float32[4] in local" in str(s) and "exp(C_local[" in str(s)
    assert str(s.block("C").body.value).endswith("+ C_local_1[bi]")  # type: ignore[union-attr]
    assert str(replay(parse_program(SUM), s.trace)) == str(s.program)
    x, w = np.ones((4, 9), np.float32), np.linspace(0, 1, 9, dtype=np.float32)
    start = "for q in 4 { block S(bq: 4 = q) { y[bq] = 0.0f32 } }"
    whole = parse_program(str(s.program).replace("{\n", "{\n" + start + "\n", 1))
    (got,) = interpret(whole, [x, w]).values()
    np.testing.assert_allclose(got, np.exp(x * w)[:, 2:].sum(1), rtol=1e-6)


def test_one_element_at_a_time() -> None:
    text = (
        "program p(x: float32[5]) -> (y: float32[5]) { for i in 5 { block C(b: 5 = i) { y[b] = exp(x[b])*2.0f32 } } }"
    )
    s = sched(text)
    assert s.stage("C", "C", "exp(x[b])", "local") == "C_part"
    assert s.loops("C_part") == s.loops("C") == ["i"] and "C_local: float32[] in local" in str(s)
    same(parse_program(text), s.program)


@pytest.mark.parametrize(
    ("step", "args", "words"),
    [
        ("partition", ("i", []), "the points [] do not cut 8 iterations into parts"),
        ("partition", ("i", [3, 3]), "the points [3, 3] do not cut 8 iterations"),
        ("partition", ("i", [8]), "give rising points inside"),
        ("partition", ("z", [1]), "there is no loop 'z'"),
        ("stage", ("C", "j", "x[bi, bj]", "local"), "'x[bi, bj]' is no part of the value"),
        ("stage", ("C", "q", "x[bi - 1, bj - 1]", "local"), "there is no loop 'q'"),
        ("specialize", ("D",), "there is no block 'D'"),
    ],
)
def test_refusals(step: str, args: tuple[object, ...], words: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        sched(PADDED).apply(step, *args)
    assert words in str(caught.value)


def test_refusals_of_blocks_that_are_not_ready() -> None:
    split = sched(PADDED)
    split.split("i", [None, 4])
    with pytest.raises(
        ScheduleError, match=r"an iterator of 'C' is not one loop of its own(.|\n)*hint: specialize\('C'\) first"
    ):
        split.stage("C", "j", "x[bi - 1, bj - 1]", "local")
    text = (
        "program p(x: float32[4]) -> (y: float32[]) { for k in 4 { block C(r: reduce 4 = k) { init { y[] = 0.0f32 } y[]"
        " = y[] + x[r]*2.0f32 } } }"
    )
    with pytest.raises(
        ScheduleError, match=r"starts a reduction where its iterators are 0(.|\n)*decompose_reduction first"
    ):
        sched(text).specialize("C")
    with pytest.raises(ScheduleError, match=r"the body of 'C' is not one store(.|\n)*decompose_reduction"):
        sched(text).stage("C", "k", "x[r]*2.0f32", "local")
    own = (
        "program p(x: float32[4]) -> (y: float32[4]) { for i in 4 { block C(b: 4 = i) { y[b] = exp(y[b] + x[b])*2.0f32"
        " } } }"
    )
    with pytest.raises(ScheduleError, match="reads 'y', which 'C' changes meanwhile"):
        sched(own).stage("C", "i", "y[b] + x[b]", "local")


STAGED = """
program p(x: float32[n, 6, 5], w: float32[7, 6]) -> (y: float32[n, 7, 5]) dims(n) {
  for b in n { for i in 7 { for j in 5 { for k in 6 {
    block C(vb: n = b, vi: 7 = i, vj: 5 = j, vk: reduce 6 = k) {
      init { y[vb, vi, vj] = 0.0f32 }
      if 1 <= vk + vj { y[vb, vi, vj] = y[vb, vi, vj] + x[vb, vk, vj]*w[vi, vk] }
    }
  } } } }
}
"""


def tiled() -> Schedule:
    """The product of each picture and w, the pictures' columns fused, in tiles of 4 × 8, four terms at a time."""
    s = sched(STAGED)
    s.reorder("i", "b")
    fused = s.fuse("b", "j")
    for loop, factor in (("i", 4), (fused, 8), ("k", 4)):
        s.split(loop, [None, factor])
    s.reorder("i_0", "b_j_0", "k_0", "k_1", "i_1", "b_j_1")
    return s


def test_results_and_operands_of_a_tile_are_staged_by_its_loops_and_zero_beyond_its_ends() -> None:
    s = tiled()
    assert s.stage_result("C", "k_0", "register") == "C_copy"
    assert "allocate C_register: float32[4, 8] in register" in str(
        s
    ) and "where i_0*4 + i_1_1 < 7 and b_j_0*8 + b_j_1_1 < n*5" in str(s)
    start = s.decompose_reduction("C", "k_0")
    for name in (start, "C"):
        s.specialize(name)
        s.pad_tile(name)
    assert "where" not in str(s).partition("C_copy")[0] and "if" not in str(s)
    product = s.block("C").body
    assert isinstance(product, Store) and all(isinstance(e, Select) for e in (product.value.b.a, product.value.b.b))  # type: ignore[attr-defined]
    for factor in (product.value.b.a, product.value.b.b):  # type: ignore[attr-defined]
        s.stage("C", "k_1", str(factor), "shared")
    assert "C_register[i_1_v, b_j_1_v] + C_shared[k_1_v, b_j_1_v]*C_shared_1[k_1_v, i_1_v]" in str(s)
    rng = np.random.default_rng(0)
    for n in (0, 1, 3):
        x, w = rng.standard_normal((n, 6, 5)).astype(np.float32), rng.standard_normal((7, 6)).astype(np.float32)
        expected = interpret(parse_program(STAGED), [x, w], {"n": n})["y"]
        np.testing.assert_allclose(interpret(s.program, [x, w], {"n": n})["y"], expected, rtol=1e-5, atol=1e-6)
    assert str(replay(parse_program(STAGED), s.trace)) == str(s.program)


def test_what_staging_results_refuses() -> None:
    with pytest.raises(
        ScheduleError,
        match=r"'C' is not complete there: its reduction over 'k_0' goes on outside(.|\n)*hint: choose a loop outside",
    ):
        tiled().stage_result("C", "k_1", "register")
    s = tiled()
    s.decompose_reduction("C", "k_0")
    with pytest.raises(ScheduleError, match="'C' is no reduction with an init"):
        s.stage_result("C", "k_0", "register")
    text = """program p(x: float32[4]) -> (y: float32[4], z: float32[4]) {
      for q in 4 { block C(v: 4 = q) { y[v] = x[v] } block D(u: 4 = q) { z[u] = x[u] } } }"""
    with pytest.raises(ScheduleError, match="loop 'q' does not hold 'C' alone, under nothing but loops"):
        sched(text).stage_result("C", "q", "register")


def test_what_padding_a_tile_refuses() -> None:
    s = tiled()
    with pytest.raises(
        ScheduleError, match=r"the body of 'C' is not one store(.|\n)*hint: decompose_reduction and specialize first"
    ):
        s.pad_tile("C")
    start = s.decompose_reduction("C", "k_0")
    s.specialize(start)
    with pytest.raises(
        ScheduleError,
        match=(
            r"'y' is a parameter, of which 'C_init' may store what it is asked for only(.|\n)*hint: stage_result first"
        ),
    ):
        s.pad_tile(start)
    text = """program p(x: float32[9]) -> (y: float32[9]) { allocate t: float32[9]
      for i in 3 { for j in 4 { block A(u: 3 = i, v: 4 = j) where i*4 + j < 9 { t[u*4 + v] = 0.0f32 } } }
      for k in 9 { block B(w: 9 = k) { y[w] = t[w] + x[w] } } }"""
    with pytest.raises(
        ScheduleError, match=r"'t' may have no room for all of 'A'(.|\n)*hint: stage_result makes a buffer of the loops"
    ):
        sched(text).pad_tile("A")
    text = text.replace("allocate t: float32[9]", "allocate t: float32[12]").replace("= 0.0f32", "= x[u]")
    with pytest.raises(ScheduleError, match="'A' is no sum of products"):
        sched(text).pad_tile("A")


def test_parallel_loops_fuse_to_a_parallel_loop() -> None:
    s = sched(STAGED)
    for loop in ("b", "i", "j"):
        s.parallel(loop)
    assert s.loop(s.fuse("b", "i")).kind == "parallel"
    with pytest.raises(ScheduleError, match=r"loop 'k' is serial already(.|\n)*parallel loops go with parallel ones"):
        s.fuse("j", "k")


def test_a_whole_value_is_staged_and_a_copy_of_a_tile_has_no_condition() -> None:
    text = """program p(x: float32[n]) -> (y: float32[n]) dims(n) {
      for g in (n + 3)//4 { allocate t: float32[4]
        for i in 4 { block A(vi: 4 = i) { t[vi] = 1.0f32 } }
        for j in 4 { block B(vg: (n + 3)//4 = g, vj: 4 = j) where g*4 + j < n { y[vg*4 + vj] = t[vj] } } }
    }"""
    s = sched(text)
    part = s.stage("B", "j", "t[vj]", "shared")
    assert "where g*4 + j_1 < n" in str(s)
    s.pad_tile(part)
    assert "where g*4 + j_1 < n" not in str(s) and "where g*4 + j < n" in str(s)
    np.testing.assert_array_equal(interpret(s.program, [np.zeros(6, np.float32)], {"n": 6})["y"], np.ones(6))


def test_partial_sums_of_a_conditional_sum() -> None:
    """Where the condition does not hold, a part gets what changes nothing."""
    s = sched(STAGED)
    k, _ = s.split("k", [2, None])
    assert s.rfactor("C", k) == "C_rf" and "select(1 <= " in str(s) and "if " not in str(s)
    x, w = (
        np.random.default_rng(0).standard_normal((2, 6, 5)).astype(np.float32),
        np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32),
    )
    expected = interpret(parse_program(STAGED), [x, w], {"n": 2})["y"]
    np.testing.assert_allclose(interpret(s.program, [x, w], {"n": 2})["y"], expected, rtol=1e-5, atol=1e-6)


TWO = """
program p(x: float32[4, 9], w: float32[9]) -> (y: float32[4], z: float32[4]) {
  for t in 3 {
    for i in 4 { for k in 3 { block C(bi: 4 = i, rk: reduce 9 = t*3 + k) { y[bi] = y[bi] + exp(w[bi])*x[bi, rk] } } }
    for u in 4 { block D(di: 4 = u, rt: reduce 3 = t) { z[di] = z[di] + y[di]*w[di] } }
  }
}
"""


def test_what_does_not_vary_with_a_loop_is_staged_before_it() -> None:
    s = sched(TWO)
    s.specialize("C")
    assert s.stage("C", "t", "exp(w[bi])", "shared") == "C_part"
    assert s.loops("C_part") == ["i_1"] and s.blocks() == ["C_part", "C", "D"] and "t" in s.loops("C")
    same(parse_program(TWO), s.program)
    s.specialize("D")
    with pytest.raises(ScheduleError, match="'y\\[di\\]' reads 'y', which is written in 't'"):
        s.stage("D", "t", "y[di]", "shared")


PARTLY = """
program p(x: float32[4, 9], w: float32[9, 2]) -> (y: float32[4, 2]) {
  for t in 3 {
    for g in 2 {
      allocate e: float32[2, 4] in shared
      for i in 2 { for k in 4 { block E(ei: 4 = g*2 + i, ek: 9 = t*4 + k, eg: 2 = i, et: 4 = k) where t*4 + k < 9 { e[eg, et] = x[ei, ek] } } }
      for j in 2 { for l in 2 { for m in 4 {
        block C(bi: 4 = g*2 + j, bj: 2 = l, rk: reduce 9 = t*4 + m, bg: 2 = j, rt: reduce 4 = m) where t*4 + m < 9 {
          y[bi, bj] = y[bi, bj] + e[bg, rt]*w[rk, bj] }
      } } }
    }
  }
}
"""  # noqa: E501


def test_a_tile_that_was_not_stored_everywhere_is_zero_elsewhere() -> None:
    """What lies beyond in shared memory may be NaN, which no zero of the other factor makes one."""
    text = PARTLY.replace("y[bi, bj] = y[bi, bj] + e", "c[bj, bi] = c[bj, bi] + e").replace(
        "  for t in 3 {", "  allocate c: float32[2, 4]\n  for t in 3 {", 1
    )
    copy = "for u in 4 { for v in 2 { block Y(yi: 4 = u, yj: 2 = v) { y[yi, yj] = c[yj, yi] } } }\n}\n"
    start = "for a in 2 { for b in 4 { block Z(zi: 2 = a, zj: 4 = b) { c[zi, zj] = 0.0f32 } } }\n  for t in 3 {"
    s = sched(text.rstrip().removesuffix("}").replace("for t in 3 {", start, 1) + copy)
    before = s.program
    s.specialize("C")
    s.pad_tile("C")
    assert str(s).count("select(") == 2 and "where" not in str(s.program)[str(s.program).index("block C") :]
    same(before, s.program)


WIDE = """
program p(x: float32[4, 8], w: float32[8, n]) -> (y: float32[4, n]) dims(n) {
  for g in (n + 3)//4 {
    allocate c: float32[4, 4]
    allocate e: float32[4, 8] in shared
    for a in 4 { for b in 8 { block E(ea: 4 = a, eb: 8 = b) { e[ea, eb] = x[ea, eb] } } }
    for z0 in 4 { for z1 in 4 { block Z(za: 4 = z0, zb: 4 = z1) { c[za, zb] = 0.0f32 } } }
    for i in 4 { for j in 4 { for k in 8 {
      block C(bg: (n + 3)//4 = g, bi: 4 = i, bj: 4 = j, rk: reduce 8 = k) where g*4 + j < n { c[bi, bj] = c[bi, bj] + e[bi, rk]*w[rk, bg*4 + bj] }
    } } }
    for u in 4 { for v in 4 { block Y(yg: (n + 3)//4 = g, yi: 4 = u, yj: 4 = v) where g*4 + v < n { y[yi, yg*4 + yj] = c[yi, yj] } } }
  }
}
"""  # noqa: E501


def test_a_tile_takes_no_condition_of_what_it_does_not_vary_with() -> None:
    """Or what is staged of it would have a copy for each column."""
    s = sched(WIDE)
    s.specialize("C")
    s.pad_tile("C")
    (line,) = [x for x in str(s).splitlines() if "c[bi, bj] = c[bi, bj]" in x]
    assert line.strip().startswith("c[bi, bj] = c[bi, bj] + e[bi, rk]*select(")
    x, w = (
        np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32),
        np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32),
    )
    np.testing.assert_allclose(interpret(s.program, [x, w], {"n": 6})["y"], x @ w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("where", "stride"), [(" where t*9 + r < 61", 0), ("", None)])
def test_a_tile_stays_in_its_group_where_its_predicate_says_so(where: str, stride: int | None) -> None:
    """What is read of the group then moves along no row of tiles, though 9 does not divide the group's 61 rows."""
    s = sched(f"""
    program p(x: float32[9]) -> (y: float32[490]) {{
      for g in 8 {{ for t in 7 {{ for r in 9 {{
        block C(v: 490 = g*61 + t*9 + r){where} {{ y[v] = x[v//61] }}
      }} }} }}
    }}""")
    view = LoopView.of(s, "C")
    (load,) = view.loads
    assert view.stride(load, "t") == stride
    if stride == 0:
        s.prefetch("C", "x", "g", "t")
        assert "@prefetch(x[g + 1], 2)" in str(s)
    else:
        with pytest.raises(ScheduleError, match="how far 'x' moves with loop 'r' is not a number"):
            s.prefetch("C", "x", "g", "t")
