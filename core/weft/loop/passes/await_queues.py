"""Begins instructions of queues at their position, and waits before an access that depends on their result or changes
their operands."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import Const, Expr, Var, add, const, floormod, free_vars, has, sub, substitute, walk
from weft.expr.ranges import Range, range_of
from weft.loop.grids import THREAD_AXES
from weft.loop.nodes import (
    PREFETCH,
    Allocate,
    AtomicUpdate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    int_const,
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names
from weft.loop.passes.distances import distances, overlaps
from weft.loop.printer import excerpt
from weft.loop.queues import Queue, begin

MOST_WINDOWS = 16
"""Of so many distances that two boxes may have each is looked up."""
MOST_COUNTED = 64
"""Begins since one that are told apart; what began longer ago has at least so many behind it."""


def await_queues(program: Program, queues: Mapping[str, Queue]) -> Program:
    """Afterwards instructions of queues are begun, and wherever what one of them writes may be touched, or what it
    reads may be written, it has been awaited.

        allocate t: float32[2, 16] in tiles                              allocate t: float32[2, 16] in tiles
        @load(t[0, 0], x[0, 0])                                          @begin_load(t[0, 0], x[0, 0])
        for k in 7 {                                                     for k in 7 {
          @load(t[(k + 1) % 2, 0], x[k + 1, 0])                    →       @begin_load(t[(k + 1) % 2, 0], x[k + 1, 0])
          @gemm(c[0], t[k % 2, 0])                                         @await_dma(1)
        }                                                                  @gemm(c[0], t[k % 2, 0])
        @gemm(c[0], t[1, 0])                                             }
                                                                         @await_dma(0)
                                                                         @gemm(c[0], t[1, 0])

    A wait stands in front of the outermost statement that begins nothing itself and needs it, so not in the loops of a
    computation, and waits for no more than is needed: as many instructions may go on as have certainly begun since. It
    looks at loops turn by turn: an instruction is of this turn, of the one before, of an earlier one, and boxes of
    elements (`Evaluate.within`) are compared by their distance. Nothing goes on when its memory is given back, when an
    iteration of a loop ends whose iterations run at once, since each has its own queues, and when the kernel ends.

    Args:
        queues: instruction → its queue. Its last address is that of the result.

    Raises:
        LoopError: an instruction of a queue stands in a loop over threads.
    """
    if not any(isinstance(s, Evaluate) and s.call.name in queues for s in walk_stmts(program.body)):
        return program
    for loop in walk_stmts(program.body):
        if isinstance(loop, For) and loop.kind in THREAD_AXES:
            inner = next((s for s in walk_stmts(loop) if isinstance(s, Evaluate) and s.call.name in queues), None)
            if inner is not None:
                why = f"'{inner.call.name}' stands in a loop over threads"
                hint = "queues are of kernels that one thread runs, on each unit or task"
                raise LoopError(
                    f"await_queues: program '{program.name}' begins what it cannot await",
                    where=excerpt(program, at=inner),
                    why=why,
                    hint=hint,
                )
    return _Program(program, queues).changed()


# -- what a program does, as far as it matters ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Access:
    """Of a buffer, a box or, if it is None, all of it."""

    buffer: str
    write: bool
    shape: _Shape | None
    at: tuple[int, ...]
    """Constants that are added where the box begins."""
    free: frozenset[str]
    """Variables of the box."""


@dataclass(eq=False)
class _Node:
    """A statement, or the place behind one."""

    stmt: Stmt | None
    loops: tuple[str, ...]
    """As those of a site."""
    accesses: tuple[_Access, ...] = ()
    site: int | None = None
    """Of a begin."""
    body: tuple[_Node, ...] = ()
    other: tuple[_Node, ...] = ()
    """The else of a condition."""
    ends: str | None = None
    """What ends here: a buffer's memory; "" all that has begun in this body."""
    waits: dict[str, _Wait] = field(default_factory=dict)
    """What stands in front: queue → the wait."""


@dataclass(frozen=True)
class _Site:
    """An instruction of a queue in the program."""

    queue: Queue
    accesses: tuple[_Access, ...]
    loops: tuple[str, ...]
    """Variables of the loops around whose iterations run one after another, within the body of one that starts anew."""


