"""Sizes: of dimensions, on formulas of them, and the operations whose result has a size that is data."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Expr, floormod
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_frontend.contents import Content
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters.contraction import complex_product, convolved, numbers_of
from weft_stablehlo.converters.movement import counted, padded, placed
from weft_stablehlo.registry import formula, op


@op("get_dimension_size")
def get_dimension_size(c: Context) -> Content:
    return ct.content(dt.int32, [c.shape(0)[c.attribute("dimension")]], ())


def dims(c: Context, k: int) -> tuple[Dim, ...]:
    found = c.dims(k, "sizes")
    assert found is not None
    return found


@op("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(c: Context) -> Any:
    shape, axes = dims(c, 1), c.integers("broadcast_dimensions")
    found = [placed(c, x, axes, shape) for x in c.parts(0)]
    return Complex(found) if c.is_complex(0) else found[0]


@op("dynamic_reshape")
def dynamic_reshape(c: Context) -> Any:
    shape = dims(c, 1)
    found = [c.reshape(x, shape) for x in c.parts(0)]
    return Complex(found) if c.is_complex(0) else found[0]


@op("dynamic_iota")
def dynamic_iota(c: Context) -> Any:
    return counted(c, dims(c, 0))


@op("dynamic_pad")
def dynamic_pad(c: Context) -> Any:
    low, high = (c.signed(k, "padding") for k in (2, 3))
    inner = c.numbers(4, "padding between elements")
    assert low is not None and high is not None and inner is not None
    found = [padded(c, x, v, low, high, inner) for x, v in zip(c.parts(0), c.parts(1), strict=True)]
    return Complex(found) if c.is_complex(0) else found[0]


@op("real_dynamic_slice")
def real_dynamic_slice(c: Context) -> Any:
    starts, limits, steps = (dims(c, k) for k in (1, 2, 3))
    sizes = tuple(as_dim(-((a - b) // s)) for a, b, s in zip(starts, limits, steps))
    found = [c(ops.Slice(starts, sizes, steps), x) for x in c.parts(0)]
    return Complex(found) if c.is_complex(0) else found[0]


@op("dynamic_conv")
def dynamic_conv(c: Context) -> Any:
    found = c.numbers(2, "padding")
    assert found is not None
    n = len(numbers_of(c).input_spatial_dimensions)
    pads = [(found[2 * k], found[2 * k + 1]) for k in range(n)]
    return complex_product(c, lambda x, w: convolved(c, x, w, pads))


# -- on formulas ------------------------------------------------------------------------------------------------------


def _arithmetic(name: str, function: Any) -> None:
    def compute(c: Context) -> Content | None:
        a, b = c.content(0), c.content(1)
        return None if a.dtype.is_bool else ct.each(function, a.dtype, a, b)

    formula(name)(compute)


_arithmetic("add", lambda a, b: ct.plain(a + b))
_arithmetic("subtract", lambda a, b: ct.plain(a - b))
_arithmetic("multiply", lambda a, b: ct.plain(a * b))
_arithmetic("maximum", ct.larger)
_arithmetic("minimum", ct.smaller)


@formula("divide")
def divide(c: Context) -> Content | None:
    a, b = c.content(0), c.content(1)
    if a.dtype.is_bool or not all(isinstance(x, int) and x > 0 for x in b.elements.flat):
        return None
    return ct.each(ct.divide, a.dtype, a, b)


@formula("remainder")
def remainder(c: Context) -> Content | None:
    """Of what is not negative, by what is positive: the one that both roundings give."""
    a, b = c.content(0), c.content(1)
    if a.dtype.is_bool or not all(isinstance(x, int) and x > 0 for x in b.elements.flat):
        return None
    if any(isinstance(x, Expr) or x < 0 for x in a.elements.flat):
        return ct.each(lambda x, y: ct.plain(x - ct.divide(x, y) * y), a.dtype, a, b)
    return ct.each(lambda x, y: ct.plain(floormod(x, y)) if isinstance(x, Expr) else x % y, a.dtype, a, b)


@formula("negate")
def negate(c: Context) -> Content | None:
    return ct.each(lambda x: ct.plain(0 - x), c.content(0).dtype, c.content(0))


@formula("abs")
def absolute(c: Context) -> Content | None:
    return ct.each(lambda x: ct.larger(x, ct.plain(0 - x)), c.content(0).dtype, c.content(0))


@formula("sign")
def sign(c: Context) -> Content | None:
    def of(x: Any) -> Any:
        return ct.choose(ct.compare("lt", x, 0), -1, ct.choose(ct.compare("eq", x, 0), 0, 1))

    return ct.each(of, c.content(0).dtype, c.content(0))


@formula("compare")
def compare(c: Context) -> Content:
    name = c.keyword("comparison_direction")
    a, b = c.content(0), c.content(1)
    if name in ("GT", "GE"):
        a, b = b, a
    kind = {"GT": "lt", "GE": "le"}.get(name, name.lower())
    return ct.each(lambda x, y: ct.compare(kind, x, y), dt.bool_, a, b)


def _logical(name: str, function: Any) -> None:
    def compute(c: Context) -> Content | None:
        a, b = c.content(0), c.content(1)
        return ct.each(function, dt.bool_, a, b) if a.dtype.is_bool else None

    formula(name)(compute)


_logical("and", ct.both)
_logical("or", ct.either)


@formula("not")
def not_(c: Context) -> Content | None:
    a = c.content(0)
    return ct.each(ct.negation, dt.bool_, a) if a.dtype.is_bool else None


@formula("select")
def select(c: Context) -> Content:
    test, a, b = c.content(0), c.content(1), c.content(2)
    return ct.each(ct.choose, a.dtype, test, a, b)


@formula("convert")
def convert(c: Context) -> Content | None:
    (type,) = c.results
    a = c.content(0)
    if type.complex or type.dtype not in ct.KINDS:
        return None
    if type.dtype.is_bool:
        return ct.each(ct.as_bool, type.dtype, a)
    if a.dtype.is_bool:
        return ct.each(lambda x: ct.choose(x, 1, 0), type.dtype, a)
    return ct.each(ct.as_int, type.dtype, a)


@formula("reshape")
def reshape(c: Context) -> Content:
    shape = tuple(d or 0 for d in c.results[0].shape)
    return Content(c.content(0).dtype, c.content(0).elements.reshape(shape))


@formula("broadcast_in_dim")
def broadcast_in_dim(c: Context) -> Content | None:
    """Of few elements: what is larger is data."""
    (type,) = c.results
    shape = tuple(d or 0 for d in type.shape)
    if int(np.prod(shape)) > ct.LIMIT:
        return None
    axes, a = c.integers("broadcast_dimensions"), c.content(0).elements
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    own = [1] * len(shape)
    for k, axis in enumerate(sorted(axes)):
        own[axis] = a.shape[order[k]]
    return Content(c.content(0).dtype, np.broadcast_to(a.transpose(order).reshape(own), shape).copy())


@formula("concatenate")
def concatenate(c: Context) -> Content | None:
    parts = [c.content(k) for k in range(c.count)]
    found = np.concatenate([p.elements for p in parts], c.attribute("dimension"))
    return Content(parts[0].dtype, found) if found.size <= ct.LIMIT else None


@formula("slice")
def slice_(c: Context) -> Content:
    starts, limits, steps = (c.integers(n) for n in ("start_indices", "limit_indices", "strides"))
    a = c.content(0)
    return Content(a.dtype, a.elements[tuple(slice(*s) for s in zip(starts, limits, steps))].copy())


def value_of(c: Context, content: Content) -> Value:
    return c.importer.as_value(content)
