"""Arithmetic, elementwise: signs, rounding, sums, products, quotients, extremes, casts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.evaluate import convert
from weft.expr.functions import call
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Elementwise, Sample
from weft_ops.elementwise import Binary, Function, Scalar, Unary
from weft_ops.examples import booleans, floats, integers, special
from weft_ops.precision import float_info, in_compute_dtype
from weft_ops.shapes import broadcast, expect_kind, one_dtype, operands


@dataclass(frozen=True)
class Negative(Unary):
    """-x."""

    def formula(self, *args: Expr) -> Expr:
        return -args[0]

    def value(self, *arrays: Any) -> Any:
        return -arrays[0]


@dataclass(frozen=True)
class Absolute(Unary):
    """|x|."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] if args[0].dtype.kind == "uint" else call("abs", args[0])

    def value(self, *arrays: Any) -> Any:
        return np.abs(arrays[0])


@dataclass(frozen=True)
class Sign(Unary):
    """-1, 0 or 1 as x is negative, zero (of either sign) or positive; NaN stays."""

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        one, zero = const(1, x.dtype), const(0, x.dtype)
        if x.dtype.kind == "uint":
            return select(x > 0, one, x)
        # Of floats what is neither negative, zero nor positive is NaN.
        rest = select(e.eq(x, zero), zero, x) if x.dtype.is_float else zero
        return select(x > 0, one, select(x < 0, const(-1, x.dtype), rest))

    def value(self, *arrays: Any) -> Any:
        return np.sign(arrays[0])


@dataclass(frozen=True)
class Floor(Function):
    """The greatest integer not above x."""

    function = "floor"


@dataclass(frozen=True)
class Ceil(Function):
    """The least integer not below x."""

    function = "ceil"


@dataclass(frozen=True)
class Round(Function):
    """The nearest integer, halves to even."""

    function = "round"


@dataclass(frozen=True)
class Trunc(Function):
    """x without its fraction."""

    function = "trunc"


@dataclass(frozen=True)
class Sqrt(Function):
    """The square root; NaN for negatives."""

    function = "sqrt"
    between = (0.0, 9.0)


@dataclass(frozen=True)
class Reciprocal(Unary):
    """1 / x."""

    kinds = ("float",)
    between = (0.25, 4.0)

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return const(1.0, args[0].dtype) / args[0]

    def value(self, *arrays: Any) -> Any:
        return 1 / arrays[0]


@dataclass(frozen=True)
class Add(Binary):
    """a + b; integers wrap."""

    kinds = ("int", "uint", "float", "complex")

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] + args[1]

    def value(self, *arrays: Any) -> Any:
        return np.add(arrays[0], arrays[1])


@dataclass(frozen=True)
class Subtract(Binary):
    """a - b; integers wrap."""

    kinds = ("int", "uint", "float", "complex")

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] - args[1]

    def value(self, *arrays: Any) -> Any:
        return np.subtract(arrays[0], arrays[1])


@dataclass(frozen=True)
class Multiply(Binary):
    """a · b; integers wrap."""

    kinds = ("int", "uint", "float", "complex")

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] * args[1]

    def value(self, *arrays: Any) -> Any:
        return np.multiply(arrays[0], arrays[1])


def _truncating_divide(a: Array, b: Array) -> Array:
    quotient: Array = np.floor_divide(a, b)
    inexact = np.remainder(a, b) != 0
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0))).astype(quotient.dtype))


@dataclass(frozen=True)
class Divide(Binary):
    """a / b; integers truncate towards zero as in C, and by zero are undefined."""

    kinds = ("int", "uint", "float", "complex")

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        a, b = args
        return e.truncdiv(a, b) if a.dtype.is_integer else a / b

    def value(self, *arrays: Any) -> Any:
        a, b = arrays
        return _truncating_divide(a, b) if a.dtype.kind in "iu" else np.divide(a, b)


@dataclass(frozen=True)
class Mod(Binary):
    """a - floor(a / b) · b, with the sign of b."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] % args[1]

    def value(self, *arrays: Any) -> Any:
        return np.mod(arrays[0], arrays[1])

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        # The remainder by infinity differs between definitions; a remainder near a multiple turns on the last bit.
        return ((a, b, name) for a, b, name in super().pairs(lo, hi) if name != "special")


@dataclass(frozen=True)
class Fmod(Mod):
    """The remainder of a / b truncated, with the sign of a, as C's."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return e.truncmod(args[0], args[1])

    def value(self, *arrays: Any) -> Any:
        return np.fmod(arrays[0], arrays[1])


