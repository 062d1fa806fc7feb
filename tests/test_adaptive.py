"""Sizes that come often get executables of their own; results stay what they are."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import weft
import weft_ops as ops
from weft.adaptive import AdaptiveExecutable, AdaptiveWarning
from weft.errors import ExecutionError, InputError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type


def mlp() -> Graph:
    b = GraphBuilder("mlp")
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    b.output(
        b.add(
            ops.Relu(), b.add(ops.MatMul(), b.input("x", tensor_type("float32", ("batch", 64))), b.constant(weights))
        ),
        "y",
    )
    return b.build()


def data(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def open_sizes() -> weft.Executable:
    return weft.compile(mlp(), cache=False)


def test_sizes_that_come_often_are_compiled_for() -> None:
    exe = weft.compile_adaptive(mlp(), most=1, after=3, cache=False)
    before = exe(data(4))
    for _ in range(2):
        exe.run({"x": data(4)})
        exe(data(7))
    assert exe.wait(60) and exe.sizes == [{"x": (4, 64)}]
    np.testing.assert_allclose(exe(data(4)), before, rtol=1e-5, atol=1e-6)
    for _ in range(8):
        exe(data(7))  # there is room for one only
    assert exe.wait(60) and len(exe.sizes) == 1


def test_it_answers_while_it_compiles(open_sizes: weft.Executable) -> None:
    may_go, asked = threading.Event(), []

    def compile_for(shapes: Any) -> weft.Executable:
        asked.append(shapes)
        assert may_go.wait(60)
        return open_sizes

    exe = AdaptiveExecutable(open_sizes, compile_for, most=2, after=1)
    for _ in range(5):
        exe(data(3))
    assert not exe.wait(0) and exe.sizes == []
    may_go.set()
    assert exe.wait(60) and exe.sizes == [{"x": (3, 64)}] and asked == [{"x": (3, 64)}]


def test_what_cannot_be_compiled_is_warned_of_and_served(open_sizes: weft.Executable) -> None:
    def compile_for(shapes: Any) -> weft.Executable:
        raise ExecutionError("no room")

    exe = AdaptiveExecutable(open_sizes, compile_for, most=1, after=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exe(data(3))
        assert exe.wait(60)
    assert [w.category for w in caught] == [AdaptiveWarning] and "runs with open sizes: no room" in str(
        caught[0].message
    )
    assert exe(data(3)).shape == (3, 32)


def test_errors_are_those_of_any_executable(open_sizes: weft.Executable) -> None:
    exe = AdaptiveExecutable(open_sizes, lambda shapes: open_sizes, most=1, after=1)
    for wrong in ({}, {"x": data(2), "y": data(2)}, [data(2)], {"x": "text"}):
        with pytest.raises(InputError):
            exe.run(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes 1 inputs, got 2"):
        exe(data(2), data(2))
    with pytest.raises(InputError, match="positive numbers, got most=0, after=16"):
        weft.compile_adaptive(mlp(), most=0)


def test_it_goes_when_nobody_uses_it(open_sizes: weft.Executable) -> None:
    exe = AdaptiveExecutable(open_sizes, lambda shapes: open_sizes, most=1, after=1)
    exe(data(2))
    assert exe.wait(60)
    (thread,) = [t for t in threading.enumerate() if t.name == "weft-adaptive" and t.is_alive()][-1:]
    del exe
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
