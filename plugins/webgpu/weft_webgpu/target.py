"""The target kind "webgpu": the limits that code keeps to, and the machine that it is to schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from weft import dtypes as dt
from weft.errors import TargetError
from weft.loop.nodes import Allocate, Program, transform_stmts
from weft.target import Target, TargetKind

if TYPE_CHECKING:
    from weft.codegen.base import KernelCode
    from weft.machine import Machine
    from weft_c_family import Dialect
    from weft_runtime.executable import NativeCode
    from weft_webgpu.codegen import WebgpuCodegen

DEVICE = "webgpu"
_CACHES = (32 << 10, 2 << 20, 2 << 20)


@dataclass(frozen=True)
class WebgpuOptions:
    """-buffers, -threads, -shared: what a launch may have of bindings, threads of a group and bytes of their memory; by
    default what every device gives (W3C, "WebGPU", section "Limits"): 8, 256 and 16,384.

    -cores: units that run groups, which schedules count on.
    -winograd: auto computes 3×3 convolutions by Winograd's algorithm where that should be faster, which costs accuracy
    (docs/math.md); off never does.
    """

    buffers: int = 8
    threads: int = 256
    shared: int = 16384
    cores: int = 16
    winograd: Literal["auto", "off"] = "auto"


_LIMITS = {"buffers": (2, 64), "threads": (32, 1024), "shared": (1024, 1 << 16), "cores": (1, 256)}


class WebgpuTarget(TargetKind):
    """GPUs through WebGPU."""

    name: ClassVar[str] = "webgpu"
    options: ClassVar[type] = WebgpuOptions
    keywords: ClassVar[tuple[str, ...]] = ("gpu", "wgpu", "wgsl", "browser")

    def resolve(self, target: Target) -> Target:
        """Checks the options.

        Raises:
            TargetError: one of them is out of range.
        """
        for name, (least, most) in _LIMITS.items():
            value = getattr(target.options, name)
            if not least <= value <= most:
                raise TargetError(f"option '-{name}' is {least} to {most}, got {value}", where=str(target))
        return target

    def describe(self, target: Target) -> str:
        return "webgpu"

    def machine(self, target: Target) -> Machine:
        from weft.machine import Scope, Transfer
        from weft_gpu.machines import grid_machine
        from weft_webgpu.limits import ALIGN, MOST_GROUPS

        o: WebgpuOptions = self.resolve(target).options
        machine = grid_machine(
            "webgpu",
            cores=o.cores,
            shared=o.shared,
            threads=o.threads,
            threads_per_axis=(o.threads, o.threads, min(64, o.threads)),
            groups_per_axis=(2**31 - 1, MOST_GROUPS, MOST_GROUPS),
            warp=32,  # what threads share a multiplexed unit on most GPUs: a cost, nothing that code relies on
            vector_bits=32,  # a binding is an array of words
            caches=_CACHES,
            flops_per_cycle={"float32": 128},  # of two multiply-adds of 32 lanes, what a small unit has
            transfer=Transfer(latency=200e-6, bandwidth=5e9),
        )
        return replace(machine, scopes={**machine.scopes, "global": Scope("global", None, ALIGN)})

    def exceeds(self, program: Program, machine: Machine) -> str | None:
        from weft_gpu.limits import exceeds_grid

        return exceeds_grid(replace(program, body=transform_stmts(program.body, _in_words)), machine)

    def dialect(self, target: Target) -> Dialect:
        """WGSL as the target has it."""
        from weft_webgpu.dialect import dialect

        return dialect(self.resolve(target).options.buffers)

    def codegen(self, target: Target) -> WebgpuCodegen:
        from weft_webgpu.codegen import WebgpuCodegen

        return WebgpuCodegen(self.dialect(target), machine=self.machine(target))

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        from importlib.metadata import version

        from weft_gpu.image import pack
        from weft_runtime.executable import NativeCode

        section, entries = pack({name: code.object for name, code in kernels.items()})
        return NativeCode(section, entries, "weft-webgpu", version("weft-webgpu"))

    def device(self, target: Target) -> str:
        return DEVICE

    def fingerprint(self, target: Target) -> str:
        from weft_c_family import VERSION
        from weft_webgpu.definitions import fingerprint
        from weft_webgpu.writer import VERSION as WRITER

        return f"wgsl{WRITER}/{fingerprint()}/emitter{VERSION}/{self.resolve(target)}"


def _in_words(s: object) -> Allocate | None:
    """Memory of a group as a text declares it: elements of fewer than four bytes take a word."""
    if isinstance(s, Allocate) and s.buffer.scope == "shared" and s.buffer.dtype.scalar.bytes < 4:
        return replace(s, buffer=replace(s.buffer, dtype=dt.uint32), body=s.body)
    return None
