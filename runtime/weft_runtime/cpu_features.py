"""Which instruction-set extensions this machine has, by LLVM's names, read from the operating system: no compiler
needed."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from weft_runtime.abi import ByteOrder

WINDOWS = "-windows"
"""What follows the architecture in the name of a machine whose arguments are passed as Windows does."""

# /proc/cpuinfo's word → LLVM's feature name. Only extensions that change what code a compiler may emit.
_X86 = {
    "cx16": "cx16", "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "sse4a": "sse4a",
    "popcnt": "popcnt", "aes": "aes",
    "pclmulqdq": "pclmul", "avx": "avx", "f16c": "f16c", "fma": "fma", "fma4": "fma4", "xop": "xop", "avx2": "avx2",
    "bmi1": "bmi", "bmi2": "bmi2",
    "abm": "lzcnt", "lahf_lm": "sahf", "movbe": "movbe", "rdrand": "rdrnd", "rdseed": "rdseed", "adx": "adx",
    "sha_ni": "sha", "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq", "gfni": "gfni", "avx512f": "avx512f", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vp2intersect": "avx512vp2intersect", "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16",
    "avx_ifma": "avxifma", "avx_ne_convert": "avxneconvert", "amx_tile": "amx-tile", "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16", "tbm": "tbm", "lwp": "lwp", "3dnowprefetch": "prfchw", "cmpccxadd": "cmpccxadd",
    "sha512": "sha512", "sm3": "sm3", "sm4": "sm4",
    "amx_complex": "amx-complex", "sse": "sse", "sse2": "sse2", "mmx": "mmx", "fxsr": "fxsr", "cx8": "cx8",
    "cmov": "cmov",
}  # fmt: skip
_ARM = {
    "asimd": "neon", "fp": "fp-armv8", "aes": "aes", "pmull": "aes", "sha2": "sha2", "sha3": "sha3", "crc32": "crc",
    "atomics": "lse",
    "asimdrdm": "rdm", "asimdhp": "fullfp16", "asimddp": "dotprod", "asimdfhm": "fp16fml", "fcma": "complxnum",
    "jscvt": "jsconv", "lrcpc": "rcpc",
    "sve": "sve", "sve2": "sve2", "i8mm": "i8mm", "bf16": "bf16", "sveaes": "sve-aes", "svebitperm": "sve-bitperm",
    "svesha3": "sve-sha3",
    "svesm4": "sve-sm4", "sveb16b16": "sve-b16b16", "sve2p1": "sve2p1", "sm4": "sm4", "svef32mm": "f32mm",
    "svef64mm": "f64mm", "uscat": "lse2",
    "lse128": "lse128", "ilrcpc": "rcpc-immo", "lrcpc3": "rcpc3", "flagm": "flagm", "flagm2": "altnzcv", "cssc": "cssc",
    "mops": "mops", "hbc": "hbc",
    "faminmax": "faminmax", "lut": "lut", "cmpbr": "cmpbr", "fprcvt": "fprcvt", "sme": "sme", "sme2": "sme2",
    "dcpop": "ccpp", "frint": "fptoint",
    "svei8mm": "i8mm", "svebf16": "bf16",
}  # fmt: skip
_MAC_ARM = {
    "FEAT_DotProd": "dotprod", "FEAT_FP16": "fullfp16", "FEAT_FHM": "fp16fml", "FEAT_BF16": "bf16", "FEAT_I8MM": "i8mm",
    "FEAT_LSE": "lse",
    "FEAT_RDM": "rdm", "FEAT_FCMA": "complxnum", "FEAT_JSCVT": "jsconv", "FEAT_LRCPC": "rcpc", "FEAT_AES": "aes",
    "FEAT_SHA256": "sha2",
    "FEAT_SHA3": "sha3", "FEAT_CRC32": "crc", "FEAT_SME": "sme", "FEAT_SME2": "sme2", "FEAT_FRINTTS": "fptoint",
    "FEAT_DPB": "ccpp",
    "FEAT_LSE2": "lse2", "FEAT_LRCPC2": "rcpc-immo", "FEAT_FlagM": "flagm", "FEAT_FlagM2": "altnzcv",
    "FEAT_CSSC": "cssc", "FEAT_HBC": "hbc",
}  # fmt: skip

# The kernel tells VFP by its version; version 4 converts to half precision, too. Version 8 of the architecture it tells
# by what came with it.
_ARM_32 = {
    "neon": ("neon",), "vfpv3": ("vfp3d16",), "vfpv3d16": ("vfp3d16",),
    "vfpv4": ("vfp4d16", "fp16"), "vfpd32": ("d32",),
    "idiva": ("hwdiv-arm",), "idivt": ("hwdiv",), "crc32": ("crc", "fp-armv8"), "asimdhp": ("fullfp16",),
    "asimddp": ("dotprod",), "i8mm": ("i8mm",), "asimdbf16": ("bf16",),
}  # fmt: skip
_S390X = {
    37: ("fp-extension",), 45: ("distinct-ops", "high-word", "load-store-on-cond", "population-count",
    "fast-serialization", "interlocked-access1"),
    49: ("miscellaneous-extensions", "execution-hint", "load-and-trap", "processor-assist"),
    53: ("load-store-on-cond-2", "load-and-zero-rightmost-byte"), 58: ("miscellaneous-extensions-2",),
    61: ("miscellaneous-extensions-3",), 84: ("miscellaneous-extensions-4",), 129: ("vector",),
    135: ("vector-enhancements-1",), 148: ("vector-enhancements-2",), 198: ("vector-enhancements-3",),
}  # fmt: skip
"""Facilities by their number in the Principles of Operation."""
_RISCV = (
    "m", "a", "f", "d", "c", "v", "zba", "zbb", "zbs", "zicond", "zfh", "zfhmin", "zvfh", "zvfhmin",
)  # fmt: skip
_WASM = ("simd128", "relaxed-simd", "atomics", "wide-arithmetic", "fp16")


BIG_ENDIAN = frozenset({"s390x"})
"""Machines that have a number's highest byte first."""
_NAMES = {"AMD64": "x86_64", "ARM64": "aarch64", "arm64": "aarch64"}
_OF_32_BITS = {"x86_64": "i386", "aarch64": "arm"}


