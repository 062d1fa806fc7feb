"""Complex numbers as pairs of real ones: their parts are values of their own, so that every target computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.legalize import CHLO, COMPLEX, taken_apart
from weft_stablehlo.registry import op

Pair = tuple[Value, Value]


def function(c: Context, name: str) -> Any:
    """A function of complex numbers: by its definition, or by what StableHLO's expansion of it makes."""
    own = FUNCTIONS.get(name)
    if own is not None:
        found = own(c, *(c.pair(k) for k in range(c.count)))
        return Complex(found) if isinstance(found, tuple) else found
    return taken_apart(c, f"{CHLO},{COMPLEX}" if c.domain == "chlo" else COMPLEX)


def plus(c: Context, x: Pair, y: Pair) -> Pair:
    return c.add(x[0], y[0]), c.add(x[1], y[1])


def minus(c: Context, x: Pair, y: Pair) -> Pair:
    return c.sub(x[0], y[0]), c.sub(x[1], y[1])


def times(c: Context, x: Pair, y: Pair) -> Pair:
    return c.sub(c.mul(x[0], y[0]), c.mul(x[1], y[1])), c.add(c.mul(x[0], y[1]), c.mul(x[1], y[0]))


def over(c: Context, x: Pair, y: Pair) -> Pair:
    """By Smith's method: both parts of the divisor by the greater of them, so that no square overflows."""
    a, b = x
    re, im = y
    wide = c(ops.GreaterEqual(), c(ops.Absolute(), re), c(ops.Absolute(), im))
    big, small = c(ops.Where(), wide, re, im), c(ops.Where(), wide, im, re)
    ratio = c.div(small, big)
    below = c.add(big, c.mul(small, ratio))
    first = c(ops.Where(), wide, c.add(a, c.mul(b, ratio)), c.add(c.mul(a, ratio), b))
    second = c(ops.Where(), wide, c.sub(b, c.mul(a, ratio)), c.sub(c.mul(b, ratio), a))
    return c.div(first, below), c.div(second, below)


def size(c: Context, x: Pair) -> Value:
    """The absolute value, without squares that overflow."""
    a, b = c(ops.Absolute(), x[0]), c(ops.Absolute(), x[1])
    high, low = c(ops.Maximum(), a, b), c(ops.Minimum(), a, b)
    ratio = c(ops.Where(), c(ops.Equal(), high, low), c(ops.Minimum(), high, 1.0), c.div(low, high))
    found = c.mul(high, c(ops.Sqrt(), c.add(c.mul(ratio, ratio), 1.0)))
    infinite = c(ops.LogicalOr(), c(ops.IsInf(), a), c(ops.IsInf(), b))
    return c(ops.Where(), infinite, float("inf"), found)


def negative(c: Context, x: Pair) -> Pair:
    return c(ops.Negative(), x[0]), c(ops.Negative(), x[1])


def cosine(c: Context, x: Pair) -> Pair:
    re = c.mul(c(ops.Cos(), x[0]), c(ops.Cosh(), x[1]))
    return re, c(ops.Negative(), c.mul(c(ops.Sin(), x[0]), c(ops.Sinh(), x[1])))


def sine(c: Context, x: Pair) -> Pair:
    return c.mul(c(ops.Sin(), x[0]), c(ops.Cosh(), x[1])), c.mul(c(ops.Cos(), x[0]), c(ops.Sinh(), x[1]))


def exponential(c: Context, x: Pair) -> Pair:
    e = c(ops.Exp(), x[0])
    real = c(ops.Equal(), x[1], 0.0)
    return c.mul(e, c(ops.Cos(), x[1])), c(ops.Where(), real, x[1], c.mul(e, c(ops.Sin(), x[1])))


def expm1(c: Context, x: Pair) -> Pair:
    """exp(a) - 1 = expm1(a) · cos(b) - 2 · sin(b / 2)²."""
    half = c(ops.Sin(), c.mul(x[1], 0.5))
    re = c.sub(c.mul(c(ops.Expm1(), x[0]), c(ops.Cos(), x[1])), c.mul(c.mul(half, half), 2.0))
    return re, c.mul(c(ops.Exp(), x[0]), c(ops.Sin(), x[1]))


