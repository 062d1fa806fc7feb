"""The binary form of instructions: what is written is read, and nothing else is."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path

import pytest

from weft_wave.isa import BANKS, FORMS, HEADER, WORD, Instruction, Malformed, decode, encode

HALT = Instruction("halt")


def word(code: bytes, number: int, at: int, value: int, size: int = 1) -> bytes:
    """The code with one field of one instruction changed."""
    place = HEADER.size + number * WORD.size + at
    return code[:place] + value.to_bytes(size, "little", signed=value < 0) + code[place + size :]


@pytest.mark.parametrize("name", FORMS)
def test_every_instruction_survives(name: str) -> None:
    form = FORMS[name]
    fields = [BANKS[bank] - 1 if bank != "." else 0 for bank in form.fields]
    immediate = {".": 0, "n": 7, "t": 1}[form.immediate]
    code = [Instruction(name, *fields[:4], imm=immediate), HALT]
    assert decode(encode(code, 3)) == (code, 3)


@pytest.mark.parametrize("name", FORMS)
def test_every_field_is_checked(name: str) -> None:
    form = FORMS[name]
    fields = [0 if bank == "." else 1 for bank in form.fields]
    code = encode([Instruction(name, *fields[:4], imm=0), HALT], 0)
    for at, bank in enumerate(form.fields, 1):
        if bank == ".":
            with pytest.raises(Malformed, match="the instruction has none"):
                decode(word(code, 0, at, 1))
        elif bank == "V":
            with pytest.raises(Malformed, match="there is no register V8"):
                decode(word(code, 0, at, 8))
    for at in (5, 6, 7):
        with pytest.raises(Malformed, match="reserved bytes are not zero"):
            decode(word(code, 0, at, 1))
    if form.immediate == ".":
        with pytest.raises(Malformed, match="its immediate is 5"):
            decode(word(code, 0, 8, 5, 8))
    if form.immediate == "t":
        for target in (2, -1):
            with pytest.raises(Malformed, match="of 2 does not exist"):
                decode(word(code, 0, 8, target, 8))


@pytest.mark.parametrize("code", [0, len(FORMS) + 1, 255])
def test_opcodes_that_do_not_exist(code: int) -> None:
    with pytest.raises(Malformed, match=f"there is no opcode {code}"):
        decode(word(encode([HALT], 0), 0, 0, code))


def test_what_is_no_kernel() -> None:
    code = encode([HALT], 0)
    with pytest.raises(Malformed, match="magic word"):
        decode(b"\0" + code[1:])
    with pytest.raises(Malformed, match="no kernel begins at byte 1000"):
        decode(code, 1000)
    with pytest.raises(Malformed, match="which are not there"):
        decode(code[:-1])
    with pytest.raises(Malformed, match="neither halt nor jump"):
        decode(encode([Instruction("li", 1)], 0))
    with pytest.raises(Malformed, match="magic word"):
        decode(code[:12] + struct.pack("<I", 1) + code[16:])


def test_the_length_of_a_vector() -> None:
    with pytest.raises(Malformed, match="64 elements at most, not 65"):
        encode([Instruction("setvli", imm=65), HALT], 0)


def test_the_manual_is_that_of_the_code() -> None:
    docs = Path(__file__).parents[1] / "docs"
    before = (docs / "isa.md").read_text()
    scope = runpy.run_path(str(docs / "write_isa.py"))
    assert scope["manual"]() == before
