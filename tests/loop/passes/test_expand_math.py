"""Formulas of math_tables against references one precision wider, and the pass that puts them in."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from passcheck import well_formed

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.evaluate import evaluate
from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Binary, Call, Expr, Select, Var, const, walk
from weft.loop.math_tables import FORMULAS, Lets
from weft.loop.nodes import For, If, Let, Load, Program, Store, While, buffer, int64, seq, stmt_exprs, walk_stmts
from weft.loop.nodes import Stmt as Statement
from weft.loop.passes.expand_math import expand_math
from weft_interpreter.interpret import interpret

NATIVE = frozenset({"fma", "sqrt", "round", "abs", "floor"})
UNARY = [n for n, f in FUNCTIONS.items() if f.arity == 1 and n in FORMULAS and n != "popcount"]
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 3, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38, 88.7, 89,
        -87.3, -103.9, -104], np.float32
)  # fmt: skip


def compiled(name: str, dtype: dt.DType, functions: frozenset[str] = NATIVE) -> Callable[..., Any]:
    """The formula of `name` as a function of numpy arrays."""
    numbers = iter(range(10000))
    lets = Lets(functions, lambda base: f"{base}{next(numbers)}")
    variables = [Var(n, dtype) for n in "xyz"[: FUNCTIONS[name].arity]]
    result = FORMULAS[name](lets, *variables)

    def f(*args: Any) -> Any:
        env = {v.name: a for v, a in zip(variables, args)}
        with np.errstate(all="ignore"):
            for var, value in lets.bound:
                env[var.name] = evaluate(value, env)
            return evaluate(result, env)

    return f


@pytest.mark.parametrize(("dtype", "least"), [(dt.float32, -176.1), (dt.float64, -1418.2)])
def test_exp_of_masked_scores_is_no_product_that_underflows(dtype: dt.DType, least: float) -> None:
    numbers = iter(range(100))
    lets = Lets(NATIVE, lambda base: f"{base}{next(numbers)}")
    result = FORMULAS["exp"](lets, Var("x", dtype))
    env: dict[str, Any] = {"x": np.array([least, -1e4, np.finfo(dtype.numpy).min, -np.inf], dtype.numpy)}
    with np.errstate(all="raise"):
        for var, value in lets.bound:
            env[var.name] = evaluate(value, env)
        found = evaluate(result, env)
    assert not found.any() and not np.signbit(found).any()


def reference(name: str, *args: np.ndarray) -> np.ndarray:
    wide = np.float64 if args[0].dtype == np.float32 else np.longdouble
    if name == "erf":
        with np.errstate(all="ignore"):
            return np.vectorize(math.erf, otypes=[np.float64])(args[0].astype(np.float64)).astype(wide)
    with np.errstate(all="ignore"):
        return FUNCTIONS[name].evaluate(*(a.astype(wide) for a in args))


def ulps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of got's dtype; infinite where one is NaN or infinite and the other far from
    it."""
    t = got.dtype
    with np.errstate(all="ignore"):
        rounded = expected.astype(t)
        unit = np.maximum(
            np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1))), np.finfo(t).smallest_subnormal
        )
        error = np.abs(got.astype(expected.dtype) - expected) / unit.astype(expected.dtype)
        edge = np.finfo(t).max * (1 - 4 * np.finfo(t).eps)
        end = np.isinf(rounded) | np.isinf(got)
        beyond = (np.abs(expected) >= edge) & (np.abs(got) >= edge) & (np.sign(expected) == np.sign(got))
        error = np.where(end, np.where((rounded == got) | beyond, 0, np.inf), error)
        return np.where(
            np.isnan(expected) | np.isnan(got), np.where(np.isnan(expected) & np.isnan(got), 0, np.inf), error
        )


