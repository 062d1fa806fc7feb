"""Orthogonal polynomials, by their recurrences in float64."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.converters.repeating import repeated
from weft_torch.converters.special import when
from weft_torch.registry import op

Next = Callable[[Context, Value, Value, Value, Value], Value]
"""(context, k, x, the polynomials of degree k - 1 and k) → that of degree k + 1."""


def _chebyshev(c: Context, k: Value, x: Value, p: Value, q: Value) -> Value:
    return c.sub(c.mul(c.mul(x, 2.0), q), p)


def _hermite_h(c: Context, k: Value, x: Value, p: Value, q: Value) -> Value:
    return c.sub(c.mul(c.mul(x, 2.0), q), c.mul(c.mul(k, 2.0), p))


def _hermite_he(c: Context, k: Value, x: Value, p: Value, q: Value) -> Value:
    return c.sub(c.mul(x, q), c.mul(k, p))


def _laguerre(c: Context, k: Value, x: Value, p: Value, q: Value) -> Value:
    odd = c.add(c.mul(k, 2.0), 1.0)
    return c.div(c.sub(c.mul(c.sub(odd, x), q), c.mul(k, p)), c.add(k, 1.0))


def _legendre(c: Context, k: Value, x: Value, p: Value, q: Value) -> Value:
    odd = c.add(c.mul(k, 2.0), 1.0)
    return c.div(c.sub(c.mul(c.mul(odd, x), q), c.mul(k, p)), c.add(k, 1.0))


KINDS: dict[str, tuple[float, float, Next]] = {
    "chebyshev_polynomial_t": (1.0, 0.0, _chebyshev),
    "chebyshev_polynomial_u": (2.0, 0.0, _chebyshev),
    "chebyshev_polynomial_v": (2.0, -1.0, _chebyshev),
    "chebyshev_polynomial_w": (2.0, 1.0, _chebyshev),
    "hermite_polynomial_h": (2.0, 0.0, _hermite_h),
    "hermite_polynomial_he": (1.0, 0.0, _hermite_he),
    "laguerre_polynomial_l": (-1.0, 1.0, _laguerre),
    "legendre_polynomial_p": (1.0, 0.0, _legendre),
}
"""Factor and summand of the polynomial of degree 1, and the recurrence."""
HIGHEST = 1 << 16
"""Degrees above give NaN."""


def _polynomial(name: str) -> None:
    factor, summand, following = KINDS[name.removeprefix("shifted_")]

    @op(f"aten.special_{name}", f"aten.special_{name}.x_scalar", f"aten.special_{name}.n_scalar")
    def convert(c: Context, x: Value, n: Value) -> Value:
        dtype, shape = c.result_dtype(), c.result_shape()
        x, degree = (c.broadcast(c.cast(c.to(v, dtype), dt.float64), shape) for v in (x, n))
        x = c.sub(c.mul(x, 2.0), 1.0) if name.startswith("shifted_") else x
        degree = c(ops.Trunc(), when(c, c(ops.IsNan(), degree), -1.0, degree))
        beyond = c(ops.Greater(), degree, float(HIGHEST))
        last = when(c, beyond, 0.0, degree)
        one = c(ops.Fill(dt.float64, shape, 1))
        first = [c.number(1.0, dt.float64), one, c.add(c.mul(x, factor), summand)]

        def more(c: Context, values: list[Value]) -> Value:
            left = c(ops.Less(), values[0], values[4])
            return c(ops.Greater(), c(ops.ReduceSum(None, False), c.cast(left, dt.int64)), 0)

        def step(c: Context, values: list[Value]) -> list[Value]:
            k, p, q, x, last = values
            going = c(ops.Less(), k, last)
            after = following(c, k, x, p, q)
            return [c.add(k, 1.0), c(ops.Where(), going, q, p), c(ops.Where(), going, after, q)]

        _, _, found = repeated(c, first, more, step, (x, last))
        found = when(c, c(ops.Equal(), last, 0.0), 1.0, found)
        found = when(c, beyond, float("nan"), when(c, c(ops.Less(), degree, 0.0), 0.0, found))
        return c.cast(found, dtype)


for _name in KINDS:
    _polynomial(_name)
for _name in ("t", "u", "v", "w"):
    _polynomial(f"shifted_chebyshev_polynomial_{_name}")

__all__ = ["HIGHEST"]
