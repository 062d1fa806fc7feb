"""Symbols and parameters: every operator against MXNet 1.9.1, whose answers fixtures.zip holds (make_fixtures.py); files
of all versions; and what is refused."""

# ruff: noqa: E501 - messages in tables

from __future__ import annotations

import io
import json
import struct
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.loading import model_files
from weft_mxnet.params import read_params
from weft_mxnet.registry import REGISTRY
from weft_ops import Detach
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend, compare

FIXTURES = Path(__file__).with_name("fixtures.zip")


@cache
def cases() -> dict[str, int]:
    with zipfile.ZipFile(FIXTURES) as archive:
        return {case["name"]: k for k, case in enumerate(json.loads(archive.read("cases.json")))}


def fixture(name: str, folder: Path) -> tuple[Path, dict[str, Any], list[Any]]:
    """The symbol of a case with its parameters beside it, inputs, and outputs of MXNet."""
    k = cases()[name]
    with zipfile.ZipFile(FIXTURES) as archive:
        path = folder / "net-symbol.json"
        path.write_bytes(archive.read(f"{k}/symbol.json"))
        if f"{k}/params" in archive.namelist():
            (folder / "net-0000.params").write_bytes(archive.read(f"{k}/params"))
        arrays = [dict(np.load(io.BytesIO(archive.read(f"{k}/{kind}.npz")))) for kind in ("inputs", "outputs")]
    return path, arrays[0], [arrays[1][str(j)] for j in range(len(arrays[1]))]


def shapes(inputs: dict[str, Any]) -> dict[str, str]:
    return {name: "x".join(map(str, a.shape)) for name, a in inputs.items()}


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", cases())
def test_operators_agree_with_mxnet(name: str, tmp_path: Path) -> None:
    path, inputs, outputs = fixture(name, tmp_path)
    # Every eighth case is compiled; the others are interpreted.
    target = "llvm" if cases()[name] % 8 == 0 or "RNN" in name else None
    case = FrontendCase(path, inputs, lambda _: outputs, options={"shapes": shapes(inputs)}, rtol=1e-4, atol=1e-5)
    check_frontend(case, target)


def test_every_operator_is_tested() -> None:
    with zipfile.ZipFile(FIXTURES) as archive:
        tested = {
            node["op"] for k in cases().values() for node in json.loads(archive.read(f"{k}/symbol.json"))["nodes"]
        }
    from weft_mxnet.converters.elementwise import NAMES, ONE, SCALAR
    from weft_mxnet.converters.reduction import KINDS

    # Further names of operators whose converter is tested under another.
    alike = {
        *NAMES, *SCALAR, *ONE, *KINDS, "Convolution_v1", "Pooling_v1", "BatchNorm_v1", "CuDNNBatchNorm", "Softmax", "crop",
        "MAERegressionOutput", "SVMOutput", "stop_gradient", "make_loss", "MakeLoss", "identity", "_copy", "cast", "flatten",
        "IdentityAttachKLSparseReg", "ElementWiseSum", "_sum", "swapaxes", "concat", "split", "reshape", "pad", "flip",
        "broadcast_axes", "_linalg_gemm2", "linalg_gemm2", "amp_cast",
    }  # fmt: skip
    assert {name for _, name in REGISTRY.supported()} - alike <= tested


@pytest.mark.needs("weft_llvm")
def test_no_gradient_passes_where_it_is_blocked(tmp_path: Path) -> None:
    path, inputs, _ = fixture("BlockGrad", tmp_path)
    graph = weft.load(path, shapes=shapes(inputs))
    assert [type(n.op) for n in graph.nodes] == [Detach]


def test_a_batch_that_is_left_open(tmp_path: Path) -> None:
    path, inputs, outputs = fixture("net", tmp_path)
    options = {"shapes": shapes(inputs), "batch": 0}
    graph, executable = check_frontend(FrontendCase(path, inputs, lambda _: outputs, options=options))
    assert str(graph.inputs[0].type) == "float32[batch, 3, 8, 8]" and executable is not None
    found = executable.run({"data": np.concatenate([inputs["data"]] * 3)})
    compare(found, {graph.output_names[0]: np.concatenate([outputs[0]] * 3)}, "another batch")
    assert [i.name for i in graph.inputs] == ["data"], "the label is no input"


