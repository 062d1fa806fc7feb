"""`weft export -f obj` and `-f macho-obj`: an object that the system's own linker takes, written by LLVM.

One module of LLVM IR: the runtime, the surroundings, functions of the C library as a table, and the parts of the model
as constants. Images are in the section of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from weft.errors import TargetError
from weft_llvm.exports.inside import Inside, check_prefix, inside
from weft_llvm.exports.runtime import (
    DARWIN,
    FUNCTIONS,
    LINUX,
    SYSTEM,
    WINDOWS,
    compiler_for,
    pointer,
    runtime_ir,
    surroundings,
)
from weft_llvm.toolchain import compile_object

if TYPE_CHECKING:
    from weft_runtime import Executable


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes | memoryview]]:
    """The object of a model for Linux, Android or Windows; arguments and errors as those of `elf.files`."""
    of = inside(executable)
    if _apple(of.triple):
        raise TargetError(
            f"'{of.name}' was compiled for {of.triple}", where=executable.manifest.target, hint="use -f macho-obj"
        )
    return {".o": iter([_object(of, of.triple.removesuffix("-elf"), options)])}


def apple_files(
    executable: Executable, name: str, options: Mapping[str, str]
) -> dict[str, Iterator[bytes | memoryview]]:
    """The object of a model for macOS or iOS; arguments and errors as those of `elf.files`."""
    of = inside(executable)
    if not _apple(of.triple):
        raise TargetError(
            f"'{of.name}' was compiled for {of.triple}",
            where=executable.manifest.target,
            hint='compile it with -t "llvm -mtriple=aarch64-apple-darwin", or use -f obj',
        )
    system = options.get("system", "macos")
    arch = {"aarch64": "arm64"}.get(of.arch, of.arch)
    triple = {"macos": f"{arch}-apple-macosx11.0.0", "ios": f"{arch}-apple-ios14.0.0"}[system]
    return {".o": iter([_object(of, triple, options)])}


def _apple(triple: str) -> bool:
    return re.search("apple|darwin|macos|ios", triple) is not None


def _object(of: Inside, triple: str, options: Mapping[str, str]) -> bytes:
    prefix = check_prefix(options.get("prefix", ""))
    apple = _apple(triple)
    windows = "windows" in triple
    known = DARWIN if apple else WINDOWS if windows else LINUX
    code = "__TEXT,__text,regular,pure_instructions" if apple else ".text"
    ir = [runtime_ir(pointer(of.arch)), *surroundings(triple, of.machine, pool=not windows).values()]
    text = "\n".join(ir)
    # Declared by the runtime, defined here.
    text = re.sub(r"^@weft_(model|sys|own|machine) = external .*\n", "", text, flags=re.M)
    text = re.sub(r"^declare .*@(weft_pool|weft_cpuid|weft_xgetbv|parallel_for)\(.*\n", "", text, flags=re.M)
    # The pool's own names belong to the program that the object is linked into.
    text = re.sub(r"^define (?!internal)(.*@(?:parallel_for|start|ticks)\()", r"define hidden \1", text, flags=re.M)
    text = re.sub(r"@(parallel_for|start|ticks)\b", r"@weft_\1", text)
    # The C library that is linked has these.
    text = re.sub(r"^define hidden ptr @mem(cpy|set)\(.*?^}\n", "", text, flags=re.M | re.S)
    declared = [f"declare void @{n}()" for n in SYSTEM if n in known]
    size = pointer(of.arch)
    slots = ", ".join(f"ptr @{n}" if n in known else "ptr null" for n in SYSTEM)
    lines = [*declared, f"@weft_sys = hidden constant [{len(SYSTEM)} x ptr] [{slots}], align {size}"]
    lines.append("@weft_own = hidden global [2 x ptr] zeroinitializer, align 8")
    names = {}
    for k, (name, image) in enumerate(of.code.items()):
        names[name] = k
        lines.append(_bytes(f"weft.code.{k}", image, f'section "{code}", align 4096'))
    lines.append(_bytes("weft.plan", of.plan, "align 8"))
    lines.append(_bytes("weft.weights", of.weights or b"\0", "align 64"))
    words: list[str] = []  # of 64 bits

    def distance(name: str) -> None:
        word = f"i{8 * size}"
        words.append(
            f"{word} sub ({word} ptrtoint (ptr @{name} to {word}), {word} ptrtoint (ptr @weft_model to {word}))"
        )
        if size == 4:
            words.append("i32 0")  # the runtime adds it to a pointer, which has 32 bits

    distance("weft.plan")
    distance("weft.weights")
    words += [f"i64 {len(of.weights)}", f"i64 {len(of.code)}"]
    for name, k in names.items():
        distance(f"weft.code.{k}")
        words.append(f"i64 {len(of.code[name])}")
    types = ", ".join(w.split(" ")[0] for w in words)
    # LLVM writes a distance for Windows in 32 bits without a sign: what is counted from lies before all the rest.
    where = 'section ".text", ' if windows else ""
    lines.insert(0, f"@weft_model = hidden constant <{{ {types} }}> <{{ {', '.join(words)} }}>, {where}align 8")
    text += "\n".join(lines) + "\n"
    if prefix:
        text = re.sub(rf"@({'|'.join(FUNCTIONS)})\b", lambda m: f"@{prefix}{m[1]}", text)
        hidden = r"@(weft_(?:sys|own|model|machine|pool|cpuid|xgetbv|parallel_for|start|ticks))\b"
        text = re.sub(hidden, lambda m: f"@{prefix}{m[1]}", text)
    return compile_object(text, compiler_for(triple))


def _bytes(name: str, content: bytes, where: str) -> str:
    text = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02x}" for b in content)
    return f'@{name} = internal constant [{len(content)} x i8] c"{text}", {where}'
