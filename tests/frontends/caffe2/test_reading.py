"""Networks: every operator against Caffe2 of PyTorch 1.8.1, whose answers fixtures.zip holds (make_fixtures.py); which
files belong together; and what is refused."""

# ruff: noqa: E501 - messages in tables

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.loading import model_files
from weft_caffe2.plugin import sniff
from weft_caffe2.registry import REGISTRY
from weft_caffe2.schema import schema
from weft_ops import Detach
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend, compare

FIXTURES = Path(__file__).with_name("fixtures.zip")


@cache
def cases() -> dict[str, int]:
    with zipfile.ZipFile(FIXTURES) as archive:
        return {case["name"]: k for k, case in enumerate(json.loads(archive.read("cases.json")))}


def fixture(name: str, folder: Path) -> tuple[Path, dict[str, Any], list[Any]]:
    """predict_net of a case, with init_net beside it if it has one, inputs, and outputs of Caffe2."""
    k = cases()[name]
    with zipfile.ZipFile(FIXTURES) as archive:
        for net in ("predict_net.pb", "init_net.pb"):
            if f"{k}/{net}" in archive.namelist():
                (folder / net).write_bytes(archive.read(f"{k}/{net}"))
        arrays = [dict(np.load(io.BytesIO(archive.read(f"{k}/{kind}.npz")))) for kind in ("inputs", "outputs")]
    return folder / "predict_net.pb", arrays[0], list(arrays[1].values())


def given(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "shapes": {name: "x".join(map(str, a.shape)) for name, a in inputs.items()},
        "dtypes": {name: str(a.dtype) for name, a in inputs.items() if a.dtype != np.float32},
    }


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", cases())
def test_operators_agree_with_caffe2(name: str, tmp_path: Path) -> None:
    path, inputs, outputs = fixture(name, tmp_path)
    target = "llvm" if cases()[name] % 10 == 0 else None  # the others are interpreted
    options = given(inputs)
    case = FrontendCase(path, inputs, lambda _: outputs, "caffe2", options=options, rtol=1e-4, atol=1e-5)
    check_frontend(case, target)


def test_every_operator_is_tested() -> None:
    with zipfile.ZipFile(FIXTURES) as archive:
        nets = [archive.read(n) for n in archive.namelist() if n.endswith("_net.pb")]
    tested = {op.type for data in nets for op in schema()["Net"].FromString(data).op}  # type: ignore[attr-defined]
    alike = {  # further names of operators that are tested
        "Alias", "EnsureDense", "EnsureCPUOutput", "CopyCPUToGPU", "CopyGPUToCPU", "CopyToCPU", "Conv1D", "Conv2D", "Conv3D",
        "MaxPool1D", "MaxPool3D", "AveragePool1D", "AveragePool3D", "ResizeBilinear",
        "UpsampleNearest", "GivenTensorDoubleFill", "GivenTensorIntFill", "GivenTensorInt16Fill", "GivenTensorBoolFill",
    }  # fmt: skip
    assert {name for _, name in REGISTRY.supported()} - alike <= tested


@pytest.mark.needs("weft_llvm")
def test_no_gradient_passes_where_it_is_stopped(tmp_path: Path) -> None:
    name = next(n for n in cases() if n.startswith("StopGradient"))
    path, inputs, _ = fixture(name, tmp_path)
    assert [type(n.op) for n in weft.load(path, **given(inputs)).nodes] == [Detach]


def test_a_batch_that_is_left_open(tmp_path: Path) -> None:
    path, inputs, outputs = fixture("net", tmp_path)
    case = FrontendCase(path, inputs, lambda _: outputs, "caffe2", options={**given(inputs), "batch": 0})
    graph, executable = check_frontend(case)
    assert str(graph.inputs[0].type) == "float32[batch, 3, 8, 8]" and executable is not None
    found = executable.run({"data": np.concatenate([inputs["data"]] * 3)})
    compare(found, {"softmax": np.concatenate([outputs[0]] * 3)}, "another batch")


