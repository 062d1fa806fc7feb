"""`weft_onnx.InferenceSession` beside ONNX Runtime's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.needs import require

import weft_onnx
from weft.errors import FrontendError, TargetError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two inputs, one of any length; three outputs of two dtypes; an initialiser that is an input too."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("ArgMax", ["z"], ["most"], axis=1, keepdims=0),
    ]
    tensor = helper.make_tensor_value_info
    inputs = [
        tensor("x", TensorProto.FLOAT, ["batch", 4]),
        tensor("bias", TensorProto.FLOAT, [3]),
        tensor("w", TensorProto.FLOAT, [4, 3]),
    ]
    outputs = [
        tensor("y", TensorProto.FLOAT, ["batch", 3]),
        tensor("most", TensorProto.INT64, [None]),
        tensor("z", TensorProto.FLOAT, ["batch", 3]),
    ]
    graph = helper.make_graph(nodes, "little", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="tests", model_version=3
    )
    helper.set_model_props(model, {"key": "value"})
    file = tmp_path_factory.mktemp("session") / "little.onnx"
    onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def session(path: Path) -> weft_onnx.InferenceSession:
    return weft_onnx.InferenceSession(path)


@pytest.fixture(scope="module")
def peer(path: Path) -> Any:
    require("onnxruntime")
    import onnxruntime as runtime

    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def feed(rows: int = 5) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((rows, 4)).astype(np.float32),
        "bias": random.standard_normal(3).astype(np.float32),
    }


def test_inputs_and_outputs_are_told_alike(session: weft_onnx.InferenceSession, peer: Any) -> None:
    for mine, theirs in ((session.get_inputs(), peer.get_inputs()), (session.get_outputs(), peer.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, list(a.shape)) for a in theirs]
    mine, theirs = session.get_modelmeta(), peer.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(mine, name) == getattr(theirs, name)


def test_types_are_told_alike() -> None:
    def info(make: Callable[..., Any]) -> str:
        return weft_onnx.session.node_arg(onnx.ValueInfoProto(name="v", type=make())).type

    tensor = helper.make_tensor_type_proto
    kinds = {
        "FLOAT": "float",
        "DOUBLE": "double",
        "FLOAT16": "float16",
        "BFLOAT16": "bfloat16",
        "INT8": "int8",
        "UINT64": "uint64",
        "BOOL": "bool",
    }
    for name, said in {**kinds, "STRING": "string"}.items():
        assert info(lambda name=name: tensor(getattr(TensorProto, name), [1])) == f"tensor({said})"
    assert info(lambda: helper.make_sequence_type_proto(tensor(TensorProto.INT64, None))) == "seq(tensor(int64))"
    assert info(lambda: helper.make_optional_type_proto(tensor(TensorProto.FLOAT, None))) == "optional(tensor(float))"


def test_results_are_alike(session: weft_onnx.InferenceSession, peer: Any) -> None:
    for rows in (1, 5):
        for names in (None, [], ["most"], ["z", "y"], ("most", "y", "z")):
            mine, theirs = session.run(names, feed(rows)), peer.run(names, feed(rows))
            assert isinstance(mine, list) and len(mine) == len(theirs)
            for a, b in zip(mine, theirs):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_bytes_and_paths_as_text(path: Path) -> None:
    expected = weft_onnx.InferenceSession(str(path), target="llvm -threads=1").run(["y"], feed())[0]
    np.testing.assert_array_equal(
        weft_onnx.InferenceSession(path.read_bytes(), target="llvm -threads=1").run(["y"], feed())[0], expected
    )


def test_what_a_run_refuses_theirs_refuses_too(session: weft_onnx.InferenceSession, peer: Any) -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (None, {"x": feed()["x"]}, r"Required inputs \(\['bias'\]\) are missing from input feed \(\['x'\]\)\."),
        (None, {**feed(), "q": np.zeros(1)}, "Invalid input name: q\n  hint: the inputs are x, bias"),
        (["nothing"], feed(), "Invalid output name: nothing\n  hint: the outputs are y, most, z"),
        (None, {**feed(), "bias": np.zeros(3)}, "input 'bias' has dtype float64, expected float32"),
        (None, {**feed(), "bias": np.zeros(4, np.float32)}, "input 'bias' has size 4 on axis 0, expected 3"),
        (None, {**feed(), "x": np.zeros(4, np.float32)}, "input 'x' has 1 dimensions, expected 2"),
    ]
    for names, arrays, said in wrong:
        with pytest.raises(weft_onnx.InvalidArgument, match=said):
            session.run(names, arrays)
        with pytest.raises(Exception):  # noqa: B017 - their classes of errors differ from version to version
            peer.run(names, arrays)
    with pytest.raises(ValueError, match="Required inputs"):  # theirs is one
        session.run(None, {})


def test_an_initialiser_cannot_be_fed(session: weft_onnx.InferenceSession) -> None:
    with pytest.raises(weft_onnx.InvalidArgument, match="Invalid input name: w"):
        session.run(None, {**feed(), "w": np.zeros((4, 3), np.float32)})


def test_what_is_ignored_is_said(path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match=(
            "providers: what ONNX Runtime does with this has no meaning here, where the target 'llvm' runs the whole"
            " model"
        ),
    ):
        session = weft_onnx.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["WeftExecutionProvider"]
    assert session.get_provider_options() == {"WeftExecutionProvider": {"target": "llvm"}}
    with pytest.warns(UserWarning, match="sess_options, disabled_optimizers: "):
        weft_onnx.InferenceSession(path, object(), disabled_optimizers=["ConstantFolding"])
    with pytest.warns(UserWarning, match="run_options does nothing here"):
        session.run(None, feed(), object())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft_onnx.InferenceSession(path).run(None, feed())


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Unable to load from type '<class 'int'>'"):
        weft_onnx.InferenceSession(3)  # type: ignore[arg-type]
    with pytest.raises(FrontendError, match=r"cannot read 'nowhere\.onnx'\n  why: No such file or directory"):
        weft_onnx.InferenceSession("nowhere.onnx")
    with pytest.raises(FrontendError, match="is not an ONNX model"):
        weft_onnx.InferenceSession(b"hello")


def test_a_target_that_does_not_exist(path: Path) -> None:
    with pytest.raises(TargetError, match="unknown target 'lvm'"):
        weft_onnx.InferenceSession(path, target="lvm")


def test_the_package_imports_no_onnx_before_it_is_asked_for() -> None:
    import subprocess
    import sys

    code = (
        "import sys, weft_onnx.plugin; assert 'onnx' not in sys.modules; weft_onnx.InferenceSession; assert 'onnx' in"
        " sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="module 'weft_onnx' has no attribute 'InferenceSesion'"):
        _ = weft_onnx.InferenceSesion
