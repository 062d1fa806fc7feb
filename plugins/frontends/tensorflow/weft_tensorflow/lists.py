"""Lists of tensors (TensorList…), as loops collect results and go through items: one tensor, whose first axis is the
list. Of a list that nothing was put into, the shape of its elements may be unknown."""

from __future__ import annotations

from dataclasses import dataclass

from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim


@dataclass(frozen=True, eq=False)
class TensorList:
    """A list.

    Attributes:
        dtype: of its elements.
        count: how many there are.
        stack: all of them, one after another along the first axis; None: nothing was put in, and their shape is
            unknown.
    """

    dtype: DType
    count: Dim
    stack: Value | None = None


@dataclass(frozen=True)
class Array:
    """Stands for the handle of an array of tensors, whose flow is a `TensorList`; `grows`: its length is not fixed."""

    grows: bool


__all__ = ["Array", "TensorList"]
