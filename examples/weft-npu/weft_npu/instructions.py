"""From scheduled blocks to instructions: every block is cut until one intrinsic has its meaning, and is tensorized.

Loops are parted where a condition begins or ceases to hold, so that no part has one (`decided`); a formula is staged
until each block is one operation (`staged`); the innermost loops are cut to lengths that the instruction takes
(`tiled`), and an intrinsic takes their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft import dtypes as dt
from weft.errors import ScheduleError
from weft.expr.affine import affine
from weft.expr.evaluate import evaluate
from weft.expr.nodes import (
    Add,
    And,
    Call,
    Cast,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    free_vars,
    substitute,
    walk,
)
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import Block, If, Load, Stmt, Store, int_const
from weft.scheduling import Schedule
from weft_npu.intrinsics import FUNCTIONS, V_SCOPE
from weft_npu.isa import MAX_RANK, ROWS, VECTOR

MOST_BLOCKS = 96
"""Blocks that a kernel's conditions cut it into at most: one of more is not meant for this machine."""
MOST_CASES = 1 << 20
"""Iterations that a condition is looked at in."""
SLOTS = 8
"""Vectors of VECTOR elements that the memory of vectors holds."""
_BINARY: dict[type[Expr], str] = {
    Add: "add", Sub: "sub", Mul: "mul", Div: "div", Max: "max", Min: "min", Lt: "lt", Le: "le", Eq: "eq", And: "and",
    Or: "or",
}  # fmt: skip


def instructions(s: Schedule) -> None:
    """Everything that is no instruction yet becomes one.

    Raises:
        ScheduleError: the machine has none for it.
    """
    decided(s)
    work = [n for n in s.blocks() if s.block(n).writes is None]
    while work:
        name = work.pop(0)
        before = set(s.blocks())
        if not instruction(s, name):
            work.insert(0, name)
        work += [n for n in s.blocks() if n not in before and n not in work and s.block(n).writes is None]


# -- conditions
# -----------------------------------------------------------------------------------------------------------


def decided(s: Schedule) -> None:
    """Parts loops until no condition and no index depends on how far a loop is."""
    settled: set[str] = set()
    while True:
        for name in s.blocks():
            if name in settled:
                continue
            cut = _cut(s, name)
            if cut is not None:
                _outermost(s, name, cut[0])
                s.partition(*cut)
                break
            settled.add(name)
        else:
            return
        if len(s.blocks()) > MOST_BLOCKS:
            raise ScheduleError("it is too irregular", why=f"its conditions cut it into more than {MOST_BLOCKS} pieces")


def _outermost(s: Schedule, name: str, loop: str) -> None:
    """A loop that is to be cut goes around those that hold its block alone: each part has all of them to itself
    then."""
    alone = _alone(s, name)
    if loop in alone[1:]:
        s.reorder(loop, *(v for v in alone if v != loop))


def _inwards(s: Schedule, name: str) -> None:
    """The loops that hold a block alone and move what it stores to, in the order of memory again."""
    b = s.block(name)
    assert isinstance(b.body, Store)
    inner = _inner(s, name, 99)
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    index: Expr = const(0)
    for i, n in zip(b.body.indices, b.body.buffer.shape):
        index = index * n + substitute(i, values)
    found = affine(simplify(index), inner)
    steps = {v: abs(found.coefficient(v) or 0) if found is not None else 0 for v in inner}
    order = sorted(inner, key=lambda v: -steps[v])
    if order != inner:
        s.reorder(*order)


def _cut(s: Schedule, name: str) -> tuple[str, list[int]] | None:
    """The outermost loop of a block at which to go on, and where; None if its conditions are decided everywhere."""
    b = s.block(name)
    if b.writes is not None:
        return None
    open_ = list(_questions(b))
    if not open_:
        return None
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    sizes = {v: int_const(s.loop(v).extent) or 1 for v in s.loops(name)}
    ranges = {v: Range(0, n - 1) for v, n in sizes.items()}
    cuts: dict[str, list[int]] = {}
    for e in open_:
        for q in _left(simplify(substitute(e, values), ranges)):
            found = _points(q, {v: sizes[v] for v in sizes if v in free_vars(q)})
            if found is not None:
                cuts.setdefault(*found)
    return next(((v, cuts[v]) for v in sizes if v in cuts), None)


