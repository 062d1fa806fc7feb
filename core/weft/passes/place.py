"""place: assigns nodes to targets by their offers, and forms regions of them (`weft.passes.regions`).

Targets make offers: to compute nodes at a cost, or why not. All nodes begin on the host. For each target in order of
preference, a minimum cut moves the nodes for which the sum of costs and copies between memories (one of each value to
each memory) is least (Stone, "Multiprocessor scheduling with the aid of network flow algorithms", 1977). For one target
beside the host this is optimal. Nodes of one target that can run without waiting for another target in between form a
region."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.expr.evaluate import evaluate
from weft.expr.nodes import free_vars
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.machine import Transfer
from weft.passes.correspond import Part, correspond
from weft.passes.regions import STEP as STEP
from weft.passes.regions import cut_out, regions_of

TYPICAL = 128
"""What a size known only at run time counts as."""


def is_step(node: Node) -> bool:
    """Whether a node is no part of a kernel: control flow, and what works on strings, sequences and optionals."""
    return node.op.kind in ("control", "host") or not all(
        is_numeric(v) for v in (*node.inputs, *node.outputs) if v is not None
    )


def why_step(node: Node) -> tuple[str, str] | None:
    """The code and the reason of what stays on the host as a step of the plan; None of what is part of a kernel."""
    if node.op.kind == "control":
        return "control", "control flow stays on the host"
    return (
        ("no_tensor", "it works on strings, sequences, optionals, or tensors whose sizes are known only at run time")
        if is_step(node)
        else None
    )


def is_numeric(value: Value) -> bool:
    """Whether a value is a tensor of numbers, whose sizes are known or have names."""
    return isinstance(value.type, TensorType) and value.dtype.kind not in ("string", "handle")


@dataclass(frozen=True)
class Take:
    """A target offers to compute these nodes together, in `cost` seconds. Nodes that it also offers to compute alone
    may be separated.

    Of several offers for a node, the first determines the cost."""

    nodes: tuple[Node, ...]
    cost: float = 0.0


@dataclass(frozen=True)
class Refuse:
    """A target does not compute a node; `code` is for programs, `reason` for people."""

    node: Node
    code: str
    reason: str


Offers: TypeAlias = "Sequence[Take | Refuse]"
"""The answer of a target about a graph: nodes that it takes together, nodes that it refuses."""


@dataclass(frozen=True)
class Placed:
    """The target of a node, and why it is not on a preferred one: target → (code, reason)."""

    node: Node
    target: str
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """A graph of Regions in order, and where each node of the old graph went."""

    graph: Graph
    nodes: tuple[Placed, ...]

    def __str__(self) -> str:
        lines = []
        for p in self.nodes:
            why = "; ".join(f"not {target}: {reason} [{code}]" for target, (code, reason) in p.refused.items())
            names = f"  # {', '.join(sorted(p.node.names))}" if p.node.names else ""
            lines.append(
                f"{p.target:8} {p.node.op.operator_name} %{p.node.outputs[0].name}{names}"
                + (f"\n         {why}" if why else "")
            )
        return "\n".join(lines)


def place(
    graph: Graph, targets: Sequence[str], offers: Mapping[str, Offers], transfers: Mapping[str, Transfer]
) -> Placement:
    """See the module.

    Args:
        graph: of operators; every output is computed by a node.
        targets: kinds in order of preference; the last, the host's, takes every node.
        offers: of each target, the last's only for its costs.
        transfers: of each target but the last.
    """
    together = [_together(graph, offers.get(t, ())) for t in targets]
    labels, refused = _label(graph, targets, offers, transfers, together)
    steps = [is_step(n) for n in graph.nodes]
    names = [f"{STEP} {k}" if alone else targets[label] for k, (label, alone) in enumerate(zip(labels, steps))]
    regions = regions_of(graph, names, [k if steps[k] else together[label][k] for k, label in enumerate(labels)])
    reasons = [
        {t: why for t, why in refused.get(id(n), {}).items() if t in targets[:k]} for n, k in zip(graph.nodes, labels)
    ]
    nodes = tuple(Placed(n, targets[k], why) for n, k, why in zip(graph.nodes, labels, reasons))
    return Placement(cut_out(graph, regions), nodes)


def offers_before(graph: Graph, seen: Graph, offers: Offers) -> list[Take | Refuse]:
    """Offers for the nodes of `graph`, made of those for the nodes of `seen`, which passes of a target made of it.

    Nodes that passes changed together (`correspond`) are offered together, at the cost of all that became of them, if
    all of it is taken; else they are refused, with the reason of the first that is not.
    """
    number = {id(n): k for k, n in enumerate(seen.nodes)}
    together = _together(seen, offers)
    costs: dict[int, float] = {}
    refused: dict[int, Refuse] = {}
    for offer in offers:
        if isinstance(offer, Refuse):
            refused.setdefault(number[id(offer.node)], offer)
            continue
        for n in offer.nodes:
            costs.setdefault(number[id(n)], offer.cost / len(offer.nodes))
    whole: dict[int, list[Part]] = {}  # by what stands for nodes that are taken together only
    root: dict[int, int] = {}

    def find(k: int) -> int:
        while root.setdefault(k, k) != k:
            k = root[k]
        return k

    parts = [p for p in correspond(graph, seen) if p.before]
    for k, part in enumerate(parts):
        for n in part.after:
            root[find(len(seen.nodes) + k)] = find(together[number[id(n)]])
    for k, part in enumerate(parts):
        whole.setdefault(find(len(seen.nodes) + k), []).append(part)
    found: list[Take | Refuse] = []
    for of in whole.values():
        before, after = [n for p in of for n in p.before], [n for p in of for n in p.after]
        left = next((n for n in after if number[id(n)] not in costs), None)
        if left is None:
            found.append(Take(tuple(before), sum(costs[number[id(n)]] for n in after)))
            continue
        why = refused.get(number[id(left)])
        if why is None:
            continue
        changed = len(before) > 1 or len(after) > 1 or type(left.op) is not type(before[0].op)
        name = f"after the target's passes, {left.op.operator_name} %{left.outputs[0].name}: " if changed else ""
        found += [Refuse(n, why.code, name + why.reason) for n in before]
    return found


# -- which target -----------------------------------------------------------------------------------------------------


def _together(graph: Graph, offers: Offers) -> list[int]:
    """Per node the number of one that stands for all that a target takes with it only."""
    number = {id(n): k for k, n in enumerate(graph.nodes)}
    root = list(range(len(graph.nodes)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = k = root[root[k]]
        return k

    alone = {id(o.nodes[0]) for o in offers if isinstance(o, Take) and len(o.nodes) == 1}
    for offer in offers:
        if isinstance(offer, Take) and not alone.issuperset(map(id, offer.nodes)):
            for n in offer.nodes:
                root[find(number[id(n)])] = find(number[id(offer.nodes[0])])
    return [find(k) for k in range(len(root))]


def _label(
    graph: Graph,
    targets: Sequence[str],
    offers: Mapping[str, Offers],
    transfers: Mapping[str, Transfer],
    together: Sequence[Sequence[int]],
) -> tuple[list[int], dict[int, dict[str, tuple[str, str]]]]:
    """Per node the number of its target, and who refused it."""
    number = {id(n): k for k, n in enumerate(graph.nodes)}
    host = len(targets) - 1
    refused: dict[int, dict[str, tuple[str, str]]] = {}
    costs: list[dict[int, float]] = [{} for _ in targets]
    for t, target in enumerate(targets):
        for offer in offers.get(target, ()):
            if isinstance(offer, Refuse):
                refused.setdefault(id(offer.node), {})[target] = (offer.code, offer.reason)
                continue
            for n in offer.nodes:
                costs[t].setdefault(number[id(n)], offer.cost / len(offer.nodes))
    for k in range(len(graph.nodes)):
        costs[host].setdefault(k, 0.0)
    pinned = {id(s.value.producer) for s in graph.symbols.values() if s.value.producer is not None}
    for k, n in enumerate(graph.nodes):
        reason = ("sizes", "sizes of other values depend on its result") if id(n) in pinned else why_step(n)
        for t in range(host):
            if reason is not None:
                costs[t].pop(k, None)
                refused.setdefault(id(n), {})[targets[t]] = reason
            elif k not in costs[t]:
                refused.setdefault(id(n), {}).setdefault(targets[t], ("no_offer", "it made no offer"))
    labels = [host] * len(graph.nodes)
    for t in range(host):
        labels = _move(graph, number, labels, t, costs, together[t], [transfers.get(x, Transfer()) for x in targets])
    ways = [transfers.get(x, Transfer()) for x in targets]
    reasons = _Reasons(graph, number, labels, costs, together, ways, targets)
    for k, n in enumerate(graph.nodes):
        for t in range(labels[k]):
            if targets[t] not in refused.get(id(n), {}):
                refused.setdefault(id(n), {})[targets[t]] = reasons.why_not(k, t)
    return labels, refused


class _Reasons:
    """Why a node stays on its target although another target offers to compute it: the difference in seconds, for the
    node and the nodes that must move with it, with all other nodes as they are placed."""

    def __init__(
        self,
        graph: Graph,
        number: Mapping[int, int],
        labels: Sequence[int],
        costs: Sequence[Mapping[int, float]],
        together: Sequence[Sequence[int]],
        transfers: Sequence[Transfer],
        targets: Sequence[str],
    ) -> None:
        self.graph, self.number, self.labels, self.costs, self.transfers, self.targets = (
            graph,
            number,
            labels,
            costs,
            transfers,
            targets,
        )
        self.users, self.results = graph.users(), {id(v) for v in graph.outputs}
        self.roots = together
        self.groups: list[dict[int, list[int]]] = [{} for _ in together]
        for t, roots in enumerate(together):
            for k, root in enumerate(roots):
                self.groups[t].setdefault(root, []).append(k)
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def why_not(self, k: int, t: int) -> tuple[str, str]:
        """The code and the reason of node `k` and target `t`; the same for all that go together and are in one
        place."""
        key = (t, self.roots[t][k], self.labels[k])
        if key not in self._known:
            self._known[key] = self._judged(k, t)
        return self._known[key]

    def _judged(self, k: int, t: int) -> tuple[str, str]:
        group = self.groups[t][self.roots[t][k]]
        host = len(self.targets) - 1
        for j in group:
            if j not in self.costs[t] or self.labels[j] not in (t, host):
                where = (
                    "which it does not take"
                    if j not in self.costs[t]
                    else f"which is on '{self.targets[self.labels[j]]}'"
                )
                return (
                    "together",
                    (
                        f"it would go with {type(self.graph.nodes[j].op).__name__}"
                        f" %{self.graph.nodes[j].outputs[0].name}, {where}"
                    ),
                )
        there = sum(self.costs[t][j] for j in group)
        here = sum(self.costs[self.labels[j]].get(j, 0.0) for j in group)
        moved = dict.fromkeys(group, t)
        touched = {
            id(v): v
            for j in group
            for v in (*self.graph.nodes[j].inputs, *self.graph.nodes[j].outputs)
            if v is not None
        }
        more = sum(self._copies(v, moved) - self._copies(v, {}) for v in touched.values())
        whole = f"with the {len(group) - 1} that go with it " if len(group) > 1 else ""
        copies = f"{show_seconds(abs(more))} {'more' if more >= 0 else 'less'} for copies"
        return (
            "cost",
            (
                f"{whole}it would take {show_seconds(there)} there and {copies}, on '{self.targets[self.labels[k]]}' it"
                f" takes {show_seconds(here)}"
            ),
        )

    def _copies(self, v: Value, moved: Mapping[int, int]) -> float:
        """Seconds that copies of a value take: one to each memory, and between two devices by way of the host."""
        if v.constant is not None or not isinstance(v.type, TensorType):
            return 0.0
        host = len(self.targets) - 1

        def place_of(n: Node) -> int:
            k = self.number[id(n)]
            return moved.get(k, self.labels[k])

        at = host if v.producer is None else place_of(v.producer)
        wanted = {place_of(n) for n, _ in self.users.get(id(v), ())} | ({host} if id(v) in self.results else set())
        places = [p for p in wanted - {at} if p != host] + ([at] if at != host and wanted - {at} else [])
        return sum(self.transfers[p].seconds(bytes_of(v.type)) for p in places)


def show_seconds(value: float) -> str:
    """A time for people, in three digits: `12.5 µs`."""
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)) if value * f >= 1), ("ns", 1e9))
    return f"{value * factor:.3g} {unit}" if value else "0 s"


def _move(
    graph: Graph,
    number: Mapping[int, int],
    labels: list[int],
    t: int,
    costs: Sequence[Mapping[int, float]],
    together: Sequence[int],
    transfers: Sequence[Transfer],
) -> list[int]:
    """The labels after the best set of the host's nodes has moved to target `t`."""
    host = len(transfers) - 1
    count = len(graph.nodes)
    stays, moves = count, count + 1
    cut = _Cut(count + 2)
    free = [label == host for label in labels]
    for k in range(count):
        cut.edge(stays, together[k], costs[t].get(k, math.inf) if free[k] else math.inf)
        cut.edge(together[k], moves, costs[host][k] if free[k] else 0.0)
    # A value is copied once, however many read it there, and between two devices by way of the host.
    users = graph.users()
    results = {id(v) for v in graph.outputs}
    for value in graph.values():
        if value.constant is not None or not isinstance(value.type, TensorType):
            continue
        copy = transfers[t].seconds(bytes_of(value.type))
        source = None if value.producer is None else number[id(value.producer)]
        readers = {number[id(n)] for n, _ in users.get(id(value), ())}
        near = sorted({together[k] for k in readers if free[k]})
        if source is None or not free[source]:
            cut.either(stays, near, copy)
            continue
        at = together[source]
        cut.either(at, near, copy)
        if id(value) in results or not all(free[k] for k in readers):
            cut.edge(stays, at, copy)
        else:
            cut.either(near, at, copy)
    staying = cut.side(stays, moves)
    return [t if free[k] and together[k] not in staying else labels[k] for k in range(count)]


