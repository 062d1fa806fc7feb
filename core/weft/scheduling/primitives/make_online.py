"""make_online: computes a maximum and sums of exponentials relative to it in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.expr.nodes import (
    Add,
    Call,
    Cast,
    Const,
    Expr,
    Lt,
    Max,
    Mul,
    Select,
    Sub,
    Var,
    all_of,
    eq,
    free_vars,
    mul,
    select,
    sub,
    substitute,
    walk,
)
from weft.loop.nodes import (
    Allocate,
    Block,
    BlockIter,
    Buffer,
    For,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    int_const,
    seq,
    substitute_stmt,
)
from weft.scheduling.dependence import disjoint, writers
from weft.scheduling.primitives.compact_buffer import enters
from weft.scheduling.primitives.compute_inline import whole_index
from weft.scheduling.region import accesses, block_accesses, loops_under
from weft.scheduling.rewrite import clean, domain, own_predicate
from weft.scheduling.tree import Path, Tree, blocks_in, conjuncts, nest
from weft.tensor.language import lowest

STEP = "make_online"


def make_online(program: Program, block: str, loops: Sequence[str]) -> tuple[Program, list[str]]:
    """The loop of `block`, a maximum, and the loops after it, over the same steps, of exp(x - maximum) and of sums of
    these become one loop, the first of `loops`. Each step updates the maximum; if it grows, the sums are scaled by
    exp(old - new). Returns the names of the blocks that keep the old maximum, compute the factor, and scale each sum,
    in order.

        for r in n { block M_init(…) { m[bi] = -inf } }
        for t in 8 { for r in n { block M(bi, rt: reduce 8 = t) { m[bi] = max(m[bi], y[rt, bi]) } } }
        for u in 8 { for r in n { for j in 16 { block E(bi, bj = u*16 + j) { e[bi, bj] = exp(x[bi, bj] - m[bi]) } } } }
        for r in n { block S_init(…) { s[bi] = 0.0f32 } }
        for v in 8 { for r in n { for j in 16 { block S(bi, rj: reduce 128 = v*16 + j) { s[bi] = s[bi] + e[bi, rj] } } }
            }
        → make_online("M", ["t", "u", "v"]) → ["M_before", "M_factor", "S_scale"]
        … for t in 8 {
          for r in n { block M_before(…) { m_before[bi] = m[bi] } }
          for r in n { block M(…) { … } }
          for r in n { block M_factor(…) { m_factor[bi] = exp(m_before[bi] - m[bi]) } }
          for r in n { for j in 16 { block E(…) { … } } }
          for r in n { block S_scale(…) { s[bi] = select(m_before[bi] == -inf, 0.0f32, s[bi]*m_factor[bi]) } }
          for r in n { for j in 16 { block S(…) { … } } }
        }

    This is the online normaliser of Milakov and Gimelshein (2018), which FlashAttention (Dao et al., 2022) uses.
    Results change by rounding only. The difference may be cut off: exp(select(d < number, -inf, d)), if what is cut off
    has no exponential that is a normal number. Sums that were made while the maximum was -∞, NaN included, are
    discarded unless it stays -∞. A term of a sum is the exponential, or its product with another factor. Reductions
    must be decomposed at these loops before, and the loops must be in one sequence; statements between them move before
    or after them.
    """
    tree = Tree(program)
    if len(loops) < 2 or len(set(loops)) != len(loops):
        raise tree.error(STEP, "the loop of the maximum is wanted, and at least one other", loops)
    top, buffers, stmts = _siblings(tree, loops)
    fors = [tree.loop(x, STEP) for x in loops]
    first = fors[0]
    _check_loops(tree, fors, block)
    m = _maximum(tree, tree.block(block, STEP), loops[0])
    exponentials: dict[str, Exponential] = {}
    sums: list[Sum] = []
    for name in (x.name for f in fors[1:] for x in blocks_in(f.body)):
        b = tree.block(name, STEP)
        found = _exponential(tree, b, m.buffer)
        if found is not None:
            exponentials[found.store.buffer.name] = found
        else:
            sums.append(_sum(tree, b, exponentials))
    _nothing_else(tree, fors, m, exponentials, sums)

    before, factor = (
        Buffer(tree.fresh(f"{m.buffer.name}_{what}"), m.buffer.shape, m.buffer.dtype, m.buffer.scope)
        for what in ("before", "factor")
    )
    made: list[str] = []

    def beside(b: Block, loop: str, what: str, store: Store) -> Stmt:
        new, name = _over_spatial(tree, b, loop, what, store)
        made.append(name)
        return new

    body: list[Stmt] = [
        beside(tree.block(block, STEP), loops[0], "before", Store(before, m.indices, m)),
        first.body,
        beside(
            tree.block(block, STEP), loops[0], "factor", Store(factor, m.indices, _exp(sub(Load(before, m.indices), m)))
        ),
    ]
    for f in fors[1:]:
        for b, _, row in [x for x in sums if x[0] in blocks_in(f.body)]:
            (acc,) = [s for s in [b.body] if isinstance(s, Store)]
            held = Load(acc.buffer, acc.indices)
            new = select(
                eq(Load(before, row), lowest(before.dtype)), Const(0, acc.buffer.dtype), mul(held, Load(factor, row))
            )
            body.append(beside(b, f.var.name, "scale", Store(acc.buffer, acc.indices, new)))
        body.append(substitute_stmt(f.body, {f.var.name: first.var}) if f is not first else f.body)
    merged = replace(first, body=seq(*body))
    early, late = _around(tree, stmts, fors)
    at = [k for k, s in enumerate(stmts) if any(s is f for f in fors)]
    whole: Stmt = seq(*stmts[: at[0]], *early, Allocate(before, Allocate(factor, merged)), *late, *stmts[at[-1] + 1 :])
    for x in reversed(buffers):
        whole = Allocate(x, whole)
    result = Tree(tree.replace(top, whole))
    _check(result, loops[0], exponentials, sums, made[2:])
    return result.program, made


def _check_loops(tree: Tree, loops: Sequence[For], block: str) -> None:
    """Checks that loops have the same steps, and that the first has nothing but `block` in it."""
    first = loops[0].var.name
    for f in loops:
        if f.kind != "serial" or f.extent != loops[0].extent:
            raise tree.error(
                STEP,
                f"loop '{f.var.name}' is {f.kind}, of {f.extent} steps; '{first}' has {loops[0].extent}",
                (f.var.name, first),
            )
    if [b.name for b in blocks_in(loops[0].body)] != [block]:
        raise tree.error(
            STEP, f"loop '{first}' does not hold '{block}' alone", {first: "the loop of the maximum", block: ""}
        )


@dataclass(frozen=True)
class Exponential:
    """A block that stores exp(x - maximum): its store, and the indices at which it reads the maximum, as iterators that
    are indices of the store."""

    block: Block
    store: Store
    row: tuple[Expr, ...]
    dims: Mapping[int, str]


Sum: TypeAlias = tuple[Block, Exponential, tuple[Expr, ...]]
"""A block that sums up an exponential, or that times something, and where the maximum of one of its results is."""


def _siblings(tree: Tree, loops: Sequence[str]) -> tuple[Path, list[Buffer], list[Stmt]]:
    """The path of what holds the loops side by side, the buffers allocated in it around some of them, and its
    statements without these allocations."""
    paths = [tree.loop_path(x, STEP) for x in loops]
    shared = 0
    while all(len(p) > shared + 1 and p[shared] is paths[0][shared] for p in paths):
        shared += 1
    strangers = [s for p in paths for s in p[shared:-1] if not isinstance(s, (Seq, Allocate))]
    if not shared or not isinstance(paths[0][shared - 1], Seq) or strangers:
        raise tree.error(STEP, f"the loops {list(loops)} do not stand side by side", loops)
    top = paths[0][:shared]
    buffers: list[Buffer] = []

    def flat(s: Stmt) -> list[Stmt]:
        if isinstance(s, Seq):
            return [x for c in s.stmts for x in flat(c)]
        if isinstance(s, Allocate) and any(x is s for p in paths for x in p):
            buffers.append(s.buffer)
            return flat(s.body)
        return [s]

    stmts = flat(top[-1])
    order = [next(k for k, s in enumerate(stmts) if s is p[-1]) for p in paths]
    if order != sorted(order):
        raise tree.error(STEP, f"the loops {list(loops)} do not follow one another in this order", loops)
    return top, buffers, stmts


def _maximum(tree: Tree, b: Block, loop: str) -> Load:
    """What the block accumulates into, a maximum over `loop`."""
    if b.init is not None:
        raise tree.error(
            STEP, f"'{b.name}' starts by itself", (b.name,), f"decompose_reduction('{b.name}', '{loop}') first"
        )
    store = b.body
    if isinstance(store, Store) and isinstance(store.value, Max):
        held = Load(store.buffer, store.indices)
        other = store.value.b if store.value.a == held else store.value.a
        if (
            held in (store.value.a, store.value.b)
            and not _reads(other, store.buffer)
            and _reduces(tree, b, loop)
            and _starts(tree, b, lowest(held.dtype))
        ):
            return held
    raise tree.error(STEP, f"'{b.name}' is no maximum over '{loop}' that starts at the least number", (b.name, loop))


def _exponential(tree: Tree, b: Block, m: Buffer) -> Exponential | None:
    """The block as an exponential; None if it does not read the maximum."""
    reads = {a.indices for a in block_accesses(b, m.name) if not a.write}
    if not reads:
        return None
    store = b.body
    if (
        isinstance(store, Store)
        and b.init is None
        and len(reads) == 1
        and isinstance(store.value, Call)
        and isinstance(difference := _uncut(store.value.args[0]), Sub)
    ):
        (row,) = reads
        dims = whole_index(store, b)
        if (
            dims is not None
            and store.value.name == "exp"
            and difference.b == Load(m, row)
            and not own_predicate(b)
            and not _reads(difference.a, m)
        ):
            return Exponential(b, store, row, dims)
    raise tree.error(
        STEP, f"'{b.name}' uses the maximum otherwise than as exp(x - maximum), element by element", (b.name,)
    )


def _uncut(e: Expr) -> Expr:
    """Of select(x < number, -inf, x) the x, if no x that is cut off has an exponential that is a normal number."""
    if not isinstance(e, Select) or not isinstance(e.cond, Lt) or e.cond.a != e.b or not isinstance(e.cond.b, Const):
        return e
    # A term's sum holds 1 at least: what is off by one bit of the exponent is nothing to it.
    least = math.log(float(np.finfo(e.dtype.numpy).tiny)) + 1
    return e.b if e.a == lowest(e.dtype) and float(e.cond.b.value) < least else e


def _sum(tree: Tree, b: Block, exponentials: Mapping[str, Exponential]) -> Sum:
    """The block as a sum."""
    if b.init is not None:
        raise tree.error(
            STEP, f"'{b.name}' starts by itself", (b.name,), f"decompose_reduction('{b.name}', its loop) first"
        )
    store = b.body
    if isinstance(store, Store) and isinstance(store.value, Add) and store.predicate is None:
        held = Load(store.buffer, store.indices)
        term = store.value.b if store.value.a == held else store.value.a
        read = (
            _factor(term, exponentials)
            if held in (store.value.a, store.value.b) and not _reads(term, store.buffer)
            else None
        )
        if read is not None and _starts(tree, b, Const(0, held.dtype)):
            e = exponentials[read.buffer.name]
            row = tuple(substitute(i, {v: read.indices[k] for k, v in e.dims.items()}) for i in e.row)
            moving = {i.var.name for i in b.iters if i.kind == "reduce"}
            if not any(free_vars(i).keys() & moving for i in row):
                return b, e, row
    raise tree.error(
        STEP,
        f"'{b.name}' is no sum, from zero, of exponentials of one maximum for each result, or of them times something",
        (b.name,),
    )


def _factor(term: Expr, exponentials: Mapping[str, Exponential]) -> Load | None:
    """The exponential that a term is linear in."""

    def free(e: Expr) -> bool:
        return not any(_reads(e, x.store.buffer) for x in exponentials.values())

    if isinstance(term, Load):
        return term if term.buffer.name in exponentials else None
    if isinstance(term, Cast) and term.dtype.is_float:
        return _factor(term.value, exponentials)
    if isinstance(term, Select) and isinstance(term.b, Const) and term.b.value == 0:
        return _factor(term.a, exponentials) if free(term.cond) else None
    if isinstance(term, Mul) and (free(term.a) or free(term.b)):
        return _factor(term.b if free(term.a) else term.a, exponentials)
    return None


def _reads(e: Expr, buffer: Buffer) -> bool:
    return any(isinstance(x, Load) and x.buffer.name == buffer.name for x in walk(e))


def _reduces(tree: Tree, b: Block, loop: str) -> bool:
    return int_const(tree.loop(loop, STEP).extent) == 1 or any(
        i.kind == "reduce" and loop in free_vars(x) for i, x in zip(b.iters, b.bindings)
    )


def _starts(tree: Tree, b: Block, value: Const) -> bool:
    """Whether what a block accumulates into is written before by one other block, which stores `value`."""
    assert isinstance(b.body, Store)
    others = [tree.block(n, STEP) for n in writers(tree, [b.body.buffer.name], but=b.name)]
    order = list(tree.block_paths)
    return (
        len(others) == 1
        and isinstance(others[0].body, Store)
        and others[0].body.value == value
        and order.index(others[0].name) < order.index(b.name)
    )


def _exp(e: Expr) -> Expr:
    return Call("exp", (e,), e.dtype)


def _touched(stmts: Sequence[Stmt]) -> tuple[set[str], set[str]]:
    """Buffers that statements read, and those that they write."""
    every = [a for s in stmts for a in accesses(s)]
    return {a.buffer.name for a in every if not a.write}, {a.buffer.name for a in every if a.write}


def _nothing_else(
    tree: Tree, fors: Sequence[For], m: Load, exponentials: Mapping[str, Exponential], sums: Sequence[Sum]
) -> None:
    """Checks that nothing flows from one loop to another but the maximum, its exponentials, and each sum to itself."""
    for loop, block in [(f.var.name, b) for f in fors for b in blocks_in(f.body)]:
        reads, writes = _touched([block])
        for name in sorted(reads):
            if name != m.buffer.name and name not in exponentials and name not in writes and name in _touched(fors)[1]:
                raise tree.error(
                    STEP, f"'{block.name}' reads '{name}', which another of the loops writes", (block.name, loop)
                )
    for b, _, _ in sums:
        assert isinstance(b.body, Store)
        users = [
            x.name
            for f in fors
            for x in blocks_in(f.body)
            if b.body.buffer.name in set.union(*_touched([x])) and x.name != b.name
        ]
        if users:
            raise tree.error(
                STEP, f"'{users[0]}' uses what '{b.name}' sums up before it is complete", (b.name, users[0])
            )
    for e in exponentials.values():
        inside = {x.name for f in fors for x in blocks_in(f.body)}
        others = [
            x.name
            for x in blocks_in(tree.program.body)
            if x.name not in inside and e.store.buffer.name in set.union(*_touched([x]))
        ]
        if others or tree.parameter(e.store.buffer.name) is not None:
            raise tree.error(
                STEP,
                f"'{e.store.buffer.name}' is used outside the loops, where it would be of an earlier maximum",
                (e.block.name, *others),
            )


def _over_spatial(tree: Tree, b: Block, loop: str, what: str, store: Store) -> tuple[Stmt, str]:
    """`store`, over the iterators of `b`, under copies of the loops inside `loop` that tell its results apart; its
    block's name."""
    path = tree.block_path(b.name, STEP)
    loops = [s for s in path[len(tree.loop_path(loop, STEP)) :] if isinstance(s, For)]
    spatial = [(i, x) for i, x in zip(b.iters, b.bindings) if i.kind != "reduce"]
    used = {v for _, x in spatial for v in free_vars(x)}
    gone = {loop, *(s.var.name for s in loops if s.var.name not in used)}
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    held: list[Expr] = []
    for c in conjuncts(b.predicate):
        asks = free_vars(substitute(c, values)).keys()
        if not asks & gone:
            held.append(c)
        elif asks & {s.var.name for s in loops} & used:
            raise tree.error(STEP, f"the condition {c} of '{b.name}' mixes spatial and reduction loops", (b.name,))
    if used & {loop} or any(v in used for i, x in zip(b.iters, b.bindings) if i.kind == "reduce" for v in free_vars(x)):
        raise tree.error(STEP, f"a loop of '{b.name}' drives spatial and reduce iterators at once", (b.name,))
    kept = [s for s in loops if s.var.name in used]
    renamed = {s.var.name: Var(tree.fresh(f"{s.var.name}_{what}"), dt.int64) for s in kept}
    iters = {i.var.name: Var(tree.fresh(i.var.name), dt.int64) for i, _ in spatial}
    around = {**domain(path), **{v.name: s.extent for s, v in zip(kept, renamed.values())}}
    name = tree.fresh(f"{b.name}_{what}")
    new = Block(
        name,
        tuple(BlockIter(iters[i.var.name], i.extent, i.kind) for i, _ in spatial),
        tuple(clean(substitute(x, renamed), around) for _, x in spatial),
        substitute_stmt(store, iters),
        predicate=all_of(substitute(c, {**iters, **renamed}) for c in held),
        annotations=b.annotations,
    )
    return nest([replace(s, var=renamed[s.var.name], annotations=()) for s in kept], new), name


