"""The target kind "opencl": which device, and the machine that it is to schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from weft.errors import TargetError
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.target import Target, TargetKind

if TYPE_CHECKING:
    from weft.codegen.base import Codegen, KernelCode
    from weft_c_family import Dialect
    from weft_opencl.devices import Found
    from weft_runtime.executable import NativeCode

DEVICE = "opencl"
"""The device of plans that run on whatever device comes first; "opencl:TITLE" is another one."""


@dataclass(frozen=True)
class OpenclOptions:
    """-device, -platform: a number, a name or a part of one, as `weft targets` and errors list them; by default the
    first GPU, else the first device.

    -winograd: auto computes 3×3 convolutions by Winograd's algorithm where that should be faster, which costs accuracy
    (docs/math.md); off never does.
    """

    device: str | None = None
    platform: str | None = None
    winograd: Literal["auto", "off"] = "auto"


class OpenclTarget(TargetKind):
    """A GPU, or any other device, by its OpenCL driver."""

    name: ClassVar[str] = "opencl"
    options: ClassVar[type] = OpenclOptions
    keywords: ClassVar[tuple[str, ...]] = ("gpu", "cl", "ocl", "pocl")

    def resolve(self, target: Target) -> Target:
        device = self._device(target)
        return replace(target, options=replace(target.options, device=device.name, platform=device.platform))

    def _device(self, target: Target) -> Found:
        from weft_opencl.devices import choose

        o: OpenclOptions = target.options
        return choose(o.device, o.platform, error=TargetError, where=str(target))

    def machine(self, target: Target) -> Machine:
        from weft_gpu.machines import grid_machine
        from weft_opencl.devices import OWN_MEMORY, SHARED_MEMORY, features, grid

        device = self._device(target).device
        limits = grid(device)
        cache = int(device.global_mem_cache_size) or 256 << 10
        return grid_machine(
            "opencl",
            cores=int(device.max_compute_units),
            shared=int(device.local_mem_size),
            threads=limits.threads,
            threads_per_axis=limits.threads_per_axis,
            groups_per_axis=limits.groups_per_axis,
            warp=limits.warp,
            registers=limits.registers,
            resident=limits.resident,
            caches=(16 << 10, cache, cache),
            cache_line=int(device.global_mem_cacheline_size) or 64,
            flops_per_cycle={
                "float32": 128
            },  # of two multiply-adds of 32 lanes: what a small unit has, and no driver tells
            features=features(device),
            transfer=SHARED_MEMORY if device.host_unified_memory else OWN_MEMORY,
        )

    def exceeds(self, program: Program, machine: Machine) -> str | None:
        from weft_gpu.limits import exceeds_grid

        return exceeds_grid(program, machine)

    def dialect(self, target: Target) -> Dialect:
        """OpenCL C as the device has it."""
        from weft_opencl.devices import features
        from weft_opencl.dialect import dialect

        has = features(self._device(target).device)
        return dialect("float64" in has, "float16" in has, "int64_atomics" in has)

    def codegen(self, target: Target) -> Codegen:
        from weft_opencl.codegen import OpenclCodegen

        return OpenclCodegen(
            self.dialect(target), int(self._device(target).device.max_parameter_size), self.machine(target)
        )

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        from weft_gpu.image import pack
        from weft_runtime.executable import NativeCode

        image, entries = pack({name: code.object for name, code in kernels.items()})
        return NativeCode(image, entries, "weft-opencl", "1")

    def device(self, target: Target) -> str:
        from weft_opencl.devices import found

        device = self._device(target)
        return DEVICE if device == found()[0] else f"{DEVICE}:{device.title}"

    def fingerprint(self, target: Target) -> str:
        from weft_c_family import VERSION

        device = self._device(target)
        return f"opencl/emitter{VERSION}/{device.title}/{device.version}"
