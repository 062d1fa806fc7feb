"""Quantisation: numbers as small integers or floats times a scale. Composites of casts, products and clips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, as_dim
from weft_ops.arithmetic import Cast, Clip, Maximum, Minimum, Round, Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer
from weft_ops.contraction import Conv, MatMul
from weft_ops.examples import floats, integers
from weft_ops.precision import rounded
from weft_ops.reduction import ReduceMax, ReduceMin
from weft_ops.shapes import axis_of, dim_ceildiv, expect_kind, is_one, operands, product, same, show, tensor, unify


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and greatest value of an integer dtype."""
    half = 1 << (dtype.bits - 1)
    return (-half, half - 1) if dtype.kind == "int" else (0, 2 * half - 1)


def check_scale(x: Sequence[Dim], scale: Sequence[Dim], axis: int, block: int, what: str) -> list[Assumption]:
    """Raises GraphError unless `scale` is one element, a vector along `axis`, or (block > 0) has x's shape with `axis`
    divided by `block`; what is left to a run."""
    if is_one(product(scale)) and block == 0:
        return []
    axis = axis_of(axis, len(x))
    if block == 0:
        if len(scale) != 1:
            raise GraphError(f"{what}: expected one element or a vector, got shape {show(scale)}")
        assumed: list[Assumption] = []
        unify(x[axis], scale[0], what, assumed)
        return assumed
    want = [dim_ceildiv(d, block) if k == axis else d for k, d in enumerate(x)]
    if len(scale) != len(x) or any(same(a, b) is False for a, b in zip(want, scale)):
        raise GraphError(f"{what}: expected shape {show(want)}, got {show(scale)}")
    return []


def spread(c: Composer, scale: Value, x: Sequence[Dim], axis: int, block: int) -> Value:
    """A scale or zero point so that it broadcasts to x."""
    if is_one(product(scale.shape)) and block == 0:
        return c.reshape(scale, ())
    axis = axis_of(axis, len(x))
    if block == 0:
        return c.reshape(scale, (scale.shape[0], *(1 for _ in x[axis + 1 :])))
    lead, tail = scale.shape[:axis], scale.shape[axis + 1 :]
    repeated = c.broadcast(
        c.reshape(scale, (*lead, scale.shape[axis], 1, *tail)), (*lead, scale.shape[axis], block, *tail)
    )
    whole = c.reshape(repeated, (*lead, as_dim(scale.shape[axis] * block), *tail))
    return whole if same(whole.shape[axis], x[axis]) else c.slice(whole, axis, 0, x[axis])


def spread_array(scale: Array, x: Sequence[int], axis: int, block: int) -> Array:
    """`spread` by numpy."""
    if scale.size == 1 and block == 0:
        return scale.reshape(())
    axis %= len(x)
    if block == 0:
        return scale.reshape(-1, *(1 for _ in x[axis + 1 :]))
    return np.repeat(scale, block, axis).take(range(x[axis]), axis)


