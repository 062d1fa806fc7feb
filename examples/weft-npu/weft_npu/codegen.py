"""Code generation: a lowered loop Program becomes instructions.

A store in its own loops becomes copies or vector instructions: what only moves elements between DRAM and the chip is a copy of up to four dimensions; a
formula on what lies on the chip is evaluated operation by operation on vectors of rows, results in between in the memory "vectors". Calls are those of
`weft_npu.intrinsics`. Conditions on loops cut the loops; where an address or a condition is no affine formula of a loop's counter, this loop is written
out. A buffer that is allocated in a loop has two places, taken in turn, if there is room: so the next iteration is copied in while this one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from weft import dtypes as dt
from weft.codegen.base import KernelCode
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
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    free_vars,
    substitute,
    transform,
    walk,
)
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import Allocate, Block, Buffer, Evaluate, For, If, IntrinsicCall, Let, Load, Program, Seq, Stmt, Store, int_const, stmt_children
from weft_npu.isa import DRAM, MAX_RANK, MEMORIES, ROWS, TILE, VECTOR, Instruction, Kernel, Term, View, encode

DISTRIBUTION = "weft-npu"
SCOPES = {f"npu.{name}": number for number, name in enumerate(MEMORIES)}
ALIGN = 256  # bytes, the machine's interlocks
MOST_UNROLLED = 512
MOST_PIECES = 4096
"""Boxes that a kernel is cut into at most: one of more is not meant for this machine."""
CALLS = ("fill_zero", "gemm8x8", "fuse_gemm8x8_add", "gemm1x8", "fuse_gemm1x8_add")
_BINARY: dict[type[Expr], str] = {Add: "add", Sub: "sub", Mul: "mul", Div: "div", Max: "max", Min: "min", Lt: "lt", Le: "le", Eq: "eq", And: "and", Or: "or"}


class _Unfit(Exception):
    """What no instruction can do; writing out one of the loops `loops` may help."""

    def __init__(self, why: str, loops: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.why, self.loops = why, frozenset(loops)


class _TooLong(Exception):
    """The kernel falls into more than MOST_PIECES."""


@dataclass(frozen=True)
class _Home:
    """Where a buffer lies: first element; `ring`: the depth of the loop by whose counter two places are taken in turn, and the size of one."""

    memory: int
    base: int = 0
    ring: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Access:
    """An element of a buffer: Σ steps[loop]·counter + first."""

    home: _Home
    steps: Mapping[str, int]
    first: int

    def step(self, loop: str) -> int:
        return self.steps.get(loop, 0)


@dataclass
class _Nest:
    """The loops that hold one store alone: name → (first, end)."""

    box: dict[str, tuple[int, int]]
    conditions: list[Expr]
    store: Store


class NpuCodegen:
    """See the module. `memories`: bytes of each; `double`: whether buffers in loops get two places."""

    functions = frozenset({"exp", "log", "sqrt", "tanh", "erf", "floor", "ceil", "abs", "fma"})

    def __init__(self, memories: tuple[int, int, int, int], double: bool = True) -> None:
        self.memories, self.double = memories, double

    def check(self, program: Program) -> list[str]:
        return self._emitted(program).problems

    def compile(self, program: Program) -> KernelCode:
        emitted = self._emitted(program)
        kernel = Kernel(len(program.params) + len(emitted.scratch), self.memories, tuple(emitted.code))
        return KernelCode(program.name, encode(kernel), tuple(const(4 * n) for n in emitted.scratch))

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done

    def _emitted(self, program: Program) -> _Emitter:
        emitter = _Emitter(program, self.memories, self.double)
        emitter.run()
        return emitter


def _elements(b: Buffer) -> int | None:
    total = 1
    for d in b.shape:
        n = int_const(simplify(d))
        if n is None:
            return None
        total *= n
    return total


@dataclass
class _Emitter:
    program: Program
    memories: tuple[int, int, int, int]
    double: bool
    code: list[Instruction] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    homes: dict[str, _Home] = field(default_factory=dict)
    loops: list[tuple[str, int]] = field(default_factory=list)  # those in the code, outermost first
    known: dict[str, Expr] = field(default_factory=dict)  # lets, and loops that are written out
    used: dict[int, int] = field(default_factory=dict)
    doubled: frozenset[str] = frozenset()
    pieces: int = 0

    def run(self) -> None:
        p = self.program
        if p.dims:
            self.problems.append(f"sizes that only a run knows: {', '.join(d.name for d in p.dims)}")
            return
        for k, b in enumerate(p.params):
            self.homes[b.name] = _Home(DRAM + k)
            self._check_buffer(b)
        self._plan()
        if self.problems:
            return
        try:
            self._guarded(p.body)
        except _TooLong:
            self.problems.append(f"its conditions cut it into more than {MOST_PIECES} pieces")

    # -- memory
    def _check_buffer(self, b: Buffer) -> None:
        if b.dtype != dt.float32:
            self.problems.append(f"buffer '{b.name}' holds {b.dtype}, the npu computes in float32")
        if _elements(b) is None:
            self.problems.append(f"the size of buffer '{b.name}' is not known")
        if b.scope != "global" and b.scope not in SCOPES:
            self.problems.append(f"buffer '{b.name}' lies in '{b.scope}'; the npu has {', '.join(SCOPES)}")

    def _plan(self) -> None:
        """Which buffers get two places: all that are allocated in loops, less the largest ones until everything has room."""
        inside: dict[str, int] = {}

        def look(s: Stmt, looped: bool) -> None:
            if isinstance(s, Allocate):
                self._check_buffer(s.buffer)
                if looped and s.buffer.scope in SCOPES:
                    inside[s.buffer.name] = _elements(s.buffer) or 0
            for c in stmt_children(s):
                look(c, looped or (isinstance(s, For) and int_const(s.extent) != 1))

        look(self.program.body, False)
        if self.problems:
            return
        chosen = sorted(inside, key=lambda n: inside[n]) if self.double else []
        wanted: dict[int, int] = {}
        while True:
            wanted = self._peak(self.program.body, frozenset(chosen))
            over = {m for m, n in wanted.items() if n > self.memories[m]}
            if not over:
                break
            fit = [n for n in chosen if SCOPES[self._scope(n)] in over]
            if not fit:
                for m in sorted(over):
                    self.problems.append(f"{DISTRIBUTION}: the schedule wants {wanted[m]} bytes of scope 'npu.{MEMORIES[m]}', there are {self.memories[m]}")
                return
            chosen.remove(fit[-1])
        self.doubled = frozenset(chosen)

    def _scope(self, name: str) -> str:
        stack: list[Stmt] = [self.program.body]
        while stack:
            s = stack.pop()
            if isinstance(s, Allocate) and s.buffer.name == name:
                return s.buffer.scope
            stack.extend(stmt_children(s))
        return "global"

    def _peak(self, s: Stmt, doubled: frozenset[str]) -> dict[int, int]:
        """Bytes of each memory that a statement needs at once."""
        result: dict[int, int] = {}
        for c in stmt_children(s):
            for m, n in self._peak(c, doubled).items():
                result[m] = max(result.get(m, 0), n)
        if isinstance(s, Allocate) and s.buffer.scope in SCOPES:
            m = SCOPES[s.buffer.scope]
            result[m] = result.get(m, 0) + _room(s.buffer) * (2 if s.buffer.name in doubled else 1)
        return result

    def _allocate(self, b: Buffer) -> None:
        if b.scope == "global":
            self.homes[b.name] = _Home(DRAM + len(self.program.params) + len(self.scratch))
            self.scratch.append(_elements(b) or 0)
            return
        m = SCOPES[b.scope]
        base, ring = self.used.get(m, 0), None
        self.used[m] = base + _room(b) * (2 if b.name in self.doubled else 1)
        if b.name in self.doubled and self.loops:
            ring = (len(self.loops) - 1, _room(b) // 4)
        self.homes[b.name] = _Home(m, base // 4, ring)

    # -- statements
    def _guarded(self, s: Stmt) -> None:
        """A statement; what no loop around can mend is noted, and the rest goes on."""
        mark, loops, used, scratch = len(self.code), len(self.loops), dict(self.used), len(self.scratch)
        try:
            self._stmt(s)
        except _Unfit as unfit:
            del self.code[mark:], self.loops[loops:], self.scratch[scratch:]
            self.used = used
            if unfit.loops & {name for name, _ in self.loops}:
                raise
            if unfit.why not in self.problems:
                self.problems.append(unfit.why)

    def _stmt(self, s: Stmt) -> None:
        match s:
            case Seq():
                for c in s.stmts:
                    self._guarded(c)
            case Allocate():
                used = dict(self.used)
                self._allocate(s.buffer)
                self._stmt(s.body)
                self.used = used
            case Let():
                self.known[s.var.name] = substitute(s.value, self.known)
                self._stmt(s.body)
                del self.known[s.var.name]
            case If():
                self._if(s)
            case Store():
                self._store(_Nest({}, [], s))
            case Evaluate():
                self._call(s.call)
            case For():
                self._for(s)
            case _:
                what = f"block '{s.name}'" if isinstance(s, Block) else type(s).__name__
                raise _Unfit(f"the npu has no instruction for {what}")

    def _if(self, s: If) -> None:
        cond = self._decided(substitute(s.cond, self.known), {})
        if not isinstance(cond, Const):
            nest = self._nest(s)
            if nest is None:
                raise _Unfit(f"the condition {cond} is decided by data, or by no loop alone", list(free_vars(cond)))
            self._store(nest)
        elif cond.value:
            self._stmt(s.then)
        elif s.orelse is not None:
            self._stmt(s.orelse)

    def _for(self, s: For) -> None:
        nest = self._nest(s)
        if nest is not None:
            self._store(nest)
            return
        trips = self._trips(s)
        if trips == 1:
            self._written_out(s, 1)
            return
        mark, used, scratch = len(self.code), dict(self.used), len(self.scratch)
        try:
            self.loops.append((s.var.name, trips))
            self.code.append(Instruction("loop", (trips,)))
            self._stmt(s.body)
            self.code.append(Instruction("end"))
            self.loops.pop()
        except _Unfit as unfit:
            if s.var.name not in unfit.loops or trips > MOST_UNROLLED:
                raise
            names = [n for n, _ in self.loops]
            del self.code[mark:], self.scratch[scratch:], self.loops[names.index(s.var.name) :]
            self.used = used
            self._written_out(s, trips)

    def _written_out(self, s: For, trips: int) -> None:
        scratch = len(self.scratch)
        for k in range(trips):
            if k:
                del self.scratch[scratch:]  # of one iteration at a time
            self.known[s.var.name] = const(k)
            self._stmt(s.body)
        self.known.pop(s.var.name, None)

    def _trips(self, s: For) -> int:
        n = int_const(simplify(substitute(s.extent, self.known), self._ranges({})))
        if n is None:
            raise _Unfit(f"loop '{s.var.name}' runs {s.extent} times, which is no constant", list(free_vars(s.extent)))
        return n

    def _nest(self, s: Stmt) -> _Nest | None:
        """The loops down to one store, if there is nothing else in them."""
        box: dict[str, tuple[int, int]] = {}
        conditions: list[Expr] = []
        lets: dict[str, Expr] = dict(self.known)
        while True:
            if isinstance(s, For):
                n = int_const(simplify(substitute(s.extent, lets), self._ranges(box)))
                if n is None:
                    return None
                box[s.var.name] = (0, n)
                s = s.body
            elif isinstance(s, Let):
                lets[s.var.name] = substitute(s.value, lets)
                s = s.body
            elif isinstance(s, If) and s.orelse is None:
                conditions.append(substitute(s.cond, lets))
                s = s.then
            elif isinstance(s, Store):
                value = substitute(s.value, lets)
                if s.predicate is not None:
                    conditions.append(substitute(s.predicate, lets))
                indices = tuple(substitute(i, lets) for i in s.indices)
                return _Nest(box, conditions, Store(s.buffer, indices, value))
            else:
                return None

    # -- conditions
    def _ranges(self, box: Mapping[str, tuple[int, int]]) -> dict[str, Range]:
        return {name: Range(0, n - 1) for name, n in self.loops} | {v: Range(lo, hi - 1) for v, (lo, hi) in box.items()}

    def _decided(self, cond: Expr, box: Mapping[str, tuple[int, int]]) -> Expr:
        return simplify(cond, self._ranges(box))

    def _store(self, nest: _Nest) -> None:
        """A nest, cut into boxes in which every condition on loops is decided."""
        for n in _boxes(nest, self._ranges, {name for name, _ in self.loops}):
            self._blocks(n)

    def _blocks(self, nest: _Nest) -> None:
        """A box, cut where i//8 or i%8 begins anew in addresses that are not affine otherwise."""
        mark = len(self.code)
        self.pieces += 1
        if self.pieces > MOST_PIECES:
            raise _TooLong
        try:
            self._box(nest)
        except _Unfit as unfit:
            del self.code[mark:]
            s = nest.store
            for e in (x for i in (*s.indices, s.value) for x in walk(i)):
                if isinstance(e, (FloorDiv, FloorMod)) and isinstance(e.a, Var) and isinstance(e.b, Const) and e.a.name in unfit.loops & nest.box.keys():
                    (lo, hi), size = nest.box[e.a.name], int(e.b.value)
                    cut = (lo // size + 1) * size
                    if cut < hi:
                        for ends in ((lo, cut), (cut, hi)):
                            self._blocks(replace(nest, box={**nest.box, e.a.name: ends}))
                        return
            raise

    # -- one box
    def _box(self, nest: _Nest) -> None:
        box = {v: ends for v, ends in nest.box.items() if ends[1] - ends[0] > 1}
        firsts: dict[str, Expr] = {v: const(lo) for v, (lo, hi) in nest.box.items() if hi - lo == 1}
        store = nest.store
        value = substitute(store.value, firsts)
        target = self._access(store.buffer, tuple(substitute(i, firsts) for i in store.indices), box)
        loads: dict[Expr, _Access] = {}
        for e in walk(value):
            if isinstance(e, Load):
                if e.predicate is not None:
                    raise _Unfit(f"the condition {e.predicate} of a load is decided by data")
                loads[e] = self._access(e.buffer, e.indices, box)
        outside = [e for e, a in loads.items() if a.home.memory >= DRAM]
        if target.home.memory >= DRAM or outside:
            if not isinstance(value, Load) or (target.home.memory >= DRAM) == bool(outside):
                names = sorted({str(e) for e in outside} | ({f"{store.buffer}[…]"} if target.home.memory >= DRAM else set()))
                raise _Unfit(f"a formula works on {', '.join(names)}, which lies in DRAM: cache_read or cache_write first")
            self._copy(target, loads[value], box)
        else:
            self._vector(target, value, loads, box)

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], box: Mapping[str, tuple[int, int]]) -> _Access:
        names = [*box, *(n for n, _ in self.loops)]
        (index,) = indices
        for e in (index, simplify(index, self._ranges(box))):
            parts = affine(e, names)
            if parts is not None:
                steps = {v: parts.coefficient(v) for v in parts.coefficients}
                first = simplify(parts.rest)
                if isinstance(first, Const) and None not in steps.values():
                    return _Access(self.homes[buffer.name], {v: int(c or 0) for v, c in steps.items()}, int(first.value))
        loaded = any(isinstance(e, Load) for e in walk(index))
        why = "is decided by data" if loaded else "is no affine formula of loops"
        raise _Unfit(f"the address {buffer}[{index}] {why}", [] if loaded else list(free_vars(index)))

    def _view(self, a: _Access, box: Mapping[str, tuple[int, int]], inner: Sequence[str], dims: Sequence[Sequence[tuple[str, int]]]) -> View:
        """An access as an operand: `inner` are the nest's loops in the code, `dims` per dimension its stride, as a loop and a factor."""
        base = a.home.base + a.first + sum(a.step(v) * lo for v, (lo, _) in box.items())
        depths = {name: k for k, (name, _) in enumerate(self.loops)} | {v: len(self.loops) + k for k, v in enumerate(inner)}
        terms = [Term(depths[v], c) for v, c in a.steps.items() if v in depths and c]
        if a.home.ring is not None:
            terms.append(Term(a.home.ring[0], a.home.ring[1], 2))
        strides = tuple(sum(a.step(v) * f for v, f in d) for d in dims)
        return View(a.home.memory, base, strides, tuple(sorted(terms, key=lambda t: t.loop)))

    def _looped(self, loops: Sequence[tuple[str, int]], inside: Sequence[Instruction]) -> None:
        self.code += [Instruction("loop", (n,)) for _, n in loops]
        self.code += inside
        self.code += [Instruction("end") for _ in loops]

    def _copy(self, target: _Access, source: _Access, box: Mapping[str, tuple[int, int]]) -> None:
        outside, inside = (target, source) if target.home.memory >= DRAM else (source, target)
        order = sorted(box, key=lambda v: (-abs(outside.step(v)), -abs(inside.step(v))))
        dims: list[tuple[int, str]] = []  # size, and the loop whose steps are the dimension's; neighbours that lie side by side are one
        for v in order:
            n = box[v][1] - box[v][0]
            if dims:
                m, w = dims[-1]
                if all(a.step(w) == a.step(v) * n for a in (target, source)):
                    dims[-1] = (m * n, v)
                    continue
            dims.append((n, v))
        outer, inner = dims[:-MAX_RANK], dims[-MAX_RANK:]
        if any(n != box[v][1] - box[v][0] for n, v in outer):  # merged loops cannot be addressed as loops: leave them as they are
            merged = {v for n, v in outer if n != box[v][1] - box[v][0]}
            raise _Unfit(f"a copy has too many dimensions: {', '.join(sorted(merged))}")
        shape = tuple(n for n, _ in inner) or (1,)
        loops = [v for _, v in outer]
        strides = [[(v, 1)] for _, v in inner] or [[]]
        views = tuple(self._view(a, box, loops, strides) for a in (target, source))
        self._looped([(v, n) for n, v in outer], [Instruction("dma.load" if target is inside else "dma.store", shape, views)])

    # -- vectors
    def _vector(self, target: _Access, value: Expr, loads: Mapping[Expr, _Access], box: dict[str, tuple[int, int]]) -> None:
        same = [a for a in loads.values() if a.home == target.home]
        if any((a.steps, a.first) != (target.steps, target.first) for a in same):
            raise _Unfit("a vector would overwrite what it reads elsewhere")
        everything = [target, *loads.values()]
        size = {v: hi - lo for v, (lo, hi) in box.items()}
        # A vector writes every element once: loops that come back to an element are around it, in their order.
        moving: list[str] = []
        reach = 0
        for v in sorted((v for v in box if target.step(v)), key=lambda v: abs(target.step(v))):
            if abs(target.step(v)) > reach:
                moving.append(v)
                reach += abs(target.step(v)) * (size[v] - 1)
        still = [v for v in box if v not in moving]
        if not same and any(size[v] > 1 for v in still):
            raise _Unfit("a loop stores to one element again and again")
        columns: list[str] = moving[:1]
        # Neighbouring loops that every operand walks through in one stride are one dimension.
        count = size[columns[0]] if columns else 1
        for v in moving[1:]:
            if count * size[v] <= VECTOR and all(a.step(v) == a.step(columns[0]) * count for a in everything):
                columns.append(v)
                count *= size[v]
            else:
                break
        if columns and count > VECTOR:
            v, lo, hi = columns[0], *box[columns[0]]
            part = max((d for d in range(1, VECTOR + 1) if (hi - lo) % d == 0), default=1)
            if part * 2 > VECTOR:
                self._strips(target, value, loads, box, v, part)
            else:
                for a, b in ((lo, lo + VECTOR), (lo + VECTOR, hi)):
                    self._vector(target, value, loads, {**box, v: (a, b)})
            return
        rest = [v for v in moving if v not in columns]
        rows = next((v for v in rest if size[v] * count <= VECTOR and size[v] <= ROWS), None)
        if rows is None and rest and count * 2 <= VECTOR:
            v, lo, hi = rest[0], *box[rest[0]]
            most = min(ROWS, VECTOR // count)
            part = max(d for d in range(1, most + 1) if (hi - lo) % d == 0)
            if part * 2 > most:
                self._strips(target, value, loads, box, v, part)
                return
            cut = lo + (hi - lo) // most * most
            for a, b in ((lo, cut), (cut, hi)):
                self._vector(target, value, loads, {**box, v: (a, b)})
            return
        outer = [*still, *(v for v in reversed(rest) if v != rows)]
        dims: list[list[tuple[str, int]]] = [[(rows, 1)] if rows else [], [(columns[0], 1)] if columns else []]
        shape = (size[rows] if rows else 1, count)
        views = {e: self._view(a, box, outer, dims) for e, a in loads.items()}
        code = _Formula(shape, views).run(value, self._view(target, box, outer, dims))
        self._looped([(v, size[v]) for v in outer], code)

    def _strips(self, target: _Access, value: Expr, loads: Mapping[Expr, _Access], box: dict[str, tuple[int, int]], v: str, part: int) -> None:
        """The loop `v` in pieces of `part`."""
        lo, hi = box[v]
        strip = f"{v} strip"

        def cut(a: _Access) -> _Access:
            return replace(a, steps={**a.steps, strip: a.step(v) * part}, first=a.first) if a.step(v) else a

        inner = {w: ends for w, ends in box.items() if w != v} | {v: (lo, lo + part)}
        self._vector(cut(target), value, {e: cut(a) for e, a in loads.items()}, {strip: (0, (hi - lo) // part), **inner})

    # -- calls
    def _call(self, call: IntrinsicCall) -> None:
        if call.name not in CALLS:
            raise _Unfit(f"the npu has no instruction '{call.name}'")
        operands: list[View] = []
        args = list(call.args)
        while args:
            at, pitch = args.pop(0), args.pop(0)
            assert isinstance(at, Load)
            a = self._access(at.buffer, tuple(substitute(i, self.known) for i in at.indices), {})
            stride = int_const(simplify(substitute(pitch, self.known)))
            if stride is None:
                raise _Unfit(f"the rows of '{at.buffer}' lie {pitch} elements apart, which is no constant", list(free_vars(pitch)))
            view = self._view(a, {}, (), ())
            operands.append(replace(view, strides=(stride, 1)))
        rows = 1 if "1x8" in call.name else TILE
        if call.name == "fill_zero":
            self.code.append(Instruction("fill_zero", (TILE, TILE), tuple(operands)))
        else:
            op = "fuse_gemm8x8_add" if call.name.startswith("fuse") else "gemm8x8"
            self.code.append(Instruction(op, (rows, TILE, TILE), (operands[2], operands[0], operands[1])))


def _room(b: Buffer) -> int:
    """Bytes that a buffer takes on the chip."""
    return -(-4 * (_elements(b) or 0) // ALIGN) * ALIGN


# -- conditions -----------------------------------------------------------------------------------------------------------


def _boxes(nest: _Nest, ranges: Callable[[Mapping[str, tuple[int, int]]], dict[str, Range]], outer: set[str]) -> Iterator[_Nest]:
    """A nest in pieces in which the conditions on its loops are decided; those with nothing to do are left out."""
    known = ranges(nest.box)
    conditions = [simplify(c, known) for c in nest.conditions]
    if any(isinstance(c, Const) and not c.value for c in conditions):
        return
    conditions = [c for c in conditions if not isinstance(c, Const)]
    value = _resolved(nest.store.value, known)
    asked = [*conditions, *(c for e in walk(value) for c in _asked(e))]
    open_ = next((a for c in asked for a in _atoms(c)), None)
    if open_ is None:
        if conditions:
            raise _Unfit(f"the condition {conditions[0]} is decided by data")
        yield _Nest(nest.box, [], replace(nest.store, value=value))
        return
    inside = [v for v in free_vars(open_) if v in nest.box and nest.box[v][1] - nest.box[v][0] > 1]
    around = [v for v in free_vars(open_) if v in outer]
    if around or not inside:
        raise _Unfit(f"the condition {open_} is decided by loops outside, or not at all", around)
    v = min(inside, key=lambda w: nest.box[w][1] - nest.box[w][0])
    lo, hi = nest.box[v]
    at = lo + 1
    if len(inside) == 1:
        holds = np.broadcast_to(evaluate(open_, {**{w: np.int64(a) for w, (a, _) in nest.box.items()}, v: np.arange(lo, hi)}), (hi - lo,))
        changes = np.flatnonzero(holds[1:] != holds[:-1])
        if not changes.size:  # decided after all

            def rule(e: Expr, atom: Expr = open_, known: bool = bool(holds[0])) -> Expr | None:
                return Const(known, dt.bool_) if e == atom else None

            again = [transform(c, rule) for c in conditions]
            yield from _boxes(_Nest(nest.box, again, replace(nest.store, value=transform(value, rule))), ranges, outer)
            return
        at = lo + 1 + int(changes[0])
    for ends in ((lo, at), (at, hi)):
        yield from _boxes(_Nest({**nest.box, v: ends}, conditions, replace(nest.store, value=value)), ranges, outer)


def _asked(e: Expr) -> list[Expr]:
    if isinstance(e, Select):
        return [e.cond]
    return [e.predicate] if isinstance(e, Load) and e.predicate is not None else []


def _atoms(cond: Expr) -> Iterator[Expr]:
    """The comparisons in a condition that no data decides."""
    if isinstance(cond, (And, Or)):
        yield from _atoms(cond.a)
        yield from _atoms(cond.b)
    elif isinstance(cond, Not):
        yield from _atoms(cond.a)
    elif not isinstance(cond, Const) and not any(isinstance(e, Load) for e in walk(cond)):
        yield cond


def _resolved(value: Expr, known: Mapping[str, Range]) -> Expr:
    """A value without the branches that are certain not to be taken."""

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Select):
            cond = simplify(e.cond, known)
            return (e.a if cond.value else e.b) if isinstance(cond, Const) else Select(cond, e.a, e.b)
        if isinstance(e, Load) and e.predicate is not None:
            cond = simplify(e.predicate, known)
            if isinstance(cond, Const):
                return Load(e.buffer, e.indices) if cond.value else Const(0.0, e.dtype)
        return None

    return transform(value, rule)


# -- formulas -------------------------------------------------------------------------------------------------------------


class _Formula:
    """A formula on vectors of one shape, operation by operation; what occurs twice is computed once."""

    def __init__(self, shape: tuple[int, int], views: Mapping[Expr, View]) -> None:
        self.shape, self.views = shape, views
        self.code: list[Instruction] = []
        self.slots: list[int] = list(range(8))
        self.held: dict[Expr, tuple[View, int]] = {}
        self.uses: dict[Expr, int] = {}

    def run(self, value: Expr, target: View) -> list[Instruction]:
        seen: set[Expr] = set()
        stack = [value]
        while stack:
            e = stack.pop()
            for c in self._parts(e)[1]:
                self.uses[c] = self.uses.get(c, 0) + 1
                if c not in seen:
                    seen.add(c)
                    stack.append(c)
        self._compute(value, target)
        return self.code

    def _parts(self, e: Expr) -> tuple[str, tuple[Expr, ...]]:
        """The operation of a formula and what it works on; "" for one that is there."""
        if e in self.views or isinstance(e, Const):
            return "", ()
        if isinstance(e, Select):
            if isinstance(e.cond, Lt) and (e.cond.a, e.cond.b) == (e.b, e.a):
                return "max", (e.b, e.a)
            if isinstance(e.cond, Lt) and (e.cond.a, e.cond.b) == (e.a, e.b):
                return "min", (e.a, e.b)
            return "select", (e.cond, e.a, e.b)
        if isinstance(e, Add) and e.dtype.is_float:
            for product, other in ((e.a, e.b), (e.b, e.a)):
                if isinstance(product, Mul):
                    return "fma", (product.a, product.b, other)
        if type(e) in _BINARY:
            return _BINARY[type(e)], (e.a, e.b)  # type: ignore[attr-defined]
        if isinstance(e, Ne):
            return "not", (Eq(e.a, e.b),)
        if isinstance(e, Not):
            return "not", (e.a,)
        if isinstance(e, Call) and e.name in NpuCodegen.functions:
            return e.name, e.args
        if isinstance(e, Cast) and e.dtype == dt.float32 and e.value.dtype in (dt.bool_, dt.float32):
            return "copy", (e.value,)
        what = f"the variable '{e.name}' as a number" if isinstance(e, Var) else f"{type(e).__name__} of {e.dtype}: {e}"
        raise _Unfit(f"the vector unit has no {what}", list(free_vars(e)))

    def _compute(self, e: Expr, target: View | None) -> View | float:
        if isinstance(e, Const):
            operand: View | float = float(e.value)
        elif e in self.views:
            operand = self.views[e]
        elif e in self.held:
            operand = self.held[e][0]
        else:
            name, parts = self._parts(e)
            if any(p.dtype not in (dt.float32, dt.bool_) for p in (e, *parts)):
                raise _Unfit(f"the vector unit computes in float32, not {e}")
            sources = tuple(self._compute(p, None) for p in parts)
            for p in parts:
                self._release(p)
            if target is None:
                if not self.slots:
                    raise _Unfit(f"a formula needs more than 8 results in between: {e}")
                slot = self.slots.pop(0)
                result = View(SCOPES["npu.vectors"], slot * VECTOR, (self.shape[1], 1))
                self.held[e] = (result, slot)
            else:
                result = target
            self.code.append(Instruction(f"vec.{name}", self.shape, (result, *sources)))
            return result
        if target is not None:
            self.code.append(Instruction("vec.copy", self.shape, (target, operand)))
        return operand

    def _release(self, e: Expr) -> None:
        self.uses[e] -= 1
        if self.uses[e] == 0 and e in self.held:
            self.slots.append(self.held.pop(e)[1])
