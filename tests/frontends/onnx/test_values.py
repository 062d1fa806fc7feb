"""What operators require of data, as ONNX's specification says: an error with the node's name and the value, at run
time, or at import where it is certain."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx.models import constant, info, model

import weft
from weft.errors import ExecutionError, FrontendError, GraphError
from weft.graph.nodes import Graph

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Array = np.ndarray[Any, Any]


@dataclass
class Case:
    """An operator, inputs that it takes, and the input of that number which it does not take."""

    op: str
    good: list[Any]
    which: int
    bad: Any
    message: str
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def model(self, shapes: list[Any] | None = None, constants: tuple[int, ...] = ()) -> onnx.ModelProto:
        arrays = [np.asarray(a) for a in self.good]
        if self.which in constants:
            arrays[self.which] = np.asarray(self.bad)
        names = [f"x{k}" for k in range(len(arrays))]
        outputs = [f"y{k}" for k in range(self.outputs)]
        kinds = [onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
        nodes = [helper.make_node(self.op, names, outputs, name="the_node", **self.attributes)]
        inputs = [info(n, s, k) for n, s, k in zip(names, shapes or [a.shape for a in arrays], kinds)]
        return model(
            nodes,
            [i for k, i in enumerate(inputs) if k not in constants],
            outputs,
            [constant(names[k], arrays[k]) for k in constants],
            opset=21,
        )

    def arrays(self, bad: bool) -> list[Array]:
        return [np.asarray(self.bad if bad and k == self.which else a) for k, a in enumerate(self.good)]


def i64(*values: Any) -> Array:
    return np.array(values, np.int64)


CASES = {
    "gather": Case("Gather", [X, i64(0, -3)], 1, i64(0, 3), "index 3 is out of range, expected -3 … 2"),
    "gather_below": Case("Gather", [X, i64(0, -3)], 1, i64(-4, 0), "index -4 is out of range, expected -3 … 2"),
    "gather_far": Case("Gather", [X, i64(0, -3)], 1, i64(0, -(2**63)),
        f"index {-2**63} is out of range, expected -3 … 2"),
    "gather_axis": Case("Gather", [X, np.array(-4, np.int32)], 1, np.array(4, np.int32),
        "index 4 is out of range, expected -4 … 3", {"axis": 1}),
    "gather_elements": Case("GatherElements", [X, i64([0, 1, 2, 0])], 1, i64([0, 1, 2, 3]),
        "index 3 is out of range, expected -3 … 2", {"axis": 0}),
    "gather_nd": Case("GatherND", [X, i64([0, 3], [-3, -4])], 1, i64([0, 3], [3, 0]),
        "index 3 is out of range, expected -3 … 2"),
    "gather_nd_last": Case("GatherND", [X, i64([0, 3], [-3, -4])], 1, i64([0, 4], [0, 0]),
        "index 4 is out of range, expected -4 … 3"),
    "gather_nd_batch": Case("GatherND", [X, i64([0], [3], [-4])], 1, i64([0], [4], [0]),
        "index 4 is out of range, expected -4 … 3", {"batch_dims": 1}),
    "scatter_elements": Case("ScatterElements", [X, i64([0, -3, 1, 2]), X[:1]], 1, i64([0, 1, 9, 2]),
        "index 9 is out of range, expected -3 … 2"),
    "scatter_nd": Case("ScatterND", [X, i64([2], [-3]), X[:2]], 1, i64([2], [3]),
        "index 3 is out of range, expected -3 … 2"),
    "divide": Case("Div", [np.array([7, 8], np.int32), np.array([2, -3], np.int32)], 1, np.array([0, 0], np.int32),
        "the divisor is 0 in 2 place(s)"),
    "divide_scalar": Case("Div", [i64(7, 8), i64(2)], 1, i64(0), "the divisor is 0 in 1 place(s)"),
    "divide_unsigned": Case("Div", [np.array([7], np.uint8), np.array([2], np.uint8)], 1, np.array([0], np.uint8),
        "the divisor is 0 in 1 place(s)"),
    "mod": Case("Mod", [i64(7, 8), i64(2, -3)], 1, i64(0, 1), "the divisor is 0 in 1 place(s)"),
    "fmod": Case("Mod", [i64(7, 8), i64(2, -3)], 1, i64(1, 0), "the divisor is 0 in 1 place(s)", {"fmod": 1}),
    "range": Case("Range", [np.int64(0), np.int64(5), np.int64(2)], 2, np.int64(0), "the step is 0 in 1 place(s)"),
    "range_float": Case("Range", [np.float32(0), np.float32(5), np.float32(2)], 2, np.float32(0),
        "the step is 0 in 1 place(s)"),
    "split": Case("Split", [X, i64(1, 3)], 1, i64(1, 2), "the parts add up to 3, axis 1 has size 4", {"axis": 1},
        outputs=2),
    "split_beyond": Case("Split", [X, i64(1, 3)], 1, i64(3, 3), "the parts add up to 6, axis 1 has size 4", {"axis": 1},
        outputs=2),
    "reverse_sequence": Case("ReverseSequence", [X, i64(3, 0, 1, 2)], 1, i64(3, 0, 1, 4),
        "length 4 is out of range, expected 0 … 3"),
    "loss": Case("NegativeLogLikelihoodLoss", [X, i64(0, 3, 1)], 1, i64(0, 4, 1),
        "class 4 is out of range, expected 0 … 3"),
    "loss_ignored": Case(
        "NegativeLogLikelihoodLoss", [X, i64(0, -7, 1)], 1, i64(0, -7, -2), "class -2 is out of range, expected 0 … 3",
        {"ignore_index": -7}
    ),
}  # fmt: skip

SCALED = [X[None, None], np.float32([]), np.float32([1, 1, 2, 2])]
SIZES = {
    "reshape": Case(
        "Reshape", [X, i64(2, 6)], 1, i64(5, 2), "Reshape 'the_node': number of elements: expected 12, got 10"
    ),
    "reshape_negative": Case(
        "Reshape", [X, i64(2, 6)], 1, i64(-2, -6), "Reshape 'the_node': its output would have size -2 on axis 0"
    ),
    "expand": Case(
        "Expand",
        [X[:, :1], i64(3, 5)],
        1,
        i64(2, 5),
        "BroadcastTo 'the_node': dimension 0: 3 does not broadcast with 2",
    ),
    "expand_negative": Case("Expand", [X[:1, :1], i64(3, 5)], 1, i64(3, -5), "would have size -5 on axis 1"),
    "tile": Case("Tile", [X, i64(1, 2)], 1, i64(1, -2), "Tile 'the_node': its output would have size -8 on axis 1"),
    "top_k": Case("TopK", [X, i64(2)], 1, i64(5), "TopK 'the_node': k: expected at most 4, got 5", outputs=2),
    "top_k_negative": Case(
        "TopK", [X, i64(2)], 1, i64(-1), "TopK 'the_node': its output would have size -1 on axis 1", outputs=2
    ),
    "constant_of_shape": Case("ConstantOfShape", [i64(2, 3)], 0, i64(2, -3), "would have size -3 on axis 1"),
    "constant_of_shape_wraps": Case(
        "ConstantOfShape",
        [i64(2, 3)],
        0,
        i64(2**33, 2**33),
        f"Fill 'the_node': {2**33} × {2**33} elements of float32 are more than memory can hold",
    ),
    "constant_of_shape_wraps_to_0": Case(
        "ConstantOfShape", [i64(2, 3)], 0, i64(2**32, 2**32), "elements of float32 are more than memory can hold"
    ),
    "constant_of_shape_0": Case(
        "ConstantOfShape", [i64(0, 3)], 0, i64(0, 2**62), f"element 1 of 'x0' is {2**62}, expected 0 … {2**47}"
    ),
    "constant_of_shape_far": Case(
        "ConstantOfShape", [i64(3)], 0, i64(2**62), f"{2**62} elements of float32 are more than memory can hold"
    ),
    "tile_far": Case("Tile", [X, i64(1, 2)], 1, i64(2**62, 4), "Tile 'the_node'"),
    "expand_far": Case(
        "Expand", [X[:1, :1], i64(3, 5)], 1, i64(2**40, 2**40), "elements of float32 are more than memory can hold"
    ),
    "pad_far": Case(
        "Pad",
        [X, i64(0, 1, 0, 1)],
        1,
        i64(2**63 - 1, 0, -(2**63) + 3, 0),
        f"pads {-(2**63) + 3} is out of range, expected -{2**47} … {2**47}",
    ),
    "pad_least": Case(
        "Pad", [X, i64(0, 1, 0, 1)], 1, i64(0, -(2**63), 0, 0), f"Pad 'the_node': pads {-(2**63)} is out of range"
    ),
    "pad_axes": Case(
        "Pad",
        [X, i64(1, 1), np.float32(0), i64(-1)],
        3,
        i64(2),
        "Pad 'the_node': axis 2 is out of range, expected -2 … 1",
    ),
    "range_far": Case("Range", [np.int64(0), np.int64(5), np.int64(2)], 1, np.int64(2**63 - 1), "Iota 'the_node'"),
    "range_wraps": Case("Range", [np.int64(0), np.int64(5), np.int64(2)], 0, np.int64(-(2**63)), "Iota 'the_node'"),
    "range_nan": Case(
        "Range", [np.float32(0), np.float32(5), np.float32(2)], 1, np.float32("nan"), "would have size -1 on axis 0"
    ),
    "one_hot_far": Case("OneHot", [i64(0, 1), np.int64(3), X[0, :2]], 1, np.int64(2**62), "OneHot 'the_node'"),
    "one_hot_infinite": Case(
        "OneHot", [i64(0, 1), np.float32(3), X[0, :2]], 1, np.float32("inf"), "would have size -1 on axis 1"
    ),
    "slice_step": Case("Slice", [X, i64(0), i64(3), i64(0), i64(1)], 4, i64(0), "Slice 'the_node': a step is 0"),
    "slice_axis": Case(
        "Slice",
        [X, i64(0), i64(3), i64(0), i64(1)],
        3,
        i64(2),
        "Slice 'the_node': axis 2 is out of range, expected -2 … 1",
    ),
    "slice_axes": Case(
        "Slice",
        [X, i64(0, 0), i64(3, 3), i64(0, 1), i64(1, 1)],
        3,
        i64(1, -1),
        "Slice 'the_node': axes: 1 pair(s) of them are the same",
    ),
    "reduce_axis": Case(
        "ReduceSum", [X, i64(1)], 1, i64(-3), "ReduceSum 'the_node': axis -3 is out of range, expected -2 … 1"
    ),
    "reduce_axes": Case(
        "ReduceMax", [X, i64(0, 1)], 1, i64(1, -1), "ReduceMax 'the_node': axes: 1 pair(s) of them are the same"
    ),
    "cum_sum_axis": Case(
        "CumSum", [X, np.int64(1)], 1, np.int64(7), "CumSum 'the_node': axis 7 is out of range, expected -2 … 1"
    ),
    "squeeze_axis": Case(
        "Squeeze",
        [X[:1], i64(0)],
        1,
        i64(1),
        "Squeeze 'the_node': axis 1 has 4 element(s), only axes of one element are squeezed",
    ),
    "unsqueeze_axis": Case(
        "Unsqueeze", [X, i64(1)], 1, i64(3), "Unsqueeze 'the_node': axis 3 is out of range, expected -3 … 2"
    ),
    "resize_scale": Case(
        "Resize", SCALED, 2, np.float32([1, 1, 2, np.inf]), "a scale is not positive and finite in 1 place(s)"
    ),
    "resize_scale_0": Case(
        "Resize", SCALED, 2, np.float32([1, np.nan, -1, 0]), "a scale is not positive and finite in 3 place(s)"
    ),
    "resize_far": Case("Resize", SCALED, 2, np.float32([1, 1, 1e30, 1]), "would have size -1 on axis 2"),
    "stft_step": Case(
        "STFT",
        [X.reshape(1, 12, 1), np.int64(2), X[0]],
        1,
        np.int64(0),
        "STFT 'the_node': step: expected 1 or more, got 0",
    ),
    "window": Case("HannWindow", [np.int64(5)], 0, np.int64(-1), "would have size -1 on axis 0"),
    "window_far": Case(
        "HannWindow", [np.int64(5)], 0, np.int64(2**62), "elements of float32 are more than memory can hold"
    ),
    "affine_grid": Case(
        "AffineGrid",
        [X.reshape(2, 2, 3), i64(2, 1, 2, 2)],
        1,
        i64(3, 1, 2, 2),
        "the size says 3 picture(s), theta has 2",
    ),
    "dft_axis": Case(
        "DFT",
        [X.reshape(3, 4, 1), np.int64(2), np.int64(1)],
        2,
        np.int64(2),
        "DFT 'the_node': axis 2 is out of range, expected 0 … 1",
    ),
}


def reference(proto: onnx.ModelProto, arrays: list[Array]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto).run(None, {f"x{k}": a for k, a in enumerate(arrays)})  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*CASES, *SIZES])
def test_values_are_checked_by_the_run(name: str) -> None:
    case = {**CASES, **SIZES}[name]
    proto = case.model()
    exe = weft.compile(proto, "llvm -threads=1", cache=False)
    assert [step.kind for step in exe.manifest.steps] == ["native"]
    for got, want in zip(
        exe.run({f"x{k}": a for k, a in enumerate(case.arrays(False))}).values(), reference(proto, case.arrays(False))
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(ExecutionError) as caught:
        exe(*case.arrays(True))
    text = f"{case.op} 'the_node': {case.message}" if name in CASES else case.message
    assert text in str(caught.value)
    exe(*case.arrays(False))  # the next call works


@pytest.mark.parametrize(
    "name",
    [n for n, c in CASES.items() if n not in ("gather_nd_last", "split", "split_beyond", "loss", "loss_ignored")],
)
def test_what_is_certain_is_an_error_of_the_model(name: str) -> None:
    case = CASES[name]
    with pytest.raises(FrontendError) as caught:
        weft.load(case.model(constants=(case.which,)))
    assert "node 'the_node'" in str(caught.value)
    assert case.message.removesuffix(" in 1 place(s)") in str(caught.value)


def test_bounds_over_sizes_that_only_a_run_knows() -> None:
    case = CASES["gather"]
    exe = weft.compile(case.model(shapes=[("rows", 4), ("n",)]), "llvm -threads=1", cache=False)
    np.testing.assert_array_equal(exe(X, i64(0, -3)), X[[0, -3]])
    assert exe(X, np.zeros(0, np.int64)).shape == (0, 4), "of no index everything holds"
    assert exe(X[:0], np.zeros(0, np.int64)).shape == (0, 4)
    for table, indices, message in [
        (X, i64(3), "index 3 is out of range, expected -3 … 2"),
        (X[:0], i64(0), "index 0 is out of range, expected 0 … -1"),
    ]:
        with pytest.raises(ExecutionError, match=message):
            exe(table, indices)


def test_a_constant_index_into_a_size_that_only_a_run_knows() -> None:
    exe = weft.compile(
        CASES["gather"].model(shapes=[("rows", 4), (2,)], constants=(1,)), "llvm -threads=1", cache=False
    )
    np.testing.assert_array_equal(exe(np.tile(X, (2, 1))), np.tile(X, (2, 1))[[0, 3]])
    with pytest.raises(ExecutionError, match="Gather 'the_node': index 3 is out of range, expected -3 … 2"):
        exe(X)


BOXES = [np.float32([[[0, 0, 1, 1], [5, 5, 6, 6]]]), np.float32([[[1, 2]]]), i64(1), np.float32([0.5])]


@pytest.mark.parametrize(
    ("op", "good", "which", "value", "same_as"),
    [
        ("Slice", [X, i64(0), i64(9), i64(0), i64(2)], 4, 2**63 - 1, 3),  # the first alone
        ("Slice", [X, i64(2), i64(-9), i64(0), i64(-1)], 4, -(2**63), -3),
        ("Slice", [X, i64(0), i64(3), i64(0), i64(1)], 2, 2**63 - 1, 3),
        ("Trilu", [X, np.int64(0)], 1, 2**63 - 1, 5),
        ("Trilu", [X, np.int64(0)], 1, -(2**63), -5),
        ("NonMaxSuppression", BOXES, 2, 2**63 - 1, 2),
        ("NonMaxSuppression", BOXES, 2, -(2**63), 0),
    ],
)
def test_integers_beyond_all_sizes_mean_the_largest_where_that_is_specified(
    op: str, good: list[Any], which: int, value: int, same_as: int
) -> None:
    exe = weft.compile(Case(op, good, which, None, "").model(), "llvm -threads=1", cache=False)
    far, near = ([np.full_like(a, v) if k == which else a for k, a in enumerate(good)] for v in (value, same_as))
    np.testing.assert_array_equal(exe(*far), exe(*near))


def test_a_range_between_the_ends_of_int64_is_counted_exactly() -> None:
    exe = weft.compile(Case("Range", [np.int64(0)] * 3, 0, None, "").model(), "llvm -threads=1", cache=False)
    low, high = -(2**63), 2**63 - 1
    np.testing.assert_array_equal(exe(np.int64(low), np.int64(high), np.int64(high)), [low, -1, high - 1])
    np.testing.assert_array_equal(exe(np.int64(high), np.int64(low), np.int64(low)), [high, -1])
    assert exe(np.int64(high), np.int64(low), np.int64(1)).shape == (0,)


def gathered(
    indices: str, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], constants: list[onnx.TensorProto]
) -> Graph:
    last = helper.make_node("Gather", ["x", indices], ["y"], name="the_node")
    return weft.load(model([*nodes, last], [info("x", [3, 4]), *inputs], ["y"], constants))


def required(graph: Graph) -> int:
    return sum(type(n.op).__name__ == "Require" for n in graph.nodes)


def test_what_cannot_be_out_of_range_is_not_checked() -> None:
    i, three = info("i", [5], onnx.TensorProto.INT64), constant("three", 3, np.int64)
    made = helper.make_node
    cases: list[list[onnx.NodeProto]] = [
        [made("Mod", ["i", "three"], ["j"])],
        [made("Mod", ["i", "three"], ["k"]), made("Sub", ["k", "k"], ["l"]), made("Where", ["c", "k", "k"], ["j"])],
        [made("ArgMax", ["x"], ["j"], axis=0)],
        [made("TopK", ["x", "one"], ["_", "j"], axis=0)],
        [made("Mod", ["i", "three"], ["k"]), made("Cast", ["k"], ["l"], to=onnx.TensorProto.INT32), made("Concat", ["l",
            "l"], ["j"], axis=0)],
    ]  # fmt: skip
    others = [i, info("c", [5], onnx.TensorProto.BOOL)]
    for nodes in cases:
        assert required(gathered("j", nodes, others, [three, constant("one", [1], np.int64)])) == 0, nodes[-1].op_type
    assert required(gathered("j", [made("Abs", ["i"], ["j"])], others, [])) == 2
    narrow = [made("Mod", ["i", "three"], ["k"]), made("Add", ["k", "k"], ["j"])]
    assert required(gathered("j", narrow, others, [three])) == 2, "0 … 4 is not within 0 … 2"


def test_what_folding_finds_out_of_range() -> None:
    # 3000 elements are too many for the importer to compute: the pass does.
    nodes = [helper.make_node("Add", ["a", "b"], ["j"])]
    graph = gathered(
        "j", nodes, [], [constant("a", np.arange(3000) % 3, np.int64), constant("b", np.full(3000, 1), np.int64)]
    )
    with pytest.raises(GraphError, match="Require: index 3 is out of range, expected -3 … 2"):
        weft.compile(graph, "llvm -threads=1", cache=False)


def test_a_check_costs_no_copy(tmp_path: Path) -> None:
    exe = weft.compile(CASES["scatter_elements"].model(), "llvm -threads=1", cache=False)
    (step,) = exe.manifest.steps
    assert [i.split("_")[0] for i in step.items if i[0].islower()] == ["reducemin", "reducemax", "scatterelements"]  # type: ignore[union-attr]
    exe.save(tmp_path / "m.weft")
    saved = weft.Executable.load(tmp_path / "m.weft")
    with pytest.raises(ExecutionError, match="ScatterElements 'the_node': index 9 is out of range"):
        saved(*CASES["scatter_elements"].arrays(True))


def test_a_single_element_is_looked_at_where_it_is() -> None:
    exe = weft.compile(CASES["divide_scalar"].model(), "llvm -threads=1", cache=False)
    (step,) = exe.manifest.steps
    assert sum(i[0].islower() for i in step.items) == 1  # type: ignore[union-attr]


# -- models that are not what they should be: what fuzz runs found ----------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("OneHot", [(3,), (2,), (2,)], {}, "OneHot: the depth has 2 elements, expected one"),
        (
            "Slice",
            [(3, 4), (1, 1), (1, 1)],
            {},
            "Slice: starts and ends are [1, 1] and [1, 1], expected vectors of one length",
        ),
        ("EyeLike", [(2, 2, 2)], {}, "EyeLike: the input has 3 dimension(s), expected two"),
        ("ReduceSum", [(3, 4), (300,)], {}, "ReduceSum: axes: 300 of them, the operand has 2 dimension(s)"),
        (
            "Resize",
            [(1, 1, 2, 2), (0,), (4,)],
            {"mode": b"\xd7\xff"},
            r"Resize: attribute 'mode' is b'\xd7\xff', which is not UTF-8",
        ),
        (
            "GridSample",
            [(1, 1, 2, 2), (1, 3, 3, 2)],
            {"mode": "bilinaer"},
            "GridSample: attribute 'mode' is 'bilinaer', expected one of bilinear, bicubic, nearest, linear, cubic",
        ),
        (
            "Resize",
            [(1, 1, 2, 2), (0,), (4,)],
            {"nearest_mode": "round"},
            "expected one of round_prefer_floor, round_prefer_ceil, floor, ceil",
        ),
    ],
)
def test_shapes_that_no_such_operator_takes(
    op: str, shapes: list[Any], attributes: dict[str, Any], message: str
) -> None:
    names = [f"x{k}" for k in range(len(shapes))]
    inputs = [
        info(n, s, onnx.TensorProto.INT64 if k else onnx.TensorProto.FLOAT)
        for k, (n, s) in enumerate(zip(names, shapes))
    ]
    with pytest.raises(FrontendError) as caught:
        weft.load(model([helper.make_node(op, names, ["y"], name="the_node", **attributes)], inputs, ["y"]))
    assert message in str(caught.value) and "node 'the_node'" in str(caught.value)


def test_a_node_that_a_converter_stumbles_over_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_frontend.registry import Registered
    from weft_onnx.registry import REGISTRY

    def stumble(c: Any) -> Any:
        raise IndexError("of nothing")

    REGISTRY.supported()  # converters are registered with the first question
    monkeypatch.setitem(REGISTRY._converters, ("", "Relu"), [Registered(stumble, 1, 100)])
    hint = "ONNX's checker has nothing to say against the model: if it is valid, this is a defect of weft-onnx"
    relu = helper.make_node("Relu", ["x"], ["y"], name="the_node")
    with pytest.raises(FrontendError) as caught:
        weft.load(model([relu], [info("x", [2])], [info("y", [2])]))
    assert (
        str(caught.value)
        == f"Relu cannot be applied\n  node 'the_node': Relu(x) → y\n  why: IndexError: of nothing\n  hint: {hint}"
    )
    with pytest.raises(
        FrontendError, match=r"Relu cannot be applied\n  node 'the_node': Relu\(x\) → y\n  why: .*Relu.*"
    ):
        weft.load(model([relu], [info("x", [2], onnx.TensorProto.STRING)], [info("y", [2])]))


def test_formulas_that_nest_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(proto: Any, options: Any) -> Any:
        return load(proto, options)

    from weft_onnx import plugin

    monkeypatch.setattr(plugin, "load", load)
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"])
    with pytest.raises(
        FrontendError, match="the model nests graphs, or formulas of its sizes, deeper than can be followed"
    ):
        weft.load(proto)


def test_a_branch_that_is_not_taken_requires_nothing() -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [info("r", None, onnx.TensorProto.FLOAT)])

    then = branch("then", helper.make_node("Gather", ["x", "i"], ["r"], name="the_node"))
    orelse = branch("else", helper.make_node("Gather", ["x", "zeros"], ["r"]))
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=orelse)
    inputs = [info("c", [], onnx.TensorProto.BOOL), info("x", [3, 4]), info("i", [2], onnx.TensorProto.INT64)]
    exe = weft.compile(
        model([node], inputs, ["y"], [constant("zeros", [0, 0], np.int64)]), "llvm -threads=1", cache=False
    )
    np.testing.assert_array_equal(exe(np.array(True), X, i64(0, -3)), X[[0, 0]])
    np.testing.assert_array_equal(exe(np.array(False), X, i64(7, 7)), X[[0, 0]])
    with pytest.raises(ExecutionError, match="Gather 'If_0/the_node': index 7 is out of range"):
        exe(np.array(True), X, i64(7, 7))


def test_a_truth_value_of_no_dimensions_that_sizes_decide_meets_data() -> None:
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Greater", ["size", "three"], ["large"]),
        helper.make_node("Xor", ["large", "c"], ["y"]),
    ]
    inputs = [info("x", ["n"]), info("c", [2], onnx.TensorProto.BOOL)]
    exe = weft.compile(model(nodes, inputs, ["y"], [constant("three", 3, np.int64)]), "llvm -threads=1", cache=False)
    for n in (2, 5):
        np.testing.assert_array_equal(exe(np.zeros(n, np.float32), np.array([True, False])), [n <= 3, n > 3])
