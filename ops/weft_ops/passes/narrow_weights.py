"""Stores weights that were rounded in the type they were rounded to: half the bytes to read, and nothing else changes.

Only where a vector of weights is read at once, which an instruction or two then widens. A single weight that is spread
over the lanes costs as much to widen as a vector does, so that weights of a convolution in row-major order stay
float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft_ops.contraction import Conv, MatMul
from weft_ops.passes.reduce_precision import WEIGHTS, weights_of

if TYPE_CHECKING:
    from weft.graph.nodes import Graph, Node
    from weft.passes.capabilities import Capabilities


def narrow_weights(graph: Graph, capabilities: Capabilities) -> Graph:
    """Afterwards weights that `capabilities.precision` holds without loss, and that are read in vectors, are stored in
    it."""
    narrow = capabilities.precision
    if narrow is None:
        return graph
    known: dict[tuple[int, object], tuple[Value, Value | None]] = {}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        weights = weights_of(node, inputs)
        if (
            weights is None
            or weights.dtype != dt.float32
            or node.outputs[0].dtype != dt.float32
            or not read_in_vectors(node, weights)
        ):
            return None
        assert weights.constant is not None
        key = id(weights), weights.tensor.layout
        if key not in known:
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                data = weights.constant.astype(narrow.numpy)
            same = bool((data.astype(np.float32).view(np.uint32) == weights.constant.view(np.uint32)).all())
            stored = (
                Value(
                    r.builder.unique(weights.name),
                    TensorType(narrow, weights.shape, weights.tensor.layout),
                    constant=data,
                )
                if same
                else None
            )
            known[key] = weights, stored
        result = known[key][1]
        if result is None:
            return None
        op = replace(node.op, dtype=dt.float32) if isinstance(node.op, (Conv, MatMul)) else node.op
        return r.copy(node, (*inputs[:WEIGHTS], result, *inputs[WEIGHTS + 1 :]), op)

    return rewrite(graph, rule, rounds=1)


def read_in_vectors(node: Node, weights: Value) -> bool:
    """Whether neighbouring weights belong to neighbouring results: those of a product in row-major order, and all that
    are packed."""
    if isinstance(node.op, MatMul) and weights.tensor.layout is None:
        return weights.tensor.rank > 1 and weights.shape[-1] != 1
    return weights.tensor.layout is not None
