"""Where the buffers of a program lie: in registers, on the stack, in scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.codegen.base import THREADS
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.loop import nodes as lp
from weft.loop.nodes import Buffer, Load, Program, Stmt

STACK_BYTES = 16 << 10
"""Local buffers of constant size go on the stack up to this much per function; workers' stacks are small."""
VERIFY = "verify(program) finds uses before definitions"


@dataclass(frozen=True)
class Memory:
    """A buffer at an address."""

    pointer: str
    buffer: Buffer
    annotations: str  # alias scopes


@dataclass
class Registers:
    """A buffer in registers: slot k holds elements k*width … k*width + width - 1."""

    buffer: Buffer
    width: int
    slots: list[str]


@dataclass(frozen=True)
class Scratch:
    number: int  # among the scratch buffers
    slice_bytes: Expr
    per_thread: bool


class Storage:
    """Where each Allocate of a program goes: registers, stack, or a scratch buffer."""

    def __init__(self, program: Program) -> None:
        self.scratch: dict[int, Scratch] = {}
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
        self.scratch[id(stmt)] = Scratch(len(self.sizes), size, task is not None)
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
