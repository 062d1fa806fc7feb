"""Scalar formulas: the one language of dimensions, indices and element values.

    Expr   := Const | Var | Binary | Compare | Not | Select | Cast | Bitcast | Call | Ramp | Broadcast | (Read) | (Load)
    Binary := Add | Sub | Mul | Div | FloorDiv | FloorMod | TruncDiv | TruncMod | Min | Max
            | BitAnd | BitOr | BitXor | ShiftLeft | ShiftRight | And | Or
    Compare:= Lt | Le | Eq | Ne

`Read` (an element of a tensor) is defined by the tensor language, `Load` (an element of a buffer) by the loop IR.
Nodes are immutable; `==` and `hash` are structural; a comparison formula is built by `eq`, `ne`, `<`, `<=`.
Constructors fold constants and unit elements, nothing more: `simplify` does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, InputError, expect, shown


class Expr:
    """A formula with a dtype. Subclasses list their fields in `fields`; `children` are the fields that are formulas."""

    __slots__ = ("_hash", "_size", "dtype")
    fields: ClassVar[tuple[str, ...]] = ()
    dtype: DType
    _hash: int
    _size: int

    # -- structure
    def key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f) for f in self.fields)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and hash(self) == hash(other) and self.key() == other.key()

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash((type(self).__name__, self.key()))
            return self._hash

    def children(self) -> tuple[Expr, ...]:
        return ()

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """The same node over other children (folds constants as the constructor does)."""
        return self

    def __str__(self) -> str:
        from weft.expr.printer import print_expr

        return print_expr(self)

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise ExprError(
            f"the formula '{self}' has no truth value while it is being built",
            hint="use select(), all_of() or any_of()",
        )

    # -- arithmetic
    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return sub(other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return div(self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return div(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return floordiv(other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return floormod(self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return floormod(other, self)

    def __neg__(self) -> Expr:
        return sub(Const(0, self.dtype), self) if not self.dtype.is_float else mul(self, Const(-1.0, self.dtype))

    def __lt__(self, other: ExprLike) -> Expr:
        return lt(self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return le(self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return lt(other, self)

    def __ge__(self, other: ExprLike) -> Expr:
        return le(other, self)

    def __and__(self, other: ExprLike) -> Expr:
        return bitand(self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return bitor(self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return bitxor(self, other)

    def __lshift__(self, other: ExprLike) -> Expr:
        return shl(self, other)

    def __rshift__(self, other: ExprLike) -> Expr:
        return shr(self, other)

    def astype(self, dtype: object) -> Expr:
        return cast_to(self, dtype)


ExprLike: TypeAlias = "Expr | int | float | bool"
"""A formula, or a Python number, which takes the dtype of the formula next to it (alone: int64, float32 or bool)."""


class Const(Expr):
    """A constant. `value` is a Python bool, int, float or complex already rounded to `dtype`."""

    __slots__ = ("value",)
    fields = ("value", "dtype")

    def __init__(self, value: bool | int | float | complex, dtype: DType) -> None:
        self.dtype = dtype
        if dtype.is_bool:
            self.value: Any = bool(value)
        elif dtype.is_integer:
            self.value = wrap_integer(int(value.real if isinstance(value, complex) else value), dtype)
        elif dtype.is_float:
            self.value = _round_float(float(value), dtype)  # type: ignore[arg-type]  # float() refuses complex numbers
        else:
            self.value = value

    def key(self) -> tuple[Any, ...]:
        # -0.0 == 0.0 and nan != nan in Python; structure must tell the first apart and the second equal.
        return (repr(self.value), self.dtype) if self.dtype.is_float else (self.value, self.dtype)

    # Formulas are compared and hashed more than anything else is done to them: the commonest nodes do it without `key`.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not Const or (self.dtype is not other.dtype and self.dtype != other.dtype):
            return False
        return self.value == other.value if not self.dtype.is_float else repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash((self.dtype.name, repr(self.value) if self.dtype.is_float else self.value))
            return self._hash


def wrap_integer(value: int, dtype: DType) -> int:
    """`value` modulo 2**bits, in the range of the integer `dtype`."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def _round_float(value: float, dtype: DType) -> float:
    if dtype.bits == 64:
        return value
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(dtype.scalar.numpy.type(value))


