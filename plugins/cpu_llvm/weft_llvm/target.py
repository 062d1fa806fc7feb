"""The target kind "llvm": options, and what an instruction set can do.

What a CPU has is asked of LLVM itself: a few one-instruction functions are compiled and the assembly is read. So a
cross target knows exactly what its triple, -mcpu and -mattr say, without a table of processors here and without
anything of the host.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from weft.errors import TargetError, nearest
from weft.target import Target, TargetKind
from weft_runtime.cpu_features import WINDOWS, byte_order, host_features, known_features, machine_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.codegen.base import Codegen, KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft.machine import Machine
    from weft_runtime.abi import ByteOrder
    from weft_runtime.executable import NativeCode

MOST_THREADS = 4096  # what an archive may ask for

Precision = Literal["fp32", "fp16", "bf16"]
# What a processor needs for a precision: of Isa.has, and what its makers call it.
CONVERSIONS: dict[str, tuple[str, dict[str, str]]] = {
    "fp16": ("f16c", {"x86_64": "F16C", "aarch64": "NEON", "arm": "NEON with half precision", "riscv64": "Zvfhmin"}),
    "bf16": (
        "bf16",
        {"x86_64": "AVX512_BF16 or AVX-NE-CONVERT", "aarch64": "BF16", "arm": "BF16", "riscv64": "Zvfbfmin"},
    ),
}

DOT_PRODUCTS = frozenset({"avx512bw", "avx512vnni", "avxvnni", "avx512bf16", "dotprod", "i8mm", "simd128"})

MACHINES = ("aarch64", "arm", "i386", "riscv32", "riscv64", "s390x", "wasm32", "x86_64")
"""Architectures that images are linked for."""
RESERVED = {"aarch64": "+reserve-x18"}
"""By architecture, a register that some systems keep for themselves (macOS, Windows, Android): code runs on every one
that has the architecture."""
DEFAULTS: dict[str, tuple[str, ...]] = {
    "wasm32": ("+simd128",),  # every browser, node and wasmtime has it
    "i386": ("+sse2",),
    "riscv32": ("+m", "+a", "+f", "+d", "+c"),
    "riscv64": ("+m", "+a", "+f", "+d", "+c"),
}
"""By architecture, extensions that code may use unless the target string says otherwise: LLVM's generic processor lacks
what those of the systems that Weft is for have."""
_SYSTEMS = (
    "android", "androideabi", "darwin", "dragonfly", "elf", "emscripten", "freebsd", "fuchsia", "haiku", "hurd", "ios",
    "linux", "macos", "macosx", "netbsd", "none", "openbsd", "solaris", "tvos", "unknown", "visionos", "wasi",
    "wasip1", "wasip2", "watchos", "win32", "windows", "cuda", "amdhsa", "nvcl", "mesa3d", "aix", "zos", "uefi",
    "eabi", "eabihf", "gnueabihf", "gnueabi", "gnu", "musl",
)  # fmt: skip

EMITTER_VERSION = 2
"""Goes into cache keys: raise it when `weft_llvm.emitter` gives other text for the same Program. It stands here so that
a cached model is found without it."""


@dataclass(frozen=True)
class LlvmOptions:
    """-mcpu, -mattr, -mtriple as LLVM spells them; what is absent means this machine. -threads: size of the pool. -opt:
    0 … 3.

    -precision: fp16 and bf16 round the weights of contractions to it, see weft_ops.passes.reduce_precision; bf16 their
    activations, too, where the processor has dot products of it, see weft_ops.passes.narrow_products.
    -winograd: auto computes 3×3 convolutions by Winograd's algorithm where that is faster, which costs accuracy
    (docs/math.md); off never does.
    -machine: how fast the machine is (weft.rates): a JSON file of rates, "table" for what Weft assumes, or "measured"
    for what `weft probe` found here. By default it is measured for this machine, if a probe was run, else the table.
    """

    mcpu: str | None = None
    mattr: tuple[str, ...] = ()
    mtriple: str | None = None
    threads: int | None = None
    opt: int = 3
    precision: Precision = "fp32"
    winograd: Literal["auto", "off"] = "auto"
    machine: str | None = None


@dataclass(frozen=True)
class Isa:
    """An instruction set as the emitter needs it."""

    triple: str
    cpu: str
    features: str
    data_layout: str
    has: frozenset[str]
    """Among fma, f16c (fp16 ⇄ fp32 conversion), bf16 (fp32 → bf16 conversion), half (fp16 arithmetic), rounding (floor
    … in one instruction), avx, avx2, avx512, neon, sve; and for dot products avx512bw, avx512vnni, avxvnni, avx512bf16,
    dotprod, i8mm, simd128."""
    needs: frozenset[str] = frozenset()
    """Extensions that its code may contain, by LLVM's names."""
    objects: str = "elf"
    """How its objects are written, as `weft_llvm.features.Description` says."""
    floats: bool = True
    """Whether it computes with numbers of 64 bits in floating point as IEEE 754 says, by instructions."""
    opt: int = 3

    @property
    def arch(self) -> str:
        return architecture(self.triple)

    @property
    def machine(self) -> str:
        """What manifests call the machine."""
        return _machine(self.triple)

    @property
    def byte_order(self) -> ByteOrder:
        """Of a number in memory."""
        return byte_order(self.arch)

    @property
    def pointer(self) -> int:
        """Bytes of a pointer."""
        return 4 if re.search(r"(^|-)p:32:", self.data_layout) else 8


