from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loop.programs import (
    DIMS,
    EXAMPLES,
    INTRINSICS,
    M,
    N,
    arrays,
    loops,
    matmul,
    programs,
    reduction,
    relu,
    spatial,
)

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import LoopError
from weft.expr import nodes as e
from weft.expr.evaluate import evaluate
from weft.expr.functions import call
from weft.expr.nodes import Broadcast, Expr, Ramp, Var, const
from weft.loop.nodes import (
    Allocate,
    Block,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Program,
    Seq,
    Stmt,
    Store,
    buffer,
    int64,
)
from weft.loop.parser import parse_program
from weft_interpreter.calls import sentinel
from weft_interpreter.interpret import interpret


def run(text: str, *inputs: Any, **options: Any) -> Any:
    """The only output of a program given as text."""
    (result,) = interpret(parse_program(text), [np.asarray(i) for i in inputs], **options).values()
    return result


# -- statements


def test_blocks_and_reductions() -> None:
    p = matmul(N, 6, M)
    given = arrays(p)
    np.testing.assert_array_equal(interpret(p, given)["C"], given["A"] @ given["B"])
    np.testing.assert_array_equal(interpret(p, list(given.values()), {"n": 5})["C"], given["A"] @ given["B"])
    empty = interpret(matmul(2, 3, 0), [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)])["C"]
    assert (empty == 0).all()  # no step of the reduction: what it starts from


EXPECTED: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "matmul": lambda a, b: a @ b,
    "matmul_relu": lambda a, b: np.maximum(a @ b, 0),
    "guarded": lambda x: x * 2,
    "row_sums": lambda x: np.abs(x).sum(1),
    "histogram": lambda x: np.bincount(x % 4, minlength=4),
    "vectorized": lambda x, s: x * s[0] + 1,
    "opaque": lambda x: x * 2,
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("shuffle_seed", [None, 1])
def test_examples(name: str, shuffle_seed: int | None) -> None:
    p = EXAMPLES[name]()
    given = arrays(p, 3)
    (result,) = interpret(p, given, DIMS, intrinsics=INTRINSICS, shuffle_seed=shuffle_seed).values()
    np.testing.assert_array_equal(result, EXPECTED[name](*given.values()))


def test_while() -> None:
    text = """program p(x: int64[1]) -> (y: int64[2]) {
      allocate v: int64[1]
      v[0] = x[0]
      y[1] = 0
      while 1 < v[0] { if v[0]%2 == 0 { v[0] = v[0]//2 } else { v[0] = 3*v[0] + 1 } y[1] = y[1] + 1 }
      y[0] = v[0] }"""
    assert run(text, [27]).tolist() == [1, 111]


def test_what_is_not_stored_shows() -> None:
    assert np.isnan(run("program p() -> (y: float32[2]) { y[1] = 3.0f32 }")[0])
    assert run("program p() -> (y: int32[1]) { allocate t: int32[1] y[0] = t[0] }")[0] == sentinel(dt.int32) < -(10**8)
    assert abs(sentinel(dt.int8)) > 50 and sentinel(dt.bool_) is True


def test_init_runs_at_the_first_step_only() -> None:
    y, r, q = buffer("y", (2,), dt.int64), Var("r"), Var("q")
    iters, body = (
        (spatial("s", 2), reduction("r", 3), reduction("q", 2)),
        Store(y, (Var("s"),), y[Var("s")] + r * 2 + q),
    )
    block = Block("b", iters, (Var("i"), Var("j"), Var("k")), body, Store(y, (Var("s"),), int64(100)))
    assert interpret(Program("p", (), (y,), (), loops(block, ("i", 2), ("j", 3), ("k", 2))), [])["y"].tolist() == [
        115,
        115,
    ]


def test_buffers_of_vectors() -> None:
    text = """program p(x: float32[8]) -> (y: float32[8]) {
      allocate acc: float32x4[2] in register
      for i in 2 { acc[i] = x[ramp(i*4, 1, 4)] }
      for i2 in 2 { y[ramp(i2*4, 1, 4)] = acc[1 - i2] + acc[0] } }"""
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run(text, x), np.concatenate([x[4:] + x[:4], x[:4] * 2]))


