"""The target `tide`: its options, its machine, and what its code is.

A kernel's code is the text of its lowered loop program, which the device plays: scalar code with instructions in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar

from weft.codegen.base import KernelCode
from weft.expr.functions import FUNCTIONS
from weft.loop.nodes import Program
from weft.machine import Level, Machine, Scope, Transfer
from weft.target import Target, TargetKind
from weft_runtime.executable import NativeCode

from weft_tide.instructions import ACCUMULATORS, ALIGN, COLUMNS, PRODUCTS, ROWS, STAGING

FORMAT = 1
"""Of the code: another number whenever the same program gives other code."""


@dataclass(frozen=True)
class TideOptions:
    """-arrays: how many of the chip's arrays are used, 1 or 2. -staging: staging memory of each, in KiB, 4 to 256."""

    arrays: int = 2
    staging: int = 64

    def __post_init__(self) -> None:
        if self.arrays not in (1, 2):
            raise ValueError(f"-arrays is 1 or 2, got {self.arrays}")
        if not 4 <= self.staging <= 256:
            raise ValueError(f"-staging is 4 to 256, got {self.staging}")


class TideTarget(TargetKind):
    """Our accelerator."""

    name: ClassVar[str] = "tide"
    options: ClassVar[type] = TideOptions

    def machine(self, target: Target) -> Machine:
        arrays = target.options.arrays
        scopes = (
            Scope("global", align=ALIGN),
            Scope(STAGING, size=target.options.staging << 10, align=ALIGN, shared_by="array"),
            Scope(ACCUMULATORS, size=24 << 10, align=ALIGN, shared_by="array"),
        )
        return Machine(
            "tide",
            vector_bits=256,
            vector_registers=16,
            scopes={scope.name: scope for scope in scopes},
            levels={"array": Level("array", units=arrays)},
            flops_per_cycle={"float32": 2, **{p.name: 2 * ROWS * COLUMNS for p in PRODUCTS}},
        )

    def codegen(self, target: Target) -> TideCodegen:
        return TideCodegen()

    def device(self, target: Target) -> str:
        return "tide"

    def transfer(self, target: Target) -> Transfer:
        return Transfer(latency=2e-6, bandwidth=16e9)

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        section, entries = b"", {}
        for name, code in kernels.items():
            entries[name] = len(section)
            section += code.object + b"\0"
        return NativeCode(section, entries, "tide", str(FORMAT))

    def fingerprint(self, target: Target) -> str:
        return f"{target} format {FORMAT}"


class TideCodegen:
    """Code is text. `functions` are those of `weft.expr.functions` that it has: the others are expanded into
    formulas."""

    functions = frozenset(FUNCTIONS)

    def check(self, program: Program) -> list[str]:
        return []

    def compile(self, program: Program) -> KernelCode:
        return KernelCode(program.name, str(program).encode())

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done
