"""The target `wave`: its options, its machine, and what its code is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from weft.codegen.base import KernelCode
from weft.machine import Machine, Scope, Transfer
from weft.target import Target, TargetKind
from weft_runtime.executable import NativeCode

from weft_wave.codegen import REGISTERS, WaveCodegen
from weft_wave.isa import LANES, VECTORS

FORMAT = 1
"""Of the code: another number whenever the same program gives other code."""


@dataclass(frozen=True)
class WaveOptions:
    """-mhz: the clock, 50 to 1000. -prefer: take all that the chip can compute, or what is faster here than
    elsewhere."""

    mhz: int = 500
    prefer: Literal["always", "faster"] = "always"

    def __post_init__(self) -> None:
        if not 50 <= self.mhz <= 1000:
            raise ValueError(f"-mhz is 50 to 1000, got {self.mhz}")


class WaveTarget(TargetKind):
    """The vector machine wave."""

    name: ClassVar[str] = "wave"
    options: ClassVar[type] = WaveOptions

    def machine(self, target: Target) -> Machine:
        return Machine(
            "wave",
            vector_bits=32 * LANES,
            vector_registers=VECTORS,
            fma=True,
            masked=True,
            flops_per_cycle={"float32": 2, "int32": 1},
            scopes={REGISTERS: Scope(REGISTERS, size=VECTORS * LANES * 4)},
        )

    def codegen(self, target: Target) -> WaveCodegen:
        return WaveCodegen()

    def device(self, target: Target) -> str:
        return "wave"

    def transfer(self, target: Target) -> Transfer:
        return Transfer(latency=5e-6, bandwidth=2e9) if target.options.prefer == "faster" else Transfer()

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        section, entries = b"", {}
        for name, code in kernels.items():
            entries[name] = len(section)
            section += code.object
        return NativeCode(section, entries, "wave", str(FORMAT))

    def fingerprint(self, target: Target) -> str:
        return f"wave format {FORMAT}"
