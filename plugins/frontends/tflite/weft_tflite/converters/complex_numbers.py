"""Complex numbers, as pairs of real ones: Fourier transforms give them, and few operators take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft_tflite.context import Complex, Context
from weft_tflite.converters import movement
from weft_tflite.registry import complex_op, tflite_op


@tflite_op("RFFT2D")
def rfft2d(c: Context) -> Complex:
    """Of the last two axes, cut or padded with zeros to the given lengths; half of the last one is given."""
    x = c.value(0)
    lengths = c.numbers(1, "the lengths")
    assert lengths is not None
    if len(lengths) != 2 or min(lengths) < 1:
        raise c.error(f"expected two lengths from 1, got {list(lengths)}")
    rank = len(x.shape)
    if rank < 2:
        raise c.error(f"expected 2 axes or more, got {rank}")
    x = c.reshape(x, (*x.shape, 1))
    x = c(ops.DFT(rank - 1, onesided=True, length=lengths[1]), x)
    if x.shape[rank - 2] != 1 or lengths[0] != 1:
        x = c(ops.DFT(rank - 2, length=lengths[0]), x)
    return Complex(c.pick(x, -1, 0), c.pick(x, -1, 1))


def _by_parts(converter: Callable[[Context], Any]) -> Callable[[Context], Complex]:
    """Of both parts what `converter` makes of real numbers."""

    def convert(c: Context) -> Complex:
        operands = list(c.operands)
        parts = []
        for name in ("real", "imaginary"):
            c.operands = [getattr(o, name) if isinstance(o, Complex) else o for o in operands]
            parts.append(converter(c))
        return Complex(*parts)

    return convert


for _name, _converter in (
    ("RESHAPE", movement.reshape), ("SQUEEZE", movement.squeeze), ("EXPAND_DIMS", movement.expand_dims),
    ("TRANSPOSE", movement.transpose),
):  # fmt: skip
    complex_op(_name)(_by_parts(_converter))


def _parts(c: Context) -> Complex:
    (found,) = c.operands
    assert isinstance(found, Complex)
    return found


@complex_op("REAL")
def real(c: Context) -> Value:
    return _parts(c).real


@complex_op("IMAG")
def imaginary(c: Context) -> Value:
    return _parts(c).imaginary


@complex_op("CAST")
def cast(c: Context) -> Value:
    """To real numbers: the imaginary parts are dropped."""
    return c.cast(_parts(c).real, c.output_dtype())


@complex_op("COMPLEX_ABS")
def magnitude(c: Context) -> Value:
    """As std::abs: without overflow of the squares."""
    x = _parts(c)
    a, b = c(ops.Absolute(), x.real), c(ops.Absolute(), x.imaginary)
    most, least = c(ops.Maximum(), a, b), c(ops.Minimum(), a, b)
    ratio = c.div(least, c(ops.Where(), c(ops.Equal(), most, 0), c.number(1, most.dtype), most))
    return c.mul(most, c(ops.Sqrt(), c.add(c.mul(ratio, ratio), 1)))
