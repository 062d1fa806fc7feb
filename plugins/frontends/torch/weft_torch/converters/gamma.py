"""The incomplete gamma functions, Hurwitz' zeta function, quantiles, and the parts of floating-point numbers."""

from __future__ import annotations

import math
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.converters.repeating import repeated
from weft_torch.converters.special import erfc_of, in_float64, log_gamma, polynomial, when
from weft_torch.registry import op

TERMS = 2000
"""Of a series at most."""
EPSILON = 1e-16


def _pair(c: Context, x: Any, y: Any) -> tuple[Value, Value]:
    """Two operands in float64, of the result's shape."""
    dtype, shape = c.result_dtype(), c.result_shape()
    a, b = (c.broadcast(c.cast(c.to(v, dtype), dt.float64), shape) for v in (x, y))
    return a, b


def _any(c: Context, condition: Value) -> Value:
    return c(ops.Greater(), c(ops.ReduceSum(None, False), c.cast(condition, dt.int64)), 0)


def _lower_series(c: Context, a: Value, x: Value) -> Value:
    """Σ x^k / (a + 1) … (a + k), for x up to a or 1."""
    one = c(ops.Fill(dt.float64, x.shape, 1))

    def more(c: Context, values: list[Value]) -> Value:
        k, term, total, *_ = values
        going = c(ops.Greater(), term, c.mul(total, EPSILON))
        return c(ops.LogicalAnd(), _any(c, going), c(ops.Less(), k, float(TERMS)))

    def step(c: Context, values: list[Value]) -> list[Value]:
        k, term, total, a, x = values
        term = c.mul(term, c.div(x, c.add(a, k)))
        return [c.add(k, 1.0), term, c.add(total, term)]

    return repeated(c, [c.number(1.0, dt.float64), one, one], more, step, (a, x))[2]


def _upper_fraction(c: Context, a: Value, x: Value) -> Value:
    """The continued fraction of Γ(a, x), by Lentz' method, for x above a and 1."""
    tiny = 1e-300
    b = c.add(c.sub(x, a), 1.0)
    d = c.div(1.0, b)

    def more(c: Context, values: list[Value]) -> Value:
        k, _, _, _, factor, *_ = values
        far = c(ops.Greater(), c(ops.Absolute(), c.sub(factor, 1.0)), 2 * EPSILON)
        return c(ops.LogicalAnd(), _any(c, far), c(ops.Less(), k, float(TERMS)))

    def step(c: Context, values: list[Value]) -> list[Value]:
        k, upper, lower, total, _, a, x = values
        an = c.mul(k, c.sub(a, k))
        b = c.add(c.add(c.sub(x, a), 1.0), c.mul(k, 2.0))
        lower = c.add(c.mul(an, lower), b)
        lower = c.div(1.0, when(c, c(ops.Equal(), lower, 0.0), tiny, lower))
        upper = c.add(b, c.div(an, upper))
        upper = when(c, c(ops.Equal(), upper, 0.0), tiny, upper)
        factor = c.mul(upper, lower)
        return [c.add(k, 1.0), upper, lower, c.mul(total, factor), factor]

    first = [c.number(1.0, dt.float64), c(ops.Fill(dt.float64, x.shape, 1 / tiny)), d, d, c.mul(d, 0.0)]
    return repeated(c, first, more, step, (a, x))[3]


