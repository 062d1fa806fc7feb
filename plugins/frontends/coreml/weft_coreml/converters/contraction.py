"""Convolutions and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_coreml.context import Context
from weft_coreml.registry import op
from weft_frontend.windows import padded, same_pads, transposed_same_pads
from weft_ops.shapes import dim_expr

PADS = ("valid", "custom", "same", "same_lower")


def pads_of(
    c: Context, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Dim, ...]:
    """Pads (begin…, end…) of a window operator."""
    n = len(kernel)
    kind = c.word("pad_type", "valid", PADS)
    if kind == "valid":
        return (0,) * (2 * n)
    if kind == "custom":
        given = c.ints("pad", (0,) * (2 * n))
        if len(given) != 2 * n or min(given, default=0) < 0:
            raise c.error(f"pads {given} of {n} spatial dimension(s)")
        return (*given[0::2], *given[1::2])
    return same_pads(sizes, kernel, strides, dilations, larger_after=kind == "same")


def each(c: Context, name: str, n: int) -> tuple[int, ...]:
    """A positive number for each spatial axis."""
    found = c.ints(name, (1,) * n)
    if len(found) != n or min(found, default=1) < 1:
        raise c.error(f"{name} {found} of {n} spatial dimension(s)")
    return found


def biased(c: Context, y: Value, axis: int = 1, name: str = "bias") -> Value:
    """`y` and a bias per channel, if there is one."""
    bias = c.maybe(name)
    if bias is None:
        return y
    tail = (1,) * (len(y.shape) - axis - 1)
    return c.add(y, c.cast(c.reshape(bias, (*bias.shape, *tail)), y.dtype))


@op("conv")
def conv(c: Context) -> Value:
    x = c.of("x")
    w = c.cast(c.of("weight"), x.dtype)
    if len(w.shape) != len(x.shape) or len(x.shape) < 3:
        raise c.error(f"x has {len(x.shape)} dimension(s), the weight {len(w.shape)}")
    n = len(x.shape) - 2
    strides, dilations = each(c, "strides", n), each(c, "dilations", n)
    kernel = c.static(w.shape[2:], "the size of a window")
    x, pads = padded(c, x, pads_of(c, x.shape[2:], kernel, strides, dilations))
    return biased(c, c(ops.Conv(strides, pads, dilations, c.integer("groups", 1)), x, w))


@op("conv_quantized")
def conv_quantized(c: Context) -> Value:
    raise c.unsupported("quantised weights of an operator of its own, which no Core ML program has")


@op("conv_transpose")
def conv_transpose(c: Context) -> Value:
    x = c.of("x")
    w = c.cast(c.of("weight"), x.dtype)
    n = len(x.shape) - 2
    strides, dilations = each(c, "strides", n), each(c, "dilations", n)
    kernel = c.static(w.shape[2:], "the size of a window")
    kind = c.word("pad_type", "valid", PADS)
    if kind.startswith("same"):
        pads, extra = transposed_same_pads(kernel, strides, dilations)
        if kind == "same_lower":
            pads = (*pads[n:], *pads[:n])
    else:
        given = pads_of(c, x.shape[2:], kernel, strides, dilations)
        pads, extra = c.static(given, "pads"), (0,) * n
    if c.has("output_shape"):
        wanted = c.ints("output_shape")[-n:]
        sizes = c.static(x.shape[2:], "sizes beside an output shape")
        extra = tuple(
            out - ((size - 1) * s + (k - 1) * d + 1 - before - after)
            for out, size, s, k, d, before, after in zip(
                wanted, sizes, strides, kernel, dilations, pads[:n], pads[n:], strict=True
            )
        )
    # Less than there would be is cut at the end, as if it was padded more.
    pads = (*pads[:n], *(after + max(-e, 0) for after, e in zip(pads[n:], extra)))
    made = ops.ConvTranspose(strides, pads, dilations, tuple(max(e, 0) for e in extra), c.integer("groups", 1))
    return biased(c, c(made, x, w))


@op("linear")
def linear(c: Context) -> Value:
    x = c.of("x")
    w = c.cast(c.of("weight"), x.dtype)
    y = c(ops.MatMul(), x, c.transpose(w, (1, 0)))
    return biased(c, y, len(y.shape) - 1)


@op("matmul")
def matmul(c: Context) -> Value:
    """Of two element types the result has that of the operand that is no constant, as the program declares it."""
    x, y = c.of("x"), c.of("y")
    to = c.declared[0][0] or x.dtype
    if x.dtype != y.dtype:
        wide = dt.float32 if x.dtype.is_float and y.dtype.is_float else x.dtype
        x, y = c.cast(x, wide), c.cast(y, wide)
    if c.flag("transpose_x") and len(x.shape) > 1:
        x = swapped(c, x)
    if c.flag("transpose_y") and len(y.shape) > 1:
        y = swapped(c, y)
    found = c(ops.MatMul(), x, y)
    return c.cast(found, to) if found.dtype.is_float and to.is_float else found


def swapped(c: Context, x: Value) -> Value:
    """The last two axes exchanged."""
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


@op("einsum")
def einsum(c: Context) -> Value:
    values = c.list_of("values")
    return c(ops.Einsum(c.text("equation").replace(" ", "")), *values)


def less(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return as_dim(dim_expr(a) - dim_expr(b))


__all__ = ["biased", "each", "less", "pads_of", "swapped"]
