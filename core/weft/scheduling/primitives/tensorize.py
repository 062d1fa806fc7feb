"""tensorize: replaces a tile of a block by an instruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import wrap
from typing import NoReturn, TypeAlias

from weft import dtypes as dt
from weft.errors import ScheduleError, nearest
from weft.expr.linear import ZERO, Polynomial, number
from weft.expr.nodes import (
    Add,
    And,
    BitAnd,
    BitOr,
    BitXor,
    Call,
    Const,
    Eq,
    Expr,
    Max,
    Min,
    Mul,
    Ne,
    Or,
    Var,
    all_of,
    const,
    floordiv,
    free_vars,
    minimum,
    substitute,
)
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    Block,
    BlockIter,
    Buffer,
    For,
    IterKind,
    Load,
    Program,
    Region,
    Stmt,
    Store,
    int_const,
    replace_buffers,
    stmt_exprs,
    substitute_stmt,
    walk_stmts,
)
from weft.loop.passes.copies import Names, copy_stmt
from weft.loop.printer import print_program, print_stmt
from weft.scheduling.dependence import writers
from weft.scheduling.intrinsic import Form, Intrinsic, Operand, OperandView, find
from weft.scheduling.region import Access, accesses, at_least_zero, certain, greatest, interval, poly, slack
from weft.scheduling.rewrite import clean, conditions, domain, own_nest, ranges
from weft.scheduling.tree import Path, Tree, conjuncts
from weft.tensor.language import Read

STEP = "tensorize"
ANNOTATION = "tensorize"
ROUNDED = "rounded"
"""With a buffer's name and a dimension: from which index on what a block stores there is nobody's, as its length was
rounded up."""

_NOT_WHOLE = "the condition {} does not hold in the whole tile for certain"
_WHOLE = "pad_loop makes the tiles of '{}' whole, or split by a divisor"
_COMMUTATIVE = (Add, Mul, BitAnd, BitOr, BitXor, And, Or, Eq, Ne)

Pair: TypeAlias = tuple[Expr, Expr]
"""A leaf of the meaning (a Read or an axis) and what stands in its place in the block."""


def any_alignment(scope: str) -> int:
    """What buffers of a memory can be aligned to, where no machine says it: whatever is asked for."""
    return 1 << 30


def tensorize(
    program: Program,
    name: str,
    intrinsic: str,
    *,
    intrinsics: Mapping[str, Intrinsic],
    alignment: Callable[[str], int] = any_alignment,
) -> tuple[Program, None]:
    """Replaces the loop `name` with all inside it, the tile of one block, by the code of an intrinsic; the name of a
    block stands for the nest that contains it alone.

        for i_0 in n { for k_0 in 4 { for i_1 in 8 { for j in 8 { for k_1 in 8 { block C(…) init { C[…] = 0.0f32 } {
            C[…] = C[…] + A[…]*B[…] } } } } } }
        → tensorize("i_1", "gemm8x8")
        for i_0 in n { for k_0 in 4 {
          block C(vi: n = i_0, vk: reduce 4 = k_0) reads(A[vi*8 for 8, vk*8 for 8], B[…], C[…]) writes(C[vi*8 for 8, 0
              for 8]) @ tensorize="gemm8x8" {
            init { @fill_zero(C[vi*8, 0]) }
            @fuse_gemm8x8_add(A[vi*8, vk*8], B[vk*8, 0], C[vi*8, 0])
          } } }

    A block whose sum starts and ends in the tile becomes `compute`. A block whose sum continues outside becomes `reset`
    (at its start) and `update`. A block with decomposed start becomes `update`; its start, tensorized by itself,
    becomes `reset`.

    The block's formula and the meaning agree up to names, the order of loops, loops of one iteration and the order of
    operands of commutative operations; indices may hold symbols. Every assignment of the tile's loops to the axes of
    the meaning is tried: an axis is one loop, or several loops with the strides of one (its digits, in any position),
    or none if its extent may be 1. Of several matches, one with the innermost loops for the last axes is used. The
    operands' scopes, alignment and strides must be as the intrinsic requires, as far as formulas and declarations of
    buffers show; the buffer is then aligned as its instructions require, as far as its memory allows (`alignment`, by
    the name of a scope). `intrinsics` and `alignment` come from the Schedule.

    Conditions must be true in the whole tile, or bound one axis (one loop or several) with a dynamic length
    (`Intrinsic.dynamic`). The length then follows from the condition, rounded up to its required multiple.

        for i_0 in (n + 7)//8 { for i_1 in 8 { block C(v: n = i_0*8 + i_1) where i_0*8 + i_1 < n { y[v] = x[v] + 1.0f32
            } } }
        → tensorize("i_1", "add_one")
        for i_0 in (n + 7)//8 { block C(v: (n + 7)//8 = i_0) reads(x[v*8 for min(n - v*8, 8)]) writes(y[…]) {
          @add_one(x[v*8], y[v*8], min(n - v*8, 8)) } }
    """
    chosen = find(intrinsics, intrinsic)
    tree = Tree(program)
    if name in tree.loop_paths:
        top = len(tree.loop_paths[name]) - 1
        path = tree.loop_paths[name]
    elif name in tree.block_paths:
        path = tree.block_paths[name]
        top = own_nest(path)
        path = path[: top + 1]
    else:
        close = nearest(name, [*tree.loop_paths, *tree.block_paths])
        hint = f"did you mean '{close}'?" if close else f"blocks: {', '.join(tree.block_paths) or 'none'}"
        raise tree.error(STEP, f"there is no loop or block '{name}'", hint=hint)
    return _Tensorize(tree, path, top, name, chosen, alignment).run(), None


@dataclass(frozen=True)
class _Tile:
    """What the block's iterators are, over the loops outside and those of the tile, and these but loops of one
    iteration: extent and kind. Outermost first."""

    values: dict[str, Expr]
    variables: dict[str, tuple[int, str]]

    def value(self, chain: Sequence[str]) -> Polynomial:
        """An axis over its loops."""
        total, size = ZERO, 1
        for loop in reversed(chain):
            total = total + poly(Var(loop, dt.int64)).scale(size)
            size *= self.variables[loop][0]
        return total

    def __str__(self) -> str:
        return (
            ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, (n, kind) in self.variables.items())
            or "one step"
        )


@dataclass(frozen=True)
class _Fitted:
    """An intrinsic at the lengths that an assignment gives it.

    `lengths`: what its code gets; `moving`: how many steps of each loop it computes, of an axis that ends within its
    last one alone; `padded`: axes of which it computes more than are wanted, and how many are.
    """

    declared: Intrinsic
    intrinsic: Intrinsic
    chains: Chains
    lengths: Mapping[str, Expr]
    moving: Mapping[str, Expr]
    padded: Mapping[str, Polynomial]


Chains: TypeAlias = Mapping[str, tuple[str, ...]]
"""Of each axis the loops that make it up, the outermost digit first; none for an axis of one step."""


@dataclass(frozen=True)
class _Match:
    intrinsic: Intrinsic
    views: tuple[OperandView | Const, ...]
    regions: tuple[Region, ...]  # of what the placeholders read
    written: Region
    lengths: tuple[Expr, ...]
    aligned: Mapping[str, int]  # buffers that are to be aligned to more than they are, in bytes


class _No(Exception):
    """Why an assignment of loops to axes fails. The error of the latest check (`depth`) is shown to the user."""

    def __init__(self, depth: int, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.depth, self.why, self.hint = depth, why, hint


class _Tensorize:
    def __init__(
        self, tree: Tree, path: Path, top: int, name: str, intrinsic: Intrinsic, alignment: Callable[[str], int]
    ) -> None:
        self.alignment = alignment
        self.tree, self.path, self.name, self.intrinsic = tree, path, name, intrinsic
        self.aligned: dict[str, int] = {}
        self.ends: dict[tuple[str, int], Polynomial] = {}
        self.outer = domain(path[:top])
        self.nest: list[For] = []
        s = path[-1]
        while isinstance(s, For):
            self.nest.append(s)
            s = s.body
        if not isinstance(s, Block):
            why = f"the nest under '{name}' is not perfect: it holds more than one block under its loops"
            self.fail(why, "move what stands beside the block away, or name an inner loop")
        self.block = s

    def fail(self, why: str, hint: str | None = None) -> NoReturn:
        left = ["the program", *_wrapped(print_stmt(self.path[-1], {self.name: "here"}))]
        meant = self.intrinsic.at(self.intrinsic.least)
        right = ["the meaning", *_wrapped(print_program(meant.program()))]
        width = max(map(len, left))
        where = "\n".join(f"{a:<{width}} | {b}".rstrip() for a, b in zip_longest(left, right, fillvalue=""))
        what = (
            f"tensorize may not put '{self.intrinsic.name}' in the place of '{self.name}' in program"
            f" '{self.tree.program.name}'"
        )
        raise ScheduleError(what, where=where, why=why, hint=hint)

    def run(self) -> Program:
        b = self.block
        if b.reads is not None or b.writes is not None:
            self.fail(f"block '{b.name}' states what it reads and writes: its body is code already")
        for f in self.nest:
            if f.kind != "serial":
                self.fail(
                    f"loop '{f.var.name}' is {f.kind}",
                    "the instruction takes the place of its loops: decide about those outside only",
                )
            if int_const(f.extent) is None:
                self.fail(
                    f"the extent {f.extent} of loop '{f.var.name}' is not constant",
                    f"split it first: split('{f.var.name}', [None, 8])",
                )
        self.loops = {**self.outer, **{f.var.name: f.extent for f in self.nest}}
        if not isinstance(b.body, Store) or b.body.predicate is not None:
            self.fail(f"the body of block '{b.name}' is not one store")
        self.store: Store = b.body
        self.conditions, self.guards = self.asked()
        self.tile = self.seen()
        if self.guards and not self.intrinsic.dynamic:
            self.fail(f"{_NOT_WHOLE.format(next(iter(self.guards)))}", _WHOLE.format(b.name))
        reads, body, init, written = self.forms()
        begun = [clean(substitute(c, {v: const(0) for v in loops}), self.outer) for c, loops in self.guards.items()]
        known = conditions(self.path[:-1], self.path[-1])
        left = [*self.conditions, *(c for c in begun if not certain(c, self.outer, known))]
        program = self.tree.replace(self.path, self.opaque(reads, body, init, written, all_of(dict.fromkeys(left))))
        if not self.aligned:
            return program
        buffers = [
            *program.params,
            *(s.buffer for p in self.tree.allocate_paths.values() for s in p[-1:] if isinstance(s, Allocate)),
        ]
        moved = {x.name: replace(x, align=self.aligned[x.name]) for x in buffers if x.name in self.aligned}
        inputs, outputs = (tuple(moved.get(x.name, x) for x in xs) for xs in (program.inputs, program.outputs))
        return replace(program, inputs=inputs, outputs=outputs, body=replace_buffers(program.body, moved))

    # -- the tile
    def asked(self) -> tuple[list[Expr], dict[Expr, set[str]]]:
        """The block's conditions that do not depend on the tile, and those that it does not decide, with its loops that
        they speak of."""
        inside = {f.var.name for f in self.nest if int_const(f.extent) != 1}
        known = conditions(self.path[:-1], self.path[-1])
        bound = {i.var.name: x for i, x in zip(self.block.iters, self.block.bindings)}
        left: list[Expr] = []
        guards: dict[Expr, set[str]] = {}
        for c in (substitute(c, bound) for c in conjuncts(self.block.predicate)):
            if certain(clean(c, self.loops), self.loops, known):
                continue
            loops = inside & free_vars(c).keys()
            if loops:
                guards[c] = loops
            else:
                left.append(c)
        return left, guards

    def seen(self) -> _Tile:
        """The tile by its loops."""
        ones: dict[str, Expr] = {f.var.name: const(0) for f in self.nest if int_const(f.extent) == 1}
        sizes = {f.var.name: int(int_const(f.extent) or 0) for f in self.nest if f.var.name not in ones}
        b = self.block
        bindings = {i.var.name: clean(substitute(x, ones), self.loops) for i, x in zip(b.iters, b.bindings)}
        kinds: dict[str, str] = {}
        for i in b.iters:
            for v in free_vars(bindings[i.var.name]).keys() & sizes.keys():
                if i.kind == "scan" or kinds.setdefault(v, i.kind) != i.kind:
                    self.fail(
                        f"loop '{v}' drives a {i.kind} iterator"
                        + ("" if i.kind == "scan" else f" and a {kinds[v]} iterator")
                        + f" of '{b.name}'"
                    )
        idle = [v for v in sizes if v not in kinds]
        if idle:
            self.fail(f"loop '{idle[0]}' drives no iterator of '{b.name}'")
        return _Tile(bindings, {v: (sizes[v], kinds[v]) for v in sizes})

    def fitted(self, chains: Chains) -> _Fitted:
        """The intrinsic with the loops' extents for lengths, and the lengths that its code gets: as long as the
        conditions hold."""
        x = self.intrinsic
        sizes, owners = dict(x.least), dict[str, list[str]]()
        for v, extent, _ in x.extents:
            if isinstance(extent, Var):
                owners.setdefault(extent.name, []).append(v.name)
                if v.name in chains:
                    sizes[extent.name] = math.prod(self.tile.variables[loop][0] for loop in chains[v.name])
        broken = x.broken(sizes)
        if broken is not None:
            raise _No(
                1,
                f"its lengths would be {', '.join(f'{v} = {n}' for v, n in sizes.items())}: {broken} does not hold",
                "split the loops",
            )
        lengths: dict[str, Expr] = {v: const(n) for v, n in sizes.items()}
        moving: dict[str, Expr] = {v: const(n) for v, (n, _) in self.tile.variables.items()}
        padded: dict[str, Polynomial] = {}
        shorter: dict[str, Expr] = {}
        for c, loops in self.guards.items():
            axis = next((v for v, chain in chains.items() if set(chain) >= loops), None)
            length = next((n for n, axes in owners.items() if axes == [axis]), None)
            why = _NOT_WHOLE.format(c)
            if axis is None or length not in x.dynamic:
                raise _No(1, why, _WHOLE.format(self.block.name))
            sizes_of = {v: self.tile.variables[v][0] for v in chains[axis]}
            trips = _trips(c, sizes_of)
            if trips is None:
                raise _No(
                    1,
                    why,
                    "a length ends where a condition bounds its loops, as one, from above;"
                    f" {_WHOLE.format(self.block.name)}",
                )
            loop = chains[axis][-1]
            multiple = x.multiples.get(length, 1)
            if multiple > 1:
                if self.tile.variables[loop][1] == "reduce":
                    hint = (
                        "a sum of more elements than there are needs zeros there: pad_loop the copies of its operands,"
                        f" then '{self.block.name}'"
                    )
                    raise _No(1, f"{why}, and '{length}' is a multiple of {multiple}", hint)
                if axis in padded:
                    # The rounded end is checked against what others store; of two ends the lesser is not known.
                    hint = f"say where loop '{loop}' ends by one condition; {_WHOLE.format(self.block.name)}"
                    raise _No(
                        1, f"{why}: it is the second that ends '{loop}', whose length is a multiple of {multiple}", hint
                    )
                padded[axis] = trips
                trips = poly(floordiv(trips.plus(multiple - 1).expr(), multiple)).scale(multiple)
            moving.update(dict.fromkeys(chains[axis], const(1)))
            lengths[length] = moving[loop] = clean(minimum(lengths[length], trips.expr()), self.outer)
            shorter[length] = (const(1) + Var(length, dt.int64)) * multiple
        self._check_shorter(sizes, shorter)
        return _Fitted(x, x.at(sizes), chains, lengths, moving, padded)

    def _check_shorter(self, sizes: Mapping[str, int], shorter: Mapping[str, Expr]) -> None:
        """Checks that the intrinsic allows the lengths that a run may have, where they are less than `sizes`."""
        x = self.intrinsic
        spoken = next((v for v in shorter if v in x.spoken), None)
        if spoken is not None:
            why = (
                f"a run may have fewer steps than the tile, and the formula of '{x.name}' speaks of the length"
                f" '{spoken}', which is then another"
            )
            raise _No(1, why, "pad_loop makes tiles whole")
        at_most = {v: const(sizes[v] // x.multiples.get(v, 1)) for v in shorter}
        for limit in x.limits if shorter else ():
            if not certain(
                clean(substitute(limit, {**{v: const(n) for v, n in sizes.items()}, **shorter}), at_most), at_most
            ):
                what = ", ".join(f"'{v}' of up to {sizes[v]}" for v in shorter)
                raise _No(
                    1,
                    f"a run may have fewer steps than the tile, and of {what} it is not certain that {limit}",
                    "pad_loop makes tiles whole",
                )

    # -- which code
    def forms(self) -> tuple[tuple[Region, ...], Stmt, Stmt | None, Region]:
        """What is read, the body, the init, what is written."""
        x, b = self.intrinsic, self.block
        reduce = x.reduction
        if reduce is None:
            if b.init is not None:
                self.fail(f"block '{b.name}' is a reduction, the meaning of '{x.name}' is none")
            m = self.match(lambda y: y.source.bodies[0])
            return m.regions, m.intrinsic.emit("compute", *m.views, lengths=m.lengths), None, m.written
        start = simplify(reduce.init[0])
        if b.init is None and not any(
            isinstance(n, Load) and n.buffer.name == self.store.buffer.name for n in _leaves(self.store.value)
        ):
            m = self.match(lambda y: start, start=True)
            return (), self.code(m, "reset", "it is the start of a sum", *m.views), None, m.written

        def summed(y: Intrinsic) -> Expr:
            assert y.reduction is not None
            (value,) = y.reduction.reducer.combine([Read(y.held, y.source.axes)], list(y.reduction.values))
            return value

        m = self.match(summed)
        held = (*m.regions, m.written)
        if b.init is None:
            return held, self.code(m, "update", "its sum was started elsewhere", *m.views), None, m.written
        if (
            not isinstance(b.init, Store)
            or (b.init.buffer, b.init.indices) != (self.store.buffer, self.store.indices)
            or simplify(b.init.value) != start
        ):
            self.fail(f"block '{b.name}' starts its sum otherwise than the meaning, which starts from {start}")
        if not self.goes_on():
            return m.regions, m.intrinsic.emit("compute", *m.views, lengths=m.lengths), None, m.written
        why = "its sum goes on outside the tile"
        return held, self.code(m, "update", why, *m.views), self.code(m, "reset", why, m.views[-1]), m.written

    def code(self, m: _Match, form: Form, why: str, *views: OperandView | Const) -> Stmt:
        if m.intrinsic.code(form) is None:
            self.fail(
                f"'{self.intrinsic.name}' has no code to {form} the result, and block '{self.block.name}' needs it:"
                f" {why}"
            )
        if form == "reset":  # the start has no step of the sum yet
            own = {str(n) for _, n, kind in self.intrinsic.extents if kind != "reduce"}
            known = zip(self.intrinsic.lengths, m.lengths, m.intrinsic.given)
            return m.intrinsic.emit(form, *views, lengths=[x if v in own else const(n) for v, x, n in known])
        return m.intrinsic.emit(form, *views, lengths=m.lengths)

    def goes_on(self) -> bool:
        """Whether the reduction has steps outside the tile. Its first must be at the first step of every loop: that is
        where the start is stored."""
        values = self.tile.values
        reduced = [values[i.var.name] for i in self.block.iters if i.kind == "reduce"]
        outside = {v for x in reduced for v in free_vars(x) if v in self.outer and int_const(self.outer[v]) != 1}
        first = {v: const(0) for x in reduced for v in free_vars(x) if v in self.loops}
        if any(simplify(substitute(x, first)) != const(0) for x in reduced):
            self.fail(f"the sum of block '{self.block.name}' does not begin where its loops do")
        return bool(outside)

    # -- matching
    def match(self, pattern: Callable[[Intrinsic], Expr], start: bool = False) -> _Match:
        """The operands in the program, by the first assignment that does. `start`: the pattern is the start of a sum,
        where the result alone is seen."""
        tile = self.tile
        known = {**self.outer, **{v: const(n) for v, (n, _) in tile.variables.items()}}

        def inside(e: Expr) -> Expr:
            return simplify(
                substitute(e, tile.values), ranges(known)
            )  # bare variables too: those of one iteration are 0 wherever they stand

        value, place = inside(self.store.value), tuple(inside(i) for i in self.store.indices)
        numbers = [k for k, o in enumerate(self.intrinsic.operands) if o.number]
        axes = [
            (v.name, n if isinstance(n, int) else str(n), kind)
            for v, n, kind in self.intrinsic.extents
            if not (start and kind == "reduce")
        ]
        best = _No(0, f"the formula of block '{self.block.name}' is not that of the meaning")
        assigned = False
        steps = _steps([place, *(n.indices for n in _leaves(value) if isinstance(n, Load))], tile.variables)
        apart = {v for e in _outside(value) for v in free_vars(e)}.union(*self.guards.values())
        for chains in _assign(axes, tile.variables, _Digits(tile.variables, steps, apart), {}):
            assigned = True
            try:
                fitted = self.fitted(chains)
            except _No as no:
                best = max(best, no, key=lambda n: n.depth)
                continue
            x = fitted.intrinsic
            fixed = [(v.name, n) for v, n, kind in x.axes if not (start and kind == "reduce")]
            ones: dict[str, Expr] = {v: const(0) for v, n in fixed if n == 1}
            meant = simplify(substitute(pattern(x), ones), ranges({v: const(n) for v, n in fixed}))
            for pairs in _unify(meant, value, (), {id(x.tensors[k]) for k in numbers}):
                try:
                    found = _Place(fitted, tile, known, ones, self.alignment).operands(
                        pairs, self.store.buffer, place, start
                    )
                    self.room(
                        fitted,
                        [Access(n.buffer, n.indices, False, None) for n in _leaves(value) if isinstance(n, Load)],
                        place,
                    )
                    self.aligned.update({v: math.lcm(n, self.aligned.get(v, 1)) for v, n in found.aligned.items()})
                    return found
                except _No as no:
                    best = max(best, no, key=lambda n: n.depth)
        if not assigned:
            at = self.intrinsic.at(self.intrinsic.least)
            alike = any(
                True for _ in _unify(simplify(pattern(at)), value, (), {id(at.tensors[k]) for k in numbers})
            ) or bool(self.intrinsic.lengths)
            meant_over = (
                ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, n, kind in axes if n != 1)
                or "one step"
            )
            if alike:
                hint = "name an inner loop" if self.intrinsic.lengths else None
                best = _No(1, f"the tile runs over {tile}, the meaning over {meant_over}", hint)
        self.fail(best.why, best.hint)

    def room(self, fitted: _Fitted, reads: Sequence[Access], place: tuple[Expr, ...]) -> None:
        """Checks that the excess elements are read within buffers, and stored where nothing reads them."""
        if not fitted.padded:
            return
        moving = {**self.outer, **{v: const(n) for v, (n, _) in self.tile.variables.items()}}
        result = Access(self.store.buffer, place, True, None)
        whole = (
            f"the length of loop '{fitted.chains[next(iter(fitted.padded))][-1]}' is rounded up to a multiple of what"
            " the instruction takes"
        )
        for use in (result, *reads):
            inside = zip(use.box(moving), use.buffer.shape)
            if not all(
                e is not None and at_least_zero(e[0]) and at_least_zero((poly(n) - e[1]).plus(-1)) for e, n in inside
            ):
                raise _No(
                    5,
                    f"{whole}, and '{use.buffer.name}' has no room for the whole tile",
                    "cache_read or cache_write into a tile of its own first",
                )
        name = result.buffer.name
        if name not in self.tree.allocate_paths:
            raise _No(
                5,
                f"{whole}: nothing else may use what it stores beyond, and '{name}' is a parameter",
                "cache_write first",
            )
        home = self.tree.allocate_paths[name]
        for axis, wanted in fitted.padded.items():
            # Whoever stores to the buffer stops where the block's condition stops it: so there is nothing beyond that
            # anybody reads.
            at = [d for d, i in enumerate(place) if free_vars(i).keys() & set(fitted.chains[axis])]
            end = poly(place[at[0]]) - self.tile.value(fitted.chains[axis]) + wanted if len(at) == 1 else None
            if end is None or end.names() & {*self.tile.variables, *domain(self.path[len(home) :])}:
                raise _No(
                    5,
                    f"{whole}, and elements of '{name}' beyond the condition may be others of '{self.block.name}'",
                    "cache_write first",
                )
            other = next(
                (b for b in writers(self.tree, [name]) if b != self.block.name and not self.stops(b, name, at[0], end)),
                None,
            )
            if other is not None:
                raise _No(
                    5,
                    f"{whole}: nothing else may use what it stores beyond, and '{other}' stores there, too",
                    "cache_write first",
                )
            self.ends[name, at[0]] = end

    def stops(self, block: str, buffer: str, d: int, end: Polynomial) -> bool:
        """Whether another block stores nothing at or beyond an index of dimension `d`; or what its own length was
        rounded up to, from the same index on."""
        b, path = self.tree.block(block, STEP), self.tree.block_paths[block]
        if b.annotation(f"{ROUNDED}.{buffer}.{d}") == str(end.expr()):
            return True
        shared = next((k for k, (x, y) in enumerate(zip(path, self.path)) if x is not y), len(self.path))
        uses = [a for a in accesses(b, buffer) if a.write]
        moving = domain(path[shared:])
        return all(
            a.extents is None and any(at_least_zero((end - most).plus(-1)) for most in a.limits(moving)[d])
            for a in uses
        )

    # -- the result
    def opaque(
        self, reads: tuple[Region, ...], body: Stmt, init: Stmt | None, written: Region, predicate: Expr
    ) -> Block:
        b = self.block
        kinds: dict[str, IterKind] = {}
        names: dict[str, str] = {}
        for i in b.iters:
            for v in free_vars(self.tile.values[i.var.name]).keys() & self.outer.keys():
                if kinds.setdefault(v, i.kind) != i.kind:
                    self.fail(f"loop '{v}' drives a {kinds[v]} and a {i.kind} iterator of '{b.name}'")
                if i.var.name not in names.values():
                    names.setdefault(v, i.var.name)
        for s in (
            body,
            *([] if init is None else [init]),
        ):  # where a length ends may be told by loops that move nothing
            for e in (e for x in walk_stmts(s) for e in stmt_exprs(x)):
                for v in free_vars(e).keys() & self.outer.keys():
                    kinds.setdefault(v, "spatial")
        fresh: dict[str, Var] = {
            v: Var(names.get(v) or self.tree.fresh(f"{v}_v"), dt.int64) for v in self.outer if v in kinds
        }
        values: dict[str, Expr] = dict(fresh)
        iters: list[BlockIter] = []
        bindings: list[Expr] = []
        for v, var in fresh.items():
            most = greatest(poly(self.outer[v]), {k: x for k, x in self.outer.items() if k != v})
            if most is None or most.names() & self.outer.keys():
                self.fail(f"the extent {self.outer[v]} of loop '{v}' has no bound that stays")
            iters.append(BlockIter(var, most.expr(), kinds[v]))
            bindings.append(Var(v, dt.int64))
        if not iters:
            name = b.iters[0].var.name if b.iters else self.tree.fresh(f"{b.name}_v")
            iters, bindings = [BlockIter(Var(name, dt.int64), const(1))], [const(0)]
        taken = Names.of(self.tree.program)
        taken.used |= self.tree.names

        def placed(s: Stmt) -> Stmt:
            return copy_stmt(substitute_stmt(s, values), {}, taken)

        def region(r: Region) -> Region:
            return Region(r.buffer, tuple((substitute(lo, values), substitute(n, values)) for lo, n in r.ranges))

        return replace(
            b,
            iters=tuple(iters),
            bindings=tuple(bindings),
            body=placed(body),
            init=None if init is None else placed(init),
            predicate=predicate,
            reads=tuple(dict.fromkeys(region(r) for r in reads)),
            writes=(region(written),),
            annotations=(
                *b.annotations,
                (ANNOTATION, self.intrinsic.name),
                *((f"{ROUNDED}.{v}.{d}", str(x.expr())) for (v, d), x in self.ends.items()),
            ),
        )


def _wrapped(text: str, width: int = 76) -> list[str]:
    """The lines, cut where there is a blank so that two columns fit beside one another."""
    result = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        result += wrap(
            line,
            width,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        ) or [""]
    return result


def _leaves(e: Expr) -> Iterator[Expr]:
    stack = [e]
    while stack:
        n = stack.pop()
        yield n
        stack.extend(n.children())


def _unify(p: Expr, e: Expr, pairs: tuple[Pair, ...], numbers: Container[int]) -> Iterator[tuple[Pair, ...]]:
    """Every way in which the formula `e` is `p` with elements of buffers (constants, of tensors in `numbers`) in the
    place of reads, and indices in the place of axes.
    """
    if p.dtype != e.dtype:
        return
    if isinstance(p, Read):
        if (isinstance(e, Load) and e.predicate is None) or (isinstance(e, Const) and id(p.tensor) in numbers):
            yield (*pairs, (p, e))
    elif isinstance(p, Var):
        yield (*pairs, (p, e))
    elif isinstance(p, Const):
        if p == e:
            yield pairs
    elif (
        type(p) is type(e)
        and len(p.children()) == len(e.children())
        and not (isinstance(p, Call) and isinstance(e, Call) and p.name != e.name)
    ):
        swaps = isinstance(p, _COMMUTATIVE) or (isinstance(p, (Min, Max)) and p.dtype.is_integer)
        for order in [e.children(), e.children()[::-1]] if swaps else [e.children()]:
            found = iter([pairs])
            for a, b in zip(p.children(), order):
                found = iter([more for known in found for more in _unify(a, b, known, numbers)])
            yield from found


def _outside(e: Expr) -> Iterator[Expr]:
    """The variables of a formula, but for those in places of what it loads."""
    if isinstance(e, Var):
        yield e
    elif not isinstance(e, Load):
        for c in e.children():
            yield from _outside(c)


def _steps(accesses: Iterable[tuple[Expr, ...]], variables: Iterable[str]) -> dict[str, tuple[Polynomial, ...] | None]:
    """How far a step of each loop moves every access; None if they are not linear."""
    names = dict.fromkeys(variables)
    parts = [poly(i).split_variables(names) for indices in accesses for i in indices]
    return {v: None if None in parts else tuple(p[1].get(v, ZERO) for p in parts if p is not None) for v in names}


class _Digits:
    """Which loops may be digits of one axis, and which are alike: to assign one of these is to assign any.

    Args:
        steps: of each loop, by `_steps`.
        apart: loops that are like no other, as more than places depends on them.
    """

    def __init__(
        self,
        variables: Mapping[str, tuple[int, str]],
        steps: Mapping[str, tuple[Polynomial, ...] | None],
        apart: Container[str],
    ) -> None:
        self.steps = steps
        self.sizes = {v: n for v, (n, _) in variables.items()}
        alone = {v for v in variables if v in apart or steps[v] is None}
        self.still = {v for v, s in steps.items() if v not in alone and not any(s or ())}
        """Loops that move nothing, and so may follow each other in any order."""
        groups: list[str] = []
        self.group: dict[str, str] = {}
        for v, x in variables.items():
            like = next(
                (u for u in groups if v not in alone and u not in alone and (x, steps[v]) == (variables[u], steps[u])),
                v,
            )
            groups += [v] if like == v else []
            self.group[v] = like
        self.rank = {v: k for k, v in enumerate(groups)}

    def first(self, loops: Iterable[str]) -> list[str]:
        """Of loops that are alike the first."""
        found: dict[str, str] = {}
        for v in loops:
            found.setdefault(self.group[v], v)
        return list(found.values())

    def follow(self, outer: str, inner: str) -> bool:
        """Whether a step of the first moves every access as far as all steps of the second: they are two digits of one
        axis."""
        if outer in self.still and inner in self.still:
            return self.rank[self.group[outer]] <= self.rank[self.group[inner]]  # in any order: one will do
        mine, other = self.steps[outer], self.steps[inner]
        return (
            mine is not None and other is not None and all(p == q.scale(self.sizes[inner]) for p, q in zip(mine, other))
        )


def _assign(
    axes: Sequence[tuple[str, int | str, str]],
    variables: Mapping[str, tuple[int, str]],
    digits: _Digits,
    sizes: Mapping[str, int],
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every way to make each axis up of loops of the tile, of its kind, none left over; of loops that are alike in one
    order. An axis has an extent, or the name of a length, which is the same wherever it stands (`sizes`). The innermost
    loops are tried for the last axes first; an axis of one loop before one of several or none.
    """
    if not axes:
        if not variables:
            yield {}
        return
    *rest, (axis, extent, kind) = axes
    wanted = sizes.get(extent) if isinstance(extent, str) else extent
    for chain in _chains([v for v in reversed(list(variables)) if variables[v][1] == kind], digits, wanted):
        size = math.prod(variables[v][0] for v in chain)
        known = {**sizes, extent: size} if isinstance(extent, str) else sizes
        for more in _assign(rest, {k: x for k, x in variables.items() if k not in chain}, digits, known):
            yield {**more, axis: chain}