def tangent(c: Context, x: Pair) -> Pair:
    """tan(a + ib) = (tan a + i tanh b) / (1 - i tan a · tanh b)."""
    t, h = c(ops.Tan(), x[0]), c(ops.Tanh(), x[1])
    one = c.broadcast(c.number(1.0, t.dtype), t.shape)
    return over(c, (t, h), (one, c(ops.Negative(), c.mul(t, h))))


def hyperbolic_tangent(c: Context, x: Pair) -> Pair:
    """tanh(z) = -i · tan(i · z)."""
    re, im = tangent(c, (c(ops.Negative(), x[1]), x[0]))
    return im, c(ops.Negative(), re)


def logistic(c: Context, x: Pair) -> Pair:
    one = c.broadcast(c.number(1.0, x[0].dtype), x[0].shape)
    zero = c.broadcast(c.number(0.0, x[0].dtype), x[0].shape)
    return over(c, (one, zero), plus(c, (one, zero), exponential(c, negative(c, x))))


def logarithm(c: Context, x: Pair) -> Pair:
    from weft_stablehlo.converters.elementwise import angle

    return c(ops.Log(), size(c, x)), angle(c, x[1], x[0])


def power(c: Context, x: Pair, y: Pair) -> Pair:
    found = exponential(c, times(c, y, logarithm(c, x)))
    none = c(ops.LogicalAnd(), c(ops.Equal(), x[0], 0.0), c(ops.Equal(), x[1], 0.0))
    zero = c(ops.LogicalAnd(), c(ops.Equal(), y[0], 0.0), c(ops.Equal(), y[1], 0.0))
    re = c(ops.Where(), none, c(ops.Where(), zero, 1.0, c.mul(y[0], 0.0)), found[0])
    return re, c(ops.Where(), none, 0.0, found[1])


def root(c: Context, x: Pair) -> Pair:
    """The square root in the right half plane: of the part that does not cancel, and of the other by it."""
    from weft_stablehlo.converters.elementwise import signed

    above = c(ops.Sqrt(), c.mul(c.add(size(c, x), c(ops.Absolute(), x[0])), 0.5))
    none = c(ops.Equal(), above, 0.0)
    other = c(ops.Where(), none, 0.0, c.div(c.mul(c(ops.Absolute(), x[1]), 0.5), above))
    left = c(ops.Less(), x[0], 0.0)
    return c(ops.Where(), left, other, above), signed(c, c(ops.Where(), left, above, other), x[1])


def reciprocal_root(c: Context, x: Pair) -> Pair:
    one = c.broadcast(c.number(1.0, x[0].dtype), x[0].shape)
    zero = c.broadcast(c.number(0.0, x[0].dtype), x[0].shape)
    return over(c, (one, zero), root(c, x))


def unit(c: Context, x: Pair) -> Pair:
    length = size(c, x)
    none = c(ops.Equal(), length, 0.0)
    found = [c(ops.Where(), none, p, c.div(p, length)) for p in x]
    return found[0], found[1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": size,
    "add": plus,
    "cosine": cosine,
    "divide": over,
    "exponential": exponential,
    "exponential_minus_one": expm1,
    "logistic": logistic,
    "multiply": times,
    "negate": negative,
    "power": power,
    "rsqrt": reciprocal_root,
    "sign": unit,
    "sine": sine,
    "subtract": minus,
    "tan": tangent,
    "chlo.tan": tangent,
    "tanh": hyperbolic_tangent,
}


def compared(c: Context, direction: str) -> Value:
    x, y = c.pair(0), c.pair(1)
    if direction == "EQ":
        return c(ops.LogicalAnd(), c(ops.Equal(), x[0], y[0]), c(ops.Equal(), x[1], y[1]))
    if direction == "NE":
        return c(ops.LogicalOr(), c(ops.NotEqual(), x[0], y[0]), c(ops.NotEqual(), x[1], y[1]))
    raise c.unsupported(f"{direction} of complex numbers")


@op("real")
def real(c: Context) -> Value:
    return c.pair(0)[0] if c.is_complex(0) else c.value(0)


@op("imag")
def imag(c: Context) -> Value:
    if c.is_complex(0):
        return c.pair(0)[1]
    x = c.value(0)
    return c.broadcast(c.number(0, x.dtype), x.shape)


@op("complex")
def complex_(c: Context) -> Complex:
    return Complex([c.value(0), c.value(1)])
