"""Code generation: a lowered loop Program becomes instructions.

Schedules have put intrinsics in the place of loops: what is left are loops, memory, and calls of instructions by the
names that `weft_npu.intrinsics` gives them. A call becomes an instruction; the loops that hold it alone become
dimensions of it as far as it has some, since what reads and writes elements one by one may as well do so many at a
time. A buffer that is allocated in a loop has two places, taken in turn, if there is room: so the next iteration is
copied in while this one is computed. Loops that are left without instructions, and conditions, are listed by `check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.codegen.base import KernelCode
from weft.expr.affine import affine
from weft.expr.nodes import Const, Expr, const, substitute
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    int_const,
    stmt_children,
)
from weft_npu.isa import (
    DRAM,
    MAX_RANK,
    MEMORIES,
    ROWS,
    TILE,
    VECTOR,
    VECTOR_OPS,
    Instruction,
    Kernel,
    Term,
    View,
    encode,
)

DISTRIBUTION = "weft-npu"
SCOPES = {f"npu.{name}": number for number, name in enumerate(MEMORIES)}
ALIGN = 256  # bytes, the machine's interlocks
GEMM = {
    "gemm8x8": "gemm8x8",
    "fuse_gemm8x8_add": "fuse_gemm8x8_add",
    "gemm1x8": "gemm8x8",
    "fuse_gemm1x8_add": "fuse_gemm8x8_add",
}
SAME = {"vec.atleast": "vec.max", "vec.atmost": "vec.min", "vec.number": "vec.copy"}
"""Calls that are another instruction by its own name."""
STEPS = {
    "vec.sum": "vec.add",
    "vec.mac": "vec.fma",
    "vec.product": "vec.mul",
    "vec.greatest": "vec.max",
    "vec.least": "vec.min",
}
"""One step of a reduction → the instruction that has the result as its last source, too."""
STARTS = {"vec.zero": 0.0, "vec.one": 1.0, "vec.lowest": float("-inf"), "vec.highest": float("inf")}


class _Unfit(Exception):
    """What no instruction can do."""


@dataclass(frozen=True)
class _Home:
    """Where a buffer lies: first element; `ring`: the depth of the loop by whose counter two places are taken in turn,
    and the size of one."""

    memory: int
    base: int = 0
    ring: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Operand:
    """Elements of a buffer: first, Σ steps[loop]·counter on, and so many apart in each dimension."""

    home: _Home
    steps: Mapping[str, int]
    first: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Axis:
    """A loop, or a dimension of an instruction: how often, and how far each operand moves."""

    size: int
    moves: tuple[int, ...]


class NpuCodegen:
    """See the module. `memories`: bytes of each; `double`: whether buffers in loops get two places."""

    functions = frozenset({"exp", "log", "sqrt", "tanh", "erf", "floor", "ceil", "abs", "fma"})

    def __init__(self, memories: tuple[int, int, int, int], double: bool = True) -> None:
        self.memories, self.double = memories, double

    def check(self, program: Program) -> list[str]:
        return self._emitted(program).problems

    def compile(self, program: Program) -> KernelCode:
        emitted = self._emitted(program)
        return KernelCode(program.name, encode(emitted.kernel), tuple(const(4 * n) for n in emitted.scratch))

    def kernel(self, program: Program) -> Kernel:
        """The instructions, as they are."""
        return self._emitted(program).kernel

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done

    def overflows(self, program: Program) -> list[str]:
        """Which memories a program wants more of than there is; it need not be lowered."""
        emitter = _Emitter(program, self.memories, self.double)
        emitter.plan()
        return emitter.problems

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
    known: dict[str, Expr] = field(default_factory=dict)  # lets
    used: dict[int, int] = field(default_factory=dict)
    doubled: frozenset[str] = frozenset()

    @property
    def kernel(self) -> Kernel:
        return Kernel(len(self.program.params) + len(self.scratch), self.memories, tuple(self.code))

    def run(self) -> None:
        p = self.program
        if p.dims:
            self.problems.append(f"sizes known only at run time: {', '.join(d.name for d in p.dims)}")
            return
        for k, b in enumerate(p.params):
            self.homes[b.name] = _Home(DRAM + k)
            self._check_buffer(b)
        self.plan()
        if self.problems:
            return
        self._stmt(p.body)

    # -- memory
    def _check_buffer(self, b: Buffer) -> None:
        if b.dtype != dt.float32 and not (b.dtype.is_bool and b.scope in SCOPES):  # on the chip, a bool is 1 or 0
            self.problems.append(f"buffer '{b.name}' holds {b.dtype}, the npu computes in float32")
        if _elements(b) is None:
            self.problems.append(f"the size of buffer '{b.name}' is not known")
        if b.scope != "global" and b.scope not in SCOPES:
            self.problems.append(f"buffer '{b.name}' lies in '{b.scope}'; the npu has {', '.join(SCOPES)}")

    def plan(self) -> None:
        """Which buffers get two places: all that are allocated in loops, less the largest ones until everything has
        room."""
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
                    self.problems.append(
                        f"{DISTRIBUTION}: the schedule needs {wanted[m]} bytes of scope 'npu.{MEMORIES[m]}', there are"
                        f" {self.memories[m]}"
                    )
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
    def _problem(self, why: str) -> None:
        if why not in self.problems:
            self.problems.append(why)

    def _stmt(self, s: Stmt) -> None:
        match s:
            case Seq():
                for c in s.stmts:
                    self._stmt(c)
            case Allocate():
                used = dict(self.used)
                self._allocate(s.buffer)
                self._stmt(s.body)
                self.used = used
            case Let():
                self.known[s.var.name] = substitute(s.value, self.known)
                self._stmt(s.body)
                del self.known[s.var.name]
            case For() | Evaluate():
                self._nest(s)
            case If():
                self._problem(f"the npu does not branch: if {s.cond}")
            case Store():
                self._problem(f"no instruction stores to '{s.buffer.name}': tensorize the loops around {s}")
            case _:
                self._problem(f"the npu has no instruction for {type(s).__name__}")

    def _nest(self, s: Stmt) -> None:
        """Loops that hold one call alone become part of its instruction, others are loops of the code."""
        nest: list[tuple[str, int]] = []
        inner = s
        while isinstance(inner, For):
            n = int_const(simplify(substitute(inner.extent, self.known)))
            if n is None:
                self._problem(f"loop '{inner.var.name}' runs {inner.extent} times, which is no constant")
                return
            nest.append((inner.var.name, n))
            inner = inner.body
        if isinstance(inner, Evaluate):
            try:
                self._call(inner.call, nest)
            except _Unfit as unfit:
                self._problem(str(unfit))
            return
        assert isinstance(s, For)
        self.loops.append(nest[0])
        self.code.append(Instruction("loop", (nest[0][1],)))
        self._stmt(s.body)
        self.code.append(Instruction("end"))
        self.loops.pop()

    # -- calls
    def _call(self, call: IntrinsicCall, nest: Sequence[tuple[str, int]]) -> None:
        name, args = call.name, list(call.args)
        op = name.removesuffix(".first")
        if name in GEMM or name == "fill_zero":
            operands = self._operands(args, 1, nest)
            rows = 1 if "1x8" in name else TILE
            if name == "fill_zero":
                self._emit("fill_zero", (TILE, TILE), [_tile(operands[0])], nest)
            else:
                a, b, c = map(_tile, operands)
                self._emit(GEMM[name], (rows, TILE, TILE), [c, a, b], nest)
        elif name in ("dma.load", "dma.store"):
            source, target = self._operands(args[:-MAX_RANK], MAX_RANK, nest)
            self._copy(name, target, source, self._lengths(args[-MAX_RANK:]), nest)
        elif name in STARTS:
            self._vector(
                "vec.copy", [*self._operands(args[:-2], 2, nest), STARTS[name]], self._lengths(args[-2:]), nest
            )
        elif op in STEPS or SAME.get(name, name).removeprefix("vec.") in VECTOR_OPS:
            *sources, target = self._operands(args[:-2], 2, nest)
            if name in STEPS:
                sources.append(target)
            op = (
                STEPS[name]
                if name in STEPS
                else SAME.get(name, "vec.mul" if op == "vec.mac" else "vec.copy" if op in STEPS else name)
            )
            self._vector(op, [target, *sources], self._lengths(args[-2:]), nest)
        else:
            raise _Unfit(f"the npu has no instruction '{name}'")

    def _lengths(self, args: Sequence[Expr]) -> list[int]:
        return [self._constant(a, "a length") for a in args]

    def _constant(self, e: Expr, what: str) -> int:
        n = int_const(simplify(substitute(e, self.known)))
        if n is None:
            raise _Unfit(f"{what} is {e}, which is no constant")
        return n

    def _operands(self, args: Sequence[Expr], strides: int, nest: Sequence[tuple[str, int]]) -> list[_Operand | float]:
        """What a call passes: numbers, and addresses with so many strides each."""
        found: list[_Operand | float] = []
        rest = list(args)
        while rest:
            at = rest.pop(0)
            if isinstance(at, Const):
                found.append(float(at.value))
                continue
            assert isinstance(at, Load)
            steps = tuple(self._constant(rest.pop(0), f"a stride of '{at.buffer.name}'") for _ in range(strides))
            found.append(self._operand(at, steps, nest))
        return found

    def _operand(self, at: Load, strides: tuple[int, ...], nest: Sequence[tuple[str, int]]) -> _Operand:
        (index,) = (substitute(i, self.known) for i in at.indices)
        loops = [*self.loops, *nest]
        for e in (index, simplify(index, {v: Range(0, n - 1) for v, n in loops})):
            parts = affine(e, [v for v, _ in loops])
            if parts is not None:
                steps = {v: parts.coefficient(v) for v in parts.coefficients}
                first = simplify(parts.rest)
                if isinstance(first, Const) and None not in steps.values():
                    return _Operand(
                        self.homes[at.buffer.name],
                        {v: int(c or 0) for v, c in steps.items()},
                        int(first.value),
                        strides,
                    )
        raise _Unfit(f"the address {at.buffer.name}[{index}] is no affine formula of loops")

    # -- instructions
    def _emit(
        self, op: str, shape: tuple[int, ...], operands: Sequence[_Operand | float], nest: Sequence[tuple[str, int]]
    ) -> None:
        """An instruction in its loops as they are."""
        axes = [
            _Axis(n, tuple(x.steps.get(v, 0) if isinstance(x, _Operand) else 0 for x in operands))
            for v, n in nest
            if n > 1
        ]
        self._looped(op, shape, operands, axes, [() if isinstance(x, float) else x.strides for x in operands])

    def _looped(
        self,
        op: str,
        shape: tuple[int, ...],
        operands: Sequence[_Operand | float],
        axes: Sequence[_Axis],
        strides: Sequence[Sequence[int]],
    ) -> None:
        depth = len(self.loops)
        views: list[View | float] = []
        for k, x in enumerate(operands):
            if isinstance(x, float):
                views.append(x)
                continue
            terms = [Term(d, x.steps[v]) for d, (v, _) in enumerate(self.loops) if x.steps.get(v)]
            terms += [Term(depth + d, a.moves[k]) for d, a in enumerate(axes) if a.moves[k]]
            if x.home.ring is not None:
                terms.append(Term(x.home.ring[0], x.home.ring[1], 2))
            views.append(
                View(
                    x.home.memory, x.home.base + x.first, tuple(strides[k]), tuple(sorted(terms, key=lambda t: t.loop))
                )
            )
        self.code += [Instruction("loop", (a.size,)) for a in axes]
        self.code.append(Instruction(op, shape, tuple(views)))
        self.code += [Instruction("end") for _ in axes]

    def _axes(
        self, operands: Sequence[_Operand | float], lengths: Sequence[int], nest: Sequence[tuple[str, int]]
    ) -> list[_Axis]:
        """The loops of a nest and the dimensions of its instruction, outermost first, without those of one step."""
        loops = [
            _Axis(n, tuple(x.steps.get(v, 0) if isinstance(x, _Operand) else 0 for x in operands)) for v, n in nest
        ]
        dims = [
            _Axis(n, tuple(x.strides[d] if isinstance(x, _Operand) else 0 for x in operands))
            for d, n in enumerate(lengths)
        ]
        return [a for a in (*loops, *dims) if a.size > 1]

    def _copy(
        self,
        op: str,
        target: _Operand | float,
        source: _Operand | float,
        lengths: Sequence[int],
        nest: Sequence[tuple[str, int]],
    ) -> None:
        """A copy, the elements in the order of DRAM; what lies side by side on both sides is one dimension."""
        outside = 0 if op == "dma.store" else 1
        axes: list[_Axis] = []
        for a in sorted(
            self._axes([target, source], lengths, nest),
            key=lambda a: (-abs(a.moves[outside]), -abs(a.moves[1 - outside])),
        ):
            last = axes[-1] if axes else None
            if last is not None and all(m == n * a.size for m, n in zip(last.moves, a.moves)):
                axes[-1] = _Axis(last.size * a.size, a.moves)
            else:
                axes.append(a)
        outer, inner = axes[:-MAX_RANK], axes[-MAX_RANK:] or [_Axis(1, (0, 0))]
        strides = [[a.moves[k] for a in inner] for k in range(2)]
        self._looped(op, tuple(a.size for a in inner), [target, source], outer, strides)

    def _vector(
        self, op: str, operands: Sequence[_Operand | float], lengths: Sequence[int], nest: Sequence[tuple[str, int]]
    ) -> None:
        """A vector instruction. Loops that come back to an element stay around it, in their order; of the others as
        many as it has room for are in it."""
        axes = self._axes(operands, lengths, nest)
        order: list[int] = []
        reach = 0
        for k in sorted((k for k, a in enumerate(axes) if a.moves[0]), key=lambda k: abs(axes[k].moves[0])):
            if abs(axes[k].moves[0]) > reach:
                order.append(k)
                reach += abs(axes[k].moves[0]) * (axes[k].size - 1)
        moving, still = [axes[k] for k in order], [a for k, a in enumerate(axes) if k not in order]
        columns = moving.pop(0) if moving and moving[0].size <= VECTOR else _Axis(1, (0,) * len(operands))
        while (
            moving
            and columns.size * moving[0].size <= VECTOR
            and all(m == n * columns.size for m, n in zip(moving[0].moves, columns.moves))
        ):
            columns = _Axis(columns.size * moving.pop(0).size, columns.moves)
        rows = next(
            (a for a in moving if a.size <= ROWS and a.size * columns.size <= VECTOR), _Axis(1, (0,) * len(operands))
        )
        outer = [*still, *(a for a in reversed(moving) if a is not rows)]
        strides = [(rows.moves[k], columns.moves[k]) for k in range(len(operands))]
        self._looped(op, (rows.size, columns.size), operands, outer, strides)


def _tile(x: _Operand | float) -> _Operand:
    """An operand of the matrix unit: rows so many elements apart, elements side by side."""
    assert isinstance(x, _Operand)
    return _Operand(x.home, x.steps, x.first, (*x.strides, 1))


def _room(b: Buffer) -> int:
    """Bytes that a buffer takes on the chip."""
    return -(-4 * (_elements(b) or 0) // ALIGN) * ALIGN
