"""Indices of 32 bits: the same values, and only where they fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from passcheck import ALL, same
from programs import EXAMPLES, programs

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_gpu.passes.narrow_indices import narrow_indices


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_mean_the_same(name: str) -> None:
    lowered = lower_program(EXAMPLES[name](), ALL)
    same(lowered, narrow_indices(lowered))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_programs_mean_the_same(program: Program) -> None:
    lowered = lower_program(program, ALL)
    same(lowered, narrow_indices(lowered))


def narrowed(body: str) -> str:
    text = f"program p(x: float32[n], k: int64[4]) -> (y: float32[n]) dims(n) {{ {body} }}"
    return " ".join(str(narrow_indices(parse_program(text))).split("{", 1)[1].rsplit("}", 1)[0].split())


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("for b in n { for t in 64 { y[b*64 + t + 3] = x[b*64 + t%8] } }",
         "for b in n { for t as int32 in 64i32 { y[b*64 + int64(t + 3i32)] = x[b*64 + int64(t%8i32)] } }"),
        ("for b in n { let q: int64 = (b*8 + 5) % 12 y[q*4] = x[min(b, 7)] }",
         "for b in n { let q: int32 = int32((b*8 + 5)%12) y[q*4i32] = x[int32(min(b, 7))] }"),
        ("for b in n blockIdx.x { y[b*64] = x[b % 8] }",
         "for b as int32 in int32(n) blockIdx.x { y[int64(b)*64] = x[b%8i32] }"),
        # an extent of 2³¹ is one too many; a product may be too large where its factors are not
        ("for i in 2147483648 { y[0] = x[i] }", "for i in 2147483648 { y[0i32] = x[i] }"),
        ("for i in 65536 { for j in 65536 { y[i*65536 + j] = x[i + j] } }",
         "for i as int32 in 65536i32 { for j as int32 in 65536i32 { y[int64(i)*65536 + int64(j)] = x[i + j] } }"),
        # what buffers hold stays what it is
        ("for i in 4 { y[k[i]] = float32(i*3) }", "for i as int32 in 4i32 { y[k[i]] = float32(i*3i32) }"),
        ("for i in 8 { if i < n { y[i] = select(i < 3, x[i], 1.0f32) } }",
         "for i as int32 in 8i32 { if int64(i) < n { y[i] = select(i < 3i32, x[i], 1.0f32) } }"),
        ("for b in n { y[ramp(b*4, 1, 4)] = x[ramp(b % 8*4, 1, 4)] }",
         "for b in n { y[ramp(b*4, 1, 4)] = x[ramp(int32(b%8)*4i32, 1i32, 4)] }"),
    ],
)  # fmt: skip
def test_what_is_narrow(body: str, after: str) -> None:
    assert narrowed(body) == after