class Var(Expr):
    """A named variable: a loop index, a dimension symbol or a bound value. Same name and dtype, same variable."""

    __slots__ = ("name",)
    fields = ("name", "dtype")

    def __init__(self, name: str, dtype: DType = dt.int64) -> None:
        self.name, self.dtype = name, dtype

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Var and self.name == other.name and (self.dtype is other.dtype or self.dtype == other.dtype)
        )

    def __hash__(self) -> int:
        return hash(self.name)


class Binary(Expr):
    """Two operands of one dtype. `symbol` prints it; `fold` computes it on Python numbers."""

    __slots__ = ("a", "b")
    fields = ("a", "b")
    symbol: ClassVar[str] = "?"
    result_bool: ClassVar[bool] = False

    def __init__(self, a: Expr, b: Expr) -> None:
        if a.dtype is not b.dtype and a.dtype != b.dtype:
            raise ExprError(
                f"operands of '{self.symbol}' differ in dtype: {a.dtype} and {b.dtype}", where=f"{a} {self.symbol} {b}"
            )
        self.a, self.b = a, b
        self.dtype = dt.bool_.with_lanes(a.dtype.lanes) if self.result_bool else a.dtype

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other) or self.a != other.a or self.b != other.b:
            return False
        # Equal operands are one from now on: where formulas share parts, each pair of parts is compared once.
        self.a, self.b = other.a, other.b
        return True

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash((self.symbol, self.a, self.b))
            return self._hash

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return BUILDERS[type(self)](*children)


class Add(Binary):
    """Sum a + b; integers wrap modulo 2**bits."""

    __slots__ = ()
    symbol = "+"


class Sub(Binary):
    """Difference a - b; integers wrap modulo 2**bits."""

    __slots__ = ()
    symbol = "-"


class Mul(Binary):
    """Product a * b; integers wrap modulo 2**bits."""

    __slots__ = ()
    symbol = "*"


class Div(Binary):
    """True division; floats and complex numbers only."""

    __slots__ = ()
    symbol = "/"


class FloorDiv(Binary):
    """Integer division rounding down, as Python's. By zero: undefined in a program, an error when folded."""

    __slots__ = ()
    symbol = "//"


class FloorMod(Binary):
    """a - floor(a / b) * b; on floats too."""

    __slots__ = ()
    symbol = "%"


class TruncDiv(Binary):
    """Integer division rounding towards zero, as C's."""

    __slots__ = ()
    symbol = "truncdiv"


class TruncMod(Binary):
    """Remainder with the sign of the dividend, as C's % and fmod."""

    __slots__ = ()
    symbol = "truncmod"


class Min(Binary):
    """The lesser; NaN if either is NaN."""

    __slots__ = ()
    symbol = "min"


class Max(Binary):
    """The greater; NaN if either is NaN."""

    __slots__ = ()
    symbol = "max"


class BitAnd(Binary):
    """Bitwise and of integers."""

    __slots__ = ()
    symbol = "&"


class BitOr(Binary):
    """Bitwise or of integers."""

    __slots__ = ()
    symbol = "|"


class BitXor(Binary):
    """Bitwise exclusive or of integers."""

    __slots__ = ()
    symbol = "^"


class ShiftLeft(Binary):
    """Shift; by the width or more gives 0."""

    __slots__ = ()
    symbol = "<<"


class ShiftRight(Binary):
    """Shift, arithmetic for signed operands; by the width or more gives 0 (or -1 for negatives)."""

    __slots__ = ()
    symbol = ">>"


class And(Binary):
    """Logical and of bools. Both operands may be evaluated."""

    __slots__ = ()
    symbol = "and"


class Or(Binary):
    """Logical or of bools. Both operands may be evaluated."""

    __slots__ = ()
    symbol = "or"


class Lt(Binary):
    """Whether a < b, a bool; false if either is NaN."""

    __slots__ = ()
    symbol = "<"
    result_bool = True


