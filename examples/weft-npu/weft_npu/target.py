"""The target "npu": its options, and the machine as schedules see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from weft.errors import TargetError
from weft.machine import Machine, Scope, Transfer
from weft.rates import Rates
from weft.target import Target, TargetKind

if TYPE_CHECKING:
    from weft.codegen.base import Codegen, KernelCode
    from weft_runtime.executable import NativeCode


@dataclass(frozen=True)
class NpuOptions:
    """Memories on the chip in KiB; `double_buffer`: whether copies run beside computation; `clock`: MHz, by which its
    time is weighed against the host's: 0 means that whatever it takes and is worth the copies is computed on it.
    """

    activations: int = 256
    weights: int = 256
    accumulators: int = 128
    double_buffer: bool = True
    clock: int = 0


VECTORS = 32 << 10
"""Bytes of the vector unit's own memory."""


ASSUMED_MHZ = 1000
"""Of its clock where the option says nothing: rules compare their offers, in seconds, by it."""
LATENCY, BANDWIDTH = 2e-6, 16e9
"""Of copies between its DRAM and the host's memory: seconds, and bytes a second."""


class Npu(TargetKind):
    """The example accelerator."""

    name: ClassVar[str] = "npu"
    options: ClassVar[type] = NpuOptions

    def resolve(self, target: Target) -> Target:
        for name in ("activations", "weights", "accumulators"):
            size = getattr(target.options, name)
            if not 4 <= size <= 4096:
                raise TargetError(f"option '-{name}' is 4 to 4096 KiB, got {size}", where=str(target))
        if not 0 <= target.options.clock <= 100_000:
            raise TargetError(f"option '-clock' is 0 to 100000 MHz, got {target.options.clock}", where=str(target))
        return target

    def machine(self, target: Target) -> Machine:
        o = target.options
        sizes = {
            "npu.activations": o.activations << 10,
            "npu.weights": o.weights << 10,
            "npu.accumulators": o.accumulators << 10,
            "npu.vectors": VECTORS,
        }
        return Machine(
            "npu",
            vector_bits=16 * 32,
            vector_registers=8,
            fma=True,
            flops_per_cycle={"float32": 128},
            features=frozenset({"gemm8x8"} | ({"double_buffer"} if o.double_buffer else set())),
            scopes={name: Scope(name, size, 256, "all") for name, size in sizes.items()},
            rates=Rates(clock_hz=(o.clock or ASSUMED_MHZ) * 1e6),
            transfer=Transfer(LATENCY, BANDWIDTH),
        )

    def codegen(self, target: Target) -> Codegen:
        from weft_npu.codegen import NpuCodegen

        o = target.options
        return NpuCodegen((o.activations << 10, o.weights << 10, o.accumulators << 10, VECTORS), o.double_buffer)

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        from weft_npu.device import pack
        from weft_runtime.executable import NativeCode

        image, entries = pack({name: code.object for name, code in kernels.items()})
        return NativeCode(image, entries, "weft-npu", "1")

    def device(self, target: Target) -> str:
        return "npu"

    def fingerprint(self, target: Target) -> str:
        return f"npu/1/{target}"