def _around(tree: Tree, stmts: Sequence[Stmt], fors: Sequence[For]) -> tuple[list[Stmt], list[Stmt]]:
    """What stands between the loops, as what may come before all of them, and what comes behind."""
    early: list[Stmt] = []
    late: list[Stmt] = []
    at = [next(k for k, s in enumerate(stmts) if s is f) for f in fors]
    for (start, end), k in zip(pairwise(at), range(1, len(at))):
        for s in stmts[start + 1 : end]:
            if not _conflict([s], [*fors[:k], *late]):
                early.append(s)
            elif not _conflict([s], fors[k:]):
                late.append(s)
            else:
                name, *_ = [b.name for b in blocks_in(s)]
                raise tree.error(
                    STEP, f"'{name}' stands between the loops and depends on some before it as on some behind", (name,)
                )
    return early, late


def _conflict(some: Sequence[Stmt], others: Sequence[Stmt]) -> bool:
    """Whether the order of two lots of statements matters."""
    (r, w), (reads, writes) = _touched(some), _touched(others)
    return bool(w & (reads | writes) or r & writes)


def _check(
    tree: Tree, loop: str, exponentials: Mapping[str, Exponential], sums: Sequence[Sum], scales: Sequence[str]
) -> None:
    """Each step has its exponentials for itself, and scales each result once."""
    path = tree.loop_path(loop, STEP)
    merged = path[-1]
    assert isinstance(merged, For)
    for e in exponentials.values():
        if not enters(merged, e.store.buffer, domain(path[:-1])):
            raise tree.error(
                STEP,
                f"a step of '{loop}' may read exponentials of another step in '{e.store.buffer.name}'",
                (loop, e.block.name),
            )
    for name, (b, _, _) in zip(scales, sums):
        assert isinstance(b.body, Store)
        inside = [s for s in tree.block_path(name, STEP)[len(path) :] if isinstance(s, For)]
        for f in inside:
            if not disjoint(accesses(f.body, b.body.buffer.name), f, loops_under(f.body)):
                raise tree.error(
                    STEP, f"'{b.name}' may have its results scaled twice by loop '{f.var.name}'", (b.name,)
                )
