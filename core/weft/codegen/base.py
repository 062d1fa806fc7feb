"""What a code generator is, and what it gives."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr.nodes import Expr, Var
from weft.loop.nodes import For, Program, Stmt, transform_stmts

TASKS_PER_THREAD = 8
"""A parallel loop is cut into at most this many tasks per thread: few enough to be cheap, many enough to even out."""

THREADS = Var("call.threads", dt.int64)
"""In a scratch formula: max(1, threads of the call). Whoever sizes scratch binds it beside the dims."""


@dataclass(frozen=True)
class KernelCode:
    """Code of one kernel.

    `object` is in the target's own format (a relocatable object, a cubin, source text). The kernel's buffers are the
    program's inputs, its outputs, then one per entry of `scratch`: sizes in bytes, formulas over the program's dims and
    THREADS, each buffer aligned as values of the target are (`Machine.alignment`, 64 bytes if it says nothing) and
    undefined on entry. `parallel`: the code calls `ctx.parallel_for`; a native segment without such a kernel needs no
    worker pool.
    """

    name: str
    object: bytes
    scratch: tuple[Expr, ...] = ()
    parallel: bool = False


@runtime_checkable
class Codegen(Protocol):
    """Turns lowered Programs into code."""

    functions: frozenset[str]
    """The functions of `weft.expr.functions` that need no expansion; beside `fma` math_tables.ROUNDED_TWICE where that
    takes many instructions."""

    def check(self, program: Program) -> list[str]:
        """What `program` uses and this target lacks, everything at once, a line each; empty if it can be compiled.

        A rule has taken the program by then: a line here ends the compilation, or, where several targets share a model,
        takes the nodes to another, with a warning. So rules decline what does not fit.
        """
        ...

    def compile(self, program: Program) -> KernelCode:
        """The code of `program`, which the loop passes have lowered."""
        ...

    def submit(self, program: Program) -> Future[KernelCode]:
        """As `compile`, perhaps beside others, of a program that `check` has found nothing wrong with."""
        ...


@runtime_checkable
class SourceCodegen(Protocol):
    """A Codegen whose code is made from text, which `weft inspect --stage source` shows."""

    def source(self, program: Program) -> str:
        """The text that `compile` makes code from."""
        ...


def in_one_thread(program: Program) -> Program:
    """The program with its parallel loops as serial ones, for code that needs no worker pool."""

    def serial(s: Stmt) -> Stmt | None:
        return replace(s, kind="serial") if isinstance(s, For) and s.kind == "parallel" else None

    return program.with_body(transform_stmts(program.body, serial))


def require(codegen: Codegen, program: Program, target: str) -> None:
    """Raises CodegenError naming everything that `program` uses and the target lacks."""
    lacks = codegen.check(program)
    if lacks:
        hint = (
            "the schedule of the rule that took it should leave none of these; a rule declines in `offer` what its"
            " schedules cannot make fit"
        )
        raise CodegenError(
            f"target '{target}' cannot compile kernel '{program.name}'", where="\n".join(lacks), hint=hint
        )
