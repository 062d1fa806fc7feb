"""tensorize: a tile of a block becomes an instruction."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import wrap
from typing import NoReturn, TypeAlias

from weft import dtypes as dt
from weft.errors import ScheduleError, nearest
from weft.expr.nodes import Add, And, BitAnd, BitOr, BitXor, Call, Const, Eq, Expr, Max, Min, Mul, Ne, Or, Var, all_of, const, free_vars, substitute
from weft.expr.simplify import simplify
from weft.loop.nodes import Block, BlockIter, Buffer, For, Load, Program, Region, Stmt, Store, int_const, substitute_stmt
from weft.loop.passes.copies import Names, copy_stmt
from weft.loop.printer import print_program, print_stmt
from weft.scheduling.intrinsic import Form, Intrinsic, Operand, OperandView, find
from weft.scheduling.region import Access, Poly, at_least_zero, certain, greatest, interval, number, poly
from weft.scheduling.rewrite import clean, conditions, domain, own_nest, ranges
from weft.scheduling.tree import Path, Tree, conjuncts
from weft.tensor.language import Read

STEP = "tensorize"
ANNOTATION = "tensorize"

_COMMUTATIVE = (Add, Mul, BitAnd, BitOr, BitXor, And, Or, Eq, Ne)

Pair: TypeAlias = tuple[Expr, Expr]
"""A leaf of the meaning (a Read or an axis) and what stands in its place in the block."""


def tensorize(program: Program, name: str, intrinsic: str, *, intrinsics: Mapping[str, Intrinsic]) -> tuple[Program, None]:
    """The loop `name` and all inside it, one block's tile, become the code of an intrinsic; a block's name means the nest that holds it alone.

        for i_0 in n { for k_0 in 4 { for i_1 in 8 { for j in 8 { for k_1 in 8 { block C(…) init { C[…] = 0.0f32 } { C[…] = C[…] + A[…]*B[…] } } } } } }
        → tensorize("i_1", "gemm8x8")
        for i_0 in n { for k_0 in 4 {
          block C(vi: n = i_0, vk: reduce 4 = k_0) reads(A[vi*8 for 8, vk*8 for 8], B[…], C[…]) writes(C[vi*8 for 8, 0 for 8]) @ tensorize="gemm8x8" {
            init { @fill_zero(C[vi*8, 0]) }
            @fuse_gemm8x8_add(A[vi*8, vk*8], B[vk*8, 0], C[vi*8, 0])
          } } }

    A block that starts its sum and finishes it in the tile becomes `compute`; one whose sum goes on outside becomes `reset` (where it starts) and
    `update`; one whose start was decomposed becomes `update`, and its start, tensorized by itself, `reset`.

    The block's formula and the meaning agree up to names, the order of loops, loops of one trip and the order of operands of commutative
    operations; indices may hold symbols. All conditions must be certain in the whole tile. The operands' scopes, alignment and strides must be
    as the intrinsic asks, as far as formulas and declarations of buffers tell. `intrinsics` comes from the Schedule.
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
        close = nearest(name, {**tree.loop_paths, **tree.block_paths})
        hint = f"did you mean '{close}'?" if close else f"blocks: {', '.join(tree.block_paths) or 'none'}"
        raise tree.error(STEP, f"there is no loop or block '{name}'", hint=hint)
    return _Tensorize(tree, path, top, name, chosen).run(), None


@dataclass(frozen=True)
class _Tile:
    """One way to see the tile: what the block's iterators are, over the loops outside and the variables of the tile, and those: extent and kind."""

    values: dict[str, Expr]
    variables: dict[str, tuple[int, str]]

    def __str__(self) -> str:
        return ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, (n, kind) in self.variables.items()) or "one step"


@dataclass(frozen=True)
class _Match:
    views: tuple[OperandView | Const, ...]
    regions: tuple[Region, ...]  # of what the placeholders read
    written: Region


