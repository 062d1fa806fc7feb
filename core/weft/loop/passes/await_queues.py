"""Instructions of queues are begun where they stand, and awaited where somebody needs what they write, or changes what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft import dtypes as dt
from weft.errors import LoopError
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
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)  # fmt: skip
from weft.loop.passes.copies import Names
from weft.loop.passes.distances import overlaps
from weft.loop.printer import excerpt
from weft.loop.queues import Queue, begin

MOST_COUNTED = 64
"""Begins since one that are told apart; what began longer ago has at least so many behind it."""


def await_queues(program: Program, queues: Mapping[str, Queue]) -> Program:
    """Afterwards instructions of queues are begun, and wherever what one of them writes may be touched, or what it reads may be written, it has been awaited.

        allocate t: float32[2, 16] in tiles                              allocate t: float32[2, 16] in tiles
        @load(t[0, 0], x[0, 0])                                          @begin_load(t[0, 0], x[0, 0])
        for k in 7 {                                                     for k in 7 {
          @load(t[(k + 1) % 2, 0], x[k + 1, 0])                    →       @begin_load(t[(k + 1) % 2, 0], x[k + 1, 0])
          @gemm(c[0], t[k % 2, 0])                                         @await_dma(1)
        }                                                                  @gemm(c[0], t[k % 2, 0])
        @gemm(c[0], t[1, 0])                                             }
                                                                         @await_dma(0)
                                                                         @gemm(c[0], t[1, 0])

    A wait stands in front of the outermost statement that begins nothing itself and needs it, so not in the loops of a computation, and waits for no more than
    is needed: as many instructions may go on as have certainly begun since. It looks at loops as `remove_barriers` does: an instruction is of this turn, of
    the one before, of an earlier one, and boxes of elements (`Evaluate.within`) are compared by their distance. Nothing goes on when its memory is given
    back, when an iteration of a loop ends whose iterations run at once, since each has its own queues, and when the kernel ends.

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
                raise LoopError(f"await_queues: program '{program.name}' begins what it cannot await", where=excerpt(program, at=inner), why=why, hint=hint)
    return _Program(program, queues).changed()


# -- what a program does, as far as it matters ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Access:
    """Of a buffer, a box or, if it is None, all of it."""

    buffer: str
    box: tuple[tuple[Expr, int], ...] | None
    write: bool


@dataclass
class _Node:
    """A statement, or the place behind one."""

    stmt: Stmt | None
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
"""Loop around a begin → of which turn it is, if not of this one: the one before ("last"), an earlier one ("earlier"), any ("any"). Loop that it came before →
"first": this is its first turn."""
Item: TypeAlias = tuple[int, When]
State: TypeAlias = dict[Item, int]
"""What may have begun and not been awaited → how many of its queue have certainly begun since."""


@dataclass
class _Wait:
    """In front of a statement: by count, `left` may go on; by token, those of `items` have ended."""

    left: int
    items: set[Item]