def test_masked_lanes_are_not_touched() -> None:
    text = """program p(x: int32[3], at: int64[4]) -> (y: int32[4], z: int32[3]) {
      let m: boolx4 = ramp(0, 1, 4) < broadcast(3, 4)
      y[ramp(0, 1, 4)] = x[at[ramp(0, 1, 4)]; m]
      z[at[ramp(0, 1, 4)]; m] = broadcast(7i32, 4) }"""
    out = interpret(parse_program(text), [np.array([1, 2, 3], np.int32), np.array([2, 0, 1, -9])])
    assert out["y"].tolist() == [3, 1, 2, 0] and out["z"].tolist() == [7, 7, 7]
    assert (
        run(
            "program p(x: int32[1]) -> (y: int32[2]) { for i in 2 { y[i; i < 1] = x[i; i < 1] } }",
            np.array([5], np.int32),
        )[0]
        == 5
    )


def test_vector_atomics() -> None:
    text = """program p(x: int64[4]) -> (y: int32[3]) { for i in 3 { y[i] = 0i32 }
      atomic y[x[ramp(0, 1, 4)]] += broadcast(2i32, 4) atomic y[broadcast(0, 2)] max= broadcast(9i32, 2) }"""
    assert run(text, [1, 1, 2, 1]).tolist() == [9, 6, 2]


def test_atomics() -> None:
    text = """program p(x: float32[4]) -> (y: float32[3]) { for i in 3 { y[i] = 0.0f32 }
      for j in 4 parallel { atomic y[0] += x[j] atomic y[1] min= x[j] atomic y[2] max= x[j] } }"""
    np.testing.assert_array_equal(
        run(text, np.array([1, -2, 3, -4], np.float32), shuffle_seed=5), np.array([-2, -4, 3], np.float32)
    )


def test_in_place() -> None:
    text = "program p(x: int64[3]) -> (y: int64[3]) aliases(0 = 0) { for i in 3 { y[i] = x[i] + x[0] } }"
    x = np.array([1, 2, 3])
    assert run(text, x).tolist() == [2, 3, 4]
    assert run(text, x, in_place=True).tolist() == [2, 4, 5]
    assert x.tolist() == [1, 2, 3]


def test_races_show_when_shuffled() -> None:
    text = "program p(x: int64[9]) -> (y: int64[1]) { for i in 9 parallel { y[i//9] = x[i] } }"
    assert run(text, np.arange(9))[0] == 8
    assert {int(run(text, np.arange(9), shuffle_seed=s)[0]) for s in range(6)} != {8}


# -- threads


REVERSE = """program p(x: int64[8]) -> (y: int64[8]) {
  for b in 2 blockIdx.x {
    allocate s: int64[4] in shared
    for t in 4 threadIdx.x {
      s[t] = x[b*4 + t]
      @barrier()
      y[b*4 + t] = s[3 - t]
    }
  }
}"""


@pytest.mark.parametrize("shuffle_seed", [None, 0])
def test_threads_meet_at_barriers(shuffle_seed: int | None) -> None:
    assert run(REVERSE, np.arange(8), shuffle_seed=shuffle_seed).tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_barriers_inside_loops_of_two_thread_dimensions() -> None:
    text = """program p(x: int64[2, 3]) -> (y: int64[2, 3]) {
      allocate s: int64[2, 3] in shared
      for ty in 2 threadIdx.y { for tx in 3 threadIdx.x {
        s[ty, tx] = x[ty, tx]
        for step in 2 {
          @barrier()
          let v: int64 = s[1 - ty, 2 - tx]
          @barrier()
          s[ty, tx] = v + step
        }
        y[ty, tx] = s[ty, tx]
      } } }"""
    x = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(run(text, x), x + 1)


def test_barrier_errors() -> None:
    with pytest.raises(LoopError, match="2 of 4 threads wait at a barrier that the others never reach"):
        run(REVERSE.replace("@barrier()", "if t < 2 { @barrier() }"), np.arange(8))
    with pytest.raises(LoopError, match="a barrier outside every threadIdx loop"):
        run(REVERSE.replace("threadIdx.x", "parallel"), np.arange(8))


# -- formulas


NUMBERS = [
    dt.bool_,
    dt.int4,
    dt.int8,
    dt.int32,
    dt.int64,
    dt.uint4,
    dt.uint8,
    dt.uint32,
    dt.uint64,
    dt.float16,
    dt.bfloat16,
    dt.float32,
    dt.float64,
]


