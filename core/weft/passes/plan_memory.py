"""Gives every intermediate value of a grouped graph its place in one arena.

Sizes are bytes of the stored shape: a number times a product of symbols. Values whose sizes have the same symbols are packed among
themselves, exactly as numbers; the packs stand one after another. Two values share bytes only if their lifetimes are disjoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft import dtypes as dt
from weft.expr.nodes import Expr, Mul, free_vars, wrap
from weft.graph.evaluate import dim_value
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.tensor.language import Dim, as_dim

ALIGNMENT = 64
Class: TypeAlias = "tuple[tuple[Expr, int], ...]"


@dataclass(frozen=True)
class MemoryPlan:
    """Where values live. Inputs, constants and outputs have memory of their own.

    Args:
        offsets: value name → byte offset in the arena.
        sizes: value name → bytes of the slot.
        arena_bytes: of the whole arena.
        aliases: value name → the value (input, constant, output or one with an offset) whose memory it is.
        in_place: those of `aliases` that overwrite it, as opposed to views.
        lower_bound: the most bytes that are live at once, for the arena's quality.
        lifetimes: value name → first and last step (node index) at which its slot is in use.
    """

    offsets: Mapping[str, Dim]
    sizes: Mapping[str, Dim]
    arena_bytes: Dim
    aliases: Mapping[str, str] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    lower_bound: Dim = 0
    lifetimes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def plan_memory(graph: Graph, in_place: bool = True) -> MemoryPlan:
    """The plan of a graph after `fuse` (of any graph; one without groups shares less)."""
    last: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        for v in (*node.outputs, *node.inputs):
            if v is not None:
                last[id(v)] = k
    values = {id(v): v for v in graph.values()}
    for source in graph.symbols.values():
        # A size is read right after its value is computed.
        last.setdefault(id(source.value), 0)
    owned = {id(v) for v in (*graph.inputs, *graph.outputs)} | {id(v) for v in graph.constants()}
    outputs = {id(v) for v in graph.outputs}
    root: dict[int, int] = {}
    overwriting: set[str] = set()

    def find(key: int) -> int:
        while key in root:
            key = root[key]
        return key

    # Views first: their uses lengthen the life of what they look at. A view that is an output takes its source there.
    for node in graph.nodes:
        if isinstance(node.op, Group) and node.op.view:
            source_value = node.inputs[0]
            assert source_value is not None
            a, b = find(id(source_value)), find(id(node.output))
            if b in outputs and a not in owned:
                root[a] = b
                owned.add(b)
            elif b not in owned:
                root[b] = a
    ends: dict[int, int] = {}
    for key, k in last.items():
        ends[find(key)] = max(ends.get(find(key), 0), k)
    starts: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        for o in node.outputs:
            starts.setdefault(find(id(o)), k)

    if in_place:
        for k, node in enumerate(graph.nodes):
            for o, candidates in _overwritable(node):
                mine = find(id(o))
                if mine in owned or starts.get(mine) != k:
                    continue
                for v in candidates:
                    theirs = find(id(v))
                    if theirs in owned or theirs == mine or ends.get(theirs) != k or theirs not in starts:
                        continue
                    root[mine] = theirs
                    overwriting.add(o.name)
                    ends[theirs] = max(ends[theirs], ends[mine])
                    break

    slots: list[tuple[Value, int, int]] = []
    aliases: dict[str, str] = {}
    for node in graph.nodes:
        for o in node.outputs:
            if not isinstance(o.type, TensorType) or o.type.dtype.kind == "string":
                continue
            key = find(id(o))
            if key != id(o):
                aliases[o.name] = values[key].name
            elif key not in owned:
                slots.append((o, starts[key], ends[key]))
    steps = {id(o): k for k, node in enumerate(graph.nodes) for o in node.outputs}
    known = {name: steps.get(id(source.value), -1) for name, source in graph.symbols.items()}
    return _place(slots, aliases, frozenset(overwriting), len(graph.nodes), known)


def _overwritable(node: Node) -> list[tuple[Value, list[Value]]]:
    """Outputs of an elementwise group with the inputs they may overwrite: each is read at the very index that is written."""
    if not isinstance(node.op, Group) or node.op.view or len(node.outputs) != 1:
        return []
    body, output = node.op.body, node.outputs[0]
    if any(n.op.kind != "elementwise" or n.output.shape != output.shape or n.output.tensor.layout != output.tensor.layout for n in body.nodes):
        return []
    return [(output, [v for v in node.inputs if v is not None and v.constant is None and v.type == output.type])]


def size_of(value: Value) -> tuple[int, Class]:
    """Bytes of the stored value: a number and the symbolic factors."""
    type = value.tensor
    shape = type.shape if type.layout is None else type.layout.stored_shape(type.shape)
    number, symbolic = type.dtype.bytes, Counter[Expr]()
    stack = list(shape)
    while stack:
        d = as_dim(stack.pop())
        if isinstance(d, int):
            number *= d
        elif isinstance(d, Mul):
            stack += [d.a, d.b]
        else:
            symbolic[d] += 1
    return number, tuple(sorted(symbolic.items(), key=lambda item: str(item[0])))


def _times(number: int, factors: Class) -> Dim:
    result: Dim = number
    for e, power in factors:
        for _ in range(power):
            result = as_dim(wrap(result, dt.int64) * e) if number else 0
    return result


def _plus(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else as_dim(wrap(b, dt.int64) + a)


def _place(
    slots: list[tuple[Value, int, int]], aliases: dict[str, str], overwriting: frozenset[str], steps: int, known: Mapping[str, int]
) -> MemoryPlan:
    """`known`: data symbol → the step that computes it."""
    classes: dict[Class, list[tuple[int, int, int, Value]]] = {}
    for value, start, end in slots:
        number, factors = size_of(value)
        classes.setdefault(factors, []).append((-(-number // ALIGNMENT) * ALIGNMENT, start, end, value))
    offsets: dict[str, Dim] = {}
    sizes: dict[str, Dim] = {}
    base: Dim = 0
    bound: Dim = 0

    def order(factors: Class) -> tuple[int, int, str]:
        # Numbers first: offsets of static values stay numbers. Then as sizes become known: an offset is needed when its value is computed.
        return max((known.get(n, -1) for e, _ in factors for n in free_vars(e)), default=-1), len(factors), str(factors)

    for factors, members in sorted(classes.items(), key=lambda item: order(item[0])):
        placed, total = pack([(size, start, end) for size, start, end, _ in members])
        for (size, _, _, value), at in zip(members, placed):
            offsets[value.name] = _plus(base, _times(at, factors))
            sizes[value.name] = _times(size, factors)
        live = [0] * (steps + 1)
        for size, start, end, _ in members:
            for k in range(start, end + 1):
                live[k] += size
        bound = _plus(bound, _times(max(live), factors))
        base = _plus(base, _times(total, factors))
    return MemoryPlan(offsets, sizes, base, aliases, overwriting, bound, {v.name: (s, e) for v, s, e in slots})


def pack(blocks: list[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets of blocks (size, first, last) such that no two that live at once overlap, and the total: the largest first, each into
    the smallest gap that holds it."""
    order = sorted(range(len(blocks)), key=lambda k: (-blocks[k][0], blocks[k][1]))
    offsets = [0] * len(blocks)
    placed: list[int] = []
    total = 0
    for k in order:
        size, start, end = blocks[k]
        busy = sorted((offsets[p], offsets[p] + blocks[p][0]) for p in placed if blocks[p][1] <= end and start <= blocks[p][2])
        at, best, gap_best = 0, None, None
        for lo, hi in busy:
            if lo - at >= size and (gap_best is None or lo - at < gap_best):
                best, gap_best = at, lo - at
            at = max(at, hi)
        offsets[k] = at if best is None else best
        placed.append(k)
        total = max(total, offsets[k] + size)
    return offsets, total


def bytes_at(dim: Dim, env: Mapping[str, int]) -> int:
    """A size or offset of the plan for given symbols."""
    value = dim_value(dim, env)
    assert value is not None, f"a symbol of {dim} has no value: {free_vars(dim) if isinstance(dim, Expr) else ()}"
    return value
