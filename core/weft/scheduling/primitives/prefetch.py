"""prefetch: prefetches what a later iteration reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft import dtypes as dt
from weft.expr.affine import affine
from weft.expr.nodes import Const, Expr, Var, const, floordiv, floormod, maximum, minimum, substitute
from weft.loop.nodes import PREFETCH, Block, Buffer, Evaluate, For, IntrinsicCall, Load, Program, Stmt, int_const, seq
from weft.scheduling.access import known_of
from weft.scheduling.region import block_accesses
from weft.scheduling.rewrite import clean, domain
from weft.scheduling.tree import Tree


def prefetch(
    program: Program, block: str, buffer: str, ahead: str, at: str, line: int = 64, locality: int = 2
) -> tuple[Program, None]:
    """Each iteration of loop `at` prefetches the cache lines of `buffer` that `block` reads in it one iteration of loop
    `ahead` later.

    Loops between the two along which `block` reads the same elements share the lines. Nothing beyond the buffer is
    prefetched.

        for p in 8 { for r in 4 { for k in 32 { for i in 8 { for j in 16 { block C(…) { … w[p, k, i, j] … } } } } } }
        → prefetch("C", "w", "p", "k")
        for p in 8 { for r in 4 { for k in 32 { for t in 2 unrolled { @prefetch(w[min(p + 1, 7), k, r*2 + t, 0], 2) }
            for i in 8 { … } } } }

    `ahead` may be `at`. `line`: bytes of a cache line. `locality`: 3 prefetches into every cache, 2 into L2 and beyond.
    """
    step = "prefetch"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    loops = tree.loops_around(block)
    first, last = _positions(tree, block, loops, ahead, at, step)
    source, place = _read(tree, b, buffer, step)
    around = domain(path)
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    indices = [clean(substitute(i, values), around, known_of(b)) for i in place]

    def stride(loop: For) -> int:
        """Bytes from one iteration to the next."""
        found = _stride(loop, indices, source)
        if found is None:
            why = f"how far '{buffer}' moves with loop '{loop.var.name}' is not a number"
            raise tree.error(step, why, (block, loop.var.name))
        return found

    def trips(loop: For) -> int:
        n = int_const(loop.extent)
        if n is None:
            raise tree.error(step, f"the extent of loop '{loop.var.name}' is no number", (loop.var.name,))
        return n

    # Inside `at`: the first iteration of each line, loop by loop. Between: who asks for which.
    grid = [(f, max(1, line // abs(s))) for f in loops[last + 1 :] if (s := stride(f))]
    points = [-(-trips(f) // per) for f, per in grid]
    sharing = [f for f in loops[first + 1 : last] if stride(f) == 0]
    shares, lines = prod(map(trips, sharing)), prod(points)
    each = -(-lines // shares)
    turn = Var(tree.fresh("ask"), dt.int64)
    number: Expr = const(0)
    for f in sharing:
        number = number * trips(f) + f.var
    number = number * each + (turn if each > 1 else 0)
    if each * shares > lines:
        number = minimum(number, const(lines - 1))
    then: dict[str, Expr] = {f.var.name: const(0) for f in loops[last + 1 :]}
    inner = lines
    for (f, per), n in zip(grid, points):
        inner //= n
        then[f.var.name] = floormod(floordiv(number, const(inner)), const(n)) * per
    then[ahead] = loops[first].var + 1
    seen = {**around, turn.name: const(each)}

    def inside(index: Expr, extent: Expr) -> Expr:
        return clean(minimum(maximum(clean(substitute(index, then), seen), const(0)), extent - 1), seen)

    load = Load(source, tuple(inside(i, d) for i, d in zip(indices, source.shape)))
    ask: Stmt = Evaluate(IntrinsicCall(PREFETCH, (load, Const(locality, dt.int64))))
    if each > 1:
        ask = For(turn, const(each), ask, "unrolled")
    spot = next(k for k, s in enumerate(path) if s is loops[last])
    return tree.replace(path[: spot + 2], seq(ask, path[spot + 1])), None


def _positions(tree: Tree, block: str, loops: Sequence[For], ahead: str, at: str, step: str) -> tuple[int, int]:
    """Which of the loops around `block` the loops `ahead` and `at` are."""
    names = [f.var.name for f in loops]
    for name in (ahead, at):
        if name not in names:
            raise tree.error(
                step,
                f"loop '{name}' is not around block '{block}'",
                (block,),
                "loops around it: " + (", ".join(names) or "none"),
            )
    if names.index(ahead) > names.index(at):
        raise tree.error(step, f"loop '{ahead}' lies inside loop '{at}'", (ahead, at), "ahead is the outer of the two")
    return names.index(ahead), names.index(at)


def _read(tree: Tree, block: Block, buffer: str, step: str) -> tuple[Buffer, tuple[Expr, ...]]:
    """The input of this name and the one place at which `block` reads it."""
    reads = [a for a in block_accesses(block, buffer) if not a.write]
    places = {a.indices for a in reads}
    if len(places) != 1 or any(a.extents is not None or a.inner for a in reads):
        why = (
            f"'{block.name}' reads '{buffer}' at {len(places)} places"
            if len(places) != 1
            else f"'{block.name}' reads '{buffer}' in loops of its own"
        )
        raise tree.error(step, why, (block.name,))
    if reads[0].buffer not in tree.program.inputs:
        raise tree.error(
            step,
            f"'{buffer}' is no input of the program",
            (block.name,),
            "what the program itself computes may not be there yet",
        )
    return reads[0].buffer, reads[0].indices


def _stride(loop: For, indices: Sequence[Expr], buffer: Buffer) -> int | None:
    """Bytes from the element that one iteration reads to that of the next; None if it is no number."""
    total, size = 0, buffer.dtype.bytes
    for i, d in reversed(list(zip(indices, buffer.shape))):
        form = affine(i, [loop.var.name])
        coefficient = None if form is None else form.coefficient(loop.var.name)
        if coefficient is None or (coefficient and not size):
            return None
        total += coefficient * size
        size *= int_const(d) or 0
    return total
