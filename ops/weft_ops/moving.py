"""What operators that move elements share."""

from __future__ import annotations

from typing import ClassVar

from weft import dtypes as dt
from weft.expr.nodes import Const
from weft.graph.nodes import TensorType
from weft.graph.operator import Operator, OpKind

ZERO = Const(0, dt.int64)
INDEX = ("int", "uint")
"""Kinds of dtypes of indices."""


class Movement(Operator):
    """Exact: the elements are copied."""

    kind: ClassVar[OpKind] = "injective"

    def tolerance(self, *types: TensorType) -> float:
        return 0.0
