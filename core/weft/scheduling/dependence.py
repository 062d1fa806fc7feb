"""Dependences: between blocks by the buffers that they share, between iterations of a loop by the regions that they
access."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from weft.expr.linear import Polynomial, number
from weft.expr.nodes import Expr, FloorDiv, FloorMod, Var, free_vars, walk
from weft.expr.ranges import range_of
from weft.loop.nodes import Allocate, Block, Buffer, For, Stmt, int_const, walk_stmts
from weft.scheduling.region import (
    Access,
    Interval,
    accesses,
    at_least_zero,
    block_accesses,
    interval,
    loops_under,
    poly,
    union_box,
)
from weft.scheduling.tree import Tree, blocks_in

_MOST_BLOCKS = 4096
_touched: dict[int, tuple[ref[Block], tuple[str, ...], tuple[str, ...]]] = {}


def touched(block: Block) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the buffers that a block loads and of those that it stores, in order of first use. Cached, since every
    primitive needs it for all blocks and changes a few.
    """
    found = _touched.get(id(block))
    if found is None or found[0]() is not block:
        uses = block_accesses(block)
        loaded, stored = (
            tuple(dict.fromkeys(a.buffer.name for a in uses if a.write == write)) for write in (False, True)
        )
        if len(_touched) >= _MOST_BLOCKS:
            _touched.clear()
        found = _touched[id(block)] = (ref(block), loaded, stored)
    return found[1], found[2]


def reads(block: Block) -> list[str]:
    """Buffers that the block reads, in order of first use; not those it only accumulates into."""
    loaded, stored = touched(block)
    return [name for name in loaded if name not in stored]


def writes(block: Block) -> list[str]:
    return list(touched(block)[1])


def written_buffers(block: Block) -> list[Buffer]:
    return list({a.buffer.name: a.buffer for a in block_accesses(block) if a.write}.values())


def all_blocks(tree: Tree) -> list[Block]:
    return tree.blocks


def writers(tree: Tree, buffers: Iterable[str], but: str | None = None) -> list[str]:
    """Names of the blocks that write any of the buffers, in program order."""
    wanted = set(buffers)
    return [b.name for b in all_blocks(tree) if b.name != but and not wanted.isdisjoint(touched(b)[1])]


def readers(tree: Tree, buffers: Iterable[str], but: str | None = None) -> list[str]:
    wanted = set(buffers)
    return [b.name for b in all_blocks(tree) if b.name != but and not wanted.isdisjoint(touched(b)[0])]


def producers(tree: Tree, block: str, step: str = "producers") -> list[str]:
    """Blocks that write what `block` reads or accumulates into, in program order."""
    b = tree.block(block, step)
    loaded, stored = touched(b)
    return writers(tree, {*loaded, *stored} - _first_written(b), but=block)


def _first_written(block: Block) -> set[str]:
    """Buffers that the block starts itself: nobody's value comes in."""
    loaded, stored = touched(block)
    return {b for b in stored if block.init is not None or b not in loaded}


def consumers(tree: Tree, block: str, step: str = "consumers") -> list[str]:
    """Blocks that read what `block` writes, in program order."""
    return readers(tree, writes(tree.block(block, step)), but=block)


def free_buffers(stmt: Stmt) -> dict[str, list[Access]]:
    """Accesses under `stmt` by buffer, of buffers that are allocated outside it."""
    private = {s.buffer.name for s in walk_stmts(stmt) if isinstance(s, Allocate)}
    found: dict[str, list[Access]] = {}
    for a in accesses(stmt):
        if a.buffer.name not in private:
            found.setdefault(a.buffer.name, []).append(a)
    return found


# -- iterations of one loop -------------------------------------------------------------------------------------------


def carried(tree: Tree, loop: str, step: str, ignore_scopes: Iterable[str] = ()) -> tuple[str, str] | None:
    """Why iterations of `loop` depend on one another, with the name to mark; None if they certainly do not."""
    path = tree.loop_path(loop, step)
    f = path[-1]
    assert isinstance(f, For)
    if int_const(f.extent) == 1:
        return None
    for b in blocks_in(f.body):
        for it, binding in zip(b.iters, b.bindings):
            if it.kind != "spatial" and loop in free_vars(binding):
                return f"it carries the {it.kind} iterator '{it.var.name}' of block '{b.name}'", b.name
    inner = loops_under(f.body)
    for name, uses in free_buffers(f.body).items():
        if uses[0].buffer.scope in tuple(ignore_scopes) or not any(u.write for u in uses):
            continue
        if not disjoint(uses, f, inner):
            block = next((u.block for u in uses if u.write and u.block is not None), None)
            return (
                f"two iterations may touch the same element of buffer '{name}'",
                block.name if block is not None else loop,
            )
    return None


def disjoint(uses: list[Access], loop: For, inner: dict[str, Expr], predicates: bool = True) -> bool:
    """Whether different iterations of `loop` certainly touch different elements by these accesses.

    Args:
        predicates: whether boxes end where the predicates of blocks end them. Either may be the one that shows it.
    """
    box = union_box([u.held_box(inner) if predicates else u.box(inner) for u in uses])
    digits = _digits(box, loop)
    if not digits:
        return False
    first, *others = [u.limits(inner) for u in uses]
    apart: set[Expr] = set()
    for k, ends in enumerate(box):
        if ends is not None:
            apart |= _told_apart(
                ends, digits, loop, [most for most in first[k] if all(most in other[k] for other in others)]
            )
    return loop.var in apart or any(_alone(d, loop, inner) for d in apart) or _complete(apart, loop)