def to_float(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def quantized(value: Array, zero: Array | None, to: DType, saturate: bool) -> Array:
    """Scaled floats as `to`."""
    if to.is_integer:
        lo, hi = integer_range(to)
        shifted = np.rint(value) + (0 if zero is None else zero.astype(np.float32))
        return np.clip(shifted, lo, hi).astype(np.int32).astype(to.numpy)
    return Cast(to, saturate).reference(value if zero is None else value + to_float(zero))


def quantize(c: Composer, value: Value, zero: Value | None, to: DType, saturate: bool) -> Value:
    """Scaled floats as `to`: rounded half to even, moved by `zero`, cut to the range."""
    if to.is_integer:
        lo, hi = integer_range(to)
        value = c(Round(), value)
        value = value if zero is None else c.add(value, c.cast(c.cast(zero, dt.int32), value.dtype))
        bounded = c(Clip(), value, c.number(lo, value.dtype), c.number(hi, value.dtype))
        return c.cast(c.cast(bounded, dt.int32), to)
    return c(Cast(to, saturate), value if zero is None else c.add(value, c.cast(zero, value.dtype)))


class Quantization(Operator):
    """Composite; results of integers may differ by one where a quotient is almost halfway."""

    kind = "composite"

    def tolerance(self, *types: TensorType) -> float:
        return 4.0


@dataclass(frozen=True)
class Quantize(Quantization):
    """round(x / scale) + zero, cut to the range of `to`; inputs x, scale, zero (optional).

    One scale, a vector along `axis`, or with `block` one per block along `axis`. Floats of 8 bits or fewer round
    themselves; `saturate` as Cast's.
    """

    to: DType
    axis: int = 1
    block: int = 0
    saturate: bool = True

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a scale or zero point whose shape does not fit."""
        x, scale = operands(types[:2], 2)
        expect_kind(x.dtype, ("float", "int"))
        expect_kind(scale.dtype, ("float",), "scale")
        assumed = check_scale(x.shape, scale.shape, self.axis, self.block, "scale")
        if len(types) > 2 and types[2] is not None:
            assumed += check_scale(x.shape, tensor(types[2]).shape, self.axis, self.block, "zero point")
        return Inferred(TensorType(self.to, x.shape), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, scale, zero = (*arrays, None)[:3]
        assert x is not None and scale is not None
        with np.errstate(all="ignore"):
            value = to_float(x) / to_float(spread_array(scale, x.shape, self.axis, self.block))
        return quantized(
            value, None if zero is None else spread_array(zero, x.shape, self.axis, self.block), self.to, self.saturate
        )

    @algorithm("decompose")
    def scaled(self, builder: GraphBuilder, x: Value, scale: Value, zero: Value | None = None) -> Value:
        c = Composer(builder)
        wide = dt.float64 if x.dtype == dt.float64 else dt.float32
        value = c.div(c.cast(x, wide), c.cast(spread(c, scale, x.shape, self.axis, self.block), wide))
        return quantize(
            c, value, None if zero is None else spread(c, zero, x.shape, self.axis, self.block), self.to, self.saturate
        )

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((2, 3, 4), lo=-9, hi=9)
        yield Sample(cls(dt.uint8), (x, np.array(0.05, np.float32), np.array(120, np.uint8)), "tensor")
        yield Sample(
            cls(dt.int8, 1), (x, np.array([0.05, 0.1, 0.02], np.float32), np.array([0, 3, -5], np.int8)), "axis"
        )
        yield Sample(cls(dt.int8, -1, 2), (x, floats((2, 3, 2), lo=0.05, hi=0.1)), "block")
        yield Sample(cls(dt.int16, -1, 3), (x, floats((2, 3, 2), lo=0.05, hi=0.1)), "ragged_block")
        yield Sample(cls(dt.int4), (x, np.array([1.0], np.float32), np.array([1], ml_dtypes.int4)), "int4")
        yield Sample(cls(dt.float8_e4m3fn), (x * 100, np.array(1.0, np.float32)), "float8")
        yield Sample(cls(dt.uint8), (x.astype(np.float16), np.array(0.05, np.float16)), "float16")


@dataclass(frozen=True)
class Dequantize(Quantization):
    """(x - zero) · scale in `to` (None: the scale's dtype); inputs x, scale, zero (optional); axis and block as
    Quantize's."""

    axis: int = 1
    block: int = 0
    to: DType | None = None
    folds_late = True

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a scale or zero point whose shape does not fit."""
        x, scale = operands(types[:2], 2)
        expect_kind(scale.dtype, ("float",), "scale")
        assumed = check_scale(x.shape, scale.shape, self.axis, self.block, "scale")
        if len(types) > 2 and types[2] is not None:
            assumed += check_scale(x.shape, tensor(types[2]).shape, self.axis, self.block, "zero point")
        return Inferred(TensorType(self.to or scale.dtype, x.shape), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, scale, zero = (*arrays, None)[:3]
        assert x is not None and scale is not None
        value = x.astype(np.float64)
        if zero is not None:
            value = value - spread_array(zero, x.shape, self.axis, self.block).astype(np.float64)
        return rounded(
            value * spread_array(scale, x.shape, self.axis, self.block).astype(np.float64),
            self.to or dt.dtype(scale.dtype),
        )

    @algorithm("decompose")
    def scaled(self, builder: GraphBuilder, x: Value, scale: Value, zero: Value | None = None) -> Value:
        c = Composer(builder)
        value = c.cast(x, dt.int32) if x.dtype.is_integer else c.cast(x, dt.float32)
        if zero is not None:
            value = c.sub(value, c.cast(spread(c, zero, x.shape, self.axis, self.block), value.dtype))
        wide = dt.float64 if scale.dtype == dt.float64 else dt.float32
        result = c.mul(c.cast(value, wide), c.cast(spread(c, scale, x.shape, self.axis, self.block), wide))
        return c.cast(result, self.to or scale.dtype)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = integers((2, 3, 4), "uint8", 0, 255)
        yield Sample(cls(), (x, np.array(0.05, np.float32), np.array(120, np.uint8)), "tensor")
        yield Sample(cls(1), (x, np.array([0.05, 0.1, 0.02], np.float32), np.array([0, 3, 5], np.uint8)), "axis")
        yield Sample(cls(-1, 2), (x, floats((2, 3, 2), lo=0.05, hi=0.1)), "block")
        yield Sample(cls(), (floats((2, 3)).astype(ml_dtypes.float8_e5m2), np.array(0.5, np.float16)), "float8")
        yield Sample(cls(to=dt.float16), (integers((2, 3), "int32"), np.array(0.5, np.float32)), "to")


@dataclass(frozen=True)
class DynamicQuantize(Quantization):
    """Quantises x by its own range (which is made to hold 0): outputs y uint8, scale, zero point uint8.

    A range of zeros alone is taken to be of length 1, as ONNX's reference of DynamicQuantizeLinear does: the scale is
    never 0 for that reason.
    """

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        return TensorType(dt.uint8, x.shape), TensorType(x.dtype, ()), TensorType(dt.uint8, ())

    def reference(self, *arrays: Array | None) -> Any:
        (x,) = arrays
        assert x is not None
        lo, hi = np.minimum(x.min(initial=0), x.dtype.type(0)), np.maximum(x.max(initial=0), x.dtype.type(0))
        scale = np.asarray(np.where(hi == lo, x.dtype.type(1), hi - lo) / x.dtype.type(255), x.dtype)
        divisor = np.where(scale == 0, x.dtype.type(1), scale)
        zero = np.asarray(np.clip(np.rint(-lo / divisor), 0, 255)).astype(np.uint8)
        return quantized(x / divisor, zero, dt.uint8, True), scale, zero

    @algorithm("decompose")
    def measured(self, builder: GraphBuilder, x: Value) -> tuple[Value, Value, Value]:
        c = Composer(builder)
        lo, hi = c(Minimum(), c(ReduceMin(), x), 0.0), c(Maximum(), c(ReduceMax(), x), 0.0)
        length = c(Where(), c(Equal(), hi, lo), c.number(1.0, x.dtype), c.sub(hi, lo))
        scale = c.div(length, 255.0)
        # Of a subnormal range the scale may round to 0.
        divisor = c(Where(), c(Equal(), scale, 0.0), c.number(1.0, x.dtype), scale)
        zero = quantize(c, c.div(c.sub(0.0, lo), divisor), None, dt.uint8, True)
        return quantize(c, c.div(x, divisor), zero, dt.uint8, True), scale, zero

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((3, 4)),), "both")
        yield Sample(cls(), (floats((3, 4), lo=1, hi=2),), "positive")
        yield Sample(cls(), (np.zeros((2, 2), np.float32),), "zero")


def shifted(c: Composer, x: Value, zero: Value | None, column: bool) -> Value:
    """x - zero in int32; a vector of zero points is one per row of x (a column vector) or per column."""
    wide = c.cast(x, dt.int32)
    if zero is None:
        return wide
    return c.sub(wide, c.cast(as_factor(c, zero, column), dt.int32))


def as_factor(c: Composer, v: Value, column: bool) -> Value:
    if is_one(product(v.shape)):
        return c.reshape(v, ())
    return c.reshape(v, (*v.shape, 1)) if column and len(v.shape) == 1 else v


def as_factor_array(v: Array, column: bool) -> Array:
    if v.size == 1:
        return v.reshape(())
    return v[:, None] if column and v.ndim == 1 else v


@dataclass(frozen=True)
class MatMulInteger(Quantization):
    """(a - a_zero) · (b - b_zero) in int32; inputs a, b, a_zero (one or one per row), b_zero (one or one per column),
    the latter optional."""

    no_gradient = "it computes with integers"

    def infer(self, *types: Type | None) -> Inferred:
        a, b = operands(types[:2], 2)
        for t in (a, b):
            expect_kind(t.dtype, ("int", "uint"))
        return MatMul(dt.int32).infer(a, b)

    def reference(self, *arrays: Array | None) -> Array:
        a, b, a_zero, b_zero = (*arrays, None, None)[:4]
        assert a is not None and b is not None
        wide = a.astype(np.int32) - (0 if a_zero is None else as_factor_array(a_zero, True).astype(np.int32))
        other = b.astype(np.int32) - (0 if b_zero is None else as_factor_array(b_zero, False).astype(np.int32))
        return np.asarray(np.matmul(wide, other), np.int32)

    @algorithm("decompose")
    def widened(
        self, builder: GraphBuilder, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
    ) -> Value:
        c = Composer(builder)
        if a_zero is None and b_zero is None:
            return c(MatMul(dt.int32), a, b)
        return c(MatMul(), shifted(c, a, a_zero, True), shifted(c, b, b_zero, False))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        a, b = integers((4, 3), "uint8", 0, 255), integers((3, 2), "int8", -128, 127)
        yield Sample(cls(), (a, b), "plain")
        yield Sample(cls(), (a, b, np.array([12], np.uint8), np.array([0], np.int8)), "zeros")
        yield Sample(cls(), (a, b, integers((4,), "uint8", 0, 9), integers((2,), "int8", -9, 9)), "vectors")


@dataclass(frozen=True)
class ConvInteger(Quantization):
    """Conv of (x - x_zero) with (w - w_zero) in int32; attributes as Conv's.

    Inputs x, w, x_zero, w_zero (one or one per output channel), the latter two optional.
    """

    no_gradient = "it computes with integers"
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    groups: int = 1

    def conv(self) -> Conv:
        return Conv(self.strides, self.pads, self.dilations, self.groups, dt.int32)

    def infer(self, *types: Type | None) -> Inferred:
        return self.conv().infer(*types[:2])

    def reference(self, *arrays: Array | None) -> Array:
        x, w, x_zero, w_zero = (*arrays, None, None)[:4]
        assert x is not None and w is not None
        wide = x.astype(np.int32) - (0 if x_zero is None else x_zero.astype(np.int32).reshape(()))
        per_channel = 0 if w_zero is None else w_zero.astype(np.int32).reshape((-1, *(1 for _ in w.shape[1:])))
        return self.conv().reference(wide, w.astype(np.int32) - per_channel)

    @algorithm("decompose")
    def widened(
        self, builder: GraphBuilder, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None
    ) -> Value:
        c = Composer(builder)
        if x_zero is not None or w_zero is not None:
            x = shifted(c, x, x_zero, False)
            ones = (1,) * (len(w.shape) - 1)
            per_channel = None if w_zero is None else c.reshape(w_zero, (-1, *ones))
            w = (
                c.cast(w, dt.int32)
                if per_channel is None
                else c.sub(c.cast(w, dt.int32), c.cast(per_channel, dt.int32))
            )
        return c(self.conv(), x, w)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, w = integers((1, 2, 4, 4), "uint8", 0, 255), integers((3, 2, 3, 3), "int8", -128, 127)
        yield Sample(cls(), (x, w), "plain")
        yield Sample(cls((2, 2), (1, 1, 1, 1)), (x, w, np.array(7, np.uint8), integers((3,), "int8")), "zeros")


@dataclass(frozen=True)
class QLinearMatMul(Quantization):
    """Matrix product of quantised numbers; inputs a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, whose dtype
    the result has.

    The sum is multiplied by a_scale·b_scale/y_scale, a constant where scales are.
    """

    no_gradient = "it computes with integers"

    def infer(self, *types: Type | None) -> Inferred:
        a, _, _, b, _, _, _, zero = operands(types, 8)
        total = MatMul(dt.int32).infer(a, b)
        return Inferred(TensorType(zero.dtype, tensor(total.type).shape), total.assumes)

    def reference(self, *arrays: Array | None) -> Array:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (x for x in arrays if x is not None)
        total = MatMulInteger().reference(a, b, a_zero, b_zero).astype(np.float32)
        factor = (
            as_factor_array(to_float(a_scale), True)
            * as_factor_array(to_float(b_scale), False)
            / as_factor_array(to_float(y_scale), True)
        )
        return quantized(total * factor, as_factor_array(y_zero, True), dt.dtype(y_zero.dtype), True)

    @algorithm("decompose")
    def requantized(
        self,
        builder: GraphBuilder,
        a: Value,
        a_scale: Value,
        a_zero: Value,
        b: Value,
        b_scale: Value,
        b_zero: Value,
        y_scale: Value,
        y_zero: Value,
    ) -> Value:
        c = Composer(builder)
        total = c.cast(c(MatMulInteger(), a, b, a_zero, b_zero), dt.float32)
        wide = [
            c.cast(as_factor(c, s, column), dt.float32)
            for s, column in ((a_scale, True), (b_scale, False), (y_scale, True))
        ]
        value = c.mul(total, c.div(c.mul(wide[0], wide[1]), wide[2]))
        return quantize(c, value, as_factor(c, y_zero, True), y_zero.dtype, True)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        one: Callable[..., Any] = lambda v, d: np.array([v], d)
        a, b = integers((2, 4), "uint8", 0, 255), integers((4, 3), "int8", -128, 127)
        scales = one(0.01, np.float32), one(0.02, np.float32), one(0.05, np.float32)
        given = (a, scales[0], one(100, np.uint8), b, scales[1], one(3, np.int8), scales[2], one(9, np.int8))
        yield Sample(cls(), given, "tensor")


@dataclass(frozen=True)
class QLinearConv(Quantization):
    """Conv of quantised numbers; inputs x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias int32 (optional);
    attributes as Conv's.

    The sum is multiplied by x_scale·w_scale/y_scale, a constant where scales are.
    """

    no_gradient = "it computes with integers"
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    groups: int = 1

    def conv(self) -> ConvInteger:
        return ConvInteger(self.strides, self.pads, self.dilations, self.groups)

    def infer(self, *types: Type | None) -> Inferred:
        x, _, _, w, _, _, _, zero = operands(types[:8], 8)
        total = self.conv().infer(x, w)
        return Inferred(TensorType(zero.dtype, tensor(total.type).shape), total.assumes)

    def reference(self, *arrays: Array | None) -> Array:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*arrays, None)[:9]
        assert (
            x is not None
            and x_scale is not None
            and w is not None
            and w_scale is not None
            and y_scale is not None
            and y_zero is not None
        )
        total = self.conv().reference(x, w, x_zero, w_zero)
        channel = (-1, *(1 for _ in x.shape[2:]))
        if bias is not None:
            total = total + bias.reshape(channel)
        factor = to_float(x_scale).reshape(()) * (
            to_float(w_scale).reshape(()) if w_scale.size == 1 else to_float(w_scale).reshape(channel)
        )
        value = total.astype(np.float32) * (factor / to_float(y_scale).reshape(()))
        return quantized(value, y_zero.reshape(()), dt.dtype(y_zero.dtype), True)

    @algorithm("decompose")
    def requantized(
        self, builder: GraphBuilder, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value, w_zero: Value,
        y_scale: Value, y_zero: Value,
        bias: Value | None = None,
    ) -> Value:  # fmt: skip
        c = Composer(builder)
        total = c(self.conv(), x, w, x_zero, w_zero)
        channel = (-1, *(1 for _ in x.shape[2:]))
        if bias is not None:
            total = c.add(total, c.reshape(bias, channel))
        single: Callable[..., Any] = lambda v: c.cast(c.reshape(v, ()), dt.float32)
        per_channel = (
            single(w_scale) if is_one(product(w_scale.shape)) else c.cast(c.reshape(w_scale, channel), dt.float32)
        )
        value = c.mul(c.cast(total, dt.float32), c.div(c.mul(single(x_scale), per_channel), single(y_scale)))
        return quantize(c, value, c.reshape(y_zero, ()), y_zero.dtype, True)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, w = integers((1, 2, 4, 4), "uint8", 0, 255), integers((3, 2, 3, 3), "int8", -128, 127)
        f = np.float32
        common = (x, np.array(0.01, f), np.array(100, np.uint8), w)
        yield Sample(
            cls(), (*common, np.array(0.02, f), np.array(3, np.int8), np.array(0.2, f), np.array(9, np.int8)), "tensor"
        )
        bias = integers((3,), "int32", -999, 999)
        vector = np.array([0.01, 0.02, 0.03], f)
        yield Sample(
            cls((1, 1), (1, 1, 1, 1)),
            (*common, vector, integers((3,), "int8"), np.array(0.2, f), np.array(9, np.uint8), bias),
            "channels",
        )


__all__ = ["ConvInteger", "Dequantize", "DynamicQuantize", "MatMulInteger", "QLinearConv", "QLinearMatMul", "Quantize"]
