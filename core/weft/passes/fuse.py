"""Fuses nodes into groups; every group becomes one kernel.

An anchor (contraction, window, reduction, composite, opaque) is fused with the elementwise nodes that follow it at the
same shape. Reductions over trailing axes are also fused with the row-wise nodes around them. Remaining elementwise and
injective nodes form groups of their own. A set of nodes may be a group if no path between two of its nodes leaves the
set, and if only one of its values is used outside. `weft.passes.grouping` says which nodes may be fused and what a
group may consist of."""

from __future__ import annotations

import itertools
from collections.abc import Container
from heapq import heapify, heappop, heappush
from typing import Any

from weft.choices import Choices
from weft.graph.group import Group
from weft.graph.layout import Layout
from weft.graph.nodes import Graph, Node, Value
from weft.graph.relayout import Relayout
from weft.graph.rewrite import copy_graph, sort_nodes, type_symbols
from weft.passes.capabilities import Capabilities
from weft.passes.grouping import GroupFormula, Grouping, at_most, trailing_axes
from weft.tensor.language import Dim

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


class _Fusion(Grouping):
    """Chooses the groups of a graph, and builds the graph of them."""

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
        narrowest = node.output.dtype.bits
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
            outs = self.live_outs(members)
            wider = self.capabilities.narrow_results and outs[0].dtype.bits > narrowest
            if len(outs) == 1 and not wider and self.sound(members):
                narrowest, best = outs[0].dtype.bits, set(members)
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
        if node.op.layout_role == "convolution" and node.output.tensor.layout is not None:
            members = self.with_transposed(anchor, 0, members, image=True)
        if self.capabilities.narrow_results:
            return self.with_producers(members, wider=min(v.dtype.bits for v in self.live_outs(members)))
        return members

    def with_transposed(self, anchor: int, position: int, members: set[int], image: bool = False) -> set[int]:
        """A contraction and the transpose that makes an operand, which nothing else uses: a product's kernel packs
        panels either way; that of a convolution to blocks of channels reads an `image` in rows number by number."""
        operand = self.nodes[anchor].inputs[position]
        k = None if operand is None or operand.producer is None else self.index.get(id(operand.producer))
        if operand is None or k is None or self.group[k] is not None or not self.fusable(k) or self.is_view(k):
            return members
        if operand.tensor.layout is not None or self.users[k] != [anchor] or id(operand) in self.kept:
            return members
        rank = operand.tensor.rank
        order = self.nodes[k].op.permutation(rank)
        wanted = image or order == (*range(rank - 2), rank - 1, rank - 2)
        return members | {k} if order is not None and wanted and self.sound(members | {k}) else members

    def with_producers(
        self, members: set[int], only_cheap: bool = False, into: int | None = None, most: int = 64, wider: int = 0
    ) -> set[int]:
        """`members` and the elementwise and injective nodes before them that nothing else uses, as far as computing
        them in place costs little. `wider`: their results have more bits than that."""
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
                or (wider and self.nodes[k].outputs[0].dtype.bits <= wider)
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
                new.nodes.append(self._group(members, view, alike.get(g, ())))
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

    def alike(self) -> dict[int, set[int]]:
        """Group → the constants of one element (their ids) that it reads, so that others that differ in these alone are
        the same kernel: of arithmetic alone all of them, if `ALIKE` or more differ; of other groups, if their sizes are
        open, factors and terms in which two differ: what asks for open sizes is much code."""
        found: dict[tuple[Any, ...], dict[tuple[bytes, ...], list[tuple[int, list[int]]]]] = {}
        for g, members in enumerate(self.members):
            arithmetic = all(self.nodes[k].op.kind in ("elementwise", "injective") for k in members)
            if not arithmetic and all(o.tensor.is_static for k in members for o in self.nodes[k].outputs):
                continue
            kept = set() if arithmetic else self._kept_constants(members)
            numbers: dict[int, int] = {}
            constants: dict[int, bytes] = {}
            form: list[Any] = []
            for k in members:
                node = self.nodes[k]
                wired: list[Any] = []
                for v in node.inputs:
                    one = v is not None and v.constant is not None and v.constant.size == 1
                    if v is None:
                        wired.append(None)
                        continue
                    if one and id(v) not in kept:
                        constants.setdefault(id(v), _bytes(v))
                    number = numbers.setdefault(id(v), len(numbers))
                    wired.append((number, one, _bytes(v) if id(v) in kept else None))
                types = tuple(v and v.type for v in node.inputs), tuple(o.type for o in node.outputs)
                form.append((node.op, tuple(wired), *types))
                numbers.update((id(o), len(numbers) + n) for n, o in enumerate(node.outputs))
            if constants:
                kinds = found.setdefault((arithmetic, *form), {})
                kinds.setdefault(tuple(constants.values()), []).append((g, list(constants)))
        result: dict[int, set[int]] = {}
        for (arithmetic, *_), kinds in found.items():
            if len(kinds) >= (ALIKE if arithmetic else 2):
                differ = [arithmetic or len(set(values)) > 1 for values in zip(*kinds)]
                for g, ids in itertools.chain(*kinds.values()):
                    result[g] = set(itertools.compress(ids, differ))
        return result

    def _kept_constants(self, members: list[int]) -> set[int]:
        """The constants (their ids) of one element that stand in the code of a group: what is not added to floats, or
        multiplied with them, may be cheaper, or possible only, if the number is known."""
        kept: set[int] = set()
        for k in members:
            node = self.nodes[k]
            plain = node.op.kind == "elementwise" and self.cheap(k) and len([v for v in node.inputs if v]) == 2
            for v in node.inputs:
                if v is not None and v.constant is not None and v.constant.size == 1:
                    if not (plain and v.tensor.dtype.is_float and node.output.tensor.dtype.is_float):
                        kept.add(id(v))
        return kept

    def _group(self, members: list[int], view: bool, reads: Container[int]) -> Node:
        """`reads`: ids of constants of one element that are inputs."""
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
                    small = v.constant is not None and v.constant.size == 1 and not view and id(v) not in reads
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


def _bytes(value: Value) -> bytes:
    assert value.constant is not None
    return value.constant.tobytes()
