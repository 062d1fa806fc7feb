"""Gives every output a kernel that writes it.

A graph may return an input, a constant, one value twice, or a view of any of these. The memory of an output belongs to
the caller and to that output alone, so such values are copied by a group of their own. Runs after `fuse`."""

from __future__ import annotations

from weft.graph.group import Group
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, Node, Value


def own_outputs(graph: Graph) -> Graph:
    """Afterwards every output has memory that no input, constant or other output has. Changes `graph`."""
    root = {
        id(o): _source(node)
        for node in graph.nodes
        if isinstance(node.op, Group) and node.op.view
        for o in node.outputs
    }

    def owner(v: Value) -> Value:
        while id(v) in root:
            v = root[id(v)]
        return v

    inputs = {id(v) for v in graph.inputs}
    taken: set[int] = set()
    outputs: list[Value] = []
    names = {v.name for v in graph.values()}
    for value in graph.outputs:
        base = owner(value)
        if id(base) in inputs or base.constant is not None or id(base) in taken:
            value = _copy(graph, value, names)
        taken.add(id(owner(value)))
        outputs.append(value)
    graph.outputs = outputs
    return graph


def _source(view: Node) -> Value:
    source = view.inputs[0]
    assert source is not None
    return source


def _copy(graph: Graph, value: Value, names: set[str]) -> Value:
    name = next(n for k in range(len(names) + 1) if (n := f"{value.name}_out{k or ''}") not in names)
    names.add(name)
    inside = Value(value.name, value.type)
    result = Value(name, value.type)
    body = Graph("identity", [inside], [result], [Node(Identity(), (inside,), (result,))], output_names=[name])
    copy = Value(name, value.type)
    graph.nodes.append(Node(Group(body), (value,), (copy,), value.producer.names if value.producer is not None else ()))
    return copy