class _Program:
    def __init__(self, program: Program, queues: Mapping[str, Queue]) -> None:
        self.program, self.queues = program, queues
        self.sites: list[_Site] = []
        self.ranges: dict[str, Range] = {d.name: Range(0, None) for d in program.dims}
        self.lets: dict[str, Expr] = {}
        self.memory = {program.outputs[o].name: program.inputs[i].name for o, i in program.aliases}
        self.known: dict[tuple[_Access, When, tuple[str, ...], _Access], bool] = {}
        self.needed = False  # whether somebody still needs what has not been awaited
        self.fixed = False  # whether waits are looked for, or only tried

    def changed(self) -> Program:
        nodes = self.nodes(self.program.body, ())
        whole = (*nodes, _Node(None, ends=""))
        self.settle(whole)
        for nodes in _bodies(whole):
            self.before_begins(nodes, whole)
        for node in _all(whole):  # what a later look at a loop has made needless
            for queue in list(node.waits):
                kept = node.waits.pop(queue)
                if not self.enough(whole):
                    node.waits[queue] = kept
        names = Names.of(self.program)
        self.parity = self.turns(whole)
        return self.program.with_body(self.written(whole, names))

    def enough(self, whole: tuple[_Node, ...]) -> bool:
        """Whether the waits that there are do."""
        self.needed, self.fixed = False, True
        self.run(whole, {}, ())
        return not self.needed

    def before_begins(self, nodes: tuple[_Node, ...], whole: tuple[_Node, ...]) -> None:
        """Fences wait for what has just begun, too: they go in front of the begins before them, where that does."""
        for k, node in enumerate(nodes):
            for queue, wait in list(node.waits.items()):
                if next(s.queue.by for s in self.sites if s.queue.name == queue) != "all":
                    continue
                del node.waits[queue]
                at = k
                for j in range(k - 1, -1, -1):
                    if not any(n.site is not None for n in _all((nodes[j],))) or queue in nodes[j].waits:
                        break
                    nodes[j].waits[queue] = _Wait(0, set())
                    if self.enough(whole):
                        at = j
                    del nodes[j].waits[queue]
                nodes[at].waits[queue] = wait

    # -- collecting
    def nodes(self, s: Stmt, loops: tuple[str, ...]) -> tuple[_Node, ...]:
        if isinstance(s, Seq):
            return tuple(n for c in s.stmts for n in self.nodes(c, loops))
        begins = any(isinstance(x, Evaluate) and x.call.name in self.queues for x in walk_stmts(s))
        match s:
            case Let():
                self.let(s)
                return (_Node(s, tuple(self.reads((s.value,))), body=self.nodes(s.body, loops)),)
            case Allocate():
                return (_Node(s, body=(*self.nodes(s.body, loops), _Node(None, ends=s.buffer.name))),)
            case Evaluate() if begins:
                self.sites.append(_Site(self.queues[s.call.name], tuple(self.call(s)), loops))
                return (_Node(s, self.sites[-1].accesses, site=len(self.sites) - 1),)
            case For() if begins:
                self.loop(s)
                if s.kind in ("serial", "unrolled"):
                    return (_Node(s, tuple(self.reads((s.extent,))), body=self.nodes(s.body, (*loops, s.var.name))),)
                return (_Node(s, tuple(self.deep(s)), body=(*self.nodes(s.body, ()), _Node(None, ends=""))),)
            case If() if begins:
                other = () if s.orelse is None else self.nodes(s.orelse, loops)
                return (_Node(s, tuple(self.reads((s.cond,))), body=self.nodes(s.then, loops), other=other),)
            case While() if begins:
                return (_Node(s, tuple(self.deep(s)), body=(*self.nodes(s.body, ()), _Node(None, ends=""))),)
        return (_Node(s, tuple(self.deep(s))),)

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
        return self.box(b, None if any(i.dtype.lanes > 1 for i in indices) else tuple((i, const(1)) for i in indices), write)

    def box(self, b: Buffer, ranges: tuple[tuple[Expr, Expr], ...] | None, write: bool) -> _Access:
        """An output that may be the memory of an input has its name."""
        name = self.memory.get(b.name, b.name)
        if ranges is None:
            return _Access(name, None, write)
        extents = [int_const(n) or range_of(substitute(n, self.lets), self.ranges).hi for _, n in ranges]
        starts = [substitute(i, self.lets) for i, _ in ranges]
        if None in extents or any(has(i, (Load, IntrinsicCall)) for i in starts):  # data may change meanwhile
            return _Access(name, None, write)
        return _Access(name, tuple((i, int(n or 0)) for i, n in zip(starts, extents)), write)

    # -- what may go on where
    def settle(self, nodes: tuple[_Node, ...]) -> None:
        """Adds waits until nobody needs more."""
        while True:
            self.needed, self.fixed = False, False
            self.run(nodes, {}, ())
            if not self.needed:
                return

    def run(self, nodes: tuple[_Node, ...], state: State, loops: tuple[str, ...]) -> State:
        for node in nodes:
            state = self.step(node, state, loops)
        return state

    def step(self, node: _Node, state: State, loops: tuple[str, ...]) -> State:
        for queue, wait in node.waits.items():
            state = self.after(state, queue, wait)
        needed = [i for i in state if self.needs(i, node, loops)]
        for queue in dict.fromkeys(self.sites[site].queue.name for site, _ in needed):
            self.needed = True
            if self.fixed:
                continue
            items = {i for i in needed if self.sites[i[0]].queue.name == queue}
            before = node.waits.get(queue)
            left = min(state[i] for i in items)
            wait = _Wait(left if before is None else min(left, before.left), items | (before.items if before else set()))
            node.waits[queue] = wait
            state = self.after(state, queue, wait)
        s = node.stmt
        if node.site is not None:
            queue = self.sites[node.site].queue.name
            state = {i: min(n + 1, MOST_COUNTED) if self.sites[i[0]].queue.name == queue else n for i, n in state.items()}
            state[node.site, frozenset()] = 0
            return state
        if not node.body and not node.other:
            return state
        if isinstance(s, If):
            return _joined(self.run(node.body, state, loops), self.run(node.other, state, loops))
        if isinstance(s, While) or (isinstance(s, For) and s.kind not in ("serial", "unrolled")):
            self.run(node.body, {}, ())  # with queues of its own; nothing of them is left at its end
            return state
        if not isinstance(s, For):
            return self.run(node.body, state, loops)
        name = s.var.name
        head = self.moved(state, lambda k, when: when if name in self.sites[k].loops else _set(when, name, "first"))
        while True:
            end = self.run(node.body, head, (*loops, name))
            new = _joined(head, self.moved(end, lambda k, when: _later(when, name) if name in self.sites[k].loops else _set(when, name, "")))
            if new == head:
                break
            head = new
        done = self.moved(end, lambda k, when: _set(when, name, "any" if name in self.sites[k].loops else ""))
        certain = (range_of(s.extent, self.ranges).lo or 0) > 0
        return done if certain else _joined(state, done)

    @staticmethod
    def moved(state: State, change: Callable[[int, When], When]) -> State:
        """The state with its items in other turns."""
        found: State = {}
        for (k, when), n in state.items():
            key = k, change(k, when)
            found[key] = min(n, found.get(key, n))
        return found

    def after(self, state: State, queue: str, wait: _Wait) -> State:
        """What still may go on behind a wait."""
        token = next(s.queue.by for s in self.sites if s.queue.name == queue) == "token"
        ended = {i for i, n in state.items() if self.sites[i[0]].queue.name == queue and (i in wait.items if token else n >= wait.left)}
        return {i: n for i, n in state.items() if i not in ended}

    def needs(self, item: Item, node: _Node, loops: tuple[str, ...]) -> bool:
        """Whether a statement may touch what an item writes, or write what it reads."""
        site = self.sites[item[0]]
        if node.ends is not None:
            return node.ends in ("", *(a.buffer for a in site.accesses))
        return any(
            (a.write or b.write) and a.buffer == b.buffer and self.meet(a, item[1], site.loops, b, loops) for a in site.accesses for b in node.accesses
        )

    def meet(self, a: _Access, when: When, around: tuple[str, ...], b: _Access, loops: tuple[str, ...]) -> bool:
        """Whether two boxes may have an element in common, the first of turns of its loops that are as `when` says."""
        if a.box is None or b.box is None:
            return True
        key = a, when, tuple(v for v in around if v in loops), b
        if key not in self.known:
            self.known[key] = self._meet(a.box, dict(when), set(around), set(around) & set(loops), b.box)
        return self.known[key]

    def _meet(
        self, a: tuple[tuple[Expr, int], ...], when: Mapping[str, str], around: set[str], same: set[str], b: tuple[tuple[Expr, int], ...]
    ) -> bool:
        values: dict[str, Expr] = {}
        ranges = dict(self.ranges)
        now: dict[str, Expr] = {name: const(0) for name, state in when.items() if state == "first"}
        for i, _ in a:
            for name, v in free_vars(i).items():
                state = when.get(name)
                if name not in around or (name in same and state is None):  # of dims, and loops whose iterations have queues of their own: there is one
                    continue
                if name in same and state == "last":
                    values[name] = sub(v, 1)
                elif name in same and state == "earlier":
                    values[name] = sub(v, Var(f"{name} turns", v.dtype))
                    ranges[f"{name} turns"] = Range(2, None if (hi := self.ranges.get(name, Range()).hi) is None else max(2, hi))
                else:
                    values[name] = Var(f"{name} before", v.dtype)
                    ranges[f"{name} before"] = self.ranges.get(name, Range())
        mine = [(substitute(substitute(i, values), now), n) for i, n in a]
        return all(overlaps(x, (substitute(j, now), m), ranges) for x, (j, m) in zip(mine, b))

    # -- writing
    def turns(self, nodes: tuple[_Node, ...]) -> dict[int, str]:
        """Site of a queue that is awaited by tokens → the loop whose even and odd turns have tokens of their own, if it is awaited a turn later."""
        found: dict[int, set[str]] = {}
        for node in _all(nodes):
            for wait in node.waits.values():
                for k, when in wait.items:
                    found.setdefault(k, set()).update(v for v, state in when if state == "last")
        return {k: next(iter(v)) for k, v in found.items() if len(v) == 1 and self.sites[k].queue.by == "token"}

    def written(self, nodes: tuple[_Node, ...], names: Names) -> Stmt:
        """The statements of one body that has queues of its own."""
        tokens: dict[str, Buffer] = {}
        slots: dict[int, int] = {}

        def mine(inside: tuple[_Node, ...]) -> Iterator[int]:
            for n in inside:
                if n.site is not None:
                    yield n.site
                elif not _anew(n.stmt):
                    yield from mine((*n.body, *n.other))

        for k in mine(nodes):
            queue = self.sites[k].queue
            if queue.by == "token":
                slots[k] = sum(self.sites[j].queue is queue or self.sites[j].queue == queue for j in slots)
        for queue in {self.sites[k].queue for k in slots}:
            count = sum(self.sites[k].queue == queue for k in slots)
            tokens[queue.name] = Buffer(names.fresh(f"{queue.name}_tokens"), (const(2 * count),), dt.int32, "register")

        def place(k: int, turn: Expr | int) -> Load:
            at = add(const(2 * slots[k]), turn)
            return Load(tokens[self.sites[k].queue.name], (at,))

        def waits(node: _Node, loops: Mapping[str, Var]) -> Iterator[Stmt]:
            for name, wait in node.waits.items():
                queue = next(s.queue for s in self.sites if s.queue.name == name)
                if queue.by == "all":
                    yield Evaluate(IntrinsicCall(queue.wait, ()))
                elif queue.by == "count":
                    yield Evaluate(IntrinsicCall(queue.wait, (const(wait.left),)))
                else:
                    wanted: dict[Load, None] = {}
                    for k, when in sorted(wait.items, key=lambda i: (i[0], sorted(i[1]))):
                        loop, states = self.parity.get(k), dict(when)
                        if loop is None:
                            wanted[place(k, 0)] = None
                        elif loop in loops and states.get(loop) in (None, "last"):
                            wanted[place(k, floormod(add(loops[loop], 0 if states.get(loop) is None else 1), 2))] = None
                        else:
                            wanted |= dict.fromkeys((place(k, 0), place(k, 1)))
                    yield from (Evaluate(IntrinsicCall(queue.wait, (p,))) for p in wanted)

        def visit(node: _Node, loops: Mapping[str, Var]) -> Stmt:
            return seq(*waits(node, loops), itself(node, loops))

        def itself(node: _Node, loops: Mapping[str, Var]) -> Stmt:
            s = node.stmt
            if s is None:
                return Seq(())
            if node.site is not None:
                assert isinstance(s, Evaluate)
                args = s.call.args
                if self.sites[node.site].queue.by == "token":
                    loop = self.parity.get(node.site)
                    args = (*args, place(node.site, 0 if loop is None else floormod(loops[loop], 2)))
                return replace(s, call=IntrinsicCall(begin(s.call.name), args))
            if not node.body:
                return s
            if _anew(s):
                return with_stmt_children(s, (self.written(node.body, names),))
            if isinstance(s, For):
                loops = {**loops, s.var.name: s.var}
            parts = [node.body, node.other] if isinstance(s, If) and s.orelse is not None else [node.body]
            return with_stmt_children(s, tuple(seq(*(visit(n, loops) for n in part)) for part in parts))

        body = seq(*(visit(n, {}) for n in nodes))
        for b in tokens.values():
            var = Var(names.fresh(f"{b.name}_i"), dt.int64)
            body = Allocate(b, seq(For(var, b.shape[0], Store(b, (var,), Const(0, dt.int32))), body))
        return body


def _all(nodes: tuple[_Node, ...]) -> Iterator[_Node]:
    for n in nodes:
        yield n
        yield from _all((*n.body, *n.other))


def _bodies(nodes: tuple[_Node, ...]) -> Iterator[tuple[_Node, ...]]:
    """The node lists of a program, outermost first."""
    yield nodes
    for n in nodes:
        for part in (n.body, n.other):
            if part:
                yield from _bodies(part)


def _anew(s: Stmt | None) -> bool:
    """Whether queues begin empty in its body, and are empty at its end."""
    return isinstance(s, While) or (isinstance(s, For) and s.kind not in ("serial", "unrolled"))


def _joined(a: State, b: State) -> State:
    """What may go on if one of two has been."""
    return {i: min(s[i] for s in (a, b) if i in s) for i in (*a, *(k for k in b if k not in a))}


def _set(when: When, var: str, state: str) -> When:
    """With another state of a loop, "" for none."""
    return frozenset((*((v, s) for v, s in when if v != var), *([(var, state)] if state else [])))


def _later(when: When, var: str) -> When:
    """One turn of a loop later."""
    before = dict(when).get(var)
    return when if before == "any" else _set(when, var, "last" if before is None else "earlier")
