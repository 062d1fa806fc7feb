"""Quantised models as quantizers write them: every form gives integers, and what ONNX Runtime's kernels give, operator
by operator, but for a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx.models import constant, info, load, model, operators, run
from tests.needs import require

import weft
from weft.graph.evaluate import evaluate
from weft.passes.capabilities import Capabilities
from weft.passes.fold_constants import fold_constants
from weft_ops.passes.fuse_quantization import fuse_quantization

node = helper.make_node
F = np.float32
MICROSOFT = helper.make_opsetid("com.microsoft", 1)


def fused(graph: Any) -> Any:
    return fuse_quantization(fold_constants(graph, early=True), Capabilities(doubles=True))


def network(folder: Path, dense: bool = True) -> Path:
    """Convolutions with ReLU and Clip, a depthwise one, a residual, pools, a concatenation, a classifier."""
    random = np.random.default_rng(0)
    w: Any = lambda name, *shape: constant(
        name, (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(F)
    )
    weights = [
        w("w0", 8, 3, 3, 3),
        w("b0", 8),
        w("w1", 8, 1, 3, 3),
        w("b1", 8),
        w("w2", 8, 8, 1, 1),
        w("b2", 8),
        w("w3", 5, 16),
        w("b3", 5),
    ]
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1], name="conv0"),
        node("Relu", ["c0"], ["r0"], name="relu0"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], group=8, name="conv1"),
        node("Clip", ["c1", "zero", "six"], ["r1"], name="clip1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2"),
        node("Add", ["c2", "r0"], ["sum"], name="add"),
        node("MaxPool", ["sum"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2], name="max"),
        node("Concat", ["pooled", "pooled"], ["both"], axis=1, name="concat"),
        node("GlobalAveragePool", ["both"], ["mean"], name="mean"),
        node("Flatten", ["mean"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w3", "b3"], ["y"], transB=1, name="gemm"),
    ]
    made = model(
        nodes,
        [info("x", [1, 3, 8, 8])],
        [info("y", [1, 5])],
        [*weights, constant("zero", F(0)), constant("six", F(6))],
        opset=17,
    )
    made.ir_version = 8
    onnx.save(onnx.shape_inference.infer_shapes(made), folder / "float.onnx")
    return folder / "float.onnx"


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_static_quantization(form: str, activation: str, per_channel: bool, tmp_path: Path) -> None:
    require("onnxruntime")
    import onnxruntime as ort
    from onnxruntime import quantization

    random = np.random.default_rng(1)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[name-defined, misc]
        left = [{"x": random.standard_normal((1, 3, 8, 8)).astype(F)} for _ in range(4)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    path, kinds = tmp_path / "quantized.onnx", quantization.QuantType
    # 7 bits of weights, as ONNX Runtime's sums of two products of whole bytes saturate on processors without VNNI.
    quantization.quantize_static(
        network(tmp_path), path, Reader(), quant_format=getattr(quantization.QuantFormat, form),
        per_channel=per_channel,
        activation_type=getattr(kinds, activation), weight_type=kinds.QInt8, reduce_range=True,
    )  # fmt: skip
    graph = weft.load(path)
    new = fused(graph)
    assert not {"Conv", "MatMul", "QLinearConv", "Relu", "MaxPool"} & {
        n for n, o in zip(operators(new), new.nodes) if o.output.dtype.is_float
    }
    x = random.standard_normal((1, 3, 8, 8)).astype(F)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (got,) = evaluate(new, [x])
    (native,) = weft.compile(graph, "llvm -threads=1", cache=False).run({"x": x}).values()
    np.testing.assert_array_equal(native, got)
    # It rounds in every operator: a step of the result, where a quotient was almost halfway.
    step = next(
        float(v.constant.reshape(-1)[0]) for n in new.nodes if n.output is new.outputs[0] for v in n.inputs[1:2]
    )
    assert np.abs(got - want).max() <= 1.01 * step


def test_dynamic_quantization(tmp_path: Path) -> None:
    require("onnxruntime")
    import onnxruntime as ort
    from onnxruntime import quantization

    random = np.random.default_rng(2)
    w = [constant(n, random.standard_normal(s).astype(F)) for n, s in (("w", (16, 8)), ("b", (8,)), ("v", (8, 4)))]
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    made = model(nodes, [info("x", ["n", 16])], [info("y", ["n", 4])], w, opset=17)
    made.ir_version = 8
    onnx.save(made, tmp_path / "float.onnx")
    quantization.quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "dynamic.onnx", weight_type=quantization.QuantType.QInt8, reduce_range=True
    )
    x = random.standard_normal((3, 16)).astype(F)
    (want,) = ort.InferenceSession(str(tmp_path / "dynamic.onnx"), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    (got,) = weft.compile(tmp_path / "dynamic.onnx", "llvm -threads=1", cache=False).run({"x": x}).values()
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()


# -- com.microsoft ----------------------------------------------------------------------------------------------------


def compared(nodes: Any, inputs: dict[str, Any], constants: dict[str, Any], steps: float = 1.0) -> Any:
    """The graph of nodes from inputs to "y", evaluated as loaded and as integers; ONNX Runtime's differs by at most
    `steps`."""
    require("onnxruntime")
    import onnxruntime as ort

    infos = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in inputs.items()]
    made = model(
        nodes,
        infos,
        [helper.make_empty_tensor_value_info("y")],
        [constant(n, a) for n, a in constants.items()],
        opset=17,
        domains=[MICROSOFT],
    )
    made.ir_version = 8
    graph = weft.load(made)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    for g in (graph, fused(graph)):
        (got,) = evaluate(g, list(inputs.values()))
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= steps
    return graph


SCALES = {"s": F(0.1), "z": np.uint8(30), "t": F(0.07), "u": np.uint8(90), "r": F(0.2), "q": np.uint8(100)}


def numbers(*shape: int, dtype: Any = np.uint8) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(3).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_of_two(kind: str) -> None:
    nodes = [node(kind, ["x", "s", "z", "w", "t", "u", "r", "q"], ["y"], domain="com.microsoft")]
    compared(nodes, {"x": numbers(2, 3, 4), "w": numbers(3, 4)}, SCALES)


@pytest.mark.parametrize(
    "kind",
    [
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "QLinearGlobalAveragePool",
        "QLinearAveragePool",
        "QLinearReduceMean",
    ],
)
def test_of_one(kind: str) -> None:
    attributes: dict[str, Any] = {
        "QLinearSoftmax": {"axis": -1, "opset": 17}, "QLinearAveragePool": {"kernel_shape": [2, 2], "pads": [1, 0, 0,
            1]},
        "QLinearReduceMean": {"axes": [1, 2]}, "QLinearLeakyRelu": {"alpha": 0.2},
    }  # fmt: skip
    constants = SCALES | ({"r": F(1 / 256), "q": np.uint8(0)} if kind in ("QLinearSigmoid", "QLinearSoftmax") else {})
    if kind == "QLinearReduceMean":
        graph = load(
            [node(kind, ["x", "s", "z", "r", "q"], ["y"], domain="com.microsoft", **attributes[kind])], [info("x", [2,
                3, 4], TensorProto.UINT8)], ["y"],
            [constant(n, a) for n, a in constants.items()], domains=[MICROSOFT],
        )  # fmt: skip
        x = numbers(2, 3, 4)
        want = np.rint((x.astype(np.float64) - 30).mean((1, 2), keepdims=True) * 0.1 / 0.2) + 100
        np.testing.assert_array_equal(run(fused(graph), x), want.astype(np.uint8))
        return
    # ONNX Runtime computes sigmoids by a table of another rounding.
    compared(
        [node(kind, ["x", "s", "z", "r", "q"], ["y"], domain="com.microsoft", **attributes.get(kind, {}))],
        {"x": numbers(1, 3, 4, 4)},
        constants,
    )


def test_concatenation_of_two_scales() -> None:
    nodes = [node("QLinearConcat", ["r", "q", "x", "s", "z", "w", "t", "u"], ["y"], domain="com.microsoft", axis=1)]
    compared(nodes, {"x": numbers(2, 3), "w": numbers(2, 4)}, SCALES)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("floats", [False, True])
def test_gemm(floats: bool, transposed: int) -> None:
    w, b = numbers(4, 6, dtype=np.int8) // 2, np.arange(6, dtype=np.int32) * 90
    w = np.ascontiguousarray(w.T) if transposed else w
    constants = SCALES | {
        "w": w,
        "ws": np.linspace(0.1, 0.2, 6, dtype=F),
        "wz": np.zeros(6, np.int8),
        "b": b,
        "r": F(5),
    }
    names = ["x", "s", "z", "w", "ws", "wz", "b", *([] if floats else ["r", "q"])]
    nodes = [node("QGemm", names, ["y"], domain="com.microsoft", transB=transposed)]
    graph = compared(nodes, {"x": numbers(3, 4)}, constants, 1e-3 if floats else 1)
    assert "MatMulInteger" in operators(fused(graph)) and "MatMul" not in operators(fused(graph))


def test_products_to_floats() -> None:
    w = numbers(4, 6, dtype=np.int8) // 2
    more = {
        "w": w,
        "ws": np.linspace(0.1, 0.2, 6, dtype=F),
        "wz": np.zeros(6, np.int8),
        "b": np.linspace(-1, 1, 6, dtype=F),
    }
    compared(
        [node("MatMulIntegerToFloat", ["x", "w", "s", "ws", "z", "wz", "b"], ["y"], domain="com.microsoft")],
        {"x": numbers(3, 4)},
        SCALES | more,
        1e-3,
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(F)
    compared(
        [node("DynamicQuantizeMatMul", ["x", "w", "ws", "wz", "b"], ["y"], domain="com.microsoft")], {"x": x}, more, 0.2
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_by_blocks_of_few_bits(bits: int, zeros: bool) -> None:
    """K = 40 in blocks of 16: the last one is not whole."""
    k, n, block = 40, 6, 16
    random = np.random.default_rng(4)
    blocks, half = 3, 1 << (bits - 1)
    values = random.integers(0, 1 << bits, (n, blocks * block)).astype(np.uint8)
    points = (
        random.integers(0, 1 << bits, (n, blocks)).astype(np.uint8) if zeros else np.full((n, blocks), half, np.uint8)
    )
    scales = random.random((n, blocks)).astype(F)

    def packed(a: Any) -> Any:
        a = np.pad(a, ((0, 0), (0, a.shape[1] % (8 // bits))))
        return a if bits == 8 else (a[:, ::2] | a[:, 1::2] << 4).astype(np.uint8)

    constants = {"w": packed(values).reshape(n, blocks, -1), "s": scales.reshape(-1)} | (
        {"z": packed(points).reshape(-1)} if zeros else {}
    )
    real = ((values.astype(F).reshape(n, blocks, block) - points[:, :, None]) * scales[:, :, None]).reshape(n, -1)[
        :, :k
    ]
    x = random.standard_normal((3, k)).astype(F)
    graph = load(
        [node("MatMulNBits", ["x", "w", "s", *(["z"] if zeros else [])], ["y"], domain="com.microsoft", K=k, N=n,
            bits=bits, block_size=block)],
        [info("x", [3, k])], ["y"], [constant(name, a) for name, a in constants.items()], domains=[MICROSOFT],
    )  # fmt: skip
    np.testing.assert_allclose(run(graph, x), x @ real.T, rtol=1e-4, atol=1e-3 * half)