def test_which_files_belong_together(tmp_path: Path) -> None:
    path, inputs, _ = fixture("net", tmp_path)
    init, frontend = tmp_path / "init_net.pb", "caffe2"
    options = given(inputs)
    assert model_files(path, frontend) == (path, init) and model_files(init, frontend) == (init, path)
    text = str(weft.load(path, frontend=frontend, **options))
    assert str(weft.load(init, frontend=frontend, **options)) == text
    assert str(weft.load(path.read_bytes(), frontend=frontend, init=init, **options)) == text
    other = init.rename(tmp_path / "weights.pb")
    assert str(weft.load(path, frontend=frontend, init=other, **options)) == text
    with pytest.raises(
        FrontendError,
        match=r"the input 'conv_w' are not known\n  predict_net: Conv → conv\n  why: there is no init_net",
    ):
        weft.load(path, frontend=frontend, **options)
    path.rename(tmp_path / "p.pb")
    other.rename(init)
    with pytest.raises(FrontendError, match=r"holds weights alone\n  why: there is no 'predict_net.pb' beside it"):
        weft.load(init, frontend=frontend, **options)
    with pytest.raises(FrontendError, match=r"no file '.*none'\n  hint: give the path of init_net.pb"):
        weft.load(tmp_path / "p.pb", frontend=frontend, init=tmp_path / "none", **options)


def test_networks_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    for name in ("net", "Relu", "Split lengths"):
        path, inputs, _ = fixture(name, tmp_path)
        assert sniff(path.read_bytes()[:64])
        weft.load(path, **given(inputs))
        net = schema()["Net"].FromString(path.read_bytes())
        net.ClearField("name")
        assert sniff(net.SerializeToString())
    # A graph of TensorFlow, a SavedModel, a model of ONNX, texts.
    for head in (
        b"\n\x10\n\x01x\x12\x0bPlaceholder",
        b"\x08\x01\x12\x20",
        b"\x08\x07\x12\x07pytorch",
        b"\nabc",
        b"\x12",
        b"",
        b"\n\xff\xff",
    ):
        assert not sniff(head)


def net(*ops: dict[str, Any], **fields: Any) -> bytes:
    message = schema()["Net"](**fields)
    for op in ops:
        op = dict(op)
        arguments = op.pop("arguments", {})
        made = message.op.add(**{"input": ["x"], "output": ["y"], **op})  # type: ignore[attr-defined]
        for name, value in arguments.items():
            kind = {int: "i", float: "f", bytes: "s", list: "ints"}[type(value)]
            made.arg.add(name=name, **{kind: value})
    return bytes(message.SerializeToString())


def one(kind: str, count: int = 1, **arguments: Any) -> bytes:
    return net({"type": kind, "input": ["x"] * count, "arguments": arguments})