def _chains(loops: Sequence[str], digits: _Digits, wanted: int | None) -> Iterator[tuple[str, ...]]:
    """Loops that make up one axis of `wanted` steps, or of any number: single ones, then several, then none."""
    found: list[tuple[tuple[str, ...], int]] = [((v,), digits.sizes[v]) for v in digits.first(loops)]
    while found:
        found = [(c, n) for c, n in found if wanted is None or wanted % n == 0]
        yield from (c for c, n in found if wanted is None or n == wanted)
        more = (
            (c, n, v) for c, n in found for v in digits.first(v for v in loops if v not in c) if digits.follow(v, c[0])
        )
        found = [((v, *c), n * digits.sizes[v]) for c, n, v in more]
    if wanted is None or wanted == 1:
        yield ()


def _trips(condition: Expr, chain: Mapping[str, int]) -> Polynomial | None:
    """How many steps of an axis come before the condition fails, which may be none or less, or more than there are;
    None if it is no such condition.

    `chain`: its loops and their extents. A condition may speak of the outer ones alone: each of their steps is as many
    of the axis as the others have.
    """
    goals = slack(condition)
    if goals is None or len(goals) != 1:
        return None
    parts = goals[0].split_variables(chain)
    if parts is None:
        return None
    rest, factors = parts
    asked = [v for v in chain if v in factors]
    if not asked or asked != list(chain)[: len(asked)]:
        return None
    step, size = factors[asked[-1]].value, 1
    if step is None or step >= 0:
        return None
    for v in reversed(asked):
        if factors[v] != number(step * size):
            return None
        size *= chain[v]
    trips = rest.plus(1) if step == -1 else poly(floordiv(rest.expr(), -step)).plus(1)
    return trips.scale(math.prod(n for v, n in chain.items() if v not in asked))


