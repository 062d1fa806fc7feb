"""Relocations of RISC-V, of 32 and 64 bits (RISC-V ELF psABI).

An address takes two instructions: the first adds the upper bits of a distance to its own address, the second the lower
ones. The second's relocation names the first's place, not the symbol.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import CodegenError
from weft_llvm.relocations import Architecture, Fix, addend, even, fit, no_table, refuse

_RELAX = 51  # allows to shorten the instruction, which nothing here does
_BRANCH, _JAL, _CALL, _CALL_PLT, _RVC_BRANCH, _RVC_JUMP = 16, 17, 18, 19, 44, 45
_GOT_HI20, _PCREL_HI20, _PCREL_LO12_I, _PCREL_LO12_S = 20, 23, 24, 25
_PCREL, _PLT32 = 57, 59
_ADD = {33: (8, "<B"), 34: (16, "<H"), 35: (32, "<I"), 36: (64, "<Q")}
_SUB = {37: (8, "<B"), 38: (16, "<H"), 39: (32, "<I"), 40: (64, "<Q")}
_SET = {54: (8, "<B"), 55: (16, "<H"), 56: (32, "<I")}
_ABSOLUTE = {1, 2, 26, 27, 28}
_LOAD, _ADD_IMMEDIATE = 0x03, 0x13


@dataclass(frozen=True)
class _Upper:
    distance: int
    table: bool  # whether the second instruction loads an address from a table


def _apply(fixes: Sequence[Fix]) -> None:
    uppers: dict[int, _Upper] = {}
    differences: dict[int, int] = {}  # place → additions less subtractions
    for fix in fixes:
        if fix.kind in (_GOT_HI20, _PCREL_HI20):
            uppers[fix.place] = _Upper(fix.value + addend(fix) - fix.place, fix.kind == _GOT_HI20)
        elif fix.kind in _ADD or fix.kind in _SET:
            differences[fix.place] = differences.get(fix.place, 0) + 1
        elif fix.kind in _SUB:
            differences[fix.place] = differences.get(fix.place, 0) - 1
    for fix in fixes:
        if differences.get(fix.place):  # one place alone, and not the distance of two
            raise refuse("R_RISCV", fix.kind, True, fix.where)
        _apply_one(fix, uppers)


def _apply_one(fix: Fix, uppers: dict[int, _Upper]) -> None:
    total = fix.value + addend(fix)
    distance = total - fix.place
    data, at = fix.bytes, fix.at
    for table, sign, keeps in ((_ADD, 1, 1), (_SUB, -1, 1), (_SET, 1, 0)):
        if fix.kind in table:
            bits, form = table[fix.kind]
            (old,) = struct.unpack_from(form, data, at)
            struct.pack_into(form, data, at, (keeps * old + sign * total) & ((1 << bits) - 1))
            return
    if fix.kind in (_PCREL, _PLT32):
        struct.pack_into("<I", data, at, fit(distance, 32, fix.where))
        return
    if fix.kind in (_RVC_BRANCH, _RVC_JUMP):
        _apply_compressed(fix, distance)
        return
    (word,) = struct.unpack_from("<I", data, at)
    if fix.kind in (_CALL, _CALL_PLT):  # auipc and jalr
        (second,) = struct.unpack_from("<I", data, at + 4)
        word = word & 0xFFF | _upper(distance, fix)
        struct.pack_into("<I", data, at + 4, second & 0xFFFFF | (distance & 0xFFF) << 20)
    elif fix.kind in (_GOT_HI20, _PCREL_HI20):
        word = word & 0xFFF | _upper(distance, fix)
    elif fix.kind in (_PCREL_LO12_I, _PCREL_LO12_S):
        word = _lower(fix, word, uppers)
    elif fix.kind == _JAL:
        d = fit(even(distance, 2, fix.where), 20, fix.where) << 1
        word = word & 0xFFF | (d >> 20 & 1) << 31 | (d >> 1 & 0x3FF) << 21 | (d >> 11 & 1) << 20 | d & 0xFF000
    elif fix.kind == _BRANCH:
        d = fit(even(distance, 2, fix.where), 12, fix.where) << 1
        bits = (d >> 12 & 1) << 31 | (d >> 5 & 0x3F) << 25 | (d >> 1 & 0xF) << 8 | (d >> 11 & 1) << 7
        word = word & 0x1FFF07F | bits
    else:
        raise refuse("R_RISCV", fix.kind, fix.kind in _ABSOLUTE, fix.where)
    struct.pack_into("<I", data, at, word & 0xFFFFFFFF)


def _upper(distance: int, fix: Fix) -> int:
    """The field of auipc; the lower bits, which are signed, are added to it."""
    return fit(distance + 0x800 >> 12, 20, fix.where) << 12


def _lower(fix: Fix, word: int, uppers: dict[int, _Upper]) -> int:
    first = uppers.get(fix.value)
    if first is None or addend(fix):
        raise CodegenError("the lower half of an address without its upper half", where=fix.where)
    low = first.distance & 0xFFF
    if fix.kind == _PCREL_LO12_S:
        if first.table:
            raise no_table(fix.where)
        return word & 0x1FFF07F | (low >> 5) << 25 | (low & 0x1F) << 7
    if first.table:  # ld rd, offset(rs) → addi rd, rs, offset
        if word & 0x7F != _LOAD or word >> 12 & 7 not in (2, 3):
            raise no_table(fix.where)
        word = word & 0xF8F80 | _ADD_IMMEDIATE
    return word & 0xFFFFF | low << 20


def _apply_compressed(fix: Fix, distance: int) -> None:
    (word,) = struct.unpack_from("<H", fix.bytes, fix.at)
    if fix.kind == _RVC_JUMP:
        d = fit(even(distance, 2, fix.where), 11, fix.where) << 1
        word = word & 0xE003 | (d >> 11 & 1) << 12 | (d >> 4 & 1) << 11 | (d >> 8 & 3) << 9 | (d >> 10 & 1) << 8
        word |= (d >> 6 & 1) << 7 | (d >> 7 & 1) << 6 | (d >> 1 & 7) << 3 | (d >> 5 & 1) << 2
    else:
        d = fit(even(distance, 2, fix.where), 8, fix.where) << 1
        word = word & 0xE383 | (d >> 8 & 1) << 12 | (d >> 3 & 3) << 10 | (d >> 6 & 3) << 5
        word |= (d >> 1 & 3) << 3 | (d >> 5 & 1) << 2
    struct.pack_into("<H", fix.bytes, fix.at, word)


RISCV64 = Architecture("riscv64", 243, True, "<", _apply, ignored=frozenset({0, _RELAX}))
RISCV32 = Architecture("riscv32", 243, False, "<", _apply, ignored=frozenset({0, _RELAX}))
