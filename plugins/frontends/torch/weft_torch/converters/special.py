"""Special functions, computed in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.registry import op

LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Coefficients of Lanczos' approximation of the gamma function, of g 7."""
BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Of the asymptotic series of digamma."""
DEPTH = 60
"""Terms of the continued fraction of erfcx, from 2 on."""


def in_float64(function: Callable[[Context, Value], Value]) -> Callable[[Context, Value], Value]:
    """A converter of one operand that computes in float64."""

    def convert(c: Context, x: Value) -> Value:
        dtype = c.result_dtype()
        return c.cast(function(c, c.cast(c.cast(x, dtype), dt.float64)), dtype)

    return convert


def when(c: Context, condition: Value, x: Value | float, y: Value | float) -> Value:
    """x where the condition holds, else y; numbers are float64."""
    a, b = (v if isinstance(v, Value) else c.number(v, dt.float64) for v in (x, y))
    return c(ops.Where(), condition, a, b)


def magnitude(c: Context, x: Value) -> Value:
    """|x|, which at 0 has the gradient of x: for functions that are continued from there as even or odd ones."""
    return c(ops.Where(), c(ops.Less(), x, 0.0), c(ops.Negative(), x), x)


def up_to(c: Context, x: Value, bound: float) -> Value:
    """The lesser of x and a bound, with the gradient of x at the bound: for a formula that holds there."""
    return when(c, c(ops.Greater(), x, bound), bound, x)


def beyond(c: Context, x: Value, bound: float) -> Value:
    """x where it is greater than a bound, else the bound: for a formula that is taken above it."""
    return when(c, c(ops.Greater(), x, bound), x, bound)


def polynomial(c: Context, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, the highest power first."""
    found = c.number(coefficients[0], dt.float64)
    for k in coefficients[1:]:
        found = c.add(c.mul(found, x), k)
    return found


def _sin_pi(c: Context, x: Value) -> Value:
    """sin(πx), of x reduced first."""
    rest = c.sub(x, c.mul(c(ops.Round(), c.mul(x, 0.5)), 2.0))
    return c(ops.Sin(), c.mul(rest, math.pi))


def log_gamma(c: Context, x: Value) -> Value:
    """log |Γ(x)|: Lanczos, reflected below 1/2."""
    low = c(ops.Less(), x, 0.5)
    y = c.sub(when(c, low, c.sub(1.0, x), x), 1.0)
    total = c.number(LANCZOS[0], dt.float64)
    for k, coefficient in enumerate(LANCZOS[1:], 1):
        total = c.add(total, c.div(coefficient, c.add(y, float(k))))
    t = c.add(y, 7.5)
    log = c.sub(c.mul(c.add(y, 0.5), c(ops.Log(), t)), t)
    upper = c.add(c.add(log, 0.5 * math.log(2 * math.pi)), c(ops.Log(), total))
    lower = c.sub(c.sub(math.log(math.pi), c(ops.Log(), c(ops.Absolute(), _sin_pi(c, when(c, low, x, 0.25))))), upper)
    whole = c(ops.LogicalAnd(), c(ops.LessEqual(), x, 0.0), c(ops.Equal(), c(ops.Floor(), x), x))
    found = when(c, low, lower, upper)
    return when(c, c(ops.LogicalOr(), whole, c(ops.IsInf(), x)), math.inf, found)


op("aten.lgamma", "prims.lgamma")(in_float64(log_gamma))


@op("aten.digamma", "prims.digamma")
@in_float64
def digamma(c: Context, x: Value) -> Value:
    """The logarithmic derivative of Γ: its asymptotic series from 10 on, reflected below 0."""
    low = c(ops.Less(), x, 0.0)
    y = when(c, low, c.sub(1.0, x), x)
    sums = c.number(0.0, dt.float64)
    for k in range(10):
        sums = c.add(sums, c.div(1.0, c.add(y, float(k))))
    z = c.add(y, 10.0)
    square = c.div(1.0, c.mul(z, z))
    series = c.mul(polynomial(c, square, tuple(reversed(BERNOULLI))), square)
    upper = c.sub(c.sub(c.sub(c(ops.Log(), z), c.div(0.5, z)), series), sums)
    rest = when(c, low, c.sub(x, c(ops.Round(), x)), 0.25)
    lower = c.sub(upper, c.div(math.pi, c(ops.Tan(), c.mul(rest, math.pi))))
    found = when(c, low, lower, upper)
    whole = c(ops.LogicalAnd(), low, c(ops.Equal(), c(ops.Floor(), x), x))
    zero = c(ops.Equal(), x, 0.0)
    return when(c, zero, c(ops.Negative(), c.div(1.0, x)), when(c, whole, math.nan, found))


