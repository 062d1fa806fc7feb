"""A native segment of C: kernels, the segment's own text and what C takes from its library, as one image that can be
mapped anywhere."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources

from weft.codegen.base import KernelCode
from weft.codegen.segment import SegmentSpec
from weft.errors import CodegenError
from weft_c.segment import emit_segment
from weft_c.toolchain import Compiler
from weft_runtime.cpu_features import known_features
from weft_runtime.executable import NativeCode
from weft_runtime.header import declarations

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_LOAD, _DYNAMIC_SYMBOLS, _RELOCATIONS = 1, 11, (4, 9)


def link_segment(spec: SegmentSpec, kernels: Mapping[str, KernelCode], compiler: Compiler) -> NativeCode:
    """The section "main", with the entry "run"."""
    objects = {f"kernel{k}.o": code.object for k, code in enumerate(kernels.values())}
    image, entries, machine = flatten(
        compiler.shared(emit_segment(spec), {**objects, "library.o": _library(compiler)}, spec.name)
    )
    return NativeCode(image, {"run": entries["run"]}, "weft-c", _version(), _features(compiler, machine), machine)


@cache
def loops_code(compiler: Compiler) -> NativeCode:
    """What runs the iterations of loops: the entry "repeat"."""
    text = f"#include <stdint.h>\n{declarations()}\n" + resources.files("weft_c").joinpath("repeat.c").read_text()
    image, entries, machine = flatten(compiler.shared(text, {"library.o": _library(compiler)}, "loops"))
    return NativeCode(image, {"repeat": entries["repeat"]}, "weft-c", _version(), _features(compiler, machine), machine)


@cache
def _library(compiler: Compiler) -> bytes:
    """What compilers call without being asked (memcpy), and functions of <math.h> that a processor may lack."""
    text = resources.files("weft_c").joinpath("library.c").read_text()
    return compiler.object(text, "library.c", "-ffreestanding", "-fno-builtin")


def flatten(library: bytes) -> tuple[bytes, dict[str, int], str]:
    """The memory of a shared library that needs no relocation, where its symbols are, and its architecture.

    Raises:
        CodegenError: it is no ELF file of 64 bits, or needs relocations.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        why = f"they begin with {library[:4]!r}"
        raise CodegenError(
            "the C compiler makes no ELF files of 64 bits",
            why=why,
            hint="the target 'c' runs where shared libraries are that",
        )
    (machine,) = struct.unpack_from("<H", library, 18)
    headers, sections = struct.unpack_from("<QQ", library, 32)
    header_size, header_count, section_size, section_count = struct.unpack_from("<HHHH", library, 54)
    image = bytearray()
    for k in range(header_count):
        kind, _, offset, address, _, size, room, _ = struct.unpack_from("<IIQQQQQQ", library, headers + k * header_size)
        if kind == _LOAD:
            image.extend(bytes(max(0, address + room - len(image))))
            image[address : address + size] = library[offset : offset + size]
    table = [struct.unpack_from("<IIQQQQIIQQ", library, sections + k * section_size) for k in range(section_count)]
    symbols: dict[str, int] = {}
    for _, kind, _, _, offset, size, link, _, _, entry in table:
        if kind in _RELOCATIONS and size:
            raise CodegenError(
                "the linked code is not position-independent", why=f"{size // max(1, entry)} relocations are left"
            )
        if kind == _DYNAMIC_SYMBOLS:
            for at in range(offset, offset + size, entry):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", library, at)
                start = table[link][4] + name
                symbols[library[start : library.index(b"\0", start)].decode()] = value
    return bytes(image), symbols, _MACHINES.get(machine, f"ELF machine {machine}")


@cache
def _features(compiler: Compiler, machine: str) -> tuple[str, ...]:
    """Extensions that the code may use, from the macros by which the compiler tells them."""
    names = sorted(known_features(machine))
    text = "\n".join(
        f"#ifdef __{n.upper().replace('.', '_').replace('-', '_')}__\nconst char weft_has_{k} = 1;\n#endif"
        for k, n in enumerate(names)
    )
    found = compiler.object(text, "features.c")
    return tuple(n for k, n in enumerate(names) if f"weft_has_{k}\0".encode() in found)


@cache
def _version() -> str:
    try:
        return metadata.version("weft-c")
    except metadata.PackageNotFoundError:
        return "?"
