"""Whole networks: the pair of files, older forms, phases, shared weights, open sizes; and what is refused."""

# ruff: noqa: E501 - networks and messages in tables

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.caffe.nets import Net, blob, one, opencv, weights

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.loading import model_files
from weft_caffe.schema import layer_type, schema
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend

R = np.random.default_rng(11)


def r(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


NET = Net(
    """
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
        convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } param { lr_mult: 1 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { use_global_stats: true } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "narrow" type: "Convolution" bottom: "pool" top: "narrow" convolution_param { num_output: 8 kernel_size: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "narrow" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "drop" type: "Dropout" bottom: "fc" top: "fc" }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
""",
    {"x": (2, 3, 8, 8)},
    {
        "conv": [r(8, 3, 3, 3), r(8)], "bn": [r(8), abs(r(8)) + 1, np.array([2.0], np.float32)], "scale": [r(8), r(8)],
        "narrow": [r(8, 8, 1, 1), r(8)], "fc": [r(5, 128), r(5)],
    },
)  # fmt: skip
RELU = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
X = np.random.default_rng(5).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.mark.needs("cv2", "weft_llvm")
def test_a_network_agrees_with_opencv(tmp_path: Path) -> None:
    path = NET.save(tmp_path)
    check_frontend(FrontendCase(path, {"x": X}, lambda given: opencv(path, given, ["prob"])))
    five = np.tile(X, (3, 1, 1, 1))[:5]
    case = FrontendCase(
        path, {"x": X}, lambda given: opencv(path, given, ["prob"]), frontend="caffe -batch=0", others=[{"x": five}]
    )
    graph, _ = check_frontend(case)
    assert str(graph.inputs[0].type) == "float32[batch, 3, 8, 8]"
    assert str(weft.load(path, frontend="caffe -batch=7").outputs[0].type) == "float32[7, 5]"


def test_either_file_is_the_model(tmp_path: Path) -> None:
    path = NET.save(tmp_path)
    model = path.with_suffix(".caffemodel")
    assert str(weft.load(model)) == str(weft.load(path)) == str(weft.load(path.read_bytes(), weights=model))
    assert model_files(path) == (path, model) and model_files(model) == (model, path)
    other = path.rename(tmp_path / "deploy.prototxt")
    assert str(weft.load(other)) == str(weft.load(model)), "the only one there"
    (tmp_path / "second.prototxt").write_text(NET.text)
    with pytest.raises(FrontendError, match=r"which file belongs to 'net.caffemodel' is not certain\n  why: beside it"):
        weft.load(model)
    (tmp_path / "sub").mkdir()
    alone = model.rename(tmp_path / "sub" / "net.caffemodel")
    with pytest.raises(FrontendError, match=r"holds weights alone\n  why: there is no network, a .prototxt, beside it"):
        weft.load(alone)
    with pytest.raises(FrontendError, match="holds weights, and weights are given"):
        weft.load(alone, weights=alone)
    assert len(weft.load(other, weights=str(alone)).nodes) > 5


def test_the_form_of_older_networks(tmp_path: Path) -> None:
    text = """
    name: "old" input: "x" input_dim: 2 input_dim: 3 input_dim: 4 input_dim: 4
    layers { name: "c" type: CONVOLUTION bottom: "x" top: "c" blobs_lr: 1 weight_decay: 0
             convolution_param { num_output: 4 kernel_size: 3 } }
    layers { name: "r" type: RELU bottom: "c" top: "c" }
    layers { name: "i" type: INNER_PRODUCT bottom: "c" top: "y" inner_product_param { num_output: 2 } }
    layers { name: "s" type: SIGMOID bottom: "y" top: "y" }
    """
    w, v = r(4, 3, 3, 3), r(2, 16)
    path = tmp_path / "old.prototxt"
    path.write_text(text)
    path.with_suffix(".caffemodel").write_bytes(weights({"c": [w, r(4) * 0], "i": [v, r(2) * 0]}, old=True))
    x = X[:, :, :4, :4]
    views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    c = np.maximum(np.einsum("nchwij,ocij->nohw", views, w), 0).reshape(2, -1)
    (found,) = evaluate(weft.load(path), {"x": x})
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-c @ v.T)), rtol=1e-4, atol=1e-6)
    assert [layer_type(k) for k in (18, 14, 39, 21, 35, 8)] == [
        "ReLU", "InnerProduct", "Deconvolution", "SoftmaxWithLoss", "AbsVal", "Flatten",
    ]  # fmt: skip
    path.write_text("layers { layer { } }")
    with pytest.raises(UnsupportedError, match=r"the form of Caffe before 2014.*\n  hint: Caffe's upgrade_net_proto"):
        weft.load(path, weights=path.with_suffix(".caffemodel"))


