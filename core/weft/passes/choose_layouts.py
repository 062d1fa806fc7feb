"""Chooses the layouts of all values of a graph.

Any node is correct under any layouts. Some operators are fast under certain layouts (`Capabilities.layouts`); some take
the layout of their operand at the same cost (elementwise operators, pooling, concatenation); the others read and write
row-major. The pass assigns one offer to each node and minimises the sum of the costs of offers and conversions: all
nodes start with their best offer, then each node in turn takes the cheapest one given its neighbours, until nothing
changes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from weft.choices import Choices
from weft.errors import ScheduleWarning
from weft.graph.layout import Layout, Split
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.relayout import Relayout
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import ANY, Capabilities, LayoutOffer, layout_rule
from weft.passes.layout_offers import RuleFor, default_rules, elements
from weft.rates import PLAUSIBLE_SECONDS

ROUNDS = 8
ROUNDING = 2.0**-40
"""Of a sum of costs: less than this share of it is no difference."""


def choose_layouts(graph: Graph, capabilities: Capabilities | None = None, choices: Choices | None = None) -> Graph:
    """Afterwards values carry layouts; inputs and outputs of the graph are row-major; every Relayout is needed. Runs
    anew on any graph."""
    capabilities = capabilities or Capabilities()
    graph = strip_layouts(graph)
    given = capabilities.layouts
    rule_for = default_rules(capabilities) if given is None else lambda op: layout_rule(type(op), given)
    labels = _labels(graph, rule_for, capabilities.relayout_bytes_per_second, Choices() if choices is None else choices)
    if not labels:
        return graph

    converted: dict[tuple[int, Layout | None], Value] = {}
    repacked = _one_layout(graph, labels)

    def stored(r: Rewriter, value: Value, layout: Layout | None) -> Value:
        """`value` (of the new graph) in the layout of a user."""
        if value.tensor.layout == layout:
            return value
        if value.constant is not None and value.name in repacked:
            value.type = value.tensor.with_layout(layout)
            return value
        key = (id(value), layout)
        if key not in converted:
            if value.constant is not None:
                copy = r.constant(value.constant, value.name)
                copy.type = value.tensor.with_layout(layout)
                converted[key] = copy
            else:
                added = r.add(Relayout(layout), value, name=value.name)
                assert added.producer is not None
                added.producer.names = value.producer.names if value.producer is not None else frozenset()
                converted[key] = added
        return converted[key]

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        offer = labels.get(id(node))
        wanted = offer.inputs if offer is not None else (None,) * len(inputs)
        ready = tuple(
            (
                v
                if v is None or not isinstance(v.type, TensorType) or (offer is not None and w is ANY)
                else stored(r, v, w)
            )
            for v, w in zip(inputs, wanted)
        )
        outputs = r.copy(node, ready)
        if offer is not None:
            for o, layout in zip(outputs, offer.outputs):
                if layout is not None:
                    o.type = o.tensor.with_layout(layout)
        return outputs

    rewriter = Rewriter(graph)
    new = rewriter.run(rule)
    if any(isinstance(v.type, TensorType) and v.type.layout is not None for v in new.outputs):
        new = _row_major_outputs(new)
    return new


def _labels(
    graph: Graph, rule_for: RuleFor, relayout_bytes_per_second: float, choices: Choices
) -> dict[int, LayoutOffer]:
    """The offer of every node; those that a record has chosen stay, and their neighbours take what is cheapest beside
    them."""
    search = _Choice(graph, rule_for, relayout_bytes_per_second)
    labels = search.run()
    pinned: dict[int, LayoutOffer] = {}
    for node in graph.nodes:
        options = {_option(o): o for o in search.offers.get(id(node), ())}
        if len(options) < 2:
            continue
        name = f"layout.%{node.outputs[0].name}"
        chosen = choices.choose(name, list(options), _option(labels[id(node)]))
        if choices.made[name].recorded:
            pinned[id(node)] = options[chosen]
    return _Choice(graph, rule_for, relayout_bytes_per_second, pinned).run() if pinned else labels


def _option(offer: LayoutOffer) -> str:
    """An offer as an option of a choice: how operands and results are stored."""

    def text(layouts: Sequence[Layout | None]) -> str:
        return ", ".join("row-major" if x is None else "any" if x is ANY else str(x) for x in layouts)

    return f"{text(offer.inputs)} -> {text(offer.outputs)}"


def impossible_layout(graph: Graph, capabilities: Capabilities) -> str | None:
    """The first node that is stored in none of the ways that its offers allow, where one of them says `only`, as a
    sentence; None if there is none."""
    for node in graph.nodes:
        rule = layout_rule(type(node.op), capabilities.layouts)
        offers = rule(node) if rule is not None else []
        if any(o.only for o in offers) and not any(o.fits(node) for o in offers):
            return f"{node!r} is stored as the target cannot compute it"
    return None


def _one_layout(graph: Graph, labels: dict[int, LayoutOffer]) -> set[str]:
    """The names of constants that have the same layout for all users: these keep their names; others get a copy per
    layout."""
    kept = {id(v) for v in graph.outputs} | {id(s.value) for s in graph.symbols.values()}
    wanted: dict[str, set[Layout | None]] = {}
    for node in graph.nodes:
        label = labels.get(id(node))
        for k, v in enumerate(node.inputs):
            if v is not None and v.constant is not None and id(v) not in kept:
                layout = label.inputs[k] if label is not None else None
                wanted.setdefault(v.name, set()).add(None if layout == ANY else layout)
    return {name for name, layouts in wanted.items() if len(layouts) == 1}


def strip_layouts(graph: Graph) -> Graph:
    """The same graph, all row-major, without conversions."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        return inputs[0] if isinstance(node.op, Relayout) else None

    laid_out = any(isinstance(v.type, TensorType) and v.type.layout is not None for v in graph.values())
    if not laid_out and not any(isinstance(n.op, Relayout) for n in graph.nodes):
        return graph
    new = rewrite(graph, rule, rounds=1)
    for value in new.values():
        if isinstance(value.type, TensorType) and value.type.layout is not None:
            value.type = value.type.with_layout(None)
    return new


