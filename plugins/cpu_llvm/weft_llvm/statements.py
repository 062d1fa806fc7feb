"""Statements → LLVM IR text, one `emit_<Node>` method per node; a parallel loop's body is a function of its own."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.codegen.base import TASKS_PER_THREAD
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft.loop import nodes as lp
from weft.loop.nodes import Load, Stmt
from weft_llvm.accesses import MOST_INTERLEAVED
from weft_llvm.instructions import Function, Value
from weft_llvm.storage import Memory, Registers, Storage, byte_size, constant_bytes, memory_bytes
from weft_llvm.transpositions import Transpositions
from weft_runtime.abi import CONTEXT


class Statements(Transpositions):
    """Emits statements into the current function."""

    _storage: Storage
    _functions: list[str]
    _loop_hints: tuple[str, str] | None
    _tasks: int
    _thread: str | None
    """SSA name of the thread's number inside a parallel body."""
    _annotations: dict[str, str]
    _scratch_base: dict[int, str]

    # -- statements -----------------------------------------------------------------------------------------------

    def emit_stmt(self, s: Stmt) -> None:
        getattr(self, "emit_" + type(s).__name__)(s)

    def emit_Seq(self, s: lp.Seq) -> None:
        at = 0
        while at < len(s.stmts):
            together = self._interleaved(s.stmts[at : at + MOST_INTERLEAVED])
            if together:
                self._store_interleaved(together)
            elif together := self._crossed(s.stmts[at:]):
                self._store_crossed(together)
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
            self._buffers[b.name] = Memory(pointer, b, self._annotations[b.name])
        else:
            self._buffers[b.name] = Memory(
                self._slot(f"[{max(1, constant_bytes(b))} x i8]", max(64, b.align)), b, self._annotations[b.name]
            )
        self.emit_stmt(s.body)
        del self._buffers[b.name]

    def _registers(self, s: lp.Allocate) -> Registers:
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
        return Registers(b, width, [self._slot(t) for _ in range(-(-count // width))])

    def emit_Evaluate(self, s: lp.Evaluate) -> None:
        self._forget_loads()
        self.emit_expr(s.call)
        self._forget_loads()

    def emit_AtomicUpdate(self, s: lp.AtomicUpdate) -> None:
        self._forget_loads()
        where = self._find(s.buffer)
        index = self._flat(s.buffer, s.indices)
        symbol = {"add": "+", "min": "min", "max": "max"}[s.op]
        if isinstance(where, Registers):
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

    def _update(self, where: Memory, index: str, symbol: str, v: Value) -> None:
        d, element = v.dtype, self.memory_type(v.dtype)
        pointer = self._gep(element, where.pointer, index)
        align = f", align {memory_bytes(d)}"
        if self._thread is None:  # nobody else is running
            old = self._from_memory(self._op(f"load {element}, ptr {pointer}{align}"), d)
            self._line(f"store {element} {self._to_memory(self.binary(symbol, old, v))}, ptr {pointer}{align}")
            return
        self._refuse_wide_atomics(d)
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

    def _refuse_wide_atomics(self, d: DType) -> None:
        if self.isa.arch == "riscv32" and memory_bytes(d) > 4:
            raise CodegenError(
                f"kernel '{self.program.name}' updates numbers of 64 bits atomically",
                why="riscv32 has no instruction for it",
                hint="let one thread run the loop: -threads=1",
            )

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
            if isinstance(memory, Registers):
                raise CodegenError(
                    f"buffer '{b}' is in registers but is used inside the parallel loop '{s.var.name}'",
                    why="registers belong to one thread", hint="allocate it inside the loop, or put it in scope local",
                )  # fmt: skip
            fields.append(("ptr", memory.pointer))
        scratch = [self._storage.scratch[id(a)].number for a in lp.walk_stmts(s.body) if id(a) in self._storage.scratch]
        fields += [("ptr", self._scratch_base[n]) for n in scratch]
        closure_type = "{ " + ", ".join(t for t, _ in fields) + " }"

        name = quote(f"{self.program.name}.task.{self._tasks}")
        self._tasks += 1
        context = CONTEXT.offsets(self.isa.pointer)
        # As many tasks as keep the threads busy; without a pool, one.
        pool = self._op(
            f"load ptr, ptr {self._gep('i8', '%ctx', str(context['parallel_for']))}, align {self.isa.pointer}"
        )
        alone = self._op(f"icmp eq ptr {pool}, null")
        threads = self._op(f"load i64, ptr {self._gep('i8', '%ctx', str(context['threads']))}, align 8")
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
            assert isinstance(memory, Memory)
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


def quote(name: str) -> str:
    return '"' + "".join(chr(b) if chr(b).isalnum() or chr(b) in "._-$" else f"\\{b:02X}" for b in name.encode()) + '"'
