"""What LLVM knows of a processor: whether it can compile for it, how memory is laid out, what it emits, and which
extensions its code may need.

LLVM is asked in a process of its own. It prints what it does not know to standard error and goes on with something
else, and ends the process on what it cannot do, such as 64-bit code for an i386. What was found out is kept in the
cache on disk, so a processor is asked about once.

The extensions come from LLVM itself: it inlines a function into another only if the caller's processor has every
extension of the callee's. So, for each extension that it lists, a function that needs this extension as well is called
by one that does not; where the call is gone, the processor has it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.errors import CodegenError, TargetError, nearest
from weft_llvm.processes import command, end_with_parent, ended, environment, scratch_file, tail
from weft_llvm.toolchain import Cpu
from weft_runtime.cache import Cache

_SECONDS = 300.0  # until a process that does not answer is given up; it takes less than one where nothing else runs

# Extensions that LLVM lists and that need not be asked of a machine:
# - those that every 64-bit processor has;
# - those whose instructions are emitted for intrinsics of their own only, which the emitter does not use, for whole
# functions that ask for a mode, or by operating systems, and AVX10.1, which has none of its own;
# - no extensions, but how code is best arranged.
# A name in none of these that the runtime cannot ask a machine for is not used: `weft_llvm.target.isa`.
_X86_ALWAYS = {
    "64bit", "64bit-mode", "cmov", "cx8", "fxsr", "mmx", "nopl", "sse", "sse2", "x87",
}  # fmt: skip
_X86_UNUSED = {
    "avx10.1", "avx10.1-512", "adx", "aes", "amx-avx512", "amx-bf16", "amx-complex", "amx-fp16", "amx-fp8", "amx-int8",
    "amx-movrs", "amx-tf32",
    "amx-tile", "amx-transpose", "cldemote", "clflushopt", "clwb", "clzero", "crc32", "cx16", "enqcmd", "fsgsbase",
    "hreset", "invpcid", "kl", "lwp",
    "movdir64b", "movdiri", "movrs", "mwaitx", "pclmul", "pconfig", "pku", "prefetchi", "prfchw", "ptwrite", "rdpid",
    "rdpru", "rdrnd", "rdseed", "rtm",
    "sahf", "serialize", "sgx", "sha", "sha512", "shstk", "sm3", "sm4", "tsxldtrk", "uintr", "usermsr", "vaes",
    "vpclmulqdq", "waitpkg", "wbnoinvd",
    "widekl", "xsave", "xsavec", "xsaveopt", "xsaves",
}  # fmt: skip
_X86_TUNING = re.compile(
    r"(allow|fast|false|idiv[lq]|lea|no-bypass|pad|prefer|slow|tuning|use)-.*|branch-hint|branchfusion|ermsb|evex512|faster-shift-than-shuffle|fsrm|macrofusion"
    r"|sbb-dep-breaking|sse-unaligned-mem|vzeroupper"
)
_ARM_UNUSED = {
    "aes", "CONTEXTIDREL2", "am", "amvs", "brbe", "bti", "btie", "ccdp", "ccidx", "ccpp", "chk", "clrbhb", "crc", "dit",
    "ecv", "el2vmsa", "el3", "ete",
    "fgt", "fp8", "fp8dot2", "fp8dot4", "fp8fma", "fpac", "gcs", "hcx", "ite", "jsconv", "lor", "ls64", "lut", "mec",
    "mpam", "mpamv2", "mte", "nmi",
    "nv", "pan", "pan-rwv", "pauth", "pauth-lr", "perfmon", "predres", "rand", "ras", "rasv2", "rme", "sb", "sel2",
    "sha2", "sm4", "sme", "sme-b16b16",
    "sme-f16f16", "sme-f64f64", "sme-fa64", "sme-i16i64", "sme2", "sme2p1", "sme2p2", "spe", "spe-eef", "specres2",
    "specrestrict", "ssbs", "sve-aes",
    "sve-sha3", "sve-sm4", "tlb-rmi", "tme", "tracev8.4", "trbe", "uaops", "vh", "wfxt", "xs",
}  # fmt: skip
_ARM_TUNING = {
    "aggressive-fma", "enable-select-opt", "execute-only", "store-pair-suppress",
}  # fmt: skip


_RISCV_LENGTHS = [f"zvl{bits}b" for bits in (256, 512, 1024)]
"""At least so many bits in a vector, which the runtime cannot ask; every machine with vectors has 128."""


@dataclass(frozen=True)
class Description:
    """A processor as LLVM compiles for it.

    Attributes:
        layout: LLVM's text of how memory is laid out.
        has: what it emits, of the names of `Isa.has` but for dot products.
        needs: extensions that its code may contain, by LLVM's names; of architectures whose machines can be asked,
            those of `weft_llvm.target.MACHINES`.
        objects: how its objects are written: "elf", "wasm", or LLVM's name of another.
        floats: as `Isa.floats`.
        name, features: what LLVM is told to compile for: the processor's name and what was asked; for a processor whose
            model of scheduling is incomplete, on which LLVM ends the process, "generic" and all extensions of the
            processor.
    """

    layout: str
    has: frozenset[str]
    needs: frozenset[str]
    objects: str
    name: str
    features: str
    floats: bool = True


@functools.cache
def describe(cpu: Cpu) -> Description:
    """Asks LLVM.

    Raises:
        TargetError: LLVM does not know the triple, the processor or an extension, or cannot compile for it.
    """
    import llvmlite
    import llvmlite.binding as llvm

    store = Cache("targets")
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = repr((own, llvmlite.__version__, llvm.llvm_version_info, asdict(cpu)))
    known = store.get(key)
    if known is None:
        known = _asked(cpu)
        store.put(key, known)
    found = json.loads(known)
    return Description(
        found["layout"],
        frozenset(found["has"]),
        frozenset(found["needs"]),
        found["objects"],
        found["name"],
        found["features"],
        found["floats"],
    )


def _asked(cpu: Cpu, *, by_extensions: bool = False, probes: tuple[str, ...] | None = None) -> bytes:
    """The answer of a process for this one question.

    Args:
        by_extensions: LLVM is told the processor's extensions in place of its name.
        probes: of `_PROBES`, by default all. If LLVM ends the process on them, each is compiled by one of its own: what
            ends that is not emitted.
    """
    tried = tuple(_PROBES) if probes is None else probes
    what = f"LLVM cannot compile for '{cpu.triple}' with -mcpu={cpu.name}"
    with scratch_file() as log:
        try:
            request = json.dumps({"cpu": asdict(cpu), "by_extensions": by_extensions, "probes": tried}).encode()
            done = subprocess.run(
                command(__name__),
                input=request,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TargetError(what, why=f"the process that was asked did not answer within {_SECONDS:.0f} s") from None
        except OSError as error:
            raise TargetError(what, why=f"no process could be started to query it: {error.strerror or error}") from None
        if done.returncode != 0 and not by_extensions and "incomplete machine model" in tail(log):
            return _asked(cpu, by_extensions=True)
        if done.returncode != 0 and probes is None:
            return _asked_one_by_one(cpu, by_extensions)
        if done.returncode != 0:
            said = re.findall(r"LLVM ERROR: (.*)", tail(log))
            raise TargetError(
                what,
                why=(
                    said[-1]
                    if said
                    else f"it ended the process that asked ({ended(done.returncode)}): {tail(log, 300)}"
                ),
            )
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise TargetError(**answer["refused"])
    return done.stdout


def _asked_one_by_one(cpu: Cpu, by_extensions: bool) -> bytes:
    found = json.loads(_asked(cpu, by_extensions=by_extensions, probes=()))
    for name in _PROBES:
        try:
            one = json.loads(_asked(cpu, by_extensions=by_extensions, probes=(name,)))
            found["has"] += one["has"]
            found["floats"] |= one["floats"]
        except TargetError:
            continue
    return json.dumps({**found, "has": sorted({*found["has"]})}).encode()


# -- in the process that asks LLVM ------------------------------------------------------------------------------------

_PROBES = {
    "fma": """declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
