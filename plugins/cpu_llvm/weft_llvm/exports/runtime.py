"""The C runtime in LLVM's bitcode, compiled for any triple: what an export has beside its model.

`libweft/src/export.c` is one translation unit of integers and pointers, so that one module serves all machines whose
pointers have as many bytes. `python -m libweft.build bitcode` writes the modules, and a test holds them against
the sources. What differs between machines is in `surroundings`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from weft_llvm.pool import emit_pool
from weft_llvm.target import architecture
from weft_llvm.toolchain import Cpu
from weft_runtime.abi import IMPORTS

FUNCTIONS = (
    "weft_api_version", "weft_open", "weft_open_memory", "weft_close", "weft_describe", "weft_input", "weft_output",
    "weft_run", "weft_release",
)  # fmt: skip
"""Those of weft.h."""
SYSTEM = (*IMPORTS, "getenv", "getauxval", "_aligned_malloc", "_aligned_free")
"""Functions of the C library in the order of `weft_system` (surroundings.h)."""
WINDOWS = frozenset({"memcpy", "getenv", "_aligned_malloc", "_aligned_free"})
"""Those that Windows has."""
POSIX = frozenset(SYSTEM) - {"_aligned_malloc", "_aligned_free"}
LINUX = POSIX - {"__ulock_wait", "__ulock_wake"}
DARWIN = POSIX - {"sched_getcpu", "sched_getaffinity", "sched_setaffinity", "getauxval"}
_POOLS = ("x86_64", "aarch64")


def pointer(arch: str) -> int:
    """Bytes of a pointer of an architecture."""
    return 8 if arch in ("x86_64", "aarch64", "riscv64") else 4


@cache
def runtime_ir(bytes_of_pointer: int) -> str:
    """The runtime as LLVM IR without a triple and without a processor."""
    import llvmlite.binding as llvm

    content = resources.files("weft_llvm.exports").joinpath(f"runtime{8 * bytes_of_pointer}.bc").read_bytes()
    text = str(llvm.parse_bitcode(content))
    text = re.sub(r'^target (datalayout|triple) = ".*"\n', "", text, flags=re.M)
    text = re.sub(r' "(target-cpu|target-features|tune-cpu|frame-pointer)"="[^"]*"', "", text)
    return re.sub(r"^!llvm\.(module\.flags|ident) = .*\n", "", text, flags=re.M)


def surroundings(triple: str, machine: str, *, pool: bool) -> dict[str, str]:
    """LLVM IR by name of what the runtime takes from where it is, for a machine.

    Args:
        machine: what manifests call it.
        pool: with the worker pool, where the architecture has one.
    """
    arch = architecture(triple)
    size = f"i{8 * pointer(arch)}"
    threads = pool and arch in _POOLS
    text = f"""@weft_machine = hidden constant [{len(machine) + 1} x i8] c"{machine}\\00"
define hidden ptr @weft_pool() nounwind {{
  ret ptr {"@parallel_for" if threads else "null"}
}}
{"declare hidden i32 @parallel_for(ptr, ptr, ptr, i64)" if threads else ""}
{_x86(arch, triple) if arch in _XGETBV else _OTHER}
{_MEMORY.replace("SIZE", size)}
"""
    return {"surroundings": text, **({"pool": emit_pool(arch)} if threads else {})}


# LLVM has no assembler here, so these are words of code. x86-64: leaf, part, out are edi, esi, rdx, or of Windows ecx,
# edx, r8; i386: on the stack.
_CPUID = {
    "x86_64": "53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3",
    "windows": "53 89c8 89d1 0fa2 418900 41895804 41894808 4189500c 5b c3",
    "i386": "53 57 8b44240c 8b4c2410 8b7c2414 0fa2 8907 895f04 894f08 89570c 5f 5b c3",
}
_XGETBV = {"x86_64": "31c9 0f01d0 48c1e220 4809d0 c3", "i386": "31c9 0f01d0 c3"}


def _words(name: str, code: str, section: str) -> str:
    content = bytes.fromhex(code)
    text = "".join(f"\\{b:02x}" for b in content)
    return f'@{name} = internal constant [{len(content)} x i8] c"{text}", section "{section}", align 16'


def _x86(arch: str, triple: str) -> str:
    cpuid = _CPUID["windows" if "windows" in triple else arch]
    section = "__TEXT,__text,regular,pure_instructions" if re.search("darwin|macos|apple", triple) else ".text"
    return f"""{_words("cpuid.words", cpuid, section)}
{_words("xgetbv.words", _XGETBV[arch], section)}
define hidden void @weft_cpuid(i32 %leaf, i32 %part, ptr %out) nounwind {{
  call void @cpuid.words(i32 %leaf, i32 %part, ptr %out)
  ret void
}}
define hidden i64 @weft_xgetbv() nounwind {{
  %found = call i64 @xgetbv.words()
  ret i64 %found
}}
"""


_OTHER = """
define hidden void @weft_cpuid(i32 %leaf, i32 %part, ptr %out) nounwind {
  store [4 x i32] zeroinitializer, ptr %out, align 4
  ret void
}
define hidden i64 @weft_xgetbv() nounwind {
  ret i64 0
}
"""
# Compilers call these without being asked. "no-builtins": or they would be made of calls of themselves.
_MEMORY = """
define hidden ptr @memcpy(ptr %to, ptr %from, SIZE %bytes) nounwind "no-builtins" {
entry:
  br label %head
head:
  %k = phi SIZE [ 0, %entry ], [ %next, %body ]
  %more = icmp ult SIZE %k, %bytes
  br i1 %more, label %body, label %leave
body:
  %x.at = getelementptr i8, ptr %from, SIZE %k
  %y.at = getelementptr i8, ptr %to, SIZE %k
  %x = load volatile i8, ptr %x.at
  store volatile i8 %x, ptr %y.at
  %next = add SIZE %k, 1
  br label %head
leave:
  ret ptr %to
}
define hidden ptr @memset(ptr %to, i32 %byte, SIZE %bytes) nounwind "no-builtins" {
entry:
  %x = trunc i32 %byte to i8
  br label %head
head:
  %k = phi SIZE [ 0, %entry ], [ %next, %body ]
  %more = icmp ult SIZE %k, %bytes
  br i1 %more, label %body, label %leave
body:
  %y.at = getelementptr i8, ptr %to, SIZE %k
  store volatile i8 %x, ptr %y.at
  %next = add SIZE %k, 1
  br label %head
leave:
  ret ptr %to
}
"""


def compiler_for(triple: str) -> Cpu:
    """Every processor of an architecture: the runtime itself asks before a model's code runs."""
    from weft_llvm.target import DEFAULTS, RESERVED

    arch = architecture(triple)
    features = ",".join(filter(None, [*DEFAULTS.get(arch, ()), RESERVED.get(arch, "")]))
    return Cpu(triple, {"x86_64": "x86-64"}.get(arch, "generic"), features, 2)
