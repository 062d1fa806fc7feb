"""Which instruction-set extensions this machine has, by LLVM's names, read from the operating system: no compiler
needed."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterable
from functools import cache

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

_WASM = ("simd128", "relaxed-simd", "atomics", "wide-arithmetic", "fp16")


def machine() -> str:
    """The architecture, by LLVM's name: x86_64 or aarch64 (others as the system calls them). The system tells its own;
    a process of 32 bits has another."""
    name = platform.machine()
    name = {"AMD64": "x86_64", "arm64": "aarch64"}.get(name, name)
    return name if sys.maxsize > 1 << 32 else {"x86_64": "i386", "aarch64": "arm"}.get(name, name)


@cache
def known_features(architecture: str | None = None) -> frozenset[str]:
    """The names this module can detect. A compiler lists only these as required."""
    arch = architecture or machine()
    tables = {"x86_64": _X86.values(), "aarch64": _ARM.values(), "wasm32": _WASM}
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
    table, key = (_X86, "flags") if architecture == "x86_64" else (_ARM, "Features")
    common: set[str] | None = None
    for line in text.splitlines():
        name, colon, words = line.partition(":")
        if colon and name.strip() == key:
            here = {table[w] for w in words.split() if w in table}
            common = here if common is None else common & here
    return frozenset(common or ())


@cache
def host_features() -> frozenset[str]:
    """LLVM's names of the extensions that this machine has."""
    arch = machine()
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
