"""Which extensions code for a target may contain: found out by compiling what they are for and reading the assembly.

LLVM says what a CPU's name implies to nobody but its own code generator, so that is asked: an extension counts as used if a small function
that profits from it is compiled to its instructions. The archive lists them, and a machine that lacks one refuses to run it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from weft_llvm.toolchain import Cpu, compile_assembly


@dataclass(frozen=True)
class Probe:
    """`feature` (LLVM's name) is there if `body` compiles to something that `pattern` finds. `declares`: intrinsics that the body calls."""

    feature: str
    signature: str
    body: str
    pattern: str
    declares: str = ""


def _unary(kind: str, name: str, extra: str = "") -> tuple[str, str, str]:
    """Signature, body and declaration of one call of an intrinsic on one argument."""
    suffix = _suffix(kind)
    call = f"%r = call {kind} @llvm.{name}.{suffix}({kind} %a{extra})\n ret {kind} %r"
    flag = ", i1" if extra else ""
    return f"{kind} @F({kind} %a)", call, f"declare {kind} @llvm.{name}.{suffix}({kind}{flag})"


def _suffix(kind: str) -> str:
    match = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    name = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}
    return kind if match is None else f"v{match[1]}{name.get(match[2], match[2])}"


def _of(feature: str, kind: str, name: str, pattern: str, extra: str = "") -> Probe:
    signature, body, declares = _unary(kind, name, extra)
    return Probe(feature, signature, body, pattern, declares)


def _binary(feature: str, kind: str, op: str, pattern: str) -> Probe:
    return Probe(feature, f"{kind} @F({kind} %a, {kind} %b)", f"%r = {op} {kind} %a, %b\n ret {kind} %r", pattern)


def _dot(feature: str, lanes: int, left: str, right: str, pattern: str) -> Probe:
    body = (
        f"%x = {left} <{lanes} x i8> %a to <{lanes} x i32>\n %y = {right} <{lanes} x i8> %b to <{lanes} x i32>\n %p = mul nsw <{lanes} x i32> %x, %y\n"
        f" %r = call i32 @llvm.vector.reduce.add.v{lanes}i32(<{lanes} x i32> %p)\n ret i32 %r"
    )
    declares = f"declare i32 @llvm.vector.reduce.add.v{lanes}i32(<{lanes} x i32>)"
    return Probe(feature, f"i32 @F(<{lanes} x i8> %a, <{lanes} x i8> %b)", body, pattern, declares)


_MASKED = "%m = fcmp olt <8 x float> %a, %b\n %r = select <8 x i1> %m, <8 x float> %a, <8 x float> zeroinitializer\n ret <8 x float> %r"