When: TypeAlias = frozenset[tuple[str, str]]
"""Loop around a begin → of which turn it is, if not of this one: the one before ("last"), an earlier one ("earlier"),
any ("any"). Loop that it came before → "first": this is its first turn."""
Item: TypeAlias = tuple[int, When]
_NOW: When = frozenset()
Since: TypeAlias = dict[Item, int]
"""What may have begun and not been awaited → how many of its queue have certainly begun since."""
_Sum: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of terms and their factors."""
_Shape: TypeAlias = tuple[tuple[_Sum, int], ...]
"""Of each dimension of a box, where it begins but for a constant, and its length."""
_Kind: TypeAlias = tuple[_Shape, When, tuple[str, ...]]
"""Boxes that differ in constants only, in the same turns of loops: those that say something of the box, or of the
statement that is compared."""
Path: TypeAlias = tuple[tuple[tuple[_Node, ...], int], ...]
"""A place: a body and which of its nodes, then the node around it in its body, and so on."""


@dataclass(eq=False)
class _Wait:
    """A wait before a statement: by count, `left` instructions may still run; by token, those of `items` have ended."""

    left: int
    items: set[Item]
    ended: Since = field(default_factory=dict)
    """What comes to it and has ended behind it."""


class _Boxes:
    """Items of one kind, by the constants of each dimension."""

    def __init__(self, rank: int) -> None:
        self.entries: dict[tuple[Item, tuple[int, ...]], None] = {}
        self.by: list[dict[int, dict[tuple[Item, tuple[int, ...]], None]]] = [{} for _ in range(rank)]

    def add(self, item: Item, at: tuple[int, ...]) -> None:
        self.entries[item, at] = None
        for by, i in zip(self.by, at):
            by.setdefault(i, {})[item, at] = None

    def remove(self, item: Item, at: tuple[int, ...]) -> None:
        if self.entries.pop((item, at), 0) is None:
            for by, i in zip(self.by, at):
                del by[i][item, at]
                if not by[i]:
                    del by[i]

    def within(self, dim: int, windows: Sequence[range]) -> Iterator[tuple[Item, tuple[int, ...]]]:
        """Those whose constant is in one of some ranges."""
        by = self.by[dim]
        few = sum(map(len, windows)) < len(by)
        for i in {i for w in windows for i in w if i in by} if few else [i for i in by if any(i in w for w in windows)]:
            yield from by[i]


class _State:
    """The instructions that may run at a position, by the buffers that they access. A clock for each queue counts
    begins; each running instruction has the time of its begin."""

    def __init__(self, sites: Sequence[_Site], since: Since) -> None:
        self.sites = sites
        self.clocks: dict[str, int] = {}
        self.began = {i: -n for i, n in since.items()}
        self.touching: dict[tuple[str, bool], dict[_Kind | None, _Boxes]] = {}
        """Of a buffer those that touch it, and those that write it."""
        for i in since:
            self._index(i)

    def _keys(self, item: Item) -> Iterator[tuple[tuple[str, bool], _Kind | None, tuple[int, ...]]]:
        site, when = item
        for a in self.sites[site].accesses:
            kind: _Kind | None = None
            if a.shape is not None:
                turns = frozenset(x for x in when if x[1] == "first" or x[0] in a.free) if when else when
                kind = a.shape, turns, tuple(v for v in self.sites[site].loops if v in a.free)
            for write in {False, a.write}:
                yield (a.buffer, write), kind, a.at

    def _index(self, item: Item) -> None:
        for key, kind, at in self._keys(item):
            kinds = self.touching.setdefault(key, {})
            if kind not in kinds:
                kinds[kind] = _Boxes(len(at))
            kinds[kind].add(item, at)

    def tick(self, queue: str) -> None:
        self.clocks[queue] = self.clocks.get(queue, 0) + 1

    def begin(self, site: int) -> None:
        item = site, _NOW
        self.began[item] = self.clocks[self.sites[site].queue.name]
        self._index(item)

    def count(self, item: Item) -> int:
        return min(MOST_COUNTED, self.clocks.get(self.sites[item[0]].queue.name, 0) - self.began[item])

    def since(self) -> Since:
        return {i: self.count(i) for i in self.began}

    def end(self, queue: Queue, wait: _Wait) -> Since:
        """Takes out what a wait ends."""
        if queue.by == "token":
            ended = {i: self.count(i) for i in wait.items if i in self.began}
        else:
            ended = {
                i: n
                for i in self.began
                if self.sites[i[0]].queue.name == queue.name and (n := self.count(i)) >= wait.left
            }
        for i in ended:
            del self.began[i]
            for key, kind, at in self._keys(i):
                self.touching[key][kind].remove(i, at)
        return ended


class _Program:
    def __init__(self, program: Program, queues: Mapping[str, Queue]) -> None:
        self.program, self.queues = program, queues
        self.named = {q.name: q for q in queues.values()}
        self.sites: list[_Site] = []
        self.ranges: dict[str, Range] = {d.name: Range(0, None) for d in program.dims}
        self.lets: dict[str, Expr] = {}
        self.memory = {program.outputs[o].name: program.inputs[i].name for o, i in program.aliases}
        self.begins: set[int] = set()  # statements in which something begins, by `id`
        self.accesses: dict[tuple[object, ...], _Access] = {}
        self.terms: list[Expr] = []
        self.numbers: dict[Expr, int] = {}  # of terms
        self.moves: dict[tuple[object, ...], tuple[tuple[_Sum, int], ...]] = {}
        self.distances: dict[tuple[_Sum, _Sum], tuple[Any, int]] = {}
        self.needed = False  # whether somebody still needs what has not been awaited
        self.fixed = False  # whether waits are looked for, or only tried
        self.beginning = True  # whether what begins on the way goes on as well
        self.met: list[tuple[_Wait, Since]] = []  # what fixed waits have ended on the way

    def changed(self) -> Program:
        self.mark(self.program.body)
        whole = (*self.nodes(self.program.body, ()), _Node(None, (), ends=""))
        self.settle(whole)
        self.follow(whole)
        if any(q.by == "all" for q in self.named.values()):
            for nodes, around in _bodies(whole):
                self.before_begins(nodes, around)
            self.follow(whole)
        for node, path in _places(whole):  # what a later look at a loop has made needless
            for queue, wait in list(node.waits.items()):
                del node.waits[queue]
                met = self.ends(path, wait.ended)
                if met is None:
                    node.waits[queue] = wait
                else:
                    _note(met)
        names = Names.of(self.program)
        self.parity = self.turns(whole)
        return self.program.with_body(self.written(whole, names))

    def follow(self, whole: tuple[_Node, ...]) -> None:
        """Notes what each wait ends."""
        self.needed, self.fixed, self.beginning, self.met = False, True, True, []
        for node in _all(whole):
            for wait in node.waits.values():
                wait.ended = {}
        self.run(whole, _State(self.sites, {}))
        assert not self.needed
        _note(self.met)

    def ends(self, path: Path, since: Since) -> list[tuple[_Wait, Since]] | None:
        """Which waits end what goes on from a place; None if somebody needs some of it before.

        What goes on does so whatever else has begun. So a wait may go if others end all that it has ended: the rest of
        the program need not be looked at.
        """
        self.needed, self.fixed, self.beginning, self.met = False, True, False, []
        state = _State(self.sites, since)
        for level, (body, at) in enumerate(path):
            if level and _repeats(loop := body[at].stmt):
                here = state.since()
                again = self.turns_of(body[at], self.moved(here, loop.var.name, "later"))
                state = _State(self.sites, self.moved(_joined(here, again), loop.var.name, "any"))
            state = self.run(body, state, at + (level > 0))
            if self.needed or not state.began:
                break
        return None if self.needed else self.met

    def before_begins(self, nodes: tuple[_Node, ...], around: Path) -> None:
        """Fences wait for what has just begun, too: they go in front of the begins before them, where that does."""
        for k, node in enumerate(nodes):
            for queue, wait in list(node.waits.items()):
                if self.named[queue].by == "all":
                    del node.waits[queue]
                    nodes[self.fence(queue, wait.ended, nodes, k, around)].waits[queue] = wait
                    wait.left = 0

    def fence(self, queue: str, ended: Since, nodes: tuple[_Node, ...], k: int, around: Path) -> int:
        """The place of a fence in front of the begins before a node, the first that does."""
        sites: dict[int, set[int]] = {}
        first = k
        while (
            first
            and (begun := {n.site for n in _all((nodes[first - 1],)) if n.site is not None})
            and queue not in nodes[first - 1].waits
        ):
            first -= 1
            sites[first] = begun
        this_turn = [i for i in ended if not any(v in nodes[k].loops for v, _ in i[1])]

        def tried(place: int, begins: Iterable[int]) -> list[tuple[_Wait, Since]] | None:
            """What then ends instructions that have begun in this turn behind it, those in some nodes."""
            nodes[place].waits[queue] = _Wait(0, set())
            behind = {site for j in begins for site in sites[j]}
            met = self.ends(((nodes, k), *around), {i: ended[i] for i in this_turn if i[0] in behind})
            del nodes[place].waits[queue]
            return met

        # The first place does best for what comes back in a later turn: what begins behind another cannot go on where
        # it does not with that.
        at = first + bisect_left(range(first, k), True, key=lambda j: tried(first, range(j, k)) is not None)
        for place in range(at, k):
            if (met := tried(place, range(place, k))) is not None:
                _note(met)
                return place
        return k

    # -- collecting
    def mark(self, s: Stmt) -> bool:
        begins = any(
            [isinstance(s, Evaluate) and s.call.name in self.queues, *(self.mark(c) for c in stmt_children(s))]
        )
        if begins:
            self.begins.add(id(s))
        return begins

    def nodes(self, s: Stmt, loops: tuple[str, ...]) -> tuple[_Node, ...]:
        if isinstance(s, Seq):
            return tuple(n for c in s.stmts for n in self.nodes(c, loops))
        begins = id(s) in self.begins
        match s:
            case Let():
                self.let(s)
                return (_Node(s, loops, _unique(self.reads((s.value,))), body=self.nodes(s.body, loops)),)
            case Allocate():
                return (_Node(s, loops, body=(*self.nodes(s.body, loops), _Node(None, loops, ends=s.buffer.name))),)
            case Evaluate() if begins:
                self.sites.append(_Site(self.queues[s.call.name], _unique(self.call(s)), loops))
                return (_Node(s, loops, self.sites[-1].accesses, site=len(self.sites) - 1),)
            case For() if begins:
                self.loop(s)
                if _repeats(s):
                    return (
                        _Node(
                            s, loops, _unique(self.reads((s.extent,))), body=self.nodes(s.body, (*loops, s.var.name))
                        ),
                    )
                return (
                    _Node(s, loops, _unique(self.deep(s)), body=(*self.nodes(s.body, ()), _Node(None, (), ends=""))),
                )
            case If() if begins:
                other = () if s.orelse is None else self.nodes(s.orelse, loops)
                return (_Node(s, loops, _unique(self.reads((s.cond,))), body=self.nodes(s.then, loops), other=other),)
            case While() if begins:
                return (
                    _Node(s, loops, _unique(self.deep(s)), body=(*self.nodes(s.body, ()), _Node(None, (), ends=""))),
                )
        return (_Node(s, loops, _unique(self.deep(s))),)

    def let(self, s: Let) -> None:
        if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
            self.lets[s.var.name] = substitute(s.value, self.lets)
            self.ranges[s.var.name] = range_of(s.value, self.ranges)

    def loop(self, s: For) -> None:
        hi = range_of(s.extent, self.ranges).hi
        self.ranges[s.var.name] = Range(0, None if hi is None else max(0, hi - 1))

    def deep(self, s: Stmt) -> Iterator[_Access]:
        """Accesses of a statement and of all in it, but to buffers of its own."""
        own = {x.buffer.name for x in walk_stmts(s) if isinstance(x, Allocate)}
        for x in walk_stmts(s):
            if isinstance(x, Let):
                self.let(x)
            elif isinstance(x, For):
                self.loop(x)
            yield from (a for a in self.direct(x) if a.buffer not in own)

    def direct(self, s: Stmt) -> Iterator[_Access]:
        match s:
            case Evaluate():
                yield from self.call(s)
                return
            case Store():
                yield self.access(s.buffer, s.indices, True)
            case AtomicUpdate():
                yield self.access(s.buffer, s.indices, True)
        yield from self.reads(stmt_exprs(s))

    def reads(self, exprs: tuple[Expr, ...]) -> Iterator[_Access]:
        for e in exprs:
            for n in walk(e):
                if isinstance(n, Load):
                    yield self.access(n.buffer, n.indices, False)

    def call(self, s: Evaluate) -> Iterator[_Access]:
        """An instruction of a queue writes through its last address alone; another may through each."""
        addresses = [a for a in s.call.args if isinstance(a, Load)]
        for k, a in enumerate(addresses):
            write = s.call.name != PREFETCH and (s.call.name not in self.queues or k == len(addresses) - 1)
            boxes = [r for r in s.within if r.buffer.name == a.buffer.name]
            if len(boxes) == 1:
                yield self.box(a.buffer, boxes[0].ranges, write)
            else:
                yield self.box(a.buffer, None, write)
            yield from self.reads(a.indices)
        yield from self.reads(tuple(a for a in s.call.args if not isinstance(a, Load)))

    def access(self, b: Buffer, indices: tuple[Expr, ...], write: bool) -> _Access:
        return self.box(
            b, None if any(i.dtype.lanes > 1 for i in indices) else tuple((i, const(1)) for i in indices), write
        )

    def box(self, b: Buffer, ranges: tuple[tuple[Expr, Expr], ...] | None, write: bool) -> _Access:
        """An output that may be the memory of an input has its name."""
        name, shape = self.memory.get(b.name, b.name), None
        at: tuple[int, ...] = ()
        free: frozenset[str] = frozenset()
        if ranges is not None:
            extents = [int_const(n) or range_of(substitute(n, self.lets), self.ranges).hi for _, n in ranges]
            starts = [substitute(i, self.lets) for i, _ in ranges]
            if None not in extents and not any(
                has(i, (Load, IntrinsicCall)) for i in starts
            ):  # data may change meanwhile
                sums = [self.sum(i) for i in starts]
                shape, at = tuple((terms, n or 0) for (terms, _), n in zip(sums, extents)), tuple(i for _, i in sums)
                free = frozenset(v for terms, _ in sums for k, _ in terms for v in free_vars(self.terms[k]))
        key = name, write, shape, at
        if key not in self.accesses:
            self.accesses[key] = _Access(*key, free)
        return self.accesses[key]

    def sum(self, e: Expr) -> tuple[_Sum, int]:
        form = linear(e)
        atoms = form.atoms
        for atom in atoms:
            if atom not in self.numbers:
                self.numbers[atom] = len(self.terms)
                self.terms.append(atom)
        return tuple(sorted((self.numbers[atom], factor) for atom, factor in atoms.items())), form.constant

    def polynomial(self, terms: _Sum) -> Polynomial:
        return Polynomial.linear({self.terms[k]: factor for k, factor in terms})

    # -- what may go on where
    def settle(self, nodes: tuple[_Node, ...]) -> None:
        """Adds waits until none is missing."""
        self.needed = True
        while self.needed:
            self.needed = False
            self.run(nodes, _State(self.sites, {}))

    def run(self, nodes: tuple[_Node, ...], state: _State, start: int = 0) -> _State:
        for k in range(start, len(nodes)):
            if self.fixed and (self.needed or not (state.began or self.beginning)):
                break
            state = self.step(nodes[k], state)
        return state

    def step(self, node: _Node, state: _State) -> _State:
        for queue, wait in node.waits.items():
            ended = state.end(self.named[queue], wait)
            if self.fixed:
                self.met.append((wait, ended))
        needed = self.needs(state, node)
        self.needed = self.needed or bool(needed)
        if self.fixed and needed:
            return state
        for queue in dict.fromkeys(self.sites[site].queue.name for site, _ in needed):
            items = {i for i in needed if self.sites[i[0]].queue.name == queue}
            wait = node.waits.setdefault(queue, _Wait(MOST_COUNTED, set()))
            wait.left = min(wait.left, *(state.count(i) for i in items))
            wait.items |= items
            state.end(self.named[queue], wait)
        s = node.stmt
        if node.site is not None:
            state.tick(self.sites[node.site].queue.name)
            if self.beginning:
                state.begin(node.site)
            return state
        if not node.body and not node.other:
            return state
        if isinstance(s, If):
            other = _State(self.sites, state.since())
            return _State(self.sites, _joined(self.run(node.body, state).since(), self.run(node.other, other).since()))
        if _anew(s):
            if self.beginning:
                self.run(
                    node.body, _State(self.sites, {})
                )  # with queues of its own; nothing of them is left at its end
            return state
        if not isinstance(s, For):
            return self.run(node.body, state)
        before = state.since()
        done = self.moved(self.turns_of(node, self.moved(before, s.var.name, "now", "first")), s.var.name, "any")
        certain = (range_of(s.extent, self.ranges).lo or 0) > 0
        return _State(self.sites, done if certain else _joined(before, done))

    def turns_of(self, node: _Node, head: Since) -> Since:
        """What may go on at the end of any turn of a loop, if so much does when it begins."""
        assert isinstance(node.stmt, For)
        while True:
            end = self.run(node.body, _State(self.sites, head)).since()
            new = _joined(head, self.moved(end, node.stmt.var.name, "later"))
            if new == head or (self.fixed and self.needed):
                return end
            head = new

    def moved(self, since: Since, loop: str, inside: str, outside: str = "") -> Since:
        """In another turn of a loop: what begins in it, and what has begun before it."""
        found: Since = {}
        for (site, when), n in since.items():
            key = site, _turned(when, loop, inside if loop in self.sites[site].loops else outside)
            found[key] = min(n, found.get(key, n))
        return found

    def needs(self, state: _State, node: _Node) -> list[Item]:
        """What may write what a statement touches, or touch what it writes."""
        if node.ends == "":
            return list(state.began)
        found: dict[Item, None] = {}
        for kinds in [state.touching.get((node.ends, False), {})] if node.ends is not None else ():
            found.update((item, None) for boxes in kinds.values() for item, _ in boxes.entries)
        for a in node.accesses:
            for kind, boxes in state.touching.get((a.buffer, not a.write), {}).items():
                found.update((item, None) for item in self.meeting(boxes, kind, a, node.loops))
        return (
            list(found)
            if len({self.sites[site].queue.name for site, _ in found}) < 2
            else [i for i in state.began if i in found]
        )

    def meeting(self, boxes: _Boxes, kind: _Kind | None, b: _Access, loops: tuple[str, ...]) -> Iterator[Item]:
        """The items of a kind whose boxes may have an element in common with one of a statement in some loops."""
        if kind is None or b.shape is None:
            yield from (item for item, _ in boxes.entries)
            return
        shape, when, around = kind
        mine = self.before(shape, when, around, tuple(v for v in around if v in loops))
        first = frozenset(v for v, state in when if state == "first" and v in b.free)
        dims = [
            (self.distance(x, y), i - j - at, n, m)
            for (x, i), (y, j), at, (_, n), (_, m) in zip(mine, self.now(b.shape, first), b.at, shape, b.shape)
        ]
        # One begins at v + shift + its constant behind the other, for one of the values v: they meet if that is more
        # than -n and less than m.
        windows = {}
        for d, ((values, step), shift, n, m) in enumerate(dims):
            if not step and len(values) <= MOST_WINDOWS:
                windows[d] = [range(1 - n - v - shift, m - v - shift) for v in values.tolist()]
        best = max(windows, key=lambda d: len(boxes.by[d]), default=None)
        for item, at in list(boxes.entries) if best is None else boxes.within(best, windows[best]):
            if all(
                any(i in w for w in windows[d]) if d in windows else overlaps(values, step, shift + i, n, m)
                for d, (i, ((values, step), shift, n, m)) in enumerate(zip(at, dims))
                if d != best
            ):
                yield item

    def distance(self, x: _Sum, y: _Sum) -> tuple[Any, int]:
        if (x, y) not in self.distances:
            first, second = self.polynomial(x), self.polynomial(y)
            self.distances[x, y] = distances(first - second, self.ranges)
        return self.distances[x, y]

    def before(
        self, shape: _Shape, when: When, around: tuple[str, ...], same: tuple[str, ...]
    ) -> tuple[tuple[_Sum, int], ...]:
        """Where boxes of items begin; `same`: loops around a statement as well."""
        key = shape, when, around, same
        if key not in self.moves:
            states, values = dict(when), {}
            for name, v in {
                name: v for terms, _ in shape for k, _ in terms for name, v in free_vars(self.terms[k]).items()
            }.items():
                state = states.get(name)
                if name not in around or (name in same and state is None):
                    continue  # of dims, and loops whose iterations have queues of their own, there is one
                known = self.ranges.get(name, Range())
                if name in same and state == "last":
                    values[name] = sub(v, 1)
                elif name in same and state == "earlier":
                    values[name] = sub(v, turns := Var(f"{name} turns", v.dtype))
                    self.ranges[turns.name] = Range(2, None if known.hi is None else max(2, known.hi))
                else:
                    values[name] = before = Var(f"{name} before", v.dtype)
                    self.ranges[before.name] = known
            self.moves[key] = self.with_values(shape, values)
        return self.moves[key]

    def now(self, shape: _Shape, first: frozenset[str]) -> tuple[tuple[_Sum, int], ...]:
        """Where boxes of a statement begin, in the first turns of some loops."""
        if (shape, first) not in self.moves:
            self.moves[shape, first] = self.with_values(shape, {v: const(0) for v in first})
        return self.moves[shape, first]

    def with_values(self, shape: _Shape, values: Mapping[str, Expr]) -> tuple[tuple[_Sum, int], ...]:
        return tuple(self.sum(substitute(self.polynomial(terms).expr(), values)) for terms, _ in shape)

    # -- writing
    def turns(self, nodes: tuple[_Node, ...]) -> dict[int, str]:
        """Site of a queue that is awaited by tokens → the loop whose even and odd turns have tokens of their own, if it
        is awaited a turn later."""
        found: dict[int, set[str]] = {}
        for node in _all(nodes):
            for wait in node.waits.values():
                for k, when in wait.items:
                    found.setdefault(k, set()).update(v for v, state in when if state == "last")
        return {k: next(iter(v)) for k, v in found.items() if len(v) == 1 and self.sites[k].queue.by == "token"}

    def written(self, nodes: tuple[_Node, ...], names: Names) -> Stmt:
        """The statements of one body that has queues of its own."""
        return _Writer(self, nodes, names).body()


class _Writer:
    """Writes the statements of one body that has queues of its own.

    Attributes:
        tokens: by queue whose instructions give tokens, the buffer that holds them.
        slots: of each of these instructions, which two elements of the buffer are its own.
    """

    def __init__(self, program: _Program, nodes: tuple[_Node, ...], names: Names) -> None:
        self.program, self.nodes, self.names = program, nodes, names
        self.tokens: dict[str, Buffer] = {}
        self.slots: dict[int, int] = {}
        counts: dict[str, int] = {}
        for k in self.mine(nodes):
            queue = program.sites[k].queue
            if queue.by == "token":
                self.slots[k] = counts.get(queue.name, 0)
                counts[queue.name] = self.slots[k] + 1
        for name, count in counts.items():
            self.tokens[name] = Buffer(names.fresh(f"{name}_tokens"), (const(2 * count),), dt.int32, "register")

    def body(self) -> Stmt:
        body = seq(*(self.visit(n, {}) for n in self.nodes))
        for b in self.tokens.values():
            var = Var(self.names.fresh(f"{b.name}_i"), dt.int64)
            body = Allocate(b, seq(For(var, b.shape[0], Store(b, (var,), Const(0, dt.int32))), body))
        return body

    def mine(self, inside: tuple[_Node, ...]) -> Iterator[int]:
        """The instructions that are begun in this body, not in one within it."""
        for n in inside:
            if n.site is not None:
                yield n.site
            elif not _anew(n.stmt):
                yield from self.mine((*n.body, *n.other))

    def place(self, k: int, turn: Expr | int) -> Load:
        """The element that holds the token of an instruction, of one of two turns."""
        at = add(const(2 * self.slots[k]), turn)
        return Load(self.tokens[self.program.sites[k].queue.name], (at,))

    def waits(self, node: _Node, loops: Mapping[str, Var]) -> Iterator[Stmt]:
        for name, wait in node.waits.items():
            queue = self.program.named[name]
            if queue.by == "all":
                yield Evaluate(IntrinsicCall(queue.wait, ()))
            elif queue.by == "count":
                yield Evaluate(IntrinsicCall(queue.wait, (const(wait.left),)))
            else:
                wanted: dict[Load, None] = {}
                for k, when in sorted(wait.items, key=lambda i: (i[0], sorted(i[1]))):
                    loop, states = self.program.parity.get(k), dict(when)
                    if loop is None:
                        wanted[self.place(k, 0)] = None
                    elif loop in loops and states.get(loop) in (None, "last"):
                        turn = floormod(add(loops[loop], 0 if states.get(loop) is None else 1), 2)
                        wanted[self.place(k, turn)] = None
                    else:
                        wanted |= dict.fromkeys((self.place(k, 0), self.place(k, 1)))
                yield from (Evaluate(IntrinsicCall(queue.wait, (p,))) for p in wanted)

    def visit(self, node: _Node, loops: Mapping[str, Var]) -> Stmt:
        return seq(*self.waits(node, loops), self.itself(node, loops))

    def itself(self, node: _Node, loops: Mapping[str, Var]) -> Stmt:
        s = node.stmt
        if s is None:
            return Seq(())
        if node.site is not None:
            assert isinstance(s, Evaluate)
            args = s.call.args
            if self.program.sites[node.site].queue.by == "token":
                loop = self.program.parity.get(node.site)
                args = (*args, self.place(node.site, 0 if loop is None else floormod(loops[loop], 2)))
            return replace(s, call=IntrinsicCall(begin(s.call.name), args))
        if not node.body:
            return s
        if _anew(s):
            return with_stmt_children(s, (self.program.written(node.body, self.names),))
        if isinstance(s, For):
            loops = {**loops, s.var.name: s.var}
        parts = [node.body, node.other] if isinstance(s, If) and s.orelse is not None else [node.body]
        return with_stmt_children(s, tuple(seq(*(self.visit(n, loops) for n in part)) for part in parts))


def _all(nodes: tuple[_Node, ...]) -> Iterator[_Node]:
    for n in nodes:
        yield n
        yield from _all((*n.body, *n.other))


def _bodies(nodes: tuple[_Node, ...], around: Path = ()) -> Iterator[tuple[tuple[_Node, ...], Path]]:
    """The node lists of a program, outermost first."""
    yield nodes, around
    for k, n in enumerate(nodes):
        for part in (n.body, n.other):
            if part:
                yield from _bodies(part, ((nodes, k), *around))


def _places(nodes: tuple[_Node, ...], around: Path = ()) -> Iterator[tuple[_Node, Path]]:
    for k, n in enumerate(nodes):
        path = ((nodes, k), *around)
        yield n, path
        for part in (n.body, n.other):
            yield from _places(part, path)


def _repeats(s: Stmt | None) -> TypeGuard[For]:
    """Whether it is a loop whose iterations run one after another."""
    return isinstance(s, For) and s.kind in ("serial", "unrolled")


def _anew(s: Stmt | None) -> bool:
    """Whether queues begin empty in its body, and are empty at its end."""
    return isinstance(s, (For, While)) and not _repeats(s)


def _unique(accesses: Iterable[_Access]) -> tuple[_Access, ...]:
    return tuple(dict.fromkeys(accesses))


def _joined(a: Since, b: Since) -> Since:
    """What may go on if one of two has been."""
    found = dict(a)
    for i, n in b.items():
        found[i] = min(n, found.get(i, n))
    return found


def _note(met: Iterable[tuple[_Wait, Since]]) -> None:
    """What waits have ended is noted with them."""
    for wait, ended in met:
        for i, n in ended.items():
            wait.ended[i] = min(n, wait.ended.get(i, n))


@lru_cache(1 << 14)
def _turned(when: When, var: str, to: str) -> When:
    """With another state of a loop: "" for none, "now" as it was, "later" one turn later."""
    before = dict(when).get(var)
    if to == "now" or (to == "later" and before == "any"):
        return when
    if to == "later":
        to = "last" if before is None else "earlier"
    return frozenset((*((v, s) for v, s in when if v != var), *([(var, to)] if to else [])))
