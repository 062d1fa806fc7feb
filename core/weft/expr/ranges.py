"""Intervals of integer formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.dtypes import DType
from weft.expr import nodes as n
from weft.expr.nodes import Broadcast, Call, Cast, Const, Expr, Not, Ramp, Select, Var


class Range(NamedTuple):
    """The integers lo … hi, both included; None is unbounded."""

    lo: int | None = None
    hi: int | None = None

    @property
    def is_point(self) -> bool:
        return self.lo is not None and self.lo == self.hi

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, int) and (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)
        )

    def within(self, lo: int | None, hi: int | None) -> bool:
        """Whether all of it lies in lo … hi."""
        return (lo is None or (self.lo is not None and self.lo >= lo)) and (
            hi is None or (self.hi is not None and self.hi <= hi)
        )


ANY = Range(None, None)
BOOL = Range(0, 1)
_DTYPE_RANGES: dict[str, Range] = {}


def range_of_dtype(dtype: DType) -> Range:
    """The values of an integer dtype; int64 counts as unbounded, for index formulas do not overflow."""
    if dtype.name == "int64":
        return ANY
    found = _DTYPE_RANGES.get(dtype.name)
    if found is None:
        found = ANY
        if dtype.is_bool:
            found = BOOL
        elif dtype.kind == "int":
            found = Range(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
        elif dtype.kind == "uint":
            found = Range(0, (1 << dtype.bits) - 1)
        _DTYPE_RANGES[dtype.name] = found
    return found


def add_ranges(a: Range, b: Range) -> Range:
    """The range of x + y for x in `a` and y in `b`."""
    return Range(
        None if a[0] is None or b[0] is None else a[0] + b[0], None if a[1] is None or b[1] is None else a[1] + b[1]
    )


def negate_range(a: Range) -> Range:
    """The range of -x for x in `a`."""
    return Range(None if a[1] is None else -a[1], None if a[0] is None else -a[0])


def scale_range(a: Range, k: int) -> Range:
    if k == 0:
        return Range(0, 0)
    lo, hi = (a[0], a[1]) if k > 0 else (a[1], a[0])
    return Range(None if lo is None else lo * k, None if hi is None else hi * k)


def multiply_ranges(a: Range, b: Range) -> Range:
    """A range that contains x * y for x in `a` and y in `b`."""
    if a[0] is not None and a[0] == a[1]:
        return scale_range(b, a[0])
    if b[0] is not None and b[0] == b[1]:
        return scale_range(a, b[0])
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        return Range(a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1])
    if a[0] is not None and a[1] is not None and b[0] is not None and b[1] is not None:
        corners = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
        return Range(min(corners), max(corners))
    # One side is unbounded: only its sign against the other's can bound the product.
    a_up, a_down = a[0] is not None and a[0] >= 0, a[1] is not None and a[1] <= 0
    b_up, b_down = b[0] is not None and b[0] >= 0, b[1] is not None and b[1] <= 0
    if (a_up and b_down) or (a_down and b_up):
        return Range(None, 0)
    return Range(0, None) if a_down and b_down else ANY


def min_ranges(a: Range, b: Range) -> Range:
    lo = None if a[0] is None or b[0] is None else min(a[0], b[0])
    hi = b[1] if a[1] is None else a[1] if b[1] is None else min(a[1], b[1])
    return Range(lo, hi)


def max_ranges(a: Range, b: Range) -> Range:
    return negate_range(min_ranges(negate_range(a), negate_range(b)))


def union_ranges(a: Range, b: Range) -> Range:
    return Range(
        None if a[0] is None or b[0] is None else min(a[0], b[0]),
        None if a[1] is None or b[1] is None else max(a[1], b[1]),
    )


def floordiv_ranges(a: Range, b: Range) -> Range:
    """Of a // b, b never 0."""
    if b[0] == 0:
        b = Range(1, b[1])
    if b[1] == 0:
        b = Range(b[0], -1)
    if b[1] is not None and b[1] < 0:
        a, b = negate_range(a), negate_range(b)
    if b[0] is None or b[0] <= 0:
        if a[0] is not None and a[1] is not None:
            reach = max(abs(a[0]), abs(a[1]))
            return Range(-reach, reach)
        return ANY
    lo_by, hi_by = b[0], b[1]  # 1 <= lo_by
    if a[0] is None:
        lo = None
    elif a[0] >= 0:
        lo = 0 if hi_by is None else a[0] // hi_by
    else:
        lo = a[0] // lo_by
    if a[1] is None:
        hi = None
    elif a[1] >= 0:
        hi = a[1] // lo_by
    else:
        hi = -1 if hi_by is None else a[1] // hi_by
    return Range(lo, hi)


def floormod_ranges(a: Range, b: Range) -> Range:
    """Of a % b, b never 0."""
    if b[0] is not None and b[0] >= 0:
        if a[0] is not None and a[0] >= 0:
            if a[1] is not None and a[1] < max(b[0], 1):
                return a
            bounds = [x for x in (a[1], None if b[1] is None else b[1] - 1) if x is not None]
            return Range(0, max(0, min(bounds)) if bounds else None)
        if a[0] is not None and a[1] is not None and b[0] == b[1] and b[0] and a[0] // b[0] == a[1] // b[0]:
            return Range(a[0] % b[0], a[1] % b[0])
        return Range(0, None if b[1] is None else max(0, b[1] - 1))
    if b[1] is not None and b[1] <= 0:
        return Range(None if b[0] is None else min(0, b[0] + 1), 0)
    return Range(None if b[0] is None else min(0, b[0] + 1), None if b[1] is None else max(0, b[1] - 1))