@st.composite
def formulas(draw: st.DrawFn, dtype: DType, depth: int = 3) -> Expr:
    """A formula over the elements v_<dtype>[0 … 3] of one buffer for each dtype."""
    lanes = dtype.lanes
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if lanes > 1:
            scalar = draw(formulas(dtype.scalar, 0))
            return Broadcast(scalar, lanes)
        if draw(st.booleans()):
            return const(draw(st.integers(-3, 9)) if dtype.kind != "bool" else draw(st.booleans()), dtype)
        return Var(f"v{draw(st.integers(0, 3))}_{dtype.name}", dtype)
    side = formulas(dtype, depth - 1)
    kinds = ["select", "cast"]
    if dtype.is_bool:
        kinds += ["compare", "compare", "not", "and"]
    else:
        kinds += ["arithmetic", "arithmetic"]
    if dtype.is_integer:
        kinds += ["divide", "bits"]
    kind = draw(st.sampled_from(kinds))
    if kind == "select":
        return e.Select(draw(formulas(dt.bool_.with_lanes(lanes), depth - 1)), draw(side), draw(side))
    if kind == "cast":
        # Out of range, a float has no integer value: only between integers, to floats, and to bool.
        sources = [d for d in NUMBERS if not (d.is_float and dtype.is_integer)]
        return e.Cast(draw(formulas(draw(st.sampled_from(sources)).with_lanes(lanes), depth - 1)), dtype)
    if kind == "compare":
        other = draw(st.sampled_from(NUMBERS[1:])).with_lanes(lanes)
        return draw(st.sampled_from([e.Lt, e.Le, e.Eq, e.Ne]))(
            draw(formulas(other, depth - 1)), draw(formulas(other, depth - 1))
        )
    if kind == "not":
        return e.Not(draw(side))
    if kind == "and":
        return draw(st.sampled_from([e.And, e.Or]))(draw(side), draw(side))
    if kind == "divide":
        # An odd divisor is not zero, and not -1 but for signed overflow, which wraps.
        divisor = e.BitOr(draw(side), Broadcast(const(1, dtype.scalar), lanes) if lanes > 1 else const(1, dtype))
        return draw(st.sampled_from([e.FloorDiv, e.FloorMod, e.TruncDiv, e.TruncMod]))(draw(side), divisor)
    if kind == "bits":
        return draw(st.sampled_from([e.BitAnd, e.BitOr, e.BitXor, e.ShiftLeft, e.ShiftRight]))(draw(side), draw(side))
    return draw(st.sampled_from([e.Add, e.Sub, e.Mul, e.Min, e.Max, *([e.Div] if dtype.is_float else [])]))(
        draw(side), draw(side)
    )


VALUES = {
    d.name: np.array(
        [0, 1, 1, 0] if d.is_bool else [3, 250, -7, 2**70 + 2**40 + 12345], object if not d.is_float else np.float64
    )
    for d in NUMBERS
}


def value(dtype: DType, k: int) -> Any:
    """The element k of every dtype: small, past int8, negative, and far out."""
    number = VALUES[dtype.name][k]
    return bool(number) if dtype.is_bool else float(number) if dtype.is_float else e.wrap_integer(int(number), dtype)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([d.with_lanes(n) for d in NUMBERS for n in (1, 4)]))
def test_formulas_mean_what_evaluate_says(data: st.DataObject, dtype: DType) -> None:
    formula = data.draw(formulas(dtype))
    with np.errstate(all="ignore"):
        env = {
            f"v{k}_{d.name}": np.array(value(d, k)).astype(np.float64 if d.is_float else d.numpy).astype(d.numpy)[()]
            for d in NUMBERS
            for k in range(4)
        }
        inputs = [buffer(f"b_{d.name}", (4,), d) for d in NUMBERS]
        given = [np.array([env[f"v{k}_{d.name}"] for k in range(4)], d.numpy) for d in NUMBERS]
    body: Stmt = Store(
        y := buffer("y", (dtype.lanes,), dtype.scalar),
        (Ramp(int64(0), int64(1), 4),) if dtype.lanes > 1 else (int64(0),),
        formula,
    )
    for b in inputs:
        for k in range(4):
            body = Let(Var(f"v{k}_{b.dtype.name}", b.dtype), b[k], body)
    result = interpret(Program("p", tuple(inputs), (y,), (), body), given)["y"]
    expected = np.broadcast_to(evaluate(formula, env), (dtype.lanes,)).astype(dtype.numpy)
    if dtype.is_float:  # numpy takes a NaN of bfloat16 for no NaN; float64 holds every value of all
        result, expected = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(result, expected)


