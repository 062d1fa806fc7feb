"""A small static linker: relocatable ELF objects to one flat position-independent image.

The image holds code and read-only data, is mapped read and execute at any page-aligned address, and needs no relocation
when loaded: so only distances within the image are possible (`weft_llvm.relocations`), and every symbol must be defined
by one of the objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft.errors import CodegenError
from weft_llvm import elf
from weft_llvm.elf import Object, Section
from weft_llvm.relocations import Architecture, Fix
from weft_llvm.relocations.aarch64 import AARCH64
from weft_llvm.relocations.arm import ARM
from weft_llvm.relocations.riscv import RISCV32, RISCV64
from weft_llvm.relocations.s390x import S390X
from weft_llvm.relocations.x86 import I386, X86_64

PAGE = 4096

ARCHITECTURES: tuple[Architecture, ...] = (AARCH64, ARM, I386, RISCV32, RISCV64, S390X, X86_64)
"""Those whose objects are linked."""

_SKIPPED = (".eh_frame", ".note", ".llvm", ".comment", ".ARM.", ".riscv.", ".gnu.attributes")


@dataclass(frozen=True)
class Image:
    """A linked image: `entries` maps every global function and object to its offset; the base must be aligned to
    `alignment`."""

    bytes: bytes
    entries: dict[str, int]
    alignment: int = PAGE


def _wanted(section: Section, name: str) -> bool:
    if not section.flags & elf.SHF_ALLOC or section.size == 0 or section.name.startswith(_SKIPPED):
        return False
    if section.flags & (elf.SHF_WRITE | elf.SHF_TLS) or section.kind == elf.SHT_NOBITS:
        raise CodegenError(
            f"object '{name}' has writable or relocated data in section {section.name}",
            why="an image is mapped read-only and at any address",
            hint="make the global a constant without pointers; keep state in the arena",
        )
    return section.kind == elf.SHT_PROGBITS


def _architecture(objects: list[Object]) -> Architecture:
    found: Architecture | None = None
    for obj in objects:
        told = (obj.machine, obj.wide, obj.order)
        own = next((a for a in ARCHITECTURES if (a.machine, a.wide, a.order) == told), None)
        if own is None:
            order = "little" if obj.order == "<" else "big"
            raise CodegenError(
                f"object '{obj.name}' cannot be linked",
                why=f"it is of ELF machine {obj.machine}, {64 if obj.wide else 32} bits, {order}-endian",
                hint="objects of " + ", ".join(a.name for a in ARCHITECTURES) + " only",
            )
        if found is not None and own is not found:
            raise CodegenError(
                "objects of different machines cannot be linked", where=", ".join(o.name for o in objects)
            )
        found = own
    if found is None:
        raise CodegenError("there is no object to link")
    return found


def undefined(objects: Mapping[str, bytes]) -> frozenset[str]:
    """Symbols that some of the objects (name → ELF bytes) use and none of them defines.

    Raises:
        CodegenError: for files that are no such objects.
    """
    parsed = [elf.parse(name, data) for name, data in objects.items()]
    given = _architecture(parsed).given
    used = {s.name for o in parsed for s in o.symbols if s.section == elf.SHN_UNDEF and s.name}
    defined = {s.name for o in parsed for s in o.symbols if s.section != elf.SHN_UNDEF and s.binding != elf.STB_LOCAL}
    return frozenset(used - defined - set(given))


def link(objects: Mapping[str, bytes], places: Mapping[str, int] | None = None) -> Image:
    """One image of the objects (name → ELF bytes), in the order given.

    Args:
        places: symbols that lie outside of the image, by their distance in bytes from its beginning.

    Raises:
        CodegenError: for undefined or doubly defined symbols, absolute relocations, writable data, or files that are no
            such objects.
    """
    parsed = [elf.parse(name, data) for name, data in objects.items()]
    architecture = _architecture(parsed)
    image = _laid_out(parsed)
    defined = _defined(parsed)
    reached = {**defined, **{name: _Defined(offset, False, "") for name, offset in (places or {}).items()}}
    missing: dict[str, list[str]] = {}
    view = memoryview(image)
    for obj in parsed:
        fixes: list[Fix] = []
        for table in obj.sections:
            if table.kind in (elf.SHT_REL, elf.SHT_RELA) and obj.sections[table.info].address >= 0:
                fixes += _fixes(obj, table, view, reached, architecture, missing)
        try:
            architecture.apply(fixes)
        except struct.error as error:
            raise CodegenError(f"object '{obj.name}' is not a well-formed ELF file", why=str(error)) from error
    if missing:
        raise undefined_symbols(missing)
    view.release()
    return Image(bytes(image), {name: symbol.offset for name, symbol in defined.items()}, PAGE)


def undefined_symbols(users: Mapping[str, Iterable[str]]) -> CodegenError:
    """The error that says which objects want symbols that none defines: symbol → objects."""
    return CodegenError(
        "compiled code refers to symbols that nothing defines: " + ", ".join(sorted(users)),
        where="\n".join(f"{name}: wanted by {', '.join(sorted(set(by)))}" for name, by in sorted(users.items())),
        hint="a saved model links to no library: expand the function to a formula, or add the kernel's object",
    )


def _laid_out(parsed: list[Object]) -> bytearray:
    """The sections one behind another, each with its address."""
    image = bytearray()
    for executable in (True, False):  # code together, then constants
        for obj in parsed:
            for section in obj.sections:
                if bool(section.flags & elf.SHF_EXEC) == executable and _wanted(section, obj.name):
                    image.extend(bytes(-len(image) % section.align))
                    section.address = len(image)
                    image += obj.data[section.offset : section.offset + section.size]
        image.extend(bytes(-len(image) % 64))
    return image


@dataclass(frozen=True)
class _Defined:
    offset: int
    weak: bool
    object: str


def _defined(parsed: list[Object]) -> dict[str, _Defined]:
    found: dict[str, _Defined] = {}
    for obj in parsed:
        for symbol in obj.symbols:
            outside = symbol.section in (elf.SHN_UNDEF, elf.SHN_ABS, elf.SHN_COMMON)
            if symbol.binding == elf.STB_LOCAL or not symbol.name or outside:
                continue
            if symbol.section >= len(obj.sections) or obj.sections[symbol.section].address < 0:
                continue  # refused where something refers to it
            weak = symbol.binding == elf.STB_WEAK
            known = found.get(symbol.name)
            if known is not None and not known.weak and not weak:
                raise CodegenError(
                    f"symbol '{symbol.name}' is defined twice",
                    where=f"{known.object}\n{obj.name}",
                    hint="give kernels names of their own",
                )
            if known is None or (known.weak and not weak):
                found[symbol.name] = _Defined(obj.sections[symbol.section].address + symbol.value, weak, obj.name)
    return found


def _fixes(
    obj: Object,
    table: Section,
    image: memoryview,
    defined: Mapping[str, _Defined],
    architecture: Architecture,
    missing: dict[str, list[str]],
) -> list[Fix]:
    """The relocations of a table; what is defined nowhere is added to `missing`."""
    target = obj.sections[table.info]
    data = image[target.address : target.address + target.size]
    found = []
    for entry in obj.entries(table):
        if entry.kind in architecture.ignored:
            continue
        symbol = obj.symbols[entry.symbol]
        inside = 0 < symbol.section < len(obj.sections)
        shown = symbol.name or (obj.sections[symbol.section].name if inside else "?")
        where = f"{obj.name}: {target.name}+{entry.offset:#x} → {shown}"
        if symbol.binding != elf.STB_LOCAL and symbol.name in defined:
            value = defined[symbol.name].offset
        elif symbol.section == elf.SHN_UNDEF and symbol.name in architecture.given:
            value = architecture.given[symbol.name]
        elif symbol.section == elf.SHN_UNDEF and symbol.name:
            missing.setdefault(symbol.name, []).append(obj.name)
            continue
        elif not inside or obj.sections[symbol.section].address < 0:
            raise CodegenError(
                f"symbol '{shown}' is not in the image",
                where=where,
                why="it is absolute, common or in a section that is not loaded",
            )
        else:
            value = obj.sections[symbol.section].address + symbol.value
        found.append(Fix(entry.kind, data, entry.offset, target.address + entry.offset, value, entry.addend, where))
    return found