@cache
def isa(triple: str, cpu: str, features: str, opt: int = 3) -> Isa:
    """Asks LLVM what it would emit. Extensions that no machine can be asked for are turned off.

    Raises:
        TargetError: LLVM does not know the triple, the CPU or a feature, cannot compile for them, or an extension is
            named that no machine can be asked for.
    """
    from weft_llvm import toolchain
    from weft_llvm.features import describe

    key = toolchain.Cpu(triple, cpu, features, opt)
    found = describe(key)
    if found.objects in ("MachO", "COFF") and architecture(triple) in MACHINES:
        # An image is neither Windows' nor Apple's: objects of either are written as ELF.
        return isa(elf_triple(triple), cpu, features, opt)
    unknown = sorted(found.needs - known_features(architecture(triple)))
    for name in unknown:
        if "+" + name in {*features.split(",")}.difference(toolchain.host_features().split(",")):
            raise TargetError(
                f"no machine can be asked whether it has '{name}'",
                where=f"-mattr=+{name}",
                why="code that needs it would end a process on a machine that lacks it",
                hint="leave it out",
            )
    if unknown:  # LLVM takes them for granted with this processor
        return isa(triple, cpu, ",".join(filter(None, [features, *("-" + name for name in unknown)])), opt)
    return Isa(
        triple,
        found.name,
        found.features,
        found.layout,
        found.has | (found.needs & (DOT_PRODUCTS | {"neon"})),
        found.needs,
        found.objects,
        found.floats,
        opt,
    )


