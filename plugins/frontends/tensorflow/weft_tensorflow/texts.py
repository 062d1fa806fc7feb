"""Movement of strings, which is movement of their places: the strings at them are taken afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.importer import sequence
from weft_ops.shapes import dim_expr, product
from weft_tensorflow.context import Context

MOVES = frozenset({
    "BroadcastTo", "Concat", "ConcatV2", "DynamicPartition", "ExpandDims", "Fill", "Gather", "GatherNd", "GatherV2",
    "Pack", "PadV2", "RandomShuffle", "Reshape", "Reverse", "ReverseSequence", "ReverseV2", "Roll", "Select",
    "SelectV2", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice", "TensorScatterUpdate", "Tile", "Transpose",
    "Unpack",
})  # fmt: skip
"""Operators that move strings as they move numbers."""


def is_text(operand: Any) -> bool:
    """Whether an operand is a tensor of strings."""
    if isinstance(operand, Value):
        return isinstance(operand.type, TensorType) and operand.type.dtype == dt.string
    return isinstance(operand, np.ndarray)


def moved(c: Context, converter: Callable[[Any], Any]) -> Sequence[Any]:
    """The results of an operator whose operands, and results, are strings."""
    tables: list[Value] = []
    before: Dim = 0
    for k, operand in enumerate(c.operands):
        if is_text(operand):
            table = c.importer.as_value(operand, c.operand_name(k))
            count = product(table.shape)
            c.operands[k] = c.reshape(c.add(c(ops.Iota(dt.int64, (count,))), c.dim(before)), table.shape)
            tables.append(table)
            before = as_dim(dim_expr(before) + dim_expr(count))
    return [c.builder.add(ops.StringTake(), c.importer.as_value(r), *tables) for r in sequence(converter(c))]


__all__ = ["MOVES", "is_text", "moved"]