class _No(Exception):
    """Why a way to see the tile does not do. The later the check (`depth`), the better it tells the user what is wrong."""

    def __init__(self, depth: int, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.depth, self.why, self.hint = depth, why, hint


class _Tensorize:
    def __init__(self, tree: Tree, path: Path, top: int, name: str, intrinsic: Intrinsic) -> None:
        self.tree, self.path, self.name, self.intrinsic = tree, path, name, intrinsic
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
        meant = self.intrinsic.at(dict.fromkeys(self.intrinsic.lengths, 1))
        right = ["the meaning", *_wrapped(print_program(meant.program()))]
        width = max(map(len, left))
        where = "\n".join(f"{a:<{width}} | {b}".rstrip() for a, b in zip_longest(left, right, fillvalue=""))
        what = f"tensorize may not put '{self.intrinsic.name}' in the place of '{self.name}' in program '{self.tree.program.name}'"
        raise ScheduleError(what, where=where, why=why, hint=hint)

    def run(self) -> Program:
        b = self.block
        if b.reads is not None or b.writes is not None:
            self.fail(f"block '{b.name}' states what it reads and writes: its body is code already")
        for f in self.nest:
            if f.kind != "serial":
                self.fail(f"loop '{f.var.name}' is {f.kind}", "the instruction takes the place of its loops: decide about those outside only")
            if int_const(f.extent) is None:
                self.fail(f"the extent {f.extent} of loop '{f.var.name}' is not constant", f"split it first: split('{f.var.name}', [None, 8])")
        self.loops = {**self.outer, **{f.var.name: f.extent for f in self.nest}}
        predicate = self.conditions()
        if not isinstance(b.body, Store) or b.body.predicate is not None:
            self.fail(f"the body of block '{b.name}' is not one store")
        self.store: Store = b.body
        self.tiles = self.ways()
        if self.intrinsic.lengths:
            self.tiles = self.tiles[:1]
            self.intrinsic = self.fitted(self.tiles[0])
        reads, body, init, written = self.forms()
        return self.tree.replace(self.path, self.opaque(reads, body, init, written, predicate))

    # -- the tile
    def conditions(self) -> Expr:
        """The block's conditions that the tile does not decide; they must not depend on it."""
        inside = {f.var.name for f in self.nest if int_const(f.extent) != 1}
        known = conditions(self.path[:-1], self.path[-1])
        left = []
        for c in conjuncts(self.block.predicate):
            if certain(clean(c, self.loops), self.loops, known):
                continue
            if inside & free_vars(c).keys():
                hint = f"pad_loop makes the tiles of '{self.block.name}' whole, or split by a divisor"
                self.fail(f"the condition {c} does not hold in the whole tile for certain", hint)
            left.append(c)
        return all_of(left)

    def ways(self) -> list[_Tile]:
        """The tile by its loops as they are, and by the block's iterators where several loops make up one."""
        ones: dict[str, Expr] = {f.var.name: const(0) for f in self.nest if int_const(f.extent) == 1}
        sizes = {f.var.name: int(int_const(f.extent) or 0) for f in self.nest if f.var.name not in ones}
        b = self.block
        bindings = {i.var.name: clean(substitute(x, ones), self.loops) for i, x in zip(b.iters, b.bindings)}
        kinds: dict[str, str] = {}
        for i in b.iters:
            for v in free_vars(bindings[i.var.name]).keys() & sizes.keys():
                if i.kind == "scan" or kinds.setdefault(v, i.kind) != i.kind:
                    self.fail(f"loop '{v}' drives a {i.kind} iterator" + ("" if i.kind == "scan" else f" and a {kinds[v]} iterator") + f" of '{b.name}'")
        idle = [v for v in sizes if v not in kinds]
        if idle:
            self.fail(f"loop '{idle[0]}' drives no iterator of '{b.name}'")
        result = [_Tile(bindings, {v: (sizes[v], kinds[v]) for v in sizes})]
        merged, variables, driven = dict(bindings), {}, [v for x in bindings.values() for v in free_vars(x).keys() & sizes.keys()]
        if len(driven) == len(set(driven)):
            for i in b.iters:
                outside, digits = _split(poly(bindings[i.var.name]), sizes.keys())
                own = free_vars(bindings[i.var.name]).keys() & sizes.keys()
                if digits is None or (own and not _dense({v: c.constant for v, c in digits.items()}, sizes)):
                    return result
                if own:
                    t = Var(self.tree.fresh(f"{i.var.name}_tile"), dt.int64)
                    size = 1
                    for v in own:
                        size *= sizes[v]
                    merged[i.var.name] = outside.expr() + t
                    variables[t.name] = (size, i.kind)
            if len(variables) < len(sizes):
                result.append(_Tile(merged, variables))  # type: ignore[arg-type]
        return result

    def fitted(self, tile: _Tile) -> Intrinsic:
        """The intrinsic with the extents of the tile's loops for lengths: the innermost loop is the last axis of its kind, what is left over is 1."""
        extents: dict[Var, int | Var] = dict(zip(self.intrinsic.source.axes, self.intrinsic.source.shape))  # type: ignore[arg-type]
        kinds = dict.fromkeys(extents, "spatial")
        for a in self.intrinsic.reduction.axes if self.intrinsic.reduction is not None else ():
            extents[a.var], kinds[a.var] = a.extent, "reduce"  # type: ignore[assignment]
        sizes = dict.fromkeys(self.intrinsic.lengths, 1)
        for kind in ("spatial", "reduce"):
            loops = [n for n, k in tile.variables.values() if k == kind]
            for n in (n for v, n in extents.items() if kinds[v] == kind and isinstance(n, int) and n > 1):
                if n in loops:
                    loops.remove(n)
            lengths = [n.name for v, n in extents.items() if kinds[v] == kind and isinstance(n, Var)]
            if len(loops) > len(lengths):
                self.fail(f"the tile runs over {tile}, the instruction has {len(lengths)} {kind} length(s)", "name an inner loop")
            sizes.update(zip(lengths[len(lengths) - len(loops) :], loops))
        broken = self.intrinsic.broken(sizes)
        if broken is not None:
            self.fail(f"its lengths would be {', '.join(f'{v} = {n}' for v, n in sizes.items())}: {broken} does not hold", "split the loops")
        return self.intrinsic.at(sizes)

    # -- which code
    def forms(self) -> tuple[tuple[Region, ...], Stmt, Stmt | None, Region]:
        """What is read, the body, the init, what is written."""
        x, b = self.intrinsic, self.block
        reduce = x.reduction
        if reduce is None:
            if b.init is not None:
                self.fail(f"block '{b.name}' is a reduction, the meaning of '{x.name}' is none")
            m = self.match(x.source.bodies[0])
            return m.regions, x.emit("compute", *m.views), None, m.written
        start = simplify(reduce.init[0])
        if b.init is None and not any(isinstance(n, Load) and n.buffer.name == self.store.buffer.name for n in _leaves(self.store.value)):
            m = self.match(start, start=True)
            return (), self.code("reset", "it is the start of a sum", *m.views), None, m.written
        (value,) = reduce.reducer.combine([Read(x.held, x.source.axes)], list(reduce.values))
        m = self.match(value)
        held = (*m.regions, m.written)
        if b.init is None:
            return held, self.code("update", "its sum was started elsewhere", *m.views), None, m.written
        if not isinstance(b.init, Store) or (b.init.buffer, b.init.indices) != (self.store.buffer, self.store.indices) or simplify(b.init.value) != start:
            self.fail(f"block '{b.name}' starts its sum otherwise than the meaning, which starts from {start}")
        if not self.goes_on():
            return m.regions, x.emit("compute", *m.views), None, m.written
        why = "its sum goes on outside the tile"
        return held, self.code("update", why, *m.views), self.code("reset", why, m.views[-1]), m.written

    def code(self, form: Form, why: str, *views: OperandView | Const) -> Stmt:
        if self.intrinsic.code(form) is None:
            self.fail(f"'{self.intrinsic.name}' has no code to {form} the result, and block '{self.block.name}' needs it: {why}")
        return self.intrinsic.emit(form, *views)

    def goes_on(self) -> bool:
        """Whether the reduction has steps outside the tile. Its first must be at the first step of every loop: that is where the start is stored."""
        values = self.tiles[0].values
        reduced = [values[i.var.name] for i in self.block.iters if i.kind == "reduce"]
        outside = {v for x in reduced for v in free_vars(x) if v in self.outer and int_const(self.outer[v]) != 1}
        first = {v: const(0) for x in reduced for v in free_vars(x) if v in self.loops}
        if any(simplify(substitute(x, first)) != const(0) for x in reduced):
            self.fail(f"the sum of block '{self.block.name}' does not begin where its loops do")
        return bool(outside)

    # -- matching
    def match(self, pattern: Expr, start: bool = False) -> _Match:
        """The operands in the program. `start`: the pattern is the start of a sum, where the result alone is seen."""
        axes = [(v.name, n, kind) for v, n, kind in self.intrinsic.axes if not (start and kind == "reduce")]
        ones = {v: const(0) for v, n, _ in axes if n == 1}
        pattern = simplify(substitute(pattern, ones), ranges({v: const(n) for v, n, _ in axes}))
        axes = [a for a in axes if a[0] not in ones]
        numbers = {id(t) for o, t in zip(self.intrinsic.operands, self.intrinsic.tensors) if o.number}
        best = _No(0, f"the formula of block '{self.block.name}' is not that of the meaning")
        for tile in self.tiles:
            known = {**self.outer, **{v: const(n) for v, (n, _) in tile.variables.items()}}

            def inside(e: Expr, tile: _Tile = tile, known: Mapping[str, Expr] = known) -> Expr:
                return clean(substitute(e, tile.values), known)

            value, place = inside(self.store.value), tuple(inside(i) for i in self.store.indices)
            for pairs in _unify(pattern, value, (), numbers):
                try:
                    assignments = list(_assign(axes, tile.variables))
                    if not assignments:
                        meant = ", ".join(f"{v}: {'reduce ' if kind == 'reduce' else ''}{n}" for v, n, kind in axes) or "one step"
                        raise _No(1, f"the tile runs over {tile}, the meaning over {meant}")
                    for names in assignments:
                        try:
                            return _Place(self.intrinsic, tile, known, names, ones).operands(pairs, self.store.buffer, place, start)
                        except _No as no:
                            best = max(best, no, key=lambda n: n.depth)
                except _No as no:
                    best = max(best, no, key=lambda n: n.depth)
        self.fail(best.why, best.hint)

    # -- the result
    def opaque(self, reads: tuple[Region, ...], body: Stmt, init: Stmt | None, written: Region, predicate: Expr) -> Block:
        b = self.block
        kinds: dict[str, str] = {}
        names: dict[str, str] = {}
        for i in b.iters:
            for v in free_vars(self.tiles[0].values[i.var.name]).keys() & self.outer.keys():
                if kinds.setdefault(v, i.kind) != i.kind:
                    self.fail(f"loop '{v}' drives a {kinds[v]} and a {i.kind} iterator of '{b.name}'")
                if i.var.name not in names.values():
                    names.setdefault(v, i.var.name)
        fresh: dict[str, Var] = {v: Var(names.get(v) or self.tree.fresh(f"{v}_v"), dt.int64) for v in self.outer if v in kinds}
        values: dict[str, Expr] = dict(fresh)
        iters, bindings = [], []
        for v, var in fresh.items():
            most = greatest(poly(self.outer[v]), {k: x for k, x in self.outer.items() if k != v})
            if most is None or most.names() & self.outer.keys():
                self.fail(f"the extent {self.outer[v]} of loop '{v}' has no bound that stays")
            iters.append(BlockIter(var, most.expr(), kinds[v]))  # type: ignore[arg-type]
            bindings.append(Var(v, dt.int64))
        if not iters:
            iters, bindings = [BlockIter(Var(b.iters[0].var.name if b.iters else self.tree.fresh(f"{b.name}_v"), dt.int64), const(1))], [const(0)]  # type: ignore[list-item]
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
            annotations=(*b.annotations, (ANNOTATION, self.intrinsic.name)),
        )