def _questions(b: Block) -> Iterator[Expr]:
    """The formulas of a block that should be the same in all its iterations: conditions, and what indices divide."""
    yield b.predicate
    stmt: Stmt = b.body
    while isinstance(stmt, If):
        yield stmt.cond
        stmt = stmt.then
    if not isinstance(stmt, Store):
        return
    exprs = [*stmt.indices, stmt.value]
    for e in (x for i in exprs for x in walk(i)):
        if isinstance(e, Select):
            yield e.cond
        elif isinstance(e, Load):
            yield from (x for i in e.indices for x in walk(i) if isinstance(x, (FloorDiv, FloorMod)))
    yield from (x for i in stmt.indices for x in walk(i) if isinstance(x, (FloorDiv, FloorMod)))


def _left(e: Expr) -> Iterator[Expr]:
    """What of a simplified question is open, by loops alone."""
    if isinstance(e, (And, Or)):
        yield from _left(e.a)
        yield from _left(e.b)
    elif isinstance(e, Not):
        yield from _left(e.children()[0])
    elif e.dtype.is_bool:
        if not any(isinstance(x, Load) for x in walk(e)) and free_vars(e):
            yield e
    else:  # where a quotient stays the same, so does how far the remainder is off
        yield from (
            FloorDiv(x.a, x.b)
            for x in walk(e)
            if isinstance(x, (FloorDiv, FloorMod)) and not any(isinstance(y, Load) for y in walk(x))
        )


def _points(q: Expr, sizes: Mapping[str, int]) -> tuple[str, list[int]] | None:
    """The loop that decides a question in the fewest parts, and where it is cut; of those the outermost."""
    if not sizes:
        return None
    if math.prod(sizes.values()) > MOST_CASES:
        raise ScheduleError("it is too irregular", why=f"{q} depends on {math.prod(sizes.values())} iterations")
    order = list(sizes)
    grid = {v: np.arange(n).reshape([-1 if w == v else 1 for w in order]) for v, n in sizes.items()}
    seen = np.broadcast_to(evaluate(q, grid), list(sizes.values()))
    best: tuple[int, str, list[int]] | None = None
    for d, v in enumerate(order):
        rest = tuple(k for k in range(len(order)) if k != d)
        low, high = (seen.min(axis=rest), seen.max(axis=rest)) if rest else (seen, seen)
        changes = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        points = [int(k) + 1 for k in np.flatnonzero(changes)]
        sure = int((low == high).sum())
        if points and sure and (best is None or len(points) < best[0]):
            best = (len(points), v, points)
    if best is None:  # no loop alone decides a thing: one is written out
        v = min(order, key=lambda v: sizes[v])
        if sizes[v] == 1:
            return None
        best = (sizes[v] - 1, v, list(range(1, sizes[v])))
    return best[1], best[2]


# -- formulas
# -------------------------------------------------------------------------------------------------------------


def operation(value: Expr, result: Load) -> tuple[str, tuple[Expr, ...]]:
    """The intrinsic that computes a formula from its parts, and those; `result`: what is stored to.

    Raises:
        ScheduleError: there is none.
    """
    e = value
    if isinstance(e, (Add, Mul, Max, Min)) and result in (e.a, e.b):
        other = e.b if e.a == result else e.a
        if isinstance(e, Add) and isinstance(other, Mul):
            return "vec.mac", (other.a, other.b)
        return {Add: "vec.sum", Mul: "vec.product", Max: "vec.greatest", Min: "vec.least"}[type(e)], (other,)
    if isinstance(e, (Load, Const)):
        return "vec.copy", ()
    if isinstance(e, Select):
        if isinstance(e.cond, Lt) and (e.cond.a, e.cond.b) == (e.b, e.a):
            return "vec.atleast", (e.b, e.a)
        if isinstance(e.cond, Lt) and (e.cond.a, e.cond.b) == (e.a, e.b):
            return "vec.atmost", (e.a, e.b)
        return "vec.select", (e.cond, e.a, e.b)
    if isinstance(e, Add) and e.dtype.is_float:
        for product, other in ((e.a, e.b), (e.b, e.a)):
            if isinstance(product, Mul):
                return "vec.fma", (product.a, product.b, other)
    if type(e) in _BINARY:
        return f"vec.{_BINARY[type(e)]}", (e.a, e.b)  # type: ignore[attr-defined]
    if isinstance(e, Not):
        return "vec.not", e.children()
    if isinstance(e, Call) and e.name in FUNCTIONS:
        return f"vec.{e.name}", e.args
    if isinstance(e, Cast) and e.dtype == dt.float32 and e.value.dtype.is_bool:
        return "vec.number", (e.value,)
    what = f"{e.name if isinstance(e, Call) else type(e).__name__} of {e.dtype}"
    if isinstance(e, Var):
        what = f"the variable '{e.name}' as a number"
    raise ScheduleError("the vector unit lacks an operation", why=f"it has no {what}: {e}")


