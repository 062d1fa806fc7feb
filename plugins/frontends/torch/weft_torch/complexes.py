"""Complex numbers, as pairs of tensors. At the borders of a graph they are one tensor of real numbers whose last axis
has two elements, as `torch.view_as_real` gives it."""

from __future__ import annotations

from dataclasses import dataclass

import weft_ops as ops
from weft.dtypes import DType
from weft.graph.nodes import GraphBuilder, Value
from weft.tensor.language import Dim
from weft_ops.composing import Composer


@dataclass(frozen=True, eq=False)
class Complex:
    """What stands for a tensor of complex numbers: its real and its imaginary parts."""

    re: Value
    im: Value

    @property
    def dtype(self) -> DType:
        """Of the parts."""
        return self.re.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.re.shape


def apart(builder: GraphBuilder, x: Value) -> Complex:
    """Numbers whose parts are the last axis."""
    c = Composer(builder)
    return Complex(*(c.pick(x, len(x.shape) - 1, k) for k in range(2)))


def together(builder: GraphBuilder, x: Complex) -> Value:
    """The parts as a last axis."""
    c = Composer(builder)
    shape = (*x.shape, 1)
    return c.concat([c.reshape(x.re, shape), c.reshape(x.im, shape)], len(shape) - 1)


def of_real(builder: GraphBuilder, x: Value) -> Complex:
    """Real numbers as complex ones."""
    return Complex(x, Composer(builder)(ops.Fill(x.dtype, x.shape, 0)))


__all__ = ["Complex", "apart", "of_real", "together"]
