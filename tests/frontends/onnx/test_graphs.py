"""How graphs are put together: names, order, symbols, shapes as formulas, functions, branches, and every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx.models import constant, info, load, model, operators, run

import weft
from weft.errors import FrontendError, UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft.passes.fold_constants import fold_constants

node = helper.make_node
F = np.float32


def array(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=F).reshape(shape)


# -- names and order --------------------------------------------------------------------------------------------------


def test_names_are_kept() -> None:
    graph = load([node("Relu", ["x"], ["hidden"], name="act"), node("Neg", ["hidden"], ["y"])], [info("x", [2])], ["y"])
    assert [v.name for v in graph.inputs] == ["x"] and graph.output_names == ["y"]
    assert [n.names for n in graph.nodes] == [{"act"}, {"Neg_1"}]
    assert [n.output.name for n in graph.nodes] == ["hidden", "y"]


def test_nodes_in_any_order() -> None:
    graph = load([node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"])], [info("x", [2])], ["y"])
    assert operators(graph) == ["Relu", "Negative"]


def test_cycle() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second")]
    with pytest.raises(
        FrontendError,
        match=r"the graph has a cycle of 2 node\(s\)\n  'first' \(Add\) ← 'second' \(Neg\) ← 'first' \(Add\)",
    ):
        load(nodes, [info("x", [2])], ["a"])


def test_missing_value() -> None:
    with pytest.raises(FrontendError, match=r"'z' is used and computed by no node\n  node 'sum' \(Add\)"):
        load([node("Add", ["x", "z"], ["y"], name="sum")], [info("x", [2])], ["y"])


def test_an_output_of_another_type_than_declared() -> None:
    with pytest.raises(FrontendError, match="output 'y' is declared as int64 and computed as float32\n  graph 'test'"):
        load([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2], TensorProto.INT64)])


def test_missing_output() -> None:
    with pytest.raises(FrontendError, match="output 'nowhere' is computed by no node"):
        load([node("Neg", ["x"], ["y"])], [info("x", [2])], ["nowhere"])


def test_value_computed_twice() -> None:
    with pytest.raises(FrontendError, match="value 'y' is computed twice"):
        load([node("Neg", ["x"], ["y"]), node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node("Add", ["x"], ["y"], name="n"), r"Add: takes 2 input\(s\), got 1\n  node 'n'"),
        (node("Relu", ["x"], ["y", "z"], name="n"), r"Relu: gives 1 output\(s\), got 2"),
        (node("Relu", ["x"], ["y"], name="n", alpha=1.0), "Relu: has no attribute 'alpha' in version 20"),
        (node("LeakyRelu", ["x"], ["y"], name="n", alpha=1), "LeakyRelu: attribute 'alpha' is a int, expected float"),
        (node("Concat", ["x"], ["y"], name="n"), "Concat: attribute 'axis' is missing"),
        (node("Relu", [""], ["y"], name="n"), "Relu: input 0 is missing"),
        (
            node("MatMul", ["x", "x"], ["y"], name="n"),
            r"MatMul cannot be applied: MatMul: length of the products: expected 3, got 2\n  node 'n'",
        ),
    ],
)
def test_ill_formed_nodes(bad: onnx.NodeProto, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        load([bad], [info("x", [2, 3])], ["y"])


def test_everything_unsupported_at_once() -> None:
    nodes = [
        node("Riddle", [], ["r"], domain="com.example", name="noise"),
        node("Add", ["x", "r"], ["a"]),
        node("Multinomial", ["a"], ["b"], name="draw"),
        node("Enigma", ["z"], ["d"], domain="com.example", name="all"),
        node("Riddle", [], ["s"], domain="com.example", name="more"),
        node("Mystery", ["b", "d"], ["c"], domain="com.example", name="own"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        load(nodes, [info("x", [2]), info("z", ["n", 1])], ["c", "s"], domains=[helper.make_opsetid("com.example", 1)])
    assert "uses 3 things" in caught.value.what and "(FunctionProto) can define an operator" in str(caught.value.hint)
    assert (
        caught.value.where == "operator com.example.Enigma of operator set 1: 'all'\n"
        "operator com.example.Mystery of operator set 1: 'own'\n"
        "operator com.example.Riddle of operator set 1: 'noise', 'more'"
    )


def test_inputs_that_are_no_tensors() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    graph = load([node("SequenceLength", ["x"], ["y"])], [sequence], ["y"])
    assert [str(v.type) for v in graph.inputs] == ["sequence(float32[rank 1])"] and operators(graph) == [
        "SequenceLength"
    ]
    graph = load([node("StringConcat", ["x", "x"], ["y"])], [info("x", ["n"], TensorProto.STRING)], ["y"], opset=20)
    assert [str(v.type) for v in (*graph.inputs, *graph.outputs)] == ["string[n]", "string[n]"]
    with pytest.raises(UnsupportedError, match="input 'x' has no shape"):
        load([node("Identity", ["x"], ["y"])], [info("x", None)], ["y"])
    proto = helper.make_value_info("x", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2]))
    with pytest.raises(UnsupportedError, match="input 'x' is a sparse_tensor, which is not supported"):
        load([node("Identity", ["x"], ["y"])], [proto], ["y"])
    proto = helper.make_value_info(
        "x", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    with pytest.raises(UnsupportedError, match="input 'x' is a map, which is not supported"):
        load([node("Identity", ["x"], ["y"])], [proto], ["y"])


def test_old_operator_sets_where_operators_did_not_change() -> None:
    assert operators(load([node("Not", ["x"], ["y"])], [info("x", [2], TensorProto.BOOL)], ["y"], opset=1)) == [
        "LogicalNot"
    ]
    with pytest.raises(UnsupportedError, match=r"operator Reshape of operator set 4 \(before 7\)"):
        load([node("Reshape", ["x"], ["y"], shape=[2])], [info("x", [2])], ["y"], opset=4)


def test_old_operators_broadcast_by_attributes() -> None:
    x, y = array(2, 3, 4), array(3)
    graph = load(
        [node("Sub", ["x", "z"], ["y"], broadcast=1, axis=1)], [info("x", [2, 3, 4]), info("z", [3])], ["y"], opset=6
    )
    np.testing.assert_array_equal(run(graph, x, y), x - y[:, None])
    graph = load([node("PRelu", ["x", "z"], ["y"])], [info("x", [2, 3, 4]), info("z", [3])], ["y"], opset=6)
    np.testing.assert_array_equal(run(graph, -x, y), -x * y[:, None])
    with pytest.raises(FrontendError, match="Add: takes operands of one shape without broadcast"):
        load([node("Add", ["x", "z"], ["y"])], [info("x", [2, 3]), info("z", [3])], ["y"], opset=6)
    with pytest.raises(UnsupportedError, match="BatchNormalization: training mode before version 14"):
        load(
            [node("BatchNormalization", ["x", *"abcd"], ["y"])],
            [info("x", [2, 3]), *(info(n, [3]) for n in "abcd")],
            ["y"],
            opset=6,
        )


def test_squeeze_of_sizes_that_only_the_run_knows() -> None:
    nodes = [node("Squeeze", ["x"], ["s"]), node("Neg", ["s"], ["y"])]
    graph = load(nodes, [info("x", ["n", 1, 3])], ["y"])
    np.testing.assert_array_equal(run(graph, array(2, 1, 3)), -array(2, 3))
    np.testing.assert_array_equal(run(graph, array(1, 1, 3)), -array(3))
    # What leaves the graph may have any rank.
    graph = load([node("Squeeze", ["x"], ["y"])], [info("x", ["n", 1, 3])], ["y"])
    assert run(graph, array(1, 1, 3)).shape == (3,) and run(graph, array(2, 1, 3)).shape == (2, 3)


# -- symbols and shapes -----------------------------------------------------------------------------------------------


def test_dimensions_become_symbols() -> None:
    graph = load(
        [node("Add", ["x", "z"], ["y"])], [info("x", ["batch size", 3]), info("z", ["batch size", None])], ["y"]
    )
    assert [str(v.type) for v in graph.inputs] == ["float32[batch_size, 3]", "float32[batch_size, z_1]"]
    # Whether the unnamed dimension is 1 or 3 shows at run time.
    for size in (1, 3):
        np.testing.assert_array_equal(run(graph, array(2, 3), array(2, size)), array(2, 3) + array(2, size))


@pytest.mark.needs("weft_llvm")
def test_inputs_and_outputs_that_are_named_like_dimensions_keep_their_names() -> None:
    """Whatever stands first; the symbol gives way."""
    nodes = [helper.make_node("Mul", ["h", "w"], ["y"]), helper.make_node("Relu", ["y"], ["n"])]
    proto = model(nodes, [info("h", ["w", "n", "h"]), info("w", ["n", "h"])], ["n", "y"])
    graph = weft.load(proto)
    assert [str(v.type) for v in graph.inputs] == [
        "float32[w_1, n, h_1]",
        "float32[n, h_1]",
    ] and graph.output_names == ["n", "y"]
    assert [str(v.type) for v in weft.load(proto, dims={"w": 2, "h": 4}).inputs] == [
        "float32[2, n, 4]",
        "float32[n, 4]",
    ]
    h, w = array(2, 3, 4), array(3, 4)
    results = weft.compile(graph, cache=False).run({"h": h, "w": w})
    np.testing.assert_array_equal(results["y"], h * w)
    np.testing.assert_array_equal(results["n"], np.maximum(h * w, 0))


def test_symbols_that_may_be_one() -> None:
    graph = load([node("Mul", ["x", "z"], ["y"])], [info("x", ["n", "m"]), info("z", ["p", "q"])], ["y"])
    for a, b in (((2, 3), (2, 3)), ((1, 3), (2, 1)), ((2, 1), (1, 4)), ((1, 1), (5, 4))):
        np.testing.assert_array_equal(run(graph, array(*a), array(*b)), array(*a) * array(*b))


def shape_nodes(*, flatten: bool) -> list[onnx.NodeProto]:
    """Reshape(x, [Shape(x)[0], -1]) as exporters write it."""
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axes"], ["batch_1d"]),
        node("Concat", ["batch_1d", "rest" if flatten else "double"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]


def test_shapes_are_formulas_and_no_nodes() -> None:
    constants = [constant("zero", 0, np.int64), constant("axes", [0], np.int64), constant("rest", [-1], np.int64)]
    graph = load(shape_nodes(flatten=True), [info("x", ["n", "c", 4])], ["y"], constants)
    assert operators(graph) == ["Reshape"]
    assert str(graph.outputs[0].type) == "float32[n, c*4]"
    assert run(graph, array(3, 2, 4)).shape == (3, 8)


def test_arithmetic_on_shapes() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "one", "two"], ["h"]),
        node("Mul", ["h", "two"], ["h2"]),
        node("Div", ["h2", "three"], ["h3"]),
        node("Add", ["h3", "one"], ["h4"]),
        node("Expand", ["bias", "h4"], ["y"]),
    ]
    constants = [
        constant("one", [1], np.int64),
        constant("two", [2], np.int64),
        constant("three", [3], np.int64),
        constant("bias", [5], F),
    ]
    graph = load(nodes, [info("x", ["n", "h"])], ["y"], constants)
    assert operators(graph) == ["BroadcastTo"]
    assert run(graph, array(1, 7)).shape == (5,)


def test_a_shape_as_a_result_is_data() -> None:
    graph = load([node("Shape", ["x"], ["y"])], [info("x", ["n", 3])], [info("y", [2], TensorProto.INT64)])
    np.testing.assert_array_equal(run(graph, array(4, 3)), [4, 3])


@pytest.mark.parametrize("target", [[6, 4], [0, 12], [-1, 3], [0, -1], [24, 1]])
def test_reshape_to_a_shape_known_at_run_time(target: list[int]) -> None:
    graph = load([node("Reshape", ["x", "s"], ["y"])], [info("x", [2, 3, 4]), info("s", [2], TensorProto.INT64)], ["y"])
    want = [(2, 3, 4)[k] if d == 0 else d for k, d in enumerate(target)]
    np.testing.assert_array_equal(run(graph, array(2, 3, 4), np.array(target)), array(2, 3, 4).reshape(want))


@pytest.mark.parametrize(
    ("start", "end", "step"), [(0, 3, 1), (1, 100, 2), (-2, 9, 1), (-1, -100, -1), (5, 1, -2), (4, 2, 1)]
)
def test_slice_at_bounds_known_at_run_time(start: int, end: int, step: int) -> None:
    bounds = [info(n, [1], TensorProto.INT64) for n in ("start", "end", "axis", "step")]
    graph = load([node("Slice", ["x", "start", "end", "axis", "step"], ["y"])], [info("x", [2, 7]), *bounds], ["y"])
    stop = None if step < 0 and end < -7 else end
    want = array(2, 7)[:, start:stop:step]
    np.testing.assert_array_equal(run(graph, array(2, 7), *(np.array([v]) for v in (start, end, 1, step))), want)
    np.testing.assert_array_equal(run(graph, array(2, 7), *(np.array([v]) for v in (start, end, -1, step))), want)


@pytest.mark.parametrize("pads", [[0, 1, 2, 0], [-1, 1, 0, -2]])
def test_pad_known_at_run_time(pads: list[int]) -> None:
    graph = load([node("Pad", ["x", "pads"], ["y"])], [info("x", [3, 4]), info("pads", [4], TensorProto.INT64)], ["y"])
    want = np.pad(array(3, 4), [(max(pads[k], 0), max(pads[k + 2], 0)) for k in range(2)])
    want = want[
        max(-pads[0], 0) : want.shape[0] - max(-pads[2], 0), max(-pads[1], 0) : want.shape[1] - max(-pads[3], 0)
    ]
    np.testing.assert_array_equal(run(graph, array(3, 4), np.array(pads)), want)


@pytest.mark.parametrize("bounds", [(0, 5, 1), (5, -4, -2), (3, 3, 1), (2, 9, 3)])
def test_range_known_at_run_time(bounds: tuple[int, int, int]) -> None:
    names = ("start", "limit", "delta")
    graph = load([node("Range", names, ["y"])], [info(n, [], TensorProto.INT64) for n in names], ["y"])
    np.testing.assert_array_equal(run(graph, *(np.array(b) for b in bounds)), np.arange(*bounds))


def test_shape_of_unknown_length() -> None:
    with pytest.raises(UnsupportedError, match="Reshape: a shape of unknown length"):
        load([node("Reshape", ["x", "s"], ["y"])], [info("x", [4]), info("s", ["n"], TensorProto.INT64)], ["y"])


def test_sizes_through_floats_stay_known() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "half"], ["g"]),
        node("Cast", ["g"], ["i"], to=TensorProto.INT64),
        node("Reshape", ["x", "i"], ["y"]),
    ]
    graph = load(nodes, [info("x", [4, 1])], ["y"], [constant("half", [0.5, 2.5], F)])
    assert operators(graph) == ["Reshape"]


# -- functions --------------------------------------------------------------------------------------------------------


def test_functions_of_the_model_are_inlined() -> None:
    scaled = node("LeakyRelu", ["a"], ["b"], name="inner")
    scaled.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    function = helper.make_function("mine", "Act", ["a"], ["b"], [scaled], [helper.make_opsetid("", 20)], ["slope"])
    calls = [
        node("Act", ["x"], ["h"], domain="mine", name="one", slope=0.5),
        node("Act", ["h"], ["y"], domain="mine", name="two", slope=0.25),
    ]
    graph = load(calls, [info("x", [2])], ["y"], functions=[function], domains=[helper.make_opsetid("mine", 1)])
    assert [n.op.alpha for n in graph.nodes] == [0.5, 0.25]  # type: ignore[attr-defined]
    assert [n.names for n in graph.nodes] == [{"one/inner"}, {"two/inner"}]


def test_calls_that_differ_in_which_attribute_is_absent_are_two() -> None:
    """An attribute that refers to one of the caller's has the caller's name for it: F(a=p, b=q) and F(a=q, b=p) are not
    the same where q is absent."""

    def refer(n: onnx.NodeProto, **names: str) -> onnx.NodeProto:
        for name, source in names.items():
            n.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOAT, ref_attr_name=source))
        return n

    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    body = [
        refer(node("LeakyRelu", ["x"], ["t"]), alpha="a"),
        refer(node("Elu", ["x"], ["u"]), alpha="b"),
        node("Concat", ["t", "u"], ["y"], axis=0),
    ]
    inner = helper.make_function("mine", "F", ["x"], ["y"], body, opsets, ["a", "b"])
    calls = [
        refer(node("F", ["x"], ["y1"], domain="mine"), a="p", b="q"),
        refer(node("F", ["x"], ["y2"], domain="mine"), a="q", b="p"),
    ]
    outer = helper.make_function("mine", "G", ["x"], ["y1", "y2"], calls, opsets, ["p", "q"])
    graph = load(
        [node("G", ["x"], ["y1", "y2"], domain="mine", p=0.5)],
        [info("x", [1])],
        ["y1", "y2"],
        functions=[inner, outer],
        domains=opsets[1:],
    )
    y1, y2 = evaluate(graph, [np.array([-1.0], np.float32)])
    np.testing.assert_allclose(y1, [-0.5, np.expm1(-1)], rtol=1e-6)
    np.testing.assert_allclose(y2, [-0.01, 0.5 * np.expm1(-1)], rtol=1e-6)


def test_a_function_that_calls_itself() -> None:
    function = helper.make_function(
        "mine", "Again", ["a"], ["b"], [node("Again", ["a"], ["b"], domain="mine")], [helper.make_opsetid("mine", 1)]
    )
    with pytest.raises(FrontendError, match="function 'Again' calls itself"):
        load(
            [node("Again", ["x"], ["y"], domain="mine")], [info("x", [2])], ["y"], functions=[function],
            domains=[helper.make_opsetid("mine", 1)]
        )  # fmt: skip


def test_operators_that_onnx_defines_by_a_function() -> None:
    graph = load(
        [node("CenterCropPad", ["x", "s"], ["y"])], [info("x", [5, 4])], ["y"], [constant("s", [3, 6], np.int64)]
    )
    assert run(graph, array(5, 4)).shape == (3, 6)


# -- control flow -----------------------------------------------------------------------------------------------------


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["x"], ["r"])], op, [], [info("r", None)])


def test_constant_conditions_take_a_branch() -> None:
    nodes = [node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))]
    assert operators(load(nodes, [info("x", [2])], ["y"], [constant("c", True)])) == ["Relu"]
    assert operators(load(nodes, [info("x", [2])], ["y"], [constant("c", False)])) == ["Negative"]


def test_conditions_known_at_run_time_choose_between_results() -> None:
    nodes = [node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))]
    graph = load(nodes, [info("x", [2]), info("c", [], TensorProto.BOOL)], ["y"])
    x = np.array([1, -2], F)
    np.testing.assert_array_equal(run(graph, x, np.array(True)), [1, 0])
    np.testing.assert_array_equal(run(graph, x, np.array(False)), [-1, 2])


def loop_body() -> onnx.GraphProto:
    nodes = [node("Add", ["v", "v"], ["w"]), node("Identity", ["go"], ["again"]), node("Identity", ["w"], ["kept"])]
    inputs = [info("k", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("v", None)]
    return helper.make_graph(
        nodes, "body", inputs, [info("again", None, TensorProto.BOOL), info("w", None), info("kept", None)]
    )


def test_loops_of_known_length_are_unrolled() -> None:
    nodes = [node("Loop", ["trips", "", "x"], ["last", "all"], body=loop_body())]
    graph = weft.load(model(nodes, [info("x", [2])], ["last", "all"], [constant("trips", 3, np.int64)]))
    last, every = evaluate(graph, [np.array([1, 2], F)])
    np.testing.assert_array_equal(last, [8, 16])
    np.testing.assert_array_equal(every, [[2, 4], [4, 8], [8, 16]])


@pytest.mark.parametrize(
    ("inputs", "constants", "trips"),
    [
        ([info("trips", [], TensorProto.INT64)], [], 3),
        ([info("trips", [], TensorProto.INT64)], [], 0),
        ([], [constant("trips", 100, np.int64)], 100),
        ([], [constant("trips", 0, np.int64)], 0),
    ],
)
def test_loops_that_are_not_unrolled(inputs: Any, constants: Any, trips: int) -> None:
    graph = load(
        [node("Loop", ["trips", "", "x"], ["last", "all"], body=loop_body())],
        [info("x", [2]), *inputs],
        ["last", "all"],
        constants,
    )
    assert operators(graph)[0] == "Loop"
    x = np.array([1, 2], F) / F(2**50)
    last, every = evaluate(graph, [x, np.array(trips)][: len(graph.inputs)])
    np.testing.assert_array_equal(last, x * F(2.0**trips))
    np.testing.assert_array_equal(
        every, np.stack([x * F(2.0**k) for k in range(1, trips + 1)]) if trips else np.empty((0, 2), F)
    )


def test_a_loop_that_never_ends() -> None:
    with pytest.raises(FrontendError, match="Loop: it never ends"):
        load([node("Loop", ["", "", "x"], ["last", "all"], body=loop_body())], [info("x", [2])], ["last"])


def test_dropout_in_training() -> None:
    inputs = [info("x", [100]), info("r", []), info("t", [], TensorProto.BOOL)]
    graph = load([node("Dropout", ["x", "r", "t"], ["y", "m"], seed=1)], inputs, ["y", "m"])
    x = np.arange(1, 101, dtype=F)
    y, mask = evaluate(graph, [x, np.array(0.75, F), np.array(True)])
    np.testing.assert_array_equal(y, np.where(mask, x * 4, 0))
    assert 10 < mask.sum() < 40
    y, mask = evaluate(graph, [x, np.array(0.75, F), np.array(False)])
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_sequences_inside_the_graph() -> None:
    nodes = [node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0), node("SequenceAt", ["s", "k"], ["y"])]
    graph = load(nodes, [info("x", [3, 2])], ["y"], [constant("k", -1, np.int64)])
    np.testing.assert_array_equal(run(graph, array(3, 2)), [4, 5])


@pytest.mark.parametrize("split", [[], [constant("split", 2, np.int64)]])
def test_parts_that_are_too_many_to_write_down(split: list[Any]) -> None:
    """A small file may ask for any number of them: the run makes them."""
    parts = [node("SplitToSequence", ["x", *("split" for _ in split)], ["s"], axis=0)]
    graph = load(
        parts, [info("x", [2**62, 0])], [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)], split
    )
    assert operators(graph) == ["SequenceSplit"]
    graph = load(
        parts + [node("SequenceAt", ["s", "k"], ["y"])],
        [info("x", [1000, 1])],
        ["y"],
        [constant("k", -2, np.int64), *split],
    )
    assert operators(graph)[0] == "SequenceSplit"
    np.testing.assert_array_equal(run(graph, array(1000, 1)).reshape(-1), [996, 997] if split else [998])


def test_sizes_that_would_fill_the_memory() -> None:
    """What a hundred bytes may ask for is refused before anything is made of it."""
    large = 2**31 - 1

    def refused(what: str, nodes: list[Any], inputs: list[Any], *constants: Any) -> None:
        with pytest.raises(WeftError, match=what):
            load(nodes, inputs, ["y"], list(constants))

    x = info("x", [2, 3])
    refused(
        f"a shape of {large} dimensions",
        [node("Reshape", ["x", "s"], ["y"])],
        [x, info("s", [large], TensorProto.INT64)],
    )
    bounds = [info(n, [large], TensorProto.INT64) for n in ("a", "b")]
    refused(f"{large} bounds for 2 axes", [node("Slice", ["x", "a", "b"], ["y"])], [x, *bounds])
    refused(
        f"num_outputs: expected 1, as many as the node has, got {large}",
        [node("Split", ["x"], ["y"], num_outputs=large)],
        [x],
    )
    refused(
        "the size: expected 4 or 5 numbers, got 9",
        [node("AffineGrid", ["x", "s"], ["y"])],
        [info("x", [1, 2, 3]), info("s", [9], TensorProto.INT64)],
    )
    moved = [info("x", [1, 1, 4, 4]), info("w", [1, 1, 2, 2**40]), info("o", [1, "m", 2, 2])]
    refused("places in a kernel of .* at most 16777216", [node("DeformConv", ["x", "w", "o"], ["y"])], moved)
    counts = {"mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "ngram_counts": [0, 0], "pool_int64s": [5, 6]}
    tokens = info("x", [2**31], TensorProto.INT64)
    refused(
        "more than 1024 skips",
        [node("TfIdfVectorizer", ["x"], ["y"], max_skip_count=large, ngram_indexes=[0], **counts)],
        [tokens],
    )
    refused(
        f"the result would be {large + 1} numbers",
        [node("TfIdfVectorizer", ["x"], ["y"], max_skip_count=0, ngram_indexes=[large], **counts)],
        [tokens],
    )
    backward = node("TfIdfVectorizer", ["x"], ["y"], max_skip_count=0, ngram_indexes=[-1], **counts)
    refused(r"ngram_indexes: expected the place of each n-gram, got \[-1\]", [backward], [tokens])
    tree = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_modes": ["LEAF"],
        "nodes_values": [0.0],
        "nodes_truenodeids": [0],
    }
    leaf = {
        "nodes_falsenodeids": [0],
        "target_treeids": [0],
        "target_nodeids": [0],
        "target_ids": [0],
        "target_weights": [1.0],
        "n_targets": 2**40,
    }
    forest = node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **tree, **leaf)
    with pytest.raises(WeftError, match=f"weights of every leaf would be {2**40} numbers"):
        load([forest], [x], ["y"], domains=[helper.make_opsetid("ai.onnx.ml", 3)])
    narrow = node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=2**40, N=2**20, bits=4, block_size=32
    )
    with pytest.raises(WeftError, match="weights of 16 bytes are not"):
        load(
            [narrow],
            [x, info("s", ["m"])],
            ["y"],
            [constant("w", np.zeros((1, 1, 16)), np.uint8)],
            domains=[helper.make_opsetid("com.microsoft", 1)],
        )
    endless = [constant(n, v, np.float32) for n, v in (("a", 0), ("b", np.inf), ("d", 1))]
    refused("from 0.0 to inf by 1.0 has no end", [node("Range", ["a", "b", "d"], ["y"])], [], *endless)
    graph = load(
        [node("Range", ["a", "b", "d"], ["y"])],
        [],
        ["y"],
        [constant(n, v, np.int64) for n, v in (("a", 5), ("b", 2**50), ("d", 2))],
    )
    assert operators(graph)[0] == "Iota" and graph.outputs[0].tensor.shape == (2**49 - 2,)
    refused(f"{24 * (2**63 - 1)} does not fit into int64", [node("Size", ["x"], ["y"])], [info("x", [24, 2**63 - 1])])


@pytest.mark.parametrize("bounds", [(0, 0.3, 0.1), (1, 0, -0.1), (0, 0.7, 0.1), (2, 1, 1)])
def test_a_range_of_constants_counts_as_numpy_does(bounds: tuple[float, float, float]) -> None:
    """In float32: 0.3 holds three times 0.1, not a little more."""
    graph = load(
        [node("Range", ["a", "b", "d"], ["y"])], [], ["y"], [constant(n, v, np.float32) for n, v in zip("abd", bounds)]
    )
    np.testing.assert_array_equal(run(graph), np.arange(*map(np.float32, bounds), dtype=np.float32))


def test_sequences_that_leave_the_graph() -> None:
    nodes = [node("Neg", ["x"], ["z"]), node("SequenceConstruct", ["x", "z"], ["s"])]
    graph = load(nodes, [info("x", [2])], [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])])
    assert operators(graph) == ["Negative", "SequenceConstruct"]
    assert [e.tolist() for e in evaluate(graph, [array(2)])[0]] == [[0, 1], [0, -1]]


def test_positions_that_are_not_in_a_sequence() -> None:
    with pytest.raises(FrontendError, match=r"SequenceAt: position 5 is not in a sequence of 1\n  node 'at'"):
        nodes = [node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "k"], ["y"], name="at")]
        load(nodes, [info("x", [2])], ["y"], [constant("k", 5, np.int64)])


# -- conversions with a choice ----------------------------------------------------------------------------------------


def test_gemm_transposes_its_weights_which_a_compilation_folds() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    graph = load(nodes, [info("x", [2, 3])], ["y"], [constant("w", array(4, 3)), constant("b", array(4))])
    assert operators(graph) == ["Transpose", "MatMul", "Add"]
    assert operators(fold_constants(graph)) == ["MatMul", "Add"]
    np.testing.assert_allclose(run(graph, array(2, 3)), array(2, 3) @ array(4, 3).T + array(4))


def test_the_bias_of_a_convolution_is_an_add() -> None:
    graph = load(
        [node("Conv", ["x", "w", "b"], ["y"])],
        [info("x", [1, 2, 5, 5])],
        ["y"],
        [constant("w", array(3, 2, 3, 3)), constant("b", array(3))],
    )
    assert operators(graph) == ["Conv", "Reshape", "Add"]
    assert graph.nodes[2].inputs[1].shape == (1, 3, 1, 1)  # type: ignore[union-attr]
    assert {v.name for v in graph.constants()} == {"w", "b"}


def test_softmax_before_version_13_is_over_all_later_axes() -> None:
    graph = load([node("Softmax", ["x"], ["y"], axis=1)], [info("x", [2, 3, 4])], ["y"], opset=11)
    np.testing.assert_allclose(run(graph, array(2, 3, 4)).sum((1, 2)), 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["trials", "half"])
def test_wrong_choices_of_words(name: str) -> None:
    with pytest.raises(FrontendError, match=f"Gelu: approximate is '{name}', expected none or tanh"):
        load([node("Gelu", ["x"], ["y"], approximate=name)], [info("x", [2])], ["y"])


def test_a_state_whose_open_sizes_grow_with_every_trip_is_not_unrolled() -> None:
    """Its sizes are those of a broadcast of itself: written out, a formula that doubles sixteen times."""
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["t"])], "body", [info("s", ["p"]), info("e", ["q"])], [info("t", ["r"])]
    )
    scan = node("Scan", ["a", "x"], ["y"], body=body, num_scan_inputs=1)
    graph = load([scan], [info("a", ["m"]), info("x", [16, "n"])], ["y"])
    assert operators(graph).count("Loop") == 1 and len(str(graph)) < 4000
    a, x = np.arange(3, dtype=np.float32), np.ones((16, 3), np.float32)
    np.testing.assert_array_equal(evaluate(graph, [a, x])[0], a + 16)


def test_a_state_that_grows_by_as_much_with_every_trip_is_unrolled() -> None:
    """Its sizes stay short formulas, which a loop would lose."""
    body = helper.make_graph(
        [node("Concat", ["s", "e"], ["t"], axis=0)], "body", [info("s", ["p"]), info("e", ["q"])], [info("t", ["r"])]
    )
    graph = load(
        [node("Scan", ["a", "x"], ["y"], body=body, num_scan_inputs=1)], [info("a", ["m"]), info("x", [3, 2])], ["y"]
    )
    assert operators(graph).count("Loop") == 0 and str(graph.outputs[0].tensor.shape[0]) == "m + 6"


@pytest.mark.parametrize(
    ("op", "dtype"), [("ReduceProd", np.int64), ("Mul", np.int64), ("Mul", np.int32), ("Neg", np.int32)]
)
def test_numbers_that_leave_their_range_wrap_around(op: str, dtype: type) -> None:
    """As operators compute them, though sizes are formulas of unbounded integers."""
    x = np.array([np.iinfo(dtype).min, 3], dtype)
    graph = load([node(op, ["x", "x"] if op == "Mul" else ["x"], ["y"])], [], ["y"], [constant("x", x, dtype)])
    with np.errstate(all="ignore"):
        want = {"ReduceProd": np.prod(x, keepdims=True), "Mul": x * x, "Neg": -x}[op]
    np.testing.assert_array_equal(evaluate(graph, [])[0], want)
