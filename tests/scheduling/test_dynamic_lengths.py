"""Lengths known only at run time, and lengths in multiples: a condition on a ragged last tile becomes the length of an
instruction."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.errors import LoopError, ScheduleError
from weft.expr.nodes import eq, le
from weft.loop.nodes import Program, seq
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.scheduling import Call, Intrinsic, Operand, Schedule, Trace, meanings, replay
from weft.tensor import language as tl
from weft_gpu.passes import grid_passes
from weft_interpreter.interpret import interpret
from weft_testing.intrinsics import check_intrinsic

N, K, R = tl.var("n"), tl.var("k"), tl.var("r")


def vector(multiple: int = 1, dynamic: tuple[str, ...] = ("n",), scope: str | None = None) -> Intrinsic:
    a = tl.placeholder((N,), name="A")
    c = tl.compute((N,), lambda i: a[i] * 2.0 + 1.0, "C", axes=["i"])
    limits = (le(N, 64), eq(N % multiple, 0)) if multiple > 1 else (le(N, 64),)
    return Intrinsic(
        "vector", c, (Operand("A", scope), Operand("C", scope)), Call("vector"), limits=limits, dynamic=dynamic
    )


def dot(multiple: int = 1) -> Intrinsic:
    a, b, k = tl.placeholder((R, K), name="A"), tl.placeholder((K,), name="B"), tl.reduce_axis(K, "k")
    c = tl.compute((R,), lambda i: tl.sum(a[i, k] * b[k], axis=k), "C", axes=["i"])
    limits = (eq(K % multiple, 0),) if multiple > 1 else ()
    operands = (Operand("A", strides=(None, 1)), Operand("B"), Operand("C"))
    return Intrinsic(
        "dot", c, operands, Call("dot"), Call("dot_zero"), Call("dot_add"), limits=limits, dynamic=("r", "k")
    )


def pointwise(size: int | str) -> Program:
    dims = f" dims({size})" if isinstance(size, str) else ""
    return parse_program(
        f"""program p(x: float32[3, {size}]) -> (y: float32[3, {size}]){dims} {{
      for i in 3 {{ for j in {size} {{ block B(a: 3 = i, b: {size} = j) {{ y[a, b] = x[a, b]*2.0f32 + 1.0f32 }} }} }} }}"""  # noqa: E501
    )


def agree(naive: Program, s: Schedule, arrays: list[Any], dims: dict[str, int]) -> None:
    functions = meanings(s.intrinsics.values())
    (want,) = interpret(naive, arrays, dims).values()
    (got,) = interpret(s.program, arrays, dims, intrinsics=functions).values()
    np.testing.assert_array_equal(got, want)
    lowered = lower_program(s.program, frozenset(), extra=grid_passes())
    (flat,) = interpret(lowered, [x.reshape(-1) for x in arrays], dims, intrinsics=functions).values()
    np.testing.assert_array_equal(flat.reshape(want.shape), want)
    assert str(replay(naive, Trace.from_json(s.trace.to_json()), s.intrinsics)) == str(s.program)
    assert str(parse_program(str(s.program))) == str(s.program)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(size=st.one_of(st.integers(1, 40), st.just("m")), tile=st.integers(1, 16), m=st.integers(0, 40))
def test_the_last_tile_is_as_long_as_it_is(size: int | str, tile: int, m: int) -> None:
    naive = pointwise(size)
    s = Schedule(naive, checked=True, intrinsics={"vector": vector()})
    _, inner = s.split("j", [None, tile])
    s.tensorize(inner, "vector")
    assert s.block("B").annotation("tensorize") == "vector"
    count = m if size == "m" else int(size)
    agree(naive, s, [np.arange(3 * count, dtype=np.float32).reshape(3, count)], {"m": m} if size == "m" else {})


def test_what_becomes_of_the_condition() -> None:
    s = Schedule(pointwise("m"), checked=True, intrinsics={"vector": vector()})
    s.split("j", [None, 16])
    s.tensorize("j_1", "vector")
    text = " ".join(str(s).split())
    assert "reads(x[a for 1, b*16 for min(m - b*16, 16)]) writes(y[a for 1, b*16 for min(m - b*16, 16)])" in text
    assert "@vector(x[a, b*16], y[a, b*16], min(m - b*16, 16))" in text and "j_1" not in text


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    terms=st.one_of(st.integers(1, 20), st.just("m")), rows=st.one_of(st.integers(1, 9), st.just("q")),
    tile=st.integers(1, 8), height=st.integers(1, 4),
    m=st.integers(0, 20), q=st.integers(0, 9), decomposed=st.booleans(),
)  # fmt: skip
def test_sums_of_any_length(
    terms: int | str, rows: int | str, tile: int, height: int, m: int, q: int, decomposed: bool
) -> None:
    dims = ", ".join(d for d in (terms, rows) if isinstance(d, str))
    naive = parse_program(
        f"""program p(x: float32[{rows}, {terms}], w: float32[{terms}]) -> (y: float32[{rows}]) {f"dims({dims})" if dims else ""} {{
      for i in {rows} {{ for k in {terms} {{ block S(a: {rows} = i, r: reduce {terms} = k) {{
        init {{ y[a] = 0.0f32 }} y[a] = y[a] + x[a, r]*w[r] }} }} }} }}"""  # noqa: E501
    )
    s = Schedule(naive, checked=True, intrinsics={"dot": dot()})
    outer, inner = s.split("k", [None, tile])
    group, row = s.split("i", [None, height])
    s.reorder(group, outer, row, inner)
    init = s.decompose_reduction("S", outer) if decomposed else None
    s.tensorize(row, "dot")
    if init is not None:
        s.tensorize(init, "dot")
    sizes = {"m": m, "q": q}
    count, lines = (sizes.get(str(d)) if isinstance(d, str) else d for d in (terms, rows))
    rng = np.random.default_rng(count)
    arrays = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((lines, count), (count,))]
    agree(naive, s, arrays, {d: n for d, n in sizes.items() if d in dims})


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    digits=st.lists(st.integers(1, 4), min_size=2, max_size=3), others=st.lists(st.integers(1, 3), min_size=1,
        max_size=2), m=st.integers(0, 60),
    k=st.integers(0, 12), data=st.data(),
)  # fmt: skip
def test_digits_of_lengths_that_a_run_ends(
    digits: list[int], others: list[int], m: int, k: int, data: st.DataObject
) -> None:
    """Rows and terms of any number, the tile of each in several loops, in any order: the condition ends the axis that
    they make up."""
    naive = parse_program(
        """program p(x: float32[m, t], w: float32[t]) -> (y: float32[m]) dims(m, t) {
      for i in m { for k in t { block S(a: m = i, r: reduce t = k) { init { y[a] = 0.0f32 } y[a] = y[a] + x[a, r]*w[r] } } } }"""  # noqa: E501
    )
    s = Schedule(naive, checked=True, intrinsics={"dot": dot()})
    group, *rows = s.split("i", [None, *digits])
    step, *terms = s.split("k", [None, *others])
    inner = data.draw(st.permutations([*rows, *terms]))
    s.reorder(group, step, *inner)
    s.tensorize(inner[0], "dot")
    rng = np.random.default_rng(m)
    agree(naive, s, [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k,))], {"m": m, "t": k})


@pytest.mark.parametrize("m", [0, 1, 5, 8])
def test_a_condition_on_the_outer_digits_ends_an_axis(m: int) -> None:
    """A step of the loop that it bounds is three of the axis; a condition on the inner digit is no end of it."""
    naive = parse_program("""program p(x: float32[m*3]) -> (y: float32[m*3]) dims(m) {
      for i in m { for t in 3 { block B(a: m = i, b: 3 = t) { y[a*3 + b] = x[a*3 + b]*2.0f32 + 1.0f32 } } } }""")
    s = Schedule(naive, checked=True, intrinsics={"vector": vector()})
    s.split("i", [None, 4])
    s.tensorize("i_1", "vector")
    assert "@vector(x[a*12], y[a*12], min(m - a*4, 4)*3)" in str(s)
    agree(naive, s, [np.arange(3 * m, dtype=np.float32)], {"m": m})
    inner = re.sub(r"\b3\b", "4", str(naive)).replace("b: 4 = t)", "b: 4 = t) where t < 3")
    s = Schedule(parse_program(inner), checked=True, intrinsics={"vector": vector()})
    s.split("i", [None, 4])
    with pytest.raises(ScheduleError, match="whole"):
        s.tensorize("i_1", "vector")


def test_rounded_ends_of_digits() -> None:
    naive, s = near("m", 24, 8)
    digit, _ = s.split(s.loops("B")[-1], [3, 8])
    s.tensorize(digit, "vector")
    assert re.search(r"@vector\(.*//8.*\)", str(s))
    for m in (0, 3, 24, 29):
        agree(naive, s, [np.arange(3 * m, dtype=np.float32).reshape(3, m)], {"m": m})


def near(size: int | str, tile: int, multiple: int) -> tuple[Program, Schedule]:
    """Tiles are brought near, where there is room for whole ones, and taken back."""
    naive = pointwise(size)
    s = Schedule(naive, checked=True, intrinsics={"vector": vector(multiple, scope="near")})
    copy, result = s.cache_read("B", "x", "near"), s.cache_write("B", "near")
    outer, _ = s.split("j", [None, tile])
    s.compute_at(copy, outer)
    s.reverse_compute_at(result, outer)
    for name in (copy, "B"):
        for buffer in s.buffers(name):
            s.compact_buffer(buffer, align=8)
    return naive, s


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(size=st.one_of(st.integers(17, 60), st.just("m")), m=st.integers(0, 60), tile=st.sampled_from([8, 16, 24]))
def test_lengths_in_multiples_are_rounded_up_where_the_tile_has_room(size: int | str, m: int, tile: int) -> None:
    naive, s = near(size, tile, 8)
    s.tensorize("j_1", "vector")
    count = m if size == "m" else int(size)
    agree(naive, s, [np.arange(3 * count, dtype=np.float32).reshape(3, count)], {"m": m} if size == "m" else {})


def test_what_a_length_in_multiples_is() -> None:
    _, s = near("m", 16, 8)
    s.tensorize("j_1", "vector")
    assert "@vector(x_near[0], B_near[0], min((m + 7)//8 - j_0_v*2, 2)*8)" in str(s)
    with pytest.raises(
        ScheduleError, match=r"its lengths would be n = 12: n%8 == 0 does not hold\n  hint: split the loops"
    ):
        near("m", 12, 8)[1].tensorize("j_1", "vector")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (Schedule(pointwise("m"), intrinsics={"vector": vector(8)}), "j"),
            "'y' has no room for the whole tile"),
        (lambda: (Schedule(pointwise("m"), intrinsics={"vector": vector(1, ())}), "j"),
            "the condition j_0*16 + j_1 < m does not hold in the whole tile"),
    ],
)  # fmt: skip
def test_refusals(make: Any, words: str) -> None:
    s, loop = make()
    s.split(loop, [None, 16])
    before = str(s)
    with pytest.raises(ScheduleError) as caught:
        s.tensorize(f"{loop}_1", "vector")
    assert words in str(caught.value) and str(s) == before


def test_a_result_that_others_look_at_is_not_written_beyond_its_end() -> None:
    text = """program p(x: float32[m]) -> (y: float32[32]) dims(m) {
      allocate u: float32[32]
      allocate t: float32[32]
      for q in 32 { block U(c: 32 = q) { u[c] = 1.0f32 } }
      for f in 32 { block F(d: 32 = f) { t[d] = 7.0f32 } }
      for j in 32 { block B(b: 32 = j) where j < m { t[b] = u[b]*2.0f32 + 1.0f32 } }
      for p in 32 { block Y(e: 32 = p) { y[e] = t[e] } } }"""
    naive = parse_program(text)
    s = Schedule(naive, checked=True, intrinsics={"vector": vector(8)})
    s.split("j", [None, 16])
    with pytest.raises(ScheduleError, match="nothing else may use what it stores beyond, and 'F' stores there, too"):
        s.tensorize("j_1", "vector")
    s = Schedule(naive, checked=True, intrinsics={"vector": vector(1)})  # exact lengths store nothing beyond
    s.split("j", [None, 16])
    s.tensorize("j_1", "vector")
    agree(naive, s, [np.zeros(5, np.float32)], {"m": 5})


def test_a_sum_in_multiples_needs_zeros() -> None:
    text = """program p(x: float32[4, m], w: float32[m]) -> (y: float32[4]) dims(m) {
      for i in 4 { for k in m { block S(a: 4 = i, r: reduce m = k) { init { y[a] = 0.0f32 } y[a] = y[a] + x[a, r]*w[r] } } } }"""  # noqa: E501
    s = Schedule(parse_program(text), intrinsics={"dot": dot(8)})
    outer, _ = s.split("k", [None, 16])
    s.reorder(outer, "i")
    with pytest.raises(ScheduleError, match="and 'k' is a multiple of 8") as caught:
        s.tensorize("i", "dot")
    assert "pad_loop the copies of its operands, then 'S'" in str(caught.value)


def test_rows_that_have_no_gaps_have_no_length_that_only_a_run_knows() -> None:
    text = """program p(x: float32[4, m], w: float32[m]) -> (y: float32[4]) dims(m) {
      for i in 4 { for k in m { block S(a: 4 = i, r: reduce m = k) { init { y[a] = 0.0f32 } y[a] = y[a] + x[a, r]*w[r] } } } }"""  # noqa: E501
    dense = Intrinsic(
        "dot",
        dot().meaning,
        tuple(Operand(n) for n in "ABC"),
        Call("dot"),
        Call("dot_zero"),
        Call("dot_add"),
        dynamic=("k",),
    )
    s = Schedule(parse_program(text), intrinsics={"dot": dense})
    outer, _ = s.split("k", [None, 16])
    s.reorder(outer, "i")
    with pytest.raises(
        ScheduleError,
        match="operand 'A' has no gaps, so its rows are as far apart as 'k' is long, which is known only at run time",
    ):
        s.tensorize("i", "dot")


def test_limits_hold_for_shorter_lengths_too() -> None:
    """A square tile whose rows may be fewer is no square."""
    x = tl.placeholder((N, R), name="A")
    moved = tl.compute((N, R), lambda i, j: x[i, j] + 1.0, "C", axes=["i", "j"])
    text = """program p(x: float32[m, 8]) -> (y: float32[m, 8]) dims(m) {
      for i in m { for j in 8 { block B(a: m = i, b: 8 = j) { y[a, b] = x[a, b] + 1.0f32 } } } }"""
    for limit, fits in ((eq(N, R), False), (le(N * R, 64), True), (le(N, R), True)):
        free = tuple(Operand(n, strides=(None, 1)) for n in "AC")
        s = Schedule(
            parse_program(text),
            intrinsics={"move": Intrinsic("move", moved, free, Call("move"), limits=(limit,), dynamic=("n",))},
        )
        s.split("i", [None, 8])
        with s.attempt() as tried:
            s.tensorize("i_1", "move")
        assert bool(tried) == fits, tried.error
        if not fits:
            assert (
                "a run may have fewer steps than the tile, and of 'n' of up to 8 it is not certain that n == r"
                in tried.reason
            )


def test_code_is_compared_with_its_meaning_at_multiples() -> None:
    assert {x.given for x in vector(8).examples()} >= {(8,), (64,)} and all(
        x.given[0] % 8 == 0 for x in vector(8).examples()
    )
    check_intrinsic(vector(8))
    with pytest.raises(LoopError, match=r"do not meet n%8 == 0"):
        bad = parse_program("program p(x: float32[64]) -> (y: float32[64]) { @vector(x[0], y[0], 12) }")
        interpret(bad, [np.zeros(64, np.float32)], intrinsics=meanings([vector(8)]))


def test_code_that_takes_a_dynamic_length_for_a_number_is_found() -> None:
    """It counts the elements while it is written, which a length known only at run time does not let it."""
    one = Intrinsic(
        "vector",
        vector().meaning,
        vector().operands,
        lambda a, c, n: seq(*(c.store(a[k] * 2.0 + 1.0, k) for k in range(int(n.value)))),
    )
    check_intrinsic(one)
    with pytest.raises(ScheduleError, match="the compute code of intrinsic 'vector' failed"):
        check_intrinsic(replace(one, dynamic=("n",)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"limits": (eq(N % 8, 0), le(N, 4))}, "its limits forbid n = 8"),
        ({"dynamic": ("m",)}, "'m' is dynamic and no length"),
    ],
)
def test_declarations_that_contradict_themselves(more: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match="the intrinsic 'vector' is ill declared") as caught:
        Intrinsic("vector", vector().meaning, vector().operands, Call("vector"), **more)
    assert words in str(caught.value)


def test_a_tile_whose_place_is_a_formula_of_two_reductions_becomes_an_instruction() -> None:
    """A sum over blocks of eight reads one factor at [block*8 + term]: where its tile starts follows the outer loop of
    the sum, not of the results."""
    blocks = tl.var("blocks")
    b, e = tl.reduce_axis(blocks, "b"), tl.reduce_axis(8, "e")
    left, panel = tl.placeholder((R, blocks, 8), name="A"), tl.placeholder((blocks, 4, 8), name="P")
    product = tl.compute((R, 4), lambda i, j: tl.sum(left[i, b, e] * panel[b, j, e], axis=(b, e)), "C", axes=["i", "j"])
    operands = (Operand("A", strides=(None, 8, 1)), Operand("P", strides=(None, 8, 1)), Operand("C", strides=(None, 1)))
    unit = Intrinsic(
        "panel", product, operands, Call("panel"), Call("panel_zero"), Call("panel_add"), dynamic=("r", "blocks")
    )
    naive = parse_program("""program p(x: float32[7, 80], w: float32[10, 4, 8]) -> (y: float32[7, 4]) {
      for i in 7 { for j in 4 { for k in 10 { for t in 8 {
        block B(a: 7 = i, c: 4 = j, rk: reduce 10 = k, rt: reduce 8 = t) {
          init { y[a, c] = 0.0f32 } y[a, c] = y[a, c] + x[a, rk*8 + rt]*w[rk, c, rt] } } } } } }""")
    s = Schedule(naive, checked=True, intrinsics={"panel": unit})
    (rows, row), (step, block) = s.split("i", [None, 4]), s.split("k", [None, 5])
    s.reorder(rows, step, row, "j", block, "t")
    copies = [s.cache_read("B", name, "local") for name in ("x", "w")]
    for copy in copies:
        s.compute_at(copy, step)
        s.compact_buffer(*s.buffers(copy))
    s.tensorize(row, "panel")
    rng = np.random.default_rng(0)
    agree(naive, s, [rng.integers(-9, 9, shape).astype(np.float32) for shape in ((7, 80), (10, 4, 8))], {})


@pytest.mark.parametrize("condition", ["i < p and i < q", "i < q and i < p"])
def test_a_rounded_length_has_one_end(condition: str) -> None:
    """What lies beyond the end of one condition alone may be another block's."""
    naive = parse_program(f"""program f(x: float32[8]) -> (y: float32[8]) dims(p, q) {{
      allocate t: float32[8]
      for h in 8 {{ block O(o: 8 = h) where h < q {{ t[o] = 100.0f32 }} }}
      for i in 8 {{ block B(b: 8 = i) where {condition} {{ t[b] = x[b]*2.0f32 + 1.0f32 }} }}
      for j in 8 {{ block R(c: 8 = j) where j < q {{ y[c] = t[c] }} }} }}""")
    with pytest.raises(ScheduleError, match=r"whose length is a multiple of 8\n(?s:.*)by one condition"):
        Schedule(naive, checked=True, intrinsics={"vector": vector(8)}).tensorize("i", "vector")
    s = Schedule(naive, checked=True, intrinsics={"vector": vector()})
    s.tensorize("i", "vector")
    x = np.arange(8, dtype=np.float32)
    for p, q in ((3, 6), (6, 3), (8, 8)):
        (want,), (got,) = (
            interpret(a, [x], {"p": p, "q": q}, intrinsics=meanings(s.intrinsics.values())).values()
            for a in (naive, s.program)
        )
        np.testing.assert_array_equal(got, want)