def parts(value: Expr, result: Load) -> list[Expr]:
    """The formulas in a formula that are operations of their own, those first that others need."""
    found: list[Expr] = []

    def go(e: Expr) -> None:
        for part in operation(e, result)[1]:
            if isinstance(part, (Load, Const)) or part in found:
                continue
            if part.dtype not in (dt.float32, dt.bool_):
                raise ScheduleError("the vector unit computes in float32", why=f"it is {part.dtype}: {part}")
            go(part)
            found.append(part)

    go(value)
    return found


# -- one block
# ------------------------------------------------------------------------------------------------------------


def instruction(s: Schedule, name: str) -> bool:
    """A block without open conditions becomes instructions; False: it fell into blocks, each to be seen to by
    itself."""
    b = s.block(name)
    if (
        not isinstance(b.body, Store)
        or any(isinstance(e, Select) for e in walk(b.body.value))
        or b.predicate != Const(True, dt.bool_)
    ):
        s.specialize(name)
        b = s.block(name)
    store = b.body
    if not isinstance(store, Store) or b.predicate != Const(True, dt.bool_):
        raise ScheduleError(f"block '{name}' cannot become instructions", why="a condition in it is decided by data")
    place = Load(store.buffer, store.indices)
    scopes = {store.buffer.scope, *(e.buffer.scope for e in walk(store.value) if isinstance(e, Load))}
    if isinstance(store.value, Load) and "global" in scopes and len(scopes) > 1:
        inner = _inner(s, name, MAX_RANK)
        s.tensorize(inner[0] if inner else name, "dma.store" if store.buffer.scope == "global" else "dma.load")
        return True
    needed = parts(store.value, place)
    most = VECTOR if len(needed) <= SLOTS else 1 << (SLOTS * VECTOR // len(needed)).bit_length() - 1
    if most < 16:
        raise ScheduleError(
            f"block '{name}' cannot become instructions", why=f"its formula has {len(needed)} results in between"
        )
    _inwards(s, name)
    tile = tiled(s, name, most)
    if tile is None:
        return False
    if needed:
        s.specialize(name)
    while True:
        store = s.block(name).body
        assert isinstance(store, Store)
        place = Load(store.buffer, store.indices)
        needed = parts(store.value, place)
        if not needed:
            break
        part = s.stage(name, tile, str(needed[0]), V_SCOPE)
        made = s.block(part).body
        assert isinstance(made, Store)
        s.tensorize(part, operation(made.value, Load(made.buffer, made.indices))[0])
    s.tensorize(tile, operation(store.value, place)[0])
    return True


def _inner(s: Schedule, name: str, most: int) -> list[str]:
    """The innermost loops that hold a block alone and drive what it stores to: `most` of them with more than one
    step."""
    b = s.block(name)
    store = b.body
    assert isinstance(store, Store)
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    moved = {v for i in store.indices for v in free_vars(substitute(i, values))}
    found: list[str] = []
    count = 0
    for v in reversed(_alone(s, name)):
        long = int_const(s.loop(v).extent) != 1
        if (long and count == most) or (long and v not in moved):
            break
        found.insert(0, v)
        count += long
    return found


def _alone(s: Schedule, name: str) -> Sequence[str]:
    """The loops that hold nothing but a block, outermost first."""
    found: list[str] = []
    for v in reversed(s.loops(name)):
        body = s.loop(v).body
        if not (body is s.block(name) or (found and body is s.loop(found[0]))):
            break
        found.insert(0, v)
    return found


def tiled(s: Schedule, name: str, most: int) -> str | None:
    """Cuts the innermost loops of a block to what a vector instruction takes, and gives the outermost of those, or the
    block, if it has none.

    None: it fell into blocks, each to be seen to by itself.
    """
    tile, count = "", 1
    for rank in range(2):
        inner = [v for v in _inner(s, name, rank + 1) if int_const(s.loop(v).extent) != 1]
        if len(inner) <= rank:
            break
        v = inner[0]
        n, room = int_const(s.loop(v).extent) or 1, min(most // count, ROWS if rank else VECTOR)
        if n > room:
            part = max(d for d in range(1, room + 1) if n % d == 0)
            if part * 2 <= room:
                whole = n // room * room
                first, _ = s.partition(v, [whole])
                if whole > room:
                    s.split(first, [None, room])
                return None
            if part == 1:
                break
            _, v = s.split(v, [None, part])
            n = part
        tile = v
        count *= n
    if tile or not _alone(s, name):
        return tile or name
    return s.split(_alone(s, name)[-1], [None, 1])[
        1
    ]  # one element at a time: the loops around are not the instruction's