@op("aten.igamma", "aten.igammac", "prims.igamma", "prims.igammac", "aten.special_gammainc", "aten.special_gammaincc")
def incomplete_gamma(c: Context, a: Value, x: Value) -> Value:
    upper = c.op_type.endswith(("igammac", "gammaincc"))
    a, x = _pair(c, a, x)
    inside = c(ops.LogicalAnd(), c(ops.Greater(), a, 0.0), c(ops.Greater(), x, 0.0))
    finite = c(ops.LogicalNot(), c(ops.LogicalOr(), c(ops.IsInf(), a), c(ops.IsInf(), x)))
    inside = c(ops.LogicalAnd(), inside, finite)
    s, t = when(c, inside, a, 1.0), when(c, inside, x, 1.0)
    power = c(ops.Exp(), c.sub(c.sub(c.mul(s, c(ops.Log(), t)), t), log_gamma(c, s)))
    low = c(ops.LogicalOr(), c(ops.LessEqual(), t, 1.0), c(ops.LessEqual(), t, s))
    below = c.div(c.mul(power, _lower_series(c, s, when(c, low, t, 0.0))), s)
    above = c.mul(power, _upper_fraction(c, when(c, low, 1.0, s), when(c, low, 2.0, t)))
    found = when(c, low, c.sub(1.0, below), above) if upper else when(c, low, below, c.sub(1.0, above))
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
    found = when(c, c(ops.Equal(), x, 0.0), zero, found)
    found = when(c, c(ops.Equal(), a, 0.0), when(c, c(ops.Greater(), x, 0.0), one, math.nan), found)
    endless = c(ops.IsInf(), x)
    found = when(c, endless, one, found)
    found = when(c, c(ops.IsInf(), a), when(c, endless, math.nan, zero), found)
    wrong = c(ops.LogicalOr(), c(ops.Less(), a, 0.0), c(ops.Less(), x, 0.0))
    either = c(ops.LogicalOr(), c(ops.IsNan(), a), c(ops.IsNan(), x))
    return c.cast(when(c, c(ops.LogicalOr(), wrong, either), math.nan, found), c.result_dtype())


ZETA = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
"""Of Euler and Maclaurin's formula."""


@op("aten.special_zeta", "prims.zeta")
def zeta(c: Context, x: Value, q: Value) -> Value:
    """Σ (k + q)^-x: the first terms, then Euler and Maclaurin's formula from a base above 9 on."""
    x, q = _pair(c, x, q)
    whole = c(ops.Equal(), c(ops.Floor(), q), q)
    pole = c(ops.LogicalAnd(), whole, c(ops.LessEqual(), q, 0.0))
    broken = c(ops.LogicalNot(), c(ops.Equal(), c(ops.Floor(), x), x))
    wrong = c(ops.LogicalAnd(), c(ops.LessEqual(), q, 0.0), broken)
    fine = c(ops.LogicalAnd(), c(ops.Greater(), x, 1.0), c(ops.LogicalNot(), c(ops.LogicalOr(), pole, wrong)))
    fine = c(ops.LogicalAnd(), fine, c(ops.Greater(), q, -1e6))
    s, base = when(c, fine, x, 2.0), when(c, fine, q, 1.0)
    zero = c(ops.Fill(dt.float64, s.shape, 0))

    def more(c: Context, values: list[Value]) -> Value:
        return _any(c, c(ops.LessEqual(), values[0], 10.0))

    def step(c: Context, values: list[Value]) -> list[Value]:
        at, total, s = values
        going = c(ops.LessEqual(), at, 10.0)
        term = c(ops.Power(), when(c, going, at, 1.0), c(ops.Negative(), s))
        return [when(c, going, c.add(at, 1.0), at), when(c, going, c.add(total, term), total)]

    at, total = repeated(c, [base, zero], more, step, (s,))
    power = c(ops.Power(), at, c(ops.Negative(), s))
    found = c.add(total, c.add(c.div(c.mul(power, at), c.sub(s, 1.0)), c.mul(power, 0.5)))
    factor = c.div(c.mul(power, s), at)
    for k, coefficient in enumerate(ZETA):
        found = c.add(found, c.mul(factor, coefficient))
        rising = c.mul(c.add(s, 2.0 * k + 1), c.add(s, 2.0 * k + 2))
        factor = c.div(c.mul(factor, rising), c.mul(at, at))
    found = when(c, fine, found, math.nan)
    found = when(c, c(ops.LogicalAnd(), pole, c(ops.Greater(), x, 1.0)), math.inf, found)
    return c.cast(when(c, c(ops.Equal(), x, 1.0), math.inf, found), c.result_dtype())


