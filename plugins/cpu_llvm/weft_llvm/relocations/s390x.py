"""Relocations of s390x (ELF ABI s390x Supplement). Numbers are big-endian; distances in instructions are halved."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft_llvm.relocations import Architecture, Fix, addend, even, fit, no_table, refuse

_DATA = {5: (32, ">I"), 16: (16, ">H"), 23: (64, ">Q")}  # PC32, PC16, PC64
_HALVED = {17: (16, ">H"), 18: (16, ">H"), 19: (32, ">I"), 20: (32, ">I")}  # PC16DBL, PLT16DBL, PC32DBL, PLT32DBL
_GOTENT = 26
_ABSOLUTE = {1, 2, 3, 4, 22, 57}
_LGRL, _LARL = 0xC408, 0xC000


def _apply(fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        distance = fix.value + addend(fix) - fix.place
        if fix.kind in _DATA:
            bits, form = _DATA[fix.kind]
            struct.pack_into(form, fix.bytes, fix.at, fit(distance, bits, fix.where))
        elif fix.kind in _HALVED:
            bits, form = _HALVED[fix.kind]
            struct.pack_into(form, fix.bytes, fix.at, fit(even(distance, 2, fix.where), bits, fix.where))
        elif fix.kind == _GOTENT:  # lgrl r, symbol@GOTENT → larl r, symbol
            if fix.at < 2:
                raise no_table(fix.where)
            (code,) = struct.unpack_from(">H", fix.bytes, fix.at - 2)
            if code & 0xFF0F != _LGRL:
                raise no_table(fix.where)
            field = fit(even(distance, 2, fix.where), 32, fix.where)
            struct.pack_into(">HI", fix.bytes, fix.at - 2, code & 0xF0 | _LARL, field)
        else:
            raise refuse("R_390", fix.kind, fix.kind in _ABSOLUTE, fix.where)


S390X = Architecture("s390x", 22, True, ">", _apply)