@op("aten.polygamma")
def polygamma(c: Context, order: int, x: Value) -> Value:
    if order == 0:
        return digamma(c, x)
    if order > 1:
        raise c.unsupported(f"order {order}")
    return trigamma(c, x)


@in_float64
def trigamma(c: Context, x: Value) -> Value:
    low = c(ops.Less(), x, 0.5)
    y = when(c, low, c.sub(1.0, x), x)
    sums = c.number(0.0, dt.float64)
    for k in range(10):
        at = c.add(y, float(k))
        sums = c.add(sums, c.div(1.0, c.mul(at, at)))
    z = c.add(y, 10.0)
    square = c.div(1.0, c.mul(z, z))
    series = polynomial(c, square, (5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6))
    tail = c.add(c.add(c.div(1.0, z), c.mul(square, 0.5)), c.mul(c.div(square, z), series))
    upper = c.add(sums, tail)
    sine = _sin_pi(c, when(c, low, x, 0.25))
    return when(c, low, c.sub(c.div(math.pi**2, c.mul(sine, sine)), upper), upper)


def _scaled_erfc(c: Context, x: Value) -> Value:
    """erfc(x) · e^(x²) for x of 2 or more: a continued fraction."""
    found = x
    for k in range(DEPTH, 0, -1):
        found = c.add(x, c.div(k / 2, found))
    return c.div(1 / math.sqrt(math.pi), found)


def erfc_of(c: Context, x: Value) -> Value:
    far = c(ops.Greater(), x, 2.0)
    y = beyond(c, x, 2.0)
    tail = c.mul(_scaled_erfc(c, y), c(ops.Exp(), c(ops.Negative(), c.mul(y, y))))
    return when(c, c(ops.IsNan(), x), x, when(c, far, tail, c.sub(1.0, c(ops.Erf(), x))))


op("aten.erfc")(in_float64(erfc_of))


@op("aten.special_erfcx", "prims.erfcx")
@in_float64
def erfcx(c: Context, x: Value) -> Value:
    y = up_to(c, x, 2.0)
    near = c.mul(c(ops.Exp(), c.mul(y, y)), c.sub(1.0, c(ops.Erf(), y)))
    far = _scaled_erfc(c, beyond(c, x, 2.0))
    return when(c, c(ops.IsNan(), x), x, when(c, c(ops.Greater(), x, 2.0), far, near))


@op("aten.special_log_ndtr")
@in_float64
def log_ndtr(c: Context, x: Value) -> Value:
    """The logarithm of the normal distribution."""
    t = c.mul(x, math.sqrt(0.5))
    far = c(ops.Less(), t, -2.0)
    y = when(c, far, c(ops.Negative(), t), 2.0)
    low = c.sub(c(ops.Log(), c.mul(_scaled_erfc(c, y), 0.5)), c.mul(y, y))
    high = c(ops.Log1p(), c.mul(c.sub(1.0, c(ops.Erf(), when(c, far, 0.0, t))), -0.5))
    return when(c, far, low, high)


@op("aten.erfinv", "prims.erf_inv")
@in_float64
def erfinv(c: Context, x: Value) -> Value:
    """Winitzki's approximation, corrected by Newton's method."""
    tiny = c(ops.Less(), c(ops.Absolute(), x), 1e-8)
    size = when(c, tiny, 0.5, c(ops.Absolute(), x))
    rest = c(ops.Log(), c.mul(c.sub(1.0, size), c.add(size, 1.0)))
    a = 0.147
    first = c.add(c.mul(rest, 0.5), 2 / (math.pi * a))
    y = c(ops.Sqrt(), c.sub(c(ops.Sqrt(), c.sub(c.mul(first, first), c.div(rest, a))), first))
    for _ in range(4):
        error = c.sub(c(ops.Erf(), y), size)
        slope = c.mul(c(ops.Exp(), c(ops.Negative(), c.mul(y, y))), 2 / math.sqrt(math.pi))
        step = c.div(error, slope)
        y = c.sub(y, c.div(step, c.add(c.mul(y, step), 1.0)))
    y = when(c, c(ops.Equal(), size, 1.0), math.inf, when(c, c(ops.Greater(), size, 1.0), math.nan, y))
    y = when(c, c(ops.Less(), x, 0.0), c(ops.Negative(), y), y)
    return when(c, tiny, c.mul(x, math.sqrt(math.pi) / 2), y)


@op("aten.angle")
def angle(c: Context, x: Value) -> Value:
    dtype = c.result_dtype()
    y = c.cast(x, dtype)
    found = c(ops.Where(), c(ops.Less(), y, 0), c.number(math.pi, dtype), c.number(0, dtype))
    return c(ops.Where(), c(ops.IsNan(), y), y, found)


__all__ = ["beyond", "erfc_of", "in_float64", "log_gamma", "magnitude", "polynomial", "up_to", "when"]