def _row_major_outputs(graph: Graph) -> Graph:
    done: dict[int, Value] = {}
    taken = {v.name for v in graph.values()}
    for k, value in enumerate(graph.outputs):
        if not isinstance(value.type, TensorType) or value.type.layout is None:
            continue
        existing = next((n.output for n in graph.nodes if n.op == Relayout(None) and n.inputs[0] is value), None)
        if existing is not None:
            done[id(value)] = existing
        if id(value) not in done:
            name = f"{value.name}_row_major"
            while name in taken:
                name += "_"
            taken.add(name)
            out = Value(name, value.type.with_layout(None))
            graph.nodes.append(
                Node(Relayout(None), [value], [out], value.producer.names if value.producer is not None else ())
            )
            done[id(value)] = out
        graph.outputs[k] = done[id(value)]
    return graph


def follower_offer(node: Node, layout: Layout | None) -> LayoutOffer | None:
    """How a node that follows computes under `layout`, if it can; None in `inputs` where an operand is better
    row-major."""
    if not node.outputs or not isinstance(node.output.type, TensorType) or len(node.outputs) != 1:
        return None
    output, op = node.output, node.op
    if op.kind == "elementwise":
        if layout is not None and not _fits(output, layout, padding=True):
            return None
        # Operands that broadcast are read row-major: their reads are splats or contiguous in the blocked axis.
        return LayoutOffer(
            tuple(layout if v is not None and _same_extent(v, output) else None for v in node.inputs), (layout,)
        )
    followed = op.elements_of(len(node.inputs)) if node.inputs and node.inputs[0] is not None else ()
    if layout is not None and not (followed and _keeps_blocks(node, layout, followed)):
        return None
    return LayoutOffer(tuple(layout if k in followed else None for k in range(len(node.inputs))), (layout,))


def _keeps_blocks(node: Node, layout: Layout, followed: tuple[int, ...]) -> bool:
    """Whether a node leaves the elements of each block together, so that its result may be stored as its operands
    are."""
    if not _fits(node.output, layout) or any((v := node.inputs[k]) is None or not _fits(v, layout) for k in followed):
        return False
    inputs = [v.type if v is not None and isinstance(v.type, TensorType) else None for v in node.inputs]
    return all(
        node.op.keeps_blocks(axis, factor, inputs, node.output.tensor)
        for axis, factor in layout.blocks(node.output.tensor.rank)
    )


