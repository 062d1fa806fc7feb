"""The instruction set of wave, and its binary form.

An instruction has 16 bytes, little-endian: opcode (1), d, a, b, c (1 each, register numbers), three bytes of zero, and
a signed immediate of 8 bytes. A field that an instruction does not use is zero. There are

    A0 … A255   scalars of 64 bits: addresses, sizes, integers, truth (0 or 1)
    S0 … S255   scalars of fp32
    V0 … V7     vectors of 64 elements of 32 bits: fp32, int32, or truth (0 or 1)
    VL          how many elements vector instructions treat, 0 to 64

A kernel begins with A0 = the address of its arguments, 8 bytes each: the address of every buffer, then every size. A
jump's immediate is the number of an instruction of the same kernel. A kernel in its section: the magic word, the
numbers of its instructions and of its arguments (4 bytes each), 4 bytes of zero, the instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

LANES = 64
SCALARS = 256
VECTORS = 8
MAGIC = 0x45564157  # WAVE
HEADER = struct.Struct("<IIII")
WORD = struct.Struct("<BBBBBBHq")
BANKS = {"A": SCALARS, "S": SCALARS, "V": VECTORS}


class Form(NamedTuple):
    """The banks of d, a, b, c ('.': unused, zero), and of the immediate: '.' zero, 'n' any number, 't' an instruction
    of the kernel."""

    fields: str
    immediate: str
    unit: str
    meaning: str


def _table() -> dict[str, Form]:
    t: dict[str, Form] = {
        "halt": Form("....", ".", "scalar", "the kernel is done"),
        "jump": Form("....", "t", "scalar", "go to the immediate"),
        "jump_zero": Form(".A..", "t", "scalar", "if a is 0"),
        "jump_less": Form(".AA.", "t", "scalar", "if a < b"),
        "li": Form("A...", "n", "scalar", "d = immediate"),
        "mov": Form("AA..", ".", "scalar", "d = a"),
        "addi": Form("AA..", "n", "scalar", "d = a + immediate"),
        "lea": Form("AAA.", "n", "scalar", "d = a + b * immediate"),
        "select": Form("AAAA", ".", "scalar", "d = a ? b : c"),
        "narrow": Form("AA..", ".", "scalar", "d = the low 32 bits of a, signed"),
        "fmov": Form("SS..", ".", "scalar", "d = a"),
        "fli": Form("S...", "n", "scalar", "d = the number whose bits are the immediate's low 32"),
        "fselect": Form("SASS", ".", "scalar", "d = a ? b : c"),
        "f2i": Form("AS..", ".", "scalar", "d = a, rounded to zero"),
        "i2f": Form("SA..", ".", "scalar", "d = a"),
        "bits_f2i": Form("AS..", ".", "scalar", "d = the bits of a, signed"),
        "bits_i2f": Form("SA..", ".", "scalar", "d has the bits of a"),
        "ffma": Form("SSSS", ".", "scalar", "d = a * b + c, rounded once"),
        "ld8": Form("AA..", "n", "scalar", "d = the int64 at a + immediate"),
        "ld4": Form("AA..", "n", "scalar", "d = the int32 at a + immediate"),
        "ld1": Form("AA..", "n", "scalar", "d = the byte at a + immediate"),
        "fld": Form("SA..", "n", "scalar", "d = the fp32 at a + immediate"),
        "st4": Form(".AA.", "n", "scalar", "the int32 at a + immediate = b"),
        "st1": Form(".AA.", "n", "scalar", "the byte at a + immediate = b"),
        "fst": Form(".AS.", "n", "scalar", "the fp32 at a + immediate = b"),
        "setvl": Form(".A..", ".", "scalar", "VL = a, at least 0 and at most 64"),
        "setvli": Form("....", "n", "scalar", "VL = immediate"),
        "viota": Form("VAA.", ".", "add", "d[i] = a + i * b"),
        "vset": Form("VA..", ".", "logic", "d[i] = a"),
        "vfset": Form("VS..", ".", "logic", "d[i] = a"),
        "vsel": Form("VVVV", ".", "logic", "d[i] = a[i] ? b[i] : c[i]"),
        "vmov": Form("VV..", ".", "logic", "d[i] = a[i]"),
        "vnot": Form("VV..", ".", "logic", "d[i] = a[i] ? 0 : 1"),
        "vmadd": Form("VSV.", ".", "mul", "d[i] = d[i] + a * b[i], chained: rounded twice"),
        "vffma": Form("VVVV", ".", "mul", "d[i] = a[i] * b[i] + c[i], rounded once"),
        "vf2i": Form("VV..", ".", "add", "fp32 to int32, rounded to zero"),
        "vi2f": Form("VV..", ".", "add", "int32 to fp32"),
        "vfsum": Form("SV..", ".", "add", "d = the sum of a[i], by halves"),
        "vfmax": Form("SV..", ".", "add", "d = the greatest a[i]; -inf of none"),
        "vfmin": Form("SV..", ".", "add", "d = the least a[i]; inf of none"),
    }
    for kind, size in (("vld", "words"), ("vldb", "bytes")):
        t[kind] = Form("VAA.", "n", "memory", f"d[i] = {size} at a + immediate + i * b")
        t[kind + "m"] = Form("VAAV", "n", "memory", f"d[i] = c[i] ? {size} at a + immediate + i * b : 0")
    for kind, size in (("vst", "words"), ("vstb", "bytes")):
        t[kind] = Form("VAA.", "n", "memory", f"{size} at a + immediate + i * b = d[i]")
        t[kind + "m"] = Form("VAAV", "n", "memory", f"{size} at a + immediate + i * b = d[i] where c[i]")
    for kind, scale in (("vga", 4), ("vgab", 1)):
        t[kind] = Form("VAV.", "n", "memory", f"d[i] = what is at a + immediate + b[i] * {scale}")
        t[kind + "m"] = Form("VAVV", "n", "memory", f"d[i] = c[i] ? what is at a + immediate + b[i] * {scale} : 0")
    for kind, scale in (("vsc", 4), ("vscb", 1)):
        t[kind] = Form("VAV.", "n", "memory", f"what is at a + immediate + b[i] * {scale} = d[i], i rising")
        t[kind + "m"] = Form("VAVV", "n", "memory", f"what is at a + immediate + b[i] * {scale} = d[i] where c[i], i rising")
    units = {
        "mul": "mul",
        "floordiv": "div",
        "floormod": "div",
        "truncdiv": "div",
        "truncmod": "div",
        "div": "div",
        "sqrt": "div",
    }
    bits = ("and", "or", "xor", "shl", "shr")
    for op in (*units, "add", "sub", "min", "max", *bits, "lt", "le", "eq", "ne"):
        if op in ("div", "sqrt"):
            continue
        t[op] = Form("AAA.", ".", "scalar", f"d = a {op} b; a division by 0 is 0")
        t["vi" + op] = Form("VVV.", ".", units.get(op, "logic" if op in bits else "add"), f"int32: d[i] = a[i] {op} b[i]")
    for op in ("add", "sub", "mul", "div", "min", "max"):
        t["f" + op] = Form("SSS.", ".", "scalar", f"d = a {op} b")
        vector = {"min": "vfminimum", "max": "vfmaximum"}.get(op, "vf" + op)
        t[vector] = Form("VVV.", ".", units.get(op, "add"), f"fp32: d[i] = a[i] {op} b[i]")
    for op in ("lt", "le", "eq", "ne"):
        t["f" + op] = Form("ASS.", ".", "scalar", f"d = a {op} b")
        t["vf" + op] = Form("VVV.", ".", "add", f"fp32: d[i] = a[i] {op} b[i]")
    for op in ("sqrt", "floor", "ceil", "trunc", "round", "abs"):
        t["f" + op] = Form("SS..", ".", "scalar", f"d = {op} of a")
        t["vf" + op] = Form("VV..", ".", units.get(op, "add"), f"fp32: d[i] = {op} of a[i]")
    return t


FORMS: dict[str, Form] = _table()
NAMES: tuple[str, ...] = tuple(FORMS)
CODES: dict[str, int] = {name: code for code, name in enumerate(NAMES, 1)}


class Instruction(NamedTuple):
    """One instruction."""

    name: str
    d: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    imm: int = 0

    def __str__(self) -> str:
        form = FORMS[self.name]
        words = [f"{bank}{number}" for bank, number in zip(form.fields, self[1:5], strict=True) if bank != "."]
        return " ".join([self.name, *words, *([str(self.imm)] if form.immediate != "." else [])])


class Malformed(ValueError):
    """Code that is no program of wave."""


def check(i: Instruction, count: int) -> None:
    """Raises Malformed if a field is not what the instruction's form says."""
    form = FORMS[i.name]
    for field, bank, number in zip("dabc", form.fields, i[1:5], strict=True):
        if bank == "." and number != 0:
            raise Malformed(f"{i.name}: field {field} is {number}, and the instruction has none")
        if bank != "." and not 0 <= number < BANKS[bank]:
            raise Malformed(f"{i.name}: there is no register {bank}{number}")
    if form.immediate == "." and i.imm != 0:
        raise Malformed(f"{i.name}: its immediate is {i.imm}, and the instruction has none")
    if form.immediate == "t" and not 0 <= i.imm < count:
        raise Malformed(f"{i.name}: instruction {i.imm} of {count} does not exist")
    if i.name == "setvli" and not 0 <= i.imm <= LANES:
        raise Malformed(f"setvli: a vector has {LANES} elements at most, not {i.imm}")
    if i.name == "fli" and not 0 <= i.imm < 1 << 32:
        raise Malformed(f"fli: {i.imm} are not the bits of a number")
    if not -(1 << 63) <= i.imm < 1 << 63:
        raise Malformed(f"{i.name}: the immediate {i.imm} has more than 64 bits")


