"""Values whose number of dimensions shows only at run time: what follows them is converted for each case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx.models import constant, info, load, model, operators

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate

node = helper.make_node
F = np.float32
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def array(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=F).reshape(shape) - 3


def graph_of(nodes: list[Any], result: str) -> Any:
    return helper.make_graph(nodes, "branch", [], [info(result, None)])


def squeezed(name: str, x: str = "x", axis: int = -1) -> list[Any]:
    """What PyTorch writes for `x.squeeze(axis)`: the axis goes if it has one element."""
    then = graph_of([node("Squeeze", [x, "axis"], [f"{name}_s"])], f"{name}_s")
    orelse = graph_of([node("Identity", [x], [f"{name}_i"])], f"{name}_i")
    return [
        node("Constant", [], ["axis"], value=constant("axis", [axis], np.int64)),
        node("Shape", [x], [f"{name}_shape"]),
        node("Gather", [f"{name}_shape", "axis"], [f"{name}_size"]),
        node("Constant", [], [f"{name}_one"], value=constant("one", [1], np.int64)),
        node("Equal", [f"{name}_size", f"{name}_one"], [f"{name}_test"]),
        node("If", [f"{name}_test"], [name], name=f"if_{name}", then_branch=then, else_branch=orelse),
    ]


def both(nodes: list[Any], inputs: list[Any], feeds: list[dict[str, Any]], **options: Any) -> list[list[Any]]:
    """The results of all outputs `y`, interpreted and compiled, which must be the same."""
    proto = model(nodes, inputs, ["y"], **options)
    graph, executable = weft.load(proto), weft.compile(proto)
    found = []
    for feed in feeds:
        interpreted = evaluate(graph, [feed[v.name] for v in graph.inputs])[0]
        compiled = executable.run(feed)["y"]
        assert compiled.shape == interpreted.shape
        np.testing.assert_allclose(compiled, interpreted, rtol=1e-6)
        found.append(compiled)
    return found


def test_a_branch_that_squeezes_gives_an_output_of_either_rank() -> None:
    x, z = array(2, 1), array(2, 3)
    one, other = both([*squeezed("s"), node("Neg", ["s"], ["y"])], [info("x", [2, "n"])], [{"x": x}, {"x": z}])
    np.testing.assert_array_equal(one, -x[:, 0])
    np.testing.assert_array_equal(other, -z)


def test_cases_meet_where_the_ranks_are_the_same_again() -> None:
    nodes = [
        *squeezed("s"),
        node("Constant", [], ["flat"], value=constant("flat", [-1], np.int64)),
        node("Reshape", ["s", "flat"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    graph = load(nodes, [info("x", [2, "n"])], ["y"])
    assert operators(graph).count("If") == 1 and operators(graph)[-1] == "Relu"
    x, z = array(2, 1), array(2, 3)
    one, other = both(nodes, [info("x", [2, "n"])], [{"x": x}, {"x": z}])
    np.testing.assert_array_equal(one, np.maximum(x.reshape(-1), 0))
    np.testing.assert_array_equal(other, np.maximum(z.reshape(-1), 0))


def test_ranks_decide_branches() -> None:
    """As PyTorch asks whether an operand of a recurrent cell has a batch."""
    nodes = [
        *squeezed("s"),
        node("Shape", ["s"], ["shape"]),
        node("Size", ["shape"], ["rank"]),
        node("Constant", [], ["one"], value=constant("one", 1, np.int64)),
        node("Equal", ["rank", "one"], ["flat"]),
        node("If", ["flat"], ["y"], then_branch=graph_of([node("Neg", ["s"], ["n"])], "n"), else_branch=graph_of(
            [node("Constant", [], ["zero"], value=constant("zero", [1], np.int64)),
             node("ReduceSum", ["s", "zero"], ["t"], keepdims=0)], "t")),
    ]  # fmt: skip
    graph = load(nodes, [info("x", [2, "n"])], ["y"])
    assert str(graph.outputs[0].type) in ("float32[rank 1]", "float32[2]")
    x, z = array(2, 1), array(2, 3)
    one, other = both(nodes, [info("x", [2, "n"])], [{"x": x}, {"x": z}])
    np.testing.assert_array_equal(one, -x[:, 0])
    np.testing.assert_array_equal(other, z.sum(1))


RECURRENT = [
    *squeezed("s", "x", 2),
    node("Constant", [], ["zero"], value=constant("zero", [0], np.int64)),
    node("Unsqueeze", ["s", "zero"], ["u"]),
    node("LSTM", ["u", "w", "r"], ["", "y"], hidden_size=3),
]
WEIGHTS = [constant("w", np.ones((1, 12, 4), F) / 8), constant("r", np.ones((1, 12, 3), F) / 8)]


def test_a_case_that_cannot_run_leaves_the_other_alone() -> None:
    """A recurrent layer takes three dimensions, so the axis must go."""
    inputs = [info("x", ["batch", 4, "n"])]
    graph = load(RECURRENT, inputs, ["y"], WEIGHTS)
    assert "If" not in operators(graph) and str(graph.outputs[0].type) == "float32[1, batch, 3]"
    (found,) = both(RECURRENT, inputs, [{"x": array(2, 4, 1)}], constants=WEIGHTS)
    plain = load(RECURRENT[-2:], [info("s", ["batch", 4])], ["y"], [*WEIGHTS, constant("zero", [0], np.int64)])
    np.testing.assert_allclose(found, evaluate(plain, [array(2, 4)])[0], rtol=1e-6)


def test_the_error_of_a_case_that_cannot_run() -> None:
    proto = model(RECURRENT, [info("x", ["batch", 4, "n"])], ["y"], WEIGHTS)
    wanted = (
        r"(?s)the model cannot run where the condition of 'if_s' is false: LSTM cannot be applied: .* \(node 'LSTM_8'"
    )
    with pytest.raises(WeftError, match=wanted):
        weft.compile(proto).run({"x": array(2, 4, 5)})


def test_neither_case_can_run() -> None:
    nodes = [*squeezed("s"), node("Conv", ["s", "w"], ["y"])]
    with pytest.raises(WeftError, match="Conv cannot be applied"):
        load(nodes, [info("x", [2, "n"])], ["y"], [constant("w", np.ones((2, 2, 3, 3), F))])


def test_conditions_that_are_data() -> None:
    then = graph_of([node("Squeeze", ["x", "axis"], ["a"])], "a")
    nodes = [
        node("If", ["c"], ["s"], then_branch=then, else_branch=graph_of([node("Neg", ["x"], ["b"])], "b")),
        node("Exp", ["s"], ["y"]),
    ]
    inputs = [info("x", [2, 1]), info("c", [], BOOL)]
    x = array(2, 1) / 4
    feeds = [{"x": x, "c": np.array(True)}, {"x": x, "c": np.array(False)}]
    one, other = both(nodes, inputs, feeds, constants=[constant("axis", [1], np.int64)])
    np.testing.assert_allclose(one, np.exp(x[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(other, np.exp(-x), rtol=1e-6)


def test_two_values_by_one_condition() -> None:
    nodes = [*squeezed("s"), *squeezed("t")[1:], node("Add", ["s", "t"], ["y"])]
    x, z = array(2, 1), array(2, 3)
    one, other = both(nodes, [info("x", [2, "n"])], [{"x": x}, {"x": z}])
    np.testing.assert_array_equal(one, 2 * x[:, 0])
    np.testing.assert_array_equal(other, 2 * z)


def test_two_values_by_different_conditions_are_refused() -> None:
    nodes = [*squeezed("s"), *squeezed("t", "z")[1:], node("Add", ["s", "t"], ["y"])]
    wanted = r"the condition of 'if_s' is true and that the condition of 'if_t' is true\n.*fix the sizes"
    with pytest.raises(UnsupportedError, match=r"(?s)a node uses two values whose numbers of dimensions.*" + wanted):
        load(nodes, [info("x", [2, "n"]), info("z", [2, "m"])], ["y"])


def test_cases_inside_of_a_body() -> None:
    """The branch that uses what another one squeezed is part of both cases."""
    inner = graph_of([node("ReduceMax", ["s"], ["m"], keepdims=0)], "m")
    nodes = [
        *squeezed("s"),
        node("If", ["c"], ["y"], then_branch=inner, else_branch=graph_of([node("Identity", ["z"], ["i"])], "i")),
    ]
    inputs = [info("x", [2, "n"]), info("c", [], BOOL), info("z", [])]
    z = np.array(7, F)
    feeds = [{"x": array(2, n), "c": np.array(c), "z": z} for n in (1, 3) for c in (True, False)]
    found = both(nodes, inputs, feeds)
    assert [float(f) for f in found] == [-2.0, 7.0, 2.0, 7.0]


# -- Squeeze without axes ---------------------------------------------------------------------------------------------


def test_squeeze_without_axes_of_sizes_known_only_at_run_time() -> None:
    nodes = [node("Squeeze", ["x"], ["s"]), node("Relu", ["s"], ["y"])]
    feeds = [{"x": array(n, 1, m)} for n in (1, 3) for m in (1, 2)]
    for found, feed in zip(both(nodes, [info("x", ["n", 1, "m"])], feeds), feeds):
        np.testing.assert_array_equal(found, np.maximum(np.squeeze(feed["x"]), 0))


def test_squeeze_without_axes_goes_on_with_what_needs_the_batch() -> None:
    """Of one element the batch goes, as in ONNX Runtime; the product of a vector and a matrix is one of vectors."""
    nodes = [node("Squeeze", ["x"], ["s"]), node("MatMul", ["s", "w"], ["y"])]
    w = array(4, 5)
    feeds = [{"x": array(1, 4, 1, 1)}, {"x": array(3, 4, 1, 1)}]
    one, other = both(nodes, [info("x", ["batch", 4, 1, 1])], feeds, constants=[constant("w", w)])
    np.testing.assert_allclose(one, array(4) @ w)
    np.testing.assert_allclose(other, array(3, 4) @ w)


def test_squeeze_without_axes_where_only_one_case_goes_on() -> None:
    nodes = [node("Squeeze", ["x"], ["s"], name="sq"), node("Transpose", ["s"], ["y"], perm=[1, 0])]
    inputs = [info("x", ["batch", 4, 1])]
    assert "If" not in operators(load(nodes, inputs, ["y"]))
    (found,) = both(nodes, inputs, [{"x": array(3, 4, 1)}])
    np.testing.assert_array_equal(found, array(3, 4).T)
    wanted = r"cannot run where axis 0 of the operand of 'sq' has 1 element: Transpose cannot be applied"
    with pytest.raises(WeftError, match=wanted):
        weft.compile(model(nodes, inputs, ["y"])).run({"x": array(1, 4, 1)})


def test_squeeze_without_axes_of_sizes_that_are_never_one() -> None:
    nodes = [
        node("Concat", ["x", "x", "c"], ["w"], axis=0),
        node("Squeeze", ["w"], ["s"]),
        node("Relu", ["s"], ["y"]),
    ]
    graph = load(nodes, [info("x", ["n", 1])], ["y"], [constant("c", array(2, 1))])
    assert graph.outputs[0].tensor.rank == 1 and "If" not in operators(graph)


def test_squeeze_without_axes_of_more_sizes_than_are_tried() -> None:
    nodes = [node("Squeeze", ["x"], ["s"]), node("Relu", ["s"], ["y"])]
    executable = weft.compile(model(nodes, [info("x", ["a", "b", "c", "d"])], ["y"]))
    np.testing.assert_array_equal(executable.run({"x": array(1, 1, 2, 3)})["y"], np.maximum(array(2, 3), 0))
    with pytest.raises(WeftError, match="whose size is known only at run time, has 1 element, and would have to go"):
        executable.run({"x": array(2, 1, 2, 1)})
