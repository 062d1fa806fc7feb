"""Relocations of x86-64 and of 32-bit x86 (System V ABI, AMD64 and Intel386 supplements)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft_llvm.relocations import Architecture, Fix, addend, fit, no_table, refuse, signed

_TABLE = "_GLOBAL_OFFSET_TABLE_"
_MOV, _LEA, _INDIRECT = 0x8B, 0x8D, 0xFF
_ABSOLUTE_64 = {1, 10, 11, 12, 13, 14, 15}
_ABSOLUTE_32 = {1, 20, 22}


def _apply_x86_64(fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        distance = fix.value + addend(fix) - fix.place
        if fix.kind in (2, 4):  # PC32, PLT32
            struct.pack_into("<I", fix.bytes, fix.at, fit(distance, 32, fix.where))
        elif fix.kind == 24:  # PC64
            struct.pack_into("<q", fix.bytes, fix.at, distance)
        elif fix.kind in (9, 41, 42):  # GOTPCREL and its relaxable forms: load of an address, or call and jump
            if fix.at < 2:
                raise no_table(fix.where)
            opcode, modrm = fix.bytes[fix.at - 2], fix.bytes[fix.at - 1]
            if opcode == _MOV:
                fix.bytes[fix.at - 2] = _LEA  # mov symbol@GOTPCREL(%rip), r → lea symbol(%rip), r
            elif opcode == _INDIRECT and modrm in (0x15, 0x25):
                _direct(fix, modrm == 0x15)
            else:
                raise no_table(fix.where)
            struct.pack_into("<I", fix.bytes, fix.at, fit(distance, 32, fix.where))
        else:
            raise refuse("R_X86_64", fix.kind, fix.kind in _ABSOLUTE_64, fix.where)


def _direct(fix: Fix, call: bool) -> None:
    """call *table(symbol) → addr32 call symbol; jmp *table(symbol) → nop; jmp symbol."""
    fix.bytes[fix.at - 2 : fix.at] = b"\x67\xe8" if call else b"\x90\xe9"


def _apply_i386(fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        (word,) = struct.unpack_from("<i", fix.bytes, fix.at) if fix.kind not in (21, 23) else (0,)
        if fix.addend is not None:
            word = fix.addend
        distance = fix.value + word - fix.place
        if fix.kind in (2, 4, 10):  # PC32, PLT32; GOTPC: the table's own place, from here
            struct.pack_into("<I", fix.bytes, fix.at, fit(distance, 32, fix.where))
        elif fix.kind == 9:  # GOTOFF: from the table's place, which is the image's
            struct.pack_into("<I", fix.bytes, fix.at, fit(fix.value + word, 32, fix.where))
        elif fix.kind in (21, 23):  # PC16, PC8
            bits, form = (16, "<H") if fix.kind == 21 else (8, "<B")
            (own,) = struct.unpack_from(form, fix.bytes, fix.at)
            own = signed(own, bits) if fix.addend is None else fix.addend
            struct.pack_into(form, fix.bytes, fix.at, fit(fix.value + own - fix.place, bits, fix.where))
        elif fix.kind in (3, 43):  # GOT32 and its relaxable form
            _apply_got32(fix, word)
        else:
            raise refuse("R_386", fix.kind, fix.kind in _ABSOLUTE_32, fix.where)


def _apply_got32(fix: Fix, word: int) -> None:
    if fix.at < 2 or word != 0:
        raise no_table(fix.where)
    opcode, modrm = fix.bytes[fix.at - 2], fix.bytes[fix.at - 1]
    based = modrm >> 6 == 2 and modrm & 7 != 4  # the table's address is in a register
    if opcode == _MOV and based:
        fix.bytes[fix.at - 2] = _LEA  # mov symbol@GOT(%ebx), r → lea symbol@GOTOFF(%ebx), r
        value = fix.value
    elif opcode == _INDIRECT and based and modrm >> 3 & 7 in (2, 4):
        _direct(fix, modrm >> 3 & 7 == 2)
        value = fix.value - fix.place - 4
    else:
        raise no_table(fix.where)
    struct.pack_into("<I", fix.bytes, fix.at, fit(value, 32, fix.where))


X86_64 = Architecture("x86_64", 62, True, "<", _apply_x86_64)
I386 = Architecture("i386", 3, False, "<", _apply_i386, {_TABLE: 0})
"""Code of 32-bit x86 finds data by their distances from a global offset table. Nothing is in it, so it may be anywhere:
it is where the image begins."""
