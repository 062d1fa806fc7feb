"""Regions that a statement accesses: boxes of buffers as formulas of the fixed loops.

A box is found by interval arithmetic on linear forms of the indices (`weft.expr.linear`), so that `wo*14 + wi - wo*14`
cancels and extents are exact, symbolic sizes included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from weft.expr.linear import ZERO, Conversion, Polynomial, number
from weft.expr.nodes import (
    And,
    Cast,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Select,
    Var,
    floordiv,
    free_vars,
    maximum,
    minimum,
    substitute,
    walk,
)
from weft.expr.signs import Signs
from weft.loop.nodes import (
    AtomicUpdate,
    Block,
    Buffer,
    For,
    Let,
    Load,
    Stmt,
    Store,
    int_const,
    stmt_children,
    stmt_exprs,
)

SIZES = Signs(others=0, divisors=True)
"""What schedules assume: sizes, loop variables and iterators are not negative, and divisors are at least 1."""
poly = Conversion("all", casts=True, signs=SIZES)
"""An index formula as a form under `SIZES`, products multiplied out; casts are exact, as index formulas do not
overflow."""


def at_least_zero(p: Polynomial) -> bool:
    """Whether a form is certainly not negative under `SIZES`."""
    return SIZES.at_least_zero(p, poly)


# -- intervals --------------------------------------------------------------------------------------------------------

Interval: TypeAlias = tuple[Polynomial, Polynomial]
MOST_TERMS = 64
"""Of an end: products of sums of many sizes multiply out to more, about which nothing is found out that were worth
it."""


def interval(e: Expr, moving: Mapping[str, Expr]) -> Interval | None:
    """The least and greatest value of `e` while each moving variable runs over 0 … extent - 1; all others stay. None:
    unknown."""
    return _interval_of(poly(e), moving)


def _moves(atom: Expr, moving: Mapping[str, Expr]) -> bool:
    if isinstance(atom, Var):
        return atom.name in moving
    return any((isinstance(n, Var) and n.name in moving) or isinstance(n, Load) for n in walk(atom))


def _interval_of(p: Polynomial, moving: Mapping[str, Expr]) -> Interval | None:
    lo = hi = p
    for _ in range(64):
        atom = next(
            (a for q in (lo, hi) for m in q.terms for a in m if not isinstance(a, Var) and _moves(a, moving)), None
        )
        # Innermost variables first: the extent of an inner loop may name an outer one, never the reverse.
        if atom is None:
            names = {a.name for q in (lo, hi) for m in q.terms for a in m if isinstance(a, Var) and a.name in moving}
            if not names:
                return lo, hi
            name = next(n for n in reversed(list(moving)) if n in names)
            atom = next(a for q in (lo, hi) for m in q.terms for a in m if isinstance(a, Var) and a.name == name)
            ends: Interval | None = (ZERO, poly(moving[name]).plus(-1))
        else:
            ends = _atom_interval(atom, moving)
        if ends is None:
            return None
        low, high = _replace(lo, atom, ends[0], ends[1]), _replace(hi, atom, ends[1], ends[0])
        if low is None or high is None:
            return None
        lo, hi = low, high
        if max(len(lo.terms), len(hi.terms)) > MOST_TERMS:
            return None
    return None


def _replace(p: Polynomial, atom: Expr, if_positive: Polynomial, if_negative: Polynomial) -> Polynomial | None:
    """`p` with `atom` replaced by the end that its factor calls for; None if the sign is unknown or the power above
    one."""
    parts = p.collect(atom)
    if parts is None:
        return None
    factor, rest = parts
    if not factor:
        return p
    if at_least_zero(factor):
        return rest + factor * if_positive
    if at_least_zero(-factor):
        return rest + factor * if_negative
    return None


def _atom_interval(atom: Expr, moving: Mapping[str, Expr]) -> Interval | None:
    """The range of an atom that is no variable."""
    if isinstance(atom, (FloorDiv, FloorMod)):
        ends = interval(atom.a, moving)
        divisor = poly(atom.b)
        if any(_moves(a, moving) for m in divisor.terms for a in m):
            return None
        if isinstance(atom, FloorMod):
            if ends is not None and at_least_zero(ends[0]) and at_least_zero(divisor.plus(-1) - ends[1]):
                return ends
            return ZERO, divisor.plus(-1)
        if ends is None or not (divisor.value or 1) > 0:
            return None
        return poly(floordiv(ends[0].expr(), atom.b)), poly(floordiv(ends[1].expr(), atom.b))
    if isinstance(atom, (Min, Max)):
        a, b = interval(atom.a, moving), interval(atom.b, moving)
        if a is None or b is None:
            return None
        build = minimum if isinstance(atom, Min) else maximum
        return _pick(build, a[0], b[0]), _pick(build, a[1], b[1])
    if isinstance(atom, Select):
        a, b = interval(atom.a, moving), interval(atom.b, moving)
        return None if a is None or b is None else hull([a, b])
    if isinstance(atom, Cast) and atom.value.dtype.is_bool:
        return ZERO, number(1)
    return None


def _pick(build: Callable[[Expr, Expr], Expr], a: Polynomial, b: Polynomial) -> Polynomial:
    if at_least_zero(a - b):
        return a if build is maximum else b
    if at_least_zero(b - a):
        return b if build is maximum else a
    return poly(build(a.expr(), b.expr()))


def greatest(p: Polynomial, loops: Mapping[str, Expr]) -> Polynomial | None:
    """A bound that `p` never exceeds while the loops run. Quotients by one divisor whose dividends keep a distance
    cancel."""
    quotients = [(m[0], c) for m, c in p.terms.items() if len(m) == 1 and isinstance(m[0], FloorDiv)]
    for up, c in quotients:
        for down, d in quotients:
            if c > 0 and d == -c and isinstance(up, FloorDiv) and isinstance(down, FloorDiv) and up.b == down.b:
                apart, divisor = (poly(up.a) - poly(down.a)).value, poly(up.b).value
                if apart is not None and divisor is not None and divisor > 0:
                    p = p - Polynomial.linear({up: c, down: d}) + number(c * -(-apart // divisor))
                    return greatest(p, loops)
    ends = _interval_of(p, loops)
    return None if ends is None else ends[1]


def hull(intervals: Sequence[Interval]) -> Interval | None:
    """The least interval around all of them, if their ends compare."""
    lo, hi = intervals[0]
    for low, high in intervals[1:]:
        if at_least_zero(lo - low):
            lo = low
        elif not at_least_zero(low - lo):
            return None
        if at_least_zero(high - hi):
            hi = high
        elif not at_least_zero(hi - high):
            return None
    return lo, hi


# -- proof ------------------------------------------------------------------------------------------------------------


def slack(condition: Expr, partly: bool = False) -> list[Polynomial] | None:
    """Forms that are all ≥ 0 exactly where the condition holds; None if it is no comparison of integers.

    `partly`: those of its parts that are comparisons of integers, which follow from it.
    """
    if isinstance(condition, (Lt, Le)) and condition.a.dtype.is_integer:
        return [(poly(condition.b) - poly(condition.a)).plus(-1 if isinstance(condition, Lt) else 0)]
    if isinstance(condition, Eq) and condition.a.dtype.is_integer:
        d = poly(condition.a) - poly(condition.b)
        return [d, -d]
    if isinstance(condition, And):
        a, b = slack(condition.a, partly), slack(condition.b, partly)
        if partly:
            return (a or []) + (b or [])
        return None if a is None or b is None else a + b
    return None


def certain(condition: Expr, loops: Mapping[str, Expr], facts: Iterable[Expr] = ()) -> bool:
    """Whether `condition` holds for all values of the loops (outermost first) where the facts hold."""
    if isinstance(condition, Const):
        return bool(condition.value)
    goals = slack(condition)
    if goals is None:
        return condition in tuple(facts)
    known = [p for f in facts for p in slack(f) or ()]

    def holds(goal: Polynomial) -> bool:
        ends = _interval_of(goal, loops)
        return ends is not None and at_least_zero(ends[0])

    return all(holds(g) or any(holds(g - k) for k in known) for g in goals)


# -- accesses ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """One read or write of a buffer in a statement: indices over loops (bindings substituted), and the loops inside the
    block."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    write: bool
    block: Block | None
    inner: tuple[tuple[str, Expr], ...] = ()
    extents: tuple[Expr, ...] | None = None  # of a declared region: each index is the first of so many

    def box(self, moving: Mapping[str, Expr]) -> list[Interval | None]:
        """Per dimension, first and last index while the `moving` loops run; None where unknown."""
        everything = {**moving, **dict(self.inner)}
        result: list[Interval | None] = []
        for k, i in enumerate(self.indices):
            ends = interval(i, everything)
            if ends is not None and self.extents is not None:
                last = interval(i + self.extents[k] - 1, everything)
                ends = None if last is None else (ends[0], last[1])
            result.append(ends)
        return result

    def held_box(self, moving: Mapping[str, Expr]) -> list[Interval | None]:
        """As `box`, but no further than the block's predicate lets it: what is really touched."""
        result = self.box(moving)
        for k, limits in enumerate(self.limits(moving, everywhere=True)):
            for most in limits:
                ends = result[k]
                if ends is not None and at_least_zero(ends[1] - most):
                    result[k] = (ends[0], most)
        return result

    def limits(self, moving: Mapping[str, Expr], everywhere: bool = False) -> list[list[Polynomial]]:
        """Per dimension, indices that the block's predicate lets none exceed while the `moving` loops run.

        Only what the predicate says of the index as such; `everywhere`: also what follows if other moving loops run to
        their ends.
        """
        loops = {**moving, **dict(self.inner)}

        def moves(p: Polynomial) -> bool:
            return any(_moves(a, loops) for m in p.terms for a in m)

        def greatest_of(p: Polynomial) -> list[Polynomial]:
            if not moves(p):
                return [p]
            ends = _interval_of(p, loops) if everywhere else None
            return [] if ends is None else [ends[1]]

        facts = (
            []
            if self.block is None or self.extents is not None
            else [f for f in slack(self.block.predicate, partly=True) or [] if moves(f)]
        )
        return [[most for f in facts for most in greatest_of(p + f)] for p in map(poly, self.indices)]

    def fills(self, moving: Mapping[str, Expr]) -> bool:
        """Whether the access touches every element of its box (but where a predicate holds it back), as far as
        provable."""
        if self.extents is not None:
            return True
        everything = {**moving, **dict(self.inner)}
        seen: set[str] = set()
        for k, i in enumerate(self.indices):
            steps: list[tuple[int, Polynomial]] = []
            whole = False
            p = poly(i)
            for m, c in p.terms.items():
                atoms = [a for a in m if _moves(a, everything)]
                if not atoms:
                    continue
                names = {v for a in atoms for v in free_vars(a)} & everything.keys()
                if len(atoms) == 1 and isinstance(atoms[0], Var) and len(m) == 1:
                    if names & seen:
                        return False
                    steps.append((c, poly(everything[atoms[0].name])))
                elif (
                    {v for a in atoms for v in free_vars(a)}
                    - everything.keys()
                    - {v for d in self.buffer.shape for v in free_vars(d)}
                ):
                    return False
                else:
                    whole = True
                    names = set()
                seen |= names
            if whole:
                ends = interval(i, everything)
                if ends is None or not (
                    at_least_zero(-ends[0]) and at_least_zero((ends[1] - poly(self.buffer.shape[k])).plus(1))
                ):
                    return False
                continue
            reach = number(1)
            for c, extent in sorted(steps, key=lambda s: s[0]):
                if not at_least_zero(reach.plus(-c)) or c < 1:
                    return False
                reach = reach + extent.plus(-1).scale(c)
        return True