def encode(instructions: Sequence[Instruction], arguments: int) -> bytes:
    """A kernel in its binary form."""
    out = [HEADER.pack(MAGIC, len(instructions), arguments, 0)]
    for i in instructions:
        check(i, len(instructions))
        out.append(WORD.pack(CODES[i.name], i.d, i.a, i.b, i.c, 0, 0, i.imm))
    return b"".join(out)


def decode(image: bytes, at: int = 0) -> tuple[list[Instruction], int]:
    """The kernel that begins at byte `at`, and how many arguments it takes. Every field is checked."""
    if not 0 <= at <= len(image) - HEADER.size:
        raise Malformed(f"no kernel begins at byte {at} of {len(image)}")
    magic, count, arguments, zero = HEADER.unpack_from(image, at)
    if magic != MAGIC or zero != 0:
        raise Malformed(f"no kernel begins at byte {at}: magic word {magic:#x}")
    start = at + HEADER.size
    if count == 0 or start + count * WORD.size > len(image):
        raise Malformed(f"the kernel at byte {at} says that it has {count} instructions, which are not there")
    instructions = []
    for n in range(count):
        code, d, a, b, c, zero1, zero2, imm = WORD.unpack_from(image, start + n * WORD.size)
        if not 1 <= code <= len(NAMES):
            raise Malformed(f"instruction {n}: there is no opcode {code}")
        if zero1 or zero2:
            raise Malformed(f"instruction {n}: reserved bytes are not zero")
        i = Instruction(NAMES[code - 1], d, a, b, c, imm)
        check(i, count)
        instructions.append(i)
    if instructions[-1].name not in ("halt", "jump"):
        raise Malformed("the last instruction is neither halt nor jump")
    return instructions, arguments
