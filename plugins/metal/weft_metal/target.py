"""The target kind "metal": the family of GPUs that code is for, and the machine that it is to schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from weft.errors import TargetError
from weft.target import Target, TargetKind

if TYPE_CHECKING:
    from weft.codegen.base import KernelCode
    from weft.loop.nodes import Program
    from weft.machine import Machine
    from weft_metal.codegen import MetalCodegen
    from weft_runtime.executable import NativeCode

DEVICE = "metal"


@dataclass(frozen=True)
class MetalOptions:
    """-family: apple7 (M1), apple8 (M2), apple9 (M3, M4), or mac2, which any Mac's GPU is; by default that of the GPU
    that is here, or else apple7.

    -cores: cores that schedules count on; by default those of the family's common chip.
    -winograd: auto computes 3×3 convolutions by Winograd's algorithm where that should be faster, which costs accuracy
    (docs/math.md); off never does.
    """

    family: str | None = None
    cores: int | None = None
    winograd: Literal["auto", "off"] = "auto"


class MetalTarget(TargetKind):
    """Apple's GPUs."""

    name: ClassVar[str] = "metal"
    options: ClassVar[type] = MetalOptions
    keywords: ClassVar[tuple[str, ...]] = ("gpu", "apple", "mps")

    def resolve(self, target: Target) -> Target:
        """Writes the family and the number of cores out.

        Raises:
            TargetError: there is no such family, or not as many cores.
        """
        from weft_metal.driver import family_here
        from weft_metal.families import DEFAULT, family

        o: MetalOptions = target.options
        found = family(o.family or family_here() or DEFAULT, str(target))
        cores = found.cores if o.cores is None else o.cores
        if not 1 <= cores <= 256:
            raise TargetError(f"option '-cores' is 1 to 256, got {cores}", where=str(target))
        return replace(target, options=replace(o, family=found.name, cores=cores))

    def describe(self, target: Target) -> str:
        return f"metal {target.options.family}"

    def machine(self, target: Target) -> Machine:
        from weft_gpu.machines import grid_machine
        from weft_metal.families import family
        from weft_metal.intrinsics import WORDS

        o: MetalOptions = self.resolve(target).options
        assert o.family is not None and o.cores is not None
        f = family(o.family)
        return grid_machine(
            "metal",
            cores=o.cores,
            shared=f.shared,
            threads=f.grid.threads,
            threads_per_axis=f.grid.threads_per_axis,
            groups_per_axis=f.grid.groups_per_axis,
            warp=f.grid.warp,
            registers=f.registers,
            resident=f.resident,
            caches=(f.l1, f.l2, f.l2),
            # Matrices of SIMD groups are multiplied by the units that multiply numbers.
            flops_per_cycle=dict.fromkeys(
                ("float32", "float16", "bfloat16", *(f"simdgroup_{w}" for w in WORDS.values())), 2 * f.fp32
            ),
            features=f.features,
            clock_hz=f.megahertz * 1e6,
            transfer=f.transfer,
        )

    def exceeds(self, program: Program, machine: Machine) -> str | None:
        from weft_gpu.limits import exceeds_grid

        return exceeds_grid(program, machine)

    def codegen(self, target: Target) -> MetalCodegen:
        from weft_metal.codegen import MetalCodegen
        from weft_metal.dialect import dialect

        machine = self.machine(target)
        return MetalCodegen(
            dialect("bfloat" in machine.features, "simdgroup_matrix" in machine.features), machine=machine
        )

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        from importlib.metadata import version

        from weft_gpu.image import pack
        from weft_runtime.executable import NativeCode

        section, entries = pack({name: code.object for name, code in kernels.items()})
        return NativeCode(section, entries, "weft-metal", version("weft-metal"))

    def device(self, target: Target) -> str:
        return DEVICE

    def fingerprint(self, target: Target) -> str:
        from weft_c_family import VERSION

        return f"emitter{VERSION}/{self.resolve(target)}"
