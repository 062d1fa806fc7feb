"""Transpositions are squares of vectors, shuffled in registers: any shape, order of axes, dtype and vector width."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llvm.test_emitter import agree, data, lowered

import weft
from weft import dtypes as dt
from weft.compilation import Compilation
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.resolve import resolve_target
from weft_llvm.transpositions import crossed
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.movement import Transpose

CPUS = ["", " -mcpu=x86-64-v3", " -mcpu=x86-64"] if platform.machine() == "x86_64" else [""]


@given(st.integers(1, 6), st.integers(0, 5), st.data())
def test_the_network_gives_the_columns_of_its_rows(lanes: int, part: int, data: st.DataObject) -> None:
    width = 1 << lanes
    count = data.draw(st.integers(1, width))
    vectors: dict[str, list[Any]] = {f"row{r}": [(r, c) for c in range(width)] for r in range(count)}
    vectors["poison"] = [None] * width

    def shuffle(a: str, c: str, picks: Any) -> str:
        name = f"v{len(vectors)}"
        both = vectors[a] + vectors[c]
        vectors[name] = [both[k] for k in picks]
        return name

    columns = crossed([f"row{r}" for r in range(count)], width, 1 << part, shuffle)
    assert [vectors[c][:count] for c in columns] == [[(r, c) for r in range(count)] for c in range(width)]


@st.composite
def transpositions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    rank = draw(st.integers(2, 5))
    most = {2: 150, 3: 40, 4: 18, 5: 9}[rank]
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank)))
    order = tuple(draw(st.permutations(range(rank))))
    dtype = draw(st.sampled_from(("float32", "float64", "int64", "float16", "bfloat16", "uint8", "int32", "bool")))
    return shape, order, dtype, draw(st.sampled_from(CPUS))


@settings(max_examples=60, deadline=None)
@given(transpositions())
def test_every_transposition_moves_each_element(case: tuple[tuple[int, ...], tuple[int, ...], str, str]) -> None:
    shape, order, dtype, cpu = case
    t = tensor_type(dtype, shape)
    b = GraphBuilder()
    b.output(b.add(Transpose(order), b.input("x", t)), "y")
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 120, shape).astype(t.dtype.numpy)
    y = weft.compile(b.build(), target="llvm" + cpu, cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(y, x.transpose(order))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("shape", [(64, 96), (37, 45), (33, 700), (700, 33), (1100, 1000)])
def test_what_is_fused_with_a_transposition_is_computed_in_its_squares(shape: tuple[int, int], cpu: str) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", shape))
    bias = b.input("bias", tensor_type("float32", (shape[0],)))
    b.output(b.add(Relu(), b.add(Add(), b.add(Transpose((1, 0)), x), bias)), "y")
    compilation = Compilation(resolve_target("llvm -threads=2" + cpu), cache=False)
    executable = compilation.run(b.build())
    (kernel,) = compilation.kernels.values()
    ways = {str(c.name): c.value for c in kernel.choices}
    assert [v for name, v in ways.items() if name.endswith(".lanes")] == ["squares"]
    values = np.random.default_rng(0)
    arrays = {"x": values.standard_normal(shape, np.float32), "bias": values.standard_normal(shape[:1], np.float32)}
    np.testing.assert_array_equal(executable.run(arrays)["y"], np.maximum(arrays["x"].T + arrays["bias"], 0))


@pytest.mark.parametrize("apart", [3, 8, 9, 20])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.int8, dt.bool_])
def test_stores_whose_lanes_are_columns(dtype: dt.DType, apart: int) -> None:
    """All lanes, and those of a condition. Rows that overlap are written in the order of the stores."""
    size = 12 * apart + 9
    stores = "\n".join(f"y[j*{apart} + i*{8 * apart} + {k}] = x[{k * 12} + i*8 + j]" for k in range(9))
    p = lowered(f"""program p(x: {dtype}[{12 * 9}]) -> (y: {dtype}[{size}]) {{
      for i in 2 {{ for j in 8 vectorized {{ if i*8 + j < 12 {{ {stores} }} }} }}
    }}""")
    agree(p, [np.resize(data(dtype, 3), 12 * 9)], threads=(0,))


def test_stores_that_read_what_they_write_stay_apart() -> None:
    p = lowered("""program p(x: float32[16]) -> (y: float32[80]) {
      for i in 80 { y[i] = 1.0f32 }
      for j in 8 vectorized {
        y[j*10] = x[j]
        y[j*10 + 1] = y[j*10] + x[j + 8]
      }
    }""")
    agree(p, [np.arange(16, dtype=np.float32)], threads=(0,))
