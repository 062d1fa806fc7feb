"""Tensors made of nothing but sizes and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_torch.context import Context, Number
from weft_torch.registry import op


def filled(c: Context, value: Any) -> Value:
    """A tensor of the result's dtype and sizes, of one value."""
    dtype, shape = c.result_dtype(), c.result_shape()
    if isinstance(value, (bool, int, float)):
        # Numbers beyond int64's doubles are kept as they are.
        if dtype.is_integer and abs(value) > 2**53:
            return c.broadcast(c.number(value, dtype), shape)
        return c(ops.Fill(dtype, shape, value))
    return c.broadcast(c.to(value, dtype), shape)


@op("aten.full")
def full(c: Context, size: Any, value: Any, *_: Any) -> Value:
    return filled(c, value)


@op("aten.full_like", "aten.new_full")
def full_like(c: Context, x: Value, *rest: Any) -> Value:
    return filled(c, rest[1] if c.op_type.endswith("new_full") else rest[0])


@op("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.empty.memory_format", "aten.empty_like",
    "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided", "aten.empty_permuted")  # fmt: skip
def zeros(c: Context, *_: Any) -> Value:
    """`empty` promises no values: zeros are as good as others."""
    return filled(c, 0)


@op("aten.ones", "aten.ones_like", "aten.new_ones")
def ones(c: Context, *_: Any) -> Value:
    return filled(c, 1)


@op("aten.scalar_tensor")
def scalar_tensor(c: Context, value: Any, *_: Any) -> Value:
    return c.to(value, c.result_dtype())


@op("aten.arange", "aten.arange.start", "aten.arange.start_step")
def arange(c: Context, first: Any, *rest: Any) -> Value:
    """In float64 or int64, as PyTorch counts."""
    name = c.op_type.rpartition(".")[2]
    start, step = (0, 1) if name == "arange" else (first, 1) if name == "start" else (first, rest[1])
    dtype = c.result_dtype()
    whole = all(not isinstance(v, float) for v in (start, step))
    line = c(ops.Iota(dt.int64 if whole else dt.float64, c.result_shape()))
    line = line if isinstance(step, (int, float)) and step == 1 else c.mul(line, c.to(step, line.dtype))
    line = line if isinstance(start, (int, float)) and start == 0 else c.add(line, c.to(start, line.dtype))
    return c.cast(line, dtype)


@op("prims.iota")
def iota(c: Context, length: Any, start: Any, step: Any, *_: Any) -> Value:
    return arange(c, start, None, step)


@op("aten.linspace", "aten.logspace")
def linspace(c: Context, start: Number, end: Number, steps: Dim, *rest: Any) -> Value:
    """From both ends to the middle, as PyTorch computes it."""
    dtype = c.result_dtype()
    (n,) = c.result_shape()
    if not isinstance(n, int):
        raise c.unsupported("a number of steps known only at run time")
    c.affordable(n, "numbers")
    first, last = (np.float64(v) for v in (start, end))
    step = (last - first) / max(n - 1, 1)
    k = np.arange(n)
    line = np.where(k < n // 2, first + step * k, last - step * (n - 1 - k)) if n > 1 else np.full(n, first)
    if "logspace" in c.op_type:
        line = np.power(np.float64(rest[0]), line)
    return c.builder.constant(line.astype(dtype.numpy))


@op("aten.eye", "aten.eye.m")
def eye(c: Context, *_: Any) -> Value:
    rows, columns = c.result_shape()
    return c(ops.Eye(c.result_dtype(), rows, columns))


@op("aten.tril", "aten.triu")
def triangle(c: Context, x: Value, k: int) -> Value:
    upper = c.op_type.endswith("triu")
    if x.dtype.is_bool:
        return c.cast(c(ops.Trilu(upper, k), c.cast(x, dt.uint8)), dt.bool_)
    return c(ops.Trilu(upper, k), x)


@op("aten.tril_indices", "aten.triu_indices")
def triangle_indices(c: Context, rows: int, columns: int, offset: int, *_: Any) -> Value:
    c.affordable(rows * columns, "places of a triangle")
    make = np.tril_indices if "tril" in c.op_type else np.triu_indices
    return c.builder.constant(np.stack(make(rows, offset, columns)).astype(c.result_dtype().numpy))


RANDOM = (
    "bernoulli", "bernoulli.p", "bernoulli.Tensor", "multinomial", "rand", "rand_like", "randn", "randn_like",
    "randint", "randint.low", "randint_like", "randint_like.low_dtype", "randperm", "normal.Tensor_float",
    "normal.Tensor_Tensor", "normal.float_float", "normal.float_Tensor", "uniform", "normal_functional",
    "exponential", "cauchy", "geometric", "log_normal", "poisson", "_standard_gamma", "rrelu_with_noise",
    "binomial", "rand.generator", "randn.generator", "randint.generator", "randint.low_generator", "randperm.generator",
)  # fmt: skip


@op(*(f"aten.{name}" for name in RANDOM))
def random(c: Context, *_: Any) -> Value:
    """Other numbers at every run: what PyTorch would give cannot be given."""
    raise c.unsupported("random numbers")


@op("aten.rrelu_with_noise_functional")
def rrelu(c: Context, x: Value, noise: Value, lower: Number, upper: Number, training: bool, *_: Any) -> Any:
    if training:
        raise c.unsupported("random numbers: the module is training; call eval() before it is exported")
    return c(ops.LeakyRelu((float(lower) + float(upper)) / 2), x), noise


__all__ = ["filled"]
