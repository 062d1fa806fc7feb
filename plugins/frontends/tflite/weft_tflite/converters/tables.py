"""Functions of quantised numbers of eight bits: tables of their 256 results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_tflite.context import Context
from weft_tflite.converters import micro
from weft_tflite.converters.quantized import (
    EIGHT,
    bounded,
    eight_bits,
    scaled,
    shifted,
    single,
)
from weft_tflite.converters.rounding import number, rounded_value
from weft_tflite.fixed_point import bounds_of, table_of
from weft_tflite.registry import quantized_op

Array = np.ndarray[Any, Any]
F32 = np.float32


def looked_up(c: Context, x: Value, table: Array, name: str = "table") -> Value:
    """The elements of a table of 256, the first for the least number of the dtype."""
    low, _ = bounds_of(x.dtype)
    places = c.sub(c.cast(x, dt.int32), low) if low else c.cast(x, dt.int32)
    return c.gather(c.builder.constant(table, name), places, 0)


def exact(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of float32 that rounds once."""
    return lambda x: function(x.astype(np.float64)).astype(F32)


EXP = exact(np.exp)
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "LOGISTIC": lambda x: F32(1) / (F32(1) + EXP(-x)),
    "TANH": exact(np.tanh),
    "ELU": lambda x: np.where(x < 0, exact(np.expm1)(np.minimum(x, 0)), x).astype(F32),
    "EXP": EXP,
}
"""By operator: what LiteRT computes in float32 for each of the 256 numbers."""


def _by_table(function: Callable[[Array], Array]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        eight_bits(c, 0)
        x, y = single(c, c.scale(0), "the operand"), single(c, c.output_scale(), "the result")
        return looked_up(c, c.value(0), table_of(function, x, y, c.output_dtype()))

    return convert


for _name, _function in FUNCTIONS.items():
    quantized_op(_name)(_by_table(_function))


@quantized_op("GELU")
def gelu(c: Context) -> Value:
    def approximate(x: Array) -> Array:
        return F32(0.5) * x * (F32(1) + exact(np.tanh)(F32(0.7978845608028654) * (x + F32(0.044715) * x * x * x)))

    def by_erf(x: Array) -> Array:
        erf = exact(np.vectorize(math.erf))
        return F32(0.5) * x * (F32(1) + erf(x * F32(0.7071067811865476)))

    return _by_table(approximate if c.flag("approximate") else by_erf)(c)


def _clip(low: float, high: float | None) -> Callable[[Context], Value]:
    """max(low, min(x, high)) between different scales."""

    def convert(c: Context) -> Value:
        from weft_tflite.fixed_point import rounded

        eight_bits(c, 0)
        out, dtype = single(c, c.output_scale(), "the result"), c.output_dtype()
        least, most = bounds_of(dtype)
        zero = int(out.zero[0])
        first = max(least, zero + rounded(float(F32(low) / out.scale[0])))
        last = most if high is None else min(most, zero + rounded(float(F32(high) / out.scale[0])))
        real = float(F32(single(c, c.scale(0), "the operand").scale[0] / out.scale[0]))
        y = c.add(scaled(c, shifted(c, 0), real), zero)
        return c.cast(c(ops.Minimum(), c(ops.Maximum(), y, first), last), dtype)

    return convert


quantized_op("RELU")(_clip(0.0, None))
quantized_op("RELU6")(_clip(0.0, 6.0))
quantized_op("RELU_N1_TO_1")(_clip(-1.0, 1.0))
quantized_op("RELU_0_TO_1")(_clip(0.0, 1.0))


@quantized_op("LEAKY_RELU")
def leaky_relu(c: Context) -> Value:
    eight_bits(c, 0)
    x, y = single(c, c.scale(0), "the operand").scale[0], single(c, c.output_scale(), "the result").scale[0]
    alpha = F32(c.op.options["alpha"])
    if alpha < 0:
        raise c.unsupported("a slope below 0")
    given = shifted(c, 0)
    same, less = scaled(c, given, float(F32(x / y))), scaled(c, given, float(F32(F32(x * alpha) / y)))
    return bounded(c, c(ops.Where(), c(ops.GreaterEqual(), given, 0), same, less))


@quantized_op("SOFTMAX")
def softmax(c: Context) -> Value:
    """Exponentials from a table, summed in order, in float32."""
    if c.importer.kernels == "micro":
        return micro.softmax(c)
    x = c.value(0)
    if x.dtype not in EIGHT or c.output_dtype() != x.dtype:
        raise c.unsupported(f"quantised {x.dtype} to {c.output_dtype()}")
    out, beta = single(c, c.output_scale(), "the result"), F32(c.op.options["beta"])
    factor = F32(-c.scale(0).scale[0] * beta)
    table = EXP(factor * np.arange(256).astype(F32))
    wide = c.cast(x, dt.int32)
    below = c.sub(c.max(wide, (-1,)), wide)
    powers = c.gather(c.builder.constant(table, "table"), below, 0)
    last = powers.shape[-1]
    total = c.slice(c(ops.CumSum(len(x.shape) - 1), powers), -1, _before(last), 1)
    inverse = c.div(number(c, 1, dt.float32), c.mul(total, number(c, out.scale[0], dt.float32)))
    scaled_ = c.mul(powers, inverse)
    whole = c(ops.Floor(), c.add(scaled_, 0.5)) if x.dtype == dt.uint8 else rounded_value(c, scaled_)
    low, high = bounds_of(x.dtype)
    y = c.add(c.cast(whole, dt.int32), int(out.zero[0]))
    return c.cast(c(ops.Minimum(), c(ops.Maximum(), y, low), high), x.dtype)


def _before(size: Any) -> Any:
    from weft.tensor.language import as_dim
    from weft_ops.shapes import dim_expr, simplified

    return size - 1 if isinstance(size, int) else simplified(as_dim(dim_expr(size) - 1))
