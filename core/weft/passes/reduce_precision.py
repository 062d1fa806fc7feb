"""Stores the weights of contractions in a narrower float, where the target was asked for it.

What it means, and all it means: the constant weights of MatMul (the right operand), Conv, ConvTranspose and Recurrence are rounded once, to nearest,
ties to even. Activations are not rounded; a product is of a float32 and a rounded weight, sums are of float32, and so is every result.
Half the bytes of weights come from memory, and a vector of them is widened by an instruction or two as it is read. Rounding activations as
well would save no time as long as no instruction multiplies narrow floats: every reading of an activation would widen it again.

Weights among which is a finite number that the narrow type cannot hold stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.ops.contraction import Conv, ConvTranspose, MatMul
from weft.ops.recurrent import Recurrence

if TYPE_CHECKING:
    from weft.dtypes import DType
    from weft.graph.nodes import Graph, Node, Value
    from weft.passes.capabilities import Capabilities

WEIGHTS = 1
"""The operand that is rounded, of each of these operators."""


def reduce_precision(graph: Graph, capabilities: Capabilities) -> Graph:
    """Afterwards constant float32 weights of contractions are stored in `capabilities.precision`, if that is given."""
    narrow = capabilities.precision
    if narrow is None:
        return graph
    stored: dict[int, tuple[Value, Value | None]] = {}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        weights = inputs[WEIGHTS] if isinstance(node.op, (Conv, ConvTranspose, MatMul, Recurrence)) else None
        if weights is None or weights.constant is None or weights.dtype != dt.float32 or node.outputs[0].dtype != dt.float32:
            return None
        if id(weights) not in stored:  # tied weights are rounded once
            data = round_weights(weights.constant, narrow)
            stored[id(weights)] = weights, None if data is None else r.constant(data, weights.name)
        rounded = stored[id(weights)][1]
        if rounded is None:
            return None
        op = replace(node.op, dtype=dt.float32) if isinstance(node.op, (Conv, MatMul)) else node.op
        return r.copy(node, (*inputs[:WEIGHTS], rounded, *inputs[WEIGHTS + 1 :]), op)

    return rewrite(graph, rule, on_subgraph=lambda body: reduce_precision(body, capabilities), rounds=1)


def round_weights(data: np.ndarray[Any, Any], narrow: DType) -> np.ndarray[Any, Any] | None:
    """`data` rounded to `narrow`, to nearest, ties to even; None if a finite number would become infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded: np.ndarray[Any, Any] = data.astype(narrow.numpy)
    return None if (np.isfinite(data) & ~np.isfinite(rounded)).any() else rounded
