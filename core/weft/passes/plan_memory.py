"""Assigns an offset in one arena to every intermediate value of a grouped graph and to the scratch of its kernels.

Sizes are bytes of the stored shape: a number times a product of symbols. Slots whose sizes have the same symbols are
packed together, with exact arithmetic on the numbers; the packs follow each other. Two slots share bytes only if their
lifetimes are disjoint. The lifetime of scratch is the step of its kernel, so it may share bytes with values of other
steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.codegen.base import THREADS
from weft.expr.nodes import Expr, Mul, free_vars, le, maximum, select, wrap
from weft.graph.evaluate import dim_value
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.machine import GLOBAL_ALIGN
from weft.tensor.language import Dim, as_dim

Class: TypeAlias = "tuple[tuple[Expr, int], ...]"
_THREADS: Class = ((THREADS, 1),)


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets of values in the arena. Inputs, constants and outputs have memory of their own.

    Args:
        offsets: value name → byte offset in the arena.
        sizes: value name → bytes of the slot.
        arena_bytes: of the whole arena.
        aliases: value name → the value (input, constant, output or one with an offset) whose memory it is.
        in_place: those of `aliases` that overwrite it, as opposed to views.
        lower_bound: the most bytes that are live at once, scratch included, for the arena's quality.
        lifetimes: value name → first and last step (node index) at which its slot is in use.
        scratch: name of a kernel's first output → byte offsets of its scratch.
    """

    offsets: Mapping[str, Dim]
    sizes: Mapping[str, Dim]
    arena_bytes: Dim
    aliases: Mapping[str, str] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    lower_bound: Dim = 0
    lifetimes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    scratch: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)


def plan_memory(
    graph: Graph,
    in_place: bool = True,
    scratch: Mapping[str, Sequence[Expr]] | None = None,
    threads: int = 4,
    alignment: int = GLOBAL_ALIGN,
) -> MemoryPlan:
    """The plan of a graph after `fuse` (of any graph; one without groups shares less).

    Args:
        in_place: elementwise groups may overwrite an input.
        scratch: name of a node's first output → bytes of each scratch buffer of its kernel.
        threads: for up to so many, scratch per thread lies between values; with more it lies above them.
        alignment: bytes of which every offset is a multiple.
    """
    values = {id(v): v for v in graph.values()}
    shared = _Sharing(graph)
    overwriting = shared.overwrite() if in_place else frozenset()
    slots: list[_Slot] = []
    aliases: dict[str, str] = {}
    rooms: dict[str, list[_Slot]] = {}
    for k, node in enumerate(graph.nodes):
        for o in node.outputs:
            if not isinstance(o.type, TensorType) or o.type.dtype.kind == "string":
                continue
            key = shared.find(id(o))
            if key != id(o):
                aliases[o.name] = values[key].name
            elif key not in shared.owned:
                slots.append(_Slot(*size_of(o), shared.starts[key], shared.ends[key], o.name))
        for size in (scratch or {}).get(node.outputs[0].name, ()):
            rooms.setdefault(node.outputs[0].name, []).append(_Slot(*_factors([as_dim(size)], 1), k, k))
    steps = {id(o): k for k, node in enumerate(graph.nodes) for o in node.outputs}
    known = {name: steps.get(id(source.value), -1) for name, source in graph.symbols.items()}
    arena, bound = _place([*slots, *(room for found in rooms.values() for room in found)], known, threads, alignment)
    return MemoryPlan(
        offsets={s.name: s.offset for s in slots},
        sizes={s.name: s.bytes for s in slots},
        arena_bytes=arena,
        aliases=aliases,
        in_place=overwriting,
        lower_bound=bound,
        lifetimes={s.name: (s.first, s.last) for s in slots},
        scratch={name: tuple(s.offset for s in found) for name, found in rooms.items()},
    )