define <4 x float> @fma(<4 x float> %a, <4 x float> %b, <4 x float> %c) nounwind {
 %r = call <4 x float> @llvm.fma.v4f32(<4 x float> %a, <4 x float> %b, <4 x float> %c)
 ret <4 x float> %r }""",
    "rounding": """declare <4 x float> @llvm.floor.v4f32(<4 x float>)
define <4 x float> @rounding(<4 x float> %a) nounwind {
 %r = call <4 x float> @llvm.floor.v4f32(<4 x float> %a)
 ret <4 x float> %r }""",
    "f16c": """define void @f16c(ptr %p, ptr %q) nounwind {
 %x = load <4 x half>, ptr %p
 %y = fpext <4 x half> %x to <4 x float>
 store <4 x float> %y, ptr %q
 ret void }""",
    "bf16": """define <4 x bfloat> @bf16(<4 x float> %a) nounwind {
 %r = fptrunc <4 x float> %a to <4 x bfloat>
 ret <4 x bfloat> %r }""",
    "half": """define void @half(ptr %p) nounwind {
 %x = load <8 x half>, ptr %p
 %y = fadd <8 x half> %x, %x
 store <8 x half> %y, ptr %p
 ret void }""",
    "floats": """define double @floats(double %a, double %b) nounwind {
 %r = fadd double %a, %b
 ret double %r }""",
    "wide": """define void @wide(ptr %p, ptr %q) nounwind "prefer-vector-width"="512" {
 %x = load <16 x i32>, ptr %p
 %y = load <16 x i32>, ptr %q
 %z = add <16 x i32> %x, %y
 store <16 x i32> %z, ptr %p
 ret void }""",
}
"""Functions by name, in LLVM IR: the assembly of each shows what a processor has."""


_FLOATS = "floats"


def _emitted(cpu: Cpu, probes: list[str]) -> set[str]:
    """What the assembly of `probes` shows, of `Isa.has`, and `_FLOATS`."""
    from weft_llvm.toolchain import compile_assembly

    source = "\n".join(_PROBES[name] for name in probes)
    assembly = compile_assembly(f'target triple = "{cpu.triple}"\n{source}\n', cpu)
    names = "|".join(_PROBES)
    bodies = dict(re.findall(rf"^[_\"]*({names})\"?:(.*?)(?=^[_\"]*(?:{names})\"?:|\Z)", assembly, re.M | re.S))

    def seen(body: str, pattern: str) -> bool:
        return re.search(pattern, bodies.get(body, "")) is not None

    tests = {
        # relaxed_madd may round twice
        "fma": seen("fma", r"\bvfn?m(add|sub)|\bfmla|\bfmadd|\bvfma|\bwfma|\bmaebr?\b"),
        _FLOATS: seen(_FLOATS, r"\bv?addsd|\bfadd\s+d|\bvadd\.f64|\bfadd\.d|\badbr|\bwfadb|\bf64\.add"),
        "rounding": seen("rounding", r"\bv?roundp|\bvrndscale|\bfrintm|\bvrintm|f32x4\.floor"),
        "f16c": seen("f16c", r"\bvcvtph2ps|\bfcvtl|\bvfwcvt|\bvcvt\.f32\.f16"),
        "bf16": seen("bf16", r"\bvcvtneps2bf16|\bbfcvtn|\bvcvt\.bf16\.f32|\bvfncvtbf16"),
        "half": seen("half", r"\bvaddph|\bfadd\s+v\d+\.8h|\bvadd\.f16"),
        "avx": seen("fma", r"\bv[a-z0-9]+ps|\bvfn?m") and "%xmm" in bodies.get("fma", ""),
        "avx2": seen("wide", r"vpadd.*%ymm|vpadd.*%zmm"),
        "avx512": seen("wide", r"%zmm"),
        "neon": seen("fma", r"\bv\d+\.4s"),
        "sve": "+sve" in cpu.features.split(","),
    }
    return {name for name, yes in tests.items() if yes}


def _listed(triple: str) -> tuple[list[str], dict[str, str]]:
    """The processors that LLVM lists for a triple, and the features with what each is."""
    processors, _, features = _said(Cpu(triple, "help")).partition("Available features for this target:")
    lines = [re.findall(r"^\s+(\S+)\s+- (.*)$", part, re.M) for part in (processors, features)]
    return [name for name, _ in lines[0]], dict(lines[1])


def _said(cpu: Cpu) -> str:
    """What LLVM writes to standard error while it sets up for `cpu`; it has no other way to say it."""
    from weft_llvm.toolchain import target_machine

    with scratch_file() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            target_machine(cpu)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        return tail(log, 1 << 20)


def _refuse_unknown(cpu: Cpu, processors: list[str], features: dict[str, str]) -> None:
    asked = [("processor", cpu.name, f"-mcpu={cpu.name}")] if cpu.name == "help" else []
    asked += [
        ("feature", f, f"-mattr={f}")
        for f in cpu.features.split(",")
        if f.lstrip("+-") in ("", "help") and cpu.features
    ]
    said = re.findall(r"'([^']*)' is not a recognized (processor|feature)", _said(cpu))
    asked += [(what, name, f"-mattr={name}" if what == "feature" else f"-mcpu={cpu.name}") for name, what in said]
    for what, name, where in asked:
        name = name.lstrip("+-")
        close = nearest(name, processors if what == "processor" else features)
        raise TargetError(
            f"'{name}' is no {what} of {cpu.triple.split('-')[0]}",
            where=where,
            hint=f"did you mean '{close}'?" if close else None,
        )


def extensions(cpu: Cpu, features: dict[str, str]) -> frozenset[str]:
    """Of LLVM's features of an architecture, with what each is, the extensions that code for `cpu` may contain and not
    every machine has."""
    from weft_llvm.target import architecture
    from weft_runtime.cpu_features import known_features

    arch = architecture(cpu.triple)
    if arch == "x86_64":
        asked = [
            f
            for f in features
            if f not in _X86_ALWAYS
            and f not in _X86_UNUSED
            and not _X86_TUNING.fullmatch(f)
            and not f.endswith("bit-mode")
        ]
    elif arch == "aarch64":
        asked = [
            f
            for f, text in features.items()
            if text.startswith("Enable ") and f not in _ARM_UNUSED and f not in _ARM_TUNING
        ]
    else:
        asked = [f for f in features if f in known_features(arch) and (arch != "i386" or f not in _X86_UNUSED)]
    found = frozenset(asked) & _inlined(cpu, asked)
    if arch.startswith("riscv") and "v" in found:  # LLVM ends the process on a length without vectors
        found |= _inlined(cpu, _RISCV_LENGTHS)
    return found


def _inlined(cpu: Cpu, asked: list[str]) -> frozenset[str]:
    """Those of `asked` whose addition to the processor adds nothing."""
    from weft_llvm.toolchain import optimized_ir

    lines = [f'target triple = "{cpu.triple}"']
    for k, name in enumerate(asked):
        # Other numbers in each, so that equal functions are not joined.
        lines.append(f"define internal i32 @callee{k}(i32 %x) #{k + 1} {{\n %y = add i32 %x, {k + 1}\n ret i32 %y\n}}")
        lines.append(f"define i32 @caller{k}(i32 %x) #0 {{\n %y = call i32 @callee{k}(i32 %x)\n ret i32 %y\n}}")
        more = ",".join(filter(None, [cpu.features, "+" + name]))
        lines.append(f'attributes #{k + 1} = {{ "target-cpu"="{cpu.name}" "target-features"="{more}" }}')
    lines.append(f'attributes #0 = {{ "target-cpu"="{cpu.name}" "target-features"="{cpu.features}" }}')
    text = optimized_ir("\n".join(lines) + "\n", Cpu(cpu.triple, cpu.name, cpu.features, 1))
    left = {int(k) for k in re.findall(r"call [^\n]*@callee(\d+)\(", text)}
    return frozenset(name for k, name in enumerate(asked) if k not in left)


def examine(cpu: Cpu, by_extensions: bool, probes: list[str]) -> dict[str, Any]:
    """What LLVM knows of a processor, as `Description` has it; `probes` are compiled. LLVM may end the process."""
    from weft_llvm.toolchain import compile_object, data_layout, object_format, target_machine

    try:
        target_machine(Cpu(cpu.triple, ""))
    except CodegenError as error:
        known = ("x86_64", "aarch64", "armv7", "i686", "riscv32", "riscv64", "s390x", "wasm32")
        close = nearest(cpu.triple.split("-")[0], known)
        raise TargetError(
            f"'{cpu.triple}' is no machine that LLVM makes code for",
            where=f"-mtriple={cpu.triple}",
            why=error.why,
            hint=f"did you mean '{close}'?" if close else "code is made for " + ", ".join(known),
        ) from None
    processors, features = _listed(cpu.triple)
    _refuse_unknown(cpu, processors, features)
    needs = sorted(extensions(cpu, features))
    if by_extensions:
        cpu = Cpu(
            cpu.triple, "generic", ",".join(filter(None, [*("+" + name for name in needs), cpu.features])), cpu.opt
        )
    image = compile_object("define i64 @f(i64 %x) {\n ret i64 %x\n}\n", cpu)
    emitted = _emitted(cpu, probes)
    return {
        "layout": data_layout(cpu),
        "has": sorted(emitted - {_FLOATS}),
        "floats": _FLOATS in emitted,
        "needs": needs,
        "objects": {b"\x7fELF": "elf", b"\0asm": "wasm"}.get(image[:4], object_format(cpu.triple)),
        "name": cpu.name,
        "features": cpu.features,
    }


def main() -> None:
    end_with_parent()
    # Whatever prints to standard output must not get into the answer.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    cpu = Cpu(**request["cpu"])
    try:
        answer = examine(cpu, request["by_extensions"], request["probes"])
    except TargetError as error:
        answer = {"refused": {"what": error.what, "where": error.where, "why": error.why, "hint": error.hint}}
    except CodegenError as error:
        what = f"LLVM cannot compile for '{cpu.triple}' with -mcpu={cpu.name}"
        answer = {"refused": {"what": what, "where": None, "why": error.why or error.where, "hint": None}}
    sink.write(json.dumps(answer).encode())
    sink.flush()
    os._exit(0)  # nothing here needs an orderly end, and LLVM's takes time


if __name__ == "__main__":
    main()
