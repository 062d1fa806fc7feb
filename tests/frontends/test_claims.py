"""The first bytes of a model are claimed by the frontend of its format, and by no other."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper

from weft.plugins import host

HERE = Path(__file__).parent


def model(producer: str = "") -> bytes:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    made: ModelProto = helper.make_model(graph, producer_name=producer)
    return made.SerializeToString()


def description(*parts: bytes) -> bytes:
    """A model of Core ML: version 1, and a description with these fields."""
    inside = b"".join(parts)
    return b"\x08\x01\x12" + bytes([len(inside)]) + inside + b"\xaa\x1f\x00"


HEADS = {
    **{f"onnx {name or '-'}": ("onnx", model(name)) for name in ("", "pytorch", "backend-test", "RKNN", "élan")},
    "coreml input": ("coreml", description(b"\n\x05\n\x01x\x1a\x00")),
    "coreml functions": ("coreml", description(b"\xa2\x01\x06\n\x04main")),
    "tensorflow": ("tensorflow", b"\x08\x01\x12\x0a\n\x05\x12\x03\n\x01x\x12\x01x"),
    "tflite": ("tflite", b"\x1c\x00\x00\x00TFL3" + bytes(32)),
    "darknet": ("darknet", b"[net]\nbatch=1\n"),
    "caffe": ("caffe", b'name: "n"\nlayer {\n'),
    "mxnet": ("mxnet", b'{\n  "nodes": [\n {"op": "null"'),
    "xgboost": ("xgboost", b'{"learner":{"attributes":{}'),
    "stablehlo": ("stablehlo", b"module @jit_f {\n  func.func public @main"),
}


def claims(head: bytes) -> list[str]:
    return [item.value.name for item in host().items("frontends") if item.value.sniff(head)]


@pytest.mark.parametrize("name", HEADS)
def test_one_frontend_claims_it(name: str) -> None:
    owner, head = HEADS[name]
    assert claims(head) == [owner]


@pytest.mark.parametrize(("folder", "suffix"), [("tensorflow", ".pb"), ("caffe2", "predict_net.pb")])
def test_no_other_claims_fixtures(folder: str, suffix: str) -> None:
    with zipfile.ZipFile(io.BytesIO((HERE / folder / "fixtures.zip").read_bytes())) as archive:
        names = [n for n in archive.namelist() if n.endswith(suffix)]
        found = {n: claims(archive.read(n)[:4096]) for n in names}
    assert names
    assert {n: c for n, c in found.items() if c != [folder]} == {}
