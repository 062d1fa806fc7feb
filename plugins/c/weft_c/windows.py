"""Loop pass of the profile for microcontrollers: nests that widen part of a picture become calls.

    for r in n { for k in m {
      y[b + m*r + k] = select(0 <= d + r < h and 0 <= e + k < w, int16(x[a + s*r + k]) - z, 0)
    } }
    → @window(x[0], a, s, z, y[b], n, m, d, 1, h, e, w)

Elements of y follow one another. Where those of x do not, but are t apart within a row, it is `planes`, with t behind
s, for several channels of x, which are u apart, with u behind t and their number before n.
A comparison of numbers without sign, or two of numbers with, says whether an element is inside, for rows and within a
row; d, e and what the loops leave open are formulas. The functions (`weft_c/mcu`) find out once whether all of a window
is inside: so the loops outside need not be divided by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft import dtypes as dt
from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import Cast, Const, Expr, Le, Lt, Select, Sub, Var, all_of, free_vars, minimum
from weft.loop.nodes import (
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    stmt_children,
    with_stmt_children,
)
from weft.scheduling.access import conjuncts

EVERYTHING = 1 << 30
"""A size that no picture reaches: there is no condition."""


@dataclass(frozen=True)
class Inside:
    """0 <= start + step * i < size, for the number i of a row, or of an element within a row."""

    start: Polynomial
    step: int
    size: int


@dataclass(frozen=True)
class Axis:
    """Loops that count as one: their names, iterations, elements from one to the next in y and x."""

    names: tuple[str, ...]
    count: int
    to: int
    source: int


def windows(program: Program) -> Program:
    """Afterwards no nest that a call of `window` or `plane` can do is left."""
    return program.with_body(_with_calls(program.body))


def _with_calls(s: Stmt) -> Stmt:
    if isinstance(s, For):
        call = window_of(s)
        if call is not None:
            return call
    children = stmt_children(s)
    return with_stmt_children(s, tuple(_with_calls(c) for c in children)) if children else s


def window_of(s: For) -> Stmt | None:
    """A nest of loops as a call; None if it is none."""
    loops: dict[str, int] = {}
    inner: Stmt = s
    guards: list[Expr] = []
    while isinstance(inner, For) and inner.kind == "serial":
        extent = int_const(inner.extent)
        if extent is None:
            return None
        loops[inner.var.name] = extent
        inner = inner.body
    if isinstance(inner, If) and inner.orelse is None:
        guards, inner = conjuncts(inner.cond), inner.then
    if not isinstance(inner, Store):
        return None
    outside = [g for g in guards if loops.keys().isdisjoint(free_vars(g))]
    call = _call(inner, loops, [g for g in guards if g not in outside])
    if call is None:
        return None
    made: Stmt = Evaluate(call)
    return If(all_of(outside), made) if outside else made


def _call(s: Store, loops: Mapping[str, int], guards: Sequence[Expr]) -> IntrinsicCall | None:
    """A store as a call. `guards`: what says of which rows elements are stored; those of others become 0."""
    value: Expr = s.value
    nothing = zero = Const(0, dt.int16)
    if s.buffer.dtype != dt.int16 or s.predicate is not None:
        return None
    conditions: list[Expr] = []
    if isinstance(value, Select):
        if value.b != nothing:
            return None
        conditions = conjuncts(value.cond)
        value = value.a
    if isinstance(value, Sub) and isinstance(value.b, Const):
        zero = value.b
        value = value.a
    x = value.value if isinstance(value, Cast) else None
    if not isinstance(x, Load) or x.buffer.dtype != dt.int8 or x.predicate is not None:
        return None
    to, source = flat(s.buffer, s.indices, loops), flat(x.buffer, x.indices, loops)
    if to is None or source is None:
        return None
    (begin, steps), (at, apart) = to, source
    axes = axes_of(loops, steps, apart)
    if axes is None or (not conditions and not axes[1].names):
        return None
    run, rows, planes = axes
    sides = sides_of(conditions, loops, steps, run, rows)
    if sides is None:
        return None
    down, across = sides
    height: Expr = int64(down.size)
    for form in [f for g in guards for f in forms(g)]:
        within = None if form is None else form.split_variables(loops.keys())
        if within is None or {n: f.value for n, f in within[1].items()} != dict.fromkeys(rows.names[:1], -1):
            return None
        height = minimum(height, (down.start + (within[0] + 1).scale(down.step)).expr())
    beginning = Load(x.buffer, tuple(int64(0) for _ in x.buffer.shape))
    place: tuple[Expr, ...] = (beginning, at.expr(), int64(rows.source))
    y = Load(s.buffer, (*(int64(0) for _ in s.buffer.shape[1:]), begin.expr()))
    counts = (int64(rows.count), int64(run.count))
    inside = (down.start.expr(), int64(down.step), height, across.start.expr(), int64(across.size))
    if run.source == 1 and not planes.names:
        return IntrinsicCall("window", (*place, zero, y, *counts, *inside))
    distances = (int64(run.source), int64(planes.source))
    return IntrinsicCall("planes", (*place, *distances, zero, y, int64(planes.count), *counts, *inside))


def flat(
    buffer: Buffer, indices: tuple[Expr, ...], loops: Mapping[str, int]
) -> tuple[Polynomial, dict[str, int]] | None:
    """The number of an element in its buffer: what the loops leave open, and the factor of each loop. None: it is no
    such sum."""
    total, size = Polynomial({}), 1
    for index, d in zip(reversed(indices), reversed(buffer.shape)):
        total = total.plus(linear(index), size)
        extent = int_const(d)
        if extent is None:
            return None
        size *= extent
    parts = total.split_variables(loops.keys())
    if parts is None or any(f.value is None for f in parts[1].values()):
        return None
    return parts[0], {name: int(f.value or 0) for name, f in parts[1].items()}


def axes_of(loops: Mapping[str, int], to: Mapping[str, int], source: Mapping[str, int]) -> list[Axis] | None:
    """The loops as elements of a row, rows, and planes of rows: all follow one another in y."""
    left = dict(loops)
    found: list[Axis] = []
    size = 1
    for _ in range(3):
        names: list[str] = []
        count, step = 1, 0
        while True:
            name = next((n for n in left if to.get(n) == size * count), None)
            if name is None or (names and source.get(name) != step * count):
                break
            step = step if names else source.get(name, 0)
            names.append(name)
            count *= left.pop(name)
        found.append(Axis(tuple(names), count, size, step))
        size *= count
    return None if left or not found[0].names or any(x.source < 1 for x in found if x.names) else found


def sides_of(
    conditions: Sequence[Expr], loops: Mapping[str, int], to: Mapping[str, int], run: Axis, rows: Axis
) -> tuple[Inside, Inside] | None:
    """When a row is inside, and when an element of a row is."""
    lower: dict[str, Inside] = {}
    upper: dict[str, Inside] = {}
    for form in [f for c in conditions for f in forms(c)]:
        parts = None if form is None else form.split_variables(loops.keys())
        if parts is None or len(parts[1]) != 1:
            return None
        rest, ((name, factor),) = parts[0], parts[1].items()
        step = int(factor.value or 0)
        if name in run.names and abs(step) == 1:
            axis, rest, step = "run", rest.scale(to[name]), step
        elif rows.names == (name,) and step:
            axis = "rows"
        else:
            return None
        held = lower if step > 0 else upper
        if axis in held:
            return None
        # a run counts elements: below the next multiple of those of one iteration
        held[axis] = Inside(rest, abs(step), to[name] if axis == "run" else 1)
    sides = [_side(lower.get(axis), upper.get(axis)) for axis in ("rows", "run")]
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


def forms(e: Expr) -> tuple[Polynomial | None, ...]:
    """Sums that are not negative where a comparison holds, and only there; None: it is another formula."""
    if isinstance(e, Lt) and isinstance(e.a, Cast) and e.a.dtype == dt.uint32 and isinstance(e.b, Const):
        inner = linear(e.a.value)
        return inner, -inner + (int(e.b.value) - 1)
    if isinstance(e, (Lt, Le)) and e.a.dtype == dt.int64:
        return (linear(e.b) - linear(e.a) - (1 if isinstance(e, Lt) else 0),)
    return (None,)


def _side(lower: Inside | None, upper: Inside | None) -> Inside | None:
    """Both conditions as one: lower.start + step * i >= 0, upper.start - step * i >= 0."""
    if upper is None:
        return Inside(Polynomial({}), 1, EVERYTHING) if lower is None else replace(lower, size=EVERYTHING)
    if lower is None:
        # loops begin at 0: without its constant the sum cannot be negative
        start = -upper.start + upper.start.constant
        if any(k < 0 or len(m) != 1 or not isinstance(m[0], Var) for m, k in start.terms.items()):
            return None
        lower = Inside(start, upper.step, upper.size)
    size = (lower.start + upper.start).value
    return None if size is None or lower.step != upper.step else replace(lower, size=size + upper.size)


__all__ = ["windows"]
