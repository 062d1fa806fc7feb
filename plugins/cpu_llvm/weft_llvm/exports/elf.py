"""`weft export -f elf`: a shared library of ELF (System V ABI, chapters 4 and 5, and its processor supplements).

The memory of the library, from its beginning:

    head       read         headers, symbols, hash table, relocations
    tables     relocated    functions of the C library, where the model lies, the dynamic section; then read-only
    own        write        what the runtime writes
    code       execute      the runtime, then the images of the model, which need no relocation
    data       read         the plan, the weights

The runtime's code finds tables and own memory at fixed distances before itself. No segment can be written and executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import InputError, TargetError
from weft_llvm.exports.inside import Inside, check_prefix, inside, runtime_image, table
from weft_llvm.exports.runtime import DARWIN, FUNCTIONS, LINUX, SYSTEM, pointer

if TYPE_CHECKING:
    from weft_runtime import Executable

_LOAD, _DYNAMIC, _STACK, _RELRO = 1, 2, 0x6474E551, 0x6474E552
_R, _RW, _RX = 4, 6, 5
_FUNCTION, _GLOBAL, _WEAK = 2, 1, 2


@dataclass(frozen=True)
class _Machine:
    number: int
    relocation: int  # a word that becomes a symbol's address
    addends: bool  # relocations say them (RELA)
    page: int  # the largest
    flags: int = 0


_MACHINES = {
    "x86_64": _Machine(62, 6, True, 4096),
    "aarch64": _Machine(183, 1025, True, 65536),
    "riscv64": _Machine(243, 2, True, 4096, 5),
    "riscv32": _Machine(243, 1, True, 4096, 5),
    "arm": _Machine(40, 21, False, 65536, 0x05000400),
}


class _Writer:
    """Bytes in the width of a machine."""

    def __init__(self, arch: str) -> None:
        self.wide = pointer(arch) == 8

    def words(self, *values: int) -> bytes:
        return struct.pack(f"<{len(values)}{'Q' if self.wide else 'I'}", *values)

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack("<" + form, *values)

    def segment(self, kind: int, flags: int, offset: int, address: int, size: int, room: int, align: int) -> bytes:
        if self.wide:
            return self.pack("IIQQQQQQ", kind, flags, offset, address, address, size, room, align)
        return self.pack("IIIIIIII", kind, offset, address, address, size, room, flags, align)

    def symbol(self, name: int, info: int, section: int, value: int) -> bytes:
        if self.wide:
            return self.pack("IBBHQQ", name, info, 0, section, value, 0)
        return self.pack("IIIBBH", name, value, 0, info, 0, section)

    def section(self, *fields: int) -> bytes:
        """Name, type, flags, address, offset, size, link, info, alignment, size of an entry."""
        return self.pack("IIQQQQIIQQ" if self.wide else "IIIIIIIIII", *fields)


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes | memoryview]]:
    """The library of a model.

    Args:
        name: of the file, without its suffix: the library's own is this and ".so".
        options: "prefix" of the functions' names.

    Raises:
        TargetError: the model was compiled for a machine whose libraries are no ELF.
        UnsupportedError: a step of its plan runs where Python is.
    """
    of = inside(executable)
    machine = _MACHINES.get(of.arch)
    if machine is None or any(word in of.triple for word in ("windows", "apple", "darwin", "macos", "ios")):
        raise TargetError(
            f"libraries for '{of.triple}' are no ELF files",
            where=executable.manifest.target,
            hint="-f pe writes libraries of Windows, -f macho-obj objects of Apple's systems",
        )
    prefix = check_prefix(options.get("prefix", ""))
    content = _library(of, machine, name + ".so", prefix)
    return {".so": iter([content])}


def _hash(name: bytes) -> int:
    """The hash function of System V."""
    h = 0
    for c in name:
        h = (h << 4) + c
        g = h & 0xF0000000
        h = (h ^ g >> 24) & ~g & 0xFFFFFFFF
    return h


def _library(of: Inside, machine: _Machine, soname: str, prefix: str) -> bytes:
    out = _Writer(of.arch)
    page, word = machine.page, 8 if out.wide else 4
    # Where parts begin in the file, and in memory: the same but for multiples of a page.
    tables_at, code_at = 0x1000, 0x2000
    tables = page + tables_at
    own = -(-(tables + 0x1000) // page) * page
    code = own + page + code_at % page
    sys_at, model_at, dynamic_at = tables, tables + 0x200, tables + 0x800
    distances = {"weft_sys": sys_at - code, "weft_model": model_at - code, "weft_own": own - code}
    runtime = runtime_image(of, distances, pool=True)
    text = bytearray(runtime.bytes)
    places: dict[str, int] = {}
    for name, image in of.code.items():
        text.extend(bytes(-len(text) % 4096))
        places["code/" + name] = code + len(text)
        text += image
    data_at = -(-(code_at + len(text)) // 4096) * 4096
    data = -(-(code + len(text)) // page) * page + data_at % page
    weights_at = -(-len(of.plan) // 64) * 64
    places["plan"], places["weights"] = data, data + weights_at
    content = of.plan.ljust(weights_at, b"\0") + of.weights

    # Symbols: those that the library takes, weak as a system may lack one, then those that it gives.
    taken = [name for name in SYSTEM if name in (LINUX if "apple" not in of.triple else DARWIN)]
    given = {prefix + name: code + runtime.entries[name] for name in FUNCTIONS}
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        at = len(strings)
        strings.extend(text.encode() + b"\0")
        return at

    must = {"posix_memalign", "free", "memcpy"}
    symbols = out.symbol(0, 0, 0, 0)
    for name in taken:
        symbols += out.symbol(string(name), (_GLOBAL if name in must else _WEAK) << 4 | _FUNCTION, 0, 0)
    text_section = 8
    for name, address in given.items():
        symbols += out.symbol(string(name), _GLOBAL << 4 | _FUNCTION, text_section, address)
    names = [b"", *(n.encode() for n in (*taken, *given))]
    needed, own_name = string(_library_of_c(of.triple)), string(soname)
    chains, bucket = [0] * len(names), [0] * 8
    for k in range(1, len(names)):
        b = _hash(names[k]) % len(bucket)
        chains[k], bucket[b] = bucket[b], k
    hashed = out.pack(f"{2 + len(bucket) + len(chains)}I", len(bucket), len(chains), *bucket, *chains)
    relocations = b""
    for k, name in enumerate(taken, 1):
        at = sys_at + word * SYSTEM.index(name)
        info = k << 32 | machine.relocation if out.wide else k << 8 | machine.relocation
        relocations += out.words(at, info, *([0] if machine.addends else []))

    header_size, segment_size = (64, 56) if out.wide else (52, 32)
    segments = 7
    symbols_at = header_size + segments * segment_size
    strings_at = symbols_at + len(symbols)
    hash_at = -(-(strings_at + len(strings)) // 8) * 8
    relocations_at = -(-(hash_at + len(hashed)) // 8) * 8
    head_end = relocations_at + len(relocations)
    if head_end > tables_at:
        raise InputError(f"'{soname}' and the prefix '{prefix}' are too long for the head of a library")

    kind = "RELA" if machine.addends else "REL"
    tags = {"RELA": (7, 8, 9), "REL": (17, 18, 19)}[kind]
    each = word * (3 if machine.addends else 2)
    dynamic = out.words(
        1, needed, 14, own_name, 4, hash_at, 5, strings_at, 6, symbols_at, 10, len(strings), 11, 24 if out.wide else 16,
        tags[0], relocations_at, tags[1], len(relocations), tags[2], each,
        30, 8, 0x6FFFFFFB, 1 | 8,  # bound when it is loaded; never unloaded, since workers may wait in its code
        0, 0,
    )  # fmt: skip
    model = table(of, model_at, places)
    tables_content = bytes(0x200) + model.ljust(0x600, b"\0") + dynamic

    program = b"".join(
        [
            out.segment(_LOAD, _R, 0, 0, head_end, head_end, page),
            out.segment(_LOAD, _RW, tables_at, tables, len(tables_content), own + 64 - tables, page),
            out.segment(_LOAD, _RX, code_at, code, len(text), len(text), page),
            out.segment(_LOAD, _R, data_at, data, len(content), len(content), page),
            out.segment(_DYNAMIC, _RW, tables_at + 0x800, dynamic_at, len(dynamic), len(dynamic), word),
            out.segment(_RELRO, _R, tables_at, tables, len(tables_content), own - tables, 1),
            out.segment(_STACK, _RW, 0, 0, 0, 0, 16),
        ]
    )
    section_names = [
        "", ".dynsym", ".dynstr", ".hash", f".{kind.lower()}.dyn", ".data.rel.ro", ".dynamic", ".bss", ".text",
        ".rodata", ".shstrtab",
    ]  # fmt: skip
    shown = b""
    name_at = {}
    for section in section_names:
        name_at[section] = len(shown)
        shown += section.encode() + b"\0"
    names_at = data_at + len(content)
    table_at = -(-(names_at + len(shown)) // 8) * 8
    a, w, x = 2, 1, 4
    sections = [
        ("", 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (".dynsym", 11, a, symbols_at, symbols_at, len(symbols), 2, 1, word, 24 if out.wide else 16),
        (".dynstr", 3, a, strings_at, strings_at, len(strings), 0, 0, 1, 0),
        (".hash", 5, a, hash_at, hash_at, len(hashed), 1, 0, 8, 4),
        (
            section_names[4], 4 if machine.addends else 9, a, relocations_at, relocations_at, len(relocations), 1, 0,
            word, each,
        ),
        (".data.rel.ro", 1, a | w, tables, tables_at, 0x800, 0, 0, 16, 0),
        (".dynamic", 6, a | w, dynamic_at, tables_at + 0x800, len(dynamic), 2, 0, word, 2 * word),
        (".bss", 8, a | w, own, tables_at + len(tables_content), 64, 0, 0, 64, 0),
        (".text", 1, a | x, code, code_at, len(text), 0, 0, 4096, 0),
        (".rodata", 1, a, data, data_at, len(content), 0, 0, 64, 0),
        (".shstrtab", 3, 0, 0, names_at, len(shown), 0, 0, 1, 0),
    ]  # fmt: skip
    headers = b"".join(out.section(name_at[s[0]], *s[1:]) for s in sections)
    ident = b"\x7fELF" + bytes([2 if out.wide else 1, 1, 1, 0]) + bytes(8)
    elf = ident + out.pack("HHI", 3, machine.number, 1) + out.words(0, header_size, table_at)
    elf += out.pack(
        "IHHHHHH", machine.flags, header_size, segment_size, segments, 64 if out.wide else 40, len(sections),
        len(sections) - 1,
    )  # fmt: skip
    file = bytearray(elf + program + symbols)
    for at, part in (
        (strings_at, bytes(strings)), (hash_at, hashed), (relocations_at, relocations), (tables_at, tables_content),
        (code_at, bytes(text)), (data_at, content), (names_at, shown), (table_at, headers),
    ):  # fmt: skip
        file.extend(bytes(at - len(file)))
        file += part
    return bytes(file)


def _library_of_c(triple: str) -> str:
    return "libc.so" if "android" in triple else "libc.so.6"
