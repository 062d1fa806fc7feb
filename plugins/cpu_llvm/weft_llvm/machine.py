"""The Machine of an llvm target: vectors from the instruction set, caches and cores from the host or from defaults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.machine import Machine, Scope
from weft.rates import CPU_HZ, Rates, with_numbers
from weft_llvm.measured import given_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.target import Target
    from weft_llvm.target import Isa

_CACHES = {
    # L1 data and L2 per core, L3 as one core sees it. Only for cross targets; the host is asked.
    "znver1": (32, 512, 8192), "znver2": (32, 512, 16384), "znver3": (32, 512, 32768), "znver4": (32, 1024, 32768),
    "znver5": (48, 1024, 32768),
    "haswell": (32, 256, 8192), "broadwell": (32, 256, 8192), "skylake": (32, 256, 8192), "skylake-avx512": (32, 1024,
        16384),
    "cascadelake": (32, 1024, 16384), "icelake-server": (48, 1280, 24576), "sapphirerapids": (48, 2048, 32768),
    "emeraldrapids": (48, 2048, 65536),
    "graniterapids": (48, 2048, 65536), "cortex-a53": (32, 512, 512), "cortex-a72": (32, 1024, 1024), "cortex-a76": (64,
        512, 4096),
    "neoverse-n1": (64, 1024, 32768), "neoverse-v1": (64, 1024, 32768), "neoverse-n2": (64, 1024, 32768),
    "neoverse-v2": (64, 2048, 32768),
    "apple-m1": (128, 12288, 8192), "apple-m2": (128, 16384, 8192),
    "cortex-a7": (32, 512, 512), "cortex-a8": (32, 512, 512), "cortex-a9": (32, 1024, 1024),
    "cortex-a15": (32, 1024, 1024), "cortex-a17": (32, 1024, 1024),
    "sifive-u74": (32, 2048, 2048), "spacemit-x60": (32, 512, 512),
    "z13": (128, 2048, 65536), "z14": (128, 4096, 131072), "z15": (128, 4096, 262144), "z16": (128, 32768, 32768),
}  # fmt: skip
_DEFAULT_CACHES = (32, 512, 4096)

# Vector FMA instructions that one core starts per cycle, where it is not two.
_FMA_PIPES: dict[str, float] = {
    "cortex-a7": 0.5,  # 64 bits at a time
    "cortex-a8": 0.5,
    "cortex-a9": 0.5,
    "cortex-a15": 1,
    "cortex-a17": 1,
    "sifive-u74": 1,
    "spacemit-x60": 1,
    "cortex-a53": 1,
    "cortex-a72": 1,
    "generic": 1,
    "apple-m1": 4,
    "apple-m2": 4,
    "neoverse-v1": 4,
    "neoverse-v2": 4,
}
# Zen 4 splits a 512-bit FMA over two cycles of a pipe; it is as fast as two of 256 bits.
_HALF_RATE_512 = {"znver4"}
# Cores of Intel that have AMX start one vdpbf16ps of 512 bits in two cycles, and two fused multiply-adds in each: in
# float32 the same product takes half the time (uops.info, Golden Cove). Processors of which LLVM knows more than they
# say of themselves are told by name.
_AMX = {"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"}


WASM_REGISTERS = 12
"""Vectors that WebAssembly engines keep in registers on x86-64 in a loop: of its 16, V8 and Cranelift keep one or two
for themselves, one holds a product before it is added, and one more is taken by what they move. Engines on AArch64 have
twice as many, on which code for all of them cannot count."""
RELAYOUT_BYTES_PER_FLOP = 1 / 8
"""Bytes that a conversion between layouts moves in the time of one FLOP of float32: both work on vectors."""


def describe(target: Target, isa: Isa) -> Machine:
    """The Machine of a resolved target."""
    options = target.options
    if "avx512" in isa.has:
        bits, registers = 512, 32
    elif "avx" in isa.has:
        bits, registers = 256, 16
    else:
        bits, registers = 128, _registers(isa)
    fma = "fma" in isa.has or "relaxed-simd" in isa.needs
    given = given_rates(options.machine)
    pipes: float = _FMA_PIPES.get(isa.cpu, 2)
    if bits == 512 and isa.cpu in _HALF_RATE_512:
        pipes = 1
    pipes = given.get("multiply_adds_per_cycle", pipes)
    # A multiplication and an addition each, fused or in two pipes.
    starts = {name: round(_lanes(isa, bits, size) * pipes * 2) for name, size in (("float32", 32), ("float64", 64))}
    if "half" in isa.has:
        starts["float16"] = round(bits // 16 * pipes * 2)
    if isa.arch != "wasm32" and "avx" not in isa.has and not fma:
        starts = {name: n // 2 for name, n in starts.items()}
    flops = {name: max(1, n) for name, n in starts.items()}
    return Machine(
        kind="cpu",
        vector_bits=bits,
        vector_registers=registers,
        fma=fma,
        # AVX2 has masked moves of 32- and 64-bit elements only, and its masked stores are slow on several CPUs.
        masked="avx512" in isa.has or "sve" in isa.has,
        caches=_caches(isa),
        ways=_ways(isa),
        cores=options.threads or 1,
        flops_per_cycle=flops,
        features=(isa.has | {isa.arch}) - _slow_dots(isa),
        scopes={
            "global": Scope("global", shared_by="all"),
            "local": Scope("local"),
            "register": Scope("register", registers * bits // 8, bits // 8),
        },
        rates=_rates(given, flops["float32"]),
    )


def _lanes(isa: Isa, bits: int, size: int) -> int:
    """Floats of `size` bits that one instruction computes with."""
    scalar = {
        "arm": "neon" not in isa.has or size == 64,
        "riscv32": "v" not in isa.needs,
        "riscv64": "v" not in isa.needs,
        "s390x": ("vector" if size == 64 else "vector-enhancements-1") not in isa.needs,
    }
    return 1 if scalar.get(isa.arch, False) else bits // size


def _registers(isa: Isa) -> int:
    """Registers of 128 bits; without vectors, those of floats, of which four hold as many numbers."""
    match isa.arch:
        case "aarch64":
            return 32
        case "wasm32":
            return WASM_REGISTERS
        case "riscv32" | "riscv64":
            return 32 if "v" in isa.needs else 32 // 4
        case "s390x":
            return 32 if "vector-enhancements-1" in isa.needs else 16 // 4  # before, vectors are of doubles alone
        case "i386":
            return 8
        case "arm":
            return 16 if "neon" in isa.has else 32 // 4 if "d32" in isa.needs else 16 // 4
    return 16


def _rates(given: Mapping[str, float], flops: int) -> Rates:
    """The table's rates with those that are given, by name; `flops` of float32 start in a cycle."""
    relayout = flops * given.get("clock_hz", CPU_HZ) * RELAYOUT_BYTES_PER_FLOP
    return with_numbers(Rates(), {"relayout_bytes_per_second": relayout, **given})