class _Cut:
    """A network whose minimum cut is found by Dinic's algorithm."""

    def __init__(self, count: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(count)]
        self.to: list[int] = []
        self.room: list[float] = []

    def edge(self, a: int, b: int, capacity: float) -> None:
        if a == b or capacity <= 0:
            return
        for start, end, room in ((a, b, capacity), (b, a, 0.0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.room.append(room)

    def either(self, a: int | Sequence[int], b: int | Sequence[int], capacity: float) -> None:
        """Edges from one to several, or from several to one, that cost `capacity` once, however many of them are
        cut."""
        starts, ends = ([x] if isinstance(x, int) else x for x in (a, b))
        pairs = [(x, y) for x in starts for y in ends if x != y]
        if len(pairs) < 2 or capacity <= 0:
            for x, y in pairs:
                self.edge(x, y, capacity)
            return
        between = len(self.edges)
        self.edges.append([])
        for x in {x for x, _ in pairs}:
            self.edge(x, between, capacity if len(starts) == 1 else math.inf)
        for y in {y for _, y in pairs}:
            self.edge(between, y, capacity if len(ends) == 1 else math.inf)

    def side(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of the minimum cut, as few as there can be."""
        while True:
            level = {source: 0}
            queue = deque([source])
            while queue:
                a = queue.popleft()
                for e in self.edges[a]:
                    if self.room[e] > 0 and self.to[e] not in level:
                        level[self.to[e]] = level[a] + 1
                        queue.append(self.to[e])
            if sink not in level:
                return set(level)
            self._push(source, sink, level)

    def _push(self, source: int, sink: int, level: Mapping[int, int]) -> None:
        """A flow that leaves no path along the levels."""
        at = [0] * len(self.edges)
        path: list[int] = []
        a = source
        while True:
            if a == sink:
                least = min(self.room[e] for e in path)
                for e in path:
                    self.room[e] -= least
                    self.room[e ^ 1] += least
                # Back to before the first edge that is full.
                full = next(k for k, e in enumerate(path) if self.room[e] <= 0)
                a = self.to[path[full] ^ 1]
                del path[full:]
                continue
            while at[a] < len(self.edges[a]):
                e = self.edges[a][at[a]]
                if self.room[e] > 0 and level.get(self.to[e], -1) == level[a] + 1:
                    break
                at[a] += 1
            else:
                if not path:
                    return
                a = self.to[path.pop() ^ 1]
                at[a] += 1
                continue
            path.append(e)
            a = self.to[e]


def bytes_of(type: TensorType) -> float:
    size = float(type.dtype.bytes)
    for d in type.shape:
        size *= d if isinstance(d, int) else max(0, int(evaluate(d, dict.fromkeys(free_vars(d), TYPICAL))))
    return size