@dataclass(frozen=True)
class Power(Binary):
    """a to the b. Integers wrap; a negative exponent gives the truncated reciprocal (0 unless |a| is 1)."""

    def formula(self, *args: Expr) -> Expr:
        a, b = args
        if a.dtype.is_float:
            return self._float_formula(a, b)
        # A base other than -1, 0, 1 overflows beyond exponent 63, so six bits of the exponent and its parity say
        # everything.
        one: Expr = const(1, a.dtype)
        zero: Expr = const(0, a.dtype)
        result, square = one, a
        for bit in range(6 if a.dtype.bits > 8 else 3):
            result = result * select(e.eq(e.bitand(b >> bit, 1), 1), square, one)
            square = square * square
        odd = e.eq(e.bitand(b, 1), 1)
        unit = e.eq(a, 1) if a.dtype.kind == "uint" else e.or_(e.eq(a, 1), e.eq(a, -1))
        result = select(unit, select(odd, a, one), select(e.and_(e.eq(a, 0), b > 0), zero, result))
        return result if a.dtype.kind == "uint" else select(e.and_(b < 0, e.not_(unit)), zero, result)

    @in_compute_dtype
    def _float_formula(self, *args: Expr) -> Expr:
        return call("pow", args[0], args[1])

    def value(self, *arrays: Any) -> Any:
        a, b = arrays
        if a.dtype.kind == "f":
            return np.power(a, b)
        unit = np.abs(a) == 1
        return np.where(b < 0, np.where(unit, np.where(b % 2 == 0, 1, a), 0), np.power(a, np.maximum(b, 0)))

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        yield floats((3, 5), "float32", 0.1, 3), floats((3, 5), "float32", -2, 3, 1), "float32"
        yield floats((3, 1), "float32", -3, 3), integers((4,), "float32", -2, 3, 1), "whole"
        yield special(), special()[:, None], "special"
        yield floats((5,), "float16", 0.1, 3), floats((), "float16", -2, 2), "float16"
        yield integers((5, 1), "int32", -4, 4), integers((7,), "int32", 0, 5, 1), "int32"
        yield np.array([-1, 0, 1, 2, -1]), np.array([-3, 2, -2, -1, 70]), "int64"
        yield integers((5,), "uint8", 0, 5), integers((5,), "uint8", 0, 3, 1), "uint8"

    def tolerance(self, *types: TensorType) -> float:
        return 16.0


@dataclass(frozen=True)
class Maximum(Binary):
    """The greater; NaN if either is NaN. Booleans: a or b."""

    kinds = ("int", "uint", "float", "bool")

    def formula(self, *args: Expr) -> Expr:
        return e.or_(*args) if args[0].dtype.is_bool else e.maximum(*args)

    def value(self, *arrays: Any) -> Any:
        return np.maximum(arrays[0], arrays[1])


@dataclass(frozen=True)
class Minimum(Binary):
    """The lesser; NaN if either is NaN. Booleans: a and b."""

    kinds = ("int", "uint", "float", "bool")

    def formula(self, *args: Expr) -> Expr:
        return e.and_(*args) if args[0].dtype.is_bool else e.minimum(*args)

    def value(self, *arrays: Any) -> Any:
        return np.minimum(arrays[0], arrays[1])


