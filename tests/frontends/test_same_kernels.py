"""One net, as several formats hold it, becomes the same kernels."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.kernels import differences, kernel_list, loaded, main, transposes

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph

pytestmark = pytest.mark.needs("weft_llvm", "weft_tflite", "weft_tensorflow")

R = np.random.default_rng(0)
FIRST = R.standard_normal((3, 2, 4)).astype(np.float32)
"""Weights of a convolution without a bias: length, channels, channels of the result."""
SECOND = R.standard_normal((5, 2, 4)).astype(np.float32)
BIAS = R.standard_normal(4).astype(np.float32)
X = R.standard_normal((1, 32, 2)).astype(np.float32)
LN10 = np.float32(np.log(10))


def expected() -> Any:
    """The net: concat(-conv(x, FIRST), sigmoid(conv(x, SECOND) + BIAS)) / ln 10 · 10, of rows [length, channels]."""

    def conv(w: Any) -> Any:
        edge = len(w) // 2
        padded = np.pad(X[0], ((edge, edge), (0, 0)))
        return np.stack([np.einsum("kc,kco->o", padded[i : i + len(w)], w) for i in range(32)])

    gate = 1 / (1 + np.exp(-(conv(SECOND) + BIAS)))
    return (np.concatenate([-conv(FIRST), gate], 1) / LN10 * 10)[None]


def from_onnx() -> Graph:
    """Convolutions along one axis, channels first."""
    from onnx import helper
    from tests.frontends.onnx.models import constant, info, load

    node = helper.make_node
    weights = {f"w{k}": w.transpose(2, 1, 0) for k, w in enumerate((FIRST, SECOND))}
    graph = load(
        [
            node("Transpose", ["x"], ["first"], perm=[0, 2, 1]),
            node("Conv", ["first", "w0"], ["a"], pads=[1, 1]),
            node("Neg", ["a"], ["negative"]),
            node("Conv", ["first", "w1", "bias"], ["b"], pads=[2, 2]),
            node("Sigmoid", ["b"], ["gate"]),
            node("Transpose", ["negative"], ["a last"], perm=[0, 2, 1]),
            node("Transpose", ["gate"], ["b last"], perm=[0, 2, 1]),
            node("Concat", ["a last", "b last"], ["both"], axis=2),
            node("Mul", ["both", "scale"], ["y"]),
        ],
        [info("x", X.shape)],
        ["y"],
        [constant(n, w) for n, w in {**weights, "bias": BIAS, "scale": np.float32(10 / LN10)}.items()],
    )
    return graph


def from_tflite() -> Graph:
    """Convolutions along two axes, channels last, each with a bias; a factor in place of the divisor."""
    from tests.frontends.tflite.models import ModelWriter

    model = ModelWriter()
    g = model.graph()

    def result(*shape: int) -> list[dict[str, Any]]:
        return [{"type": "float32", "shape": shape}]

    def conv(x: int, w: Any, bias: Any, edge: int) -> int:
        (wide,) = g.op("RESHAPE", [x, g.constant(np.array([1, 1, 32, 2], np.int32))], result(1, 1, 32, 2))
        pads = g.constant(np.array([[0, 0], [0, 0], [edge, edge], [0, 0]], np.int32))
        (padded,) = g.op("PAD", [wide, pads], result(1, 1, 32 + 2 * edge, 2))
        taps = g.constant(np.ascontiguousarray(w.transpose(2, 0, 1)[:, None]))
        options = {"padding": 1, "stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
        return g.op("CONV_2D", [padded, taps, g.constant(bias)], result(1, 1, 32, 4), **options)[0]

    def narrow(x: int) -> int:
        return g.op("RESHAPE", [x, g.constant(np.array([1, 32, 4], np.int32))], result(1, 32, 4))[0]

    x = g.input("float32", X.shape)
    (a,) = g.op("NEG", [narrow(conv(x, FIRST, np.zeros(4, np.float32), 1))], result(1, 32, 4))
    b = narrow(g.op("LOGISTIC", [conv(x, SECOND, BIAS, 2)], result(1, 1, 32, 4))[0])
    (both,) = g.op("CONCATENATION", [a, b], result(1, 32, 8), axis=2)
    (y,) = g.op("MUL", [both, g.constant(np.float32(1 / LN10))], result(1, 32, 8))
    g.outputs = g.op("MUL", [y, g.constant(np.float32(10))], result(1, 32, 8))
    return weft.load(model.bytes(), frontend="tflite")


def from_tensorflow() -> Graph:
    """Convolutions along two axes, channels last, the bias an operator of its own."""
    from weft_tensorflow.schema import schema

    graph = schema()["GraphDef"]()
    float_, int_ = 1, 3

    def node(name: str, kind: str, inputs: tuple[str, ...] = (), **attributes: Any) -> str:
        made = graph.node.add(name=name, op=kind, input=inputs)
        for key, value in {"T": float_, **attributes}.items():
            field = made.attr.add(key=key).value
            if isinstance(value, list):
                field.list.i.extend(value)
            elif isinstance(value, str):
                field.s = value.encode()
            else:
                field.type = value
        return name

    def constant(name: str, data: Any) -> str:
        data = np.asarray(data)
        made = graph.node.add(name=name, op="Const")
        kind = float_ if data.dtype == np.float32 else int_
        made.attr.add(key="dtype").value.type = kind
        tensor = made.attr.add(key="value").value.tensor
        tensor.dtype, tensor.tensor_content = kind, data.tobytes()
        for size in data.shape:
            tensor.tensor_shape.dim.add(size=size)
        return name

    def conv(name: str, w: Any, edge: int) -> str:
        wide = node(f"{name}/wide", "ExpandDims", ("x", constant(f"{name}/axis", np.int32(1))))
        pads = constant(f"{name}/pads", np.array([[0, 0], [0, 0], [edge, edge], [0, 0]], np.int32))
        padded = node(f"{name}/padded", "Pad", (wide, pads))
        taps = constant(f"{name}/taps", w[None])
        return node(f"{name}/conv", "Conv2D", (padded, taps), strides=[1] * 4, padding="VALID", data_format="NHWC")

    node("x", "Placeholder", dtype=float_)
    a = node("negative", "Neg", (node("a", "Squeeze", (conv("first", FIRST, 1),), squeeze_dims=[1]),))
    b = node("b", "BiasAdd", (conv("second", SECOND, 2), constant("bias", BIAS)), data_format="NHWC")
    gate = node("gate", "Sigmoid", (node("narrow", "Squeeze", (b,), squeeze_dims=[1]),))
    both = graph.node.add(name="both", op="ConcatV2", input=(a, gate, constant("axis", np.int32(2))))
    both.attr.add(key="N").value.i = 2
    logarithm = node("log", "RealDiv", ("both", constant("ln10", LN10)))
    node("y", "Mul", (constant("ten", np.float32(10)), logarithm))
    return weft.load(
        graph.SerializeToString(), frontend="tensorflow", shapes={"x": "1x32x2"}, inputs=("x",), outputs=("y",)
    )


def test_one_net_from_three_formats() -> None:
    graphs = {"onnx": from_onnx(), "tflite": from_tflite(), "tensorflow": from_tensorflow()}
    for graph in graphs.values():
        np.testing.assert_allclose(evaluate(graph, [X])[0], expected(), rtol=1e-4, atol=1e-5)
    lists = {name: kernel_list(graph) for name, graph in graphs.items()}
    assert differences(lists) == []
    convolutions = [name for name in lists["onnx"].elements() if "Conv" in name.split()]
    # No bias of zeros, no negation, and the activation where the sum is.
    assert sorted(convolutions) == ["Add Conv Sigmoid -> float32[4, 32] in blocks", "Conv -> float32[4, 32] in blocks"]


def mobile_net(padded: bool) -> Graph:
    """The first layers of a MobileNet as TFLite has it: channels last, each convolution with a bias and ReLU6."""
    from tests.frontends.tflite.models import ModelWriter

    model = ModelWriter()
    g = model.graph()
    x = g.input("float32", (1, 16, 16, 3))
    if padded:  # Keras pads on its own
        pads = g.constant(np.array([[0, 0], [0, 1], [0, 1], [0, 0]], np.int32))
        (x,) = g.op("PAD", [x, pads], [{"type": "float32", "shape": (1, 17, 17, 3)}])
    for kind, channels, kernel, stride in (
        ("CONV_2D", 16, 3, 2),
        ("DEPTHWISE_CONV_2D", 16, 3, 1),
        ("CONV_2D", 32, 1, 1),
    ):
        before = g.tensors[x][0][1][3]
        shape = (1, kernel, kernel, channels) if kind != "CONV_2D" else (channels, kernel, kernel, before)
        taps, bias = (R.standard_normal(n).astype(np.float32) for n in (shape, channels))
        options: dict[str, Any] = {"stride_w": stride, "stride_h": stride, "fused_activation_function": 3}
        options |= {"padding": int(padded and stride == 2), "dilation_w_factor": 1, "dilation_h_factor": 1}
        if kind != "CONV_2D":
            options["depth_multiplier"] = 1
        result = [{"type": "float32", "shape": (1, 8, 8, channels)}]
        (x,) = g.op(kind, [x, g.constant(taps), g.constant(bias)], result, **options)
    axes = g.constant(np.array([1, 2], np.int32))
    g.outputs = g.op("MEAN", [x, axes], [{"type": "float32", "shape": (1, 32)}], keep_dims=False)
    return weft.load(model.bytes(), frontend="tflite")


@pytest.mark.parametrize("padded", [False, True])
def test_no_transposition_is_left_in_a_mobile_net(padded: bool) -> None:
    graph = mobile_net(padded)
    assert transposes(graph) == []
    assert kernel_list(graph)["Add Conv Maximum Minimum Transpose -> float32[16, 8, 8] in blocks"] == 1
    image = R.standard_normal((1, 16, 16, 3)).astype(np.float32)
    (got,) = weft.compile(graph, target="llvm", cache=False).run({graph.inputs[0].name: image}).values()
    np.testing.assert_allclose(got, evaluate(graph, [image])[0], rtol=1e-4, atol=1e-4)


def test_differences_are_counted_for_each_model() -> None:
    lists = {"a": Counter({"Relu": 2, "Conv": 1}), "b": Counter({"Relu": 1, "Conv": 1})}
    assert differences(lists) == ["   2    1  Relu"]


def _basic_pitch() -> Path | None:
    """The folder of the package's models: of WEFT_BASIC_PITCH, or where it is installed."""
    given = os.environ.get("WEFT_BASIC_PITCH")
    found = importlib.util.find_spec("basic_pitch") if not given else None
    if given:
        return Path(given)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0], "saved_models", "icassp_2022")


@pytest.mark.skipif(_basic_pitch() is None, reason="needs basic-pitch (pip install --no-deps basic-pitch==0.4.0)")
def test_basic_pitch_from_four_formats(capsys: pytest.CaptureFixture[str]) -> None:
    """Its CoreML file divides without a select where the others avoid a division by zero; all else is equal."""
    folder = _basic_pitch()
    assert folder is not None
    paths = [str(folder / name) for name in ("nmp.onnx", "nmp.tflite", "nmp")]
    assert main(["--batch", "1", *paths]) == 0
    assert "no differences" in capsys.readouterr().out
    lists = {name: kernel_list(loaded(str(folder / name), 1)) for name in ("nmp", "nmp.mlpackage")}
    assert [line.split("->")[0].split() for line in differences(lists)] == [
        ["1", "0", "Add", "Divide", "Equal", "Multiply", "Where"],
        ["0", "1", "Add", "Divide", "Multiply"],
    ]