class LlvmTarget(TargetKind):
    """CPUs, through LLVM: aarch64, arm, i386, riscv32, riscv64, s390x, x86_64, and wasm32."""

    name: ClassVar[str] = "llvm"
    options: ClassVar[type] = LlvmOptions
    keywords: ClassVar[tuple[str, ...]] = (
        "cpu", "cpus", "host", "native", "local", "x86", "x86_64", "x86-64", "x64", "amd64", "arm", "arm64", "aarch64",
        "intel", "amd", "armv7", "riscv", "riscv32", "riscv64", "s390x", "i386", "i686", "android",
        "avx", "avx2", "avx512", "neon",
    )  # fmt: skip

    def resolve(self, target: Target) -> Target:
        """Everything written out. Naming a CPU or a triple takes nothing from the host but the number of threads of a
        host build."""
        from weft_llvm import measured, toolchain

        o: LlvmOptions = target.options
        if not 0 <= o.opt <= 3:
            raise TargetError(f"option '-opt' is 0, 1, 2 or 3, got {o.opt}", where=str(target))
        if o.threads is not None and o.threads < 1:
            raise TargetError(f"option '-threads' is at least 1, got {o.threads}", where=str(target))
        if o.threads is not None and o.threads > MOST_THREADS:
            raise TargetError(f"option '-threads' is at most {MOST_THREADS}, got {o.threads}", where=str(target))
        host = toolchain.host_triple()
        triple = o.mtriple or host
        check_triple(triple)
        cross = _machine(triple) != _machine(host)
        cpu = o.mcpu or ("generic" if cross or (o.mtriple is not None and o.mtriple != host) else toolchain.host_cpu())
        mattr = tuple(a if a[:1] in "+-" else "+" + a for a in o.mattr)
        if o.mcpu is None and cpu != "generic":
            # The name alone would promise what a hypervisor may have masked out, so absent features are said, too.
            mattr = (*toolchain.host_features().split(","), *unseen_features(toolchain.host_features()), *mattr)
        named = o.mcpu is not None and architecture(triple) != "wasm32"  # a processor has what it has
        more = (*filter(None, [RESERVED.get(architecture(triple))]), *(() if named else _defaults(triple)))
        mattr = (*(a for a in more if not any(b[1:] == a[1:] for b in mattr)), *mattr)
        if o.mcpu == "native":
            return self.resolve(replace(target, options=replace(o, mcpu=None)))
        threads = o.threads or (1 if cross else available_threads())
        if o.machine is None and o.mcpu is None and triple == host and measured.stored() is not None:
            o = replace(o, machine=measured.MEASURED)
        measured.check(o.machine, str(target))
        if o.precision in CONVERSIONS:
            refuse_precision(o.precision, isa(triple, cpu, ",".join(mattr), o.opt), str(target))
        return replace(target, options=replace(o, mcpu=cpu, mattr=mattr, mtriple=triple, threads=threads))

    def describe(self, target: Target) -> str:
        """Without the host's list of features, which the manifest has by itself."""
        return str(replace(target, options=replace(target.options, mattr=())))

    def isa(self, target: Target) -> Isa:
        o: LlvmOptions = self.resolve(target).options
        assert o.mtriple is not None and o.mcpu is not None
        return isa(o.mtriple, o.mcpu, ",".join(o.mattr), o.opt)

    def machine(self, target: Target) -> Machine:
        from weft_llvm.machine import describe

        return describe(self.resolve(target), self.isa(target))

    def codegen(self, target: Target) -> Codegen:
        from weft_llvm.codegen import LlvmCodegen
        from weft_llvm.intrinsics import emitters

        isa = self.isa(target)
        why, hint = None, "give a triple such as x86_64-linux-gnu or aarch64-linux-gnu"
        if isa.arch not in MACHINES:
            why = f"what is linked is code for {', '.join(MACHINES)}"
        elif isa.objects != ("wasm" if isa.arch == "wasm32" else "elf"):
            why = f"its objects are {isa.objects}, and ELF is what is linked"
        elif not isa.floats:
            why = f"'{isa.cpu}' has no instructions for numbers of 64 bits in floating point"
            hint = "name a processor that has them with -mcpu, or the extension with -mattr"
        if why is not None:
            raise TargetError(f"no code is made for '{isa.triple}'", where=str(target), why=why, hint=hint)
        return LlvmCodegen(isa, intrinsics=emitters(isa.has | {isa.arch}))

    def link(self, target: Target, segment: SegmentSpec, kernels: Mapping[str, KernelCode]) -> Mapping[str, NativeCode]:
        from weft_llvm.native import link_segment

        return link_segment(segment, kernels, self.isa(target))

    def loops(self, target: Target) -> NativeCode | None:
        from weft_llvm.native import loops_code

        return loops_code(self.isa(target))

    def device(self, target: Target) -> str:
        return "cpu"

    def fingerprint(self, target: Target) -> str:
        import llvmlite
        import llvmlite.binding as llvm

        from weft_llvm import measured

        o = self.resolve(target).options
        # Threads are cores to the schedules, which cut work for so many.
        versions = (".".join(map(str, llvm.llvm_version_info)), llvmlite.__version__, f"emitter{EMITTER_VERSION}")
        parts = (*versions, o.mtriple, o.mcpu, ",".join(o.mattr), o.opt, o.threads, *measured.fingerprint(o.machine))
        return "llvm" + "/".join(map(str, parts))