def _bit_ranges(symbol: str, a: Range, b: Range) -> Range:
    if symbol == "&":
        tops = [r[1] for r in (a, b) if r[0] is not None and r[0] >= 0]
        known = [t for t in tops if t is not None]
        return Range(0, min(known) if known else None) if tops else ANY
    if symbol in ("|", "^"):
        if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
            hi = None if a[1] is None or b[1] is None else (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
            return Range(0, hi)
        return ANY
    if b[0] is None or b[0] < 0:
        return ANY
    if symbol == ">>":
        return floordiv_ranges(a, Range(1 << min(b[0], 64), None if b[1] is None else 1 << min(b[1], 64)))
    if symbol == "<<" and b[1] is not None and b[1] < 63:
        return multiply_ranges(a, Range(1 << b[0], 1 << b[1]))
    return ANY


class Ranges:
    """Interval arithmetic under fixed variable ranges, remembered per node."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = ranges
        self.known: dict[Expr, Range] = {}

    def of(self, e: Expr) -> Range:
        """The interval of an integer or bool formula (all lanes of a vector); ANY for other dtypes."""
        if type(e) is Const:
            return Range(int(e.value), int(e.value)) if e.dtype.is_integer or e.dtype.is_bool else ANY
        found = self.known.get(e)
        if found is None:
            found = self._compute(e)
            limits = range_of_dtype(e.dtype)
            if limits is not ANY:
                # What may leave the dtype wraps, and then may be anything in it.
                found = found if found.within(*limits) else limits
            self.known[e] = found
        return found

    def _compute(self, e: Expr) -> Range:
        if isinstance(e, Var):
            return Range(*self.ranges.get(e.name, ANY))
        dtype = e.dtype
        if not (dtype.is_integer or dtype.is_bool):
            return ANY
        if isinstance(e, n.Binary):
            if e.result_bool:
                return self._compare(e)
            a, b = self.of(e.a), self.of(e.b)
            match e.symbol:
                case "+":
                    return add_ranges(a, b)
                case "-":
                    return add_ranges(a, negate_range(b))
                case "*":
                    return multiply_ranges(a, b)
                case "//":
                    return floordiv_ranges(a, b)
                case "%":
                    return floormod_ranges(a, b)
                case "min" | "and":
                    return min_ranges(a, b)
                case "max" | "or":
                    return max_ranges(a, b)
                case "truncdiv" | "truncmod":
                    return _trunc(e.symbol, a, b)
            return _bit_ranges(e.symbol, a, b)
        if isinstance(e, Select):
            cond = self.of(e.cond)
            if cond.is_point:
                return self.of(e.a if cond.lo else e.b)
            return union_ranges(self.of(e.a), self.of(e.b))
        if isinstance(e, Not):
            a = self.of(e.a)
            return Range(None if a.hi is None else 1 - a.hi, None if a.lo is None else 1 - a.lo)
        if isinstance(e, Cast):
            inner = e.value.dtype
            if inner.is_integer or inner.is_bool:
                a = self.of(e.value)
                if dtype.is_bool:
                    return Range(1, 1) if 0 not in a else Range(0, 0) if a.is_point else BOOL
                return a
            return range_of_dtype(dtype)
        if isinstance(e, Broadcast):
            return self.of(e.value)
        if isinstance(e, Ramp):
            return add_ranges(self.of(e.base), multiply_ranges(self.of(e.stride), Range(0, e.lanes - 1)))
        if isinstance(e, Call):
            if e.name == "abs" and dtype.is_integer:
                a = self.of(e.args[0])
                return max_ranges(max_ranges(a, negate_range(a)), Range(0, 0))
            if e.name == "popcount":
                return Range(0, dtype.bits)
        return range_of_dtype(dtype)

    def _compare(self, e: n.Binary) -> Range:
        if not (e.a.dtype.is_integer or e.a.dtype.is_bool):
            return BOOL
        a, b = self.of(e.a), self.of(e.b)
        symbol = e.symbol
        certain: bool | None = None
        if symbol in ("<", "<="):
            slack = symbol == "<"
            if a[1] is not None and b[0] is not None and a[1] + slack <= b[0]:
                certain = True
            elif a[0] is not None and b[1] is not None and a[0] + slack > b[1]:
                certain = False
        else:
            apart = (a[1] is not None and b[0] is not None and a[1] < b[0]) or (
                a[0] is not None and b[1] is not None and a[0] > b[1]
            )
            same = a.is_point and a == b
            if apart or same:
                certain = same == (symbol == "==")
        return BOOL if certain is None else Range(int(certain), int(certain))


def _trunc(symbol: str, a: Range, b: Range) -> Range:
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        return floordiv_ranges(a, b) if symbol == "truncdiv" else floormod_ranges(a, b)
    reach = None if a[0] is None or a[1] is None else max(abs(a[0]), abs(a[1]))
    if symbol == "truncmod":
        if b[0] is not None and b[1] is not None:
            by = max(abs(b[0]), abs(b[1]), 1) - 1
            reach = by if reach is None else min(by, reach)
        positive = a[0] is not None and a[0] >= 0
        return Range(0 if positive else None if reach is None else -reach, reach)
    if b[0] is not None and b[0] >= 0:  # never 0, so it divides upwards of 1 and the sides stay apart
        by = max(b[0], 1)
        lo = None if a[0] is None else min(0, -(-a[0] // by))
        hi = None if a[1] is None else max(0, a[1] // by)
        return Range(lo, hi)
    return ANY if reach is None else Range(-reach, reach)


def range_of(e: Expr, ranges: Mapping[str, Range]) -> Range:
    """The interval that the integer or bool formula `e` stays in, divisors taken as never 0.

    Args:
        ranges: by variable name, Range or (lo, hi); a variable without one is unbounded.
    """
    return Ranges(ranges).of(e)
