"""A small static linker: relocatable ELF objects (x86-64, aarch64) to one flat position-independent image.

The image holds code and read-only data, is mapped read and execute at any page-aligned address, and needs no relocation
when loaded: so only PC-relative relocations are possible, and every symbol must be defined by one of the objects.
Accesses through a global offset table are rewritten to direct ones, since there is no such table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import CodegenError

PAGE = 4096

_EM_X86_64, _EM_AARCH64 = 62, 183
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 1, 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_STB_LOCAL, _STB_WEAK = 0, 2
_SKIPPED = (".eh_frame", ".note", ".llvm", ".comment", ".ARM.")


@dataclass(frozen=True)
class Image:
    """A linked image: `entries` maps every global function and object to its offset; the base must be aligned to
    `alignment`."""

    bytes: bytes
    entries: dict[str, int]
    alignment: int = PAGE


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    address: int = -1  # in the image; -1: not part of it


@dataclass(frozen=True)
class _Symbol:
    name: str
    binding: int
    section: int
    value: int


@dataclass
class _Object:
    name: str
    data: bytes
    machine: int
    sections: list[_Section]
    symbols: list[_Symbol]


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _parse(name: str, data: bytes) -> _Object:
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise CodegenError(
                f"object '{name}' is not 64-bit little-endian ELF",
                hint="emit objects with an ELF target triple on every system",
            )
        kind, machine = struct.unpack_from("<HH", data, 16)
        if kind != 1 or machine not in (_EM_X86_64, _EM_AARCH64):
            raise CodegenError(
                f"object '{name}' cannot be linked",
                why=f"ELF type {kind}, machine {machine}",
                hint="relocatable x86-64 or aarch64 objects only",
            )
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if count == 0:
            (count,) = struct.unpack_from(
                "<Q", data, start + 32
            )  # more than 65279 sections: the count moves to section 0
        if names == 0xFFFF:
            (names,) = struct.unpack_from("<I", data, start + 40)
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
        table = raw[names][4]
        sections = [_Section(_text(data, table + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(1, r[8])) for r in raw]
        symbols: list[_Symbol] = []
        for section in sections:
            if section.kind == _SHT_SYMTAB:
                strings = sections[section.link].offset
                extended = next((s for s in sections if s.kind == 18 and s.link == sections.index(section)), None)
                for i in range(section.size // 24):
                    name_at, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, section.offset + i * 24)
                    if index == 0xFFFF and extended is not None:
                        (index,) = struct.unpack_from("<I", data, extended.offset + i * 4)
                    symbols.append(_Symbol(_text(data, strings + name_at), info >> 4, index, value))
        return _Object(name, data, machine, sections, symbols)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CodegenError(f"object '{name}' is not a well-formed ELF file", why=str(error)) from error


def _wanted(section: _Section, name: str) -> bool:
    if not section.flags & _SHF_ALLOC or section.size == 0 or section.name.startswith(_SKIPPED):
        return False
    if section.flags & (_SHF_WRITE | _SHF_TLS) or section.kind == _SHT_NOBITS:
        raise CodegenError(
            f"object '{name}' has writable or relocated data in section {section.name}",
            why="an image is mapped read-only and at any address",
            hint="make the global a constant without pointers; keep state in the arena",
        )
    return section.kind == _SHT_PROGBITS


def link(objects: Mapping[str, bytes], places: Mapping[str, int] | None = None) -> Image:
    """One image of the objects (name → ELF bytes), in the order given.

    Args:
        places: symbols that lie outside of the image, by their distance in bytes from its beginning.

    Raises:
        CodegenError: for undefined or doubly defined symbols, absolute relocations, writable data, or files that are no
            such objects.
    """
    parsed = [_parse(name, data) for name, data in objects.items()]
    if len({o.machine for o in parsed}) > 1:
        raise CodegenError("objects of different machines cannot be linked", where=", ".join(o.name for o in parsed))
    image = bytearray()
    for executable in (True, False):  # code together, then constants
        for obj in parsed:
            for section in obj.sections:
                if bool(section.flags & _SHF_EXEC) == executable and _wanted(section, obj.name):
                    image.extend(bytes(-len(image) % section.align))
                    section.address = len(image)
                    image += obj.data[section.offset : section.offset + section.size]
        image.extend(bytes(-len(image) % 64))

    defined: dict[str, tuple[int, bool, str]] = {}  # name → offset, weak, object
    for obj in parsed:
        for symbol in obj.symbols:
            if symbol.binding == _STB_LOCAL or not symbol.name or symbol.section in (_SHN_UNDEF, _SHN_ABS):
                continue
            if symbol.section == _SHN_COMMON or obj.sections[symbol.section].address < 0:
                continue  # refused where something refers to it
            weak = symbol.binding == _STB_WEAK
            known = defined.get(symbol.name)
            if known is not None and not known[1] and not weak:
                raise CodegenError(
                    f"symbol '{symbol.name}' is defined twice",
                    where=f"{known[2]}\n{obj.name}",
                    hint="give kernels names of their own",
                )
            if known is None or (known[1] and not weak):
                defined[symbol.name] = (obj.sections[symbol.section].address + symbol.value, weak, obj.name)

    own = {name: offset for name, (offset, _, _) in defined.items()}
    for name, offset in (places or {}).items():
        defined[name] = (offset, False, "")
    undefined: dict[str, list[str]] = {}
    for obj in parsed:
        for section in obj.sections:
            if section.kind == _SHT_REL and obj.sections[section.info].address >= 0:
                raise CodegenError(f"object '{obj.name}' has relocations without addends", where=section.name)
            if section.kind == _SHT_RELA and obj.sections[section.info].address >= 0:
                _relocate(obj, section, image, defined, undefined)
    if undefined:
        raise CodegenError(
            "compiled code refers to symbols that nothing defines: " + ", ".join(sorted(undefined)),
            where="\n".join(
                f"{name}: wanted by {', '.join(sorted(set(users)))}" for name, users in sorted(undefined.items())
            ),
            hint="a saved model links to no library: expand the function to a formula, or add the kernel's object",
        )
    return Image(bytes(image), own, PAGE)


def _relocate(
    obj: _Object,
    table: _Section,
    image: bytearray,
    defined: dict[str, tuple[int, bool, str]],
    undefined: dict[str, list[str]],
) -> None:
    target = obj.sections[table.info]
    apply = _apply_x86 if obj.machine == _EM_X86_64 else _apply_aarch64
    for at in range(table.offset, table.offset + table.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", obj.data, at)
        kind = info & 0xFFFFFFFF
        if kind == 0:
            continue
        symbol = obj.symbols[info >> 32]
        shown = symbol.name or (obj.sections[symbol.section].name if 0 < symbol.section < len(obj.sections) else "?")
        where = f"{obj.name}: {target.name}+{offset:#x} → {shown}"
        if symbol.binding != _STB_LOCAL and symbol.name in defined:
            value = defined[symbol.name][0]
        elif symbol.section == _SHN_UNDEF:
            undefined.setdefault(symbol.name, []).append(obj.name)
            continue
        elif (symbol.section >= 0xFF00 and symbol.section != 0xFFFF) or obj.sections[symbol.section].address < 0:
            raise CodegenError(
                f"symbol '{shown}' is not in the image",
                where=where,
                why="it is absolute, common or in a section that is not loaded",
            )
        else:
            value = obj.sections[symbol.section].address + symbol.value
        apply(image, kind, target.address + offset, value, addend, where)


def _refuse(machine: str, kind: int, absolute: bool, where: str) -> CodegenError:
    if absolute:
        return CodegenError(
            f"compiled code holds an absolute address (relocation {machine} {kind})",
            where=where,
            why="an image may be mapped anywhere",
            hint="compile position-independent, without tables of pointers",
        )
    return CodegenError(f"relocation {machine} {kind} is not supported", where=where)


def _fit(value: int, bits: int, where: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CodegenError(
            f"a relocation of {bits} bits overflows",
            where=where,
            why=f"distance {value}",
            hint="the image is too large: split the model",
        )
    return value & ((1 << bits) - 1)


_X86_ABSOLUTE = {1, 10, 11, 12, 13, 14, 15}


def _apply_x86(image: bytearray, kind: int, place: int, value: int, addend: int, where: str) -> None:
    distance = value + addend - place
    if kind in (2, 4):  # PC32, PLT32
        struct.pack_into("<I", image, place, _fit(distance, 32, where))
    elif kind == 24:  # PC64
        struct.pack_into("<q", image, place, distance)
    elif kind in (9, 41, 42):  # GOTPCREL and its relaxable forms: load of an address, or call and jump through one
        opcode, modrm = image[place - 2], image[place - 1]
        if opcode == 0x8B:
            image[place - 2] = 0x8D  # mov symbol@GOTPCREL(%rip), r → lea symbol(%rip), r
        elif opcode == 0xFF and modrm == 0x15:
            image[place - 2 : place] = b"\x67\xe8"  # call *symbol@GOTPCREL(%rip) → addr32 call symbol
        elif opcode == 0xFF and modrm == 0x25:
            image[place - 2] = 0x90  # jmp *symbol@GOTPCREL(%rip) → nop; jmp symbol
            image[place - 1] = 0xE9
        else:
            raise CodegenError(
                "an access through a global offset table cannot be rewritten",
                where=where,
                hint="declare the symbol hidden or dso_local",
            )
        struct.pack_into("<I", image, place, _fit(distance, 32, where))
    else:
        raise _refuse("R_X86_64", kind, kind in _X86_ABSOLUTE, where)


_A64_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD and LDST8/16/32/64/128: scale of the immediate
_A64_BRANCH = {
    279: (14, 5),
    280: (19, 5),
    273: (19, 5),
    282: (26, 0),
    283: (26, 0),
}  # TSTBR14, CONDBR19, LD_PREL_LO19, JUMP26, CALL26: bits, shift
_A64_ABSOLUTE = {257, 258, 259, 263, 264, 265, 266, 267, 268, 269, 270, 271, 272}


def _apply_aarch64(image: bytearray, kind: int, place: int, value: int, addend: int, where: str) -> None:
    total = value + addend
    distance = total - place
    if kind == 260:  # PREL64
        struct.pack_into("<q", image, place, distance)
        return
    if kind in (261, 314):  # PREL32, PLT32
        struct.pack_into("<I", image, place, _fit(distance, 32, where))
        return
    if kind == 262:  # PREL16
        struct.pack_into("<H", image, place, _fit(distance, 16, where))
        return
    (word,) = struct.unpack_from("<I", image, place)
    if kind in (
        275,
        276,
        311,
        274,
    ):  # ADR_PREL_PG_HI21(_NC), ADR_GOT_PAGE (rewritten to the symbol's own page), ADR_PREL_LO21
        immediate = _fit(distance if kind == 274 else (total >> 12) - (place >> 12), 21, where)
        word = word & ~0x60FFFFE0 | (immediate & 3) << 29 | (immediate >> 2) << 5
    elif kind in _A64_LOW12:
        low, scale = total & 0xFFF, _A64_LOW12[kind]
        if low & ((1 << scale) - 1):
            raise CodegenError(
                "a load of a misaligned constant", where=where, why=f"offset {low:#x} of a {1 << scale}-byte access"
            )
        word = word & ~0x003FFC00 | (low >> scale) << 10
    elif kind == 312:  # LD64_GOT_LO12_NC: ldr xd, [xn, :got_lo12:s] → add xd, xn, :lo12:s
        word = 0x91000000 | (total & 0xFFF) << 10 | word & 0x3FF
    elif kind in _A64_BRANCH:
        bits, shift = _A64_BRANCH[kind]
        if distance & 3:
            raise CodegenError("a branch to a misaligned address", where=where)
        mask = ((1 << bits) - 1) << shift
        word = word & ~mask | _fit(distance >> 2, bits, where) << shift
    else:
        raise _refuse("R_AARCH64", kind, kind in _A64_ABSOLUTE, where)
    struct.pack_into("<I", image, place, word & 0xFFFFFFFF)