class Le(Binary):
    """Whether a <= b, a bool; false if either is NaN."""

    __slots__ = ()
    symbol = "<="
    result_bool = True


class Eq(Binary):
    """Whether a == b, a bool; false if either is NaN."""

    __slots__ = ()
    symbol = "=="
    result_bool = True


class Ne(Binary):
    """Whether a != b, a bool; true if either is NaN."""

    __slots__ = ()
    symbol = "!="
    result_bool = True


class Not(Expr):
    """Logical not of a bool."""

    __slots__ = ("a",)
    fields = ("a",)

    def __init__(self, a: Expr) -> None:
        if not a.dtype.is_bool:
            raise ExprError(f"'not' takes a bool, got {a.dtype}", where=str(a))
        self.a, self.dtype = a, a.dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return not_(children[0])


class Select(Expr):
    """`a` where `cond`, else `b`. Both sides may be evaluated; only a Load or Read on the unchosen side must not
    fault."""

    __slots__ = ("a", "b", "cond")
    fields = ("cond", "a", "b")

    def __init__(self, cond: Expr, a: Expr, b: Expr) -> None:
        if not cond.dtype.is_bool:
            raise ExprError(f"select takes a bool condition, got {cond.dtype}", where=str(cond))
        if a.dtype != b.dtype:
            raise ExprError(f"the sides of select differ in dtype: {a.dtype} and {b.dtype}", where=f"{a} : {b}")
        self.cond, self.a, self.b, self.dtype = cond, a, b, a.dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return select(*children)


class Cast(Expr):
    """Conversion of the value. Float to integer truncates; out of range it saturates and NaN is 0, but int32 and int64
    may get any value there.

    Float to narrower float rounds to even.
    """

    __slots__ = ("value",)
    fields = ("value", "dtype")

    def __init__(self, value: Expr, dtype: DType) -> None:
        self.value, self.dtype = value, dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return cast_to(children[0], self.dtype.with_lanes(children[0].dtype.lanes))


class Bitcast(Expr):
    """The same bits read as another dtype of the same width."""

    __slots__ = ("value",)
    fields = ("value", "dtype")

    def __init__(self, value: Expr, dtype: DType) -> None:
        if value.dtype.bits != dtype.bits:
            raise ExprError(f"bitcast from {value.dtype} to {dtype} changes the width", where=str(value))
        self.value, self.dtype = value, dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Bitcast(children[0], self.dtype.with_lanes(children[0].dtype.lanes))


class Call(Expr):
    """A pure function of `weft.expr.functions` (exp, sqrt, fma, …) by name."""

    __slots__ = ("args", "name")
    fields = ("name", "args", "dtype")

    def __init__(self, name: str, args: tuple[Expr, ...], dtype: DType) -> None:
        self.name, self.args, self.dtype = name, args, dtype

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        lanes = max((c.dtype.lanes for c in children), default=1)
        return Call(self.name, children, self.dtype.with_lanes(lanes))


class Ramp(Expr):
    """The vector base, base + stride, …, base + (lanes - 1) * stride."""

    __slots__ = ("base", "lanes", "stride")
    fields = ("base", "stride", "lanes")

    def __init__(self, base: Expr, stride: Expr, lanes: int) -> None:
        self.base, self.stride, self.lanes = base, stride, lanes
        self.dtype = base.dtype.with_lanes(lanes)

    def children(self) -> tuple[Expr, ...]:
        return (self.base, self.stride)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Ramp(children[0], children[1], self.lanes)


class Broadcast(Expr):
    """A scalar repeated in every lane."""

    __slots__ = ("lanes", "value")
    fields = ("value", "lanes")

    def __init__(self, value: Expr, lanes: int) -> None:
        self.value, self.lanes = value, lanes
        self.dtype = value.dtype.with_lanes(lanes)

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Broadcast(children[0], self.lanes)


# -- builders ---------------------------------------------------------------------------------------------------------