@op("aten.special_ndtri", "prims.ndtri")
@in_float64
def quantile(c: Context, p: Value) -> Value:
    """Of the normal distribution: an approximation of its tail, corrected by Newton's method on the logarithm."""
    high = c(ops.Greater(), p, 0.5)
    tail = when(c, high, c.sub(1.0, p), p)
    inside = c(ops.Greater(), tail, 0.0)
    tail = when(c, inside, tail, 0.5)
    t = c(ops.Sqrt(), c.mul(c(ops.Log(), tail), -2.0))
    above = polynomial(c, t, (0.010328, 0.802853, 2.515517))
    x = c.sub(t, c.div(above, polynomial(c, t, (0.001308, 0.189269, 1.432788, 1.0))))
    for _ in range(4):
        area = c.mul(erfc_of(c, c.mul(x, math.sqrt(0.5))), 0.5)
        density = c.div(c(ops.Exp(), c.mul(c.mul(x, x), -0.5)), math.sqrt(2 * math.pi))
        x = c.add(x, c.mul(c.div(area, density), c(ops.Log(), c.div(area, tail))))
    found = c(ops.Where(), high, x, c(ops.Negative(), x))
    found = when(c, c(ops.Equal(), p, 0.0), -math.inf, when(c, c(ops.Equal(), p, 1.0), math.inf, found))
    outside = c(ops.LogicalOr(), c(ops.Less(), p, 0.0), c(ops.Greater(), p, 1.0))
    return when(c, c(ops.LogicalOr(), outside, c(ops.IsNan(), p)), math.nan, found)


@op("aten.frexp.Tensor", "prims.frexp")
def frexp(c: Context, x: Value) -> tuple[Value, Value]:
    """By the bits of float64; what is tiny there is scaled first."""
    wide = c.cast(x, dt.float64)
    tiny = c(ops.Less(), c(ops.Absolute(), wide), 2.0**-1000)
    y = when(c, tiny, c.mul(wide, 2.0**64), wide)
    bits = c(ops.Bitcast(dt.int64), y)
    exponent = c(ops.BitwiseAnd(), c(ops.RightShift(), bits, c.number(52, dt.int64)), c.number(0x7FF, dt.int64))
    other = c(ops.LogicalOr(), c(ops.Equal(), y, 0.0), c(ops.LogicalOr(), c(ops.IsInf(), y), c(ops.IsNan(), y)))
    shift = c(ops.Where(), tiny, c.number(1022 + 64, dt.int64), c.number(1022, dt.int64))
    power = c(ops.Where(), other, c.number(0, dt.int64), c.sub(exponent, shift))
    # The quotient is exact, and has the gradient that bits have not.
    whole = c(ops.Bitcast(dt.float64), c(ops.BitwiseAnd(), bits, c.number(0x7FF << 52, dt.int64)))
    mantissa = c.mul(c.div(y, when(c, other, 1.0, whole)), 0.5)
    return c.cast(when(c, other, wide, mantissa), x.dtype), c.cast(power, dt.int32)


@op("aten.nextafter", "prims.nextafter")
def nextafter(c: Context, x: Value, y: Value) -> Value:
    """The next number is the next integer, by bits. It has the gradient of x, as in PyTorch, where it is not y."""
    dtype, shape = c.result_dtype(), c.result_shape()
    x, y = (c.broadcast(c.to(v, dtype), shape) for v in (x, y))
    whole = {16: dt.int16, 32: dt.int32, 64: dt.int64}[dtype.bits]
    bits = c(ops.Bitcast(whole), x)
    one = c.number(1, whole)
    outward = c(ops.Equal(), c(ops.Greater(), y, x), c(ops.Greater(), x, 0.0))
    moved = c(ops.Where(), outward, c.add(bits, one), c.sub(bits, one))
    smallest = c.number(float(dtype.numpy.type(0) + 2.0 ** {16: -24, 32: -149, 64: -1074}[dtype.bits]), dtype)
    from_zero = c(ops.Where(), c(ops.Greater(), y, 0.0), smallest, c(ops.Negative(), smallest))
    found = c(ops.Where(), c(ops.Equal(), x, 0.0), from_zero, c(ops.Bitcast(dtype), moved))
    same, held_x, held_y = c(ops.Equal(), x, y), *(c(ops.Bitcast(dtype), c(ops.Bitcast(whole), v)) for v in (x, y))
    found = c(ops.Where(), same, held_y, found)
    either = c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsNan(), y))
    found = c(ops.Where(), either, c.number(math.nan, dtype), found)
    # Through bits no gradient passes: it takes the way of a difference that is 0.
    moves = c(ops.LogicalAnd(), c(ops.Less(), c(ops.Absolute(), x), math.inf), c(ops.LogicalNot(), same))
    return c.sub(found, c(ops.Where(), moves, c.sub(held_x, x), 0.0))


__all__ = ["frexp", "nextafter"]
