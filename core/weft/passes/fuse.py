"""Fuses nodes into groups; every group becomes one kernel.

An anchor (contraction, window, reduction, composite, opaque) is fused with the elementwise nodes that follow it at the
same shape. Reductions over trailing axes are also fused with the row-wise nodes around them. Remaining elementwise and
injective nodes form groups of their own. A set of nodes may be a group if no path between two of its nodes leaves the
set, and if only one of its values is used outside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from weft import dtypes as dt
from weft.choices import Choices
from weft.expr.linear import polynomial
from weft.expr.nodes import Add, Expr, Mul, Sub, Var, size_of, walk
from weft.graph.group import Group
from weft.graph.layout import Layout
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import CHEAP, Elementwise
from weft.graph.relayout import Relayout
from weft.graph.rewrite import attribute_symbols, copy_graph, sort_nodes, type_symbols
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
# Groups that differ in constants of one element only, from which on they are one kernel that reads them: otherwise the
# constants stand in the code.
ALIKE = 32


def fuse(graph: Graph, capabilities: Capabilities | None = None, choices: Choices | None = None) -> Graph:
    """Afterwards every node is a Group, except for control flow and nodes on strings, sequences and optionals.

    Every node that shares a group has a choice `fuse.%VALUE`: true by default; false leaves it a group of its own.
    """
    choices = Choices() if choices is None else choices
    fusion = _Fusion(copy_graph(graph), capabilities or Capabilities())
    grouped = fusion.run()
    shared = sorted(k for members in fusion.members if len(members) > 1 for k in members)
    alone = {k for k in shared if not choices.choose(f"fuse.%{graph.nodes[k].outputs[0].name}", [True, False], True)}
    return _Fusion(copy_graph(graph), capabilities or Capabilities(), alone).run() if alone else grouped


class _Fusion:
    """`alone`: numbers of nodes that are not fused."""

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

    # -- the phases
    def run(self) -> Graph:
        for k, node in enumerate(self.nodes):
            if not self.fusable(k) or self.is_view(k) or self.group[k] is not None:
                continue
            if node.op.packs_operands:
                self.close(self.with_operands(k, self.with_transpose(k)))
            elif node.op.kind in ("contraction", "window", "composite", "reduction"):
                self.close(self.with_prologue(k, self.with_followers(k)))
            elif node.op.kind == "opaque":
                self.close([k])
        for k in range(len(self.nodes) - 1, -1, -1):
            if self.group[k] is None and self.fusable(k):
                self.close([k] if self.is_view(k) else self.with_producers({k}))
        return self.build()

    def with_followers(self, anchor: int) -> set[int]:
        """The anchor and the longest run of elementwise (and, after a reduction, row-wise) nodes that follow it and
        leave one value."""
        node = self.nodes[anchor]
        members, best = {anchor}, {anchor}
        if len(node.outputs) != 1:
            return best
        shapes = [node.output.shape]
        layouts = {node.output.tensor.layout}
        rows, reduced = trailing_axes(node), node.inputs[0] if node.inputs else None
        if rows is not None and reduced is not None:
            shapes.append(reduced.shape)
            layouts.add(reduced.tensor.layout)
        frontier = sorted(self.users[anchor])
        while frontier:
            k = frontier.pop(0)
            if k in members or not self._follows(k, shapes, layouts, rows) or not self.within({*members, k}):
                continue
            members.add(k)
            if len(self.live_outs(members)) == 1 and self.sound(members):
                best = set(members)
            frontier = sorted({*frontier, *(u for u in self.users[k] if u not in members)})
        return best

    def _follows(
        self, k: int, shapes: list[tuple[Dim, ...]], layouts: set[Layout | None], rows: tuple[int, ...] | None
    ) -> bool:
        node = self.nodes[k]
        if self.free_elementwise(k):
            return node.output.shape in shapes and node.output.tensor.layout in layouts
        if rows is None or self.group[k] is not None or node.op.kind != "reduction" or not self.fusable(k):
            return False
        # Another reduction of the same rows: softmax's sum after its maximum, the variance after the mean.
        return (
            not node.op.reads_twice
            and trailing_axes(node) == rows
            and node.inputs[0] is not None
            and node.inputs[0].shape == shapes[-1]
        )

    def with_transpose(self, anchor: int) -> set[int]:
        """What packs its operands, such as an attention, and the transpose after it, which stores the heads side by
        side."""
        users = self.users[anchor]
        if len(users) == 1 and self.group[users[0]] is None and self.fusable(users[0]):
            rank = self.nodes[anchor].output.tensor.rank
            axes = self.nodes[users[0]].op.permutation(rank)
            trial = {anchor, users[0]}
            if axes is not None and axes[-1:] == (rank - 1,):
                if len(self.live_outs(trial)) == 1 and self.sound(trial):
                    return trial
        return {anchor}

    def with_operands(self, anchor: int, members: set[int]) -> set[int]:
        """What packs its operands and what moves or cheaply changes them, if nothing else uses it. Those that are read
        often and not packed may only be moved; a view between two that join need not be one."""
        members = set(members)
        node = self.nodes[anchor]
        packed = {
            id(v)
            for k, v in enumerate(node.inputs)
            if v is not None and (k not in node.op.read_often or v.tensor.layout is not None)
        }
        todo = [
            (p, any(v is o for v in node.inputs for o in self.nodes[p].outputs if id(o) in packed))
            for p in self.uses[anchor]
        ]
        while todo:
            k, changes = todo.pop(0)
            op, cheap = self.nodes[k].op, self.cheap(k)
            moves = op.kind == "injective" and cheap
            if (
                k in members
                or self.group[k] is not None
                or not self.fusable(k)
                or not (moves or (changes and cheap and op.kind == "elementwise"))
            ):
                continue
            if (
                any(u not in members for u in self.users[k])
                or len(self.nodes[k].outputs) != 1
                or id(self.nodes[k].output) in self.kept
            ):
                continue
            added = {k}
            if self.is_view(k):
                # Worth it only where it saves a copy: what comes before is computed in place, too.
                before = [p for p in self.uses[k] if self.users[p] == [k] and self.moves_cheaply(p)]
                if (
                    not before
                    or self.group[before[0]] is not None
                    or id(self.nodes[before[0]].output) in self.kept
                    or self.is_view(before[0])
                ):
                    continue
                added.add(before[0])
            if (
                not self.within(members | added)
                or len(self.live_outs(members | added)) > len(self.live_outs(members))
                or not self.sound(members | added)
            ):
                continue
            members |= added
            todo += [(p, changes) for a in added for p in self.uses[a] if p not in members]
        return members

    def moves_cheaply(self, k: int) -> bool:
        """Whether a node reads another operand's elements elsewhere, at no cost, as rows of memory are."""
        op = self.nodes[k].op
        return (
            op.kind == "injective"
            and self.cheap(k)
            and not isinstance(op, Relayout)
            and not op.is_view
            and bool(self.nodes[k].inputs)
        )

    def with_prologue(self, anchor: int, members: set[int]) -> set[int]:
        node = self.nodes[anchor]
        if node.op.kind == "reduction" and len(node.outputs) == 1:
            return self.with_producers(members)
        if node.op.row_wise:
            return self.with_producers(members, only_cheap=True, into=anchor, most=4)
        for position in node.op.reads_transposed:
            members = self.with_transposed(anchor, position, members)
        return members

    def with_transposed(self, anchor: int, position: int, members: set[int]) -> set[int]:
        """A product and the transpose that makes an operand: the product's kernel packs panels either way."""
        right = self.nodes[anchor].inputs[position]
        k = self.index.get(id(right.producer)) if right is not None and right.producer is not None else None
        if (
            right is None
            or k is None
            or self.group[k] is not None
            or not self.fusable(k)
            or right.tensor.layout is not None
        ):
            return members
        op, rank = self.nodes[k].op, right.tensor.rank
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        if op.permutation(rank) != swapped or self.users[k] != [anchor] or id(right) in self.kept:
            return members
        return members | {k} if self.sound(members | {k}) else members

    def with_producers(
        self, members: set[int], only_cheap: bool = False, into: int | None = None, most: int = 64
    ) -> set[int]:
        """`members` and the elementwise and injective nodes before them that nothing else uses, as far as computing
        them in place costs little."""
        members = set(members)
        formula: GroupFormula | None = None
        added = 0
        repeated: dict[int, bool] = {}
        todo = [
            -p for m in ([into] if into is not None else members) for p in self.uses[m]
        ]  # a heap: the last one first
        heapify(todo)
        while todo and added < most and len(members) < self.capabilities.max_group:
            k = -heappop(todo)
            if (
                k in members
                or id(self.nodes[k].outputs[0]) in self.kept
                or not self._may_precede(k, members, only_cheap, repeated)
            ):
                continue
            formula = formula or self.formula(members)
            if formula is None:
                break
            if not self.sound(members | {k}) or not self.lengthen(formula, k):
                continue
            members.add(k)
            added += 1
            for p in self.uses[k]:
                heappush(todo, -p)
        return members

    def _may_precede(self, k: int, members: set[int], only_cheap: bool, repeated: dict[int, bool]) -> bool:
        node = self.nodes[k]
        if (
            self.group[k] is not None
            or node.op.kind not in ("elementwise", "injective")
            or not self.fusable(k)
            or self.is_view(k)
            or len(node.outputs) != 1
        ):
            return False
        cheap = self.cheap(k)
        if only_cheap and not (cheap and node.op.kind == "elementwise"):
            return False
        for u in self.users[k]:
            if u not in members:
                return False
            user = self.nodes[u]
            if user.op.kind not in ("elementwise", "injective", "reduction") and not user.op.row_wise:
                return False
            if user.op.row_wise and (user.inputs[0] is not node.output or user.output.shape != node.output.shape):
                return False
            if user.op.kind == "reduction" and (user.inputs[0] is not node.output or user.op.reads_twice):
                return False
        # Where elements are read more than once their formula is computed more than once: only cheap ones may be.
        moved = any(
            self.nodes[u].op.kind == "injective" and not isinstance(self.nodes[u].op, Relayout) for u in self.users[k]
        )
        repeated[k] = (moved and len(self.users[k]) > 1) or any(
            repeated.get(u, False)
            or (
                self.nodes[u].op.kind in ("elementwise", "injective")
                and not at_most(self.nodes[u].output.shape, node.output.shape)
            )
            for u in self.users[k]
        )
        return cheap or not repeated[k]

    # -- building
    def build(self) -> Graph:
        new = Graph(
            self.graph.name,
            list(self.graph.inputs),
            list(self.graph.outputs),
            [],
            dict(self.graph.symbols),
            list(self.graph.output_names),
        )
        made: set[int] = set()
        alike = self.alike()
        roots: dict[int, Value] = {}
        fixed = {id(v) for v in self.graph.inputs}
        taken = {id(v) for v in self.graph.outputs}
        for k, node in enumerate(self.nodes):
            g = self.group[k]
            if g is None:
                new.nodes.append(Node(node.op, node.inputs, node.outputs, node.names))
            elif g not in made:
                made.add(g)
                members = self.members[g]
                view = len(members) == 1 and self.is_view(members[0]) and self._may_view(node, roots, fixed, taken)
                new.nodes.append(self._group(members, view, g in alike))
        sort_nodes(new)
        return new

    def _may_view(self, node: Node, roots: dict[int, Value], fixed: set[int], taken: set[int]) -> bool:
        """Results own their memory: an output is no view of an input, of a constant or of another output.

        What an output looks at is written into the output, so the output's sizes must be known as early: no data
        symbols of its own.
        """
        source = node.inputs[0]
        assert source is not None
        root = roots.get(id(source), source)
        if id(node.output) in taken:
            if id(root) in fixed or source.constant is not None or id(root) in taken or id(source) in taken:
                return False
            if (type_symbols(node.output.type).keys() - type_symbols(root.type).keys()) & self.graph.symbols.keys():
                return False
            taken.add(id(root))
        if source.constant is not None:
            fixed.add(id(source))
        roots[id(node.output)] = root
        return True

    def alike(self) -> set[int]:
        """The groups that read their constants of one element: of arithmetic alone, and of `ALIKE` or more that differ
        in nothing else."""
        found: dict[tuple[Any, ...], dict[tuple[bytes, ...], list[int]]] = {}
        for g, members in enumerate(self.members):
            if any(self.nodes[k].op.kind not in ("elementwise", "injective") for k in members):
                continue
            numbers: dict[int, int] = {}
            constants: list[bytes] = []
            form: list[Any] = []
            for k in members:
                node = self.nodes[k]
                for v in node.inputs:
                    if v is not None and v.constant is not None and v.constant.size == 1 and id(v) not in numbers:
                        constants.append(v.constant.tobytes())
                wired = tuple(
                    (
                        None
                        if v is None
                        else (numbers.setdefault(id(v), len(numbers)), v.constant is None or v.constant.size > 1)
                    )
                    for v in node.inputs
                )
                form.append(
                    (node.op, wired, tuple(v and v.type for v in node.inputs), tuple(o.type for o in node.outputs))
                )
                numbers.update((id(o), len(numbers) + n) for n, o in enumerate(node.outputs))
            if constants:
                found.setdefault(tuple(form), {}).setdefault(tuple(constants), []).append(g)
        return {g for kinds in found.values() if len(kinds) >= ALIKE for groups in kinds.values() for g in groups}

    def _group(self, members: list[int], view: bool, reads: bool) -> Node:
        """`reads`: its constants are all inputs."""
        inside = set(members)
        nodes = [self.nodes[k] for k in members]
        outs = self.live_outs(inside)
        body = Graph("_".join(n.op.operator_name.lower() for n in nodes[:6]))
        inner: dict[int, Value] = {}
        outer: list[Value] = []
        names: set[str] = set()
        for node in nodes:
            names |= node.names
            inputs: list[Value | None] = []
            for v in node.inputs:
                if v is not None and id(v) not in inner:
                    small = v.constant is not None and v.constant.size == 1 and not view and not reads
                    inner[id(v)] = Value(v.name, v.type, constant=v.constant if small else None)
                    if not small:
                        body.inputs.append(inner[id(v)])
                        outer.append(v)
                inputs.append(None if v is None else inner[id(v)])
            outputs = [Value(o.name, o.type) for o in node.outputs]
            inner.update({id(o): n for o, n in zip(node.outputs, outputs)})
            body.nodes.append(Node(node.op, inputs, outputs, node.names))
        body.outputs = [inner[id(o)] for o in outs]
        body.output_names = [o.name for o in outs]
        return Node(Group(body, view), outer, outs, names)


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