def const(value: bool | int | float | complex, dtype: object = None) -> Const:
    """A constant; without `dtype`, bool, int64, float32 or complex64 by the Python type."""
    if dtype is None:
        dtype = (
            dt.bool_
            if isinstance(value, bool)
            else dt.int64
            if isinstance(value, int)
            else dt.float32
            if isinstance(value, float)
            else dt.complex64
        )
    return Const(value, dt.dtype(dtype))


def wrap(value: ExprLike, like: DType | None = None) -> Expr:
    """`value` as a formula; a Python number takes the dtype `like`."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, (bool, int, float, complex)):
        try:
            value = value.item()  # numpy scalars
            expect(value, (bool, int, float, complex), "a formula", "a number")
        except (AttributeError, ValueError, TypeError, InputError):
            raise ExprError(f"cannot make a formula of {shown(repr(value), 80)}") from None
    return const(value, like.scalar if like is not None else None)


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        b = wrap(b, a.dtype)
    elif isinstance(b, Expr):
        a = wrap(a, b.dtype)
    else:
        a, b = wrap(a), wrap(b)
    if a.dtype.lanes != b.dtype.lanes:
        if a.dtype.lanes == 1:
            a = Broadcast(a, b.dtype.lanes)
        elif b.dtype.lanes == 1:
            b = Broadcast(b, a.dtype.lanes)
    return a, b


def _is(e: Expr, value: int) -> bool:
    if isinstance(e, Broadcast):
        e = e.value
    return isinstance(e, Const) and not e.dtype.is_float and e.value == value


# The narrow float formats round by rules of their own, which the interpreter of a program applies.
_FOLDED_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def _fold(cls: type[Binary], a: Expr, b: Expr, compute: Callable[[Any, Any], Any]) -> Expr:
    if (
        isinstance(a, Const)
        and isinstance(b, Const)
        and (a.dtype.kind in ("int", "uint", "bool") or a.dtype.name in _FOLDED_FLOATS)
    ):
        try:
            return Const(compute(a.value, b.value), dt.bool_ if cls.result_bool else a.dtype)
        except OverflowError:
            return cls(a, b)
    if isinstance(a, Broadcast) and isinstance(b, Broadcast):
        return Broadcast(BUILDERS[cls](a.value, b.value), a.lanes)
    return cls(a, b)


def add(a: ExprLike, b: ExprLike) -> Expr:
    """a + b, with constants folded and, for integers, zeros removed.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if not a.dtype.is_float:
        if _is(a, 0):
            return b
        if _is(b, 0):
            return a
        if isinstance(b, Const) and isinstance(a, Add) and isinstance(a.b, Const):
            return add(a.a, add(a.b, b))
        if isinstance(a, Ramp):
            if isinstance(b, Ramp):
                return Ramp(add(a.base, b.base), add(a.stride, b.stride), a.lanes)
            return Ramp(add(a.base, b.value), a.stride, a.lanes) if isinstance(b, Broadcast) else Add(a, b)
        if isinstance(b, Ramp) and isinstance(a, Broadcast):
            return Ramp(add(a.value, b.base), b.stride, b.lanes)
    return _fold(Add, a, b, lambda x, y: x + y)


def sub(a: ExprLike, b: ExprLike) -> Expr:
    """a - b, with constants folded; for integers, a - 0 is a and a - a is 0.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if not a.dtype.is_float:
        if _is(b, 0):
            return a
        if a == b:
            return Broadcast(Const(0, a.dtype.scalar), a.dtype.lanes) if a.dtype.lanes > 1 else Const(0, a.dtype)
        if isinstance(a, Ramp) and isinstance(b, Broadcast):
            return Ramp(sub(a.base, b.value), a.stride, a.lanes)
    return _fold(Sub, a, b, lambda x, y: x - y)


def mul(a: ExprLike, b: ExprLike) -> Expr:
    """a * b, with constants folded; for integers, factors of 0 and 1 are removed.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if not a.dtype.is_float:
        if _is(a, 0) or _is(b, 1):
            return a
        if _is(b, 0) or _is(a, 1):
            return b
        if isinstance(a, Ramp) and isinstance(b, Broadcast):
            return Ramp(mul(a.base, b.value), mul(a.stride, b.value), a.lanes)
        if isinstance(b, Ramp) and isinstance(a, Broadcast):
            return Ramp(mul(a.value, b.base), mul(a.value, b.stride), b.lanes)
    return _fold(Mul, a, b, lambda x, y: x * y)


