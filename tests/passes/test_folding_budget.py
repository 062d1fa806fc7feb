"""One allowance of constant folding for a whole compilation: what a small model makes of little is computed by the run,
and takes no memory before."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.passes.library import SHARED, run_passes

import weft
from weft import dtypes as dt
from weft.errors import FrontendError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.graph.operator import Operator
from weft.passes import fold_constants as folding
from weft.passes.fold_constants import Budget, fold_constants, work_of
from weft_frontend import importer
from weft_ops import (
    Add,
    AveragePool,
    BatchNorm,
    BroadcastTo,
    Cast,
    Conv,
    Dequantize,
    If,
    LayerNorm,
    Loop,
    MatMul,
    Multiply,
    Resize,
    RoiAlign,
    ScatterND,
    Softmax,
    Tanh,
    Transpose,
)

ROOT = Path(__file__).parents[2]
MOST = 160
"""MiB that compiling a model of a few kilobytes may take where folding may make 64: what it makes, packed, and what it
takes on the way."""
PEAK = """
import resource, sys
import weft
from tests.passes.test_folding_budget import folding, model
folding.MADE = 64 << 20
weft.compile(model("flat", 1, 4), cache=False)  # what is imported once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weft.compile(model(sys.argv[1], 12, 1 << 21), cache=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
ELEMENTS = helper.make_tensor_value_info
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]


def numbers(k: int, name: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array([k, 0.5], np.float32)))


