"""The target kind "cuda": options, the GPU that they mean, and the machine that schedules are chosen for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from weft.errors import ExecutionError, TargetError
from weft.target import Target, TargetKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.codegen.base import KernelCode
    from weft.loop.nodes import Program
    from weft.machine import Machine
    from weft_gpu.codegen import GpuCodegen
    from weft_runtime.executable import NativeCode

_ARCH = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)")


@dataclass(frozen=True)
class CudaOptions:
    """-arch: the GPU's compute capability, as sm_90 (or 9.0); by default that of the GPU that is here. sm_90a has the
    tensor cores' instructions of that very architecture; its code runs on no other.

    -device: which GPU runs it, the driver's number. -maxrregcount: registers of a thread at most. -lineinfo: profilers
    show lines of the kernels' texts.
    -tf32: products of float32 may round their factors, or cut them (sm_90a), to the 10 bits after the point that tensor
    cores take.
    -processors: multiprocessors that schedules count on; by default those of the GPU, if it is here, or else of a usual
    one of its architecture.
    -winograd: auto computes 3×3 convolutions by Winograd's algorithm where that should be faster, which costs accuracy
    (docs/math.md); off never does.
    """

    arch: str | None = None
    device: int = 0
    maxrregcount: int | None = None
    lineinfo: bool = False
    tf32: bool = False
    processors: int | None = None
    winograd: Literal["auto", "off"] = "auto"

    def __post_init__(self) -> None:
        if self.arch is not None:
            text = self.arch.replace(".", "") if re.fullmatch(r"\d{1,2}\.\d", self.arch) else self.arch
            found = _ARCH.fullmatch(text)
            if found is None:
                raise ValueError(f"'{self.arch}' is no architecture: it is written as sm_90")
            object.__setattr__(self, "arch", f"sm_{found[1]}{found[2]}")
        if not 0 <= self.device < 64:
            raise ValueError(f"-device={self.device} is no number of a GPU")
        if self.maxrregcount is not None and not 16 <= self.maxrregcount <= 255:
            raise ValueError(f"-maxrregcount={self.maxrregcount} is not between 16 and 255")
        if self.processors is not None and self.processors < 1:
            raise ValueError(f"-processors={self.processors} is no number of multiprocessors")


class CudaTarget(TargetKind):
    """NVIDIA's GPUs."""

    name: ClassVar[str] = "cuda"
    options: ClassVar[type] = CudaOptions
    keywords: ClassVar[tuple[str, ...]] = ("gpu", "nvidia", "nvptx", "ptx", "nvrtc")

    def resolve(self, target: Target) -> Target:
        """Writes the architecture and the number of multiprocessors out.

        Raises:
            TargetError: no architecture is named and no GPU is here, or NVRTC makes no code for the one that is named.
        """
        from weft_cuda.architectures import architecture, native
        from weft_cuda.nvrtc import supported, version

        o: CudaOptions = target.options
        known = supported()
        listed = "NVRTC makes code for " + ", ".join(f"sm_{a}" for a in known)
        arch, processors = o.arch, o.processors
        if arch is None or processors is None:
            here = _here(o.device)
            if arch is None and isinstance(here, str):
                raise TargetError(
                    "there is no GPU to compile for",
                    where=str(target),
                    why=here,
                    hint=f"name an architecture: cuda -arch=sm_90; {listed}",
                )
            if arch is None and not isinstance(here, str):
                arch = native(here[0])
            if processors is None and not isinstance(here, str) and number(arch or "") == here[0]:
                processors = here[1]
        assert arch is not None
        if number(arch) not in known:
            raise TargetError(
                f"'{arch}' is an architecture that NVRTC {version()} does not support", where=str(target), hint=listed
            )
        return replace(
            target, options=replace(o, arch=arch, processors=processors or architecture(number(arch)).processors)
        )

    def describe(self, target: Target) -> str:
        return f"cuda {target.options.arch}"

    def machine(self, target: Target) -> Machine:
        from weft_cuda.architectures import BARRIER, GROUP_RESERVED, LINK, WARP, architecture
        from weft_cuda.intrinsics import rates
        from weft_gpu.machines import grid_machine

        o: CudaOptions = self.resolve(target).options
        assert o.arch is not None and o.processors is not None
        a = architecture(number(o.arch))
        features = a.features | ({"arch-specific"} if o.arch[-1] == "a" else set()) | ({"tf32"} if o.tf32 else set())
        narrow = 2 * (a.tensor16 if "mma" in a.features else a.fp32)
        return grid_machine(
            "cuda",
            cores=o.processors,
            shared=a.group_shared - (BARRIER if "tma" in features else 0),
            core_shared=a.shared - (2 * GROUP_RESERVED if a.number >= 80 else 0),
            warp=WARP,
            resident=a.resident,
            caches=(a.shared, a.l2, a.l2),
            flops_per_cycle={
                "float32": 2 * a.fp32,
                "float64": 2 * a.fp64,
                "float16": narrow,
                "bfloat16": narrow,
                "int8": 2 * narrow,
                "uint8": 2 * narrow,
                **rates(narrow, features),
            },
            features=features,
            transfer=LINK,
        )

    def exceeds(self, program: Program, machine: Machine) -> str | None:
        from weft_gpu.limits import exceeds_grid

        return exceeds_grid(program, machine)

    def codegen(self, target: Target) -> GpuCodegen:
        from weft_cuda.dialect import CUDA
        from weft_cuda.nvrtc import build
        from weft_gpu.codegen import GpuCodegen

        o: CudaOptions = self.resolve(target).options
        arch, options = o.arch or "", _options(o)
        return GpuCodegen(CUDA, lambda text: build(text, arch, _title(text), options), self.machine(target))

    def device(self, target: Target) -> str:
        return f"cuda:{target.options.device}" if target.options.device else "cuda"

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        from importlib.metadata import version

        from weft_gpu.image import pack
        from weft_runtime.executable import NativeCode

        section, entries = pack({name: k.object for name, k in kernels.items()})
        return NativeCode(section, entries, "weft-cuda", version("weft-cuda"))

    def fingerprint(self, target: Target) -> str:
        from hashlib import sha256

        from weft_c_family import VERSION
        from weft_cuda.nvrtc import MEANING, header, version

        o: CudaOptions = self.resolve(target).options
        text = sha256(header().encode()).hexdigest()[:12]
        return "/".join(
            (
                "cuda",
                f"emitter{VERSION}",
                f"nvrtc{version()}",
                f"{o.arch}",
                f"{o.processors}",
                f"tf32={o.tf32}",
                text,
                *MEANING,
                *_options(o),
            )
        )


def number(arch: str) -> int:
    """Of "sm_90a": 90."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def _options(o: CudaOptions) -> tuple[str, ...]:
    registers = () if o.maxrregcount is None else (f"--maxrregcount={o.maxrregcount}",)
    return (*registers, *(("-lineinfo",) if o.lineinfo else ()))


def _title(text: str) -> str:
    """What a kernel's text calls itself in its first line."""
    return text.partition("\n")[0].removeprefix("// ")


def _here(ordinal: int) -> tuple[int, int] | str:
    """Compute capability and multiprocessors of a GPU, or why it is not here."""
    from weft_cuda.driver import driver, missing

    why = missing(ordinal)
    if why is not None:
        return why
    try:
        found = driver()
        device = found("cuDeviceGet", ordinal)
        return found.capability(device), found.attribute(device, "MULTIPROCESSOR_COUNT")
    except ExecutionError as error:
        return f"{error.what}: {error.why}"
