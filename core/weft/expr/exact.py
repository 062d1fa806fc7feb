"""Rules for single formulas of any dtype that are exact to the bit."""

from __future__ import annotations

from collections.abc import Callable

from weft.expr import nodes as n
from weft.expr.comparisons import Comparisons, is_index
from weft.expr.linear import int_const, number
from weft.expr.nodes import Broadcast, Cast, Const, Div, Expr, FloorDiv, FloorMod, Mul, Ramp
from weft.expr.ranges import ANY, range_of_dtype


def _exact_div(_: Comparisons, e: Expr) -> Expr:
    """x / 2**k is x * 2**-k to the bit."""
    assert isinstance(e, Div)
    if isinstance(e.b, Const) and e.dtype.name in ("float32", "float64") and e.b.value:
        mantissa, inverse = abs(float(e.b.value)).hex(), 1.0 / e.b.value if abs(e.b.value) > 1e-30 else 0.0
        if mantissa.startswith("0x1.0000000000000p") and 1e-30 < abs(inverse) < 1e30:
            return Mul(e.a, Const(inverse, e.dtype))
    return e


def _cast(s: Comparisons, e: Expr) -> Expr:
    """A cast of a cast, where the inner one loses nothing."""
    assert isinstance(e, Cast)
    inner = e.value
    if not isinstance(inner, Cast) or e.dtype.lanes > 1:
        return e
    source, middle = inner.value.dtype, inner.dtype
    if (source.is_integer or source.is_bool) and middle.is_integer:
        limits = range_of_dtype(middle)
        kept = s.ranges.of(inner.value).within(*limits) if limits is not ANY else source.name != "uint64"
        return n.cast_to(inner.value, e.dtype) if kept and (e.dtype.is_integer or e.dtype.is_float) else e
    if source.is_float and middle.is_float and e.dtype == source and _widens(source.name, middle.name):
        return inner.value
    return e


def _widens(source: str, middle: str) -> bool:
    wide = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",)}
    return middle in wide.get(source, ())


def _vector_divide(s: Comparisons, e: Expr) -> Expr:
    """A ramp divided by a constant: again a ramp where the stride divides, one value where no lane crosses."""
    assert isinstance(e, (FloorDiv, FloorMod))
    if not isinstance(e.a, Ramp) or not isinstance(e.b, Broadcast) or not is_index(e.a.base):
        return e
    by, base, stride, lanes = e.b.value, e.a.base, e.a.stride, e.a.lanes
    if not isinstance(by, Const) or not isinstance(stride, Const) or by.value <= 0:
        return e
    high = isinstance(e, FloorDiv)
    if stride.value % by.value == 0:
        if high:
            return Ramp(s.simplify(FloorDiv(base, by)), int_const(stride.value // by.value), lanes)
        return Broadcast(s.simplify(FloorMod(base, by)), lanes)
    low = s.sum(FloorMod(base, by))
    reach = stride.value * (lanes - 1)
    if s.nonneg(low + min(reach, 0)) and s.nonneg(number(by.value - 1 - max(reach, 0)) - low):
        return Broadcast(s.simplify(FloorDiv(base, by)), lanes) if high else Ramp(low.expr(), stride, lanes)
    return e


EXACT: dict[type, Callable[[Comparisons, Expr], Expr]] = {
    Div: _exact_div,
    Cast: _cast,
    FloorDiv: _vector_divide,
    FloorMod: _vector_divide,
}