def _ieee_div(x: float, y: float) -> float:
    if y == 0:
        return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)
    return x / y


def div(a: ExprLike, b: ExprLike) -> Expr:
    """a / b of floats or complex numbers, by IEEE 754: x / 0 is an infinity or NaN.

    Raises:
        ExprError: the operands are integers or bools, or their dtypes or lanes differ.
    """
    a, b = _pair(a, b)
    if a.dtype.kind not in ("float", "complex"):
        raise ExprError(
            f"'/' divides floats, got {a.dtype}", where=f"{a} / {b}", hint="use // for integers, or cast first"
        )
    return _fold(Div, a, b, _ieee_div)


def _by_zero(a: Expr, b: Expr, symbol: str) -> None:
    if _is(b, 0):
        raise ExprError("division by the constant zero", where=f"{a} {symbol} {b}")


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """a // b: integer division rounding down, as Python's.

    Raises:
        ExprError: b is the constant zero, or the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    _by_zero(a, b, "//")
    if _is(b, 1) or (_is(a, 0) and isinstance(b, Const)):
        return a
    return _fold(FloorDiv, a, b, lambda x, y: x // y) if a.dtype.is_integer else FloorDiv(a, b)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    """a % b: the remainder of `floordiv`, with the sign of b; floats too.

    Raises:
        ExprError: b is the constant zero, or the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    _by_zero(a, b, "%")
    if a.dtype.is_integer and (_is(b, 1) or (_is(a, 0) and isinstance(b, Const))):
        return sub(a, a)
    return _fold(FloorMod, a, b, lambda x, y: x % y) if a.dtype.is_integer else FloorMod(a, b)


def _c_div(x: int, y: int) -> int:
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def truncdiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division rounding towards zero, as C's.

    Raises:
        ExprError: b is the constant zero, or the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    _by_zero(a, b, "truncdiv")
    return _fold(TruncDiv, a, b, _c_div) if a.dtype.is_integer else TruncDiv(a, b)


def truncmod(a: ExprLike, b: ExprLike) -> Expr:
    """The remainder of `truncdiv`, with the sign of a, as C's % and fmod.

    Raises:
        ExprError: b is the constant zero, or the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    _by_zero(a, b, "truncmod")
    return _fold(TruncMod, a, b, lambda x, y: x - _c_div(x, y) * y) if a.dtype.is_integer else TruncMod(a, b)


def _nan_or(pick: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: x if x != x else y if y != y else pick(x, y)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The lesser of a and b; NaN if either is NaN.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return a if a == b else _fold(Min, a, b, _nan_or(min))


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The greater of a and b; NaN if either is NaN.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return a if a == b else _fold(Max, a, b, _nan_or(max))


def bitand(a: ExprLike, b: ExprLike) -> Expr:
    """Bitwise and of integers; of bools the logical and.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return and_(a, b) if a.dtype.is_bool else _fold(BitAnd, a, b, lambda x, y: x & y)


def bitor(a: ExprLike, b: ExprLike) -> Expr:
    """Bitwise or of integers; of bools the logical or.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return or_(a, b) if a.dtype.is_bool else _fold(BitOr, a, b, lambda x, y: x | y)


def bitxor(a: ExprLike, b: ExprLike) -> Expr:
    """Bitwise exclusive or of integers; of bools whether they differ.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return ne(a, b) if a.dtype.is_bool else _fold(BitXor, a, b, lambda x, y: x ^ y)


