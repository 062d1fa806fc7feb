"""Bessel's functions and Airy's, in float64: power series, integrals by quadrature, and asymptotic series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft_torch.context import Context
from weft_torch.converters.special import beyond, in_float64, magnitude, polynomial, up_to, when
from weft_torch.registry import op

EULER = 0.5772156649015329
FAR = 25.0
"""From here on the asymptotic series are used."""
NODES = 96
"""Of a quadrature."""


def _harmonic(k: int) -> float:
    return sum(1.0 / j for j in range(1, k + 1))


def _integral(c: Context, x: Value, terms: Callable[[Value], Value], weights: Array) -> Value:
    """The sum over the last axis of what `terms` makes of x with a last axis of 1."""
    wide = terms(c.reshape(x, (*x.shape, 1)))
    return c(ops.ReduceSum((-1,), False), c.mul(wide, c.builder.constant(weights)))


def _gauss(low: float, high: float) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (high - low) / 2 * nodes + (high + low) / 2, (high - low) / 2 * weights


def _hankel(order: float, count: int) -> list[float]:
    """Coefficients of the asymptotic series, of 1 / x to the power k."""
    found = [1.0]
    for k in range(1, count):
        found.append(found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _asymptotic(c: Context, x: Value, coefficients: Sequence[float]) -> Value:
    return polynomial(c, c.div(1.0, x), tuple(reversed(coefficients)))


def _waves(c: Context, order: int, x: Value) -> tuple[Value, Value]:
    """J and Y of large x."""
    a = _hankel(order, 16)
    even = [v * (-1) ** (k // 2) if k % 2 == 0 else 0.0 for k, v in enumerate(a)]
    odd = [v * (-1) ** (k // 2) if k % 2 else 0.0 for k, v in enumerate(a)]
    p, q = _asymptotic(c, x, even), _asymptotic(c, x, odd)
    angle = c.sub(x, (order / 2 + 0.25) * math.pi)
    size = c(ops.Sqrt(), c.div(2 / math.pi, x))
    sine, cosine = c(ops.Sin(), angle), c(ops.Cos(), angle)
    return (
        c.mul(size, c.sub(c.mul(p, cosine), c.mul(q, sine))),
        c.mul(size, c.add(c.mul(p, sine), c.mul(q, cosine))),
    )


def _oscillating(c: Context, order: int, x: Value) -> Value:
    """J of x of 0 or more."""
    near, far = up_to(c, x, FAR), beyond(c, x, FAR)
    angles = np.pi * (np.arange(NODES) + 0.5) / NODES
    sines = c.builder.constant(np.sin(angles))
    turned = c.builder.constant(order * angles)
    found = _integral(
        c, near, lambda y: c(ops.Cos(), c.sub(turned, c.mul(y, sines))), np.full(NODES, 1.0 / NODES)
    )  # fmt: skip
    found = when(c, c(ops.Greater(), x, FAR), _waves(c, order, far)[0], found)
    return when(c, c(ops.IsInf(), x), math.nan, found)


def _second(c: Context, order: int, x: Value) -> Value:
    """Y of x above 0."""
    near = c(ops.Less(), x, 1.0)
    small, middle, far = when(c, near, x, 1.0), up_to(c, when(c, near, 1.0, x), FAR), beyond(c, x, FAR)
    # A power series up to 1.
    square, log = c.mul(c.mul(small, small), 0.25), c(ops.Log(), c.mul(small, 0.5))
    j = _oscillating(c, order, small)
    signs = [(-1) ** k / math.factorial(k) / math.factorial(k + order) for k in range(12)]
    if order == 0:
        series = [-_harmonic(k) * v for k, v in enumerate(signs)]
        rest = c.mul(polynomial(c, square, tuple(reversed(series))), 2 / math.pi)
        low = c.add(c.mul(c.mul(c.add(log, EULER), j), 2 / math.pi), rest)
    else:
        series = [v * (_harmonic(k) + _harmonic(k + 1) - 2 * EULER) for k, v in enumerate(signs)]
        rest = c.mul(c.mul(polynomial(c, square, tuple(reversed(series))), small), 0.5 / math.pi)
        low = c.sub(c.sub(c.mul(c.mul(log, j), 2 / math.pi), rest), c.div(2 / math.pi, small))
    # Integrals up to FAR.
    angles, weights = _gauss(0.0, math.pi)
    sines, turned = c.builder.constant(np.sin(angles)), c.builder.constant(order * angles)
    first = _integral(c, middle, lambda y: c(ops.Sin(), c.sub(c.mul(y, sines), turned)), weights / math.pi)
    times, weights = _gauss(0.0, 7.5)
    weights = weights * (np.exp(order * times) + (-1) ** order * np.exp(-order * times)) / math.pi
    steep = c.builder.constant(-np.sinh(times))
    second = _integral(c, middle, lambda y: c(ops.Exp(), c.mul(y, steep)), weights)
    found = when(c, c(ops.Greater(), x, FAR), _waves(c, order, far)[1], c.sub(first, second))
    return when(c, near, low, found)


def _growing(c: Context, order: int, x: Value) -> Value:
    """I · e^-x of x of 0 or more."""
    near, far = up_to(c, x, 2 * FAR), beyond(c, x, 2 * FAR)
    angles = np.pi * (np.arange(NODES) + 0.5) / NODES
    rates = c.builder.constant(np.cos(angles) - 1.0)
    found = _integral(c, near, lambda y: c(ops.Exp(), c.mul(y, rates)), np.cos(order * angles) / NODES)
    a = [v * (-1) ** k for k, v in enumerate(_hankel(order, 12))]
    upper = c.div(_asymptotic(c, far, a), c(ops.Sqrt(), c.mul(far, 2 * math.pi)))
    return when(c, c(ops.Greater(), x, 2 * FAR), upper, found)


def _falling(c: Context, order: float, x: Value) -> Value:
    """K · e^x of x of 1 or more."""
    near, far = up_to(c, x, FAR), beyond(c, x, FAR)
    times, weights = _gauss(0.0, 4.5)
    rates = c.builder.constant(1.0 - np.cosh(times))
    found = _integral(c, near, lambda y: c(ops.Exp(), c.mul(y, rates)), weights * np.cosh(order * times))
    upper = c.mul(_asymptotic(c, far, _hankel(order, 14)), c(ops.Sqrt(), c.div(math.pi / 2, far)))
    return when(c, c(ops.Greater(), x, FAR), upper, found)


def _falling_near_zero(c: Context, order: int, x: Value) -> Value:
    """K of x up to 1: a power series."""
    square, log = c.mul(c.mul(x, x), 0.25), c(ops.Log(), c.mul(x, 0.5))
    terms = [1.0 / math.factorial(k) / math.factorial(k + order) for k in range(12)]
    i = polynomial(c, square, tuple(reversed(terms)))
    if order == 0:
        series = [v * _harmonic(k) for k, v in enumerate(terms)]
        return c.sub(polynomial(c, square, tuple(reversed(series))), c.mul(c.add(log, EULER), i))
    series = [v * (_harmonic(k) + _harmonic(k + 1) - 2 * EULER) for k, v in enumerate(terms)]
    rest = c.mul(c.mul(polynomial(c, square, tuple(reversed(series))), x), 0.25)
    return c.sub(c.add(c.div(1.0, x), c.mul(c.mul(log, i), c.mul(x, 0.5))), rest)


def _signed(c: Context, order: int, x: Value, found: Value) -> Value:
    """Odd orders are odd functions."""
    return c(ops.Where(), c(ops.Less(), x, 0.0), c(ops.Negative(), found), found) if order else found


def _register_j(order: int) -> None:
    @op(f"aten.special_bessel_j{order}", f"prims.bessel_j{order}")
    @in_float64
    def j(c: Context, x: Value) -> Value:
        return _signed(c, order, x, _oscillating(c, order, magnitude(c, x)))

    @op(f"aten.special_bessel_y{order}")
    @in_float64
    def y(c: Context, x: Value) -> Value:
        found = when(c, c(ops.IsInf(), x), math.nan, _second(c, order, x))
        found = when(c, c(ops.Equal(), x, 0.0), -math.inf, found)
        return when(c, c(ops.Less(), x, 0.0), math.nan, found)


def _register_i(order: int) -> None:
    @op(f"aten.special_i{order}e", f"prims.bessel_i{order}e")
    @in_float64
    def scaled(c: Context, x: Value) -> Value:
        size = magnitude(c, x) if order else c(ops.Absolute(), x)  # of order 0 there is a corner at 0
        return _signed(c, order, x, _growing(c, order, size))

    plain = "aten.i0" if order == 0 else "aten.special_i1"

    @op(plain, f"prims.bessel_i{order}", f"aten.special_modified_bessel_i{order}")
    @in_float64
    def i(c: Context, x: Value) -> Value:
        size = magnitude(c, x)
        half = c(ops.Exp(), c.mul(size, 0.5))  # the whole power overflows before the product does
        return _signed(c, order, x, c.mul(c.mul(_growing(c, order, size), half), half))


def _register_k(order: int) -> None:
    def both(c: Context, x: Value, scaled: bool) -> Value:
        above = _falling(c, order, beyond(c, x, 1.0))
        below = _falling_near_zero(c, order, up_to(c, x, 1.0))
        if scaled:
            below = c.mul(below, c(ops.Exp(), up_to(c, x, 1.0)))
        else:
            above = c.mul(above, c(ops.Exp(), c(ops.Negative(), x)))
        found = when(c, c(ops.Greater(), x, 1.0), above, below)
        found = when(c, c(ops.Equal(), x, 0.0), math.inf, found)
        return when(c, c(ops.Less(), x, 0.0), math.nan, found)

    @op(f"aten.special_modified_bessel_k{order}")
    @in_float64
    def k(c: Context, x: Value) -> Value:
        return both(c, x, False)

    @op(f"aten.special_scaled_modified_bessel_k{order}")
    @in_float64
    def scaled_k(c: Context, x: Value) -> Value:
        return both(c, x, True)


for _order in (0, 1):
    _register_j(_order)
    _register_i(_order)
    _register_k(_order)


@op("aten.special_spherical_bessel_j0", "prims.spherical_bessel_j0")
@in_float64
def spherical(c: Context, x: Value) -> Value:
    small = c(ops.Less(), c(ops.Absolute(), x), 0.01)
    y = when(c, small, 1.0, x)
    square = c.mul(x, x)
    near = polynomial(c, square, (1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0))
    found = when(c, small, near, c.div(c(ops.Sin(), y), y))
    return when(c, c(ops.IsInf(), x), 0.0, found)


AIRY = (0.3550280538878172, 0.2588194037928068)
"""Ai(0) and -Ai'(0)."""
AIRY_SERIES = (-8.0, 2.0)
"""Where Maclaurin's series is used."""


