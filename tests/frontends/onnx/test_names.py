"""Axes of one name: sizes of their own, unless an operator needs them to be equal."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx.models import constant, info, load, model

import weft
from weft.errors import WeftError

node = helper.make_node
F = np.float32
CONV = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), node("GlobalAveragePool", ["h"], ["y"])]
WEIGHTS = [constant("w", np.arange(27, dtype=F).reshape(1, 3, 3, 3) / 9)]


def types(graph: Any) -> list[str]:
    return [str(v.type) for v in graph.inputs]


def test_axes_of_one_name_that_differ() -> None:
    """As a classifier of lines of text declares its height and its width."""
    proto = model(CONV, [info("x", ["n", 3, "size", "size"])], ["y"], WEIGHTS)
    with pytest.warns(UserWarning, match="several axes named 'size'.*sizes of their own, size, size_1"):
        graph = weft.load(proto)
    assert types(graph) == ["float32[n, 3, size, size_1]"]
    with pytest.warns(UserWarning, match="'size'"):
        executable = weft.compile(proto)
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(F)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fixed = weft.compile(model(CONV, [info("x", [2, 3, 5, 8])], ["y"], WEIGHTS))
    np.testing.assert_allclose(executable.run({"x": x})["y"], fixed.run({"x": x})["y"], rtol=1e-5)


@pytest.mark.parametrize("name", ["?", "-1", "None"])
def test_placeholders_are_no_names(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = load(CONV, [info("x", ["n", 3, name, name])], ["y"], WEIGHTS)
        both = load([node("Add", ["x", "z"], ["y"])], [info("x", [name]), info("z", [name])], ["y"])
    (x,) = graph.inputs
    assert len({str(d) for d in x.shape}) == 4 and str(x.shape[0]) == "n"
    assert both.inputs[0].shape != both.inputs[1].shape


def test_axes_that_an_operator_needs_to_be_equal_are_one_size() -> None:
    inputs = [info("x", ["batch", "seq"]), info("z", ["batch", "seq"])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = load([node("Add", ["x", "z"], ["y"])], inputs, ["y"])
        executable = weft.compile(model([node("Add", ["x", "z"], ["y"])], inputs, ["y"]))
    assert types(graph) == ["float32[batch, seq]"] * 2 and [type(n.op).__name__ for n in graph.nodes] == ["Add"]
    with pytest.raises(WeftError, match="seq"):
        executable.run({"x": np.zeros((2, 3), F), "z": np.zeros((2, 4), F)})


def test_axes_of_a_name_that_very_many_have_are_one_size() -> None:
    """Else the size of their concatenation is a formula as long."""
    for count, last in ((64, "n_63"), (65, "n")):
        inputs = [info(f"x{k}", ["n", 3]) for k in range(count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if count == 64 else "error")
            graph = load([node("Concat", [f"x{k}" for k in range(count)], ["y"], axis=0)], inputs, ["y"])
        assert types(graph)[-1] == f"float32[{last}, 3]"


def test_each_name_by_itself() -> None:
    """The lengths meet in no operator, the batches do."""
    nodes = [node("ReduceSum", ["x"], ["a"], keepdims=1), node("ReduceSum", ["z"], ["b"], keepdims=1)]
    one = constant("one", [1], np.int64)
    nodes = [node("ReduceSum", [v, "one"], [r], keepdims=0) for v, r in (("x", "a"), ("z", "b"))]
    nodes.append(node("MatMul", ["a", "b"], ["y"]))
    proto = model(nodes, [info("x", ["batch", "seq"]), info("z", ["batch", "seq"])], ["y"], [one])
    with pytest.warns(UserWarning, match="'seq'") as found:
        graph = weft.load(proto)
    assert types(graph) == ["float32[batch, seq]", "float32[batch, seq_1]"]
    assert not any("'batch'" in str(w.message) for w in found)


def test_an_operator_inside_of_a_branch_needs_them() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph([node(op, ["x", "z"], [op])], op, [], [info(op, None)])

    nodes = [node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul"))]
    inputs = [info("x", ["n"]), info("z", ["n"]), info("c", [], 9)]
    assert types(load(nodes, inputs, ["y"]))[:2] == ["float32[n]", "float32[n]"]


def test_sizes_may_still_be_given_by_name() -> None:
    proto = model(CONV, [info("x", ["n", 3, "size", "size"])], ["y"], WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = weft.load(proto, dims={"size": 6})
    assert types(graph) == ["float32[n, 3, 6, 6]"]


def test_a_requirement_of_sizes_needs_them() -> None:
    """Lengths of sequences are at most as large as the number of steps; batches are equal."""
    inputs = [info("x", ["seq", "batch", 2]), info("h", [1, "batch", 3])]
    constants = [constant("w", np.ones((1, 3, 2), F)), constant("r", np.ones((1, 3, 3), F))]
    nodes = [node("RNN", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=3)]
    assert types(load(nodes, inputs, ["y"], constants)) == ["float32[seq, batch, 2]", "float32[1, batch, 3]"]
    nodes = [node("Attention", ["q", "k", "v"], ["y"], q_num_heads=2, kv_num_heads=2)]
    inputs = [info(n, ["batch", "seq" if n == "q" else "keys", 8]) for n in "qkv"]
    found = types(load(nodes, inputs, ["y"], opset=23))
    assert found == ["float32[batch, seq, 8]", "float32[batch, keys, 8]", "float32[batch, keys, 8]"]