def refuse_precision(precision: Precision, isa: Isa, where: str) -> None:
    """Raises TargetError if code for `isa` has no instructions for `precision`."""
    needed, names = CONVERSIONS[precision]
    if needed in isa.has:
        return
    others = [p for p, (feature, _) in CONVERSIONS.items() if feature in isa.has]
    raise TargetError(
        f"option '-precision={precision}' needs {names.get(isa.arch, 'conversion instructions')}, which '{isa.cpu}' on"
        f" {isa.arch} lacks",
        where=where,
        why=f"LLVM compiles a conversion between {precision} and fp32 for it to no instruction",
        hint=", or ".join(
            [*(f"take -precision={p}" for p in others), "leave the option out", "name another processor with -mcpu"]
        ),
    )


def architecture(triple: str) -> str:
    """LLVM's name of a triple's architecture: aarch64 for arm64, arm for armv7."""
    name = triple.split("-")[0]
    return {"amd64": "x86_64"}.get(name, machine_name(name))


def _machine(triple: str) -> str:
    name = architecture(triple)
    return name + WINDOWS if "windows" in triple and name in ("x86_64", "i386") else name


def elf_triple(triple: str) -> str:
    """The triple with objects written as ELF."""
    parts = triple.split("-")
    if parts[-1] == "elf":
        return triple
    return "-".join([parts[0], *(["unknown"] if len(parts) == 2 else []), *parts[1:], "elf"])


def check_triple(triple: str) -> None:
    """
    Raises:
        TargetError: the triple is of an architecture of `MACHINES` and names no system. LLVM takes a system that it
            does not know for none.
    """
    _, *rest = triple.split("-")
    if (
        architecture(triple) in MACHINES
        and rest
        and not any(re.fullmatch(rf"({'|'.join(_SYSTEMS)})[\d.]*", part) for part in rest)
    ):
        close = next(filter(None, (nearest(part, _SYSTEMS) for part in rest)), None)
        raise TargetError(
            f"'{triple}' names no system",
            where=f"-mtriple={triple}",
            why=f"none of {', '.join(repr(p) for p in rest)} is one",
            hint=f"did you mean '{close}'?" if close else "x86_64-linux-gnu names Linux; 'none' is no system",
        )


def _defaults(triple: str) -> tuple[str, ...]:
    return DEFAULTS.get(architecture(triple), ())


def unseen_features(said: str) -> list[str]:
    """Extensions to turn off in code for this machine: those that the runtime does not find on it, so that it runs what
    is compiled for it.

    Args:
        said: this machine's features as LLVM writes them.
    """
    found, off = host_features(), set(said.split(","))
    return [] if not found else [f for f in ("-" + name for name in sorted(known_features() - found)) if f not in off]


def available_threads() -> int:
    """Processors that this process may use: its affinity, cut to the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, quota) if quota else count)


def _cgroup_quota() -> int | None:
    def read(path: str) -> str | None:
        try:
            with open(path, encoding="ascii") as f:
                return f.read().strip()
        except (OSError, ValueError):
            return None

    quotas = []
    group = ""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            group = line[3:].strip("/")
    # Every ancestor's limit holds; inside a container the own group often appears as the root.
    while True:
        text = read(os.path.join("/sys/fs/cgroup", group, "cpu.max"))
        if text and not text.startswith("max"):
            limit, period = text.split()
            quotas.append(-(-int(limit) // int(period)))
        if not group:
            break
        group = os.path.dirname(group)
    quota, span = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and span and int(quota) > 0:
        quotas.append(-(-int(quota) // int(span)))
    return max(1, min(quotas)) if quotas else None