def overwrites(graph: Graph) -> tuple[tuple[int, int], ...]:
    """The outputs of a grouped graph with the inputs whose memory they may have: numbers of both. An elementwise group
    reads the input last, at the very index that it writes."""
    shared = _Sharing(graph)
    places = {id(v): i for i, v in enumerate(graph.inputs)}
    outputs = {id(v): k for k, v in enumerate(graph.outputs)}
    return tuple(
        (outputs[id(o)], places[id(v)])
        for k, node in enumerate(graph.nodes)
        for o, candidates in _overwritable(node)
        for v in candidates
        if id(o) in outputs and id(v) in places and shared.ends.get(id(v)) == k
    )


class _Sharing:
    """Which values of a graph share memory, by id.

    Attributes:
        owned: what has memory of its own, outside the arena.
        starts, ends: the first and the last step in which memory is in use, by the value whose memory it is.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.owned = {id(v) for v in (*graph.inputs, *graph.outputs)} | {id(v) for v in graph.constants()}
        self.root: dict[int, int] = {}
        self._view()
        last: dict[int, int] = {}
        for k, node in enumerate(graph.nodes):
            for v in (*node.outputs, *node.inputs):
                if v is not None:
                    last[id(v)] = k
        for source in graph.symbols.values():
            # A size is read right after its value is computed.
            last.setdefault(id(source.value), 0)
        self.ends: dict[int, int] = {}
        for key, k in last.items():
            self.ends[self.find(key)] = max(self.ends.get(self.find(key), 0), k)
        self.starts: dict[int, int] = {}
        for k, node in enumerate(graph.nodes):
            for o in node.outputs:
                self.starts.setdefault(self.find(id(o)), k)

    def find(self, key: int) -> int:
        """The value whose memory a value has."""
        while key in self.root:
            key = self.root[key]
        return key

    def _view(self) -> None:
        """Views have the memory of what they look at: their uses lengthen its life. A view that is an output takes its
        source there."""
        outputs = {id(v) for v in self.graph.outputs}
        for node in self.graph.nodes:
            if isinstance(node.op, Group) and node.op.view:
                source = node.inputs[0]
                assert source is not None
                a, b = self.find(id(source)), self.find(id(node.output))
                if b in outputs and a not in self.owned:
                    self.root[a] = b
                    self.owned.add(b)
                elif b not in self.owned:
                    self.root[b] = a

    def overwrite(self) -> frozenset[str]:
        """Gives results the memory of operands that are not read later; returns the names of these results."""
        found: set[str] = set()
        for k, node in enumerate(self.graph.nodes):
            for o, candidates in _overwritable(node):
                result = self.find(id(o))
                if result in self.owned or self.starts.get(result) != k:
                    continue
                for v in candidates:
                    operand = self.find(id(v))
                    free = operand not in self.owned and operand != result and operand in self.starts
                    if free and self.ends.get(operand) == k:
                        self.root[result] = operand
                        found.add(o.name)
                        self.ends[operand] = max(self.ends[operand], self.ends[result])
                        break
        return frozenset(found)


@dataclass(eq=False)
class _Slot:
    """`number` × `factors` bytes in use from step `first` to `last`; `_place` gives it an offset."""

    number: int
    factors: Class
    first: int
    last: int
    name: str = ""
    offset: Dim = 0
    bytes: Dim = 0


def _overwritable(node: Node) -> list[tuple[Value, list[Value]]]:
    """Outputs of an elementwise group with the inputs they may overwrite: each is read at the very index that is
    written."""
    if not isinstance(node.op, Group) or node.op.view or len(node.outputs) != 1:
        return []
    body, output = node.op.body, node.outputs[0]
    if any(
        n.op.kind != "elementwise" or n.output.shape != output.shape or n.output.tensor.layout != output.tensor.layout
        for n in body.nodes
    ):
        return []
    return [(output, [v for v in node.inputs if v is not None and v.constant is None and v.type == output.type])]


def size_of(value: Value) -> tuple[int, Class]:
    """Bytes of the stored value: a number and the symbolic factors."""
    type = value.tensor
    return _factors(type.shape if type.layout is None else type.layout.stored_shape(type.shape), type.dtype.bytes)


def _factors(dims: Sequence[Dim], number: int) -> tuple[int, Class]:
    """The product of `dims` and `number`."""
    symbolic = Counter[Expr]()
    stack = list(dims)
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


def _rounded(slot: _Slot, alignment: int) -> None:
    """Makes a size a multiple of the alignment whatever its symbols are, by its number, or by its symbols where that
    would waste a lot."""
    number = -(-slot.number // alignment) * alignment
    if not slot.factors or number <= slot.number * 5 // 4:
        slot.number = number
        return
    product = wrap(_times(1, slot.factors), dt.int64)
    slot.factors = (((product + (alignment - 1)) // alignment, 1),)
    slot.number *= alignment


def _place(slots: Sequence[_Slot], known: Mapping[str, int], threads: int, alignment: int) -> tuple[Dim, Dim]:
    """Sets offsets and sizes; bytes of the arena, and the most that is live at once. `known`: data symbol → the step
    that computes it."""
    classes: dict[Class, list[_Slot]] = {}
    for slot in slots:
        _rounded(slot, alignment)
        classes.setdefault(slot.factors, []).append(slot)
    if classes.keys() == {(), _THREADS}:
        return _stack(classes[()], classes[_THREADS], threads)
    base: Dim = 0
    bound: Dim = 0

    def order(factors: Class) -> tuple[int, int, str]:
        # Numbers first: offsets of static values stay numbers. Then as sizes become known: an offset is needed when its
        # value is computed.
        return max((known.get(n, -1) for e, _ in factors for n in free_vars(e)), default=-1), len(factors), str(factors)

    for factors, members in sorted(classes.items(), key=lambda item: order(item[0])):
        blocks = [(s.number, s.first, s.last) for s in members]
        placed, total = pack(blocks)
        for slot, at in zip(members, placed):
            slot.offset = _plus(base, _times(at, factors))
            slot.bytes = _times(slot.number, factors)
        bound = _plus(bound, _times(most_live(blocks), factors))
        base = _plus(base, _times(total, factors))
    return base, bound


def _stack(fixed: Sequence[_Slot], scratch: Sequence[_Slot], threads: int) -> tuple[Dim, Dim]:
    """As `_place`, for sizes that are numbers except for scratch per thread. Scratch of up to `threads` threads is
    packed as numbers are; scratch of more threads is above all slots of its step."""
    values = [(s.number, s.first, s.last) for s in fixed]
    blocks = values + [(s.number * threads, s.first, s.last) for s in scratch]
    asked = Counter[int]()  # step → bytes per thread
    for slot in scratch:
        asked[slot.first] += slot.number

    def totals(placed: Sequence[int]) -> set[tuple[int, int]]:
        ends = [(at + size, first, last) for at, (size, first, last) in zip(placed, values)]
        tops = {
            (max((end for end, first, last in ends if first <= step <= last), default=0), per_thread)
            for step, per_thread in asked.items()
        }
        return tops | {(max((end for end, _, _ in ends), default=0), 0)}

    # What lives beside much scratch lies low if it comes first.
    beside = [max(asked[step] for step in range(first, last + 1)) for _, first, last in blocks]

    def packed(values_first: bool, early: bool, order: Callable[[Block], tuple[int, ...]]) -> tuple[list[int], int]:
        keys = [
            (values_first and k >= len(values), -beside[k] if early else 0, *order(block))
            for k, block in enumerate(blocks)
        ]
        return _pack_in_order(blocks, sorted(range(len(blocks)), key=keys.__getitem__))

    tries = [
        packed(values_first, early, order)
        for values_first in (True, False)
        for early in (False, True)
        for order in _ORDERS
    ]
    placed, total = min(
        tries, key=lambda t: (t[1], max(n + 2 * threads * per_thread for n, per_thread in totals(t[0])))
    )
    for slot, at in zip(fixed, placed):
        slot.offset, slot.bytes = at, slot.number
    few = le(THREADS, threads)
    taken = Counter[int]()
    for slot, at in zip(scratch, placed[len(fixed) :]):
        top = max(
            (at + size for at, (size, first, last) in zip(placed, values) if first <= slot.first <= last), default=0
        )
        slot.offset = as_dim(select(few, at, wrap(_plus(top, _times(taken[slot.first], _THREADS)), dt.int64)))
        slot.bytes = _times(slot.number, _THREADS)
        taken[slot.first] += slot.number
    lives = {
        (sum(size for size, first, last in values if first <= step <= last), per_thread)
        for step, per_thread in asked.items()
    }
    arena = as_dim(select(few, total, wrap(_most(totals(placed)), dt.int64)))
    return arena, _most(lives | {(most_live(values), 0)})


def _most(sums: set[tuple[int, int]]) -> Dim:
    """The greatest of number + per thread × THREADS; no term that another one is never below."""
    terms = [(n, t) for n, t in sorted(sums) if not any(m >= n and u >= t and (m, u) != (n, t) for m, u in sums)]
    return as_dim(reduce(maximum, [wrap(_plus(n, _times(t, _THREADS)), dt.int64) for n, t in terms]))


Block: TypeAlias = "tuple[int, int, int]"
"""Size, first and last step."""

_ORDERS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda b: (-b[0], b[1]),
    lambda b: (-b[0] * (b[2] - b[1] + 1), b[1]),
    lambda b: (b[1] - b[2], -b[0]),
    lambda b: (b[1], -b[0]),
    lambda b: (-b[2], -b[0]),
)
"""What to place first: the large, the large and long-lived, the long-lived, the early, the late."""


def most_live(blocks: Sequence[Block]) -> int:
    """The most bytes that are live in one step: no packing needs less."""
    change = Counter[int]()
    for size, first, last in blocks:
        change[first] += size
        change[last + 1] -= size
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def pack(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Offsets of blocks such that no two that live at once overlap, and the total: the best of several orders, as far
    as they are needed."""
    bound = most_live(blocks)
    best: list[int] = []
    least: int | None = None
    for order in _ORDERS:
        offsets, total = _pack_in_order(blocks, sorted(range(len(blocks)), key=lambda k: order(blocks[k])))
        if least is None or total < least:
            best, least = offsets, total
        if least == bound:
            break
    return best, least or 0