@op("aten.special_airy_ai")
@in_float64
def airy(c: Context, x: Value) -> Value:
    low, high = AIRY_SERIES
    near = up_to(c, when(c, c(ops.Less(), x, low), low, x), high)
    cube = c.mul(c.mul(near, near), near)
    f, g = [1.0], [1.0]
    for k in range(1, 50):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / ((3 * k) * (3 * k + 1)))
    even = c.mul(polynomial(c, cube, f[::-1]), AIRY[0])
    odd = c.mul(c.mul(polynomial(c, cube, g[::-1]), near), AIRY[1])
    above = beyond(c, x, high)
    root = c(ops.Sqrt(), above)
    size = c.mul(c.mul(above, root), 2 / 3)
    decayed = c.mul(_falling(c, 1 / 3, size), c(ops.Exp(), c(ops.Negative(), size)))
    right = c.mul(c.mul(root, decayed), 1 / (math.pi * math.sqrt(3)))
    below = c(ops.Negative(), c(ops.Minimum(), x, low))
    root = c(ops.Sqrt(), below)
    size = c.mul(c.mul(below, root), 2 / 3)
    u = [abs(v) for v in _hankel(1 / 3, 12)]
    cosines = [v * (-1) ** (k // 2) if k % 2 == 0 else 0.0 for k, v in enumerate(u)]
    sines = [v * (-1) ** (k // 2) if k % 2 else 0.0 for k, v in enumerate(u)]
    angle = c.sub(size, math.pi / 4)
    wave = c.add(
        c.mul(c(ops.Cos(), angle), _asymptotic(c, size, cosines)),
        c.mul(c(ops.Sin(), angle), _asymptotic(c, size, sines)),
    )
    left = c.div(wave, c.mul(c(ops.Sqrt(), root), math.sqrt(math.pi)))
    found = when(c, c(ops.Greater(), x, high), right, c.sub(even, odd))
    found = when(c, c(ops.Less(), x, low), left, found)
    return when(c, c(ops.IsNan(), x), x, found)


__all__ = ["FAR"]
