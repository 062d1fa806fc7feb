"""THE table of pure functions that a `Call` may name: meaning on numpy values and result dtype.

A target either declares a function as its own or lets the loop pass `expand_math` replace it by formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, nearest, shown
from weft.expr.nodes import Broadcast, Call, Const, Expr, ExprLike, wrap


@dataclass(frozen=True)
class Function:
    """A pure function: `evaluate` maps numpy values (of the arguments' dtype) to the result."""

    name: str
    arity: int
    evaluate: Callable[..., Any]
    result: str = "same"  # "same" as the first argument, or "bool"


def _erf(x: Any) -> Any:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, np.float64)).astype(np.asarray(x).dtype)


def _popcount(x: Any) -> Any:
    x = np.asarray(x)  # numpy counts the bits of |x|; ours are those of the word
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x)


def _fma(a: Any, b: Any, c: Any) -> Any:
    if np.asarray(a).dtype != np.float64:
        with np.errstate(over="ignore"):
            return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(
                np.asarray(a).dtype
            )
    # The product as two numbers (Dekker), the sum as two numbers (Knuth): one rounding, as the hardware's.
    with np.errstate(all="ignore"):
        p, s = a * b, a * b + c
        a1, b1 = (lambda t: t - (t - a))(a * 134217729.0), (lambda t: t - (t - b))(b * 134217729.0)
        a2, b2 = a - a1, b - b1
        lost = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
        back = s - p
        result = s + (lost + ((p - (s - back)) + (c - back)))
        return np.where(np.isfinite(result) & (result != 0), result, s)[()]  # a zero keeps its sign


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("exp", 1, np.exp),
        Function("exp2", 1, np.exp2),
        Function("expm1", 1, np.expm1),
        Function("log", 1, np.log),
        Function("log2", 1, np.log2),
        Function("log1p", 1, np.log1p),
        Function("sin", 1, np.sin),
        Function("cos", 1, np.cos),
        Function("tan", 1, np.tan),
        Function("asin", 1, np.arcsin),
        Function("acos", 1, np.arccos),
        Function("atan", 1, np.arctan),
        Function("sinh", 1, np.sinh),
        Function("cosh", 1, np.cosh),
        Function("tanh", 1, np.tanh),
        Function("asinh", 1, np.arcsinh),
        Function("acosh", 1, np.arccosh),
        Function("atanh", 1, np.arctanh),
        Function("erf", 1, _erf),
        Function("pow", 2, np.power),
        Function("sqrt", 1, np.sqrt),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("trunc", 1, np.trunc),
        Function("round", 1, np.rint),  # half to even
        Function("abs", 1, np.abs),
        Function("copysign", 2, np.copysign),
        Function("isnan", 1, np.isnan, "bool"),
        Function("isinf", 1, np.isinf, "bool"),
        Function("fma", 3, _fma),  # one rounding
        Function("popcount", 1, _popcount),
    )
}
"""Name → function, of all that a `Call` may name."""


def call(name: str, *args: ExprLike) -> Expr:
    """The formula name(args); numbers take the dtype of the first formula among the arguments.

    Raises:
        ExprError: unknown name, wrong number of arguments, or arguments of different dtypes.
    """
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        close = nearest(name, FUNCTIONS) if isinstance(name, str) else None
        raise ExprError(f"unknown function {shown(repr(name), 80)}", hint=f"did you mean '{close}'?" if close else None)
    if len(args) != function.arity:
        raise ExprError(f"{name} takes {function.arity} argument(s), got {len(args)}")
    like = next((a.dtype for a in args if isinstance(a, Expr)), dt.float32)
    exprs = [wrap(a, like) for a in args]
    lanes = max(e.dtype.lanes for e in exprs)
    exprs = [Broadcast(e, lanes) if e.dtype.lanes != lanes else e for e in exprs]
    if any(e.dtype != exprs[0].dtype for e in exprs):
        raise ExprError(f"the arguments of {name} differ in dtype: " + ", ".join(str(e.dtype) for e in exprs))
    dtype: DType = dt.bool_.with_lanes(lanes) if function.result == "bool" else exprs[0].dtype
    if name == "abs" and isinstance(exprs[0], Const) and dtype.is_integer:
        return Const(abs(exprs[0].value), dtype)
    return Call(name, tuple(exprs), dtype)
