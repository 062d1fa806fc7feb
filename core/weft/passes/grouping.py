"""What a group of nodes may consist of: which nodes can be fused, how long the formula of a group becomes, and whether
a set of nodes can be one kernel.

`weft.passes.fuse` chooses groups by these facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.expr.linear import polynomial
from weft.expr.nodes import Add, Expr, Mul, Sub, Var, size_of, walk
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import CHEAP, Elementwise
from weft.graph.rewrite import attribute_symbols, type_symbols
from weft.passes.capabilities import Capabilities
from weft.tensor.language import Compute, Dim, Read, placeholder

# Elementwise operators that are not cheap in one group: with so many functions arithmetic is all of the time, and ever
# longer formulas take ever longer to compile.
MOST_FUNCTIONS = 8
# Parts of the formula that a group's operators become when each stands in place of what reads it (t*t doubles it with
# every step), and of an index in it (an index that is looked up stands there four times). Beyond, compiling takes
# longer than a kernel saves.
LONGEST_FORMULA = 1500
LONGEST_INDEX = 64


class Grouping:
    """A graph's nodes, the groups made of them so far, and what another group may consist of.

    Nodes are numbers: places in `graph.nodes`.

    Args:
        alone: numbers of nodes that are not fused.
    """

    def __init__(self, graph: Graph, capabilities: Capabilities, alone: Collection[int] = ()) -> None:
        self.graph, self.capabilities, self.alone = graph, capabilities, frozenset(alone)
        self.nodes = graph.nodes
        self.index = {id(n): k for k, n in enumerate(self.nodes)}
        self.users: list[list[int]] = [[] for _ in self.nodes]
        self.uses: list[list[int]] = [[] for _ in self.nodes]
        self.positions: dict[tuple[int, int], list[int]] = {}  # of the operands of a user that a producer makes
        # A kernel's sizes are arguments: what computes a size and what has it cannot be one kernel.
        self.apart: dict[int, set[int]] = {}
        for k, node in enumerate(self.nodes):
            for position, v in enumerate(node.inputs):
                self._edge(v, k, position)
            for name in (
                {*attribute_symbols(node.op), *(n for o in node.outputs for n in type_symbols(o.type))}
                if graph.symbols
                else ()
            ):
                if name in graph.symbols:
                    source = graph.symbols[name].value
                    self._edge(source, k)
                    if source.producer is not None and id(source.producer) in self.index:
                        self.apart.setdefault(k, set()).add(self.index[id(source.producer)])
        self.readings: list[Reading | None] = [None] * len(self.nodes)
        self.costs: list[float | None] = [None] * len(self.nodes)
        self.elementwise: dict[tuple[object, ...], Reading] = {}
        self.kept = {id(v) for v in graph.outputs} | {id(s.value) for s in graph.symbols.values()}
        self.group: list[int | None] = [None] * len(self.nodes)
        self.members: list[list[int]] = []
        # The last member of any group that has one at or before k and one after.
        self.reach = list(range(len(self.nodes)))

    def _edge(self, value: Value | None, user: int, *position: int) -> None:
        """`position`: of the operand; none for a size."""
        if value is None or value.producer is None or id(value.producer) not in self.index:
            return
        p = self.index[id(value.producer)]
        if not self.users[p] or self.users[p][-1] != user:  # edges come user by user
            self.users[p].append(user)
            self.uses[user].append(p)
            self.positions[p, user] = []
        self.positions[p, user] += position

    # -- facts
    def fusable(self, k: int) -> bool:
        node = self.nodes[k]
        if node.op.kind in ("control", "host") or isinstance(node.op, Group):
            return False
        values = (*(v for v in node.inputs if v is not None), *node.outputs)
        return all(isinstance(v.type, TensorType) and v.type.dtype.kind != "string" for v in values)

    def is_view(self, k: int) -> bool:
        node = self.nodes[k]
        if not node.op.is_view:
            return False
        first = node.inputs[0]
        return first is not None and first.tensor.layout is None and node.output.tensor.layout is None

    def cheap(self, k: int) -> bool:
        """Whether computing a node's elements wherever they are read costs less than storing them."""
        found = self.costs[k]
        if found is None:
            node = self.nodes[k]
            found = self.costs[k] = node.op.cost(*(None if v is None else v.type for v in node.inputs))
        return found <= CHEAP

    def free_elementwise(self, k: int) -> bool:
        return (
            self.group[k] is None
            and self.nodes[k].op.kind == "elementwise"
            and self.fusable(k)
            and len(self.nodes[k].outputs) == 1
        )

    def within(self, members: set[int]) -> bool:
        """Whether a group of `members` is not too long."""
        return self.formula(members) is not None

    def formula(self, members: Iterable[int]) -> GroupFormula | None:
        """The formula of a group of `members`; None if it is too long."""
        found = GroupFormula()
        return found if all(self.lengthen(found, k) for k in sorted(members, reverse=True)) else None

    def lengthen(self, formula: GroupFormula, k: int) -> bool:
        """Adds a node that comes before the members that read it; if the formula is too long with it, it stays as it
        was, and False."""
        node, reading = self.nodes[k], self.reading(k)
        read = [
            (*self.reading(u).of(self.positions[k, u]), *formula.places[u])
            for u in self.users[k]
            if u in formula.places
        ]
        times = sum(reads * t for reads, _, t, _ in read) if read else 1
        index = max((repeats * i for _, repeats, _, i in read), default=1)
        length = formula.length + times * (reading.size + reading.indices * index)
        functions = formula.functions + (node.op.kind == "elementwise" and not self.cheap(k))
        if (
            len(formula.places) >= self.capabilities.max_group
            or functions > MOST_FUNCTIONS
            or length > LONGEST_FORMULA
            or index > LONGEST_INDEX
        ):
            return False
        formula.length, formula.functions, formula.places[k] = length, functions, (times, index)
        return True

    def reading(self, k: int) -> Reading:
        found = self.readings[k]
        if found is None:
            node = self.nodes[k]
            # An elementwise formula depends on dtypes alone.
            alike = (node.op, *(v and v.dtype for v in node.inputs)) if isinstance(node.op, Elementwise) else None
            found = self.elementwise.get(alike) if alike else None
            if found is None:
                found = reading_of(node)
                if alike:
                    self.elementwise[alike] = found
            self.readings[k] = found
        return found

    def live_outs(self, members: set[int]) -> list[Value]:
        found = []
        for k in sorted(members):
            for o in self.nodes[k].outputs:
                users = [u for u in self.users[k] if any(v is o for v in self.nodes[u].inputs)]
                if id(o) in self.kept or any(u not in members for u in users):
                    found.append(o)
        return found

    def sound(self, members: set[int]) -> bool:
        """Whether no path leaves the set and comes back, groups already made taken as one node, no size is computed
        inside, and no node in it is to be alone."""
        if len(members) > 1 and not self.alone.isdisjoint(members):
            return False
        if self.apart and any(not members.isdisjoint(self.apart.get(k, ())) for k in members):
            return False
        # Beyond the set's last node a path can only come back through a made group that reaches back over it.
        horizon = max(members)
        while self.reach[horizon] > horizon:
            horizon = self.reach[horizon]
        seen: set[int] = set()
        stack = [u for k in members for u in self.users[k] if u not in members]
        while stack:
            k = stack.pop()
            if k in members:
                return False
            if k in seen or k > horizon:
                continue
            g = self.group[k]
            whole = self.members[g] if g is not None else [k]
            seen.update(whole)
            stack.extend(u for m in whole for u in self.users[m] if u not in seen)
        return True

    def close(self, members: Iterable[int]) -> None:
        ordered = sorted(members)
        for k in ordered:
            self.group[k] = len(self.members)
        for k in range(ordered[0], ordered[-1]):
            self.reach[k] = max(self.reach[k], ordered[-1])
        self.members.append(ordered)