def check(name: str, limit: float, *args: np.ndarray, functions: frozenset[str] = NATIVE) -> None:
    got, expected = compiled(name, dt.dtype(args[0].dtype), functions)(*args), reference(name, *args)
    if got.dtype == bool:
        np.testing.assert_array_equal(got, expected)
        return
    error = ulps(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (
        f"{name}({[a[worst] for a in args]}) = {got[worst]}, not {expected[worst]}: {error[worst]} ulp"
    )
    wrong = (np.signbit(got) != np.signbit(expected)) & ~np.isnan(expected)
    assert not wrong.any(), f"{name}({[a[wrong][:4] for a in args]}) has the wrong sign"


def float32_samples(step: int, offset: int = 0) -> np.ndarray:
    return np.arange(offset, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


# Compiled, and under --full over every float32: tests/llvm/test_math.py.
@pytest.mark.parametrize("name", UNARY)
def test_float32(name: str) -> None:
    rng = np.random.default_rng(7)
    near = [rng.uniform(-b, b, 4000).astype(np.float32) for b in (1, 10, 100)]
    check(name, 4, np.concatenate([float32_samples(65521 * 2), SPECIAL, *near]))


@pytest.mark.parametrize(
    "name", ["exp", "log", "tanh", "sin", "erf", "round", "floor", "ceil", "trunc", "isinf", "sqrt"]
)
def test_float32_with_nothing_but_arithmetic(name: str) -> None:
    if name == "sqrt":
        assert "sqrt" not in FORMULAS  # asked of every target
        return
    check(name, 4, np.concatenate([float32_samples(65521 * 16), SPECIAL]), functions=frozenset({"sqrt"}))


@pytest.mark.parametrize(("name", "most"), [("exp", 16), ("tanh", 19), ("erf", 25)])
def test_operations_of_float32(name: str, most: int) -> None:
    """Speed of activations hangs on these three. Bitcasts and constants cost nothing."""
    numbers = iter(range(1000))
    lets = Lets(NATIVE, lambda base: f"{base}{next(numbers)}")
    parts = [FORMULAS[name](lets, Var("x", dt.float32)), *(value for _, value in lets.bound)]
    assert sum(isinstance(n, (Binary, Select, Call)) for e in parts for n in walk(e)) <= most


def test_pow_float32() -> None:
    rng = np.random.default_rng(8)
    x, y = np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    size = 20000
    bases = [np.exp(rng.uniform(-80, 80, size)), rng.uniform(0.5, 2, size), -rng.uniform(0, 50, size)]
    powers = [rng.uniform(-3, 3, size), rng.uniform(-200, 200, size), rng.integers(-9, 9, size)]
    check("pow", 4, np.concatenate([x, *bases]).astype(np.float32), np.concatenate([y, *powers]).astype(np.float32))


# In float64 the references are x87's.
@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("isnan", "isinf")])
def test_float64(name: str) -> None:
    rng = np.random.default_rng(9)
    wide = np.exp(rng.uniform(-700, 30, 2000))
    x = np.concatenate(
        [
            rng.uniform(-1, 1, 2000),
            rng.uniform(-8, 8, 2000),
            rng.uniform(-700, 700, 2000),
            wide,
            -wide,
            [0.0, -0.0, np.nan, 1.0, -1.0, 5e-324],
        ]
    )
    huge = np.exp2(rng.uniform(20, 1024, 2000))
    # The last two are as close to a multiple of pi/2 as float64 comes.
    check(
        name,
        4,
        np.concatenate(
            [x, huge, -huge, [np.inf, -np.inf, 1e308, -1e308, 6381956970095103 * 2.0**797, 5319372648326541 * 2.0**255]]
        ),
    )


def test_pow_float64() -> None:
    rng = np.random.default_rng(10)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, 3, -3, 5e-324, 1e308, 1e-310])
    bases = np.concatenate(
        [np.repeat(special, len(special)), rng.uniform(0, 4, 5000), np.exp(rng.uniform(-100, 100, 5000))]
    )
    powers = np.concatenate([np.tile(special, len(special)), rng.uniform(-300, 300, 5000), rng.uniform(-7, 7, 5000)])
    check("pow", 4, bases, powers)


def test_bits() -> None:
    x, y = float32_samples(65521 * 64), float32_samples(65521 * 64)[::-1]
    none: frozenset[str] = frozenset()
    np.testing.assert_array_equal(
        compiled("copysign", dt.float32, none)(x, y).view(np.uint32), np.copysign(x, y).view(np.uint32)
    )
    np.testing.assert_array_equal(compiled("abs", dt.float32, none)(x), np.abs(x))
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        v = np.random.default_rng(1).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 500, dtype=dtype)
        np.testing.assert_array_equal(compiled("popcount", dt.dtype(dtype), none)(v), FUNCTIONS["popcount"].evaluate(v))
    ints = np.array([-128, -1, 0, 5], np.int8)
    np.testing.assert_array_equal(compiled("abs", dt.int8, none)(ints), np.abs(ints))


def test_fma_without_the_instruction_rounds_once_in_float32() -> None:
    f = compiled("fma", dt.float32, frozenset())
    a = np.float32([1 + 2**-12, 3.0, 1e20])
    np.testing.assert_array_equal(f(a, a, -a), FUNCTIONS["fma"].evaluate(a, a, -a))


# -- the pass ---------------------------------------------------------------------------------------------------------

X, Y, I = buffer("x", (8,), dt.float32), buffer("y", (8,), dt.float32), Var("i")


def program(body: Statement) -> Program:
    return Program("p", (X,), (Y,), (), For(I, int64(8), body))


def calls(p: Program) -> set[str]:
    return {n.name for s in walk_stmts(p.body) for e in stmt_exprs(s) for n in walk(e) if isinstance(n, Call)}


