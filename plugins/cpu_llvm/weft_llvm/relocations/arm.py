"""Relocations of 32-bit Arm code, not of Thumb (ELF for the Arm Architecture)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.errors import CodegenError
from weft_llvm.relocations import Architecture, Fix, even, fit, no_table, refuse, signed

_V4BX = 40
_REL32, _PREL31 = 3, 42
_BRANCHES = (1, 27, 28, 29)  # PC24, PLT32, CALL, JUMP24
_MOVW_PREL_NC, _MOVT_PREL = 45, 46
_TABLE = (25, 26, 96)  # BASE_PREL, GOT_BREL, GOT_PREL
_ABSOLUTE = {2, 5, 6, 8, 38, 43, 44}


def _apply(fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        (word,) = struct.unpack_from("<I", fix.bytes, fix.at)
        if fix.kind == _REL32:
            word = fit(_distance(fix, signed(word, 32)), 32, fix.where)
        elif fix.kind == _PREL31:
            word = word & 1 << 31 | fit(_distance(fix, signed(word & 0x7FFFFFFF, 31)), 31, fix.where)
        elif fix.kind in _BRANCHES:
            if fix.value & 1:
                raise CodegenError("a branch to Thumb code", where=fix.where, hint="compile all of it as Arm code")
            distance = _distance(fix, signed(word & 0xFFFFFF, 24) * 4)
            word = word & ~0xFFFFFF | fit(even(distance, 4, fix.where), 24, fix.where)
        elif fix.kind in (_MOVW_PREL_NC, _MOVT_PREL):
            distance = _distance(fix, signed(word >> 4 & 0xF000 | word & 0xFFF, 16))
            half = fit(distance, 32, fix.where) >> (16 if fix.kind == _MOVT_PREL else 0)
            word = word & ~0xF0FFF | (half & 0xF000) << 4 | half & 0xFFF
        elif fix.kind in _TABLE:  # the load from the table lies elsewhere, and nothing says where
            raise no_table(fix.where)
        else:
            raise refuse("R_ARM", fix.kind, fix.kind in _ABSOLUTE, fix.where)
        struct.pack_into("<I", fix.bytes, fix.at, word & 0xFFFFFFFF)


def _distance(fix: Fix, own: int) -> int:
    """`own`: the addend that the instruction or word holds."""
    return fix.value + (own if fix.addend is None else fix.addend) - fix.place


ARM = Architecture("arm", 40, False, "<", _apply, ignored=frozenset({0, _V4BX}))