def load(text: str) -> Any:
    return weft.load(text.encode(), frontend="caffe")


def test_layers_of_the_phase_in_which_networks_are_deployed() -> None:
    text = (
        INPUT
        + """
    layer { name: "a" type: "Power" bottom: "x" top: "y" power_param { shift: 1 } include { phase: TRAIN } }
    layer { name: "b" type: "Power" bottom: "x" top: "y" power_param { shift: 2 } include { phase: TEST } }
    layer { name: "c" type: "Power" bottom: "y" top: "y" power_param { shift: 4 } exclude { phase: TEST } }
    layer { name: "d" type: "Power" bottom: "y" top: "y" power_param { shift: 8 } include { phase: TEST stage: "deploy" } }
    layer { name: "e" type: "Power" bottom: "y" top: "y" power_param { shift: 16 } include { max_level: 0 } }
    """
    )
    x = np.zeros((2, 3), np.float32)
    assert evaluate(load(text), {"x": x})[0][0, 0] == 18
    assert evaluate(load('state { phase: TEST stage: "deploy" }' + text), {"x": x})[0][0, 0] == 26
    assert evaluate(load("state { phase: TRAIN level: 1 }" + text), {"x": x})[0][0, 0] == 5


def test_weights_that_layers_share(tmp_path: Path) -> None:
    layer = 'layer {{ name: "{0}" type: "Bias" bottom: "{1}" top: "{2}" param {{ name: "b" }} }}\n'
    path = tmp_path / "n.prototxt"
    path.write_text(INPUT + layer.format("first", "x", "y") + layer.format("second", "y", "z"))
    path.with_suffix(".caffemodel").write_bytes(weights({"first": [[1.0, 2.0, 3.0]], "second": [[9.0, 9.0, 9.0]]}))
    (found,) = evaluate(weft.load(path), {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(found[0], [2, 4, 6])


def test_numbers_that_are_not_packed_and_doubles(tmp_path: Path) -> None:
    path = tmp_path / "n.prototxt"
    path.write_text(INPUT + 'layer { name: "b" type: "Bias" bottom: "x" top: "y" }')
    x = np.zeros((2, 3), np.float32)
    loose = schema()["Numbers"](data=[1, 2, 3]).SerializeToString()
    shape = schema()["Blob"](shape={"dim": [3]})
    net = schema()["Net"]()
    layer = net.layer.add(name="b").blobs.add()
    layer.ParseFromString(loose + shape.SerializeToString())
    path.with_suffix(".caffemodel").write_bytes(net.SerializeToString())
    np.testing.assert_array_equal(evaluate(weft.load(path), {"x": x})[0][0], [1, 2, 3])
    del net.layer[:]
    double = net.layer.add(name="b").blobs.add(double_data=[np.array([4.0, 5.0, 6.0]).tobytes()])
    double.shape.dim.append(3)
    path.with_suffix(".caffemodel").write_bytes(net.SerializeToString())
    np.testing.assert_array_equal(evaluate(weft.load(path), {"x": x})[0][0], [4, 5, 6])


def conv(text: str) -> str:
    return one("Convolution", f"convolution_param {{ {text} }}").text


REFUSED = {
    "no layers": ('name: "n"', "are not a Caffe network\n  why: it has no layers"),
    "not text": ("layer { \x00", "the bytes are not a Caffe network"),
    "unknown field": (INPUT + 'layer { type: "ReLU" spin_param { } }', 'named "spin_param"'),
    "no such blob": (INPUT + RELU.replace('"x"', '"z"'), "'z' is used and computed by no layer before"),
    "data layer": ('layer { name: "d" type: "Data" top: "x" }', "the layer 'd' reads data (Data)"),
    "loss": (INPUT + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "x" top: "l" }', "belongs to training"),
    "unknown layer": (INPUT + RELU.replace("ReLU", "Spin"), "operator Spin: 'r'"),
    "python": (INPUT + RELU.replace("ReLU", "Python"), "operator Python: 'r'"),
    "both rules": (INPUT + RELU[:-1] + "include { } exclude { } }", "a layer both includes and excludes phases"),
    "no weights": (conv("num_output: 2 kernel_size: 3"), "the layer has no filter\n  node 'y'"),
    "kernel": (conv("num_output: 2 kernel_size: 0"), "Convolution: kernel (0, 0)"),
    "two kernels": (conv("num_output: 2 kernel_size: 3 kernel_h: 3"), "kernel_h and kernel_w are for two spatial axes"),
    "three strides": (
        conv("num_output: 2 kernel_size: 3 stride: 1 stride: 1 stride: 1"), "stride has 3 numbers for 2 spatial axes"
    ),
    "groups": (conv("num_output: 4 kernel_size: 3 group: 3"), "3 groups of 4 channels in and 4 out"),
    "axis": (conv("num_output: 4 kernel_size: 3 axis: 2"), "axis 2"),
    "stochastic": (one("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }").text, "stochastic pooling"),
    "pooling pad": (one("Pooling", "pooling_param { kernel_size: 2 pad: 2 }").text, "kernel (2, 2), stride (1, 1), pad (2, 2)"),
    "empty window": (
        one("Pooling", "pooling_param { kernel_size: 1 stride: 4 }", x=(1, 1, 6, 6)).text, "begins behind the 6 of the operand"
    ),
    "batch statistics": (
        one("BatchNorm", "batch_norm_param { use_global_stats: false }").text, "the statistics of the batch itself"
    ),
    "even LRN": (one("LRN", "lrn_param { local_size: 4 }").text, "local_size is 4, expected an odd number"),
    "slice": (one("Slice", "slice_param { slice_point: 9 }", tops=2).text, "slice_point [9] of 4 elements for 2 tops"),
    "odd slice": (one("Slice", tops=3).text, "4 elements are not a multiple of 3 tops"),
    "reshape": (one("Reshape", "reshape_param { shape { dim: 5 dim: -1 } }").text, "336 elements do not divide into (5, -1)"),
    "order": (one("Permute", "permute_param { order: 1 order: 1 }").text, "order [1, 1, 0, 2, 3] of 4 dimension(s)"),
    "shapes": (one("Eltwise", more=[(2, 4, 7, 5)]).text, "takes two or more blobs of one shape"),
    "coefficients": (
        one("Eltwise", "eltwise_param { operation: MAX coeff: 1 }", more=[(2, 4, 7, 6)]).text, "MAX of 2 blobs has 1 coefficients"
    ),
    "crop": (one("Crop", "crop_param { offset: 5 }", more=[(2, 4, 7, 6)]).text, "axis 2: 7 elements from 5 on, of 7"),
    "tops": (one("ReLU", tops=2).text, "ReLU gives 1 blob(s), the layer has 2"),
    "input shape": ('input: "x" input_dim: 2 input_dim: 3 ' + RELU, "1 input(s) have 2 sizes (input_dim), expected four"),
    "no size": ('input: "x"' + RELU, "1 input(s) have 0 shape(s)"),
    "negative size": ('input: "x" input_shape { dim: -2 }' + RELU, "the input 'x' has the shape (-2,)"),
    "size twice": ('input: "x" input_shape { dim: 2 } input_dim: 1 ' + RELU, "the sizes of its inputs twice"),
    "no output": (
        INPUT + 'layer { name: "s" type: "Silence" bottom: "x" }', "the network has no output\n  why: every blob"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_are_refused(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises((FrontendError, UnsupportedError)) as caught:
        weft.load(text.encode(), frontend="caffe")
    assert message in str(caught.value) and "defect" not in str(caught.value)


def test_everything_that_is_not_supported_at_once() -> None:
    text = (
        INPUT + RELU.replace("ReLU", "Spin") + RELU.replace("ReLU", "Turn").replace('"x"', '"y"').replace('"r"', '"t"')
    )
    with pytest.raises(UnsupportedError) as caught:
        weft.load(text.encode(), frontend="caffe")
    assert str(caught.value) == (
        "the model uses 2 things that the Caffe frontend does not support\n  operator Spin: 'r'\n  operator Turn: 't'\n"
        "  hint: give the network as it is deployed; a plugin can convert a layer (hook `converters`)"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xff\xff", "is not a Caffe model\n  why: it does not parse as Net"),
        (b"\x89HDF\r\n\x1a\n", "is not a Caffe model\n  why: it is an HDF5 file"),
        (b"", "why: none of its layers has weights"),
        (
            weights({"b": [[1.0, 2.0]]}),
            "the bias has 2 elements, the layer needs",
        ),
        (weights({"other": [[1.0]]}), "the layer has no bias"),
    ],
)
def test_weights_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "n.prototxt"
    path.write_text(INPUT + 'layer { name: "b" type: "Bias" bottom: "x" top: "y" }')
    path.with_suffix(".caffemodel").write_bytes(content)
    with pytest.raises(FrontendError) as caught:
        weft.load(path)
    assert message in str(caught.value)
    with pytest.raises(FrontendError, match=r"no file '.*none'\n  hint: give the path of the .caffemodel"):
        weft.load(path, weights=tmp_path / "none")


def test_blobs_whose_sizes_and_numbers_differ(tmp_path: Path) -> None:
    path = tmp_path / "n.prototxt"
    path.write_text(INPUT + 'layer { name: "b" type: "Bias" bottom: "x" top: "y" }')
    for sizes, data, message in (
        ([1 << 40, 1 << 40], [b"1234"], "has 1 numbers"),
        ([-3], [bytes(12)], "a blob of shape (-3,) has 3 numbers"),
        ([3], [bytes(11)], "a blob ends within a number"),
    ):
        net = schema()["Net"]()
        found = net.layer.add(name="b").blobs.add(data=data)
        found.shape.dim.extend(sizes)
        path.with_suffix(".caffemodel").write_bytes(net.SerializeToString())
        with pytest.raises(FrontendError) as caught:
            weft.load(path)
        assert message in str(caught.value)
    assert blob(np.zeros((2, 3)), old=True).height == 2


def test_changed_networks_and_weights_are_refused_or_read(tmp_path: Path) -> None:
    path = NET.save(tmp_path)
    assert check_changed_bytes(path, count=150) == 150
    assert check_changed_bytes(path.with_suffix(".caffemodel"), frontend="caffe", count=60) == 60


@pytest.mark.needs("cv2")
def test_values_of_opencv(tmp_path: Path) -> None:
    from weft.plugins import engine_kinds
    from weft_testing.bench.engines import open_engine
    from weft_testing.cli.bench import choose_engines

    path = NET.save(tmp_path)
    chosen = choose_engines(engine_kinds(), "all", str(path))
    (engine,) = (k for k in chosen if k.name == "opencv")
    assert not {"onnxruntime", "openvino"} & {k.name for k in chosen}, "those of other formats"
    assert engine.values is not None
    values: dict[str, Any] = {}
    graph = weft.load(path)
    evaluate(graph, {"x": X}, on_value=lambda value, array: values.setdefault(value.name, array))
    found = engine.values(str(path))(["pool", "narrow", "sum", "conv", "nothing"], {"x": X})
    assert set(found) == {"pool", "narrow", "sum"}, "conv is computed again in place"
    for name, array in found.items():
        np.testing.assert_allclose(values[name], array, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        open_engine(engine, str(path), 1)({"x": X})[0], evaluate(graph, {"x": X})[0], rtol=1e-4, atol=1e-6
    )