def reads_any(node: Node) -> bool:
    """Whether the first operand may be stored anyhow: a reduction that keeps the channels and writes row-major."""
    first = node.inputs[0] if node.inputs else None
    if (
        node.op.kind != "reduction"
        or node.op.reads_twice
        or first is None
        or not isinstance(first.type, TensorType)
        or len(node.outputs) != 1
    ):
        return False
    axes = node.op.reduced_axes(first.type.rank)
    return axes is not None and first.type.rank > 0 and 1 not in axes


def _same_extent(value: Value, output: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape == output.shape


def _fits(value: Value, layout: Layout, padding: bool = False) -> bool:
    """Whether the layout's rank is the value's and its splits leave no padding, or may."""
    if not isinstance(value.type, TensorType):
        return False
    splits = [s for s in layout.steps if isinstance(s, Split)]
    rank = len(layout.steps[-1].order) - len(splits) if not isinstance(layout.steps[-1], Split) else None
    return rank == value.type.rank and (padding or not layout.pads(value.type.shape))


class _Choice:
    """Assigns offers to nodes. `pinned`: node → the offer that it has in any case."""

    def __init__(
        self,
        graph: Graph,
        rule_for: RuleFor,
        relayout_bytes_per_second: float,
        pinned: Mapping[int, LayoutOffer] | None = None,
    ) -> None:
        self.graph = graph
        self.pinned = dict(pinned or {})
        self.rule_for, self.relayout_bytes_per_second = rule_for, relayout_bytes_per_second
        self.users = graph.users()
        self.outputs = {id(v) for v in graph.outputs}
        self.offers: dict[int, list[LayoutOffer]] = {}
        self.labels: dict[int, LayoutOffer] = {}
        # Of each value how many uses want which layout: a value may have thousands, as a learning rate has.
        self.wanted = {key: Counter[Layout | None]({None: len(found)}) for key, found in self.users.items()}

    def assign(self, node: Node, label: LayoutOffer) -> None:
        """Gives a node an offer."""
        before = self.labels.get(id(node))
        self.labels[id(node)] = label
        for k, v in enumerate(node.inputs):
            old = None if before is None else before.inputs[k]
            if v is None or (new := label.inputs[k]) == old:
                continue
            wanted = self.wanted[id(v)]
            wanted[new] += 1
            wanted[old] -= 1
            if not wanted[old]:
                del wanted[old]

    def run(self) -> dict[int, LayoutOffer]:
        for node in self.graph.nodes:
            found = self._own_offers(node)
            if found:
                self.offers[id(node)] = found if any(o.only for o in found) else [*found, _row_major(node)]
        if not self.offers:
            return {}
        for node in self.graph.nodes:
            if id(node) in self.offers:
                self.assign(node, self.pinned.get(id(node), self.offers[id(node)][0]))
            elif reads_any(node):
                self.assign(node, LayoutOffer((ANY, *(None,) * (len(node.inputs) - 1)), (None,)))
            elif (plain := follower_offer(node, None)) is not None:
                # Start as the largest operand is stored.
                known = [
                    self.stored(v)
                    for v in sorted(
                        (v for v in node.inputs if v is not None and _same_rank(v, node)), key=elements, reverse=True
                    )
                ]
                start = next((layout for layout in known if layout is not None), None)
                self.assign(node, follower_offer(node, start) or plain)
        flexible = [n for n in self.graph.nodes if id(n) in self.labels and id(n) not in self.pinned]
        for _ in range(ROUNDS):
            changed = False
            for node in (*flexible, *reversed(flexible)):
                changed |= self._improve(node)
            if not changed:
                break
        for members in self._blocked_components(flexible):
            self._reconsider(members)
        return self.labels

    def _blocked_components(self, nodes: list[Node]) -> list[list[Node]]:
        """Nodes connected by values that are written and read in one layout other than row-major."""
        parent: dict[int, int] = {id(n): id(n) for n in nodes}

        def find(key: int) -> int:
            while parent[key] != key:
                parent[key] = parent[parent[key]]
                key = parent[key]
            return key

        for node in nodes:
            for k, v in enumerate(node.inputs):
                if v is None or v.producer is None or id(v.producer) not in parent or self.stored(v) is None:
                    continue
                if self._wanted(node, k) == self.stored(v):
                    parent[find(id(node))] = find(id(v.producer))
        found: dict[int, list[Node]] = {}
        for node in nodes:
            if any(
                layout not in (None, ANY) for layout in (*self.labels[id(node)].inputs, *self.labels[id(node)].outputs)
            ):
                found.setdefault(find(id(node)), []).append(node)
        return list(found.values())

    def _reconsider(self, members: list[Node]) -> None:
        """Puts a whole component back to row-major if that is cheaper: no single step of `_improve` would get there."""
        touched = {id(v): v for n in members for v in (*n.inputs, *n.outputs) if v is not None}

        def total() -> float:
            return sum(self.labels[id(n)].cost for n in members) + sum(self.conversions(v) for v in touched.values())

        before, cost = {id(n): self.labels[id(n)] for n in members}, total()
        for n in members:
            offers = self.offers.get(id(n))
            plain = follower_offer(n, None) if offers is None else None if any(o.only for o in offers) else offers[-1]
            if plain is not None and ANY not in self.labels[id(n)].inputs:
                self.assign(n, plain)
        if not _is_less(total(), cost):
            for n in members:
                self.assign(n, before[id(n)])

    def _own_offers(self, node: Node) -> list[LayoutOffer]:
        rule = self.rule_for(node.op)
        offers = rule(node) if rule is not None else []
        for offer in offers:
            if not abs(offer.cost) <= PLAUSIBLE_SECONDS:  # true of nan too
                what = (
                    f"layouts of {node.op.operator_name} are offered at costs that are no seconds (more than"
                    f" {PLAUSIBLE_SECONDS:g} for one node)"
                )
                warnings.warn(
                    ScheduleWarning(f"{what}, and may be preferred wrongly: LayoutOffer.cost was in bytes before 0.2"),
                    stacklevel=2,
                )
        return offers

    def stored(self, value: Value) -> Layout | None:
        """The layout in which the value's producer writes it."""
        node = value.producer
        label = self.labels.get(id(node))
        return None if node is None or label is None else label.outputs[node.outputs.index(value)]

    def _wanted(self, node: Node, position: int) -> Layout | None:
        label = self.labels.get(id(node))
        return label.inputs[position] if label is not None else None

    def conversions(self, value: Value | None) -> float:
        """Seconds to convert `value` into the layouts of all users: each layout is made once, read and written."""
        if value is None or value.constant is not None or not isinstance(value.type, TensorType):
            return 0.0
        have = self.stored(value)
        wanted = set(self.wanted.get(id(value), ()))
        if id(value) in self.outputs:
            wanted.add(None)
        return (
            2.0 * elements(value) * value.type.dtype.bytes * len(wanted - {have, ANY}) / self.relayout_bytes_per_second
        )

    def _cost(self, node: Node, label: LayoutOffer) -> float:
        before = self.labels[id(node)]
        self.assign(node, label)
        touched = {id(v): v for v in (*node.inputs, *node.outputs) if v is not None}
        cost = label.cost + sum(self.conversions(v) for v in touched.values())
        self.assign(node, before)
        return cost

    def _improve(self, node: Node) -> bool:
        now = self.labels[id(node)]
        candidates = self.offers.get(id(node))
        if candidates is None:
            if ANY in now.inputs:
                return False
            layouts = (
                {self.stored(v) for v in node.inputs if v is not None}
                | set(self.wanted.get(id(node.output), ()))
                | {None}
            )
            candidates = [
                o
                for o in (follower_offer(node, layout) for layout in sorted(layouts - {ANY}, key=str))
                if o is not None
            ]
        best, least = now, self._cost(node, now)
        for offer in candidates:
            cost = self._cost(node, offer)
            if _is_less(cost, least):
                best, least = offer, cost
        self.assign(node, best)
        return best is not now


def _is_less(a: float, b: float) -> bool:
    """Whether a sum of seconds is smaller than another, by more than rounding."""
    return b - a > ROUNDING * max(abs(a), abs(b))


def _same_rank(value: Value, node: Node) -> bool:
    return isinstance(value.type, TensorType) and value.type.rank == node.output.tensor.rank


def _row_major(node: Node) -> LayoutOffer:
    return LayoutOffer((None,) * len(node.inputs), (None,) * len(node.outputs))