def test_which_parameters_belong_to_a_symbol(tmp_path: Path) -> None:
    path, inputs, _ = fixture("net", tmp_path)
    own = tmp_path / "net-0000.params"
    assert model_files(path, "mxnet") == (path, own)
    other = own.rename(tmp_path / "other.params")
    assert model_files(path, "mxnet") == (path, other), "the only one there"
    (tmp_path / "third.params").write_bytes(b"")
    with pytest.raises(
        FrontendError, match=r"which parameters belong to 'net-symbol.json' is not certain\n  why: beside"
    ):
        weft.load(path, shapes=shapes(inputs))
    assert len(weft.load(path, shapes=shapes(inputs), params=other).nodes) > 5
    with pytest.raises(FrontendError, match=r"no file '.*none'\n  hint: give the path of the .params"):
        weft.load(path, shapes=shapes(inputs), params=tmp_path / "none")


def params(*arrays: bytes, names: tuple[bytes, ...] = (b"arg:w",), head: int = 0x112) -> bytes:
    listed = b"".join(struct.pack("<Q", len(n)) + n for n in names)
    return struct.pack("<QQQ", head, 0, len(arrays)) + b"".join(arrays) + struct.pack("<Q", len(names)) + listed


def test_parameters_of_every_version(tmp_path: Path) -> None:
    path = tmp_path / "p"
    data = np.arange(6, dtype=np.float32)
    tail = struct.pack("<iii", 1, 0, 0) + data.tobytes()
    for array in (
        struct.pack("<IiI2q", 0xF993FAC9, 0, 2, 2, 3) + tail,
        struct.pack("<Iii2q", 0xF993FACA, 0, 2, 2, 3) + tail,
        struct.pack("<II2q", 0xF993FAC8, 2, 2, 3) + tail,
        struct.pack("<3I", 2, 2, 3) + tail,
    ):
        path.write_bytes(params(array))
        np.testing.assert_array_equal(read_params(path)["w"], data.reshape(2, 3))
    half = struct.pack("<IiI1qiii", 0xF993FAC9, 0, 1, 2, 1, 0, 2) + np.array([1, 2], np.float16).tobytes()
    path.write_bytes(params(half, names=(b"aux:h",)))
    assert read_params(path)["h"].dtype == np.float16
    path.write_bytes(params(struct.pack("<IiI", 0xF993FAC9, 0, 0)))
    assert read_params(path)["w"].shape == (0,)


