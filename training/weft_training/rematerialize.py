"""Which values of the forward pass are kept for the backward pass, and which are computed again.

A training graph is a list of forward nodes and a list of backward nodes behind them. A value of the forward pass that
backward nodes use lives until then, unless it is computed again from values that do. `computed_again` rewrites a graph
so that only chosen values are kept; `cheapest_cut` and `segments` choose.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (segments); Jain et al., Checkmate, 2020; the
minimum cut of PyTorch's partitioner (He and Zou, 2022).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from weft.errors import UnsupportedError
from weft.graph.nodes import Graph, GraphBuilder, Node, TensorType, Value
from weft.graph.operator import CHEAP
from weft_ops import Barrier

OPEN = 64
"""What a size that is known only at run time counts as."""


@dataclass
class Joint:
    """A graph of a forward and a backward pass: its first `forward` nodes are the forward pass.

    Attributes:
        always: ids of values of the forward pass that are kept in any case.
    """

    graph: Graph
    forward: int
    always: frozenset[int] = frozenset()

    @property
    def nodes(self) -> tuple[list[Node], list[Node]]:
        return self.graph.nodes[: self.forward], self.graph.nodes[self.forward :]


def bytes_of(value: Value) -> int:
    """Bytes of a tensor; open sizes count as `OPEN`."""
    if not isinstance(value.type, TensorType):
        return 0
    sizes = (d if isinstance(d, int) else OPEN for d in value.shape)
    return math.prod(sizes) * max(1, value.dtype.bits // 8)


def cost_of(node: Node) -> float:
    """About the work of a node: bytes that it reads and writes, and half as much for every multiplication of a sum of
    products."""
    moved = float(sum(bytes_of(v) for v in (*node.inputs, *node.outputs) if v is not None))
    if node.op.kind != "contraction" or len(node.inputs) < 2:
        return moved
    a, b = node.inputs[:2]
    if a is None or b is None or not isinstance(a.type, TensorType) or not isinstance(b.type, TensorType):
        return moved
    inner = a.shape[-1:] if node.op.layout_role == "product" else b.shape[1:]
    return moved + bytes_of(node.output) * math.prod(d if isinstance(d, int) else OPEN for d in inner) / 2


def computed_again(joint: Joint, kept: Callable[[Value], bool]) -> Joint:
    """The training graph with values of the forward pass that are not `kept` computed again where the backward pass
    first uses them. Inputs, constants, and what would not be the same again, as random numbers, always are kept.

    The values of the given graph are those of the result: the last graph made of it is the one to use."""
    forward, backward = joint.nodes
    repeated = [n for n in forward if n.op.deterministic and n.op.kind != "host"]
    producer = {id(o): n for n in repeated for o in n.outputs if id(o) not in joint.always}
    builder = _builder(joint.graph)
    made = builder.graph.nodes
    made.extend(Node(n.op, n.inputs, n.outputs, n.names) for n in forward)
    copies: dict[int, Value] = {}
    barriers: dict[int, Value] = {}

    def behind_barrier(value: Value) -> Value:
        if value.constant is not None:
            return value
        if id(value) not in barriers:
            barriers[id(value)] = builder.add(Barrier(), value, name=f"{value.name}_kept")
        return barriers[id(value)]

    def again(value: Value) -> Value:
        """What stands for a value of the forward pass in the backward pass."""
        stack = [value]
        while stack:
            top = stack[-1]
            node = producer.get(id(top))
            if node is None or kept(top) or id(top) in copies:
                stack.pop()
                continue
            missing = [
                v for v in node.inputs if v is not None and id(v) in producer and not kept(v) and id(v) not in copies
            ]
            if missing:
                stack += missing
                continue
            stack.pop()
            inputs = [
                None if v is None else copies[id(v)] if id(v) in copies else behind_barrier(v) for v in node.inputs
            ]
            outputs = [Value(builder.unique(f"{o.name}_again"), o.type) for o in node.outputs]
            made.append(Node(node.op, inputs, outputs, node.names))
            copies.update((id(o), c) for o, c in zip(node.outputs, outputs))
        return copies.get(id(value), value)

    for node in backward:
        inputs = [None if v is None else again(v) for v in node.inputs]
        made.append(Node(node.op, inputs, node.outputs, node.names))
    result = Graph(
        joint.graph.name, joint.graph.inputs, joint.graph.outputs, made, joint.graph.symbols, joint.graph.output_names
    )
    return Joint(result, len(forward), joint.always)


def _builder(graph: Graph) -> GraphBuilder:
    """A builder with no nodes in which the names of `graph` are taken."""
    builder = GraphBuilder(graph.name)
    builder.reserve(v.name for v in graph.values())
    builder.reserve(graph.symbols)
    return builder


# -- the cheapest cut -------------------------------------------------------------------------------------------------


def cheapest_cut(joint: Joint) -> set[int]:
    """The values, by id, whose keeping takes the fewest bytes such that all that the backward pass uses is kept or
    computed again by operators whose results cost less than reading them would: elementwise ones and movements.

    A result that is read beyond a product or window, as that of a residual block is, is not computed again either: it
    would have to be computed from the one before it, and that from another one, up to the first.

    A minimum cut: every value is an edge of its bytes; the source leads to what must not be computed again, and what
    the backward pass uses leads to the sink.
    """
    forward, backward = joint.nodes
    produced = {id(o): n for n in forward for o in n.outputs}
    used = {id(v) for n in backward for v in n.inputs if v is not None and id(v) in produced}
    outputs = {id(v) for v in joint.graph.outputs}
    ids = {key: k for k, key in enumerate(produced)}
    values = {id(o): o for n in forward for o in n.outputs}
    flow = _Flow(2 * len(ids) + 2)
    source, sink = 2 * len(ids), 2 * len(ids) + 1
    far = _read_far(forward)
    for key, k in ids.items():
        node = produced[key]
        # An output lives anyway; between equals the later one is kept, which is the less to compute.
        flow.edge(2 * k, 2 * k + 1, 0 if key in outputs else bytes_of(values[key]))
        if key in far or not _cheap(node):
            flow.edge(source, 2 * k, _Flow.ENDLESS)
        if key in used:
            flow.edge(2 * k + 1, sink, _Flow.ENDLESS)
    for node in forward:
        for o in node.outputs:
            for v in node.inputs:
                if v is not None and id(v) in ids and id(o) in ids:
                    flow.edge(2 * ids[id(v)] + 1, 2 * ids[id(o)], _Flow.ENDLESS)
    flow.run(source, sink)
    near = flow.reachable(source)
    cut = {key for key, k in ids.items() if 2 * k in near and 2 * k + 1 not in near}
    return cut | {key for key in used if not isinstance(values[key].type, TensorType)}


def _read_far(forward: Sequence[Node]) -> set[int]:
    """Values, by id, that a node reads together with what a product or window made of them."""
    depth: dict[int, int] = {}
    found = set()
    for node in forward:
        below = max((depth.get(id(v), 0) for v in node.inputs if v is not None), default=0)
        dear = node.op.kind not in ("elementwise", "injective", "reduction")
        found |= {id(v) for v in node.inputs if v is not None and not dear and depth.get(id(v), 0) < below}
        depth.update((id(o), below + dear) for o in node.outputs)
    return found


def _cheap(node: Node) -> bool:
    if not node.op.deterministic or len(node.outputs) != 1:
        return False
    if node.op.kind == "elementwise":
        return True
    types = [v.type if v is not None else None for v in node.inputs]
    return node.op.kind == "injective" and node.op.cost(*types) <= CHEAP


# -- segments ---------------------------------------------------------------------------------------------------------

STEPS = 24
"""Limits of a segment's bytes that are tried at most: the first is that of one segment, each other one is the one
before it divided by the square root of two."""
WORSE = 4
"""Limits that are tried without one that takes fewer bytes than before."""


def peak_bytes(joint: Joint, overwriting: Container[int] = frozenset()) -> int:
    """About the most bytes of results that live at once: views have none, chains of elementwise operators are one
    kernel, whose values between do not exist, and outputs whose ids are in `overwriting` have memory of inputs."""
    graph = joint.graph
    root: dict[int, Value] = {}
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op.is_view and node.inputs and (source := node.inputs[0]) is not None:
            root[id(node.output)] = root.get(id(source), source)
        for v in node.inputs:
            if v is not None:
                users.setdefault(id(v), []).append(node)
    last: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        for v in (*node.inputs, *node.outputs):
            if v is not None:
                last[id(root.get(id(v), v))] = k
    for v in graph.outputs:
        last[id(root.get(id(v), v))] = len(graph.nodes)
    ends: dict[int, int] = {}
    live = most = 0
    for k, node in enumerate(graph.nodes):
        for o in node.outputs:
            if id(o) in root or id(o) in overwriting or _inside(node, users.get(id(o), [])):
                continue
            live += bytes_of(o)
            end = last.get(id(o), k)
            ends[end] = ends.get(end, 0) + bytes_of(o)
        most = max(most, live)
        live -= ends.pop(k, 0)
    return most


def _inside(node: Node, users: Sequence[Node]) -> bool:
    """Whether the result of an elementwise node is likely to be a value inside of a kernel: its only use is
    elementwise, or a reduction."""
    return node.op.kind == "elementwise" and len(users) == 1 and users[0].op.kind in ("elementwise", "reduction")


@dataclass(frozen=True)
class Choice:
    """What `segments` chose: the graph, about the most bytes that live at once, and the part of the forward pass's
    work that is done again."""

    joint: Joint
    peak: int
    again: float


def segments(joint: Joint, most: int | None, overwriting: Container[int] = frozenset()) -> Choice:
    """The forward pass in segments, of which only what later segments read is kept; a segment is computed again, when
    the backward pass comes to it, from what is kept before it. The last segments keep all that the backward pass uses.

    Args:
        most: bytes of results that may live at once; the least work is done again for which they suffice. None: as few
            bytes as can be, which grow with the square root of the depth.

    Raises:
        UnsupportedError: it cannot be done in so few bytes; says in how many it can.
    """
    cut = cheapest_cut(joint)
    cheap = computed_again(joint, lambda v: id(v) in cut)
    forward, _ = cheap.nodes
    at = {id(o): k for k, n in enumerate(forward) for o in n.outputs}
    inner = [sum(bytes_of(o) for o in n.outputs if id(o) in cut) for n in forward]
    work = [cost_of(n) for n in forward]
    crossing, over = _crossing(forward, at)

    def choice(starts: Sequence[int], whole: int) -> Choice:
        """With segments that begin at `starts`, the last `whole` of which keep everything."""
        first = starts[len(starts) - whole] if whole else len(forward)
        bounds = [p for p in starts if 0 < p <= first]
        kept = {key for p in bounds for key in over(p)} | {key for key in cut if at[key] >= first}
        made = computed_again(cheap, lambda v: id(v) in kept)
        return Choice(made, peak_bytes(made, overwriting), sum(work[:first]) / max(1.0, sum(work)))

    total = sum(inner)
    found: list[Choice] = []
    tried: set[tuple[int, ...]] = set()
    plans: list[tuple[tuple[int, ...], int]] = []
    for step in range(STEPS):
        starts = _starts(inner, crossing, total / 2 ** (step / 2))
        if starts in tried:
            continue
        tried.add(starts)
        whole = 1
        best = choice(starts, whole)
        if most is not None and best.peak <= most:
            low, high = 1, len(starts)
            while low < high:  # the most segments that may stay whole
                middle = (low + high + 1) // 2
                if (bigger := choice(starts, middle)).peak <= most:
                    low, best = middle, bigger
                else:
                    high = middle - 1
            whole = low
        found.append(best)
        plans.append((starts, whole))
        if len(starts) > len(forward) // 2 or min(c.peak for c in found[-WORSE:]) > min(c.peak for c in found):
            break
    if most is None:
        k = min(range(len(found)), key=lambda k: found[k].peak)
    else:
        fitting = [k for k, c in enumerate(found) if c.peak <= most]
        if not fitting:
            least = min(c.peak for c in found)
            raise UnsupportedError(
                f"a step does not fit {most:,} bytes of results",
                where=f"graph '{joint.graph.name}'",
                why=f"with segments that are computed again it takes about {least:,}",
                hint="a smaller batch takes less",
            )
        k = min(fitting, key=lambda k: (found[k].again, found[k].peak))
    return choice(*plans[k])  # the last one made is the one to use


def _crossing(forward: Sequence[Node], at: dict[int, int]) -> tuple[list[int], Callable[[int], set[int]]]:
    """For each place in the forward pass the bytes of values that are made before it and read behind it, and a function
    that gives the values, by id."""
    values = {id(o): o for n in forward for o in n.outputs}
    ends: dict[int, int] = {}
    for k, node in enumerate(forward):
        for v in node.inputs:
            if v is not None and id(v) in at:
                ends[id(v)] = k
    change = [0] * (len(forward) + 2)
    for key, end in ends.items():
        change[at[key] + 1] += bytes_of(values[key])
        change[end + 1] -= bytes_of(values[key])
    bytes_at, total = [], 0
    for k in range(len(forward) + 1):
        total += change[k]
        bytes_at.append(total)
    return bytes_at, lambda p: {key for key, end in ends.items() if at[key] < p <= end}


def _starts(inner: Sequence[int], crossing: Sequence[int], limit: float) -> tuple[int, ...]:
    """Where segments begin such that each keeps about `limit` bytes at most: there where the fewest bytes are read
    across."""
    starts, held, k = [0], 0, 0
    while k < len(inner):
        held += inner[k]
        if held > limit and k > starts[-1]:
            cut = min(range(k, starts[-1], -1), key=lambda p: crossing[p])
            starts.append(cut)
            held, k = 0, cut
            continue
        k += 1
    return tuple(starts)


# -- flow --------------------------------------------------------------------------------------------------------------


class _Flow:
    """Maximum flow by blocking flows (Dinic 1970), on a graph of numbered nodes."""

    ENDLESS = 1 << 62

    def __init__(self, nodes: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.room: list[int] = []

    def edge(self, a: int, b: int, room: int) -> None:
        for x, y, r in ((a, b, room), (b, a, 0)):
            self.out[x].append(len(self.to))
            self.to.append(y)
            self.room.append(r)

    def levels(self, source: int) -> list[int]:
        level = [-1] * len(self.out)
        level[source] = 0
        queue = deque([source])
        while queue:
            a = queue.popleft()
            for e in self.out[a]:
                if self.room[e] and level[self.to[e]] < 0:
                    level[self.to[e]] = level[a] + 1
                    queue.append(self.to[e])
        return level

    def run(self, source: int, sink: int) -> None:
        while True:
            level = self.levels(source)
            if level[sink] < 0:
                return
            tried = [0] * len(self.out)
            path: list[int] = []
            at = source
            while True:
                if at == sink:
                    least = min(self.room[e] for e in path)
                    for e in path:
                        self.room[e] -= least
                        self.room[e ^ 1] += least
                    cut = next(k for k, e in enumerate(path) if not self.room[e])
                    del path[cut:]
                    at = self.to[path[-1]] if path else source
                    continue
                for place in range(tried[at], len(self.out[at])):
                    e = self.out[at][place]
                    if self.room[e] and level[self.to[e]] == level[at] + 1:
                        tried[at] = place
                        path.append(e)
                        at = self.to[e]
                        break
                else:
                    tried[at] = len(self.out[at])
                    if not path:
                        break
                    at = self.to[path.pop() ^ 1]
                    tried[at] += 1

    def reachable(self, source: int) -> set[int]:
        return {k for k, level in enumerate(self.levels(source)) if level >= 0}