@dataclass
class GroupFormula:
    """The formula that a group's operators become, the elementwise and injective ones in place of what reads them; an
    estimate, before it is simplified.

    Args:
        length: its parts.
        functions: elementwise operators that are not cheap.
        places: member → how often its element stands in the formula, and the parts of the longest index at which it
            does.
    """

    length: int = 0
    functions: int = 0
    places: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """How an operator's formula reads its operands: its parts, those of them that are indices of its result; by operand
    how often it is read, and how often an index of the result stands in the index at which it is read."""

    size: int
    indices: int = 0
    operands: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def of(self, positions: Sequence[int]) -> tuple[int, int]:
        """The same of some of the operands."""
        found = [self.operands.get(k, (1, 1)) for k in positions]
        return sum(reads for reads, _ in found), max((repeats for _, repeats in found), default=1)


def reading_of(node: Node) -> Reading:
    """How an elementwise or injective operator reads; of others, once and where they please."""
    op, types = node.op, [None if v is None else v.type for v in node.inputs]
    if isinstance(op, Elementwise):
        formula = op.formula_of(
            [None if v is None else Var(f"operand {k}", v.dtype) for k, v in enumerate(node.inputs)]
        )
        counts = Counter(e.name for e in walk(formula) if isinstance(e, Var))
        return Reading(size_of(formula), 0, {k: (counts[f"operand {k}"], 1) for k in range(len(types))})
    if op.kind != "injective" or not all(t is None or isinstance(t, TensorType) for t in types):
        return Reading(1)
    direct = next(
        (a for a in op.algorithms().values() if a.form == "tensors" and op.applies(a.name, *types) is None), None
    )
    if direct is None:
        return Reading(1)
    operands = [None if v is None else placeholder(v.shape, v.dtype) for v in node.inputs]
    made = direct.function(op, *operands)
    result = made[0] if isinstance(made, tuple) else made
    if not isinstance(result.source, Compute) or result.source.reduce is not None:
        return Reading(1)
    axes = {a.name for a in result.source.axes}
    found: dict[int, tuple[int, int]] = {}
    formula = result.source.bodies[0]
    for e in walk(formula):
        for k, x in enumerate(operands):
            if isinstance(e, Read) and e.tensor is x:
                reads, repeats = found.get(k, (0, 1))
                longest = max((_occurrences(i, axes) for i in e.indices), default=1)
                found[k] = (reads + 1, max(repeats, longest))
    return Reading(size_of(formula), sum(isinstance(e, Var) and e.name in axes for e in walk(formula)), found)