def shl(a: ExprLike, b: ExprLike) -> Expr:
    """a << b of integers; 0 if b is the width of a or more.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    bits = a.dtype.bits
    return _fold(ShiftLeft, a, b, lambda x, y: x << y if 0 <= y < bits else 0)


def shr(a: ExprLike, b: ExprLike) -> Expr:
    """a >> b of integers, arithmetic if a is signed; 0, or -1 for a negative a, if b is the width of a or more.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    bits = a.dtype.bits
    return _fold(ShiftRight, a, b, lambda x, y: x >> min(y, bits) if y >= 0 else (0 if x >= 0 else -1))


def and_(a: ExprLike, b: ExprLike) -> Expr:
    """Logical and of bools, with constants folded.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if _is(a, 0) or _is(b, 1) or a == b:
        return a
    if _is(b, 0) or _is(a, 1):
        return b
    return And(a, b)


def or_(a: ExprLike, b: ExprLike) -> Expr:
    """Logical or of bools, with constants folded.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if _is(a, 1) or _is(b, 0) or a == b:
        return a
    if _is(b, 1) or _is(a, 0):
        return b
    return Or(a, b)


def lt(a: ExprLike, b: ExprLike) -> Expr:
    """The condition a < b, with constants folded.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return _fold(Lt, a, b, lambda x, y: x < y)


def le(a: ExprLike, b: ExprLike) -> Expr:
    """The condition a <= b, with constants folded.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    return _fold(Le, a, b, lambda x, y: x <= y)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    """The condition a == b, with constants folded. Equal formulas are equal unless they are floats, which may be
    NaN.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if a == b and not a.dtype.is_float and a.dtype.lanes == 1:
        return Const(True, dt.bool_)
    return _fold(Eq, a, b, lambda x, y: x == y)


def ne(a: ExprLike, b: ExprLike) -> Expr:
    """The condition a != b, with constants folded. Equal formulas do not differ unless they are floats, which may
    be NaN.

    Raises:
        ExprError: the operands have different dtypes or lanes.
    """
    a, b = _pair(a, b)
    if a == b and not a.dtype.is_float and a.dtype.lanes == 1:
        return Const(False, dt.bool_)
    return _fold(Ne, a, b, lambda x, y: x != y)


def not_(a: ExprLike) -> Expr:
    """Logical not of a bool, with constants folded.

    Raises:
        ExprError: `a` is not a bool.
    """
    a = wrap(a)
    if isinstance(a, Const):
        return Const(not a.value, dt.bool_)
    if isinstance(a, Not):
        return a.a
    return Not(a)


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """`a` where `cond` is true, else `b`; scalars are broadcast to the lanes of the others.

    Raises:
        ExprError: `a` and `b` have different dtypes, or lanes that do not fit.
    """
    cond = wrap(cond)
    a, b = _pair(a, b)
    if isinstance(cond, Const):
        return a if cond.value else b
    if a == b:
        return a
    lanes = max(cond.dtype.lanes, a.dtype.lanes)
    if cond.dtype.lanes != lanes:
        cond = Broadcast(cond, lanes)
    if a.dtype.lanes != lanes:
        a, b = Broadcast(a, lanes), Broadcast(b, lanes)
    if isinstance(cond, Broadcast) and isinstance(cond.value, Const):
        return a if cond.value.value else b
    return Select(cond, a, b)


def cast_to(value: ExprLike, dtype: object) -> Expr:
    """`value` converted to `dtype` (anything that `weft.dtypes.dtype` takes), with constants folded.

    Floats become integers by truncation, numbers become bools by comparison with 0. A scalar dtype keeps the lanes of
    a vector.

    Raises:
        ExprError: there is no such dtype.
    """
    value = wrap(value)
    to = dt.dtype(dtype)
    if to.lanes == 1 and value.dtype.lanes > 1:
        to = to.with_lanes(value.dtype.lanes)
    if value.dtype == to:
        return value
    if isinstance(value, Const):
        number = value.value
        if to.is_bool:
            return Const(number != 0, to)
        if to.is_float and value.dtype.kind != "complex":
            return Const(float(number), to)
        if to.is_integer and not value.dtype.is_float and value.dtype.kind != "complex":
            return Const(int(number), to)
        if to.is_integer and value.dtype.is_float and math.isfinite(number):
            truncated = int(number)
            if wrap_integer(truncated, to) == truncated:
                return Const(truncated, to)
    if isinstance(value, Broadcast):
        return Broadcast(cast_to(value.value, to.scalar), value.lanes)
    return Cast(value, to)


def all_of(conditions: Iterable[ExprLike]) -> Expr:
    """The conjunction; true if there is none."""
    result: Expr = Const(True, dt.bool_)
    for c in conditions:
        result = and_(result, c)
    return result


def any_of(conditions: Iterable[ExprLike]) -> Expr:
    """The disjunction; false if there is none."""
    result: Expr = Const(False, dt.bool_)
    for c in conditions:
        result = or_(result, c)
    return result


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division rounding up; `b` positive."""
    a, b = _pair(a, b)
    return floordiv(add(a, sub(b, 1)), b)