def machine_name(name: str) -> str:
    """LLVM's name of an architecture: all of 32-bit x86 are i386, all of 32-bit Arm that are no Thumb are arm."""
    name = _NAMES.get(name, name)
    return "i386" if re.fullmatch("i[3-9]86", name) else "arm" if re.fullmatch(r"armv\d\w*", name) else name


def byte_order(machine: str) -> ByteOrder:
    """Of a machine by its name in a manifest."""
    return "big" if machine in BIG_ENDIAN else "little"


def machine() -> str:
    """What manifests call this machine: the architecture, by LLVM's name. The system tells its own; a process of 32
    bits has another. Windows passes arguments on x86 in a way of its own: its name is another one there."""
    name = machine_name(platform.machine())
    name = name if sys.maxsize > 1 << 32 else _OF_32_BITS.get(name, name)
    return f"{name}{WINDOWS}" if sys.platform == "win32" and name in ("x86_64", "i386") else name


@cache
def known_features(architecture: str | None = None) -> frozenset[str]:
    """The names this module can detect. A compiler lists only these as required."""
    arch = (architecture or machine()).removesuffix(WINDOWS)
    tables: dict[str, Iterable[str]] = {
        "x86_64": _X86.values(), "i386": _X86.values(), "aarch64": _ARM.values(), "wasm32": _WASM,
        "arm": (name for names in _ARM_32.values() for name in names), "riscv32": _RISCV, "riscv64": _RISCV,
        "s390x": (name for names in _S390X.values() for name in names),
    }  # fmt: skip
    return frozenset(tables.get(arch, ()))


def _sysctl(name: str) -> bytes:
    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) or size.value == 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    return (
        buffer.raw[: size.value] if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) == 0 else b""
    )


def parse_cpuinfo(text: str, architecture: str) -> frozenset[str]:
    """Features that every processor of /proc/cpuinfo has (big and little cores may differ)."""
    key, read = _CPUINFO.get(architecture, _CPUINFO["aarch64"])
    common: set[str] | None = None
    for line in text.splitlines():
        name, colon, words = line.partition(":")
        if colon and name.strip() == key:
            common = read(words) if common is None else common & read(words)
    return frozenset(common or ())


def _words(table: Mapping[str, str]) -> Callable[[str], set[str]]:
    return lambda text: {table[w] for w in text.split() if w in table}


def _of_riscv(text: str) -> set[str]:
    """Of a string such as rv64imafdc_zicsr_zba."""
    base, *longer = text.strip().lower().split("_")
    letters = {*re.sub(r"^rv\d+", "", base).split("z")[0].replace("g", "imafd")}
    found = letters | {*longer}
    implied = {"zfh": {"zfhmin"}, "zvfh": {"zvfhmin"}, "b": {"zba", "zbb", "zbs"}}
    return {*_RISCV} & found.union(*(implied.get(name, ()) for name in found))


_CPUINFO: dict[str, tuple[str, Callable[[str], set[str]]]] = {
    "x86_64": ("flags", _words(_X86)),
    "i386": ("flags", _words(_X86)),
    "aarch64": ("Features", _words(_ARM)),
    "arm": ("Features", lambda text: {name for word in text.split() for name in _ARM_32.get(word, ())}),
    "riscv32": ("isa", _of_riscv),
    "riscv64": ("isa", _of_riscv),
    "s390x": (
        "facilities",
        lambda text: {name for number in text.split() if number.isdigit() for name in _S390X.get(int(number), ())},
    ),
}
"""By architecture, the line of /proc/cpuinfo that tells the extensions, and how it is read."""


@cache
def host_features() -> frozenset[str]:
    """LLVM's names of the extensions that this machine has."""
    arch = machine().removesuffix(WINDOWS)
    if sys.platform == "darwin":
        if arch == "aarch64":
            found = {llvm for feature, llvm in _MAC_ARM.items() if _sysctl("hw.optional.arm." + feature)[:1] == b"\1"}
            return frozenset(found | {"neon", "fp-armv8"})
        words = (
            _sysctl("machdep.cpu.features")
            + b" "
            + _sysctl("machdep.cpu.leaf7_features")
            + b" "
            + _sysctl("machdep.cpu.extfeatures")
        ).decode(errors="replace")
        named = {
            w.lower()
            .rstrip("\0")
            .replace(".", "_")
            .replace("avx1_0", "avx")
            .replace("sse3", "pni")
            .replace("spni", "ssse3")
            for w in words.split()
        }
        return frozenset(_X86[w] for w in named if w in _X86) | frozenset({"sse", "sse2", "cmov", "cx8", "fxsr"})
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return parse_cpuinfo(file.read(), arch)
    except OSError:
        return frozenset()


def missing_features(required: Iterable[str]) -> tuple[str, ...]:
    """Those of `required` that this machine lacks, or that nobody here can tell."""
    have = host_features()
    return tuple(f for f in required if f not in have)