def _occurrences(index: Expr, axes: Collection[str]) -> int:
    """How often axes occur in an index once its products are multiplied out, as simplification does: twice in i·(a −
    b)."""
    if isinstance(index, Var):
        return index.name in axes
    parts = (
        (f for m in polynomial(index).terms for f in m)
        if index.dtype == dt.int64 and isinstance(index, (Add, Sub, Mul))
        else index.children()
    )
    return sum(_occurrences(p, axes) for p in parts)


def trailing_axes(node: Node) -> tuple[int, ...] | None:
    """The axes of a reduction that keeps dimensions and reduces the last ones; else None."""
    first = node.inputs[0] if node.inputs else None
    if (
        node.op.kind != "reduction"
        or first is None
        or len(node.outputs) != 1
        or node.output.tensor.rank != first.tensor.rank
    ):
        return None
    rank = first.tensor.rank
    axes = node.op.reduced_axes(rank)
    return tuple(sorted(axes)) if axes and sorted(axes) == list(range(rank - len(axes), rank)) else None


def at_most(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether a value of shape `a` certainly has no more elements than one of shape `b`."""
    if a == b:
        return True
    symbols_a, symbols_b = [d for d in a if isinstance(d, Expr)], [d for d in b if isinstance(d, Expr)]
    for d in symbols_a:
        if d not in symbols_b:
            return False
        symbols_b.remove(d)
    left = math.prod(d for d in a if isinstance(d, int))
    right = math.prod(d for d in b if isinstance(d, int))
    return left <= right and not symbols_b
