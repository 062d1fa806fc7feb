"""Relocations of AArch64 (ELF for the Arm 64-bit Architecture)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.errors import CodegenError
from weft_llvm.relocations import Architecture, Fix, addend, even, fit, refuse

_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD and LDST8/16/32/64/128: scale of the immediate
# TSTBR14, CONDBR19, LD_PREL_LO19, JUMP26, CALL26: bits, shift
_BRANCH = {279: (14, 5), 280: (19, 5), 273: (19, 5), 282: (26, 0), 283: (26, 0)}
_ABSOLUTE = {257, 258, 259, 263, 264, 265, 266, 267, 268, 269, 270, 271, 272}
# PREL64, PREL32, PLT32, PREL16
_DATA = {260: (64, "<Q"), 261: (32, "<I"), 314: (32, "<I"), 262: (16, "<H")}
_PAGES = (275, 276, 311)  # ADR_PREL_PG_HI21(_NC), ADR_GOT_PAGE (rewritten to the symbol's own page)
_ADR, _LD64_GOT_LO12_NC = 274, 312


def _apply(fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        total = fix.value + addend(fix)
        distance = total - fix.place
        if fix.kind in _DATA:
            bits, form = _DATA[fix.kind]
            struct.pack_into(form, fix.bytes, fix.at, fit(distance, bits, fix.where))
            continue
        (word,) = struct.unpack_from("<I", fix.bytes, fix.at)
        if fix.kind in _PAGES or fix.kind == _ADR:
            immediate = fit(distance if fix.kind == _ADR else (total >> 12) - (fix.place >> 12), 21, fix.where)
            word = word & ~0x60FFFFE0 | (immediate & 3) << 29 | (immediate >> 2) << 5
        elif fix.kind in _LOW12:
            low, scale = total & 0xFFF, _LOW12[fix.kind]
            if low & ((1 << scale) - 1):
                raise CodegenError(
                    "a load of a misaligned constant",
                    where=fix.where,
                    why=f"offset {low:#x} of a {1 << scale}-byte access",
                )
            word = word & ~0x003FFC00 | (low >> scale) << 10
        elif fix.kind == _LD64_GOT_LO12_NC:  # ldr xd, [xn, :got_lo12:s] → add xd, xn, :lo12:s
            word = 0x91000000 | (total & 0xFFF) << 10 | word & 0x3FF
        elif fix.kind in _BRANCH:
            bits, shift = _BRANCH[fix.kind]
            mask = ((1 << bits) - 1) << shift
            word = word & ~mask | fit(even(distance, 4, fix.where), bits, fix.where) << shift
        else:
            raise refuse("R_AARCH64", fix.kind, fix.kind in _ABSOLUTE, fix.where)
        struct.pack_into("<I", fix.bytes, fix.at, word & 0xFFFFFFFF)


AARCH64 = Architecture("aarch64", 183, True, "<", _apply)
