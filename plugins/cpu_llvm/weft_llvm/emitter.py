"""Lowered Programs → LLVM IR text, one `emit_<Node>` method per node.

Text because llvmlite's builder has no bfloat and costs more than it gives. The shape of what comes out:

    define i32 @kernel(ptr %ctx, ptr %buffers, ptr %dims)            0 is success
    define internal void @kernel.task.K(ptr %ctx, ptr %closure, i64 %index, i64 %thread)     the body of the K-th
        parallel loop

A formula is emitted once per place that dominates its uses (names are unique in a Program, so a formula has one value
there); one that loads is kept for one statement only. Buffers in register scope are one stack slot per vector, which
LLVM turns into registers. Arithmetic is in `weft_llvm.arithmetic`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from weft import dtypes as dt
from weft.codegen.base import TASKS_PER_THREAD, THREADS
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify
from weft.loop import nodes as lp
from weft.loop.nodes import Buffer, Load, Program, Stmt
from weft_llvm.arithmetic import Arithmetic, Function, Value, part_of
from weft_runtime.abi import OFFSETS

if TYPE_CHECKING:
    from weft_llvm.target import Isa

CLOSE = 4
"""Elements from lane to lane up to which what lies between is loaded too: so many vectors and shuffles for one, instead
of a load a lane."""
MOST_INTERLEAVED = 8
"""Stores, each to every so many elements, that become one of all of them."""
STACK_BYTES = 16 << 10
"""Local buffers of constant size go on the stack up to this much per function; workers' stacks are small."""

FUNCTIONS = frozenset(
    {"sqrt", "floor", "ceil", "trunc", "round", "abs", "copysign", "fma", "popcount", "isnan", "isinf"}
)
SCOPES = ("global", "local", "register")
_VERIFY = "verify(program) finds uses before definitions"


@dataclass(frozen=True)
class Emitted:
    """LLVM IR of one kernel, and the sizes of the scratch buffers that follow its outputs (see KernelCode)."""

    name: str
    ir: str
    scratch: tuple[Expr, ...]
    parallel: bool = False


@dataclass(frozen=True)
class _Memory:
    """A buffer at an address."""

    pointer: str
    buffer: Buffer
    annotations: str  # alias scopes


@dataclass
class _Registers:
    """A buffer in registers: slot k holds elements k*width … k*width + width - 1."""

    buffer: Buffer
    width: int
    slots: list[str]


@dataclass(frozen=True)
class _Scratch:
    number: int  # among the scratch buffers
    slice_bytes: Expr
    per_thread: bool


class _Storage:
    """Where each Allocate of a program goes: registers, stack, or a scratch buffer."""

    def __init__(self, program: Program) -> None:
        self.scratch: dict[int, _Scratch] = {}
        self.sizes: list[Expr] = []
        self.memory: list[Buffer] = []  # every Allocate in memory, in program order
        self._stack = 0
        self._program = program
        self._visit(program.body, None, {})

    def _visit(self, stmt: Stmt, task: lp.For | None, lets: Mapping[str, Expr]) -> None:
        while isinstance(stmt, lp.Let):
            if stmt.var.dtype.is_integer:
                lets = {**lets, stmt.var.name: ex.substitute(stmt.value, lets)}
            stmt = stmt.body
        if isinstance(stmt, lp.Allocate) and stmt.buffer.scope != "register":
            self._place(stmt, task, lets)
        if isinstance(stmt, lp.For) and stmt.kind == "parallel" and task is None:
            outer, self._stack = self._stack, 0
            self._visit(stmt.body, stmt, lets)
            self._stack = outer
            return
        for child in lp.stmt_children(stmt):
            self._visit(child, task, lets)

    def _place(self, stmt: lp.Allocate, task: lp.For | None, lets: Mapping[str, Expr]) -> None:
        self.memory.append(stmt.buffer)
        size = byte_size(stmt.buffer)
        if stmt.buffer.scope == "local" and isinstance(size, ex.Const) and self._stack + size.value <= STACK_BYTES:
            self._stack += size.value
            return
        size = ex.substitute(size, lets)
        known = {d.name for d in self._program.dims}
        unknown = [n for n in ex.free_vars(size) if n not in known]
        if unknown or any(isinstance(n, Load) for n in ex.walk(size)):
            raise CodegenError(
                f"the size of buffer '{stmt.buffer.name}' is not known before kernel '{self._program.name}' starts",
                where=f"allocate {stmt.buffer.name}: {size} bytes",
                why=(
                    f"it depends on '{unknown[0]}', which is no dimension of the kernel"
                    if unknown
                    else "it depends on a loaded value"
                ),
                hint="allocate the upper bound",
            )
        size = ex.mul(ex.floordiv(ex.add(size, 63), 64), 64)
        self.scratch[id(stmt)] = _Scratch(len(self.sizes), size, task is not None)
        self.sizes.append(ex.mul(size, THREADS) if task is not None else size)


def byte_size(buffer: Buffer) -> Expr:
    size: Expr = lp.int64(memory_bytes(buffer.dtype))
    for d in buffer.shape:
        size = ex.mul(size, d)
    return size


def constant_bytes(buffer: Buffer) -> int:
    """The size of a buffer in registers or on the stack, which is constant."""
    size = lp.int_const(byte_size(buffer))
    assert size is not None, buffer
    return size


def memory_bytes(dtype: DType) -> int:
    return dtype.scalar.bytes


