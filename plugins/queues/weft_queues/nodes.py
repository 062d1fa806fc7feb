"""What a program does with its buffers, as far as instructions of queues may depend on it: nodes, accesses, and the
instructions that may run at a position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias, TypeGuard

from weft.loop.nodes import For, Stmt, While
from weft.loop.queues import Queue

MOST_COUNTED = 64
"""Begins since one that are told apart; what began longer ago has at least so many behind it."""


@dataclass(frozen=True, eq=False)
class Access:
    """Of a buffer, a box or, if it is None, all of it."""

    buffer: str
    write: bool
    shape: Shape | None
    at: tuple[int, ...]
    """Constants that are added where the box begins."""
    free: frozenset[str]
    """Variables of the box."""


@dataclass(eq=False)
class Node:
    """A statement, or the place behind one."""

    stmt: Stmt | None
    loops: tuple[str, ...]
    """As those of a site."""
    accesses: tuple[Access, ...] = ()
    site: int | None = None
    """Of a begin."""
    body: tuple[Node, ...] = ()
    other: tuple[Node, ...] = ()
    """The else of a condition."""
    ends: str | None = None
    """What ends here: a buffer's memory; "" all that has begun in this body."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """What stands in front: queue → the wait."""


@dataclass(frozen=True)
class Site:
    """An instruction of a queue in the program."""

    queue: Queue
    accesses: tuple[Access, ...]
    loops: tuple[str, ...]
    """Variables of the loops around whose iterations run one after another, within the body of one that starts anew."""


When: TypeAlias = frozenset[tuple[str, str]]
"""Loop around a begin → of which turn it is, if not of this one: the one before ("last"), an earlier one ("earlier"),
any ("any"). Loop that it came before → "first": this is its first turn."""
Item: TypeAlias = tuple[int, When]
_NOW: When = frozenset()
Since: TypeAlias = dict[Item, int]
"""What may have begun and not been awaited → how many of its queue have certainly begun since."""
Sum: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of terms and their factors."""
Shape: TypeAlias = tuple[tuple[Sum, int], ...]
"""Of each dimension of a box, where it begins but for a constant, and its length."""
Kind: TypeAlias = tuple[Shape, When, tuple[str, ...]]
"""Boxes that differ in constants only, in the same turns of loops: those that say something of the box, or of the
statement that is compared."""
Path: TypeAlias = tuple[tuple[tuple[Node, ...], int], ...]
"""A place: a body and which of its nodes, then the node around it in its body, and so on."""


@dataclass(eq=False)
class Wait:
    """A wait before a statement: by count, `left` instructions may still run; by token, those of `items` have ended."""

    left: int
    items: set[Item]
    ended: Since = field(default_factory=dict)
    """What comes to it and has ended behind it."""


class Boxes:
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


class State:
    """The instructions that may run at a position, by the buffers that they access. A clock for each queue counts
    begins; each running instruction has the time of its begin."""

    def __init__(self, sites: Sequence[Site], since: Since) -> None:
        self.sites = sites
        self.clocks: dict[str, int] = {}
        self.began = {i: -n for i, n in since.items()}
        self.touching: dict[tuple[str, bool], dict[Kind | None, Boxes]] = {}
        """Of a buffer those that touch it, and those that write it."""
        for i in since:
            self._index(i)

    def _keys(self, item: Item) -> Iterator[tuple[tuple[str, bool], Kind | None, tuple[int, ...]]]:
        site, when = item
        for a in self.sites[site].accesses:
            kind: Kind | None = None
            if a.shape is not None:
                turns = frozenset(x for x in when if x[1] == "first" or x[0] in a.free) if when else when
                kind = a.shape, turns, tuple(v for v in self.sites[site].loops if v in a.free)
            for write in {False, a.write}:
                yield (a.buffer, write), kind, a.at

    def _index(self, item: Item) -> None:
        for key, kind, at in self._keys(item):
            kinds = self.touching.setdefault(key, {})
            if kind not in kinds:
                kinds[kind] = Boxes(len(at))
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

    def end(self, queue: Queue, wait: Wait) -> Since:
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


def all_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """The nodes and all within them, outermost first."""
    for n in nodes:
        yield n
        yield from all_nodes((*n.body, *n.other))


def bodies(nodes: tuple[Node, ...], around: Path = ()) -> Iterator[tuple[tuple[Node, ...], Path]]:
    """The node lists of a program, outermost first."""
    yield nodes, around
    for k, n in enumerate(nodes):
        for part in (n.body, n.other):
            if part:
                yield from bodies(part, ((nodes, k), *around))


def places(nodes: tuple[Node, ...], around: Path = ()) -> Iterator[tuple[Node, Path]]:
    """The nodes and all within them, each with its place."""
    for k, n in enumerate(nodes):
        path = ((nodes, k), *around)
        yield n, path
        for part in (n.body, n.other):
            yield from places(part, path)


def repeats(s: Stmt | None) -> TypeGuard[For]:
    """Whether it is a loop whose iterations run one after another."""
    return isinstance(s, For) and s.kind in ("serial", "unrolled")


def starts_anew(s: Stmt | None) -> bool:
    """Whether queues begin empty in its body, and are empty at its end."""
    return isinstance(s, (For, While)) and not repeats(s)


def unique(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """Each access once."""
    return tuple(dict.fromkeys(accesses))


def joined(a: Since, b: Since) -> Since:
    """What may go on if one of two has been."""
    found = dict(a)
    for i, n in b.items():
        found[i] = min(n, found.get(i, n))
    return found


def note_ended(met: Iterable[tuple[Wait, Since]]) -> None:
    """What waits have ended is noted with them."""
    for wait, ended in met:
        for i, n in ended.items():
            wait.ended[i] = min(n, wait.ended.get(i, n))


@lru_cache(1 << 14)
def turned(when: When, var: str, to: str) -> When:
    """With another state of a loop: "" for none, "now" as it was, "later" one turn later."""
    before = dict(when).get(var)
    if to == "now" or (to == "later" and before == "any"):
        return when
    if to == "later":
        to = "last" if before is None else "earlier"
    return frozenset((*((v, s) for v, s in when if v != var), *([(var, to)] if to else [])))