def _slow_dots(isa: Isa) -> frozenset[str]:
    """Features whose dot products are slower than multiply-adds of float32."""
    said = isa.features.split(",")
    amx = "+amx-tile" in said or (isa.cpu in _AMX and "-amx-tile" not in said)
    return frozenset({"avx512bf16"}) if amx else frozenset()


def _caches(isa: Isa) -> tuple[int, int, int]:
    if _is_host(isa):
        found = host_caches()
        if found is not None:
            return found
    l1, l2, l3 = _CACHES.get(isa.cpu, _DEFAULT_CACHES)
    return l1 << 10, l2 << 10, l3 << 10


def _ways(isa: Isa) -> int:
    if _is_host(isa):
        found = host_ways()
        if found is not None:
            return found
    l1 = _CACHES.get(isa.cpu, _DEFAULT_CACHES)[0]
    # x86 finds a line of the first cache by address bits within a page of 4 KiB.
    return l1 // 4 if isa.arch in ("i386", "x86_64") else 8 if isa.cpu.startswith("apple") else 4


def _is_host(isa: Isa) -> bool:
    from weft_llvm import toolchain

    return isa.cpu == toolchain.host_cpu() and isa.triple == toolchain.host_triple()


_SYSFS = "/sys/devices/system/cpu/cpu0/cache"


def host_caches(root: str = _SYSFS) -> tuple[int, int, int] | None:
    """Bytes of the data caches of level 1, 2, 3 as the kernel tells them; None if it does not. A level that is absent
    is as large as the one before."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    texts = {level: text for level, text in _host_fields(root, "size").items() if text.rstrip("KMG").isdigit()}
    sizes = {level: int(text.rstrip("KMG")) * units.get(text[-1:], 1) for level, text in texts.items()}
    if not sizes.get(1):
        return None
    l1 = sizes[1]
    l2 = sizes.get(2) or l1
    return l1, l2, sizes.get(3) or l2


def host_ways(root: str = _SYSFS) -> int | None:
    """Lines in a set of the first data cache as the kernel tells it; None if it does not."""
    ways = _host_fields(root, "ways_of_associativity").get(1, "")
    return int(ways) if ways.isdigit() and int(ways) > 0 else None


def _host_fields(root: str, field: str) -> dict[int, str]:
    """One field of the data cache of each level; nothing where the kernel leaves it out."""
    found: dict[int, str] = {}
    try:
        for entry in sorted(os.listdir(root)):
            if not entry.startswith("index"):
                continue
            fields = {}
            for name in ("level", "type", field):
                with open(os.path.join(root, entry, name), encoding="ascii") as f:
                    fields[name] = f.read().strip()
            if fields["type"] in ("Data", "Unified"):
                found[int(fields["level"])] = fields[field]
    except (OSError, ValueError):
        return {}
    return found