def test_functions_bitcasts_and_rare_operators() -> None:
    x, i = buffer("x", (3,), dt.float32), Var("i")
    given = np.array([0.5, -2.25, 4.0], np.float32)
    for formula, expected in (
        (call("exp", x[i]), np.exp(given)),
        (call("fma", x[i], x[i], x[i]), given * given + given),
        (e.truncmod(x[i], const(1.5)), np.fmod(given, np.float32(1.5))),
        (x[i] % 1.5, np.remainder(given, np.float32(1.5))),
        (e.cast_to(e.cast_to(x[i], dt.int32), dt.float32), np.trunc(given)),
        (e.Bitcast(e.Bitcast(x[i], dt.int32) ^ const(-(2**31), dt.int32), dt.float32), -given),
        (x[i] / 0.0, given * np.float32(np.inf)),
    ):
        y = buffer("y", (3,), dt.float32)
        np.testing.assert_array_equal(
            interpret(Program("p", (x,), (y,), (), loops(Store(y, (i,), formula), ("i", 3))), [given])["y"], expected
        )


def test_complex_numbers() -> None:
    x, y = np.array([1 + 2j, 3 - 1j], np.complex64), np.complex64(0.5j)
    text = "program p(x: complex64[2]) -> (y: complex64[2]) { for i in 2 { y[i] = x[i]*x[i] + complex64(0.0, 0.5) } }"
    np.testing.assert_allclose(run(text, x), x * x + y)


def test_only_the_chosen_side_of_a_select_is_loaded() -> None:
    text = (
        "program p(x: float32[3]) -> (y: float32[5]) { for i in 5 { y[i] = select(i < 1, 0.0f32, select(i - 1 < 3, x[i"
        " - 1], 9.0f32)) } }"
    )
    assert run(text, np.array([1, 2, 3], np.float32)).tolist() == [0, 1, 2, 3, 9]


def test_only_the_chosen_lanes_of_a_select_are_loaded_or_divided() -> None:
    text = """program p(x: int64[3], s: int64[1], n: int64[1]) -> (y: int64[4]) {
      y[ramp(0, 1, 4)] = select(ramp(0, 1, 4) < broadcast(n[0], 4), x[ramp(0, 1, 4)], select(broadcast(n[0], 4) < broadcast(3, 4),
        broadcast(s[n[0]], 4), broadcast(12, 4)//(ramp(0, 1, 4) - broadcast(2, 4)))) }"""  # noqa: E501
    assert run(text, [5, 6, 7], [9], [3]).tolist() == [5, 6, 7, 12]
    assert run(text, [5, 6, 7], [9], [0]).tolist() == [9, 9, 9, 9]
    with pytest.raises(LoopError, match="load of 's' is out of bounds"):
        run(text, [5, 6, 7], [9], [2])


