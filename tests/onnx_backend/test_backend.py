"""`weft_onnx.backend`, and ONNX's own suite of tests run by it: in CI a few cases, with --full all that are listed as
passing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.onnx_backend.node_cases import cases, is_random, one_in, passing

from weft.errors import FrontendError, InputError, TargetError
from weft_onnx import backend

ONE_IN = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        chosen = passing() if metafunc.config.getoption("--full") else one_in(ONE_IN, passing())
        metafunc.parametrize("case", [name for _, name in chosen])


@cache
def suite() -> Any:
    """All tests, as ONNX's own runner makes them of a backend."""
    import warnings

    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BackendTest(backend.WeftBackend, __name__).tests


RUNNER_FAILS = {
    "test_loop16_seq_none": "the runner takes the length of tensors in a sequence, which have no dimensions here"
}


def test_case_of_the_public_suite(case: str) -> None:
    tests = suite()
    if not hasattr(tests, f"{case}_cpu"):
        pytest.skip("the installed onnx has no such case")
    if is_random(cases()[case].model):
        pytest.skip("the runner wants the draw of its own generator: test_node_cases.py asks what any draw has to be")
    if case in RUNNER_FAILS:
        with pytest.raises(TypeError, match="Unable to compare expected type"):
            tests(f"{case}_cpu").debug()
        return
    tests(f"{case}_cpu").debug()  # raises what fails


def model() -> onnx.ModelProto:
    tensor = helper.make_tensor_value_info
    nodes = [helper.make_node("Sub", ["a", "b"], ["c"]), helper.make_node("Abs", ["c"], ["0"])]
    ends = [[tensor(name, TensorProto.FLOAT, ["n"]) for name in names] for names in ("ab", "c0")]
    return helper.make_model(
        helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )


A, B = np.array([1, -2, 3], np.float32), np.array([2, 2, 2], np.float32)


def test_a_model_is_prepared_and_run() -> None:
    rep = backend.prepare(model())
    for inputs in ([A, B], (A, B), {"b": B, "a": A}):
        result = rep.run(inputs)
        assert isinstance(result, tuple) and len(result) == 2
        np.testing.assert_array_equal(result[0], [-1, -4, 1])
        np.testing.assert_array_equal(result.c, [-1, -4, 1])  # type: ignore[attr-defined]
        np.testing.assert_array_equal(result["0"], [1, 4, 1])  # type: ignore[call-overload]
    np.testing.assert_array_equal(backend.run_model(model(), [A, B], target="llvm -threads=1")[1], [1, 4, 1])


def test_a_node_is_run() -> None:
    (y,) = backend.run_node(helper.make_node("Clip", ["x", "", "high"], ["y"]), [A, np.float32(1.5)])
    np.testing.assert_array_equal(y, [1, -2, 1.5])
    first, second = backend.run_node(
        helper.make_node("Split", ["x"], ["p", "q"], axis=0), np.arange(4, dtype=np.int64), opset_version=11
    )
    assert first.tolist() == [0, 1] and second.tolist() == [2, 3]


def test_what_does_not_fit() -> None:
    rep = backend.prepare(model())
    with pytest.raises(InputError, match=r"'g' takes 2 inputs, got 1\n  a, b"):
        rep.run([A])
    with pytest.raises(InputError, match="node Clip has 2 inputs, got 1\n  x, high"):
        backend.run_node(helper.make_node("Clip", ["x", "", "high"], ["y"]), [A])
    with pytest.raises(onnx.checker.ValidationError):
        backend.prepare(onnx.ModelProto())


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.supports_device("CPU") and not backend.supports_device("TPU")
    with pytest.raises(TargetError, match="ONNX has no device 'TPU'\n  hint: CPU, CUDA or CUDA:1"):
        backend.prepare(model(), "TPU")
    opened: list[str] = []
    monkeypatch.setattr(backend, "open_device", opened.append)
    assert (
        backend.WeftBackend.target("CUDA") == "cuda, llvm"
        and backend.WeftBackend.target("CUDA:1") == "cuda -device=1, llvm"
    )
    assert opened == ["cuda", "cuda:1"]

    def absent(name: str) -> None:
        raise FrontendError("no driver")

    monkeypatch.setattr(backend, "open_device", absent)
    assert not backend.supports_device("CUDA")
    with pytest.raises(TargetError, match="the device 'CUDA' is not here\n  why: no driver"):
        backend.prepare(model(), "CUDA")


def test_models_that_it_can_read() -> None:
    assert backend.is_compatible(model()) and not backend.is_compatible(model(), "TPU")
    strange = model()
    strange.graph.node[0].op_type = "Nothing"
    assert not backend.is_compatible(strange)