DROPOUT: dict[str, Any] = {"type": "Dropout", "output": ["y", "mask"], "arguments": {"is_test": 1}}
REFUSED = {
    "nothing": (b"", "the bytes are not a Caffe2 network\n  why: it has no operators"),
    "other bytes": (b"\xff\xff", "why: it does not parse as Net"),
    "name": (one("Relu").replace(b"y", b"\xff"), "why: the text b'\\xff' in Operator.output is not UTF-8"),
    "output name": (net({"type": "Relu"}, external_output=["y"])[:-1] + b"\xff", "in Net.external_output is not UTF-8"),
    "mask": (net(DROPOUT, external_output=["mask"]), "'mask' needs an output of a node that the Caffe2 frontend does not compute"),
    "no type": (net({}), "why: an operator has no type"),
    "unknown": (one("Spin"), "operator Spin: 'y'"),
    "argument": (one("Relu", spin=1), "operator Relu: argument spin: 'y'"),
    "no size": (net({"type": "Relu", "input": ["z"]}), "the sizes of the input 'z' are not known\n  predict_net: Relu → y\n  why: there is no init_net"),
    "no output": (net({"type": "Relu"}, external_output=["z"]), "the output 'z' is computed by no operator"),
    "random": (one("XavierFill", shape=[2]), "XavierFill: random weights"),
    "training": (one("Dropout", ratio=0.5), "Dropout: is_test: 0"),
    "batch statistics": (one("SpatialBN", 5), "SpatialBN: is_test: 0"),
    "values": (net({"type": "GivenTensorFill", "input": [], "arguments": {"shape": [1 << 40, 1 << 40]}}), "its sizes multiply to more than any memory holds"),
    "fill": (net({"type": "ConstantFill", "input": [], "arguments": {"shape": [1 << 40]}}), "the blob would be 1099511627776 numbers"),
    "negative shape": (net({"type": "ConstantFill", "input": [], "arguments": {"shape": [-1]}}), "the shape is (-1,)"),
    "order": (one("MaxPool", order=b"NWHC", kernel=2), "order is 'NWHC', expected NCHW or NHWC"),
    "kernel": (one("MaxPool"), "kernel (0, 0)"),
    "pads": (one("MaxPool", kernel=2, pad=2), "kernel (2, 2), pads (2, 2, 2, 2)"),
    "legacy": (one("MaxPool", kernel=2, legacy_pad=2), "MaxPool: legacy_pad 2"),
    "window": (one("MaxPool", kernel=1, stride=6, legacy_pad=3), "begins behind the 5 of the operand"),
    "weights": (one("Conv", 2, kernel=3), "kernel (3, 3) in 1 groups"),
    "broadcast": (one("Add", 2, broadcast=1, axis=1), "broadcasting along axis 1"),
    "quotient": (net({"type": "Cast", "arguments": {"to": 2}}, {"type": "Div", "input": ["y", "y"]}), "Div: a quotient of integers"),
    "integer": (one("Softmax", axis=0.5), "argument 'axis' is not an integer"),
    "number": (one("Elu", alpha=b"x"), "argument 'alpha' is not a number"),
    "axis": (one("Softmax", axis=7), "axis 7 of 4 dimension(s)"),
    "dtype": (one("Cast", to=4), "Cast: to"),
    "reshape": (one("Reshape", shape=[5, -1]), "144 elements do not divide into (5, -1)"),
    "axes": (one("Transpose", axes=[0, 0]), "axes (0, 0) of 4 dimension(s)"),
    "slice": (one("Slice", starts=[9], ends=[10]), "axis 0: 9 … 10 of 2 elements"),
    "split": (net({"type": "Split", "output": ["a", "b"], "arguments": {"axis": 1}}), "3 elements are not a multiple of 2 parts"),
    "shapes": (net({"type": "Relu", "output": ["z"]}, {"type": "Flatten"}, {"type": "Sum", "input": ["z", "y"]}), "takes blobs of one shape"),
    "group": (one("ChannelShuffle", group=2), "2 groups of 3 channels"),
    "missing": (one("MatMul"), "MatMul: input 1 is missing"),
    "factors": (net({"type": "Tile", "output": ["t"], "arguments": {"tiles": 1 << 28, "axis": 1}}, {"type": "LayerNorm", "input": ["t"], "output": ["y", "m", "s"]}), "the factors would be"),
    "no elements": (net({"type": "ConstantFill", "input": [], "arguments": {"shape": [0, *[1 << 31] * 3]}}), "its sizes multiply to more than any memory holds"),
    "no values": (net({"type": "GivenTensorFill", "input": [], "arguments": {"shape": [0, *[1 << 31] * 3]}}), "its sizes multiply to more than any memory holds"),
    "even LRN": (one("LRN", size=4), "size is 4, expected an odd number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_are_refused(name: str) -> None:
    data, message = REFUSED[name]
    shapes = (
        {}
        if name in ("no size", "values", "fill", "negative shape", "no elements", "no values")
        else {"x": "2x3x4x6" if name != "window" else "1x1x5x5"}
    )
    with pytest.raises((FrontendError, UnsupportedError)) as caught:
        weft.load(data, frontend="caffe2", shapes=shapes)
    assert message in str(caught.value) and "defect" not in str(caught.value)


def test_options_that_are_refused() -> None:
    for options, message in (
        ("-shapes=x=1xA", "write them as 1x3x224x224"),
        ("-dtypes=x=text", "dtypes gives 'x' the dtype 'text', expected one of float32"),
        ("-batch=-1", "the batch is -1"),
        ("-shapes=z=1x3", "shapes gives 'z', which is no input of the network"),
        ("-shapes=x=0x3", "shapes gives 'x' the sizes 0x3"),
    ):
        with pytest.raises(FrontendError) as caught:
            weft.load(one("Relu"), frontend=f"caffe2 {options}")
        assert message in str(caught.value)


def test_a_mask_that_nothing_takes_is_no_output() -> None:
    graph = weft.load(net(DROPOUT), frontend="caffe2 -shapes=x=2x3")
    assert graph.output_names == ["y"]


def test_an_input_that_init_net_fills(tmp_path: Path) -> None:
    init = net({"type": "ConstantFill", "input": [], "output": ["x"], "arguments": {"shape": [1]}})
    path = tmp_path / "init_net.pb"
    path.write_bytes(init)
    graph = weft.load(one("Relu"), frontend="caffe2", init=path, shapes={"x": "2x3"})
    assert [str(i.type) for i in graph.inputs] == ["float32[2, 3]"]
    x = np.array([[1, -1, 0], [2, -2, 3]], np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], np.maximum(x, 0))


def test_changed_networks_are_refused_or_read(tmp_path: Path) -> None:
    path, inputs, _ = fixture("net", tmp_path)
    options = f"caffe2 -shapes=data={given(inputs)['shapes']['data']}"
    assert check_changed_bytes(path, frontend=options, count=150) == 150
    assert check_changed_bytes(path.with_name("init_net.pb"), frontend=options, count=60) == 60