class _Place:
    """An assignment of the tile's variables to axes, followed through the operands."""

    def __init__(
        self,
        fitted: _Fitted,
        tile: _Tile,
        known: Mapping[str, Expr],
        ones: Mapping[str, Expr],
        alignment: Callable[[str], int],
    ) -> None:
        self.alignment = alignment
        self.aligned: dict[str, int] = {}
        self.fitted, self.intrinsic, self.tile, self.known, self.ones = fitted, fitted.intrinsic, tile, known, ones
        self.names = {axis: chain[-1] for axis, chain in fitted.chains.items() if chain}
        """Of each axis of several steps the loop that counts them by one."""
        self.values = {axis: tile.value(chain) for axis, chain in fitted.chains.items()}

    def operands(self, pairs: Sequence[Pair], result: Buffer, place: tuple[Expr, ...], start: bool) -> _Match:
        x = self.intrinsic
        for p, e in pairs:
            if isinstance(p, Var) and poly(e) != self.values.get(p.name, poly(p)):
                raise _No(2, f"the value uses {e} where the meaning has '{p.name}'")
        for p, e in pairs:
            if (
                isinstance(p, Read)
                and p.tensor is x.held
                and not (isinstance(e, Load) and (e.buffer, e.indices) == (result, place))
            ):
                raise _No(2, f"the sum does not go on from what it stores to: it reads {e}")
        own = Read(x.meaning, x.source.axes)
        accesses: list[list[tuple[Read, Load | Const]]] = [
            [(p, e) for p, e in pairs if isinstance(p, Read) and p.tensor is t and isinstance(e, (Load, Const))]
            for t in x.tensors[:-1]
        ]
        accesses.append([(own, Load(result, place))])
        views: list[OperandView | Const] = []
        regions: list[list[Region]] = []
        for k, found in enumerate(accesses):
            if start and k < len(accesses) - 1:
                continue
            views.append(self.view(k, found))
            regions.append([self.region(e, self.fitted.moving) for _, e in found if isinstance(e, Load)])
        if any(isinstance(v, OperandView) and v.buffer.name == result.name for v in views[:-1]):
            raise _No(
                3,
                f"it reads and writes '{result.name}', which the code would overwrite while it reads",
                "cache_read or cache_write first",
            )
        moving: dict[str, Expr] = {v: const(n) for v, (n, _) in self.tile.variables.items()}
        if not Access(result, place, True, None).fills(moving):
            raise _No(3, f"the tile of '{result.name}' has gaps: what is written could not be said")
        box, steps = number(1), 1
        for _, extent in self.region(Load(result, place), moving).ranges:
            box = box * poly(extent)
        for size, kind in self.tile.variables.values():
            steps *= size if kind == "spatial" else 1
        if box != number(steps):
            raise _No(3, f"steps of the tile store to the same element of '{result.name}'")
        for k, view in zip(range(len(accesses) - len(views), len(accesses)), views):
            if isinstance(view, OperandView):
                self.check(k, view)
        lengths = tuple(self.fitted.lengths[v] for v in self.fitted.declared.lengths)
        return _Match(
            x, tuple(views), tuple(r for rs in regions[:-1] for r in rs), regions[-1][0], lengths, self.aligned
        )

    def view(self, k: int, found: Sequence[tuple[Read, Load | Const]]) -> OperandView | Const:
        operand, tensor = self.intrinsic.operands[k], self.intrinsic.tensors[k]
        numbers = [e for _, e in found if isinstance(e, Const)]
        if numbers:
            if any(e != numbers[0] for _, e in found):
                raise _No(2, f"what stands for operand '{operand.name}' is not one number")
            return numbers[0]
        places = [self.place(operand, tensor.rank, read, load) for read, load in found if isinstance(load, Load)]
        buffer, indices, steps = places[0]
        if any(p != places[0] for p in places):
            raise _No(2, f"what stands for operand '{operand.name}' is not one tile of one buffer")
        return OperandView(operand, buffer, indices, steps)

    def place(
        self, operand: Operand, rank: int, read: Read, load: Load
    ) -> tuple[Buffer, tuple[Expr, ...], tuple[tuple[Expr, ...], ...]]:
        """Where the operand begins and what a step along each of its dimensions moves, by one access."""
        meant = [poly(substitute(i, self.ones)) for i in read.indices]
        parts: list[tuple[Polynomial, dict[str, int]]] = []
        for p in meant:
            split = p.split_variables(self.names)
            if split is None or split[0].value is None or any(c.value is None for c in split[1].values()):
                raise _No(
                    2, f"the meaning reads '{operand.name}' at {p.expr()}, which is no sum of axes times constants"
                )
            parts.append((split[0], {v: int(c.value or 0) for v, c in split[1].items()}))
        factors = [f for _, f in parts]
        actual: list[tuple[Polynomial, dict[str, Polynomial]]] = []
        for i in load.indices:
            split = poly(i).split_variables(self.tile.variables)
            if split is None:
                why = f"the index {i} of '{load.buffer.name}' is not linear in the loops of the tile"
                raise _No(2, why, "split so that the tile lies in one block of it")
            actual.append(split)
        steps: list[list[Polynomial]] = []
        for d in range(rank):
            # An axis that only this dimension has tells what a step along it is.
            own = [v for v, c in factors[d].items() if c and not any(v in f for k, f in enumerate(factors) if k != d)]
            step = []
            for _, linear in actual:
                moved = linear.get(self.names[own[0]], ZERO) if own else ZERO
                c = factors[d][own[0]] if own else 1
                found = moved.divided(c)
                if found is None:
                    raise _No(
                        2,
                        f"'{operand.name}' moves by {moved.expr()} in '{load.buffer.name}', which is no multiple"
                        f" of {c}",
                    )
                step.append(found)
            steps.append(step)
        base = []
        for b, (rest, linear) in enumerate(actual):
            for axis, v in self.names.items():  # the other digits of an axis move as many steps of it as they stand for
                wanted = ZERO
                for d in range(rank):
                    wanted = wanted + steps[d][b].scale(factors[d].get(axis, 0))
                if linear.get(v, ZERO) != wanted:
                    raise _No(
                        2,
                        f"operand '{operand.name}' does not lie in '{load.buffer.name}' as the meaning reads it: {load}"
                        f" is not {read}",
                    )
            first = rest
            for d, (constant, _) in enumerate(parts):
                first = first - steps[d][b].scale(constant.constant)
            base.append(first.expr())
        if not all(at_least_zero(s) for step in steps for s in step):
            raise _No(2, f"'{load.buffer.name}' is walked backwards")
        return load.buffer, tuple(base), tuple(tuple(s.expr() for s in step) for step in steps)

    def region(self, load: Load, moving: Mapping[str, Expr]) -> Region:
        box = []
        for i in load.indices:
            ends = interval(i, moving)
            if ends is None:
                raise _No(2, f"the index {i} of '{load.buffer.name}' has no bounds in the tile")
            box.append((ends[0].expr(), (ends[1] - ends[0]).plus(1).expr()))
        return Region(load.buffer, tuple(box))

    def check(self, k: int, view: OperandView) -> None:
        """The preconditions of operand number `k`."""
        operand, tensor, b = view.operand, self.intrinsic.tensors[k], view.buffer
        if operand.scopes and b.scope not in operand.scopes:
            wanted = " or ".join(f"'{s}'" for s in operand.scopes)
            hint = (
                f"cache_read it into {wanted}"
                if k < len(self.intrinsic.operands) - 1
                else f"cache_write or set_scope to {wanted}"
            )
            raise _No(5, f"operand '{operand.name}' must lie in scope {wanted}, '{b.name}' lies in '{b.scope}'", hint)
        asked = operand.strides or self.intrinsic.dense(k)
        open_ends = {v for v, n in self.fitted.lengths.items() if not isinstance(n, Const)}
        for d, n in enumerate(tensor.shape):
            later = [str(x) for x in self.fitted.declared.tensors[k].shape[d + 1 :] if str(x) in open_ends]
            if operand.strides is None and later and n != 1:
                why = (
                    f"operand '{operand.name}' has no gaps, so its rows are as far apart as '{later[0]}' is long, which"
                    " is known only at run time"
                )
                raise _No(
                    4,
                    why,
                    f"an instruction that takes the distance of rows says so: Operand('{operand.name}',"
                    " strides=(None, 1))",
                )
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            stride = poly(clean(have, self.known))
            if want is not None and tensor.shape[d] != 1 and stride.value != want:
                why = (
                    f"dimension {d} of operand '{operand.name}' has stride {want}, in '{b.name}' it is {stride.expr()}"
                )
                raise _No(4, why, "copy the tile: cache_read (or cache_write), then compact_buffer")
        first: Expr = const(0)
        for i, n in zip(view.indices, b.shape):
            first = first * n + i
        size = b.dtype.scalar.bytes
        can = b.align % operand.align == 0 or self.alignment(b.scope) % operand.align == 0
        sure = can and all(c * size % operand.align == 0 for c in poly(clean(first, self.known)).terms.values())
        if sure and b.align % operand.align:
            self.aligned[b.name] = math.lcm(self.aligned.get(b.name, b.align), operand.align)
        if operand.align > 1 and not sure:
            why = (
                f"operand '{operand.name}' must be aligned to {operand.align} bytes; '{b.name}' is aligned to"
                f" {b.align}, its first element is {first}"
            )
            hint = "copy the tile, or pad the rows of the buffer: compact_buffer(…, align=…)"
            declare = (
                f"a machine whose memory '{b.scope}' can be aligned so declares Scope('{b.scope}',"
                f" align={operand.align})"
            )
            raise _No(5, why, hint if can else f"{hint}; {declare}")
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            step = poly(clean(have, self.known))
            if want is None and tensor.shape[d] != 1 and any(c * size % operand.align for c in step.terms.values()):
                why = (
                    f"rows of operand '{operand.name}' must be aligned to {operand.align} bytes; in '{b.name}' they are"
                    f" {step.expr()} elements apart"
                )
                raise _No(5, why, "pad the rows of the buffer: compact_buffer(…, align=…)")