X86: tuple[Probe, ...] = (
    _of("ssse3", "<4 x i32>", "abs", r"pabsd", ", i1 false"),
    _binary("sse4.1", "<4 x i32>", "mul", r"pmulld"),
    Probe("sse4.2", "<2 x i64> @F(<2 x i64> %a, <2 x i64> %b)",
          "%m = icmp sgt <2 x i64> %a, %b\n %r = sext <2 x i1> %m to <2 x i64>\n ret <2 x i64> %r", r"pcmpgtq"),
    _of("popcnt", "i64", "ctpop", r"\bpopcnt"),
    _of("lzcnt", "i64", "ctlz", r"\blzcnt", ", i1 false"),
    _of("bmi", "i64", "cttz", r"\btzcnt", ", i1 false"),
    _binary("bmi2", "i64", "lshr", r"\bshrx"),
    Probe("movbe", "i64 @F(ptr %p)",
          "%a = load i64, ptr %p\n %r = call i64 @llvm.bswap.i64(i64 %a)\n ret i64 %r", r"\bmovbe", "declare i64 @llvm.bswap.i64(i64)"),
    _binary("avx", "<8 x float>", "fadd", r"vaddps.*%ymm"),
    _binary("avx2", "<8 x i32>", "add", r"vpaddd.*%ymm"),
    Probe("fma", "<4 x float> @F(<4 x float> %a)",
          "%r = call <4 x float> @llvm.fma.v4f32(<4 x float> %a, <4 x float> %a, <4 x float> %a)\n ret <4 x float> %r", r"vfmadd",
          "declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)"),
    Probe("f16c", "<4 x float> @F(ptr %p)", "%a = load <4 x half>, ptr %p\n %r = fpext <4 x half> %a to <4 x float>\n ret <4 x float> %r", r"vcvtph2ps"),
    _of("gfni", "<16 x i8>", "bitreverse", r"gf2p8affine"),
    _binary("avx512f", "<16 x float>", "fadd", r"vaddps.*%zmm"),
    _binary("avx512bw", "<64 x i8>", "add", r"vpaddb.*%zmm"),
    _binary("avx512dq", "<8 x i64>", "mul", r"vpmullq"),
    _of("avx512cd", "<16 x i32>", "ctlz", r"vplzcntd", ", i1 false"),
    Probe("avx512vl", "<8 x float> @F(<8 x float> %a, <8 x float> %b)", _MASKED, r"%k\d.*%ymm|%ymm.*%k\d"),
    Probe("avx512vbmi", "<64 x i8> @F(<64 x i8> %a)",
          f"%r = shufflevector <64 x i8> %a, <64 x i8> poison, <64 x i32> <{', '.join(f'i32 {63 - k}' for k in range(64))}>\n ret <64 x i8> %r", r"vpermb"),
    _of("avx512vpopcntdq", "<16 x i32>", "ctpop", r"vpopcntd"),
    _of("avx512bitalg", "<64 x i8>", "ctpop", r"vpopcntb"),
    Probe("avx512vbmi2", "<16 x i32> @F(<16 x i32> %a, <16 x i32> %b, <16 x i32> %c)",
          "%r = call <16 x i32> @llvm.fshl.v16i32(<16 x i32> %a, <16 x i32> %b, <16 x i32> %c)\n ret <16 x i32> %r", r"vpshld",
          "declare <16 x i32> @llvm.fshl.v16i32(<16 x i32>, <16 x i32>, <16 x i32>)"),
    Probe("avx512bf16", "<16 x bfloat> @F(<16 x float> %a)", "%r = fptrunc <16 x float> %a to <16 x bfloat>\n ret <16 x bfloat> %r", r"vcvtneps2bf16.*%zmm"),
    Probe("avxneconvert", "<4 x bfloat> @F(<4 x float> %a)",
          "%r = fptrunc <4 x float> %a to <4 x bfloat>\n ret <4 x bfloat> %r", r"\{vex\}\s*vcvtneps2bf16"),
    _binary("avx512fp16", "<32 x half>", "fadd", r"vaddph.*%zmm"),
    _dot("avx512vnni", 64, "zext", "sext", r"vpdpbusd.*%zmm"),
    _dot("avxvnni", 32, "zext", "sext", r"\{vex\}\s*vpdpbusd"),
)  # fmt: skip
ARM: tuple[Probe, ...] = (
    _binary("neon", "<4 x float>", "fadd", r"fadd\s+v\d+\.4s"),
    Probe("lse", "i64 @F(ptr %p, i64 %a)", "%r = atomicrmw add ptr %p, i64 %a monotonic\n ret i64 %r", r"\bldadd"),
    _binary("fullfp16", "<8 x half>", "fadd", r"fadd\s+v\d+\.8h"),
    Probe("bf16", "<4 x bfloat> @F(<4 x float> %a)", "%r = fptrunc <4 x float> %a to <4 x bfloat>\n ret <4 x bfloat> %r", r"\bbfcvtn"),
    _dot("dotprod", 16, "zext", "zext", r"\budot"),
    _dot("i8mm", 16, "zext", "sext", r"\busdot"),
    Probe("sve", "<4 x i32> @F(<4 x i32> %a, <4 x i32> %b)", "%r = sdiv <4 x i32> %a, %b\n ret <4 x i32> %r", r"\bz\d+\.s"),
)  # fmt: skip


@cache
def used_features(cpu: Cpu, architecture: str) -> frozenset[str]:
    """The extensions, by LLVM's names, that code for `cpu` may contain."""
    probes = {"x86_64": X86, "aarch64": ARM}.get(architecture, ())
    if not probes:
        return frozenset()
    lines = [f'target triple = "{cpu.triple}"', *dict.fromkeys(p.declares for p in probes if p.declares)]
    wide = '"prefer-vector-width"="512" "min-legal-vector-width"="512"' if architecture == "x86_64" else ""
    for k, p in enumerate(probes):
        lines.append(f"define {p.signature.replace('@F', f'@probe{k}')} nounwind {wide} {{\n {p.body}\n}}")
    assembly = compile_assembly("\n".join(lines) + "\n", cpu)
    bodies = dict(re.findall(r"^_?probe(\d+):(.*?)(?=^_?probe\d+:|\Z)", assembly, re.M | re.S))
    return frozenset(p.feature for k, p in enumerate(probes) if re.search(p.pattern, bodies.get(str(k), "")))