def chain(size: int, name: str, operand: str, times: str) -> list[onnx.NodeProto]:
    """`name` is `operand` times a constant of so many elements that comes of the two of `times`."""
    return [
        helper.make_node("Constant", [], [f"{name}.s"], value=numpy_helper.from_array(np.array([size // 2]))),
        helper.make_node("Tile", [times, f"{name}.s"], [f"{name}.a"]),
        helper.make_node("Neg", [f"{name}.a"], [f"{name}.b"]),
        helper.make_node("Mul", [operand, f"{name}.b"], [name]),
    ]


def body(size: int, name: str, operand: str, k: int) -> onnx.GraphProto:
    return helper.make_graph(
        [numbers(k, f"{name}.v"), *chain(size, name, operand, f"{name}.v")],
        name,
        [],
        [ELEMENTS(name, TensorProto.FLOAT, None)],
    )


def model(kind: str, count: int, size: int) -> bytes:
    """So many such constants: in the graph itself, one for each call of a function, or in the bodies of branches or of
    loops."""
    nodes, functions, last = [], [], "x"
    if kind == "function":
        functions = [helper.make_function("own", "f", ["a", "v"], ["b"], chain(size, "b", "a", "v"), OPSETS[:1])]
    for k in range(count):
        y = f"y{k}"
        if kind == "flat":
            nodes += [numbers(k, f"v{k}"), *chain(size, y, last, f"v{k}")]
        elif kind == "function":
            nodes += [numbers(k, f"v{k}"), helper.make_node("f", [last, f"v{k}"], [y], domain="own")]
        elif kind == "branches":
            nodes.append(
                helper.make_node(
                    "If",
                    ["c"],
                    [y],
                    then_branch=body(size, f"t{k}", last, 2 * k),
                    else_branch=body(size, f"e{k}", last, 2 * k + 1),
                )
            )
        else:
            inside = [
                numbers(k, f"v{k}"),
                *chain(size, f"m{k}", f"s{k}", f"v{k}"),
                helper.make_node("Identity", [f"c{k}"], [f"d{k}"]),
            ]
            takes = [
                ELEMENTS(f"i{k}", TensorProto.INT64, []),
                ELEMENTS(f"c{k}", TensorProto.BOOL, []),
                ELEMENTS(f"s{k}", TensorProto.FLOAT, [size]),
            ]
            gives = [ELEMENTS(f"d{k}", TensorProto.BOOL, []), ELEMENTS(f"m{k}", TensorProto.FLOAT, None)]
            nodes.append(
                helper.make_node("Loop", ["n", "c", last], [y], body=helper.make_graph(inside, f"l{k}", takes, gives))
            )
        last = y
    inputs = [
        ELEMENTS("x", TensorProto.FLOAT, [size]),
        ELEMENTS("c", TensorProto.BOOL, []),
        ELEMENTS("n", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [ELEMENTS(last, TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=10).SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["flat", "function", "branches", "loops"])
def test_stages_branches_and_loops_share_one_allowance(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MADE", 1 << 20)
    exe = weft.compile(
        model(kind, 12, 1 << 15), cache=False
    )  # whose constants would come to twice as much, those of branches to four times
    assert 1 << 18 < sum(a.nbytes for a in exe._constants.values()) < 1 << 20
    x = np.arange(1 << 15, dtype=np.float32) / (1 << 15)
    expected = x.astype(np.float64)
    for k in range(12):
        expected = expected * np.tile([-2.0 * k if kind == "branches" else -k, -0.5], 1 << 14)
    np.testing.assert_allclose(exe(x, np.array(True), np.array(1)), expected, rtol=1e-5)


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_a_small_model_takes_little_memory_to_compile() -> None:
    """Its constants would come to 200 MiB, and as much on the way."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK, "branches"], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    assert int(run.stdout) <= MOST


def test_the_allowance_goes_by_the_imported_constants_each_once() -> None:
    w = np.zeros((64, 64), np.float32)
    inner = GraphBuilder()
    x = inner.input("x", tensor_type("float32", (64, 64)))
    inner.output(inner.add(MatMul(), inner.add(MatMul(), x, inner.constant(w)), inner.constant(w + 1)))
    b = GraphBuilder()
    x, c = b.input("x", tensor_type("float32", (64, 64))), b.input("c", tensor_type("bool", ()))
    x = b.add(MatMul(), b.add(MatMul(), x, b.constant(w)), b.constant(w))
    b.output(b.add(If(inner.build(), inner.build()), c, x, x))
    budget = Budget.of(b.build())
    assert (
        budget.made == folding.MADE + 2 * w.nbytes * folding.MADE_PER_BYTE
        and budget.work == folding.WORK + 2 * w.size * folding.WORK_PER_ELEMENT
    )


def test_the_numbers_of_a_function_are_read_once() -> None:
    weights = numpy_helper.from_array(np.arange(1 << 10, dtype=np.float32))
    nodes = [helper.make_node("Constant", [], ["w"], value=weights), helper.make_node("Add", ["a", "w"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], nodes, OPSETS[:1])
    calls = [helper.make_node("f", [f"y{k}" if k else "x"], [f"y{k + 1}"], domain="own") for k in range(5)]
    graph = helper.make_graph(
        calls, "g", [ELEMENTS("x", TensorProto.FLOAT, [1])], [ELEMENTS("y5", TensorProto.FLOAT, None)]
    )
    imported = weft.load(
        helper.make_model(graph, opset_imports=OPSETS, functions=[function], ir_version=10).SerializeToString()
    )
    assert len({id(v.constant) for v in imported.constants()}) == 1 and len(imported.nodes) == 5


def test_numbers_that_nodes_ask_for_come_to_so_many_in_all() -> None:
    """Each of these is within reason, a hundred of them are not."""
    pieces = [1 << 14] * 300
    nodes = [helper.make_node("Split", ["x", "s"], [f"y{i}.{k}" for k in range(300)], axis=0) for i in range(5)]
    inputs, outputs = (
        [ELEMENTS("x", TensorProto.FLOAT, [sum(pieces)])],
        [ELEMENTS(f"y{i}.0", TensorProto.FLOAT, None) for i in range(5)],
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.array(pieces), "s")])
    with pytest.raises(
        FrontendError, match="places of the parts would be 4915200 numbers, at most 16777216 are made of so little"
    ) as caught:
        weft.load(helper.make_model(graph, opset_imports=OPSETS, ir_version=10).SerializeToString())
    assert caught.value.why == "other nodes have 14745600"


def test_what_is_computed_at_import_has_a_bound_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of constants that is written out, each iteration a scatter, whose reference takes its steps in Python."""
    trips = [
        helper.make_node("ScatterElements", ["s", "at", "by"], ["t"], reduction="add"),
        helper.make_node("Identity", ["c"], ["d"]),
    ]
    takes = [
        ELEMENTS("i", TensorProto.INT64, []),
        ELEMENTS("c", TensorProto.BOOL, []),
        ELEMENTS("s", TensorProto.FLOAT, [64]),
    ]
    loop = helper.make_graph(
        trips, "l", takes, [ELEMENTS("d", TensorProto.BOOL, []), ELEMENTS("t", TensorProto.FLOAT, [64])]
    )
    numbers = {
        "n": np.array(50),
        "c0": np.array(True),
        "s0": np.zeros(64, np.float32),
        "at": np.arange(64),
        "by": np.ones(64, np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "c0", "s0"], ["u"], body=loop), helper.make_node("Add", ["x", "u"], ["y"])],
        "g",
        [ELEMENTS("x", TensorProto.FLOAT, [64])], [ELEMENTS("y", TensorProto.FLOAT, [64])], [numpy_helper.from_array(v,
            k) for k, v in numbers.items()],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=OPSETS, ir_version=10).SerializeToString()
    assert len(weft.load(data).nodes) == 1
    monkeypatch.setattr(importer, "FOLDED_WORK", 10 * 64 << 16)
    cut = weft.load(data)
    assert 40 < len(cut.nodes) < 50
    np.testing.assert_array_equal(evaluate(cut, [np.zeros(64, np.float32)])[0], np.full(64, 50, np.float32))


def test_a_range_is_data_that_the_allowance_covers() -> None:
    numbers = [
        numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("first", 0.5), ("last", 1 << 20), ("step", 2))
    ]
    graph = helper.make_graph(
        [helper.make_node("Range", ["first", "last", "step"], ["y"])],
        "g",
        [],
        [ELEMENTS("y", TensorProto.FLOAT, None)],
        numbers,
    )
    imported = weft.load(helper.make_model(graph, opset_imports=OPSETS, ir_version=10).SerializeToString())
    assert sum(v.constant.size for v in imported.constants() if v.constant is not None) < 8
    (y,) = fold_constants(imported).outputs
    np.testing.assert_array_equal(y.constant, np.arange(0.5, 1 << 20, 2, dtype=np.float32))


@pytest.mark.parametrize("kind", ["int8", "int4", "adapter"])
def test_what_weights_go_through_is_within_what_they_allow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what any model may: dequantised by blocks, or joined by an adapter, cast, transposed and scaled."""
    monkeypatch.setattr(folding, "MADE", 0)
    monkeypatch.setattr(folding, "WORK", 0)
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", ("n", 128)))
    if kind == "adapter":
        wide, a, c = (b.constant(np.ones(s, np.float16)) for s in ((128, 128), (128, 16), (16, 128)))
        w = b.add(
            Cast(dt.float32), b.add(Add(), wide, b.add(Multiply(), b.add(MatMul(), a, c), b.constant(np.float16(0.5))))
        )
    else:
        data = np.arange(128 * 128).reshape(128, 128) % 7
        scale, zero = (
            b.constant(np.full((128, 4), 0.1, np.float32)),
            b.constant(np.ones((128, 4), np.int8).astype(dt.dtype(kind).numpy)),
        )
        w = b.add(Dequantize(axis=1, block=32), b.constant(data.astype(dt.dtype(kind).numpy)), scale, zero)
    y = b.add(MatMul(), x, b.add(Transpose((1, 0)), w))
    b.output(b.add(Multiply(), y, b.constant(np.linspace(1, 2, 128, dtype=np.float32))))
    graph, budget = b.build(), Budget.of(b.graph)
    made, work = budget.made, budget.work
    after = run_passes(graph, budget=budget, only=SHARED)
    assert [type(n.op) for n in after.nodes] == [MatMul]
    assert budget.made > made // 2 and budget.work > work // 2, "other models do more"


@pytest.mark.parametrize("normalised", [False, True])
def test_weights_that_many_share_become_others_within_the_allowance(
    normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MADE", 1 << 16)
    monkeypatch.setattr(folding, "MADE_PER_BYTE", 0)
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 16, 8, 8)))
    w = b.constant(np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1) / 2)
    for k in range(100):
        x = b.add(Conv(), x, w)
        scale = b.constant(np.linspace(1, 2 + k / 50, 16, dtype=np.float32).reshape(16, *[1] * 2 * (not normalised)))
        x = (
            b.add(BatchNorm(), x, scale, *(b.constant(np.full(16, v, np.float32)) for v in (0.1, 0, 1)))
            if normalised
            else b.add(Multiply(), x, scale)
        )
    b.output(x)
    graph = b.build()
    after = run_passes(graph, only=SHARED)
    stored = {
        id(v.constant): v.constant.nbytes
        for v in after.constants()
        if v.constant is not None and v.constant.ndim == 4 and v.constant.size == 256
    }
    assert 10 << 10 < sum(stored.values()) <= folding.MADE + 1024
    x = np.linspace(0, 1, 1024, dtype=np.float32).reshape(1, 16, 8, 8)
    np.testing.assert_allclose(evaluate(after, [x])[0], evaluate(graph, [x])[0], rtol=1e-3, atol=1e-6)


# -- what a single node takes -----------------------------------------------------------------------------------------


def work(op: Operator, *inputs: tuple[tuple[int, ...], object]) -> int | None:
    b = GraphBuilder()
    values = [b.input(f"x{k}", tensor_type(dtype, shape)) for k, (shape, dtype) in enumerate(inputs)]
    result = b.add_all(op, *values)
    return work_of(op, values, result if isinstance(result, tuple) else (result,))


def test_products_that_take_long_are_left_for_the_run() -> None:
    """Of 4096³ they take half a minute, of integers and wide floats, which no library multiplies, many."""

    def allowed(dtype: str, m: int, k: int, n: int) -> bool:
        took = work(MatMul(), ((m, k), dtype), ((k, n), dtype))
        assert took is not None
        return took <= folding.WORK + folding.WORK_PER_ELEMENT * (m * k + k * n)

    assert allowed("float32", 4096, 64, 4096) and not allowed("float32", 4096, 4096, 4096)
    assert allowed("int32", 512, 512, 512) and not allowed("int32", 1500, 1500, 1500)
    assert allowed("float64", 256, 256, 256) and not allowed("float64", 1500, 1500, 1500)


def test_what_attributes_and_data_decide_is_left_for_the_run() -> None:
    assert work(AveragePool((30000, 30000), pads=(30000,) * 4), ((1, 1, 4, 4), "float32")) is None
    assert work(RoiAlign(2, 2, 1 << 20, 1.0), ((1, 1, 4, 4), "float32"), ((1, 4), "float32"), ((1,), "int64")) is None
    assert work(Conv(), ((1, 1, 4, 4), "float32"), ((1, 1, 2, 2), "float32")) is None
    assert work(LayerNorm(1), ((4, 4), "float32")) == work(Softmax(1), ((4, 4), "float32")) == 32 * 256
    assert work(BroadcastTo((0, 1 << 40)), ((1, 1), "float32")) == 16 * (
        (1 << 40) + 1
    )  # what is computed on the way may have these sizes


def test_a_python_step_for_each_update_is_counted() -> None:
    mask = work(ScatterND(), ((2048, 2048), "float32"), ((64, 1), "int64"), ((64, 2048), "float32"))
    points = work(ScatterND(), ((2048, 2048), "float32"), ((1 << 18, 2), "int64"), ((1 << 18,), "float32"))
    assert mask is not None and mask < folding.WORK // 8 and points is not None and points > folding.WORK


def test_a_resize_counts_what_is_on_the_way() -> None:
    """The first axis grows before the second shrinks."""
    took = work(Resize((1, 1, 4096, 1), "linear", axes=(0, 1, 2, 3)), ((1, 1, 1, 4096), "float32"))
    assert took == 512 * 4096 * 4096


def test_a_formula_of_a_large_constant_takes_memory_for_a_part_of_it() -> None:
    b = GraphBuilder()
    x = b.constant(np.linspace(-3, 3, 1 << 21, dtype=np.float32).reshape(4, 1 << 19))
    column = b.constant(np.array([[1], [2], [3], [4]], np.float32))
    b.output(b.add(Multiply(), b.add(Tanh(), x), column))
    graph = b.build()
    tracemalloc.start()
    try:
        after = fold_constants(graph)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expected = Multiply().reference(Tanh().reference(x.constant), column.constant)
    np.testing.assert_array_equal(after.outputs[0].constant, expected)
    assert not after.nodes and peak < 5 * expected.nbytes  # two results, and what blocks take


def test_loops_are_left_for_the_run() -> None:
    """Of any number of iterations, and constant inputs."""
    inner = GraphBuilder()
    inner.input("i", tensor_type("int64", ()))
    s = inner.input("s", tensor_type("float32", (4,)))
    inner.output(inner.add(Multiply(), s, s))
    b = GraphBuilder()
    b.output(
        b.add(Loop(inner.build(), carried=1), b.constant(np.array(1 << 40)), None, b.constant(np.ones(4, np.float32)))
    )
    before = time.process_time()
    after = run_passes(b.build())
    assert [type(n.op) for n in after.nodes] == [Loop] and time.process_time() - before < 1
