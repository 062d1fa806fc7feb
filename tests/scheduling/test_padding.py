"""pad_loop of reductions: the steps that are new change nothing, whatever combines them; padded operands leave the
formula to an instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduling.test_tensorize import check, gemm, product

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.scheduling import Operand, Schedule, Trace, replay
from weft_interpreter.interpret import interpret

REDUCERS = {
    "sum": ("float32", "{s} + {v}", "0.0f32"),
    "prod": ("float32", "{s}*{v}", "1.0f32"),
    "max": ("float32", "max({s}, {v})", "-inff32"),
    "min": ("int32", "min({s}, {v})", "2147483647i32"),
    "any": ("bool", "{s} or {v}", "false"),
    "all": ("bool", "{s} and {v}", "true"),
}


def reduction(reducer: str, size: int | str) -> Program:
    dtype, step, start = REDUCERS[reducer]
    combined = step.format(s="y[a]", v="x[a, r]")
    dims = " dims(n)" if "n" in str(size) else ""
    return parse_program(
        f"""program p(x: {dtype}[3, {size}]) -> (y: {dtype}[3]){dims} {{
      for i in 3 {{ for k in {size} {{ block S(a: 3 = i, r: reduce {size} = k) {{ init {{ y[a] = {start} }} y[a] = {combined} }} }} }} }}"""  # noqa: E501
    )


def values(dtype: str, *shape: int) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (
        rng.integers(-3, 4, shape).astype({"bool": np.bool_}.get(dtype, dtype))
        if dtype != "bool"
        else rng.random(shape) < 0.5
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    reducer=st.sampled_from(sorted(REDUCERS)), size=st.one_of(st.integers(1, 13), st.sampled_from(["n", "n*3"])),
    multiple=st.integers(1, 8),
    n=st.integers(0, 5), decomposed=st.booleans(), cut=st.booleans(),
)  # fmt: skip
def test_any_reducer_of_any_size(
    reducer: str, size: int | str, multiple: int, n: int, decomposed: bool, cut: bool
) -> None:
    naive = reduction(reducer, size)
    s = Schedule(naive, checked=True)
    if decomposed:
        s.decompose_reduction("S", "k")
    s.pad_loop("S", "k", multiple)
    if cut:
        _, inner = s.split("k", [None, multiple])
        assert (
            str(s.loop(inner).extent) == str(multiple)
            and s.block("S").predicate == Schedule(naive).block("S").predicate
        )
    count = size if isinstance(size, int) else {"n": n, "n*3": 3 * n}[size]
    x = values(REDUCERS[reducer][0], 3, count)
    dims = {"n": n} if isinstance(size, str) else {}
    (want,), (got,) = (interpret(p, [x], dims).values() for p in (naive, s.program))
    np.testing.assert_array_equal(got, want)
    assert str(replay(naive, Trace.from_json(s.trace.to_json()))) == str(s.program)


@pytest.mark.parametrize("step", ["pad", "pad_decomposed", "rfactor"])
@pytest.mark.parametrize("start", ["-0.0f32", "b[a]", "0.0f32"])
def test_a_sum_of_negative_zeros_keeps_its_sign(step: str, start: str) -> None:
    naive = parse_program(
        f"""program p(x: float32[3, 5], b: float32[3]) -> (y: float32[3]) {{
      for i in 3 {{ for k in 5 {{ block S(a: 3 = i, r: reduce 5 = k) {{ init {{ y[a] = {start} }} y[a] = y[a] + x[a, r] }} }} }} }}"""  # noqa: E501
    )
    s = Schedule(naive, checked=True)
    if step == "rfactor":
        _, inner = s.split("k", [None, 2])
        s.rfactor("S", inner)
    else:
        if step == "pad_decomposed":
            s.decompose_reduction("S", "k")
        s.pad_loop("S", "k", 8)
    x, b = np.full((3, 5), -0.0, np.float32), np.full(3, -0.0, np.float32)
    (y,) = interpret(s.program, [x, b]).values()
    assert np.signbit(y).all() == (start != "0.0f32") and not y.any()


def padded_product(rows: int, columns: int, terms: int, both: bool = True) -> tuple[Program, Schedule]:
    unit = gemm(
        **{name: Operand(name, scope=scope, strides=(None, 1)) for name, scope in zip("ABC", ("left", "right", "sums"))}
    )
    naive = product(rows, columns, terms)
    s = Schedule(naive, checked=True, intrinsics={"gemm": unit})
    left, right, result = s.cache_read("C", "X", "left"), s.cache_read("C", "Y", "right"), s.cache_write("C", "sums")
    i, j, k = s.loops("C")
    for copy, rows_of, columns_of in ((left, i, k), (right, k, j)):
        for d in range(2):
            if both or copy == left or (rows_of, columns_of)[d] == j:
                s.pad_loop(copy, s.loops(copy)[d], 8)
    for loop in (i, j, k):
        s.pad_loop("C", loop, 8)
    assert result
    return naive, s


@pytest.mark.parametrize("sizes", [(13, 9, 20), (8, 9, 8), (5, 3, 2), (16, 8, 8)])
def test_a_product_of_any_size_is_whole_tiles_of_an_instruction(sizes: tuple[int, int, int]) -> None:
    """Zeros beyond both operands: the formula stays a plain sum of products, so that tensorize knows it."""
    naive, s = padded_product(*sizes)
    assert "select" not in str(s.block("C"))
    i, j, k = (s.split(v, [None, 8]) for v in s.loops("C"))
    s.reorder(i[0], j[0], k[0], i[1], j[1], k[1])
    s.tensorize(i[1], "gemm")
    check(s, naive)


def test_an_operand_that_was_not_padded_leaves_a_condition() -> None:
    """What lies beyond it may be NaN, and zero times NaN is no zero."""
    naive, s = padded_product(8, 8, 5, both=False)
    assert "select(" in str(s.block("C"))
    x, y = np.ones((8, 5), np.float32), np.ones((5, 8), np.float32)
    np.testing.assert_array_equal(interpret(s.program, [x, y])["Z"], interpret(naive, [x, y])["Z"])


def test_padding_for_a_maximum_is_what_changes_no_maximum() -> None:
    naive = reduction("max", 5)
    s = Schedule(naive, checked=True)
    copy = s.cache_read("S", "x", "local")
    s.pad_loop(copy, s.loops(copy)[1], 8, value=-float("inf"))
    s.pad_loop("S", "k", 8)
    assert "select" not in str(s.block("S")) and "select(" in str(s.block(copy))
    x = values("float32", 3, 5) - 100
    np.testing.assert_array_equal(interpret(s.program, [x])["y"], x.max(axis=1))
    assert str(replay(naive, Trace.from_json(s.trace.to_json()))) == str(s.program)
    s = Schedule(naive, checked=True)  # zeros do not do
    copy = s.cache_read("S", "x", "local")
    s.pad_loop(copy, s.loops(copy)[1], 8)
    s.pad_loop("S", "k", 8)
    assert "select(r < 5" in str(s.block("S"))
    np.testing.assert_array_equal(interpret(s.program, [x])["y"], x.max(axis=1))


def test_a_copy_that_does_not_store_all_of_its_padding_does_not_count() -> None:
    naive = parse_program("""program p(x: float32[5], w: float32[8]) -> (y: float32[1]) {
      allocate t: float32[8]
      for i in 8 { block T(a: 8 = i) where i < 6 { t[a] = select(a < 5, x[a], 0.0f32) } }
      for k in 5 { block S(r: reduce 5 = k) { init { y[0] = 0.0f32 } y[0] = y[0] + t[r] } } }""")
    s = Schedule(naive, checked=True)
    s.pad_loop("S", "k", 8)
    assert "select(r < 5" in str(s.block("S"))
    x = np.arange(5, dtype=np.float32)
    assert interpret(s.program, [x, np.ones(8, np.float32)])["y"][0] == 10


@pytest.mark.parametrize("sizes", [(3, 5, 7), (8, 16, 32), (1, 1, 1)])
def test_columns_of_a_product_of_open_sizes_are_padded_as_its_copy_was(sizes: tuple[int, int, int]) -> None:
    naive = parse_program("""program p(x: float32[m, k], w: float32[k, n]) -> (y: float32[m, n]) dims(m, k, n) {
      for i in m { for j in n { for r in k { block B(a: m = i, b: n = j, t: reduce k = r) {
        init { y[a, b] = 0.0f32 } y[a, b] = y[a, b] + x[a, t]*w[t, b] } } } } }""")
    s = Schedule(naive, checked=True)
    s.cache_write("B", "local")
    left, right = s.cache_read("B", "x", "local"), s.cache_read("B", "w", "local")
    s.pad_loop(left, s.loops(left)[1], 8)
    terms, columns = s.loops(right)
    s.pad_loop(right, columns, 16)
    s.pad_loop(right, terms, 8)
    s.pad_loop("B", "j", 16)
    s.pad_loop("B", "r", 8)
    assert "select" not in str(s.block("B"))
    x, w = values("float32", sizes[0], sizes[1]), values("float32", sizes[1], sizes[2])
    np.testing.assert_array_equal(interpret(s.program, [x, w])["y"], x @ w)
