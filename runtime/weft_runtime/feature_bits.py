"""How the C runtime asks a processor for an extension of its instruction set, by LLVM's names."""

from __future__ import annotations

from weft_runtime.cpu_features import WINDOWS

UNKNOWN, ALWAYS, CPUID, AUXILIARY, RISCV = range(5)
"""Kinds of questions (libweft/src/processor.c)."""
_EXTENDED = 0x80000001

# Of x86: Intel's Software Developer's Manual, volume 2A, CPUID; AMD's Architecture Programmer's Manual, volume 3,
# appendix E: function, sub-function, register, bit.
_X86 = {
    "sse3": (1, 0, "C", 0), "ssse3": (1, 0, "C", 9), "fma": (1, 0, "C", 12), "cx16": (1, 0, "C", 13), "sse4.1": (1,
    0, "C", 19), "sse4.2": (1, 0, "C", 20), "movbe": (1, 0, "C", 22), "popcnt": (1, 0, "C", 23), "avx": (1, 0, "C",
    28), "f16c": (1, 0, "C", 29), "sse": (1, 0, "D", 25), "sse2": (1, 0, "D", 26), "bmi": (7, 0, "B", 3), "avx2":
    (7, 0, "B", 5), "bmi2": (7, 0, "B", 8), "avx512f": (7, 0, "B", 16), "avx512dq": (7, 0, "B", 17), "avx512ifma":
    (7, 0, "B", 21), "avx512cd": (7, 0, "B", 28), "avx512bw": (7, 0, "B", 30), "avx512vl": (7, 0, "B", 31),
    "avx512vbmi": (7, 0, "C", 1), "avx512vbmi2": (7, 0, "C", 6), "gfni": (7, 0, "C", 8), "avx512vnni": (7, 0, "C",
    11), "avx512bitalg": (7, 0, "C", 12), "avx512vpopcntdq": (7, 0, "C", 14), "avx512vp2intersect": (7, 0, "D", 8),
    "avx512fp16": (7, 0, "D", 23), "avxvnni": (7, 1, "A", 4), "avx512bf16": (7, 1, "A", 5), "cmpccxadd": (7, 1, "A",
    7), "avxifma": (7, 1, "A", 23), "avxvnniint8": (7, 1, "D", 4), "avxneconvert": (7, 1, "D", 5), "avxvnniint16":
    (7, 1, "D", 10), "sahf": (_EXTENDED, 0, "C", 0), "lzcnt": (_EXTENDED, 0, "C", 5), "sse4a": (_EXTENDED, 0,
    "C", 6), "xop": (_EXTENDED, 0, "C", 11), "fma4": (_EXTENDED, 0, "C", 16), "tbm": (_EXTENDED, 0, "C", 21),
}  # fmt: skip
_SAVED_BY_256_BITS = frozenset({"fma", "f16c", "fma4", "xop"})
"""Extensions beside AVX that need the registers of 256 bits."""
# Of 64-bit Arm: AT_HWCAP (16) and AT_HWCAP2 (26) of Linux, arch/arm64/include/uapi/asm/hwcap.h: word, bit.
_ARM64 = {
    "lse": (16, 8), "fullfp16": (16, 10), "rdm": (16, 12), "complxnum": (16, 14), "rcpc": (16, 15), "sha3": (16,
    17), "dotprod": (16, 20), "sve": (16, 22), "fp16fml": (16, 23), "lse2": (16, 25), "rcpc-immo": (16, 26),
    "flagm": (16, 27), "cmpbr": (16, 33), "fprcvt": (16, 34), "sve2": (26, 1), "sve-bitperm": (26, 4), "altnzcv":
    (26, 7), "fptoint": (26, 8), "f32mm": (26, 10), "f64mm": (26, 11), "i8mm": (26, 13), "bf16": (26, 14), "cssc":
    (26, 34), "sve2p1": (26, 36), "mops": (26, 43), "hbc": (26, 44), "sve-b16b16": (26, 45), "rcpc3": (26, 46),
    "lse128": (26, 47), "faminmax": (26, 50),
}  # fmt: skip
_ARM64_ALWAYS = frozenset({"neon", "fp-armv8"})
# Of 32-bit Arm: arch/arm/include/uapi/asm/hwcap.h; NEON has all 32 registers, which kernels of 64 bits do not say.
_ARM = {
    "neon": (16, 12), "vfp3d16": (16, 13), "vfp4d16": (16, 16), "fp16": (16, 16), "hwdiv-arm": (16, 17), "hwdiv":
    (16, 18), "d32": (16, 12), "fullfp16": (16, 23), "dotprod": (16, 24), "bf16": (16, 26), "i8mm": (16, 27), "crc":
    (26, 4), "fp-armv8": (26, 4),
}  # fmt: skip
# Of RISC-V: a bit of AT_HWCAP for each letter of the base extensions; the others are bits of the key 4 of the system
# call riscv_hwprobe (Linux 6.4, Documentation/arch/riscv/hwprobe.rst).
_RISCV = {
    "a": (16, 0), "c": (16, 2), "d": (16, 3), "f": (16, 5), "m": (16, 12), "v": (16, 21), "zba": (4, 3), "zbb": (4,
    4), "zbs": (4, 5), "zfh": (4, 27), "zfhmin": (4, 28), "zvfh": (4, 30), "zvfhmin": (4, 31), "zicond": (4, 35),
}  # fmt: skip


def question(machine: str, feature: str) -> tuple[int, int, int, int, int, int]:
    """How a machine, by its name in manifests, is asked for an extension: kind, register of cpuid, bit, sub-function of
    cpuid, function of cpuid or word, and the registers that the system must save. The kind UNKNOWN is answered with
    no."""
    machine = machine.removesuffix(WINDOWS)
    if machine in ("x86_64", "i386") and feature in _X86:
        function, part, register, bit = _X86[feature]
        wide, half = feature.startswith("avx512"), feature.startswith("avx") or feature in _SAVED_BY_256_BITS
        # Registers of 256 bits are states 1 and 2, those of 512 bits also 5, 6 and 7.
        return CPUID, "ABCD".index(register), bit, part, function, 0xE6 if wide else 6 if half else 0
    if machine == "aarch64" and feature in _ARM64_ALWAYS:
        return ALWAYS, 0, 0, 0, 0, 0
    table = {"aarch64": _ARM64, "arm": _ARM, "riscv64": _RISCV, "riscv32": _RISCV}.get(machine, {})
    if feature not in table:
        return UNKNOWN, 0, 0, 0, 0, 0
    word, bit = table[feature]
    return RISCV if word == 4 else AUXILIARY, 0, bit, 0, word, 0
