"""Targets whose kernels are another target's, as text, and run by a shim: everything but the compiler and the device of
"cuda" or "metal".

    with shimmed("cuda -arch=sm_90", "cuda", GpuCodegen(CUDA, machine=machine)) as target: …

Its device has memory of its own, full of NaN and guarded; what its kernels may not do is an error of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tests.gpu.shim.shims import Library, ShimError, guarded, library, tensors

from weft.codegen.base import Codegen, KernelCode
from weft.errors import ExecutionError
from weft.hooks import hookimpl
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling.rule import Rule
from weft.target import Target, TargetKind
from weft_gpu.image import Kernel, pack, unpack
from weft_gpu.launch import grid_of
from weft_runtime.device import DeviceKind, HostDevice, Memory, Slice
from weft_runtime.executable import NativeCode
from weft_testing.plugin import registered, resolve_target


class ShimDevice(HostDevice):
    """Runs texts of a language, on memory of its own. `built`: launches that are in a library already, by symbol and
    code."""

    shares_memory = False
    simulated = True

    def __init__(self, name: str, language: str, machine: Machine) -> None:
        super().__init__(name)
        assert machine.grid is not None
        self.language, self.limits = language, machine.grid
        self.built: dict[tuple[str, bytes], tuple[Library, int]] = {}
        self.seed = 0

    def allocate(self, size: int) -> Memory:
        memory = super().allocate(size)
        memory.handle = guarded(np.full(size, 0xFF, np.uint8))
        return memory

    def build(self, kernels: Iterable[Kernel]) -> None:
        """All launches that are not built yet, in one library: many are built at once far sooner than one by one."""
        new = [k for k in kernels if any((x.symbol, x.code) not in self.built for x in k.launches)]
        if new:
            self.built |= library(self.language, new)

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Kernel]:
        kernels = unpack(image, entries, tensors=True)
        self.build(kernels.values())
        return kernels

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        for launch in module[kernel].launches:
            grid = grid_of(launch, dims, self.limits, kernel)
            if grid is None:
                continue
            made, number = self.built[launch.symbol, launch.code]
            places = [buffers[b].memory.handle.ctypes.data + buffers[b].offset for b in launch.buffers]
            played = tensors(launch, places)
            try:
                made.launch(
                    number,
                    [*places, *map(ctypes.addressof, played)],
                    [dims[d] for d in launch.dims],
                    grid,
                    launch.group,
                    self.seed,
                )
            except ShimError as error:
                raise ExecutionError(f"kernel '{kernel}' does what it may not do", why=str(error)) from error


@dataclass(frozen=True)
class NoOptions:
    pass


@contextmanager
def shimmed(text: str, language: str, codegen: Codegen | None = None, rules: Sequence[Rule] = ()) -> Iterator[str]:
    """A target like that of `text`, whose kernels are texts of `language` and run by its shim; its name.

    Args:
        codegen: makes the texts; by default the target's own.
        rules: beside the target's own.
    """
    inner = resolve_target(text)
    made = codegen if codegen is not None else inner.kind.codegen(inner.target)
    called = f"shim_{inner.target.kind}"
    offered = inner.plugins.items("schedules", required=inner.owner, target=inner.target)
    own = [rule.value for rule in offered if rule.plugin.name == inner.owner]

    class Shimmed(TargetKind):
        name: ClassVar[str] = called
        options: ClassVar[type] = NoOptions

        def machine(self, target: Target) -> Machine:
            return inner.machine  # type: ignore[no-any-return]

        def exceeds(self, program: Program, machine: Machine) -> str | None:
            return inner.kind.exceeds(program, machine)

        def codegen(self, target: Target) -> Codegen:
            return made

        def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
            image, entries = pack({name: code.object for name, code in kernels.items()})
            return NativeCode(image, entries, called, "1")

        def device(self, target: Target) -> str:
            return called

        def fingerprint(self, target: Target) -> str:
            return called

    class Plugin:
        @staticmethod
        @hookimpl
        def targets() -> Sequence[TargetKind]:
            return [Shimmed()]

        @staticmethod
        @hookimpl
        def schedules(target: Target) -> Sequence[Any]:
            return [*rules, *own] if target.kind == called else []

        @staticmethod
        @hookimpl
        def intrinsics(target: Target) -> Sequence[Any]:
            return list(inner.intrinsics.values()) if target.kind == called else []

        @staticmethod
        @hookimpl
        def loop_passes(target: Target) -> Sequence[Any]:
            return inner.loop_passes() if target.kind == called else []

        @staticmethod
        @hookimpl
        def devices() -> Sequence[DeviceKind]:
            return [DeviceKind(called, lambda: None, lambda: ShimDevice(called, language, inner.machine))]

    with registered(Plugin(), called):
        yield called
