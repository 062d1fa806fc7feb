"""Instructions: binary and text forms go there and back, and every field is checked."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_npu.isa import DRAM, OPS, VECTOR, Instruction, Kernel, Term, View, assemble, axes, decode, disassemble, encode

from weft.errors import ExecutionError

numbers = st.integers(-(2**40), 2**40)
floats = st.floats(width=32, allow_nan=False)


@st.composite
def instructions(draw: Any, depth: int) -> list[Instruction]:
    found = []
    for _ in range(draw(st.integers(0, 3))):
        if depth < 4 and draw(st.booleans()):
            inner = draw(instructions(depth + 1))
            found += [Instruction("loop", (draw(st.integers(1, 99)),)), *inner, Instruction("end")]
            continue
        name = draw(st.sampled_from([n for n in OPS if n not in ("loop", "end")]))
        op = OPS[name]
        rank = draw(st.integers(min(op.ranks), max(op.ranks)))
        shape = tuple(draw(st.integers(1, min(most, 31))) for most in op.limits[:rank])
        operands: list[View | float] = []
        for k, where in enumerate(op.where):
            if op.numbers and k and draw(st.booleans()):
                operands.append(draw(floats))
                continue
            dims = len(axes(op, k, rank))
            strides = [draw(numbers) for _ in range(dims)]
            if op.axes is not None:
                strides[-1] = 1
            terms = [
                Term(draw(st.integers(0, depth - 1)), draw(numbers), draw(st.integers(0, 5)))
                for _ in range(draw(st.integers(0, 3)) if depth else 0)
            ]
            operands.append(
                View(
                    draw(st.sampled_from(sorted(w for w in where if w < DRAM + 3))),
                    draw(numbers),
                    tuple(strides),
                    tuple(terms),
                )
            )
        found.append(Instruction(name, shape, tuple(operands)))
    return found


kernels = st.builds(lambda code: Kernel(3, (1024, 2048, 512, 256), tuple(code)), instructions(0))


@settings(max_examples=60, deadline=None)
@given(kernels)
def test_text_and_binary_go_there_and_back(kernel: Kernel) -> None:
    assert decode(encode(kernel)) == kernel
    assert assemble(disassemble(kernel)) == kernel


TEXT = """\
kernel parameters=2 activations=1024 weights=1024 accumulators=1024 vectors=1024
  loop 3
    dma.load 8x8  activations[0 + 64*i0%2; 8 1], p0[0 + 8*i0; 24 1]
    gemm8x8 8x8x8  accumulators[0; 8 1], activations[0 + 64*i0%2; 8 1], weights[0; 8 1]
    vec.max 8x8  accumulators[0; 8 1], accumulators[0; 8 1], 0.0
  end
"""


def test_a_text() -> None:
    kernel = assemble(TEXT.replace("  loop", " # a comment\n  loop"))
    assert disassemble(kernel) == TEXT
    assert kernel.code[1].operands[0] == View(0, 0, (8, 1), (Term(0, 64, 2),))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("kernel parameters", "kernel", "the first line does not read"),
        ("loop 3", "loop x", "'x' is no shape"),
        ("loop 3", "loop 0", "a dimension is 0, 1 to 4294967295 can be"),
        ("  end\n", "", "1 loop(s) have no end"),
        ("  loop 3\n", "", "operand 0 uses loop 0, there are 0 around it"),
        ("vec.max", "vec.most", "there is no such instruction"),
        ("vec.max 8x8", "vec.max 256x8", f"a vector has 2048 elements, at most {VECTOR} can be"),
        ("gemm8x8 8x8x8", "gemm8x8 8x9x8", "a dimension is 9, 1 to 8 can be"),
        ("gemm8x8 8x8x8", "gemm8x8 8x8", "its shape has 2 dimension(s), 3 to 3 can be"),
        (", 0.0", "", "it has 2 operand(s), 3 are wanted"),
        (", 0.0", ", zero", "'zero' is no operand"),
        ("weights[0; 8 1]", "weights[0; 1 8]", "operand 2 has no elements side by side in a row"),
        ("weights[0; 8 1]", "0.5", "operand 2 is a number"),
        ("weights[0; 8 1]", "vectors[0; 8 1]", "operand 2 cannot lie in memory vectors"),
        ("weights[0; 8 1]", "cache[0; 8 1]", "there is no memory 'cache'"),
        ("p0[0 ", "p2[0 ", "operand 1 cannot lie in memory p2"),
        ("p0[0 + 8*i0; 24 1]", "p0[0 + 8*i0; 24 1 1]", "operand 1 has 3 stride(s), 2 are wanted"),
        ("64*i0%2; 8 1], p0", "64*i0%70000; 8 1], p0", "operand 0 has the modulo 70000"),
        ("activations=1024", "activations=1022", "four sizes in whole elements are wanted"),
    ],
)
def test_what_is_no_text(old: str, new: str, why: str) -> None:
    assert old in TEXT
    with pytest.raises(ExecutionError, match="the npu's code is malformed") as caught:
        assemble(TEXT.replace(old, new, 1))
    assert why in str(caught.value)


def test_what_is_no_binary() -> None:
    code = encode(assemble(TEXT))
    for data, why in [
        (b"ELF" + code[3:], r"it begins with b'ELFU', not with b'WNPU'"),
        (code[:-1], f"it ends after {len(code) - 1} bytes, in the middle of an instruction"),
        (code + b"\0", "1 bytes follow the last instruction"),
        (code[:28] + b"\xff" + code[29:], "there is no opcode 255"),
        (code[:31] + b"\1" + code[32:], "a reserved field is not 0"),
        (code[:29] + b"\2" + code[30:], r"loop with 2 dimension\(s\) and 0 operand\(s\)"),
    ]:
        with pytest.raises(ExecutionError, match=why):
            decode(data)
    with pytest.raises(
        ExecutionError,
        match=r"the npu's code is of version 7\n  why: this device runs version 1\n  hint: compile the model again",
    ):
        decode(code[:4] + struct.pack("<H", 7) + code[6:])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_code_is_an_error_or_other_code(data: Any) -> None:
    """Never another exception, whatever byte changes."""
    code = bytearray(encode(assemble(TEXT)))
    code[data.draw(st.integers(0, len(code) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(code))
    except ExecutionError as error:
        assert re.match("the npu's code is", str(error))
