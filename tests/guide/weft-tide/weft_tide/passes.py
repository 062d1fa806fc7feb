"""The graph as tide would rather have it: comparisons with 0 that its epilogue unit knows by another name."""

from __future__ import annotations

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Rewriter, rewrite
from weft_ops import Maximum, Relu


def relu_of_maximum(graph: Graph) -> Graph:
    """max(x, 0) is Relu(x)."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
        x, zero = inputs if isinstance(node.op, Maximum) else (None, None)
        if x is None or zero is None or zero.constant is None or zero.constant.size != 1 or zero.constant.item() != 0 or zero.shape:
            return None
        result: Value = r.add(Relu(), x)
        return result

    return rewrite(graph, rule)
