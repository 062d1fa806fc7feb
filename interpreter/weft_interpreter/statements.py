"""Statements as Python source: loops, checked accesses, threads that meet at barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import LoopError
from weft.expr import nodes as e
from weft.loop.grids import AWAIT_COPIES, COPY_ASYNC, COPY_BOX, SHUFFLE, is_shuffle
from weft.loop.nodes import (
    PREFETCH,
    TRUE,
    Allocate,
    AtomicUpdate,
    Block,
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
    While,
    walk_stmts,
)
from weft.loop.queues import Await, Begin
from weft_interpreter.calls import int_range
from weft_interpreter.formulas import Formulas
from weft_interpreter.source import Code, Storage, items

BARRIER = "barrier"


class Statements(Formulas):
    """Statements of a program. `shuffle`: concurrent loops run in the order of `_order`."""

    def __init__(self, program: Program, intrinsics: Mapping[str, Callable[..., Any]], shuffle: bool) -> None:
        super().__init__(program, intrinsics)
        self.shuffle = shuffle
        self.thread: list[Code] = []  # the numbers of a thread, axis by axis
        self.unit: list[Code] = []  # those of all loops around whose iterations run at once
        self.threads = 0

    def statement(self, s: Stmt) -> None:
        outer, self.stmt = self.stmt, s
        match s:
            case Seq():
                for inner in s.stmts:
                    self.statement(inner)
            case For():
                self.loop(s)
            case While():
                self.put("while True:")
                self.indent += 1
                self.nested += 1
                (cond,) = self.formulas(s.cond)
                self.put(f"if not {cond.text}: break")
                self.statement(s.body)
                self.indent -= 1
                self.nested -= 1
            case If():
                (cond,) = self.formulas(s.cond)
                self.put(f"if {cond.text}:")
                self.suite(s.then)
                if s.orelse is not None:
                    self.put("else:")
                    self.suite(s.orelse)
            case Let() if is_shuffle(s) and SHUFFLE not in self.intrinsics:
                assert isinstance(s.value, IntrinsicCall)
                if not self.threads:
                    self.fail("a shuffle outside every threadIdx loop")
                value, bit = self.formulas(*s.value.args)
                name = self.name("_v", s.var.name)
                self.put(f"{name} = yield ({self.names}, {bit.text}, {value.text})")
                bounds = int_range(s.var.dtype) if s.var.dtype.is_integer or s.var.dtype.is_bool else (0, 0)
                self.scoped(s.var, Code(name, *bounds), lambda: self.statement(s.body))
            case Let():
                (value,) = self.formulas(s.value)
                name = self.name("_v", s.var.name)
                self.put(f"{name} = {value.text}")
                self.scoped(s.var, Code(name, value.lo, value.hi), lambda: self.statement(s.body))
            case Allocate():
                self.allocation(s)
            case Store():
                self.store(s)
            case AtomicUpdate():
                self.atomic(s)
            case Evaluate():
                self.call(s.call)
            case Block():
                self.block(s)
            case _:
                raise LoopError(f"interpret: no meaning for a {type(s).__name__}", where=f"program {self.program.name}")
        self.stmt = outer

    def call(self, call: IntrinsicCall) -> None:
        """An intrinsic called for its effect."""
        name, args = call.name, call.args
        if name == BARRIER and BARRIER not in self.intrinsics:
            if not self.threads:
                self.fail("a barrier outside every threadIdx loop")
            self.put("yield")
        elif name == PREFETCH and PREFETCH not in self.intrinsics:
            self.statement_of(*args)
            for a in args:
                if isinstance(a, Load):
                    self.check("prefetch of", self.find(a.buffer), [self.formula(i) for i in a.indices])
        elif name in (COPY_ASYNC, COPY_BOX, AWAIT_COPIES) and name not in self.intrinsics:
            self.statement_of(*args)
            self.put(f"_{name}({', '.join([f'({items(self.thread)})', *self.places(args)])})")
        elif isinstance(meaning := self.intrinsics.get(name), (Begin, Await)):
            self.statement_of(*args)
            act = "_begin" if isinstance(meaning, Begin) else "_await"
            self.put(f"{act}({', '.join([f'({items(self.unit)})', self.bound(meaning), *self.places(args)])})")
        else:
            self.put(self.formulas(call)[0].text)

    def places(self, args: Sequence[e.Expr]) -> list[str]:
        """Operands of an instruction that takes addresses."""
        return [self.address(a) if isinstance(a, Load) else self.formula(a).text for a in args]

    def suite(self, s: Stmt) -> None:
        self.indent += 1
        if self.indent > 60 and not isinstance(s, (Store, Seq)):
            call = self.outlined(lambda: self.statement(s))
            self.put(f"yield from {call}" if self.threads and has_meeting(s) else call)
            self.indent -= 1
            return
        start = len(self.lines)
        self.statement(s)
        if len(self.lines) == start:
            self.put("pass")
        self.indent -= 1

    def loop(self, s: For) -> None:
        (extent,) = self.formulas(s.extent)
        name = self.name("_v", s.var.name)
        code = Code(name, 0, max(0, extent.hi - 1))
        concurrent = s.kind not in ("serial", "vectorized", "unrolled")
        steps = f"{'_order' if concurrent and self.shuffle else 'range'}({extent.text})"
        around = [x for x, held in ((self.thread, s.kind.startswith("threadIdx")), (self.unit, concurrent)) if held]
        for numbers in around:
            numbers.append(code)
        self.steps(s, name, code, steps)
        for numbers in around:
            numbers.pop()

    def steps(self, s: For, name: str, code: Code, steps: str) -> None:
        if s.kind.startswith("threadIdx") and has_meeting(s.body):
            # Every thread is a generator that yields at barriers; an inner thread loop hands its barriers outwards.
            thread = self.name("thread")
            self.put(f"def {thread}({name}):")
            nested, self.nested = self.nested, 0
            self.threads += 1
            self.scoped(s.var, code, lambda: self.suite(s.body))
            self.threads -= 1
            self.nested = nested
            run = f"_lockstep({steps}, {thread})"
            self.put(f"yield from {run}" if self.threads else f"for _ in {run}: pass")
            return
        if self.nested >= 14:  # Python nests at most 20 loops in one function
            inner = self.name("part")
            self.put(f"def {inner}():")
            nested, self.nested = self.nested, 0
            self.indent += 1
            self.plain_loop(s, name, code, steps)
            self.indent -= 1
            self.nested = nested
            self.put(f"yield from {inner}()" if has_meeting(s.body) and self.threads else f"{inner}()")
            return
        self.plain_loop(s, name, code, steps)

    def plain_loop(self, s: For, name: str, code: Code, steps: str) -> None:
        self.put(f"for {name} in {steps}:")
        self.nested += 1
        self.scoped(s.var, code, lambda: self.suite(s.body))
        self.nested -= 1

    def allocation(self, s: Allocate) -> None:
        b = s.buffer
        shape = self.formulas(*b.shape)
        for k, d in enumerate(shape):
            if d.lo != d.hi:
                name = self.name("_d")
                self.put(f"{name} = {d.text}")
                shape[k] = Code(name, d.lo, d.hi)
        array = self.name("_b", b.name)
        sizes = [d.text for d in shape] + ([str(b.dtype.lanes)] if b.dtype.lanes > 1 else [])
        self.put(f"{array} = _alloc(({''.join(d + ', ' for d in sizes)}), {self.bound(b.dtype)})")
        before = self.storage.get(b.name)
        self.storage[b.name] = Storage(b, array, shape, True)
        self.statement(s.body)
        if before is None:
            del self.storage[b.name]
        else:
            self.storage[b.name] = before

    def target(self, buffer: Buffer) -> Storage:
        storage = self.find(buffer)
        if not storage.writable:
            self.fail(f"interpret: the input '{buffer.name}' is stored to")
        return storage

    def store(self, s: Store) -> None:
        storage = self.target(s.buffer)
        lanes = max((i.dtype.lanes for i in s.indices), default=1)
        if lanes > 1:
            *indices, value, mask = self.formulas(*s.indices, s.value, TRUE if s.predicate is None else s.predicate)
            self.put(
                f"_vector_store({s.buffer.name!r}, {storage.array}, {lanes}, ({items(indices)}), {value.text},"
                f" {mask.text})"
            )
            return
        guarded = s.predicate is not None and s.predicate != TRUE
        if guarded:
            assert s.predicate is not None
            (cond,) = self.formulas(s.predicate)
            self.put(f"if {cond.text}:")
            self.indent += 1
        *indices, value = self.formulas(*s.indices, s.value)
        self.check("store to", storage, indices)
        self.put(f"{storage.array}[{items(indices) or '()'}] = {value.text}")
        if guarded:
            self.indent -= 1

    def atomic(self, s: AtomicUpdate) -> None:
        storage = self.target(s.buffer)
        lanes = max((i.dtype.lanes for i in s.indices), default=1)
        if lanes > 1:
            *indices, value = self.formulas(*s.indices, s.value)
            self.put(
                f"_vector_atomic({s.buffer.name!r}, {storage.array}, {lanes}, ({items(indices)}), {s.op!r},"
                f" {value.text})"
            )
            return
        op = {"add": e.Add, "min": e.Min, "max": e.Max}[s.op]
        *indices, value = self.formulas(*s.indices, op(Load(s.buffer, s.indices), s.value))
        self.put(f"{storage.array}[{items(indices) or '()'}] = {value.text}")

    def block(self, s: Block) -> None:
        bindings = self.formulas(*s.bindings)
        before = {i.var.name: self.variables.get(i.var.name) for i in s.iters}
        for it, binding in zip(s.iters, bindings):
            name = self.name("_v", it.var.name)
            self.put(f"{name} = {binding.text}")
            self.variables[it.var.name] = (it.var, Code(name, binding.lo, binding.hi))
        indent = self.indent
        if s.predicate != TRUE:
            (cond,) = self.formulas(s.predicate)
            self.put(f"if {cond.text}:")
            self.indent += 1
        first = []
        for it in s.iters:
            var, code = self.variables[it.var.name]
            (extent,) = self.formulas(it.extent)
            if code.lo < 0 or code.hi >= extent.lo:
                self.put(
                    f"if not 0 <= {code.text} < {extent.text}: _off_iterator({s.name!r}, {it.var.name!r}, {code.text},"
                    f" {extent.text})"
                )
                self.variables[it.var.name] = (
                    var,
                    Code(code.text, max(0, code.lo), max(0, min(code.hi, extent.hi - 1))),
                )
            if it.kind == "reduce":
                first.append(f"{code.text} == 0")
        if s.init is not None:
            self.put(f"if {' and '.join(first) or 'True'}:")
            self.suite(s.init)
        self.statement(s.body)
        self.put("pass")
        self.indent = indent
        for name, old in before.items():
            if old is None:
                del self.variables[name]
            else:
                self.variables[name] = old


def has_meeting(stmt: Stmt) -> bool:
    """Whether threads wait for each other in it."""
    return any((isinstance(s, Evaluate) and s.call.name == BARRIER) or is_shuffle(s) for s in walk_stmts(stmt))
