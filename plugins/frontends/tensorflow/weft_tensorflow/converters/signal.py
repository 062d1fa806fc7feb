"""Fourier transforms, and the operators on complex numbers that go with them."""

from __future__ import annotations

import weft_ops as ops
from weft.graph.nodes import Value
from weft_tensorflow.complexes import Complex
from weft_tensorflow.context import Context
from weft_tensorflow.converters.elementwise import angle
from weft_tensorflow.registry import tf_op


def number(c: Context, k: int = 0) -> Complex:
    found = c.operands[k] if k < c.count else None
    if not isinstance(found, Complex):
        raise c.unsupported("a constant or input of complex numbers")
    return found


def part(c: Context, x: Complex, k: int) -> Value:
    return c.pick(x.parts, -1, k)


@tf_op("RFFT", "RFFT2D", "RFFT3D")
def rfft(c: Context) -> Complex:
    """The last axes, each cut or padded to a length."""
    x = c.value(0)
    lengths = c.shape_at(1, "the lengths")
    parts = c(ops.DFT(-2, False, True, lengths[-1]), c.reshape(x, (*x.shape, 1)))
    for k, length in enumerate(reversed(lengths[:-1])):
        parts = c(ops.DFT(-3 - k, False, False, length), parts)
    return Complex(parts)


@tf_op("IRFFT", "IRFFT2D", "IRFFT3D")
def irfft(c: Context) -> Value:
    parts = number(c).parts
    lengths = c.shape_at(1, "the lengths")
    for k, length in enumerate(reversed(lengths[:-1])):
        parts = c(ops.DFT(-3 - k, True, False, length), parts)
    return c.pick(c(ops.DFT(-2, True, True, lengths[-1]), parts), -1, 0)


@tf_op("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
def fft(c: Context) -> Complex:
    parts = number(c).parts
    axes = int(c.op_type[-2]) if c.op_type.endswith("D") else 1
    for k in range(axes):
        parts = c(ops.DFT(-2 - k, c.op_type.startswith("I")), parts)
    return Complex(parts)


@tf_op("Complex")
def made(c: Context) -> Complex:
    a, b = c.aligned([c.value(0), c.value(1)])
    b = c.add(b, c.mul(a, 0.0)) if a.shape != b.shape else b
    a = c.add(a, c.mul(b, 0.0)) if a.shape != b.shape else a
    return Complex(c.concat([c.reshape(v, (*v.shape, 1)) for v in (a, b)], len(a.shape)))


@tf_op("Real")
def real(c: Context) -> Value:
    return part(c, number(c), 0)


@tf_op("Imag")
def imag(c: Context) -> Value:
    return part(c, number(c), 1)


@tf_op("ComplexAbs")
def magnitude(c: Context) -> Value:
    x = number(c).parts
    return c(ops.Sqrt(), c.sum(c.mul(x, x), (len(x.shape) - 1,), False))


@tf_op("Angle")
def phase(c: Context) -> Value:
    x = number(c)
    return angle(c, part(c, x, 1), part(c, x, 0))


@tf_op("Conj")
def conjugate(c: Context) -> Complex:
    x = number(c)
    imaginary = c(ops.Negative(), c.slice(x.parts, -1, 1, 1))
    return Complex(c.concat([c.slice(x.parts, -1, 0, 1), imaginary], len(x.parts.shape) - 1))
