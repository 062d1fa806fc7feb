"""Finds the waits that instructions of queues need: what may go on where, by the distances of boxes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import Expr, Var, const, free_vars, has, sub, substitute, walk
from weft.expr.ranges import Range, range_of
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
    stmt_children,
    stmt_exprs,
    walk_stmts,
)
from weft.loop.passes.distances import distances, overlaps
from weft.loop.queues import Queue
from weft_queues.nodes import (
    MOST_COUNTED,
    Access,
    Boxes,
    Item,
    Kind,
    Node,
    Path,
    Shape,
    Since,
    Site,
    State,
    Sum,
    Wait,
    When,
    all_nodes,
    bodies,
    joined,
    note_ended,
    places,
    repeats,
    starts_anew,
    turned,
    unique,
)

MOST_WINDOWS = 16
"""Of so many distances that two boxes may have each is looked up."""


class QueueAnalysis:
    """Finds where a program waits for the instructions of its queues, and how many of them may go on there."""

    def __init__(self, program: Program, queues: Mapping[str, Queue]) -> None:
        self.program, self.queues = program, queues
        self.named = {q.name: q for q in queues.values()}
        self.sites: list[Site] = []
        self.ranges: dict[str, Range] = {d.name: Range(0, None) for d in program.dims}
        self.lets: dict[str, Expr] = {}
        self.memory = {program.outputs[o].name: program.inputs[i].name for o, i in program.aliases}
        self.begins: set[int] = set()  # statements in which something begins, by `id`
        self.accesses: dict[tuple[object, ...], Access] = {}
        self.terms: list[Expr] = []
        self.numbers: dict[Expr, int] = {}  # of terms
        self.moves: dict[tuple[object, ...], tuple[tuple[Sum, int], ...]] = {}
        self.distances: dict[tuple[Sum, Sum], tuple[Any, int]] = {}
        self.needed = False  # whether somebody still needs what has not been awaited
        self.fixed = False  # whether waits are looked for, or only tried
        self.beginning = True  # whether what begins on the way goes on as well
        self.met: list[tuple[Wait, Since]] = []  # what fixed waits have ended on the way

    def with_waits(self) -> tuple[Node, ...]:
        """The nodes of the program, with the waits that stand in front of them."""
        self.mark(self.program.body)
        whole = (*self.nodes(self.program.body, ()), Node(None, (), ends=""))
        self.settle(whole)
        self.follow(whole)
        if any(q.by == "all" for q in self.named.values()):
            for nodes, around in bodies(whole):
                self.before_begins(nodes, around)
            self.follow(whole)
        for node, path in places(whole):  # what a later look at a loop has made needless
            for queue, wait in list(node.waits.items()):
                del node.waits[queue]
                met = self.ends(path, wait.ended)
                if met is None:
                    node.waits[queue] = wait
                else:
                    note_ended(met)
        return whole

    def follow(self, whole: tuple[Node, ...]) -> None:
        """Notes what each wait ends."""
        self.needed, self.fixed, self.beginning, self.met = False, True, True, []
        for node in all_nodes(whole):
            for wait in node.waits.values():
                wait.ended = {}
        self.run(whole, State(self.sites, {}))
        assert not self.needed
        note_ended(self.met)

    def ends(self, path: Path, since: Since) -> list[tuple[Wait, Since]] | None:
        """Which waits end what goes on from a place; None if somebody needs some of it before.

        What goes on does so whatever else has begun. So a wait may go if others end all that it has ended: the rest of
        the program need not be looked at.
        """
        self.needed, self.fixed, self.beginning, self.met = False, True, False, []
        state = State(self.sites, since)
        for level, (body, at) in enumerate(path):
            if level and repeats(loop := body[at].stmt):
                here = state.since()
                again = self.turns_of(body[at], self.moved(here, loop.var.name, "later"))
                state = State(self.sites, self.moved(joined(here, again), loop.var.name, "any"))
            state = self.run(body, state, at + (level > 0))
            if self.needed or not state.began:
                break
        return None if self.needed else self.met

    def before_begins(self, nodes: tuple[Node, ...], around: Path) -> None:
        """Fences wait for what has just begun, too: they go in front of the begins before them, where that does."""
        for k, node in enumerate(nodes):
            for queue, wait in list(node.waits.items()):
                if self.named[queue].by == "all":
                    del node.waits[queue]
                    nodes[self.fence(queue, wait.ended, nodes, k, around)].waits[queue] = wait
                    wait.left = 0

    def fence(self, queue: str, ended: Since, nodes: tuple[Node, ...], k: int, around: Path) -> int:
        """The place of a fence in front of the begins before a node, the first that does."""
        sites: dict[int, set[int]] = {}
        first = k
        while (
            first
            and (begun := {n.site for n in all_nodes((nodes[first - 1],)) if n.site is not None})
            and queue not in nodes[first - 1].waits
        ):
            first -= 1
            sites[first] = begun
        this_turn = [i for i in ended if not any(v in nodes[k].loops for v, _ in i[1])]

        def tried(place: int, begins: Iterable[int]) -> list[tuple[Wait, Since]] | None:
            """What then ends instructions that have begun in this turn behind it, those in some nodes."""
            nodes[place].waits[queue] = Wait(0, set())
            behind = {site for j in begins for site in sites[j]}
            met = self.ends(((nodes, k), *around), {i: ended[i] for i in this_turn if i[0] in behind})
            del nodes[place].waits[queue]
            return met

        # The first place does best for what comes back in a later turn: what begins behind another cannot go on where
        # it does not with that.
        at = first + bisect_left(range(first, k), True, key=lambda j: tried(first, range(j, k)) is not None)
        for place in range(at, k):
            if (met := tried(place, range(place, k))) is not None:
                note_ended(met)
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

    def nodes(self, s: Stmt, loops: tuple[str, ...]) -> tuple[Node, ...]:
        if isinstance(s, Seq):
            return tuple(n for c in s.stmts for n in self.nodes(c, loops))
        begins = id(s) in self.begins
        match s:
            case Let():
                self.let(s)
                return (Node(s, loops, unique(self.reads((s.value,))), body=self.nodes(s.body, loops)),)
            case Allocate():
                return (Node(s, loops, body=(*self.nodes(s.body, loops), Node(None, loops, ends=s.buffer.name))),)
            case Evaluate() if begins:
                self.sites.append(Site(self.queues[s.call.name], unique(self.call(s)), loops))
                return (Node(s, loops, self.sites[-1].accesses, site=len(self.sites) - 1),)
            case For() if begins:
                self.loop(s)
                if repeats(s):
                    return (
                        Node(s, loops, unique(self.reads((s.extent,))), body=self.nodes(s.body, (*loops, s.var.name))),
                    )
                return (Node(s, loops, unique(self.deep(s)), body=(*self.nodes(s.body, ()), Node(None, (), ends=""))),)
            case If() if begins:
                other = () if s.orelse is None else self.nodes(s.orelse, loops)
                return (Node(s, loops, unique(self.reads((s.cond,))), body=self.nodes(s.then, loops), other=other),)
            case While() if begins:
                return (Node(s, loops, unique(self.deep(s)), body=(*self.nodes(s.body, ()), Node(None, (), ends=""))),)
        return (Node(s, loops, unique(self.deep(s))),)

    def let(self, s: Let) -> None:
        if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
            self.lets[s.var.name] = substitute(s.value, self.lets)
            self.ranges[s.var.name] = range_of(s.value, self.ranges)

    def loop(self, s: For) -> None:
        hi = range_of(s.extent, self.ranges).hi
        self.ranges[s.var.name] = Range(0, None if hi is None else max(0, hi - 1))

    def deep(self, s: Stmt) -> Iterator[Access]:
        """Accesses of a statement and of all in it, but to buffers of its own."""
        own = {x.buffer.name for x in walk_stmts(s) if isinstance(x, Allocate)}
        for x in walk_stmts(s):
            if isinstance(x, Let):
                self.let(x)
            elif isinstance(x, For):
                self.loop(x)
            yield from (a for a in self.direct(x) if a.buffer not in own)

    def direct(self, s: Stmt) -> Iterator[Access]:
        match s:
            case Evaluate():
                yield from self.call(s)
                return
            case Store():
                yield self.access(s.buffer, s.indices, True)
            case AtomicUpdate():
                yield self.access(s.buffer, s.indices, True)
        yield from self.reads(stmt_exprs(s))

    def reads(self, exprs: tuple[Expr, ...]) -> Iterator[Access]:
        for e in exprs:
            for n in walk(e):
                if isinstance(n, Load):
                    yield self.access(n.buffer, n.indices, False)

    def call(self, s: Evaluate) -> Iterator[Access]:
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

    def access(self, b: Buffer, indices: tuple[Expr, ...], write: bool) -> Access:
        return self.box(
            b, None if any(i.dtype.lanes > 1 for i in indices) else tuple((i, const(1)) for i in indices), write
        )

    def box(self, b: Buffer, ranges: tuple[tuple[Expr, Expr], ...] | None, write: bool) -> Access:
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
            self.accesses[key] = Access(*key, free)
        return self.accesses[key]

    def sum(self, e: Expr) -> tuple[Sum, int]:
        form = linear(e)
        atoms = form.atoms
        for atom in atoms:
            if atom not in self.numbers:
                self.numbers[atom] = len(self.terms)
                self.terms.append(atom)
        return tuple(sorted((self.numbers[atom], factor) for atom, factor in atoms.items())), form.constant

    def polynomial(self, terms: Sum) -> Polynomial:
        return Polynomial.linear({self.terms[k]: factor for k, factor in terms})

    # -- what may go on where
    def settle(self, nodes: tuple[Node, ...]) -> None:
        """Adds waits until none is missing."""
        self.needed = True
        while self.needed:
            self.needed = False
            self.run(nodes, State(self.sites, {}))

    def run(self, nodes: tuple[Node, ...], state: State, start: int = 0) -> State:
        for k in range(start, len(nodes)):
            if self.fixed and (self.needed or not (state.began or self.beginning)):
                break
            state = self.step(nodes[k], state)
        return state

    def step(self, node: Node, state: State) -> State:
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
            wait = node.waits.setdefault(queue, Wait(MOST_COUNTED, set()))
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
            other = State(self.sites, state.since())
            return State(self.sites, joined(self.run(node.body, state).since(), self.run(node.other, other).since()))
        if starts_anew(s):
            if self.beginning:
                self.run(node.body, State(self.sites, {}))  # with queues of its own; nothing of them is left at its end
            return state
        if not isinstance(s, For):
            return self.run(node.body, state)
        before = state.since()
        done = self.moved(self.turns_of(node, self.moved(before, s.var.name, "now", "first")), s.var.name, "any")
        certain = (range_of(s.extent, self.ranges).lo or 0) > 0
        return State(self.sites, done if certain else joined(before, done))

    def turns_of(self, node: Node, head: Since) -> Since:
        """What may go on at the end of any turn of a loop, if so much does when it begins."""
        assert isinstance(node.stmt, For)
        while True:
            end = self.run(node.body, State(self.sites, head)).since()
            new = joined(head, self.moved(end, node.stmt.var.name, "later"))
            if new == head or (self.fixed and self.needed):
                return end
            head = new

    def moved(self, since: Since, loop: str, inside: str, outside: str = "") -> Since:
        """In another turn of a loop: what begins in it, and what has begun before it."""
        found: Since = {}
        for (site, when), n in since.items():
            key = site, turned(when, loop, inside if loop in self.sites[site].loops else outside)
            found[key] = min(n, found.get(key, n))
        return found

    def needs(self, state: State, node: Node) -> list[Item]:
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

    def meeting(self, boxes: Boxes, kind: Kind | None, b: Access, loops: tuple[str, ...]) -> Iterator[Item]:
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

    def distance(self, x: Sum, y: Sum) -> tuple[Any, int]:
        if (x, y) not in self.distances:
            first, second = self.polynomial(x), self.polynomial(y)
            self.distances[x, y] = distances(first - second, self.ranges)
        return self.distances[x, y]

    def before(
        self, shape: Shape, when: When, around: tuple[str, ...], same: tuple[str, ...]
    ) -> tuple[tuple[Sum, int], ...]:
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

    def now(self, shape: Shape, first: frozenset[str]) -> tuple[tuple[Sum, int], ...]:
        """Where boxes of a statement begin, in the first turns of some loops."""
        if (shape, first) not in self.moves:
            self.moves[shape, first] = self.with_values(shape, {v: const(0) for v in first})
        return self.moves[shape, first]

    def with_values(self, shape: Shape, values: Mapping[str, Expr]) -> tuple[tuple[Sum, int], ...]:
        return tuple(self.sum(substitute(self.polynomial(terms).expr(), values)) for terms, _ in shape)
