"""tensorize: replaces a tile of a block by an instruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from textwrap import wrap
from typing import NoReturn

from weft import dtypes as dt
from weft.errors import ScheduleError, nearest
from weft.expr.linear import Polynomial
from weft.expr.nodes import Const, Expr, Var, all_of, const, free_vars, substitute
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    Block,
    BlockIter,
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
from weft.scheduling.assignment import NOT_WHOLE, WHOLE, Digits, Fitted, Mismatch, Tile, assignments, fit, step_sizes
from weft.scheduling.dependence import writers
from weft.scheduling.intrinsic import Form, Intrinsic, OperandView, find
from weft.scheduling.operands import Match, Place
from weft.scheduling.region import Access, accesses, at_least_zero, certain, greatest, poly
from weft.scheduling.rewrite import clean, conditions, domain, own_nest, ranges
from weft.scheduling.tree import Path, Tree, conjuncts
from weft.scheduling.unify import leaves, unify, variables_outside_loads
from weft.tensor.language import Read

STEP = "tensorize"
ANNOTATION = "tensorize"
ROUNDED = "rounded"
"""With a buffer's name and a dimension: from which index on what a block stores there is nobody's, as its length was
rounded up."""


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
            self.fail(f"{NOT_WHOLE.format(next(iter(self.guards)))}", WHOLE.format(b.name))
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

    def seen(self) -> Tile:
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
        return Tile(bindings, {v: (sizes[v], kinds[v]) for v in sizes})

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
            isinstance(n, Load) and n.buffer.name == self.store.buffer.name for n in leaves(self.store.value)
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

    def code(self, m: Match, form: Form, why: str, *views: OperandView | Const) -> Stmt:
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
    def match(self, pattern: Callable[[Intrinsic], Expr], start: bool = False) -> Match:
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
        best = Mismatch(0, f"the formula of block '{self.block.name}' is not that of the meaning")
        assigned = False
        steps = step_sizes([place, *(n.indices for n in leaves(value) if isinstance(n, Load))], tile.variables)
        apart = {v for e in variables_outside_loads(value) for v in free_vars(e)}.union(*self.guards.values())
        for chains in assignments(axes, tile.variables, Digits(tile.variables, steps, apart), {}):
            assigned = True
            try:
                fitted = fit(self.intrinsic, tile, chains, self.guards, self.outer, self.block.name)
            except Mismatch as no:
                best = max(best, no, key=lambda n: n.depth)
                continue
            x = fitted.intrinsic
            fixed = [(v.name, n) for v, n, kind in x.axes if not (start and kind == "reduce")]
            ones: dict[str, Expr] = {v: const(0) for v, n in fixed if n == 1}
            meant = simplify(substitute(pattern(x), ones), ranges({v: const(n) for v, n in fixed}))
            for pairs in unify(meant, value, (), {id(x.tensors[k]) for k in numbers}):
                try:
                    found = Place(fitted, tile, known, ones, self.alignment).operands(
                        pairs, self.store.buffer, place, start
                    )
                    self.room(
                        fitted,
                        [Access(n.buffer, n.indices, False, None) for n in leaves(value) if isinstance(n, Load)],
                        place,
                    )
                    self.aligned.update({v: math.lcm(n, self.aligned.get(v, 1)) for v, n in found.aligned.items()})
                    return found
                except Mismatch as no:
                    best = max(best, no, key=lambda n: n.depth)
        if not assigned:
            at = self.intrinsic.at(self.intrinsic.least)
            alike = any(
                True for _ in unify(simplify(pattern(at)), value, (), {id(at.tensors[k]) for k in numbers})
            ) or bool(self.intrinsic.lengths)
            meant_over = (
                ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, n, kind in axes if n != 1)
                or "one step"
            )
            if alike:
                hint = "name an inner loop" if self.intrinsic.lengths else None
                best = Mismatch(1, f"the tile runs over {tile}, the meaning over {meant_over}", hint)
        self.fail(best.why, best.hint)

    def room(self, fitted: Fitted, reads: Sequence[Access], place: tuple[Expr, ...]) -> None:
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
                raise Mismatch(
                    5,
                    f"{whole}, and '{use.buffer.name}' has no room for the whole tile",
                    "cache_read or cache_write into a tile of its own first",
                )
        name = result.buffer.name
        if name not in self.tree.allocate_paths:
            raise Mismatch(
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
                raise Mismatch(
                    5,
                    f"{whole}, and elements of '{name}' beyond the condition may be others of '{self.block.name}'",
                    "cache_write first",
                )
            other = next(
                (b for b in writers(self.tree, [name]) if b != self.block.name and not self.stops(b, name, at[0], end)),
                None,
            )
            if other is not None:
                raise Mismatch(
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
