"""Sums of millions of floats are as exact as short ones, whichever operator, rule and target adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from weft import ops
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, Value, tensor_type

COUNT = 4_000_000
N, M = Var("n"), Var("m")
X = np.random.default_rng(0).uniform(0, 1, COUNT).astype(np.float32)
WIDE = X.astype(np.float64)
TOLERANCE = 5e-6
"""Relative. A block of 1,024 float32 additions may be off by 3e-5, and is by a few 1e-6; a chain of millions by 1e-5 to 1e-1."""
Build = Callable[..., Value]
Case = tuple[Build, tuple[tuple[Any, ...], ...], tuple[tuple[int, ...], ...], Callable[..., Any]]

CASES: dict[str, Case] = {
    "all": (lambda b, x: b.add(ops.ReduceSum(), x), ((COUNT,),), ((COUNT,),), lambda x: x.sum()),
    "all_open": (lambda b, x: b.add(ops.ReduceSum(), x), ((N,),), ((COUNT,),), lambda x: x.sum()),
    "columns": (lambda b, x: b.add(ops.ReduceSum((0,)), x), ((COUNT // 4, 4),), ((COUNT // 4, 4),), lambda x: x.sum(0)),
    "columns_open": (lambda b, x: b.add(ops.ReduceMean((0,)), x), ((N, 32),), ((COUNT // 32, 32),), lambda x: x.mean(0)),
    "pool": (lambda b, x: b.add(ops.AveragePool((1000, 2000)), x), ((1, 2, 1000, 2000),), ((1, 2, 1000, 2000),), lambda x: x.mean((2, 3), keepdims=True)),
    "pool_open": (lambda b, x: b.add(ops.ReduceMean((2, 3)), x), ((1, 4, N, M),), ((1, 4, 1000, 1000),), lambda x: x.mean((2, 3))),
    "product": (lambda b, x, y: b.add(ops.MatMul(), x, y), ((2, N), (N, 2)), ((2, COUNT // 2), (COUNT // 2, 2)), lambda x, y: x @ y),
    "product_tile": (lambda b, x, y: b.add(ops.MatMul(), x, y), ((40, N), (N, 40)), ((40, COUNT // 40), (COUNT // 40, 40)), lambda x, y: x @ y),
    "product_fixed": (
        lambda b, x, y: b.add(ops.MatMul(), x, y), ((8, COUNT // 8), (COUNT // 8, 8)), ((8, COUNT // 8), (COUNT // 8, 8)), lambda x, y: x @ y
    ),
    "convolution": (
        lambda b, x, w: b.add(ops.Conv(), x, w), ((1, 4, 500, 500), (2, 4, 500, 500)), ((1, 4, 500, 500), (2, 4, 500, 500)),
        lambda x, w: (x.reshape(1, -1) @ w.reshape(2, -1).T).reshape(1, 2, 1, 1),
    ),
    "softmax": (lambda b, x: b.add(ops.Softmax(-1), x), ((1, N),), ((1, COUNT),), lambda x: np.exp(x) / np.exp(x).sum()),
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
@pytest.mark.parametrize("axes", [[0], [1], [1, 0]])
def test_axes_that_only_a_run_knows(target: str, axes: list[int]) -> None:
    """One program for any axes: whichever is long."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]), helper.make_tensor_value_info("axes", TensorProto.INT64, [len(axes)])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    executable = weft.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), target=target, cache=False)
    for shape in ((COUNT // 2, 2), (2, COUNT // 2), (2000, 2000)):
        (y,) = executable.run({"x": X.reshape(shape), "axes": np.array(axes)}).values()
        close(y, WIDE.reshape(shape).sum(tuple(axes)))