@dataclass(frozen=True)
class Clip(Scalar):
    """min(max(x, lo), hi) of inputs x, lo, hi; an absent bound does not bound."""

    arity = 3
    optional = True

    def formula(self, *args: Expr | None) -> Expr:
        x, lo, hi = (*args, None, None)[:3]
        assert x is not None
        if lo is not None:
            x = e.maximum(x, lo)
        return x if hi is None else e.minimum(x, hi)

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        """That by x is 1 at the bounds too: what a bound holds may leave it."""
        x, lo, hi = (*operands, None, None)[:3]
        assert x is not None
        if position:
            return super().derivative(position, operands, result)
        inside = e.all_of(e.le(a, b) for a, b in ((lo, x), (x, hi)) if a is not None and b is not None)
        return select(inside, const(1.0, x.dtype), const(0.0, x.dtype))

    def value(self, *arrays: Any) -> Any:
        x, lo, hi = (*arrays, None, None)[:3]
        x = x if lo is None else np.maximum(x, lo)
        return x if hi is None else np.minimum(x, hi)

    def infer(self, *types: Type | None) -> Inferred:
        if not types or types[0] is None or len(types) > 3:
            operands(types[:1], 1)
            raise GraphError(f"expected x, lo and hi, got {len(types)} operands")
        return super().infer(*types, *[None] * (3 - len(types)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((3, 4), "float32", -3, 3)
        yield Sample(cls(), (x, np.array(-1, np.float32), np.array(1, np.float32)), "both")
        yield Sample(cls(), (x, None, np.array(1, np.float32)), "hi")
        yield Sample(cls(), (x, np.array(-1, np.float32), None), "lo")
        yield Sample(cls(), (special(), np.array(2, np.float32), np.array(1, np.float32)), "crossed")
        yield Sample(cls(), (integers((5,), "int8"), np.array(-2, np.int8), np.array(3, np.int8)), "int8")


@dataclass(frozen=True)
class Where(Elementwise):
    """a where the condition holds, else b: inputs cond (bool), a, b; any dtype."""

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        cond, a, b = operands(types, 3)
        expect_kind(cond.dtype, ("bool",), "condition")
        return Inferred(
            TensorType(one_dtype([a, b]), broadcast(cond.shape, a.shape, b.shape, assumed=assumed)), assumed
        )

    def formula(self, *args: Expr) -> Expr:
        return select(args[0], args[1], args[2])

    def reference(self, *arrays: Array | None) -> Array:
        cond, a, b = (np.asarray(x) for x in arrays)
        return np.where(cond, a, b)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (booleans((3, 1)), floats((3, 4)), floats((4,), seed=1)), "broadcast")
        yield Sample(cls(), (booleans((5,)), integers((5,)), integers((), seed=1)), "int64")
        yield Sample(cls(), (booleans((5,)), booleans((5,), 1), booleans((1,), 2)), "bool")


@dataclass(frozen=True)
class Cast(Elementwise):
    """The value in another dtype.

    Float to integer truncates; out of range, which ONNX leaves open, it saturates and NaN becomes 0, but for int32 and
    int64, where it is undefined. Number to bool is x ≠ 0; to a narrower float rounds to even. With `saturate`, what is
    beyond the range of a float of 8 bits or fewer becomes its greatest number, else its infinity or NaN. `rounding` is
    for powers of two (float8_e8m0fnu).
    """

    to: DType
    saturate: bool = False
    rounding: Literal["nearest", "up", "down"] = "nearest"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        if "string" in (x.dtype.kind, self.to.kind):
            raise GraphError(f"cannot cast {x.dtype} to {self.to}", hint="strings are converted on the host")
        return TensorType(self.to, x.shape)

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        if self._power_of_two(x.dtype):
            return self._exponent(cast_to(x, dt.float32))
        if self._clamps(x.dtype):
            greatest = float(float_info(self.to.numpy).max)
            wide = x if x.dtype.bits >= 32 else cast_to(x, dt.float32)
            x = e.minimum(e.maximum(wide, const(-greatest, wide.dtype)), const(greatest, wide.dtype))
        return cast_to(x, self.to)

    def _clamps(self, source: DType) -> bool:
        return self.saturate and source.is_float and self.to.is_float and self.to.bits <= 8

    def _power_of_two(self, source: DType) -> bool:
        return self.to.name == "float8_e8m0fnu" and source != self.to

    def _exponent(self, x: Expr) -> Expr:
        """The exponent field of a float32, rounded by its fraction; 255 is NaN, and negatives have no value."""
        carry = {"nearest": 1 << 22, "up": (1 << 23) - 1, "down": 0}[self.rounding]
        bits = e.Bitcast(x, dt.uint32)
        exponent = e.minimum((bits + carry) >> 23, const(254, dt.uint32))
        beyond = const(254 if self.saturate else 255, dt.uint32)
        usable = e.and_(x >= 0.0, x < math.inf)
        field = select(usable, exponent, select(e.eq(x, math.inf), beyond, const(255, dt.uint32)))
        return e.Bitcast(cast_to(field, dt.uint8), self.to)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        source = dt.dtype(x.dtype)
        with np.errstate(all="ignore"):
            if self._power_of_two(source):
                return self._power_reference(x.astype(np.float32))
            if self._clamps(source):
                greatest = float(float_info(self.to.numpy).max)
                x = np.clip(x.astype(np.float64 if source.bits == 64 else np.float32), -greatest, greatest)
            return np.asarray(x != 0) if self.to.is_bool else np.asarray(convert(x, self.to))

    def _power_reference(self, x: Array) -> Array:
        power = np.log2(np.where((x > 0) & np.isfinite(x), x, 1).astype(np.float64))
        whole = np.floor(power)
        above = x > 1.5 * 2**whole if self.rounding == "nearest" else np.full(x.shape, self.rounding == "up")
        whole = np.clip(
            np.where((2**whole < x) & (above | (self.rounding == "nearest") & (x == 1.5 * 2**whole)), whole + 1, whole),
            -127,
            127,
        )
        result = np.where(x == 0, 2.0**-127, 2.0**whole)
        result = np.where(
            np.isposinf(x), 2.0**127 if self.saturate else np.nan, np.where(np.isnan(x) | (x < 0), np.nan, result)
        )
        return result.astype(self.to.numpy)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for to in (dt.float16, dt.bfloat16, dt.float64, dt.int32, dt.int8, dt.bool_):
            yield Sample(cls(to), (floats((3, 4), "float32", -9, 9),), f"float32_{to}")
        for to in (dt.int2, dt.int4, dt.uint2, dt.uint4, dt.int16, dt.uint64):
            yield Sample(
                cls(to),
                (
                    np.array(
                        [0.5, -0.5, 1.5, -3.7, 7.9, 8, 17.3, -9, 300, 1e6, -1e20, 1e20, np.inf, np.nan], np.float32
                    ),
                ),
                f"float32_{to}",
            )
        for to in (dt.float32, dt.int64, dt.bool_, dt.uint8):
            yield Sample(cls(to), (integers((5,), "int32", -9, 9),), f"int32_{to}")
        yield Sample(cls(dt.float32), (booleans((5,)),), "bool_float32")
        yield Sample(cls(dt.float32), (floats((5,), "float16"),), "float16_float32")
        for to in (dt.float8_e4m3fn, dt.float8_e5m2):
            yield Sample(
                cls(to, saturate=True), (np.array([0.3, 1e6, -1e6, np.inf, np.nan], np.float32),), f"saturate_{to}"
            )
            yield Sample(cls(to), (np.array([0.3, 1e6, -1e6, np.inf, np.nan], np.float32),), f"float32_{to}")
        for rounding in ("nearest", "up", "down"):
            powers = np.array([0, 0.124, 0.25, 1.1, 1.5, 1.7, 3e38, np.inf, np.nan], np.float32)
            yield Sample(cls(dt.float8_e8m0fnu, True, rounding), (powers,), f"powers_{rounding}")


@dataclass(frozen=True)
class Bitcast(Elementwise):
    """The same bits as another dtype of the same width."""

    to: DType

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        if x.dtype.bits != self.to.bits and {x.dtype.name, self.to.name} not in ({"bool", "uint8"}, {"bool", "int8"}):
            raise GraphError(f"bitcast: expected a dtype of {x.dtype.bits} bits, got {self.to}")
        return TensorType(self.to, x.shape)

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        if x.dtype == self.to:
            return x
        if x.dtype.is_bool or self.to.is_bool:
            return cast_to(x, self.to)
        return e.Bitcast(x, self.to)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return np.ascontiguousarray(x).reshape(x.shape).view(self.to.numpy)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.int32), (floats((3, 4)),), "float32_int32")
        yield Sample(cls(dt.uint8), (booleans((4,)),), "bool_uint8")


__all__ = [
    "Absolute", "Add", "Bitcast", "Cast", "Ceil", "Clip", "Divide", "Floor", "Fmod", "Maximum", "Minimum", "Mod",
    "Multiply",
    "Negative", "Power", "Reciprocal", "Round", "Sign", "Sqrt", "Subtract", "Trunc", "Where",
]  # fmt: skip