def _told_apart(ends: Interval, digits: list[Expr], loop: For, limits: list[Polynomial]) -> set[Expr]:
    """The digits that where a box lies in one dimension gives back: each moves it further than the box and all lesser
    digits together reach.

    `limits`: what no index exceeds, formulas of the greater digits: boxes may end there however far the lesser digits
    would move them.
    """
    steps: list[tuple[int, Expr]] = []
    rising = True
    for digit in digits:
        found = {m: c for p in ends for m, c in p.terms.items() if digit in m}
        if not found:
            continue
        (monomial, factor), *others = found.items()
        if others or monomial != (digit,) or any(p.terms.get((digit,)) != factor for p in ends):
            return set()
        steps.append((abs(factor), digit))
        rising = rising and factor > 0
    reach: Polynomial | None = ends[1] - ends[0]
    lowest = ends[0]  # with the lesser digits at zero
    for factor, digit in sorted(steps, key=lambda step: step[0]):
        reaches = [*([] if reach is None else [reach]), *([most - lowest for most in limits] if rising else [])]
        if not any(at_least_zero(number(factor - 1) - r) for r in reaches):
            return set()
        values = interval(digit, {loop.var.name: loop.extent})
        reach = None if values is None or reach is None else reach + (values[1] - values[0]).scale(factor)
        lowest = lowest.without((digit,))
    return {digit for _, digit in steps}


def _digits(box: list[tuple[Polynomial, Polynomial] | None], loop: For) -> list[Expr]:
    found: dict[Expr, None] = {}
    for ends in box:
        if ends is None:
            continue
        for p in ends:
            for m in p.terms:
                for a in m:
                    if any(isinstance(n, Var) and n.name == loop.var.name for n in walk(a)):
                        found[a] = None
    return list(found)


def _alone(digit: Expr, loop: For, inner: dict[str, Expr]) -> bool:
    """Whether a digit alone gives back the loop variable: (e + k·v) % c, where all values of k·v are fewer than c and
    nothing else moves in the loop."""
    if not isinstance(digit, FloorMod) or free_vars(digit).keys() & inner.keys():
        return False
    modulus, extent, form = int_const(digit.b), int_const(loop.extent), poly(digit.a)
    moved = {m: k for m, k in form.terms.items() if any(loop.var.name in free_vars(a) for a in m)}
    factor = moved.get((loop.var,))
    return (
        modulus is not None
        and extent is not None
        and len(moved) == 1
        and factor is not None
        and 0 < abs(factor) * (extent - 1) < modulus
    )


def _complete(digits: set[Expr], loop: For) -> bool:
    """Whether the digits give back the loop variable: v % a, v//a % b, …, v//(a·b·…)."""
    parts: list[tuple[Polynomial, Polynomial | None]] = []  # (divisor, modulus)
    for d in digits:
        divisor, modulus = number(1), None
        e = d
        if isinstance(e, FloorMod):
            modulus, e = poly(e.b), e.a
            while isinstance(e, FloorDiv):  # v//a//b is v//(a·b)
                divisor, e = divisor * poly(e.b), e.a
        elif isinstance(e, FloorDiv) and isinstance(e.a, FloorDiv):
            while isinstance(e, FloorDiv):
                divisor, e = divisor * poly(e.b), e.a
        elif isinstance(e, FloorDiv):
            divisor, e = poly(e.b), e.a
            if isinstance(e, FloorMod):  # v % (a·b) // a is v//a % b
                whole, e = e.b, e.a
                quotient = poly(whole // divisor.expr()) if divisor.value != 0 else None
                if quotient is None or quotient * divisor != poly(whole):
                    continue
                modulus = quotient
        if e != loop.var:
            continue
        parts.append((divisor, modulus))
    extent = poly(loop.extent)
    reach = next((d for d, _ in parts if _one_or_no_iterations(d, extent)), number(1))
    for _ in range(len(parts) + 1):
        if at_least_zero(reach - extent):
            return True
        step = [m for d, m in parts if d == reach]
        if not step:
            return False
        if any(m is None for m in step):
            return True
        reach = reach * next(m for m in step if m is not None)
    return at_least_zero(reach - extent)


def _one_or_no_iterations(divisor: Polynomial, extent: Polynomial) -> bool:
    """Whether a divisor is 1, or 0 where the extent is too: what it leaves over of a division tells nothing."""
    if len(divisor.terms) != 1 or any(not set(m) <= set(other) for m in divisor.terms for other in extent.terms):
        return False
    values = range_of(divisor.expr(), {})
    return values.lo is not None and values.lo >= 0 and values.hi is not None and values.hi <= 1


# -- order of blocks --------------------------------------------------------------------------------------------------


def positions(tree: Tree) -> dict[str, int]:
    """Blocks numbered in program order."""
    return {b.name: k for k, b in enumerate(all_blocks(tree))}


def child_index(children: tuple[Stmt, ...], names: Iterable[str], last: bool = False) -> int | None:
    """Which of the statements holds the first (or last) of the named blocks."""
    wanted = set(names)
    hits = [k for k, c in enumerate(children) if any(b.name in wanted for b in blocks_in(c))]
    return None if not hits else hits[-1] if last else hits[0]


def out_of_scope(tree: Tree, block: Block, spot: Iterable[Stmt]) -> str | None:
    """A buffer of `block` that does not exist at the end of the path `spot`."""
    there = {b.name for b in tree.program.params} | {
        s.buffer.name for s in (*spot, *walk_stmts(block)) if isinstance(s, Allocate)
    }
    return next((a.buffer.name for a in block_accesses(block) if a.buffer.name not in there), None)