def _pack_in_order(blocks: Sequence[Block], order: Sequence[int]) -> tuple[list[int], int]:
    """Each block into the smallest gap that holds it."""
    offsets = [0] * len(blocks)
    total = 0
    # Begin, end, first and last step of the blocks placed so far, by where they begin; numbers of any length where 64
    # bits may be too few.
    exact = sum(size for size, _, _ in blocks) < 1 << 62
    placed = np.zeros((4, len(blocks)), np.int64 if exact else object)
    for count, k in enumerate(order):
        size, start, end = blocks[k]
        begins, ends, firsts, lasts = placed[:, :count]
        busy = np.flatnonzero((firsts <= end) & (lasts >= start))
        at = 0
        if len(busy):
            tops = np.maximum.accumulate(ends[busy])  # where the gap before the next one begins
            gaps = begins[busy]
            gaps[1:] -= tops[:-1]
            fitting = np.flatnonzero(gaps >= size)
            best = int(fitting[np.argmin(gaps[fitting])]) if len(fitting) else len(busy)
            at = int(tops[best - 1]) if best else 0
        offsets[k] = at
        total = max(total, at + size)
        place = int(np.searchsorted(begins, at))
        placed[:, place + 1 : count + 1] = placed[:, place:count]
        placed[:, place] = at, at + size, start, end
    return offsets, total


def bytes_at(dim: Dim, env: Mapping[str, int]) -> int:
    """A size or offset of the plan for given symbols."""
    value = dim_value(dim, env)
    assert value is not None, f"a symbol of {dim} has no value: {free_vars(dim) if isinstance(dim, Expr) else ()}"
    return value