WHOLE = struct.pack("<IiI1qiii", 0xF993FAC9, 0, 1, 1, 1, 0, 0) + bytes(4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0\n  why: the header would take 8 bytes, 0 are left"),
        (params(WHOLE, head=7), "why: it does not begin as one does"),
        (struct.pack("<QQQ", 0x112, 0, 1 << 60), "why: there would be 1,152,921,504,606,846,976 arrays"),
        (params(struct.pack("<Ii", 0xF993FAC9, 1)), "why: an array is sparse, which is not supported"),
        (params(struct.pack("<IiI", 0xF993FAC9, 0, 99)), "why: an array has 99 dimensions"),
        (params(struct.pack("<IiI1qiii", 0xF993FAC9, 0, 1, 1 << 40, 1, 0, 0)), "an array would take 4,398,046,511,104 bytes"),
        (params(struct.pack("<IiI1qiii", 0xF993FAC9, 0, 1, -4, 1, 0, 0)), "why: an array has shape [-4]"),
        (params(struct.pack("<IiI4qiii", 0xF993FAC9, 0, 4, 0, *[1 << 31] * 3, 1, 0, 0)), "its sizes multiply to more than any memory holds"),
        (params(struct.pack("<IiI1qiii", 0xF993FAC9, 0, 1, 1, 1, 0, 77)), "why: an array has the dtype 77"),
        (params(WHOLE, names=()), "why: there are 1 arrays and 0 names"),
        (params(WHOLE, names=(b"\xff",)), "why: a name is no UTF-8"),
        (params(WHOLE, WHOLE, names=(b"arg:w", b"aux:w")), "why: two arrays are named 'w'"),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(data)
    with pytest.raises(FrontendError) as caught:
        read_params(path)
    assert str(caught.value).startswith(f"'{path}' is no file of MXNet's parameters\n  byte ")
    assert message in str(caught.value) and str(caught.value).endswith("hint: is it whole?")


def symbol(*nodes: dict[str, Any], heads: Any = None) -> bytes:
    return json.dumps({"nodes": nodes, "heads": [[len(nodes) - 1, 0, 0]] if heads is None else heads}).encode()


X = {"op": "null", "name": "x", "attrs": {"__shape__": "(2, 3)"}, "inputs": []}


def node(op: str, *inputs: list[int], **attrs: str) -> dict[str, Any]:
    return {"op": op, "name": "n", "attrs": attrs, "inputs": list(inputs) or [[0, 0, 0]]}


REFUSED = {
    "no nodes": (b'{"nodes": []}', "are no symbol of MXNet\n  why: it has no list of nodes"),
    "no JSON": (b'{"nodes": [', "does not parse as JSON: Expecting value: line 1 column 12 (char 11)\n  hint: is it whole?"),
    "a number": (symbol(X, 3), "node 1\n  why: it is no object"),
    "no name": (symbol(X, {"op": "relu", "inputs": []}), "why: it lacks a name, an operator or a list of inputs"),
    "attributes": (symbol(X, {"op": "relu", "name": "n", "attrs": {"a": 1}, "inputs": []}), "its attrs are not texts by name"),
    "no heads": (symbol(X, heads=[]), "why: it has no heads"),
    "a later node": (symbol(X, node("relu", [1, 0, 0])), "[1, 0, 0] is no output of a node before it"),
    "no such output": (symbol(X, node("relu", [0, 3, 0])), "output 3 of 'x' is used, which it does not have"),
    "two variables": (symbol(X, X), "two variables are named 'x'"),
    "unknown": (symbol(X, node("_npi_spin")), "operator _npi_spin: 'n'"),
    "sub-graphs": (symbol(X, {**node("_foreach"), "subgraphs": [{}]}), "operator _foreach with sub-graphs: 'n'"),
    "no shape": (symbol({**X, "attrs": {}}, node("relu")), "the sizes of the input 'x' are not known\n  why: there are no parameters"),
    "open shape": (symbol({**X, "attrs": {"__shape__": "(0, 3)"}}, node("relu")), "-shapes=x=1x3x224x224"),
    "bad shape": (symbol({**X, "attrs": {"__shape__": "(a,)"}}, node("relu")), "the variable 'x' has the shape '(a,)'"),
    "dtype": (symbol({**X, "attrs": {"__shape__": "(2,)", "__dtype__": "99"}}, node("relu")), "has the dtype '99'"),
    "number": (symbol(X, node("clip", a_min="low")), "attribute 'a_min' is 'low', expected a number"),
    "flag": (symbol(X, node("Pooling", global_pool="maybe")), "attribute 'global_pool' is 'maybe', expected True or False"),
    "word": (symbol(X, node("Activation", act_type="spin")), "attribute 'act_type' is 'spin', expected one of relu"),
    "axis": (symbol(X, node("expand_dims", axis="7")), "axis 7 of 3 dimension(s)"),
    "reshape": (symbol(X, node("Reshape", shape="(0, 0, 0)")), "shape (0, 0, 0) does not fit 2 dimension(s)"),
    "reshape twice": (symbol(X, node("Reshape", shape="(-1, -1)")), "shape (-1, -1) has -1 twice"),
    "split": (symbol(X, node("SliceChannel", num_outputs="2")), "3 elements are not a multiple of 2 outputs"),
    "layout": (symbol(X, node("Pooling", layout="NHWC", kernel="(1,)")), "layout NHWC"),
    "missing operand": (symbol(X, node("elemwise_add")), "elemwise_add: input 1 is missing"),
    "depth": (symbol(X, node("one_hot", depth="10000000000")), "the classes would be 10000000000 numbers"),
    "parts": (symbol(X | {"attrs": {"__shape__": "(1, 1, 2, 3)"}}, node("_contrib_AdaptiveAvgPooling2D", output_size="(999999999,)")), "the parts of an axis would be 999999999 numbers"),
    "take": (symbol(X, node("take", [0, 0, 0], [0, 0, 0], mode="wrap")), "mode wrap"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_symbols_that_are_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises((FrontendError, UnsupportedError)) as caught:
        weft.load(data, frontend="mxnet")
    assert message in str(caught.value) and "defect" not in str(caught.value)


def test_options_that_are_refused() -> None:
    for options, message in (
        ("-shapes=x=1,3", "shapes"),
        ("-shapes=x=1xA", "write them as 1x3x224x224"),
        ("-batch=-1", "the batch is -1"),
        ("-shapes=z=1x3", "shapes gives 'z', which is no variable of the symbol"),
    ):
        with pytest.raises(FrontendError) as caught:
            weft.load(symbol(X, node("relu")), frontend=f"mxnet {options}")
        assert message in str(caught.value)


def test_changed_symbols_and_parameters_are_refused_or_read(tmp_path: Path) -> None:
    path, inputs, _ = fixture("net", tmp_path)
    options = f"mxnet -shapes=data={shapes(inputs)['data']}"
    assert check_changed_bytes(path, frontend=options, count=150) == 150
