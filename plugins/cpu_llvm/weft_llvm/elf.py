"""Relocatable ELF objects as they are read: of 32 and 64 bits, in both byte orders, with addends or without.

Everything read from an object is checked against its size; names and sizes that make no sense are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import CodegenError

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_SYMTAB_SHNDX = 1, 2, 4, 8, 9, 18
SHF_WRITE, SHF_ALLOC, SHF_EXEC, SHF_TLS = 1, 2, 4, 0x400
SHN_UNDEF, SHN_RESERVED, SHN_ABS, SHN_COMMON, SHN_EXTENDED = 0, 0xFF00, 0xFFF1, 0xFFF2, 0xFFFF
STB_LOCAL, STB_WEAK = 0, 2
_RELOCATABLE = 1
_LARGEST_ALIGNMENT = 1 << 16


@dataclass
class Section:
    """A section; `address` is where it lies in the image, -1 while it is no part of it."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    address: int = -1


@dataclass(frozen=True)
class Symbol:
    """A symbol. `section`: number of the section that it is in, or one of the SHN_ values."""

    name: str
    binding: int
    section: int
    value: int


@dataclass(frozen=True)
class Entry:
    """A relocation as a table has it. `addend`: None where it is part of what is relocated."""

    offset: int
    kind: int
    symbol: int
    addend: int | None


@dataclass
class Object:
    """An object. `wide`: of 64 bits; `order`: of its bytes, "<" or ">", as `struct` says it; `machine`: ELF's
    number."""

    name: str
    data: bytes
    machine: int
    wide: bool
    order: str
    sections: list[Section]
    symbols: list[Symbol]

    def entries(self, table: Section) -> Iterator[Entry]:
        """The relocations of a section of them."""
        addends = table.kind == SHT_RELA
        words = ("QQq" if addends else "QQ") if self.wide else ("IIi" if addends else "II")
        form = struct.Struct(self.order + words)
        for offset, info, *rest in form.iter_unpack(self.data[table.offset : table.offset + table.size]):
            kind, symbol = (info & 0xFFFFFFFF, info >> 32) if self.wide else (info & 0xFF, info >> 8)
            yield Entry(offset, kind, symbol, rest[0] if rest else None)


def parse(name: str, data: bytes) -> Object:
    """
    Raises:
        CodegenError: `data` is no relocatable ELF object, or a damaged one.
    """
    if len(data) < 20 or data[:4] != b"\x7fELF" or data[4] not in (1, 2) or data[5] not in (1, 2):
        raise CodegenError(
            f"object '{name}' is not ELF",
            why=f"it starts with {data[:6]!r}",
            hint="emit objects with an ELF target triple on every system",
        )
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    kind, machine = struct.unpack_from(order + "HH", data, 16)
    if kind != _RELOCATABLE:
        raise CodegenError(
            f"object '{name}' cannot be linked", why=f"its ELF type is {kind}", hint="relocatable objects only"
        )
    try:
        sections = _sections(data, wide, order)
        symbols = _symbols(data, sections, wide, order)
        found = Object(name, data, machine, wide, order, sections, symbols)
        for section in sections:
            if section.kind in (SHT_REL, SHT_RELA):
                _check_table(found, section)
        return found
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CodegenError(f"object '{name}' is not a well-formed ELF file", why=str(error)) from error


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _sections(data: bytes, wide: bool, order: str) -> list[Section]:
    (start,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 40 if wide else 32)
    size, count, names = struct.unpack_from(order + "HHH", data, 58 if wide else 46)
    form = struct.Struct(order + ("IIQQQQIIQQ" if wide else "10I"))
    first = form.unpack_from(data, start)
    count = count or first[5]  # more than 65279 sections: the count is in section 0
    names = first[6] if names == SHN_EXTENDED else names
    if size != form.size or start + count * size > len(data):
        raise ValueError(f"{count} sections of {size} bytes from byte {start} on do not fit")
    raw = [form.unpack_from(data, start + i * size) for i in range(count)]
    table = raw[names][4]
    found = [Section(_text(data, table + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(1, r[8])) for r in raw]
    if sum(s.size for s in found if s.kind not in (0, SHT_NOBITS)) > len(data):
        raise ValueError("its sections overlap")
    for section in found:
        if section.kind != SHT_NOBITS and section.offset + section.size > len(data):
            raise ValueError(f"section {section.name} ends behind the file")
        if section.align & (section.align - 1) or section.align > _LARGEST_ALIGNMENT:
            raise ValueError(f"section {section.name} is aligned to {section.align}")
    return found


def _symbols(data: bytes, sections: list[Section], wide: bool, order: str) -> list[Symbol]:
    found: list[Symbol] = []
    form = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
    for number, section in enumerate(sections):
        if section.kind != SHT_SYMTAB:
            continue
        strings = sections[section.link].offset
        extended = next((s for s in sections if s.kind == SHT_SYMTAB_SHNDX and s.link == number), None)
        for i, fields in enumerate(form.iter_unpack(data[section.offset : section.offset + section.size])):
            name_at, info, index, value = (
                (fields[0], fields[1], fields[3], fields[4]) if wide else (fields[0], fields[3], fields[5], fields[1])
            )
            if index == SHN_EXTENDED and extended is not None:
                (index,) = struct.unpack_from(order + "I", data, extended.offset + i * 4)
                if index >= len(sections):
                    raise ValueError(f"symbol {i} is in section {index}, which there is not")
            elif index < SHN_RESERVED and index >= len(sections):
                raise ValueError(f"symbol {i} is in section {index}, which there is not")
            if 0 < index < len(sections) and value > sections[index].size:
                raise ValueError(f"symbol {i} lies behind its section")
            found.append(Symbol(_text(data, strings + name_at), info >> 4, index, value))
    return found


def _check_table(obj: Object, table: Section) -> None:
    target = obj.sections[table.info]
    for entry in obj.entries(table):
        if entry.symbol >= len(obj.symbols):
            raise ValueError(f"a relocation in {table.name} names symbol {entry.symbol}, which there is not")
        if entry.offset >= target.size:
            raise ValueError(f"a relocation in {table.name} lies behind {target.name}")
