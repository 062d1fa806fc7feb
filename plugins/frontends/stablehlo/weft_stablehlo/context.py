"""What a converter sees of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxlib.mlir import ir

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import GraphBuilder, Value
from weft.tensor.language import Dim
from weft_frontend.context import Context as Base
from weft_frontend.operands import Absent
from weft_ops.shapes import product
from weft_stablehlo.attributes import keyword, place_of, plain
from weft_stablehlo.tensors import Tensor, array_of, tensor_type

if TYPE_CHECKING:
    from weft_stablehlo.importer import ModuleImporter
    from weft_stablehlo.values import Values


class Complex(list[Any]):
    """An operand of complex numbers: the value of its real parts, that of its imaginary parts."""


class Context(Base):
    """An operation: operands by number, attributes by name, regions by number."""

    importer: ModuleImporter

    def __init__(
        self,
        importer: ModuleImporter,
        op: Any,
        op_type: str,
        name: str,
        operands: Sequence[Any],
        values: Values,
        domain: str = "",
    ) -> None:
        self.importer = importer
        super().__init__(importer, op_type, name, operands, domain=domain, outputs=len(op.results))
        self.op, self.values_here = op, values

    @property
    def builder(self) -> GraphBuilder:
        """Of the graph that is being built now: an operation's regions may be graphs of their own."""
        return self.importer.builder

    @builder.setter
    def builder(self, builder: GraphBuilder) -> None:
        pass

    @property
    def place(self) -> str:
        line = place_of(self.op.location)
        return f"node '{self.name}': {self.op_type}" + (f", from {line}" if line else "")

    @property
    def label(self) -> str:
        line = place_of(self.op.location)
        return f"'{self.name}' ({line})" if line else f"'{self.name}'"

    # -- attributes
    def has(self, name: str) -> bool:
        return name in self.op.attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as Python has it; `default` where the operation has none of the name."""
        return plain(self.op.attributes[name]) if self.has(name) else default

    def keyword(self, name: str, default: str = "") -> str:
        """The word of an attribute that is an enumeration."""
        return keyword(self.op.attributes[name]) if self.has(name) else default

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        if not self.has(name):
            return tuple(default)
        found = plain(self.op.attributes[name])
        return tuple(int(k) for k in (found.reshape(-1) if isinstance(found, np.ndarray) else found))

    def constant_attribute(self, name: str, type: Tensor) -> np.ndarray[Any, Any]:
        """An attribute that is a tensor."""
        try:
            attribute = self.op.attributes[name]
        except TypeError:  # of a kind that Python has no class for
            attribute = None
        text = "" if isinstance(attribute, ir.DenseElementsAttr) and _has_buffer(type) else self.op.get_asm()
        return array_of(attribute, text, type)

    # -- types
    @cached_property
    def results(self) -> list[Tensor]:
        """The types of the results, of tokens none."""
        return [tensor_type(r.type) for r in self.op.results if "token" not in str(r.type)]

    def operand_type(self, k: int) -> Tensor:
        return tensor_type(self.op.operands[k].type)

    @property
    def dtype(self) -> DType:
        """The dtype of the first result; of complex numbers that of their parts."""
        return self.results[0].dtype

    @property
    def result_shape(self) -> tuple[Dim, ...]:
        """The sizes of the first result, which must be known.

        Raises:
            Unsupported: one is known only at run time.
        """
        shape = self.results[0].shape
        if None in shape:
            raise self.unsupported("a result whose size is known only at run time")
        return tuple(d for d in shape if d is not None)

    # -- operands
    def is_complex(self, k: int) -> bool:
        return isinstance(self.operands[k], Complex)

    def optional(self, k: int) -> Value | None:
        if self.given(k) and isinstance(self.operands[k], Complex):
            raise self.unsupported("complex numbers")
        return super().optional(k)

    def shape(self, k: int) -> tuple[Dim, ...]:
        operand = self.operands[k]
        if isinstance(operand, Complex):
            return tuple(self.importer.as_value(operand[0]).shape)
        return super().shape(k)

    def pair(self, k: int) -> tuple[Value, Value]:
        """The real and the imaginary parts of operand k."""
        real, imaginary = self.operands[k]
        return self.importer.as_value(real), self.importer.as_value(imaginary)

    def parts(self, k: int) -> list[Value]:
        """Operand k: one value, of complex numbers two."""
        operand = self.operands[k]
        if isinstance(operand, Complex):
            return list(self.pair(k))
        return [] if isinstance(operand, Absent) else [self.value(k)]

    def starts(self, first: int, count: int) -> list[Value]:
        """Scalars that are places, `count` operands from `first` on, as int64."""
        return [self.place_value(self.value(first + k)) for k in range(count)]

    def place_value(self, x: Value) -> Value:
        """Integers that are places as int64; those that it has not are beyond any tensor."""
        if x.dtype == dt.uint64:
            x = self.clamped(x, 0, 1 << 62)
        return self.cast(x, dt.int64)

    # -- regions
    def block(self, k: int) -> Any:
        """The block of region k."""
        blocks = self.op.regions[k].blocks
        if len(blocks) != 1:
            raise self.error(f"region {k} has {len(blocks)} blocks, expected one")
        return blocks[0]

    def put(self, k: int, operands: Sequence[Any]) -> list[Any]:
        """What region k returns, whose operations are put here."""
        return self.importer.put(self.block(k), operands, self.values_here, f"{self.name}/")

    # -- building
    def filled(self, value: Value, shape: Sequence[Dim]) -> Value:
        """A scalar in every place of a shape."""
        return self.broadcast(self.reshape(value, (1,) * len(shape)) if shape else value, tuple(shape))

    def reversed(self, x: Value, axis: int) -> Value:
        """`x` with the elements of an axis from the last to the first."""
        size = x.shape[axis]
        if size in (0, 1):
            return x
        last = size - 1 if isinstance(size, int) else self.importer.as_dim(size - 1)
        return self.slice(x, axis, last, size, -1)

    def empty(self, shape: Sequence[Dim]) -> bool:
        return product(tuple(shape)) == 0


def _has_buffer(type: Tensor) -> bool:
    name = type.dtype.name
    return not type.complex and name != "bfloat16" and not name.startswith("float8") and type.dtype.bits >= 8


__all__ = ["Complex", "Context"]