def _wrapped(text: str, width: int = 76) -> list[str]:
    """The lines, cut where there is a blank so that two columns fit beside one another."""
    result = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        result += wrap(line, width, subsequent_indent=indent + "    ", break_long_words=False, break_on_hyphens=False, drop_whitespace=True) or [""]
    return result


def _leaves(e: Expr) -> Iterator[Expr]:
    stack = [e]
    while stack:
        n = stack.pop()
        yield n
        stack.extend(n.children())


def _unify(p: Expr, e: Expr, pairs: tuple[Pair, ...], numbers: Container[int]) -> Iterator[tuple[Pair, ...]]:
    """Every way in which the formula `e` is `p` with elements of buffers (constants, of tensors in `numbers`) in the place of reads, and indices in the
    place of axes.
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
    elif type(p) is type(e) and len(p.children()) == len(e.children()) and not (isinstance(p, Call) and p.name != e.name):  # type: ignore[attr-defined]
        swaps = isinstance(p, _COMMUTATIVE) or (isinstance(p, (Min, Max)) and p.dtype.is_integer)
        for order in [e.children(), e.children()[::-1]] if swaps else [e.children()]:
            found = iter([pairs])
            for a, b in zip(p.children(), order):
                found = iter([more for known in found for more in _unify(a, b, known, numbers)])
            yield from found


def _assign(axes: Sequence[tuple[str, int, str]], variables: Mapping[str, tuple[int, str]]) -> Iterator[dict[str, str]]:
    """Every way to give each axis a variable of the tile of its extent and kind, none left over."""
    if not axes:
        if not variables:
            yield {}
        return
    (axis, size, kind), *rest = axes
    for v, have in variables.items():
        if have == (size, kind):
            for more in _assign(rest, {k: x for k, x in variables.items() if k != v}):
                yield {axis: v, **more}


def _split(p: Poly, names: object) -> tuple[Poly, dict[str, Poly] | None]:
    """The part of a polynomial without the named variables, and the factor of each; None for those if it is not linear in them."""
    rest: dict[tuple[Expr, ...], int] = {}
    factors: dict[str, dict[tuple[Expr, ...], int]] = {}
    for monomial, c in p.terms.items():
        inside = [a for a in monomial if free_vars(a).keys() & names]  # type: ignore[operator]
        if not inside:
            rest[monomial] = c
            continue
        if len(inside) > 1 or not isinstance(inside[0], Var):
            return p, None
        others = list(monomial)
        others.remove(inside[0])
        factors.setdefault(inside[0].name, {})[tuple(others)] = c
    return Poly(rest), {v: Poly(t) for v, t in factors.items()}


def _dense(factors: Mapping[str, int | None], sizes: Mapping[str, int]) -> bool:
    """Whether Σ factor · variable takes every value from 0 on, each once."""
    reach = 1
    for v, c in sorted(factors.items(), key=lambda f: f[1] or 0):
        if c != reach:
            return False
        reach *= sizes[v]
    return True


class _Place:
    """An assignment of the tile's variables to axes, followed through the operands."""

    def __init__(self, intrinsic: Intrinsic, tile: _Tile, known: Mapping[str, Expr], names: Mapping[str, str], ones: Mapping[str, Expr]) -> None:
        self.intrinsic, self.tile, self.known, self.names, self.ones = intrinsic, tile, known, names, ones

    def operands(self, pairs: Sequence[Pair], result: Buffer, place: tuple[Expr, ...], start: bool) -> _Match:
        x = self.intrinsic
        for p, e in pairs:
            if isinstance(p, Var) and poly(e) != poly(Var(self.names.get(p.name, p.name), dt.int64)):
                raise _No(2, f"the value uses {e} where the meaning has '{p.name}'")
        for p, e in pairs:
            if isinstance(p, Read) and p.tensor is x.held and not (isinstance(e, Load) and (e.buffer, e.indices) == (result, place)):
                raise _No(2, f"the sum does not go on from what it stores to: it reads {e}")
        own = Read(x.meaning, x.source.axes)
        accesses: list[list[tuple[Read, Load | Const]]] = [[(p, e) for p, e in pairs if isinstance(p, Read) and p.tensor is t] for t in x.tensors[:-1]]  # type: ignore[misc]
        accesses.append([(own, Load(result, place))])
        views: list[OperandView | Const] = []
        regions: list[list[Region]] = []
        for k, found in enumerate(accesses):
            if start and k < len(accesses) - 1:
                continue
            views.append(self.view(k, found))
            regions.append([self.region(e) for _, e in found if isinstance(e, Load)])
        if any(isinstance(v, OperandView) and v.buffer.name == result.name for v in views[:-1]):
            raise _No(3, f"it reads and writes '{result.name}', which the code would overwrite while it reads", "cache_read or cache_write first")
        moving = {v: const(n) for v, (n, _) in self.tile.variables.items()}
        if not Access(result, place, True, None).fills(moving):
            raise _No(3, f"the tile of '{result.name}' has gaps: what is written could not be said")
        box, steps = number(1), 1
        for _, extent in regions[-1][0].ranges:
            box = box * poly(extent)
        for size, kind in self.tile.variables.values():
            steps *= size if kind == "spatial" else 1
        if box != number(steps):
            raise _No(3, f"steps of the tile store to the same element of '{result.name}'")
        for k, view in zip(range(len(accesses) - len(views), len(accesses)), views):
            if isinstance(view, OperandView):
                self.check(k, view)
        return _Match(tuple(views), tuple(r for rs in regions[:-1] for r in rs), regions[-1][0])

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

    def place(self, operand: Operand, rank: int, read: Read, load: Load) -> tuple[Buffer, tuple[Expr, ...], tuple[tuple[Expr, ...], ...]]:
        """Where the operand begins and what a step along each of its dimensions moves, by one access."""
        meant = [poly(substitute(i, self.ones)) for i in read.indices]
        parts = [_split(p, self.names.keys()) for p in meant]
        factors: list[dict[str, int]] = []
        for (rest, linear), p in zip(parts, meant):
            if linear is None or rest.constant is None or any(c.constant is None for c in linear.values()):
                raise _No(2, f"the meaning reads '{operand.name}' at {p.expr()}, which is no sum of axes times constants")
            factors.append({v: int(c.constant or 0) for v, c in linear.items()})
        actual = [_split(poly(i), self.tile.variables.keys()) for i in load.indices]
        for (_, linear), i in zip(actual, load.indices):
            if linear is None:
                raise _No(2, f"the index {i} of '{load.buffer.name}' is not linear in the loops of the tile", "split so that the tile lies in one block of it")
        steps: list[list[Poly]] = []
        for d in range(rank):
            # An axis that only this dimension has tells what a step along it is.
            own = [v for v, c in factors[d].items() if c and not any(v in f for k, f in enumerate(factors) if k != d)]
            step = []
            for _, linear in actual:
                assert linear is not None
                moved = linear.get(self.names[own[0]], number(0)) if own else number(0)
                c = factors[d][own[0]] if own else 1
                if any(value % c for value in moved.terms.values()):
                    raise _No(2, f"'{operand.name}' moves by {moved.expr()} in '{load.buffer.name}', which is no multiple of {c}")
                step.append(Poly({m: value // c for m, value in moved.terms.items()}))
            steps.append(step)
        base = []
        for b, (rest, linear) in enumerate(actual):
            assert linear is not None
            for axis, v in self.names.items():
                wanted = number(0)
                for d in range(rank):
                    wanted = wanted + steps[d][b].scale(factors[d].get(axis, 0))
                if linear.get(v, number(0)) != wanted:
                    raise _No(2, f"operand '{operand.name}' does not lie in '{load.buffer.name}' as the meaning reads it: {load} is not {read}")
            first = rest
            for d, (constant, _) in enumerate(parts):
                first = first - steps[d][b].scale(int(constant.constant or 0))
            base.append(first.expr())
        if not all(at_least_zero(s) for step in steps for s in step):
            raise _No(2, f"'{load.buffer.name}' is walked backwards")
        return load.buffer, tuple(base), tuple(tuple(s.expr() for s in step) for step in steps)

    def region(self, load: Load) -> Region:
        moving = {v: const(n) for v, (n, _) in self.tile.variables.items()}
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
            hint = f"cache_read it into {wanted}" if k < len(self.intrinsic.operands) - 1 else f"cache_write or set_scope to {wanted}"
            raise _No(5, f"operand '{operand.name}' must lie in scope {wanted}, '{b.name}' lies in '{b.scope}'", hint)
        asked = operand.strides or self.intrinsic.dense(k)
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            stride = poly(clean(have, self.known))
            if want is not None and tensor.shape[d] != 1 and stride.constant != want:
                why = f"dimension {d} of operand '{operand.name}' has stride {want}, in '{b.name}' it is {stride.expr()}"
                raise _No(4, why, "copy the tile: cache_read (or cache_write), then compact_buffer")
        first: Expr = const(0)
        for i, n in zip(view.indices, b.shape):
            first = first * n + i
        size = b.dtype.scalar.bytes
        sure = b.align % operand.align == 0 and all(c * size % operand.align == 0 for c in poly(clean(first, self.known)).terms.values())
        if operand.align > 1 and not sure:
            why = f"operand '{operand.name}' must be aligned to {operand.align} bytes; '{b.name}' is aligned to {b.align}, its first element is {first}"
            raise _No(5, why, "copy the tile, or pad the rows of the buffer: compact_buffer(…, align=…)")
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            step = poly(clean(have, self.known))
            if want is None and tensor.shape[d] != 1 and any(c * size % operand.align for c in step.terms.values()):
                why = f"rows of operand '{operand.name}' must be aligned to {operand.align} bytes; in '{b.name}' they are {step.expr()} elements apart"
                raise _No(5, why, "pad the rows of the buffer: compact_buffer(…, align=…)")