def close(before: Program, after: Program, tolerance: float = 1e-6) -> None:
    well_formed(after)
    x = {"x": np.linspace(-2, 3, 8).astype(before.inputs[0].dtype.numpy)}
    for name, value in interpret(before, x).items():
        np.testing.assert_allclose(
            interpret(after, x)[name].astype(np.float64), value.astype(np.float64), rtol=tolerance
        )


def test_pass_binds_shared_parts_in_front_of_the_statement() -> None:
    p = program(Store(Y, (I,), call("exp", X[I]) + call("sqrt", call("exp", X[I]))))
    after = expand_math(p, NATIVE)
    assert calls(after) <= NATIVE
    close(p, after)
    names = [s.var.name for s in walk_stmts(after.body) if isinstance(s, Let)]
    assert len(names) == len(set(names))
    # exp(x) is written once.
    bitcasts = [1 for s in walk_stmts(after.body) if isinstance(s, Let) and "bitcast" in str(s.value)]
    assert len(bitcasts) == 1


def test_pass_leaves_what_the_target_has() -> None:
    p = program(Store(Y, (I,), call("exp", X[I])))
    assert expand_math(p, frozenset({"exp"})) is p


def test_nested_calls_grow_linearly() -> None:
    e: Expr = X[I]
    for _ in range(12):
        e = call("sin", e)
    after = expand_math(program(Store(Y, (I,), e)), NATIVE)
    assert sum(1 for s in walk_stmts(after.body) for x in stmt_exprs(s) for _ in walk(x)) < 12 * 200


def test_pass_in_conditions_and_loops() -> None:
    v = buffer("v", (1,), dt.float32, "register")
    halve = While(const(1.5) < call("exp", v[0]), Store(v, (int64(0),), v[0] * 0.5))
    from weft.loop.nodes import Allocate, Seq

    body = Allocate(
        v,
        Seq(
            (
                Store(v, (int64(0),), X[I]),
                halve,
                If(call("sin", X[I]) < 0.0, Store(Y, (I,), v[0]), Store(Y, (I,), call("cosh", v[0]))),
            )
        ),
    )
    p = program(body)
    after = expand_math(p, NATIVE)
    assert calls(after) <= NATIVE
    close(p, after)


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_narrow_floats_are_computed_in_float32(dtype: dt.DType) -> None:
    x, y = buffer("x", (8,), dtype), buffer("y", (8,), dtype)
    p = Program("p", (x,), (y,), (), For(I, int64(8), Store(y, (I,), call("tanh", x[I]))))
    after = expand_math(p, NATIVE)
    values = np.linspace(-2, 3, 8).astype(dtype.numpy)
    well_formed(after)
    np.testing.assert_array_equal(
        interpret(after, {"x": values})["y"], np.tanh(values.astype(np.float32)).astype(dtype.numpy)
    )


def test_messages() -> None:
    with pytest.raises(LoopError) as error:
        expand_math(program(Store(Y, (I,), call("sqrt", X[I]))), frozenset())
    assert "the target has no function 'sqrt' of float32" in str(error.value)
    assert "why: there is no formula for it either" in str(error.value)
    z = buffer("z", (8,), dt.complex64)
    with pytest.raises(LoopError, match="no function 'exp' of complex64") as error:
        expand_math(program(Store(z, (I,), call("exp", z[I]))), frozenset())
    assert "why: its formula is for floats" in str(error.value)


def stores(shift: int, source: str = "x") -> Program:
    """y[i] = exp(source[i + shift]) for i = 0 … 5, written out."""
    x, y = buffer("x", (int64(8),), dt.float32), buffer("y", (int64(8),), dt.float32)
    read = x if source == "x" else y
    body = seq(*(Store(y, (int64(i),), call("exp", Load(read, (int64(i + shift),)))) for i in range(6)))
    return Program("p", (x,), (y,), (), body)


def test_formulas_of_neighbouring_stores_are_computed_in_turn() -> None:
    after = expand_math(stores(2), NATIVE)
    data = np.linspace(-3, 3, 8, dtype=np.float32)
    np.testing.assert_allclose(interpret(after, {"x": data})["y"][:6], np.exp(data[2:]), rtol=1e-6)
    order = [s for s in walk_stmts(after.body) if isinstance(s, (Let, Store))]
    steps = next(k for k, s in enumerate(order) if isinstance(s, Store))
    # Four chains before the first store, step by step: the loads of all four come first.
    assert [any(isinstance(n, Load) for n in walk(s.value)) for s in order[:steps]][:5] == [True] * 4 + [False]
    assert [isinstance(s, Store) for s in order[steps : steps + 5]] == [True] * 4 + [False]


def test_stores_that_read_what_others_write_stay_in_order() -> None:
    after = expand_math(stores(1, source="y"), NATIVE)
    written = [isinstance(s, Store) for s in walk_stmts(after.body) if isinstance(s, (Let, Store))]
    assert not any(a and b for a, b in pairwise(written))
