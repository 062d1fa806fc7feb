"""What programs and networks share: inputs, constants, results that are as declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim
from weft_coreml.context import Listed, Text
from weft_coreml.model_file import ModelFile
from weft_coreml.plugin import CoreMLOptions
from weft_coreml.registry import REGISTRY
from weft_frontend import contents as ct
from weft_frontend.bodies import shaped
from weft_frontend.contents import Content
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent
from weft_ops import Cast, Gather, Reshape, StringConstant, StringTake
from weft_ops.shapes import product

LARGEST = (1 << 31) - 1
"""A size."""


class Importer(GraphImporter):
    """The state of reading one model.

    Args:
        file: the model.
        options: what the user says.
        count: operators of the model.
    """

    title = "Core ML"
    hint = "convert the model without; a plugin can convert it (hook `converters`)"

    def __init__(self, file: ModelFile, options: CoreMLOptions, count: int) -> None:
        stem = re.sub(r"\W+", "_", file.title.rsplit(".", 1)[0]).strip("_") or "model"
        super().__init__(f"n{stem}" if stem[:1].isdigit() else stem, "coreml", REGISTRY, count)
        self.file, self.options = file, options
        self.open: set[str] = set()
        self.given: Mapping[str, Any] | None = None
        """Of a model of a pipeline what stands for its inputs."""

    # -- inputs
    def dimension(self, name: str) -> Dim:
        """An open size of an input."""
        self.open.add(name)
        sizes: Mapping[str, int] = self.options.dims
        return sizes[name] if name in sizes else Var(self.builder.unique(name), dt.int64)

    def input(self, name: str, dtype: DType, sizes: Sequence[int | None]) -> Value:
        """An input; sizes that are None are open."""
        stem = re.sub(r"\W+", "_", name).strip("_") or "input"
        stem = f"n{stem}" if stem[:1].isdigit() else stem
        if any(d is not None and not 0 <= d <= LARGEST for d in sizes):
            raise FrontendError(f"input '{name}' has the shape {tuple(sizes)}")
        if self.given is not None:
            return self.taken(name, dtype, sizes)
        shape = tuple(self.dimension(f"{stem}_{k}") if d is None else d for k, d in enumerate(sizes))
        return self.builder.input(name, TensorType(dtype, shape))

    def taken(self, name: str, dtype: DType, sizes: Sequence[int | None]) -> Value:
        """An input that another model of the pipeline gives."""
        assert self.given is not None
        if name not in self.given:
            raise FrontendError(f"'{name}' is given by no model before")
        value = self.as_value(self.given[name], name)
        same = len(value.shape) == len(sizes) and all(
            a is None or not isinstance(b, int) or a == b for a, b in zip(sizes, value.shape)
        )
        fixed = tuple(d for d in sizes if d is not None)
        if not same:
            if len(fixed) < len(sizes) or not value.tensor.is_static or product(value.shape) != product(fixed):
                raise FrontendError(
                    f"'{name}' has the shape {_shown(value.shape)}, a model of the pipeline takes {_shown(sizes)}"
                )
            value = self.builder.add(Reshape(fixed), value)
        return value if value.dtype == dtype else self.builder.add(Cast(dtype), value)

    def labelled(self, labels: Sequence[Any], place: Value) -> Value:
        """The label at a place: a string, or int64."""
        b = self.builder
        if labels and isinstance(labels[0], str):
            return b.add(StringTake(), place, b.add(StringConstant(tuple(labels), (len(labels),))))
        return b.add(Gather(0), b.constant(np.array(labels, np.int64)), place)

    def check_sizes(self) -> None:
        """Raises FrontendError for sizes in the options that no input has open."""
        for name in self.options.dims:
            if name not in self.open:
                close = nearest(name, self.open)
                raise FrontendError(
                    f"dims gives '{name}', which is no open dimension of the model's inputs",
                    hint=f"did you mean '{close}'?"
                    if close
                    else f"its open dimensions: {', '.join(sorted(self.open)) or 'none'}",
                )

    # -- values
    def as_value(self, operand: Any, name: str = "shape") -> Value:
        if isinstance(operand, Text):
            return self.builder.add(StringConstant(operand.values, operand.shape), name=name)
        if isinstance(operand, Listed):
            raise UnsupportedError(f"a list of tensors leaves the model or a branch ('{name}')")
        return super().as_value(operand, name)

    def kept(self, array: np.ndarray[Any, Any], name: str) -> Any:
        """What stands for a constant: a content where it may be a shape."""
        found = ct.of_array(array)
        return self.builder.constant(array, name or "c") if found is None else found

    def as_declared(self, result: Any, dtype: DType | None, shape: tuple[int | None, ...] | None, place: str) -> Any:
        """A result, in the element type that the model declares.

        Raises:
            FrontendError: the model declares another type, or other sizes.
        """
        if not isinstance(result, (Value, Content)) or (isinstance(result, Value) and not self.is_tensor(result)):
            return result
        if shape is not None:
            same = len(shape) == len(result.shape) and all(
                a is None or not isinstance(b, int) or a == b for a, b in zip(shape, result.shape)
            )
            if not same:
                raise FrontendError(
                    f"the result has the shape {_shown(result.shape)}, the model declares {_shown(shape)}", where=place
                )
        if dtype is None or result.dtype == dtype:
            return result
        if isinstance(result, Content) and dtype in ct.KINDS and not dtype.is_bool and not result.dtype.is_bool:
            return ct.content(dtype, result.dims(), result.shape)
        if not (result.dtype.is_integer and dtype.is_integer):
            raise FrontendError(f"the result is {result.dtype}, the model declares {dtype}", where=place)
        return self.builder.add(Cast(dtype), self.as_value(result))

    def is_tensor(self, value: Value) -> bool:
        return isinstance(value.type, TensorType)

    def finished(self, outputs: Sequence[tuple[str, Any]]) -> Graph:
        """The graph with these outputs.

        Raises:
            UnsupportedError: everything that is not supported.
            FrontendError: an output is computed by nothing.
        """
        if self.unsupported:
            raise self.everything_unsupported()
        self.check_sizes()
        for name, operand in outputs:
            if operand is None or isinstance(operand, Absent):
                raise FrontendError(f"output '{name}' is computed by no operator")
            self.builder.output(shaped(self.builder, self.as_value(operand, name)), name)
        return self.built()


def _shown(shape: Sequence[Any]) -> str:
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"


__all__ = ["Importer"]
