"""The graph of regions of a placement: nodes of one target that can run without waiting for another target in between
form a region."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, Node, SymbolSource, TensorType, Value
from weft.graph.region import Region
from weft.graph.rewrite import attribute_symbols, bound_symbols, mentioned_symbols, type_symbols

STEP = "step"
"""Of a region that is no target's: a node that is a step of the plan by itself."""


@dataclass
class RegionPart:
    """The nodes of a region, in order. `target`: its target; of a step of the plan `STEP`, a space and a number."""

    target: str
    nodes: list[Node] = field(default_factory=list)


def regions_of(graph: Graph, targets: Sequence[str], together: Sequence[int]) -> list[RegionPart]:
    """Nodes of one target and level, in order of level. What goes `together` has one level, unless something else has
    to come in between."""
    number = {id(n): k for k, n in enumerate(graph.nodes)}
    needs: list[set[int]] = []
    for node in graph.nodes:
        given = [v.producer for v in node.inputs if v is not None]
        sizes = {n for v in node.outputs for n in type_symbols(v.type)} | set(attribute_symbols(node.op))
        given += [graph.symbols[n].value.producer for n in sizes if n in graph.symbols]
        needs.append({number[id(p)] for p in given if p is not None})
    group = list(together)
    while True:
        levels = _levels(needs, targets, group)
        apart = [k for k in range(len(group)) if group[k] not in levels]
        if not apart:
            break
        for k in apart:  # they wait for each other: each by itself
            group[k] = k
    parts: dict[tuple[int, str], RegionPart] = {}
    for k, node in enumerate(graph.nodes):
        key = levels[group[k]], targets[k]
        parts.setdefault(key, RegionPart(targets[k])).nodes.append(node)
    return [parts[key] for key in sorted(parts, key=lambda k: k[0])]


def _levels(needs: Sequence[set[int]], targets: Sequence[str], group: Sequence[int]) -> dict[int, int]:
    """Group → level: that of what it needs, or one more if another target computes that. Groups that wait for each
    other have none."""
    wants: dict[int, set[int]] = {g: set() for g in group}
    for k, found in enumerate(needs):
        wants[group[k]].update(group[p] for p in found if group[p] != group[k])
    users: dict[int, list[int]] = {}
    for g, found in wants.items():
        for p in found:
            users.setdefault(p, []).append(g)
    levels: dict[int, int] = {}
    left = {g: len(found) for g, found in wants.items()}
    ready = deque(g for g, count in left.items() if not count)
    while ready:
        g = ready.popleft()
        levels[g] = max((levels[p] + (targets[p] != targets[g]) for p in wants[g]), default=0)
        for user in users.get(g, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return levels


def cut_out(graph: Graph, parts: Sequence[RegionPart]) -> Graph:
    """The graph of regions. A region's inputs also bind the symbols that its body mentions."""
    new = Graph(graph.name, output_names=list(graph.output_names))
    made: dict[int, Value] = {id(v): Value(v.name, v.type) for v in graph.inputs}
    new.inputs = [made[id(v)] for v in graph.inputs]
    part_of = {id(n): k for k, p in enumerate(parts) for n in p.nodes}
    users: dict[int, set[int]] = {}
    for n in graph.nodes:
        for v in n.inputs:
            if v is not None:
                users.setdefault(id(v), set()).add(part_of[id(n)])
    last = len(parts)
    for v in (*graph.outputs, *(s.value for s in graph.symbols.values())):
        users.setdefault(id(v), set()).add(last)
    for k, part in enumerate(parts):
        leaving = [o for n in part.nodes for o in n.outputs if users.get(id(o), set()) - {k}]
        body, sources = _body(graph, part, f"{graph.name}.{k}", leaving)
        outputs = [Value(v.name, v.type) for v in body.outputs]
        names = frozenset().union(*(n.names for n in part.nodes))
        target = STEP if part.target.startswith(f"{STEP} ") else part.target
        new.nodes.append(Node(Region(body, target=target), [made[id(v)] for v in sources], outputs, names))
        made.update({id(old): v for old, v in zip(leaving, outputs, strict=True)})
    new.outputs = [made[id(v)] for v in graph.outputs]
    new.symbols = {name: SymbolSource(made[id(s.value)], s.index) for name, s in graph.symbols.items()}
    return new


def _body(graph: Graph, part: RegionPart, name: str, leaving: Iterable[Value]) -> tuple[Graph, list[Value]]:
    """A part as a graph of its own, with outputs `leaving`, and the values of the whole graph that are its inputs."""
    inside: dict[int, Value] = {}
    sources: list[Value] = []
    body = Graph(name)

    def take(v: Value) -> Value:
        if id(v) not in inside:
            inside[id(v)] = Value(v.name, v.type, constant=v.constant)
            if v.constant is None:
                sources.append(v)
                body.inputs.append(inside[id(v)])
        return inside[id(v)]

    for node in part.nodes:
        inputs = [None if v is None else take(v) for v in node.inputs]
        outputs = [Value(o.name, o.type) for o in node.outputs]
        inside.update({id(old): v for old, v in zip(node.outputs, outputs)})
        body.nodes.append(Node(node.op, inputs, outputs, node.names))
    body.outputs = [inside[id(o)] for o in leaving]
    body.output_names = [v.name for v in body.outputs]
    for symbol in mentioned_symbols(body):
        if symbol in graph.symbols:
            source = graph.symbols[symbol]
            body.symbols[symbol] = SymbolSource(take(source.value), source.index)
        elif symbol not in bound_symbols(body):
            binder = next(
                (v for v in graph.inputs if isinstance(v.type, TensorType) and Var(symbol, dt.int64) in v.shape), None
            )
            if binder is not None:
                take(binder)
    return body, sources
