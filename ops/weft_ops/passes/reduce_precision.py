"""Rounds the weights of contractions to a narrower float, where the target was asked for it.

What it means, and all it means: the constant float32 weights of MatMul (the right operand), Conv, ConvTranspose and
Recurrence are rounded once, to nearest, ties to even. Activations are not rounded; a product is of a float32 and a
rounded weight, sums are of float32, and so is every result. Rounding activations as well would save no time where no
instruction multiplies narrow floats: every reading would widen them again. Where one does, `narrow_products` has
rounded both before. A product that names its dtype (`MatMul.dtype`, as those of Fourier transforms do) is computed in
it.

Weights among which is a finite number that the narrow type cannot hold stay as they are. The rounded weights are
float32 until `narrow_weights` stores them: how a contraction is computed is chosen in between, and does not change what
it means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft_ops.contraction import Conv, ConvTranspose, MatMul
from weft_ops.recurrent import Recurrence

if TYPE_CHECKING:
    from weft.dtypes import DType
    from weft.graph.nodes import Graph, Node, Value
    from weft.passes.capabilities import Capabilities

WEIGHTS = 1
"""The operand that is rounded, of each of these operators."""


def reduce_precision(graph: Graph, capabilities: Capabilities) -> Graph:
    """Afterwards constant float32 weights of contractions hold values of `capabilities.precision` only, if that is
    given."""
    narrow = capabilities.precision
    if narrow is None:
        return graph
    known: dict[int, tuple[Value, Value | None]] = {}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        weights = weights_of(node, inputs)
        if weights is None or weights.dtype != dt.float32 or node.outputs[0].dtype != dt.float32:
            return None
        assert weights.constant is not None
        if id(weights) not in known:  # tied weights are rounded once
            rounded = round_weights(weights.constant, narrow)
            known[id(weights)] = weights, None if rounded is None else r.constant(rounded, weights.name)
        result = known[id(weights)][1]
        return None if result is None else r.copy(node, (*inputs[:WEIGHTS], result, *inputs[WEIGHTS + 1 :]))

    return rewrite(graph, rule, rounds=1)


def weights_of(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    """The constant weights of a contraction; None if there are none."""
    if (
        not isinstance(node.op, (Conv, ConvTranspose, MatMul, Recurrence))
        or node.op.attributes().get("dtype") is not None
    ):
        return None  # what names the dtype that it multiplies in is no weight
    weights = inputs[WEIGHTS]
    return weights if weights is not None and weights.constant is not None else None


def round_weights(data: np.ndarray[Any, Any], narrow: DType) -> np.ndarray[Any, Any] | None:
    """`data` rounded to values of `narrow`, to nearest, ties to even; None if a finite number would become infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded: np.ndarray[Any, Any] = data.astype(narrow.numpy).astype(data.dtype)
    return None if (np.isfinite(data) & ~np.isfinite(rounded)).any() else rounded
