"""Maps nodes of a graph to nodes after passes, by the values that both graphs contain."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.graph.nodes import Graph, Node, TensorType, Value


@dataclass
class Part:
    """Nodes of a graph, and the nodes after passes that compute the same values."""

    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)


def correspond(before: Graph, after: Graph) -> list[Part]:
    """The smallest parts of two graphs of one meaning that begin and end at values that both have, by name, dtype and
    shape; in the order of `before`.

    What passes did within a part is not looked at: a value that one graph alone has joins the nodes that make and read
    it. Names tell, so a pass that gives an old name to another value makes parts that are too small.
    """
    common = {v.name for v in before.values()} & {v.name for v in after.values()}
    types = [{v.name: _plain(v) for v in g.values() if v.name in common} for g in (before, after)]
    common = {name for name in common if types[0][name] == types[1][name]}
    root: dict[int, int] = {}

    def find(k: int) -> int:
        root.setdefault(k, k)
        while root[k] != k:
            root[k] = k = root[root[k]]
        return k

    made: dict[str, Node] = {}
    for graph in (before, after):
        for node in graph.nodes:
            find(id(node))
            for v in node.outputs:
                if v.name in common:
                    root[find(id(node))] = find(id(made.setdefault(v.name, node)))
            for x in node.inputs:
                if x is not None and x.producer is not None and x.name not in common:
                    root[find(id(node))] = find(id(x.producer))
    parts: dict[int, Part] = {}
    for node in before.nodes:
        parts.setdefault(find(id(node)), Part()).before.append(node)
    for node in after.nodes:
        parts.setdefault(find(id(node)), Part()).after.append(node)
    return list(parts.values())


def _plain(value: Value) -> str:
    return str(value.type.with_layout(None) if isinstance(value.type, TensorType) else value.type)