def test_deep_programs() -> None:
    """More loops, and more nested selects with loads, than Python itself nests."""
    y, x = buffer("y", (1,), dt.int64), buffer("x", (130,), dt.int64)
    body: Stmt = Store(y, (int64(0),), y[0] + 1)
    for k in range(45):
        body = For(Var(f"i{k}"), int64(2 if k in (3, 20, 40) else 1), body)
    assert interpret(Program("p", (), (y,), (), Seq((Store(y, (int64(0),), int64(0)), body))), [])["y"].tolist() == [8]
    i, z = Var("i"), buffer("z", (130,), dt.int64)
    chain: Expr = int64(-1)
    for k in reversed(range(130)):
        chain = e.select(e.eq(i, k), x[i + (k - k // 2 * 2) * 0] * 2 if k % 2 else x[i], chain)
    given = np.arange(130)
    out = interpret(Program("p", (x,), (z,), (), For(i, int64(130), Store(z, (i,), chain))), [given])["z"]
    np.testing.assert_array_equal(out, np.where(given % 2, given * 2, given))
    total: Expr = x[0]
    for k in range(1, 130):
        total = total + x[k]
    assert interpret(Program("p", (x,), (y,), (), Store(y, (int64(0),), total)), [given])["y"].tolist() == [given.sum()]
    deep: Stmt = Seq((Let(Var("t"), x[N] + 1, Store(y, (int64(0),), Var("t"))),))
    for k in range(60):
        deep = If(1000 - k > N, Let(Var(f"u{k}"), N + k, If(Var(f"u{k}") + 1 > N, deep)))
    assert interpret(Program("p", (x,), (y,), (N,), deep), [given], {"n": 7})["y"].tolist() == [8]


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 3))
def test_random_programs_run(program: Program, seed: int) -> None:
    given = arrays(program, seed)
    first = interpret(program, given, DIMS)
    for name, out in interpret(parse_program(str(program)), given, DIMS, shuffle_seed=seed).items():
        np.testing.assert_array_equal(first[name], out)


# -- errors


def message(text: str, *inputs: Any, **options: Any) -> str:
    with pytest.raises(LoopError) as caught:
        run(text, *inputs, **options)
    return str(caught.value)


F4 = np.zeros(4, np.float32)
HEAD = "program p(x: float32[4]) -> (y: float32[4])"


def test_out_of_bounds() -> None:
    assert (
        message(HEAD + " { for i in 4 { y[i] = x[i + 1] } }", F4)
        == "load of 'x' is out of bounds: indices [4], shape [4]\n"
        "  program p(x: float32[4]) -> (y: float32[4]) {\n"
        "    for i in 4 {\n"
        "      y[i] = x[i + 1]  # <-- here\n"
        "    }\n"
        "  }\n"
        "  why: here i = 3"
    )
    assert "store to 'y' is out of bounds: indices [-1], shape [4]" in message(
        HEAD + " { for i in 4 { y[i - 1] = x[i] } }", F4
    )
    assert "atomic" in message(HEAD + " { atomic y[ramp(0, 4, 2)] += broadcast(1.0f32, 2) }", F4)
    assert "load of 'y' is out of bounds: indices [4]" in message(HEAD + " { atomic y[4] += 1.0f32 }", F4)
    assert "load of 'x' is out of bounds: indices [[0, 4]], shape [4]" in message(
        HEAD + " { y[ramp(0, 1, 2)] = x[ramp(0, 4, 2)] }", F4
    )
    assert "store to 'y' is out of bounds: indices [[-2, 0]], shape [4]" in message(
        HEAD + " { y[ramp(-2, 2, 2)] = x[ramp(0, 1, 2)] }", F4
    )
    deep = "".join(f"if n < {100 - k} {{ " for k in range(70)) + "y[0] = x[n] " + "}" * 70
    assert "load of 'x' is out of bounds: indices [5], shape [4]" in message(
        HEAD + " dims(n) { " + deep + " }", F4, dims={"n": 5}
    )


def test_block_iterators_outside_their_extent() -> None:
    text = message(HEAD + " { for i in 5 { block b(v: 4 = i) { y[v] = x[v] } } }", F4)
    assert "block 'b': iterator 'v' is 4, its extent is 4" in text and "exclude the step by the predicate" in text


def test_division_by_zero() -> None:
    text = message("program p(x: int64[2]) -> (y: int64[2]) { for i in 2 { y[i] = 6//x[i] } }", [1, 0])
    assert (
        text.startswith("integer division by zero\n") and "y[i] = 6//x[i]  # <-- here" in text and "here i = 1" in text
    )
    assert "division by zero" in message(
        "program p(x: int64[2]) -> (y: int64[2]) { y[ramp(0, 1, 2)] = broadcast(6, 2)//x[ramp(0, 1, 2)] }", [1, 0]
    )


def test_inputs_that_do_not_fit() -> None:
    p = relu(N)
    for inputs, dims, expected in (
        ({"z": F4}, None, "no input is named 'z'"),
        ({}, None, "no array for input 'x'"),
        ([F4, F4], None, "got 2 array(s) for 1 input(s)"),
        ([F4.astype(np.float64)], None, "input 'x' is float32 of rank 1, got float64 of rank 1"),
        ([F4.reshape(2, 2)], None, "input 'x' is float32 of rank 1, got float32 of rank 2"),
        ([F4], {"n": 5}, "input 'x' has shape [5], got [4]"),
    ):
        with pytest.raises(LoopError) as caught:
            interpret(p, inputs, dims)  # type: ignore[arg-type]
        assert expected in str(caught.value)
    with pytest.raises(LoopError, match="the inputs are x"):
        interpret(p, {"z": F4})
    with pytest.raises(LoopError, match="no value for dim 'm'"):
        interpret(Program("p", p.inputs, p.outputs, (N, M), p.body), [F4])
    with pytest.raises(LoopError, match="the shape of 'x' uses 'n', which is no dim"):
        interpret(Program("p", p.inputs, p.outputs, (), p.body), [F4])
    with pytest.raises(LoopError, match="output 'y' cannot share the memory of its alias"):
        run("program p(x: int64[3]) -> (y: int64[4]) aliases(0 = 0) { y[0] = x[0] }", [1, 2, 3], in_place=True)


def test_ill_formed_programs() -> None:
    x, y, t = buffer("x", (4,), dt.float32), buffer("y", (4,), dt.float32), buffer("t", (4,), dt.float32)
    zero, i = int64(0), Var("i")
    for body, expected in (
        (Store(x, (zero,), const(0.0)), "the input 'x' is stored to"),
        (Store(y, (i,), const(0.0)), "variable 'i' is not defined here"),
        (
            For(i, int64(2), Store(y, (e.cast_to(Var("i", dt.int32), dt.int64),), const(0.0))),
            "variable 'i' is int64, used as int32",
        ),
        (Store(t, (zero,), const(0.0)), "buffer 't' does not exist here"),
        (
            Store(y, (zero,), buffer("x", (4,), dt.int32)[0]),
            "buffer 'x' is used as int32 of rank 1, it is defined otherwise",
        ),
        (Evaluate(IntrinsicCall("nop", ())), "unknown intrinsic 'nop'"),
        (Allocate(Buffer("t", (int64(-1),), dt.float32), Seq(())), "a buffer of negative size [-1] is allocated"),
        (Stmt(), "no meaning for a Stmt"),
    ):
        with pytest.raises(LoopError) as caught:
            interpret(Program("p", (x,), (y,), (), body), [F4])
        assert expected in str(caught.value)
    with pytest.raises(LoopError, match="did you mean 'note'"):
        run(HEAD + " { @not_() }", F4, intrinsics=INTRINSICS)
    with pytest.raises(LoopError, match="buffer 'v' holds vectors and is indexed by a vector"):
        run(
            "program p(v: int64x4[4]) -> (y: int64[4]) { y[ramp(0, 1, 4)] = v[ramp(0, 1, 4)] }",
            np.zeros((4, 4), np.int64),
        )


def test_addresses() -> None:
    def fill(to: Any, count: Any) -> None:
        assert isinstance(to.buffer, Buffer)
        to.array[to.offset : to.offset + count] = 7

    fill.addresses = True  # type: ignore[attr-defined]
    text = (
        "program p() -> (y: int64[2, 3]) { for i in 2 { for j in 3 { y[i, j] = @twice(i*j) -> int64 } } @fill(y[1, 0],"
        " 2) }"
    )
    assert run(text, intrinsics={"fill": fill, "twice": lambda v: v * 2}).tolist() == [[0, 0, 0], [7, 7, 4]]
    assert "address in 'y' is out of bounds" in message(
        "program p() -> (y: int64[2]) { @fill(y[2], 1) }", intrinsics={"fill": fill}
    )


def test_what_one_statement_computed_under_a_condition_no_other_takes_for_granted() -> None:
    text = """program p(x: float32[9], k: int64[9]) -> (y: float32[9]) {
      for j in 9 { y[j] = 0.0f32 }
      for i in 9 { if i >= 5 { y[k[i]*2] = x[k[i]*2] } @prefetch(x[k[i]*2], 2) }
    }"""
    np.testing.assert_array_equal(
        run(text, np.arange(9, dtype=np.float32), np.arange(9) % 5), [0, 0, 2, 0, 4, 0, 6, 0, 0]
    )


def test_a_prefetch_means_nothing_but_its_element_exists() -> None:
    text = "program p(x: float32[4]) -> (y: float32[4]) { for i in 4 { @prefetch(x[min(i + 1, 3)], 2) y[i] = x[i] } }"
    assert run(text, np.arange(4, dtype=np.float32)).tolist() == [0, 1, 2, 3]
    assert "prefetch of 'x' is out of bounds: indices [4], shape [4]" in message(
        text.replace("min(i + 1, 3)", "i + 1"), np.arange(4, dtype=np.float32)
    )
    asked: list[float] = []
    run(
        text,
        np.arange(4, dtype=np.float32),
        intrinsics={"prefetch": lambda element, locality: asked.append(float(element))},
    )
    assert asked == [1, 2, 3, 3]