class Emitter(Arithmetic):
    """Emits the IR of one Program after another for one instruction set.

    Args:
        isa: what the target can do.
        intrinsics: name → function(emitter, call) that emits an IntrinsicCall and returns its Value, or None if it has
            none. Whatever is called "llvm.…" is that intrinsic of LLVM's, on the arguments' values: which processor has
            it is for `Intrinsic.requires` to say.
    """

    def __init__(
        self, isa: Isa, intrinsics: Mapping[str, Callable[[Emitter, lp.IntrinsicCall], Value | None]] | None = None
    ) -> None:
        super().__init__(isa)
        self.intrinsics = {"prefetch": _emit_prefetch, **(intrinsics or {})}

    # -- what is lacking ------------------------------------------------------------------------------------------

    def check(self, program: Program) -> list[str]:
        lacks: dict[str, None] = {}

        known: set[type] = set()

        def visit(e: Expr) -> None:
            for n in ex.walk(e):
                kind = type(n)
                if kind is ex.Call or kind is lp.IntrinsicCall:
                    assert isinstance(n, (ex.Call, lp.IntrinsicCall))
                    if isinstance(n, lp.IntrinsicCall):
                        if n.name not in self.intrinsics and not n.name.startswith("llvm."):
                            lacks[f"intrinsic {n.name}"] = None
                    elif n.name not in FUNCTIONS:
                        lacks[f"function {n.name}"] = None
                    elif n.dtype.kind == "complex":
                        lacks[f"function {n.name} of {n.dtype.scalar}"] = None
                elif kind not in known:
                    if hasattr(self, "emit_" + kind.__name__):
                        known.add(kind)
                    else:
                        lacks[f"formula {kind.__name__}"] = None
                if n.dtype.kind == "string":
                    lacks["dtype string"] = None

        for s in lp.walk_stmts(program.body):
            if isinstance(s, lp.Block):
                lacks[f"block {s.name}"] = None
                continue
            if isinstance(s, lp.For) and s.kind not in ("serial", "parallel"):
                lacks[f"{s.kind} loop {s.var.name}"] = None
            if isinstance(s, lp.Allocate) and s.buffer.scope not in SCOPES:
                lacks[f"scope {s.buffer.scope} of buffer {s.buffer.name}"] = None
            if isinstance(s, (lp.Allocate, lp.Store, lp.AtomicUpdate)) and s.buffer.dtype.kind == "string":
                lacks["dtype string"] = None
            for e in lp.stmt_exprs(s):
                visit(e)
        for b in program.params:
            if b.dtype.kind == "string":
                lacks["dtype string"] = None
        return list(lacks)

    # -- program --------------------------------------------------------------------------------------------------

    def emit(self, program: Program, checked: bool = False) -> Emitted:
        """Raises CodegenError for what `check` lists (unless that was `checked` before), a register buffer that is not
        used as one, and unknown sizes."""
        lacks = [] if checked else self.check(program)
        if lacks:
            raise CodegenError(
                f"LLVM code cannot express kernel '{program.name}'",
                where="\n".join(lacks),
                hint="run the loop passes first",
            )
        self.program = program
        self._storage = _Storage(program)
        self._functions: list[str] = []
        self._declared = {}
        self._helpers = {}
        self._metadata = []
        self._loop_hints: tuple[str, str] | None = None
        self._counter = 0
        self._tasks = 0
        self._vectors = 0
        self._thread: str | None = None  # SSA name of the thread's number inside a parallel body
        self._mask: Value | None = None
        self._cache: dict[Expr, Value] = {}
        self._trail: list[Expr] = []
        self._impure: list[Expr] = []
        self._env: dict[str, Value] = {}
        self._buffers: dict[str, _Memory | _Registers] = {}
        self._ranges: dict[str, Any] = {}
        self._annotations = self._alias_scopes()
        self._align_md = {}
        name = _quote(program.name)
        self._fn = Function(
            f"define i32 @{name}(ptr %ctx, ptr noalias readonly %buffers, ptr noalias readonly %dims) #0"
        )
        for i, b in enumerate(program.params):
            # Buffer.align is not promised to LLVM: an aligned move gains nothing and faults on a caller's array that is
            # not.
            self._buffers[b.name] = _Memory(self._load_pointer("%buffers", i, 1), b, self._annotations[b.name])
        self._scratch_base = {
            i: self._load_pointer("%buffers", len(program.params) + i, 64) for i in range(len(self._storage.sizes))
        }
        self._known_dims()
        for i, d in enumerate(program.dims):
            value = self._op(f"load i64, ptr {self._gep('i64', '%dims', str(i))}, align 8")
            self._env[d.name] = Value(
                value if d.dtype == dt.int64 else self._op(f"trunc i64 {value} to {self.value_type(d.dtype)}"), d.dtype
            )
        self.emit_stmt(program.body)
        self._line("ret i32 0")
        self._functions.append(self._fn.text())
        cpu = f'"target-cpu"="{self.isa.cpu}" ' + (
            f'"target-features"="{self.isa.features}" ' if self.isa.features else ""
        )
        wide = '"prefer-vector-width"="512" ' if "avx512" in self.isa.has else ""
        common = (
            f'nounwind "no-builtins" "no-trapping-math"="true" "frame-pointer"="none" "no-stack-arg-probe" {wide}{cpu}'
        )
        parts = [
            f'target datalayout = "{self.isa.data_layout}"',
            f'target triple = "{self.isa.triple}"',
            *self._declared.values(),
            *self._helpers.values(),
            *self._functions,
            # A task is called from one place besides the pool; inlining it there would only double the code.
            f"attributes #1 = {{ noinline {common} }}",
            f"attributes #0 = {{ {common} }}",
            *(f"!{i} = {text}" for i, text in enumerate(self._metadata)),
        ]
        return Emitted(program.name, "\n".join(parts) + "\n", tuple(self._storage.sizes), parallel=self._tasks > 0)

    def _alias_scopes(self) -> dict[str, str]:
        """Per buffer the annotation that tells LLVM which other buffers it cannot overlap: all but its declared
        aliases."""
        p = self.program
        buffers = list(dict.fromkeys([b.name for b in p.params] + [b.name for b in self._storage.memory]))
        if len(buffers) < 2:
            return dict.fromkeys(buffers, "")
        domain = self._md("distinct !{!self}")
        scopes = {b: self._md(f"distinct !{{!self, {domain}}}") for b in buffers}
        pairs = {frozenset((p.outputs[o].name, p.inputs[i].name)) for o, i in p.aliases}
        result = {}
        for b in buffers:
            others = [scopes[c] for c in buffers if c != b and frozenset((b, c)) not in pairs]
            own = self._md(f"!{{{scopes[b]}}}")
            result[b] = f", !alias.scope {own}" + (
                f", !noalias {self._md('!{' + ', '.join(others) + '}')}" if others else ""
            )
        return result

    def _known_dims(self) -> None:
        """A dim that is a factor of a buffer's size is not negative; others (a value given at run time) may be."""
        for b in self.program.params:
            for d in b.shape:
                if isinstance(d, ex.Mul) and isinstance(d.b, ex.Const):
                    d = d.a
                if isinstance(d, ex.Var):
                    self._ranges[d.name] = Range(0, None)

    # -- caching and scopes ---------------------------------------------------------------------------------------

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """What is emitted inside dominates nothing outside: forget it at the end."""
        mark = len(self._trail)
        yield
        for e in self._trail[mark:]:
            self._cache.pop(e, None)
        del self._trail[mark:]

    def _forget_loads(self) -> None:
        for e in self._impure:
            self._cache.pop(e, None)
        self._impure.clear()

    def _range(self, e: Expr) -> Range:
        return range_of(e, self._ranges)

    # -- formulas -------------------------------------------------------------------------------------------------

    def emit_expr(self, e: Expr, index: bool = False) -> Value:
        """The value of `e` here. `index`: a buffer index, whose sums cannot overflow."""
        if isinstance(e, ex.Const):
            return self.emit_Const(e)
        found = self._cache.get(e)
        if found is None:
            if e.dtype.lanes > 1:
                self._vectors += 1
            if index and isinstance(e, (ex.Add, ex.Sub, ex.Mul)) and e.dtype == dt.int64:
                found = self.binary(e.symbol, self.emit_expr(e.a, True), self.emit_expr(e.b, True), nsw=True)
            else:
                found = getattr(self, "emit_" + type(e).__name__)(e)
            # Under a mask a load is not what it is elsewhere.
            if found.impure:
                self._impure.append(e)
            self._cache[e] = found
            self._trail.append(e)
        return found

    def emit_Const(self, e: ex.Const) -> Value:
        return self.const(e.value, e.dtype)

    def emit_Var(self, e: ex.Var) -> Value:
        try:
            return self._env[e.name]
        except KeyError:
            raise CodegenError(
                f"variable '{e.name}' of kernel '{self.program.name}' has no value here", hint=_VERIFY
            ) from None

    def _emit_binary(self, e: ex.Binary) -> Value:
        return self.binary(e.symbol, self.emit_expr(e.a), self.emit_expr(e.b))

    emit_Add = emit_Sub = emit_Mul = emit_Div = emit_Min = emit_Max = _emit_binary
    emit_BitAnd = emit_BitOr = emit_BitXor = emit_And = emit_Or = _emit_binary
    emit_Lt = emit_Le = emit_Eq = emit_Ne = _emit_binary

    def _emit_division(self, e: ex.Binary) -> Value:
        a, b = self.emit_expr(e.a), self.emit_expr(e.b)
        if not e.dtype.is_integer:
            return self.binary(e.symbol, a, b)
        divisor = e.b.value if isinstance(e.b, ex.Broadcast) else e.b
        by = int(divisor.value) if isinstance(divisor, ex.Const) else None
        of_a, of_b = self._range(e.a), self._range(e.b)
        nonnegative = e.dtype.kind == "int" and of_a.within(0, None) and of_b.within(0, None)
        safe = of_b.within(1, None) or of_b.within(None, -2)
        return self.divide(e.symbol, a, b, nonnegative, safe, by)

    emit_FloorDiv = emit_FloorMod = emit_TruncDiv = emit_TruncMod = _emit_division

    def _emit_shift(self, e: ex.Binary) -> Value:
        a, b = self.emit_expr(e.a), self.emit_expr(e.b)
        if self._range(e.b).within(0, e.dtype.bits - 1):
            op = "shl" if e.symbol == "<<" else "ashr" if e.dtype.kind == "int" else "lshr"
            return self.op(f"{op} {self.value_type(e.dtype)} {a.text}, {b.text}", e.dtype, a, b)
        return self.binary(e.symbol, a, b)

    emit_ShiftLeft = emit_ShiftRight = _emit_shift

    def emit_Not(self, e: ex.Not) -> Value:
        return self.invert(self.emit_expr(e.a))

    def emit_Cast(self, e: ex.Cast) -> Value:
        if isinstance(e.value, ex.Call) and e.value.name == "round" and e.dtype.scalar == dt.int32:
            return self.nearest_integer(self.emit_expr(e.value.args[0]), e.dtype)
        return self.cast(self.emit_expr(e.value), e.dtype)

    def emit_Bitcast(self, e: ex.Bitcast) -> Value:
        return self.bitcast(self.emit_expr(e.value), e.dtype)

    def emit_Call(self, e: ex.Call) -> Value:
        return self.function(e.name, *(self.emit_expr(a) for a in e.args))

    def emit_Broadcast(self, e: ex.Broadcast) -> Value:
        return self.splat(self.emit_expr(e.value), e.lanes)

    def emit_Ramp(self, e: ex.Ramp) -> Value:
        base, d = self.splat(self.emit_expr(e.base), e.lanes), e.dtype
        t, scalar = self.value_type(d), self.scalar_type(d.scalar)
        steps = Value("<" + ", ".join(f"{scalar} {i}" for i in range(e.lanes)) + ">", d)
        if not (isinstance(e.stride, ex.Const) and e.stride.value == 1):
            stride = self.splat(self.emit_expr(e.stride), e.lanes)
            steps = self.op(f"mul {t} {steps.text}, {stride.text}", d, stride)
        return self.op(f"add {t} {base.text}, {steps.text}", d, base, steps)

    def emit_IntrinsicCall(self, e: lp.IntrinsicCall) -> Value:
        result = self.intrinsics.get(e.name, _emit_llvm)(self, e)
        # Whatever it read may have changed by the next statement.
        return Value("0", e.dtype, True) if result is None else replace(result, impure=True)

    def emit_Select(self, e: ex.Select) -> Value:
        cond = self.emit_expr(e.cond)
        if not (self._may_fault(e.a, e.cond, True) or self._may_fault(e.b, e.cond, False)):
            return self.select(cond, self.emit_expr(e.a), self.emit_expr(e.b))
        if e.cond.dtype.lanes == 1:
            return self._branch(cond, lambda: self.emit_expr(e.a), lambda: self.emit_expr(e.b), e.dtype)
        a = self._masked(cond, e.a)
        b = self._masked(self.invert(cond), e.b)
        return self.select(cond, a, b)

    def _may_fault(self, side: Expr, cond: Expr, holds: bool) -> bool:
        """Whether `side` has a load that is not known to be good where it is not chosen."""
        stack = [side]
        while stack:
            n = stack.pop()
            if n in self._cache:
                continue
            if isinstance(n, Load) and not self._good_load(
                n, cond if holds else ex.not_(cond) if cond.dtype.lanes == 1 else ex.Not(cond)
            ):
                return True
            if isinstance(n, lp.IntrinsicCall):
                return True
            stack.extend(n.children())
        return False

    def _good_load(self, load: Load, cond: Expr) -> bool:
        if isinstance(self._buffers.get(load.buffer.name), _Registers):
            return True
        if load.predicate is not None and cond in _conjuncts(load.predicate):
            return True
        return all(
            isinstance(n, ex.Const) and self._range(i).within(0, int(n.value) - 1)
            for i, n in zip(load.indices, load.buffer.shape)
        )

    def _branch(self, cond: Value, then: Callable[[], Value], orelse: Callable[[], Value], d: DType) -> Value:
        yes, no, end = self._label("then"), self._label("else"), self._label("join")
        self._line(f"br i1 {cond.text}, label %{yes}, label %{no}")
        incoming = []
        impure = cond.impure
        for label, side in ((yes, then), (no, orelse)):
            self._start(label)
            with self._scope():
                v = side()
            impure |= v.impure
            incoming.append(f"[ {v.text}, %{self._fn.block} ]")
            self._line(f"br label %{end}")
        self._start(end)
        return Value(self._op(f"phi {self.value_type(d)} " + ", ".join(incoming)), d, impure)

    def _masked(self, mask: Value, e: Expr) -> Value:
        """`e` with its loads done only in the lanes of `mask`."""
        outer = self._mask
        cache = self._cache
        # Loads made under a mask must not be found by others, and those found without one may be used.
        self._cache = dict(cache)
        trail, impure = self._trail, self._impure
        self._trail, self._impure = [], []
        self._mask = mask if outer is None else self.logic("and", outer, mask)
        try:
            return self.emit_expr(e)
        finally:
            self._mask, self._cache, self._trail, self._impure = outer, cache, trail, impure

    # -- addresses ------------------------------------------------------------------------------------------------

    def _find(self, b: Buffer) -> _Memory | _Registers:
        try:
            return self._buffers[b.name]
        except KeyError:
            raise CodegenError(
                f"buffer '{b.name}' of kernel '{self.program.name}' is not allocated here", hint=_VERIFY
            ) from None

    def _flat(self, b: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """One row-major index."""
        if len(indices) == 1:
            return indices[0]
        flat: Expr = lp.int64(0)
        for i, n in zip(indices, b.shape):
            flat = ex.add(ex.mul(flat, n), i)
        return flat

    def _index(self, e: Expr) -> str:
        v = self.emit_expr(e, index=True)
        return v.text if v.dtype.bits == 64 else self.cast(v, dt.int64).text

    def address(self, load: Load) -> str:
        """The address of the first element that `load` names, for intrinsics."""
        memory = self._find(load.buffer)
        if isinstance(memory, _Registers):
            raise CodegenError(f"buffer '{load.buffer.name}' is in registers and has no address")
        index = self._flat(load.buffer, load.indices)
        if isinstance(index, (ex.Ramp, ex.Broadcast)):
            index = index.children()[0]
        return self._gep(self.memory_type(load.buffer.dtype), memory.pointer, self._index(index))

    def _from_memory(self, text: str, d: DType) -> Value:
        if d.is_bool:
            return Value(
                self._op(
                    f"icmp ne {self.memory_type(d)} {text}, zeroinitializer" if d.lanes > 1 else f"icmp ne i8 {text}, 0"
                ),
                d,
                True,
            )
        if d.bits < 8 and d.name not in self.soft:
            return Value(self._op(f"trunc {self.memory_type(d)} {text} to {self.value_type(d)}"), d, True)
        return Value(text, d, True)

    def _to_memory(self, v: Value) -> str:
        d = v.dtype
        if d.bits < 8 and d.name not in self.soft:
            return self._op(
                f"{'sext' if d.kind == 'int' else 'zext'} {self.value_type(d)} {v.text} to {self.memory_type(d)}"
            )
        return v.text

    def _predicate(self, predicate: Expr | None, lanes: int) -> tuple[Value | None, Value | None]:
        """(condition on all of it, mask per lane): the given predicate and the mask of the select around."""
        whole: Value | None = None
        mask = self._mask
        if mask is not None and lanes == 1:
            # A scalar under a vector's mask is wanted if any lane is.
            whole, mask = self._any(mask), None
        if predicate is not None:
            p = self.emit_expr(predicate)
            if p.dtype.lanes == 1:
                whole = p if whole is None else self.logic("and", whole, p)
            else:
                mask = p if mask is None else self.logic("and", mask, p)
        if whole is not None and whole.text == "true":
            whole = None
        return whole, mask

    def _any(self, mask: Value) -> Value:
        """Whether any lane of a mask is true."""
        name = f"llvm.vector.reduce.or.{self.llvm_suffix(mask.dtype)}"
        return Value(self.intrinsic("i1", name, (self.value_type(mask.dtype), mask.text)), dt.bool_, mask.impure)

    # -- loads ----------------------------------------------------------------------------------------------------

    def emit_Load(self, e: Load) -> Value:
        b = e.buffer
        if e.dtype.kind == "complex":
            part = part_of(b.dtype)
            half = replace(b, dtype=part, shape=(lp.int64(0),))
            flat = self._flat(b, e.indices)
            re, im = (self.emit_expr(Load(half, (ex.add(ex.mul(flat, 2), k),), e.predicate)) for k in (0, 1))
            return self.join(re, im, e.dtype)
        where = self._find(b)
        if isinstance(where, _Registers):
            if e.predicate is not None:
                p = self.emit_expr(e.predicate)
                return self.select(self.splat(p, e.dtype.lanes), self._load_register(where, e), self.zero(e.dtype))
            return self._load_register(where, e)
        index = self._flat(b, e.indices)
        whole, mask = self._predicate(e.predicate, e.dtype.lanes)
        if whole is not None:
            return self._branch(
                whole, lambda: self._load_memory(where, index, e.dtype, mask), lambda: self.zero(e.dtype), e.dtype
            )
        return self._load_memory(where, index, e.dtype, mask)

    def _load_memory(self, where: _Memory, index: Expr, d: DType, mask: Value | None) -> Value:
        one, element = d.scalar, self.memory_type(d.scalar)
        align = f", align {memory_bytes(d)}{where.annotations}"
        if d.lanes == 1:
            return self._from_memory(
                self._op(f"load {element}, ptr {self._gep(element, where.pointer, self._index(index))}{align}"), d
            )
        stride = index.stride if isinstance(index, ex.Ramp) else None
        t, m = self.memory_type(d), self.value_type(dt.bool_.with_lanes(d.lanes))
        if isinstance(index, ex.Ramp) and isinstance(stride, ex.Const) and stride.value == 1:
            pointer = self._gep(element, where.pointer, self._index(index.base), inbounds=mask is None)
            if mask is None:
                return self._from_memory(self._op(f"load {t}, ptr {pointer}{align}"), d)
            zero = "zeroinitializer"
            name = f"llvm.masked.load.{_suffix(t)}.p0"
            self._declared.setdefault(name, f"declare {t} @{name}(ptr, {m}, {t})")
            text = self._op(
                f"call {t} @{name}(ptr align {memory_bytes(d)} {pointer}, {m} {mask.text}, {t}"
                f" {zero}){where.annotations}"
            )
            return self._from_memory(text, d)
        if isinstance(index, ex.Broadcast):
            if mask is None:
                return self.splat(self._load_memory(where, index.value, one, None), d.lanes)
            # One element for all lanes, read if any of them wants it: a gather would read it once per lane.
            wanted = self._any(mask)
            element_read = self._branch(
                wanted, lambda: self._load_memory(where, index.value, one, None), lambda: self.zero(one), one
            )
            return self.select(mask, self.splat(element_read, d.lanes), self.zero(d))
        if self._is_strided(index, d, mask is not None):
            return self._from_memory(self._load_strided(where, index, d, mask), d)
        if mask is None:
            return self.assemble(
                [
                    self._from_memory(self._op(f"load {element}, ptr {p}{align}"), one)
                    for p in self._pointers(where, index, element)
                ]
            )
        pointers = f"<{d.lanes} x ptr>"
        at = self._op(
            f"getelementptr {element}, ptr {where.pointer}, <{d.lanes} x i64>"
            f" {self.cast(self.emit_expr(index), dt.int64).text}"
        )
        name = f"llvm.masked.gather.{_suffix(t)}.v{d.lanes}p0"
        self._declared.setdefault(name, f"declare {t} @{name}({pointers}, {m}, {t})")
        text = self._op(
            f"call {t} @{name}({pointers} align {memory_bytes(d)} {at}, {m} {mask.text}, {t}"
            f" zeroinitializer){where.annotations}"
        )
        return self._from_memory(text, d)

    def _is_strided(self, index: Expr, d: DType, masked: bool) -> TypeGuard[ex.Ramp]:
        """Whether lanes lie so close that what lies between them is loaded as well."""
        if not isinstance(index, ex.Ramp) or not isinstance(index.stride, ex.Const) or d.lanes & (d.lanes - 1):
            return False
        cheap = not masked or "avx512" in self.isa.has or ("avx" in self.isa.has and memory_bytes(d.scalar) in (4, 8))
        return abs(int(index.stride.value)) in range(1, min(CLOSE, d.lanes - 1) + 1) and cheap

    def _load_strided(self, where: _Memory, index: ex.Ramp, d: DType, mask: Value | None) -> str:
        """Lanes close to each other: vectors of all elements from the first lane's to the last one's, none beyond, and
        what is wanted of them."""
        stride = lp.int_const(index.stride)
        assert stride is not None  # `_close` has seen to it
        element, t, n = self.memory_type(d.scalar), self.memory_type(d), d.lanes
        align = f", align {memory_bytes(d)}{where.annotations}"
        reach = abs(stride) * (n - 1) + 1
        base = self._gep(element, where.pointer, self._index(index.base), inbounds=mask is None)
        if stride < 0:
            base = self._gep(element, base, str(1 - reach), inbounds=mask is None)
        places = [k * stride if stride > 0 else reach - 1 + k * stride for k in range(n)]
        result = ""
        done: set[int] = set()
        for start in (min(k * n, reach - n) for k in range(abs(stride))):
            lanes = {k: p - start for k, p in enumerate(places) if start <= p < start + n and k not in done}
            pointer = self._gep(element, base, str(start), inbounds=mask is None)
            if mask is None:
                part = self._op(f"load {t}, ptr {pointer}{align}")
            else:
                m, at = self.value_type(mask.dtype), {p: k for k, p in lanes.items()}
                picks = ", ".join(f"i32 {at.get(j, n)}" for j in range(n))
                wanted = self._op(f"shufflevector {m} {mask.text}, {m} zeroinitializer, <{n} x i32> <{picks}>")
                name = f"llvm.masked.load.{_suffix(t)}.p0"
                self._declared.setdefault(name, f"declare {t} @{name}(ptr, {m}, {t})")
                part = self._op(
                    f"call {t} @{name}(ptr align {memory_bytes(d)} {pointer}, {m} {wanted}, {t}"
                    f" zeroinitializer){where.annotations}"
                )
            picks = ", ".join(
                f"i32 {n + lanes[k]}" if k in lanes else f"i32 {k}" if k in done else "i32 poison" for k in range(n)
            )
            result = self._op(f"shufflevector {t} {result or 'poison'}, {t} {part}, <{n} x i32> <{picks}>")
            done |= lanes.keys()
        return result

    def _pointers(self, where: _Memory, index: Expr, element: str) -> list[str]:
        """The address of each lane: constant distances from one base where the stride is known, or element by
        element."""
        if isinstance(index, ex.Ramp):
            base = self._gep(element, where.pointer, self._index(index.base))
            if isinstance(index.stride, ex.Const):
                return [self._gep(element, base, str(k * int(index.stride.value))) for k in range(index.lanes)]
            stride = self._index(index.stride)
            pointers = [base]
            for _ in range(index.lanes - 1):
                pointers.append(self._gep(element, pointers[-1], stride))
            return pointers
        v = self.emit_expr(index)
        return [
            self._gep(element, where.pointer, self.cast(self.element(v, k), dt.int64).text)
            for k in range(v.dtype.lanes)
        ]

    # -- stores ---------------------------------------------------------------------------------------------------

    def emit_Store(self, s: lp.Store) -> None:
        self._forget_loads()
        self._store(s)
        self._forget_loads()

    def _store(self, s: lp.Store) -> None:
        b = s.buffer
        lanes = max([i.dtype.lanes for i in s.indices] + [s.value.dtype.lanes])
        where = self._find(b)
        predicate = s.predicate
        if (
            b.dtype.is_bool
            and isinstance(s.value, Load)
            and not isinstance(where, _Registers)
            and not isinstance(self._find(s.value.buffer), _Registers)
        ):
            # A truth value that is only moved is a byte.
            source = replace(s.value.buffer, dtype=dt.uint8)
            b, s = replace(b, dtype=dt.uint8), replace(s, value=Load(source, s.value.indices, s.value.predicate))
        if predicate is not None and predicate.dtype.lanes == 1 and not isinstance(where, _Registers):
            self.emit_stmt(lp.If(predicate, replace(s, predicate=None)))
            return
        value = self.splat(self.emit_expr(s.value), lanes)
        if b.dtype.kind == "complex":
            part = part_of(b.dtype)
            half = replace(b, dtype=part, shape=(lp.int64(0),))
            flat = ex.mul(self._flat(b, s.indices), 2)
            for k, v in enumerate(self.parts(value)):
                self._store_value(where, half, ex.add(flat, k), v, predicate)
        else:
            self._store_value(where, b, self._flat(b, s.indices), value, predicate)

    def _store_value(
        self, where: _Memory | _Registers, b: Buffer, index: Expr, value: Value, predicate: Expr | None
    ) -> None:
        d = value.dtype
        if isinstance(where, _Registers):
            if predicate is not None:
                p = self.splat(self.emit_expr(predicate), d.lanes)
                value = self.select(p, value, self._register(where, index, d))
            self._store_register(where, index, value)
            return
        if d.lanes > 1 and index.dtype.lanes == 1:
            index = ex.Broadcast(index, d.lanes)
        mask = None if predicate is None else self.emit_expr(predicate)
        element, t = self.memory_type(d.scalar), self.memory_type(d)
        align = f", align {memory_bytes(d)}{where.annotations}"
        if d.lanes == 1:
            pointer = self._gep(element, where.pointer, self._index(index))
            self._line(f"store {t} {self._to_memory(value)}, ptr {pointer}{align}")
            return
        if isinstance(index, ex.Ramp) and isinstance(index.stride, ex.Const) and index.stride.value == 1:
            pointer = self._gep(element, where.pointer, self._index(index.base), inbounds=mask is None)
            if mask is None:
                self._line(f"store {t} {self._to_memory(value)}, ptr {pointer}{align}")
                return
            m = self.value_type(mask.dtype)
            name = f"llvm.masked.store.{_suffix(t)}.p0"
            self._declared.setdefault(name, f"declare void @{name}({t}, ptr, {m})")
            self._line(
                f"call void @{name}({t} {self._to_memory(value)}, ptr align {memory_bytes(d)} {pointer}, {m}"
                f" {mask.text}){where.annotations}"
            )
            return
        if mask is None:
            for k, place in enumerate(self._pointers(where, index, element)):
                self._line(f"store {element} {self._to_memory(self.element(value, k))}, ptr {place}{align}")
            return
        m, pointers = self.value_type(mask.dtype), f"<{d.lanes} x ptr>"
        at = self._op(
            f"getelementptr {element}, ptr {where.pointer}, <{d.lanes} x i64>"
            f" {self.cast(self.emit_expr(index), dt.int64).text}"
        )
        name = f"llvm.masked.scatter.{_suffix(t)}.v{d.lanes}p0"
        self._declared.setdefault(name, f"declare void @{name}({t}, {pointers}, {m})")
        self._line(
            f"call void @{name}({t} {self._to_memory(value)}, {pointers} align {memory_bytes(d)} {at}, {m}"
            f" {mask.text}){where.annotations}"
        )

    # -- registers ------------------------------------------------------------------------------------------------

    def _interleaved(self, stmts: Sequence[Stmt]) -> list[lp.Store]:
        """The stores at the beginning, first to last in memory, that fill each other's gaps: lanes n elements apart, n
        stores one element apart."""
        if not (
            isinstance(stmts[0], lp.Store) and len(stmts[0].indices) == 1 and stmts[0].buffer.dtype.kind != "complex"
        ):
            return []
        first, b = stmts[0].indices[0], stmts[0].buffer
        if (
            not isinstance(first, ex.Ramp)
            or not isinstance(first.stride, ex.Const)
            or isinstance(self._find(b), _Registers)
        ):
            return []
        n, found = int(first.stride.value), dict[int, lp.Store]()
        if not 2 <= n <= min(MOST_INTERLEAVED, len(stmts)):
            return []
        for s in stmts[:n]:
            if not isinstance(s, lp.Store) or s.buffer != b or s.predicate != stmts[0].predicate:
                return []
            index = s.indices[0]
            if not isinstance(index, ex.Ramp) or index.stride != first.stride or index.lanes != first.lanes:
                return []
            if any(isinstance(x, Load) and x.buffer == b for x in ex.walk(s.value)):
                return []
            apart = simplify(ex.sub(index.base, first.base))
            if not isinstance(apart, ex.Const):
                return []
            found[int(apart.value)] = s
        start = min(found)
        if sorted(found) != list(range(start, start + n)) or (
            stmts[0].predicate is not None and stmts[0].predicate.dtype.lanes == 1
        ):
            return []
        return [found[start + k] for k in range(n)]

    def _store_interleaved(self, stores: Sequence[lp.Store]) -> None:
        """One store of all elements: a vector per store, shuffled into each other."""
        self._forget_loads()
        b, predicate = stores[0].buffer, stores[0].predicate
        where = self._find(b)
        assert isinstance(where, _Memory) and isinstance(stores[0].indices[0], ex.Ramp)
        index, n = stores[0].indices[0], len(stores)
        d, whole = b.dtype.with_lanes(index.lanes), b.dtype.with_lanes(index.lanes * n)

        def shuffle(parts: list[tuple[str, int]], of: Callable[[int], str]) -> tuple[str, int]:
            """The lanes of several vectors in turn: (vector, lanes)."""
            if len(parts) == 1:
                return parts[0]
            if len(parts) % 2 == 0:
                (a, lanes), (c, _) = shuffle(parts[::2], of), shuffle(parts[1::2], of)
                picks = [k // 2 + k % 2 * lanes for k in range(2 * lanes)]
            else:  # one behind another first
                (a, lanes), count = parts[0], len(parts)
                for k, (c, _) in enumerate(parts[1:-1], 1):
                    t, joined = of(k * lanes), ", ".join(f"i32 {q}" for q in range((k + 1) * lanes))
                    behind = self._widened(c, lanes, k * lanes, of)
                    a = self._op(f"shufflevector {t} {a}, {t} {behind}, <{(k + 1) * lanes} x i32> <{joined}>")
                picks = [k % count * lanes + k // count for k in range(count * lanes)]
                c, lanes = self._widened(parts[-1][0], lanes, (count - 1) * lanes, of), (count - 1) * lanes
            order = ", ".join(f"i32 {q}" for q in picks)
            return self._op(f"shufflevector {of(lanes)} {a}, {of(lanes)} {c}, <{len(picks)} x i32> <{order}>"), len(
                picks
            )

        element = self.memory_type(d.scalar)
        values = [self._to_memory(self.splat(self.emit_expr(s.value), index.lanes)) for s in stores]
        text, _ = shuffle([(v, index.lanes) for v in values], lambda lanes: f"<{lanes} x {element}>")
        pointer = self._gep(element, where.pointer, self._index(index.base), inbounds=predicate is None)
        t, align = self.memory_type(whole), memory_bytes(d)
        if predicate is None:
            self._line(f"store {t} {text}, ptr {pointer}, align {align}{where.annotations}")
        else:
            m = self.value_type(dt.bool_.with_lanes(index.lanes * n))
            mask, every = self.emit_expr(predicate), ", ".join(f"i32 {k // n}" for k in range(index.lanes * n))
            part = self.value_type(mask.dtype)
            wide = self._op(f"shufflevector {part} {mask.text}, {part} poison, <{index.lanes * n} x i32> <{every}>")
            name = f"llvm.masked.store.{_suffix(t)}.p0"
            self._declared.setdefault(name, f"declare void @{name}({t}, ptr, {m})")
            self._line(f"call void @{name}({t} {text}, ptr align {align} {pointer}, {m} {wide}){where.annotations}")
        self._forget_loads()

    def _widened(self, v: str, lanes: int, to: int, of: Callable[[int], str]) -> str:
        """A vector of `lanes` lanes with others behind them, of no matter what."""
        if lanes == to:
            return v
        picks = ", ".join(f"i32 {k}" if k < lanes else "i32 poison" for k in range(to))
        return self._op(f"shufflevector {of(lanes)} {v}, {of(lanes)} poison, <{to} x i32> <{picks}>")

    def _register_lanes(self, b: Buffer, index: Expr) -> list[int]:
        """The elements that a constant index names."""
        base, stride, lanes = (
            (index.base, index.stride, index.lanes) if isinstance(index, ex.Ramp) else (index, lp.int64(1), 1)
        )
        if isinstance(index, ex.Broadcast):
            base, stride, lanes = index.value, lp.int64(0), index.lanes
        first, step = self._range(base), self._range(stride)
        if not (first.is_point and step.is_point):
            raise CodegenError(
                f"buffer '{b.name}' is in registers but its index is not constant",
                where=f"{b.name}[{index}] in kernel '{self.program.name}'",
                why="a register has no address",
                hint="unroll the loops over it, or put it in scope local",
            )
        assert first.lo is not None and step.lo is not None
        return [first.lo + k * step.lo for k in range(lanes)]

    def _locate(self, r: _Registers, index: Expr) -> tuple[int, int, int]:
        """(slot, first lane in it, lanes) of a constant, contiguous access that stays in one slot."""
        at = self._register_lanes(r.buffer, index)
        slot, first = divmod(at[0], r.width)
        size = constant_bytes(r.buffer) // memory_bytes(r.buffer.dtype)
        contiguous = all(b - a == 1 for a, b in itertools.pairwise(at))
        if not contiguous or first + len(at) > r.width or at[0] < 0 or at[-1] >= size:
            why = (
                "an index is out of bounds" if at[0] < 0 or at[-1] >= size
                else f"the access is not a run of elements inside one vector of {r.width}, the widest one used on it"
            )  # fmt: skip
            raise CodegenError(
                f"buffer '{r.buffer.name}' is in registers but is not accessed by whole vectors",
                where=f"{r.buffer.name}[{index}] in kernel '{self.program.name}'",
                why=why,
                hint="align the accesses, or put it in scope local",
            )
        return slot, first, len(at)

    def _load_register(self, r: _Registers, e: Load) -> Value:
        index = self._flat(r.buffer, e.indices)
        return self._register(r, index, e.dtype)

    def _register(self, r: _Registers, index: Expr, d: DType) -> Value:
        if isinstance(index, ex.Broadcast):
            return self.splat(self._register(r, index.value, d.scalar), d.lanes)
        slot, first, lanes = self._locate(r, index)
        whole = d.with_lanes(r.width)
        t = self.value_type(whole)
        v = Value(self._op(f"load {t}, ptr {r.slots[slot]}"), whole, True)
        if lanes == r.width:
            return v
        if lanes == 1:
            return self.element(v, first)
        picks = ", ".join(f"i32 {first + k}" for k in range(lanes))
        return Value(self._op(f"shufflevector {t} {v.text}, {t} poison, <{lanes} x i32> <{picks}>"), d, True)

    def _store_register(self, r: _Registers, index: Expr, value: Value) -> None:
        slot, first, lanes = self._locate(r, index)
        d = value.dtype.with_lanes(r.width)
        t = self.value_type(d)
        text = value.text
        if lanes < r.width:
            old = self._op(f"load {t}, ptr {r.slots[slot]}")
            if lanes == 1:
                text = self._op(f"insertelement {t} {old}, {self.scalar_type(d.scalar)} {value.text}, i64 {first}")
            else:
                part = self.value_type(value.dtype)
                spread = ", ".join(
                    f"i32 {k - first}" if first <= k < first + lanes else "i32 poison" for k in range(r.width)
                )
                wide = self._op(f"shufflevector {part} {value.text}, {part} poison, <{r.width} x i32> <{spread}>")
                blend = ", ".join(f"i32 {r.width + k if first <= k < first + lanes else k}" for k in range(r.width))
                text = self._op(f"shufflevector {t} {old}, {t} {wide}, <{r.width} x i32> <{blend}>")
        self._line(f"store {t} {text}, ptr {r.slots[slot]}")

    # -- statements -----------------------------------------------------------------------------------------------

    def emit_stmt(self, s: Stmt) -> None:
        getattr(self, "emit_" + type(s).__name__)(s)

    def emit_Seq(self, s: lp.Seq) -> None:
        at = 0
        while at < len(s.stmts):
            together = self._interleaved(s.stmts[at : at + MOST_INTERLEAVED])
            if together:
                self._store_interleaved(together)
            else:
                self.emit_stmt(s.stmts[at])
            at += len(together) or 1

    def emit_Let(self, s: lp.Let) -> None:
        # A long formula is hundreds of these, one in the other.
        outer: list[tuple[str, Range | None]] = []
        inner: Stmt = s
        with self._scope():
            while isinstance(inner, lp.Let):
                name, value = inner.var.name, inner.value
                self._forget_loads()
                bound = (
                    self.emit_expr(value)
                    if not isinstance(value, ex.Const)
                    else self.const(value.value, inner.var.dtype)
                )
                # Bound once, it no longer changes with memory.
                self._env[name] = replace(bound, impure=False)
                outer.append((name, self._ranges.get(name)))
                if inner.var.dtype.is_integer:
                    self._ranges[name] = self._range(value)
                self._forget_loads()
                inner = inner.body
            self.emit_stmt(inner)
        for name, reach in reversed(outer):
            if reach is None:
                self._ranges.pop(name, None)
            else:
                self._ranges[name] = reach

    def emit_If(self, s: lp.If) -> None:
        self._forget_loads()
        cond = self.emit_expr(s.cond)
        self._forget_loads()
        yes, no, end = self._label("then"), self._label("else"), self._label("join")
        self._line(f"br i1 {cond.text}, label %{yes}, label %{no if s.orelse is not None else end}")
        for label, side in ((yes, s.then), (no, s.orelse)):
            if side is not None:
                self._start(label)
                with self._scope():
                    self.emit_stmt(side)
                self._line(f"br label %{end}")
        self._start(end)

    def emit_While(self, s: lp.While) -> None:
        head, body, end = self._label("while"), self._label("body"), self._label("done")
        self._line(f"br label %{head}")
        self._start(head)
        self._forget_loads()
        with self._scope():
            cond = self.emit_expr(s.cond)
            self._forget_loads()
            self._line(f"br i1 {cond.text}, label %{body}, label %{end}")
            self._start(body)
            self.emit_stmt(s.body)
            self._line(f"br label %{head}")
        self._start(end)

    def emit_For(self, s: lp.For) -> None:
        self._forget_loads()
        extent = self.emit_expr(s.extent, index=True)
        reach = self._range(s.extent)
        self._forget_loads()
        if s.kind == "parallel" and self._thread is None:
            if not (reach.hi is not None and reach.hi <= 1):
                self._emit_parallel(s, extent)
                return
        self._emit_loop(s, self.zero(s.var.dtype), extent, may_be_empty=not reach.within(1, None))

    def _emit_loop(self, s: lp.For, first: Value, last: Value, may_be_empty: bool) -> None:
        """From `first` to before `last`; tested at the end, as LLVM's loop passes like it."""
        reach = self._range(s.extent)
        t = self.value_type(s.var.dtype)
        if last.dtype != s.var.dtype:
            last = self.cast(last, s.var.dtype)
        loop, end = self._label("loop"), self._label("done")
        if may_be_empty:
            enter = self._op(f"icmp slt {t} {first.text}, {last.text}")
            before = self._fn.block
            self._line(f"br i1 {enter}, label %{loop}, label %{end}")
        else:
            before = self._fn.block
            self._line(f"br label %{loop}")
        self._start(loop)
        var, following = self._name("i"), self._name("next")
        at = len(self._fn.lines)
        vectors = self._vectors
        with self._scope():
            self._env[s.var.name] = Value(var, s.var.dtype)
            self._ranges[s.var.name] = Range(0, None if reach.hi is None else max(0, reach.hi - 1))
            self.emit_stmt(s.body)
            self._forget_loads()
        self._fn.lines.insert(at, f"  {var} = phi {t} [ {first.text}, %{before} ], [ {following}, %{self._fn.block} ]")
        self._line(f"{following} = add nuw nsw {t} {var}, 1")
        again = self._op(f"icmp slt {t} {following}, {last.text}")
        hint = ""
        if self._vectors != vectors:
            # The schedule has decided how this loop is unrolled and vectorised.
            if self._loop_hints is None:
                self._loop_hints = (
                    self._md('!{!"llvm.loop.unroll.disable"}'),
                    self._md('!{!"llvm.loop.vectorize.enable", i1 false}'),
                )
            hint = f", !llvm.loop {self._md('distinct !{!self, ' + ', '.join(self._loop_hints) + '}')}"
        self._line(f"br i1 {again}, label %{loop}, label %{end}{hint}")
        self._start(end)

    def emit_Allocate(self, s: lp.Allocate) -> None:
        b = s.buffer
        if b.scope == "register":
            self._buffers[b.name] = self._registers(s)
        elif id(s) in self._storage.scratch:
            place = self._storage.scratch[id(s)]
            pointer = self._scratch_base[place.number]
            if place.per_thread:
                assert self._thread is not None
                size = self.emit_expr(place.slice_bytes)
                offset = self._op(f"mul nsw i64 {self._thread}, {size.text}")
                pointer = self._gep("i8", pointer, offset)
            self._buffers[b.name] = _Memory(pointer, b, self._annotations[b.name])
        else:
            self._buffers[b.name] = _Memory(
                self._slot(f"[{max(1, constant_bytes(b))} x i8]", max(64, b.align)), b, self._annotations[b.name]
            )
        self.emit_stmt(s.body)
        del self._buffers[b.name]

    def _registers(self, s: lp.Allocate) -> _Registers:
        """Slots as wide as the widest access of the buffer."""
        b = s.buffer
        size = byte_size(b)
        if not isinstance(size, ex.Const):
            raise CodegenError(
                f"buffer '{b.name}' is in registers but its size is not constant",
                where=f"{b.name}: {size} bytes",
                hint="put it in scope local",
            )
        if b.dtype.kind == "complex":
            raise CodegenError(f"buffer '{b.name}' of {b.dtype} cannot be in registers", hint="put it in scope local")
        count = int(size.value) // memory_bytes(b.dtype)
        width = 1

        def see(indices: tuple[Expr, ...]) -> None:
            nonlocal width
            width = max(width, *(i.lanes if isinstance(i, ex.Ramp) else 1 for i in indices))

        for inner in lp.walk_stmts(s.body):
            if isinstance(inner, lp.AtomicUpdate) and inner.buffer.name == b.name:
                raise CodegenError(
                    f"buffer '{b.name}' is in registers but is updated atomically", hint="put it in scope local"
                )
            if isinstance(inner, lp.Store) and inner.buffer.name == b.name:
                see(inner.indices)
            for e in lp.stmt_exprs(inner):
                for n in ex.walk(e):
                    if isinstance(n, Load) and n.buffer.name == b.name:
                        see(n.indices)
        t = self.value_type(b.dtype.with_lanes(width))
        return _Registers(b, width, [self._slot(t) for _ in range(-(-count // width))])

    def emit_Evaluate(self, s: lp.Evaluate) -> None:
        self._forget_loads()
        self.emit_expr(s.call)
        self._forget_loads()

    def emit_AtomicUpdate(self, s: lp.AtomicUpdate) -> None:
        self._forget_loads()
        where = self._find(s.buffer)
        index = self._flat(s.buffer, s.indices)
        symbol = {"add": "+", "min": "min", "max": "max"}[s.op]
        if isinstance(where, _Registers):
            raise CodegenError(
                f"buffer '{s.buffer.name}' is in registers but is updated atomically", hint="put it in scope local"
            )
        lanes = max(index.dtype.lanes, s.value.dtype.lanes)
        value, at = self.splat(self.emit_expr(s.value), lanes), self.emit_expr(index, index=True)
        for k in range(lanes):
            v = self.element(value, k)
            i = self.cast(self.element(at, k) if at.dtype.lanes > 1 else at, dt.int64)
            if v.dtype.kind == "complex":
                for j, part in enumerate(self.parts(v)):
                    place = self._op(f"add i64 {self._op(f'mul i64 {i.text}, 2')}, {j}")
                    self._update(where, place, symbol, part)
            else:
                self._update(where, i.text, symbol, v)
        self._forget_loads()

    def _update(self, where: _Memory, index: str, symbol: str, v: Value) -> None:
        d, element = v.dtype, self.memory_type(v.dtype)
        pointer = self._gep(element, where.pointer, index)
        align = f", align {memory_bytes(d)}"
        if self._thread is None:  # nobody else is running
            old = self._from_memory(self._op(f"load {element}, ptr {pointer}{align}"), d)
            self._line(f"store {element} {self._to_memory(self.binary(symbol, old, v))}, ptr {pointer}{align}")
            return
        if d.is_integer and d.bits >= 8:
            name = "add" if symbol == "+" else ("" if d.kind == "int" else "u") + symbol
            self._op(f"atomicrmw {name} ptr {pointer}, {element} {v.text} monotonic")
            return
        word = f"i{8 * memory_bytes(d)}"
        first = self._op(f"load atomic {word}, ptr {pointer} monotonic{align}")
        before, loop, end = self._fn.block, self._label("retry"), self._label("stored")
        self._line(f"br label %{loop}")
        self._start(loop)
        raw, again = self._name("old"), self._name("seen")
        at = len(self._fn.lines)
        old = self._from_memory(raw if word == element else self._op(f"bitcast {word} {raw} to {element}"), d)
        new = self._to_memory(self.binary(symbol, old, v))
        if word != element:
            new = self._op(f"bitcast {element} {new} to {word}")
        pair = self._op(f"cmpxchg weak ptr {pointer}, {word} {raw}, {word} {new} monotonic monotonic{align}")
        self._fn.lines.insert(at, f"  {raw} = phi {word} [ {first}, %{before} ], [ {again}, %{self._fn.block} ]")
        self._line(f"{again} = extractvalue {{ {word}, i1 }} {pair}, 0")
        done = self._op(f"extractvalue {{ {word}, i1 }} {pair}, 1")
        self._line(f"br i1 {done}, label %{end}, label %{loop}")
        self._start(end)

    # -- parallel loops -------------------------------------------------------------------------------------------

    def _emit_parallel(self, s: lp.For, extent: Value) -> None:
        """The loop cut into tasks of neighbouring iterations; the body becomes a function of its own."""
        extent = self.cast(extent, dt.int64)
        variables, buffers = self._captured(s)
        fields: list[tuple[str, str]] = [("i64", extent.text), ("i64", "")]  # extent, tasks
        for v in variables:
            value = self._env[v]
            fields.append((self.value_type(value.dtype), value.text))
        for b in buffers:
            memory = self._buffers[b]
            if isinstance(memory, _Registers):
                raise CodegenError(
                    f"buffer '{b}' is in registers but is used inside the parallel loop '{s.var.name}'",
                    why="registers belong to one thread", hint="allocate it inside the loop, or put it in scope local",
                )  # fmt: skip
            fields.append(("ptr", memory.pointer))
        scratch = [self._storage.scratch[id(a)].number for a in lp.walk_stmts(s.body) if id(a) in self._storage.scratch]
        fields += [("ptr", self._scratch_base[n]) for n in scratch]
        closure_type = "{ " + ", ".join(t for t, _ in fields) + " }"

        name = _quote(f"{self.program.name}.task.{self._tasks}")
        self._tasks += 1
        # As many tasks as keep the threads busy; without a pool, one.
        pool = self._op(f"load ptr, ptr {self._gep('i8', '%ctx', str(OFFSETS['parallel_for']))}, align 8")
        alone = self._op(f"icmp eq ptr {pool}, null")
        threads = self._op(f"load i64, ptr {self._gep('i8', '%ctx', str(OFFSETS['threads']))}, align 8")
        limit = self._op(
            f"mul i64 {self.intrinsic('i64', 'llvm.smax.i64', ('i64', threads), ('i64', '1'))}, {TASKS_PER_THREAD}"
        )
        several = self.intrinsic("i64", "llvm.smin.i64", ("i64", limit), ("i64", extent.text))
        tasks = self._op(f"select i1 {alone}, i64 1, i64 {several}")
        fields[1] = ("i64", tasks)
        closure = self._slot(closure_type, 64)
        for i, (t, text) in enumerate(fields):
            at = self._op(f"getelementptr inbounds {closure_type}, ptr {closure}, i64 0, i32 {i}")
            self._line(f"store {t} {text}, ptr {at}")

        start, direct, fork, fail, end = (self._label(x) for x in ("start", "direct", "fork", "fail", "join"))
        some = self._op(f"icmp sgt i64 {extent.text}, 0")
        self._line(f"br i1 {some}, label %{start}, label %{end}")
        self._start(start)
        one = self._op(f"icmp eq i64 {tasks}, 1")
        self._line(f"br i1 {one}, label %{direct}, label %{fork}")
        self._start(direct)
        self._line(f"call void @{name}(ptr %ctx, ptr {closure}, i64 0, i64 0)")
        self._line(f"br label %{end}")
        self._start(fork)
        status = self._op(f"call i32 {pool}(ptr %ctx, ptr @{name}, ptr {closure}, i64 {tasks})")
        bad = self._op(f"icmp ne i32 {status}, 0")
        self._line(f"br i1 {bad}, label %{fail}, label %{end}")
        self._start(fail)
        self._line(f"ret i32 {status}")
        self._start(end)
        self._emit_task(s, name, closure_type, variables, buffers, scratch)

    def _captured(self, s: lp.For) -> tuple[list[str], list[str]]:
        """Variables and buffers of outside that the body uses, in order of first use. Sizes of scratch slices are used,
        too."""
        variables: dict[str, None] = {}
        buffers: dict[str, None] = {}

        def see(e: Expr) -> None:
            for n in ex.walk(e):
                if isinstance(n, ex.Var):
                    variables[n.name] = None
                elif isinstance(n, Load):
                    buffers[n.buffer.name] = None

        for inner in lp.walk_stmts(s.body):
            for e in lp.stmt_exprs(inner):
                see(e)
            if isinstance(inner, (lp.Store, lp.AtomicUpdate)):
                buffers[inner.buffer.name] = None
                for d in inner.buffer.shape:
                    see(d)
            if id(inner) in self._storage.scratch:
                see(self._storage.scratch[id(inner)].slice_bytes)
        return [v for v in variables if v in self._env and v != s.var.name], [b for b in buffers if b in self._buffers]

    def _emit_task(
        self, s: lp.For, name: str, closure: str, variables: list[str], buffers: list[str], scratch: list[int]
    ) -> None:
        outer = (
            self._fn,
            self._env,
            self._buffers,
            self._cache,
            self._trail,
            self._impure,
            self._thread,
            self._scratch_base,
        )
        self._fn = Function(
            f"define internal void @{name}(ptr %ctx, ptr noalias readonly %closure, i64 %index, i64 %thread) #1"
        )
        self._cache, self._trail, self._impure, self._thread = {}, [], [], "%thread"
        number = iter(range(len(variables) + len(buffers) + len(scratch) + 2))

        def take(t: str, align: int = 0) -> str:
            at = self._op(f"getelementptr inbounds {closure}, ptr %closure, i64 0, i32 {next(number)}")
            return self._op(f"load {t}, ptr {at}" + (f", !align {self._align(align)}" if align > 1 else ""))

        extent, tasks = take("i64"), take("i64")
        old_env, old_buffers = self._env, self._buffers
        self._env = {v: replace(old_env[v], text=take(self.value_type(old_env[v].dtype))) for v in variables}
        self._buffers = {}
        for b in buffers:
            memory = old_buffers[b]
            assert isinstance(memory, _Memory)
            self._buffers[b] = replace(memory, pointer=take("ptr"))
        self._scratch_base = dict(self._scratch_base)
        for n in scratch:
            self._scratch_base[n] = take("ptr", 64)
        # Sizes differ by at most one, the larger tasks first: whoever is done early takes the small ones that are left.
        size, rest = self._op(f"udiv i64 {extent}, {tasks}"), self._op(f"urem i64 {extent}, {tasks}")
        before = self.intrinsic("i64", "llvm.umin.i64", ("i64", "%index"), ("i64", rest))
        first = self._op(f"add nuw nsw i64 {self._op(f'mul nuw nsw i64 %index, {size}')}, {before}")
        more = self._op(f"zext i1 {self._op(f'icmp ult i64 %index, {rest}')} to i64")
        last = self._op(f"add nuw nsw i64 {self._op(f'add nuw nsw i64 {first}, {size}')}, {more}")
        begin = self.cast(Value(first, dt.int64), s.var.dtype)
        self._emit_loop(s, begin, self.cast(Value(last, dt.int64), s.var.dtype), may_be_empty=False)
        self._line("ret void")
        self._functions.append(self._fn.text())
        self._fn, self._env, self._buffers, self._cache, self._trail, self._impure, self._thread, self._scratch_base = (
            outer
        )


def _conjuncts(e: Expr) -> list[Expr]:
    return [*_conjuncts(e.a), *_conjuncts(e.b)] if isinstance(e, ex.And) else [e]


def _suffix(vector: str) -> str:
    """<8 x float> as v8f32, as intrinsics' names spell it."""
    lanes, _, element = vector.strip("<>").split(" ")
    return f"v{lanes}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)


def _emit_prefetch(emitter: Emitter, call: lp.IntrinsicCall) -> Value | None:
    """prefetch(buffer[index], locality = 3): the line of an element that will be read; 3 means into every cache, 2 from
    the second on."""
    load = call.args[0]
    if not isinstance(load, Load):
        raise CodegenError("prefetch takes an element of a buffer", where=str(call))
    locality = int(call.args[1].value) if len(call.args) > 1 and isinstance(call.args[1], ex.Const) else 3
    emitter.intrinsic(
        "void", "llvm.prefetch.p0", ("ptr", emitter.address(load)), ("i32", "0"), ("i32", str(locality)), ("i32", "1")
    )
    return None


def _emit_llvm(emitter: Emitter, call: lp.IntrinsicCall) -> Value | None:
    """An intrinsic of LLVM's by its whole name; a call without a value gives none."""
    result = "void" if call.dtype == dt.handle else emitter.value_type(call.dtype)
    text = emitter.intrinsic(
        result, call.name, *((emitter.value_type(a.dtype), emitter.emit_expr(a).text) for a in call.args)
    )
    return Value(text, call.dtype, True) if text else None


def _quote(name: str) -> str:
    return '"' + "".join(chr(b) if chr(b).isalnum() or chr(b) in "._-$" else f"\\{b:02X}" for b in name.encode()) + '"'
