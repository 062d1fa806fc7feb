"""Sums of millions of floats are as exact as short ones, whichever operator, rule and target adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
import weft_ops as ops
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, Value, tensor_type

COUNT = 4_000_000
N, M = Var("n"), Var("m")
X = np.random.default_rng(0).uniform(0, 1, COUNT).astype(np.float32)
WIDE = X.astype(np.float64)
TOLERANCE = 5e-6
"""Relative. A block of 1,024 float32 additions may be off by 3e-5, and is by a few 1e-6; a chain of millions by 1e-5 to
1e-1."""
Build = Callable[..., Value]
Case = tuple[Build, tuple[tuple[Any, ...], ...], tuple[tuple[int, ...], ...], Callable[..., Any]]

CASES: dict[str, Case] = {
    "all": (lambda b, x: b.add(ops.ReduceSum(), x), ((COUNT,),), ((COUNT,),), lambda x: x.sum()),
    "all_open": (lambda b, x: b.add(ops.ReduceSum(), x), ((N,),), ((COUNT,),), lambda x: x.sum()),
    "columns": (lambda b, x: b.add(ops.ReduceSum((0,)), x), ((COUNT // 4, 4),), ((COUNT // 4, 4),), lambda x: x.sum(0)),
    "columns_open": (lambda b, x: b.add(ops.ReduceMean((0,)), x), ((N, 32),), ((COUNT // 32, 32),),
        lambda x: x.mean(0)),
    "pool": (lambda b, x: b.add(ops.AveragePool((1000, 2000)), x), ((1, 2, 1000, 2000),), ((1, 2, 1000, 2000),),
        lambda x: x.mean((2, 3), keepdims=True)),
    "pool_open": (lambda b, x: b.add(ops.ReduceMean((2, 3)), x), ((1, 4, N, M),), ((1, 4, 1000, 1000),),
        lambda x: x.mean((2, 3))),
    "product": (lambda b, x, y: b.add(ops.MatMul(), x, y), ((2, N), (N, 2)), ((2, COUNT // 2), (COUNT // 2, 2)),
        lambda x, y: x @ y),
    "product_tile": (lambda b, x, y: b.add(ops.MatMul(), x, y), ((40, N), (N, 40)), ((40, COUNT // 40), (COUNT // 40,
        40)), lambda x, y: x @ y),
    "product_fixed": (
        lambda b, x, y: b.add(ops.MatMul(), x, y), ((8, COUNT // 8), (COUNT // 8, 8)), ((8, COUNT // 8), (COUNT // 8,
            8)), lambda x, y: x @ y
    ),
    "convolution": (
        lambda b, x, w: b.add(ops.Conv(), x, w), ((1, 4, 500, 500), (2, 4, 500, 500)), ((1, 4, 500, 500), (2, 4, 500,
            500)),
        lambda x, w: (x.reshape(1, -1) @ w.reshape(2, -1).T).reshape(1, 2, 1, 1),
    ),
    "softmax": (lambda b, x: b.add(ops.Softmax(-1), x), ((1, N),), ((1, COUNT),),
        lambda x: np.exp(x) / np.exp(x).sum()),
}  # fmt: skip


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_sums_of_millions(name: str) -> None:
    build, types, shapes, reference = CASES[name]
    b = GraphBuilder("g")
    b.output(build(b, *(b.input(f"x{k}", tensor_type("float32", t)) for k, t in enumerate(types))), "y")
    arrays = [X[: int(np.prod(s))].reshape(s) for s in shapes]
    y = weft.compile(b.build(), target="llvm", cache=False).run({f"x{k}": x for k, x in enumerate(arrays)})["y"]
    close(y, reference(*(a.astype(np.float64) for a in arrays)))


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize(
    ("exclusive", "shape", "dtype"),
    [(False, (COUNT // 4,), "float32"), (True, (COUNT // 16, 4), "float32"), (False, (COUNT // 16, 4), "float16")],
)
def test_prefix_sums(target: str, exclusive: bool, shape: tuple[int, ...], dtype: str) -> None:
    op = ops.CumSum(0, exclusive, reverse=exclusive)
    x = np.full(shape, 1e-3, dtype)
    want = x.astype(np.float64).cumsum(0)
    want = np.append(np.flip(want[:-1], 0), np.zeros_like(want[:1]), 0) if exclusive else want
    b = GraphBuilder("g")
    b.output(b.add(op, b.input("x", tensor_type(dtype, (N, *shape[1:])))), "y")
    y = weft.compile(b.build(), target=target, cache=False).run({"x": x})["y"].astype(np.float64)
    np.testing.assert_allclose(y, want, rtol=2e-6 if dtype == "float32" else 5e-4)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_prefix_sums_along_an_axis_that_only_a_run_knows(target: str) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], reverse=1)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("axis", TensorProto.INT64, []),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    executable = weft.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), target=target, cache=False
    )
    for axis, shape in ((0, (COUNT // 16, 2)), (-1, (2, COUNT // 16)), (1, (30, 50))):
        x = np.full(shape, 0.1, np.float32)
        (y,) = executable.run({"x": x, "axis": np.array(axis)}).values()
        np.testing.assert_allclose(y, np.flip(np.flip(x, axis).cumsum(axis, dtype=np.float64), axis), rtol=2e-6)


def test_attention_to_many_keys() -> None:
    """One query: its product streams through the values, and stores its sums in memory."""
    keys = 500_000
    q, k = np.zeros((1, 1, 1, 16), np.float32), np.ones((1, 1, keys, 16), np.float32)
    v = np.full_like(k, 0.1)
    b = GraphBuilder("g")
    inputs = [b.input(name, tensor_type("float32", (1, 1, n, 16))) for name, n in (("q", 1), ("k", N), ("v", N))]
    b.output(b.add(ops.ScaledDotProductAttention(), *inputs), "y")
    close(weft.compile(b.build(), target="llvm", cache=False).run({"q": q, "k": k, "v": v})["y"], v[:, :, :1])


def test_windows_with_padding() -> None:
    """The plain loops of target c ask in each step whether there is an element."""
    n = COUNT // 2
    b = GraphBuilder("g")
    b.output(
        b.add(ops.AveragePool((n,), pads=(10, 10), strides=(10,)), b.input("x", tensor_type("float32", (1, 1, n)))), "y"
    )
    y = weft.compile(b.build(), target="c", cache=False).run({"x": X[:n].reshape(1, 1, n)})["y"]
    close(y, [[[WIDE[: n - 10].mean(), WIDE[:n].mean(), WIDE[10:n].mean()]]])


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("axes", [[0], [1], [1, 0]])
def test_axes_that_only_a_run_knows(target: str, axes: list[int]) -> None:
    """One program for any axes: whichever is long."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("axes", TensorProto.INT64, [len(axes)]),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    executable = weft.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), target=target, cache=False
    )
    for shape in ((COUNT // 2, 2), (2, COUNT // 2), (2000, 2000)):
        (y,) = executable.run({"x": X.reshape(shape), "axes": np.array(axes)}).values()
        close(y, WIDE.reshape(shape).sum(tuple(axes)))
