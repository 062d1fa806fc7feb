"""Constants are copied once, packed as their layouts say, and what they came from is let go."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import GraphBuilder, TensorType, Value, tensor_type
from weft.weights import Weights, packed
from weft_ops import Add, MatMul


def constant(data: np.ndarray, layout: Layout | None = None) -> Value:
    return Value("w", TensorType(weft.dtypes.dtype(data.dtype), data.shape, layout), constant=data)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([None, blocked(2, 0, 8), Layout((Split(1, 16), Permute((1, 0, 2))))]),
    st.booleans(),
)
def test_a_packed_constant_unpacks_to_what_it_was(rows: int, columns: int, layout: Layout | None, turned: bool) -> None:
    data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    if turned:
        data = np.ascontiguousarray(data.T).T
    stored = packed(constant(data, layout))
    assert stored.flags.c_contiguous and not np.may_share_memory(stored, data)
    np.testing.assert_array_equal(stored if layout is None else layout.unpack(stored, data.shape), data)


def resident(of: mmap.mmap) -> int:
    """Bytes of a mapping that this process holds."""
    at = f"{np.frombuffer(of, np.uint8).__array_interface__['data'][0]:x}-"
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith(at):
                break
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux's account of mappings")
def test_a_mapped_file_is_let_go_once_packed(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    (tmp_path / "weights").write_bytes(bytes(100) + data.tobytes())
    with open(tmp_path / "weights", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    source = np.frombuffer(memoryview(mapped)[100:], np.float32).reshape(1024, 1024)
    assert source.sum() and resident(mapped) >= data.nbytes
    with Weights([constant(source), other := constant(source[::-2, ::-1])]) as weights:
        np.testing.assert_array_equal(weights[other], data[::-2, ::-1])
    assert resident(mapped) < data.nbytes // 64
    np.testing.assert_array_equal(source, data)  # read again where somebody asks


@pytest.mark.parametrize("layout", [None, blocked(2, 0, 8)])
def test_data_that_only_the_compilation_has_goes_once_packed(layout: Layout | None) -> None:
    made, given = constant(np.arange(60.0).reshape(10, 6), layout), constant(np.ones((10, 6)), layout)
    data, gone = given.constant, weakref.ref(made.constant)
    with Weights([made, given], {id(made)}) as weights:
        stored = weights[made]
    assert gone() is None and given.constant is data
    np.testing.assert_array_equal(made.constant, np.arange(60.0).reshape(10, 6))
    np.testing.assert_array_equal(packed(made), stored)


def test_data_of_the_callers_graph_stays() -> None:
    data = np.ones((64, 64), np.float32)
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (64, 64)))
    b.output(b.add(MatMul(), x, b.constant(data)), "y")
    graph = b.build()
    weft.compile(graph, cache=False)
    assert next(iter(graph.constants())).constant is data


def test_memory_of_the_caller_is_not_let_go() -> None:
    mapped = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    data = np.frombuffer(mapped, np.float32)
    data[:] = 3
    packed(constant(data))
    assert (data == 3).all()


def test_a_compiled_model_does_not_follow_later_changes_of_its_source() -> None:
    data = np.ones((64, 64), np.float32)
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (64, 64)))
    b.output(b.add(Add(), b.add(MatMul(), x, b.constant(data)), b.constant(data[0])), "y")
    exe = weft.compile(b.build(), cache=False)
    data[:] = 7
    np.testing.assert_array_equal(exe(np.eye(64, dtype=np.float32)), np.full((64, 64), 2, np.float32))