def accesses(stmt: Stmt, buffer: str | None = None) -> list[Access]:
    """Every access under `stmt` in program order (a store's loads before the store), of one buffer if named."""
    found: list[Access] = []
    _collect(stmt, {}, None, (), found, buffer)
    return found


def block_accesses(block: Block, buffer: str | None = None) -> list[Access]:
    """As `accesses`, but with indices over the block's own iterators."""
    found: list[Access] = []
    _collect_block(block, {}, (), found, buffer)
    return found


@lru_cache(maxsize=1024)
def loads_in(e: Expr) -> tuple[Load, ...]:
    """The loads in a formula, each once: what select chooses among may load an element many times. Cached, since every
    primitive needs them."""
    return tuple(dict.fromkeys(n for n in walk(e) if isinstance(n, Load)))


def _collect_block(
    block: Block,
    values: Mapping[str, Expr],
    inner: tuple[tuple[str, Expr], ...],
    found: list[Access],
    buffer: str | None,
) -> None:
    own: list[Access] = []
    for part in (block.init, block.body):
        if part is not None:
            _collect(part, values, block, inner, own, buffer)
    for regions, write in ((block.reads, False), (block.writes, True)):
        if regions is not None:
            own = [a for a in own if a.write != write]
            for r in regions:
                if buffer is None or r.buffer.name == buffer:
                    starts, extents = zip(*r.ranges) if r.ranges else ((), ())
                    first, length = (tuple(substitute(x, values) for x in xs) for xs in (starts, extents))
                    own.append(Access(r.buffer, first, write, block, inner, length))
    found.extend(own)


