"""The simulator: batches of loops mean what one instruction after another means; bounds; overlap of copies and
computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_npu.device import Module, Npu, pack, unpack
from weft_npu.isa import Instruction, Kernel, Term, View, assemble, encode
from weft_npu.simulator import GEMM_CYCLES, PEAK, Program, Run

from weft.errors import ExecutionError

HEAD = "kernel parameters={} activations=4096 weights=4096 accumulators=4096 vectors=4096\n"


def run(text: str, *parameters: Any) -> Run:
    r = Run(Program(assemble(HEAD.format(len(parameters)) + text)), parameters)
    r.run()
    return r


def spelt(code: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The instructions one after another, without loops."""
    found = []

    def place(x: Any, counters: list[int]) -> Any:
        if not isinstance(x, View):
            return x
        return View(
            x.memory,
            x.base + sum(t.step * (counters[t.loop] % t.modulo if t.modulo else counters[t.loop]) for t in x.terms),
            x.strides,
        )

    def go(at: int, counters: list[int]) -> int:
        while at < len(code):
            i = code[at]
            at += 1
            if i.op == "end":
                return at
            if i.op == "loop":
                end = at
                for k in range(i.shape[0]):
                    end = go(at, [*counters, k])
                at = end
            else:
                found.append(Instruction(i.op, i.shape, tuple(place(x, counters) for x in i.operands)))
        return at

    go(0, [])
    return tuple(found)


@st.composite
def nests(draw: Any) -> Kernel:
    """Loops around one instruction whose operands overlap, repeat, stand still or step in rings."""
    depth = draw(st.integers(0, 3))
    trips = [draw(st.integers(1, 4)) for _ in range(depth)]

    def view(memory: int, dims: int, dense: bool) -> View:
        strides = [draw(st.sampled_from([0, 1, 2, 3, 8])) for _ in range(dims)]
        if dense:
            strides[-1] = 1
        terms = [
            Term(d, draw(st.sampled_from([0, 1, 4, 16, 64])), draw(st.sampled_from([0, 0, 2, 3]))) for d in range(depth)
        ]
        return View(memory, draw(st.integers(0, 40)), tuple(strides), tuple(terms))

    if draw(st.booleans()):
        op = draw(st.sampled_from(["gemm8x8", "fuse_gemm8x8_add"]))
        shape: tuple[int, ...] = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        c = view(2, 2, True)
        operands: tuple[View, ...] = (View(2, c.base, (8, 1), c.terms), view(0, 2, True), view(1, 2, True))
    else:
        op, shape = (
            draw(st.sampled_from(["vec.add", "vec.mul", "vec.max"])),
            (draw(st.integers(1, 3)), draw(st.integers(1, 4))),
        )
        target = view(2, 2, False)
        same = draw(st.booleans())
        operands = (
            View(2, target.base, (4, 1), target.terms),
            View(2, target.base, (4, 1), target.terms) if same else view(2, 2, False),
            view(0, 2, False),
        )
    code = [
        *(Instruction("loop", (n,)) for n in trips),
        Instruction(op, shape, operands),
        *(Instruction("end") for _ in trips),
    ]
    return Kernel(0, (4096, 4096, 4096, 4096), tuple(code))


@settings(max_examples=150, deadline=None)
@given(nests(), st.integers(0, 99))
def test_loops_at_once_mean_one_after_another(kernel: Kernel, seed: int) -> None:
    results = []
    for code in (kernel.code, spelt(kernel.code)):
        r = Run(Program(Kernel(0, kernel.memories, code)), [])
        rng = np.random.default_rng(seed)
        for memory in r.memories.values():
            memory[:] = rng.integers(
                -2, 3, memory.size
            )  # whole numbers: sums are exact in any order, as long as they are small
        r.run()
        results.append(r.memories[2])
    big = np.abs(results[1]) > 2**24
    np.testing.assert_array_equal(results[0][~big], results[1][~big])


def test_a_product() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.random((16, 24), np.float32), rng.random((24, 16), np.float32), np.zeros((16, 16), np.float32)
    r = run(
        """
        dma.load 16x24 activations[0; 24 1], p0[0; 24 1]
        dma.load 24x16 weights[0; 16 1], p1[0; 16 1]
        loop 2
          loop 2
            fill_zero 8x8 accumulators[0 + 128*i0 + 8*i1; 16 1]
          end
        end
        loop 2
          loop 2
            loop 3
              fuse_gemm8x8_add 8x8x8 accumulators[0 + 128*i0 + 8*i1; 16 1], activations[0 + 192*i0 + 8*i2; 24 1], weights[0 + 128*i2 + 8*i1; 16 1]
            end
          end
        end
        vec.max 16x16 accumulators[0; 16 1], accumulators[0; 16 1], 3.0
        dma.store 16x16 p2[0; 16 1], accumulators[0; 16 1]
        """,  # noqa: E501
        a.reshape(-1), b.reshape(-1), c.reshape(-1),
    )  # fmt: skip
    np.testing.assert_allclose(c, np.maximum(a @ b, 3), rtol=1e-5)
    assert r.counts.multiply_adds == 16 * 24 * 16
    assert r.counts.bytes_in == 4 * 2 * 16 * 24 and r.counts.bytes_out == 4 * 256
    assert 0 < r.counts.utilisation < r.counts.busy["matrix"] / r.counts.cycles
    assert PEAK * GEMM_CYCLES == 512


