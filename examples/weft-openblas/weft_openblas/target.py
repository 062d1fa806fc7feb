"""The target `openblas`: its options, and its code: a call of the library under the loops of a batch, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.codegen.base import KernelCode
from weft.errors import TargetError
from weft.expr.nodes import Expr, substitute
from weft.loop.nodes import Evaluate, For, Let, Load, Program, Seq, Stmt
from weft.machine import Machine
from weft.target import Target, TargetKind
from weft_openblas.device import flops_per_cycle, missing
from weft_openblas.instructions import PREFIX
from weft_runtime.executable import NativeCode
from weft_runtime.threads import available_threads

FORMAT = 1
"""Of the code: another number whenever the same program gives other code."""
NOTHING = Seq(())
"""What is left of a batch of none."""


@dataclass(frozen=True)
class OpenBlasOptions:
    """-threads: of the library; by default the processors at hand. -always: takes every product, however long it is
    estimated to take."""

    threads: int | None = None
    always: bool = False

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= 64:
            raise ValueError(f"-threads is 1 to 64, got {self.threads}")


class OpenBlas(TargetKind):
    """Products of matrices by OpenBLAS."""

    name: ClassVar[str] = "openblas"
    options: ClassVar[type] = OpenBlasOptions

    def resolve(self, target: Target) -> Target:
        if (why := missing()) is not None:
            raise TargetError("target 'openblas' is not here", why=why)
        return Target(
            self.name, replace(target.options, threads=target.options.threads or min(64, available_threads()))
        )

    def machine(self, target: Target) -> Machine:
        flops = flops_per_cycle()
        return Machine(
            "openblas", 128, 16, cores=target.options.threads, flops_per_cycle={"float32": flops, "float64": flops // 2}
        )

    def codegen(self, target: Target) -> Calls:
        return Calls(target.options.threads)

    def device(self, target: Target) -> str:
        return "openblas"

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        section, entries = b"", {}
        for name, code in kernels.items():
            entries[name] = len(section)
            section += code.object + b"\0"
        return NativeCode(section, entries, "openblas", str(FORMAT))

    def fingerprint(self, target: Target) -> str:
        return f"openblas -threads={target.options.threads} format {FORMAT}"


class Calls:
    """Writes what `call_library` has left: loops around one call."""

    functions: frozenset[str] = frozenset()

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def check(self, program: Program) -> list[str]:
        _, _, stmt = _loops(program)
        if stmt == NOTHING or (isinstance(stmt, Evaluate) and stmt.call.name.startswith(PREFIX)):
            return []
        return [f"statements other than one call of the library: {type(stmt).__name__}"]

    def compile(self, program: Program) -> KernelCode:
        loops, values, stmt = _loops(program)
        code: dict[str, object] = {
            "function": "",
            "dims": [d.name for d in program.dims],
            "loops": loops,
            "args": (),
            "threads": self.threads,
        }
        if isinstance(stmt, Evaluate):
            number = {b.name: k for k, b in enumerate(program.params)}
            given = [substitute(a, values) for a in stmt.call.args]
            code["args"] = [
                (number[a.buffer.name], str(a.indices[0])) if isinstance(a, Load) else (None, str(a)) for a in given
            ]
            code["function"] = stmt.call.name.removeprefix(PREFIX)
        return KernelCode(program.name, json.dumps(code).encode())

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done


def _loops(program: Program) -> tuple[list[tuple[str, str]], dict[str, Expr], Stmt]:
    """The loops around the innermost statement with their extents, the values of names, and that statement."""
    loops: list[tuple[str, str]] = []
    values: dict[str, Expr] = {}
    stmt = program.body
    while isinstance(stmt, For | Let):
        if isinstance(stmt, For):
            loops.append((stmt.var.name, str(substitute(stmt.extent, values))))
        else:
            values[stmt.var.name] = substitute(stmt.value, values)
        stmt = stmt.body
    return loops, values, stmt