BUILDERS: dict[type[Binary], Callable[[Expr, Expr], Expr]] = {
    Add: add, Sub: sub, Mul: mul, Div: div, FloorDiv: floordiv, FloorMod: floormod, TruncDiv: truncdiv,
    TruncMod: truncmod, Min: minimum, Max: maximum, BitAnd: bitand, BitOr: bitor, BitXor: bitxor, ShiftLeft: shl,
    ShiftRight: shr, And: and_, Or: or_, Lt: lt, Le: le, Eq: eq, Ne: ne,
}  # fmt: skip
"""Class of a binary node → the function that builds it with constants folded."""


# -- traversal --------------------------------------------------------------------------------------------------------


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of `expr`, parents first."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        children = node.children()
        if children:
            stack.extend(children[::-1])


def size_of(expr: Expr) -> int:
    """How many nodes `expr` has if what is shared counts each time: how long its text is, and how many operations
    computing it takes."""
    try:
        return expr._size
    except AttributeError:
        pass
    stack = [expr]
    while stack:  # no recursion: a formula may be deep
        node = stack[-1]
        missing = [c for c in node.children() if not hasattr(c, "_size")]
        if missing:
            stack += missing
        else:
            stack.pop()
            node._size = 1 + sum(c._size for c in node.children())
    return expr._size


def has(expr: Expr, kinds: type[Expr] | tuple[type[Expr], ...]) -> bool:
    """Whether `expr` or anything in it is of these types."""
    stack, seen = [expr], dict[int, Expr]()
    while stack:
        node = stack.pop()
        if isinstance(node, kinds):
            return True
        children = node.children()
        if children and id(node) not in seen:
            seen[id(node)] = node  # what is shared is looked at once
            stack.extend(children)
    return False


def free_vars(expr: Expr) -> dict[str, Var]:
    """The variables of `expr` by name, in order of first occurrence."""
    if isinstance(expr, Var):
        return {expr.name: expr}
    found: dict[str, Var] = {}
    stack, seen = [expr], dict[int, Expr]()
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            found[node.name] = node
            continue
        children = node.children()
        if children and id(node) not in seen:
            seen[id(node)] = node
            stack.extend(children[::-1])
    return found


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrites bottom-up: `rule` sees each node with its children already rewritten; None keeps the node."""
    children = expr.children()
    if children:
        # A loop, not a generator: no function of the compiler runs more often.
        new = [transform(c, rule) for c in children]
        for n, c in zip(new, children):
            if n is not c:
                expr = expr.with_children(tuple(new))
                break
    result = rule(expr)
    return expr if result is None else result


def substitute(expr: Expr, values: Mapping[str, ExprLike]) -> Expr:
    """`expr` with variables replaced by name; simultaneous."""
    if not values:
        return expr

    def change(e: Expr) -> Expr:
        if type(e) is Const:
            return e
        if type(e) is Var:
            value = values.get(e.name)
            return e if value is None else wrap(value, e.dtype)
        if isinstance(e, Binary):
            a, b = change(e.a), change(e.b)
            return e if a is e.a and b is e.b else BUILDERS[type(e)](a, b)
        children = e.children()
        new = [change(c) for c in children]
        for n, c in zip(new, children):
            if n is not c:
                return e.with_children(tuple(new))
        return e

    return change(expr)