def _collect(
    stmt: Stmt,
    values: Mapping[str, Expr],
    block: Block | None,
    inner: tuple[tuple[str, Expr], ...],
    found: list[Access],
    buffer: str | None,
) -> None:
    if isinstance(stmt, Block):
        bound = {i.var.name: substitute(b, values) for i, b in zip(stmt.iters, stmt.bindings)}
        _collect_block(stmt, {**values, **bound}, inner, found, buffer)
        return
    for e in stmt_exprs(stmt):
        for node in loads_in(e):
            if buffer is None or node.buffer.name == buffer:
                found.append(
                    Access(node.buffer, tuple(substitute(i, values) for i in node.indices), False, block, inner)
                )
    if isinstance(stmt, Let):
        values = {**values, stmt.var.name: substitute(stmt.value, values)}
    elif isinstance(stmt, For) and block is not None:
        inner = (*inner, (stmt.var.name, substitute(stmt.extent, values)))
    for c in stmt_children(stmt):
        _collect(c, values, block, inner, found, buffer)
    if isinstance(stmt, (Store, AtomicUpdate)) and (buffer is None or stmt.buffer.name == buffer):
        indices = tuple(substitute(i, values) for i in stmt.indices)
        if isinstance(stmt, AtomicUpdate):
            found.append(Access(stmt.buffer, indices, False, block, inner))
        found.append(Access(stmt.buffer, indices, True, block, inner))


def union_box(boxes: Sequence[list[Interval | None]]) -> list[Interval | None]:
    """The box around boxes of one rank; None in dimensions where that is unknown."""
    result: list[Interval | None] = []
    for parts in zip(*boxes):
        known = [p for p in parts if p is not None]
        result.append(hull(known) if len(known) == len(parts) else None)
    return result


def within(inside: list[Interval | None], outside: list[Interval | None]) -> bool:
    """Whether one box certainly lies in the other."""
    return all(
        a is not None and b is not None and at_least_zero(a[0] - b[0]) and at_least_zero(b[1] - a[1])
        for a, b in zip(inside, outside)
    )  # fmt: skip


def loops_under(stmt: Stmt, outer: Mapping[str, Expr] = MappingProxyType({})) -> dict[str, Expr]:
    """The loops of `stmt` outside blocks, outer before inner, with their extents; and those of `outer` that have one
    iteration, as they are no variables."""
    found = {v: x for v, x in outer.items() if int_const(x) == 1}
    stack = [stmt]
    while stack:
        s = stack.pop()
        if isinstance(s, For):
            found[s.var.name] = s.extent
        if not isinstance(s, Block):
            stack.extend(reversed(stmt_children(s)))
    return found