DOUBLE = """
loop 6
  dma.load 64  activations[0 + RING*i0%2; 1], p0[0 + 64*i0; 1]
  loop 2
    loop 8
      fuse_gemm8x8_add 8x8x8 accumulators[0; 8 1], activations[0 + RING*i0%2; 8 1], weights[0; 8 1]
    end
    vec.copy 1x64 vectors[0; 64 1], activations[0 + RING*i0%2; 64 1]
  end
end
"""


def test_two_buffers_in_turn_are_faster_than_one() -> None:
    data = np.ones(6 * 64, np.float32)
    one, two = (run(DOUBLE.replace("RING", str(ring)), data).counts for ring in (0, 64))
    assert two.cycles < one.cycles
    assert two.busy == one.busy and two.multiply_adds == one.multiply_adds
    assert two.cycles < sum(two.busy.values())  # units worked at once


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "loop 5\n dma.load 256 activations[0 + 256*i0; 1], p0[0; 1]\nend",
            (
                "kernel 'kernel' leaves the memory 'activations' of the npu\n  dma.load 256, operand 0, in loops 5\n"
                "  why: it touches bytes 0 … 5119, the memory has 4096"
            ),
        ),
        (
            "dma.load 8 activations[0; 1], p0[1000; 1]",
            "leaves the memory 'parameter 0' of the npu\n  dma.load 8, operand 1\n  why: it touches bytes 4000 … 4031",
        ),
        (
            "fill_zero 8x8 accumulators[-1; 8 1]",
            "leaves the memory 'accumulators' of the npu\n  fill_zero 8x8, operand 0\n  why: it touches bytes -4 … ",
        ),
    ],
)
def test_what_leaves_a_memory(text: str, why: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        run(text, np.zeros(1000, np.float32))
    assert why in str(caught.value)


def test_vector_operations_agree_with_numpy() -> None:
    data = np.array([-2.5, -1.0, -0.0, 0.5, 1.0, 3.5, np.inf, np.nan], np.float32)
    out = np.zeros((6, 8), np.float32)
    run(
        """
        dma.load 8 vectors[0; 1], p0[0; 1]
        vec.floor 1x8 activations[0; 8 1], vectors[0; 8 1]
        vec.lt 1x8 activations[8; 8 1], vectors[0; 8 1], 0.75
        vec.select 1x8 activations[16; 8 1], activations[8; 8 1], 7.0, vectors[0; 8 1]
        vec.fma 1x8 activations[24; 8 1], vectors[0; 8 1], 2.0, 1.0
        vec.erf 1x8 activations[32; 8 1], vectors[0; 8 1]
        vec.not 1x8 activations[40; 8 1], activations[8; 8 1]
        dma.store 6x8 p1[0; 8 1], activations[0; 8 1]
        """,
        data, out.reshape(-1),
    )  # fmt: skip
    less = data < 0.75
    erf = [-0.99959305, -0.84270079, 0.0, 0.52049988, 0.84270079, 0.99999926, 1.0, np.nan]
    expected = [np.floor(data), less, np.where(less, 7, data), data * 2 + 1, erf, ~less]
    np.testing.assert_allclose(out, np.array(expected, np.float32), atol=1e-6)


def test_a_device_runs_a_section() -> None:
    text = (
        "loop 2\n dma.load 4 activations[0; 1], p0[0 + 4*i0; 1]\n dma.store 4 p1[0 + 4*i0; 1], activations[0; 1]\nend\n"
    )
    code = encode(assemble(HEAD.format(2) + text))
    image, entries = pack({"first": code, "second": code})
    device = Npu(1 << 16)
    from weft_runtime.device import Slice

    a, b = device.reserve(40), device.reserve(32)
    device.write(Slice(a, 8, 32), np.arange(8, dtype=np.float32))
    module: Module = device.load(image, entries)
    device.launch(module, "second", [Slice(a, 8, 32), Slice(b, 0, 32)], [])
    out = np.zeros(8, np.float32)
    device.read(Slice(b, 0, 32), out)
    np.testing.assert_array_equal(out, np.arange(8))
    assert device.free == (1 << 16) - 72
    assert device.report().splitlines()[1].startswith("second")
    assert "dma.load 4  activations[0; 1], p0[0 + 4*i0; 1]" in str(module)
    del a, b
    assert device.free == 1 << 16
    with pytest.raises(ExecutionError, match="device 'npu' has too little memory"):
        device.reserve(1 << 17)
    with pytest.raises(
        ExecutionError, match=r"kernel 'x' of the npu is cut short\n  why: it has \d+ bytes, \d+ are there"
    ):
        unpack(image[:-1], {"x": entries["second"]})
    with pytest.raises(ExecutionError, match="kernel 'x' of the npu lies outside its section"):
        unpack(image, {"x": len(image)})
