"""Computes the same thing once."""

from __future__ import annotations

import hashlib
from typing import Any

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter

# Operators whose results differ from call to call say so; two of them are never one.
RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"})


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Afterwards no two nodes apply equal operators to the same inputs, and no two small constants are equal."""
    seen: dict[tuple[Any, ...], tuple[Value, ...]] = {}
    constants: dict[tuple[Any, ...], Value] = {}
    same: dict[int, Value] = {}

    def one(value: Value | None) -> Value | None:
        if value is None or value.constant is None:
            return value
        if id(value) not in same:
            data = value.constant
            digest = hashlib.sha256(data.tobytes()).digest() if data.dtype != object else id(data)
            same[id(value)] = constants.setdefault((value.type, digest), value)
        return same[id(value)]

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if node.op.kind == "control" or type(node.op).__name__ in RANDOM:
            return None
        inputs = tuple(one(v) for v in inputs)
        key = (node.op, tuple(id(v) for v in inputs), tuple(o.type for o in node.outputs))
        if key in seen:
            return seen[key]
        result = r.copy(node, inputs)
        seen[key] = result
        return result

    return Rewriter(graph).run(rule, on_subgraph=eliminate_common_subexpressions)
