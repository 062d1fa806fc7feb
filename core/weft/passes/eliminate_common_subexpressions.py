"""Merges nodes that compute the same values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter


def _sample(value: Value) -> Any:
    """What equal constants have in common, cheap to take."""
    data = value.constant
    assert data is not None
    if data.dtype == object or not data.size:
        return id(data) if data.size else None
    return b"".join(data[tuple(n * k // 8 for n in data.shape)].tobytes() for k in range(8))


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Afterwards no two nodes apply equal operators to the same inputs, and no two small constants are equal."""
    seen: dict[tuple[Any, ...], tuple[Value, ...]] = {}
    constants: dict[tuple[Any, ...], list[Value]] = {}
    digests: dict[int, bytes] = {}
    same: dict[int, Value] = {}

    def digest(value: Value) -> bytes:
        found = digests.get(id(value))
        if found is None:
            assert value.constant is not None
            found = digests[id(value)] = hashlib.sha256(
                np.ascontiguousarray(value.constant).reshape(-1).view(np.uint8).data
            ).digest()
        return found

    def one(value: Value | None) -> Value | None:
        if value is None or value.constant is None:
            return value
        if id(value) not in same:
            same[id(value)] = value
            # Weights are large and differ: all their bytes are hashed only where a few of them agree.
            alike = constants.setdefault((value.type, _sample(value)), [])
            for other in alike:
                if other.constant is value.constant or digest(other) == digest(value):
                    same[id(value)] = other
                    break
            else:
                alike.append(value)
        return same[id(value)]

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if node.op.kind in ("control", "host") or not node.op.deterministic:
            return None
        inputs = tuple(one(v) for v in inputs)
        key = (node.op, tuple(id(v) for v in inputs), tuple(o.type for o in node.outputs))
        if key in seen:
            return seen[key]
        result = r.copy(node, inputs)
        seen[key] = result
        return result

    return Rewriter(graph).run(rule)
