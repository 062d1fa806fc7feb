"""Programs as ONNX Runtime's documentation writes them: run with it, and with `weft_onnx` in its place."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.needs import require

import weft
import weft_onnx
from weft.errors import ExecutionError, InputError, UnsupportedError

F = np.float32
X = np.arange(8, dtype=F).reshape(2, 4) / 8


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dense layer and what is greatest."""
    weight = np.random.default_rng(3).standard_normal((4, 3)).astype(F)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["most"], axis=1, keepdims=0),
    ]
    tensor = helper.make_tensor_value_info
    outputs = [tensor("y", TensorProto.FLOAT, ["batch", 3]), tensor("most", TensorProto.INT64, ["batch"])]
    inputs = [tensor("x", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="tests")
    file = tmp_path_factory.mktemp("programs") / "dense.onnx"
    onnx.save(model, file)
    return str(file)


def basic(ort: Any, path: str) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    input_name, label_name = session.get_inputs()[0].name, session.get_outputs()[0].name
    return session.run([label_name], {input_name: X})[0]


def with_options(ort: Any, path: str) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
    assert session.get_session_options().intra_op_num_threads == 1
    return session.run(None, {"x": X})


def with_run_options(ort: Any, path: str) -> Any:
    options = ort.RunOptions()
    options.log_severity_level = 3
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], {"x": X}, run_options=options)


def of_lists(ort: Any, path: str) -> Any:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X.tolist()})


def of_values(ort: Any, path: str) -> Any:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    told = [value.device_name(), value.shape(), value.data_type(), value.is_tensor(), value.has_value()]
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    results = session.run_with_ort_values(["most", "y"], {"x": value})
    return [*(r.numpy() for r in results), told, results[0].data_type(), results[1].shape(), value.element_type()]


def of_values_fed(ort: Any, path: str) -> Any:
    value = ort.OrtValue.ortvalue_from_shape_and_type([2, 4], F)
    value.update_inplace(X)
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], {"x": value})


def bound(ort: Any, path: str) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def bound_to_values(ort: Any, path: str) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    given, result = ort.OrtValue.ortvalue_from_numpy(X), ort.OrtValue.ortvalue_from_shape_and_type([2, 3], F)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", result)
    session.run_with_iobinding(binding)
    return [result.numpy(), binding.get_outputs()[0].numpy()]


def bound_to_addresses(ort: Any, path: str) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    given, result = X.copy(), np.zeros((2, 3), F)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, given.shape, given.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, result.shape, result.ctypes.data)
    session.run_with_iobinding(binding)
    return result


def in_the_background(ort: Any, path: str) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    done, found = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        found.extend([results, user_data, error])
        done.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(60)
    return found


def of_a_fixed_size(ort: Any, path: str) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(["y"], {"x": X})


def metadata(ort: Any, path: str) -> Any:
    meta = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_modelmeta()
    return [meta.producer_name, meta.graph_name, meta.graph_description, meta.domain, meta.custom_metadata_map]


PROGRAMS: list[Callable[[Any, str], Any]] = [
    basic, with_options, with_run_options, of_lists, of_values, of_values_fed, bound, bound_to_values,
    bound_to_addresses, in_the_background, of_a_fixed_size, metadata,
]  # fmt: skip


def alike(a: Any, b: Any) -> None:
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            alike(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        alike(list(a.values()), list(b.values()))
    else:
        assert a == b or a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.__name__))
def test_programs(program: Callable[[Any, str], Any], path: str) -> None:
    require("onnxruntime")
    import onnxruntime as ort

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = program(weft_onnx, path)
    alike(mine, program(ort, path))


def test_profiles(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = weft_onnx.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "mine"
    session = weft_onnx.InferenceSession(path, options)
    assert session.get_profiling_start_time_ns() > 0
    for _ in range(3):
        session.run(None, {"x": X})
    name = session.end_profiling()
    events = json.loads(Path(name).read_text())
    assert name.startswith("mine") and [e["name"] for e in events] == ["model_run"] * 3
    assert all(e["dur"] > 0 and e["ph"] == "X" for e in events)
    assert session.end_profiling() == "" == weft_onnx.InferenceSession(path).end_profiling()


def test_threads_of_options(path: str) -> None:
    options = weft_onnx.SessionOptions()
    options.intra_op_num_threads = 1
    assert weft_onnx.InferenceSession(path, options).target == "llvm -threads=1"
    assert weft_onnx.InferenceSession(path, options, target="llvm -threads=2").target == "llvm -threads=2"


def test_what_options_cannot_do(path: str) -> None:
    options = weft_onnx.SessionOptions()
    with pytest.raises(
        UnsupportedError, match=r"'ops\.so' holds kernels of ONNX Runtime\n  hint: define the operators"
    ):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(UnsupportedError, match="initializer 'w' is given beside the model"):
        options.add_initializer("w", None)
    with pytest.raises(UnsupportedError, match="dimensions are fixed by name, not by denotation"):
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 1)
    options.optimized_model_filepath = "other.onnx"
    with pytest.raises(
        UnsupportedError, match="optimized_model_filepath: what a model is compiled to is no ONNX model"
    ):
        weft_onnx.InferenceSession(path, options)
    with pytest.raises(UnsupportedError, match="a value on device 'cuda'"):
        weft_onnx.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def test_what_a_run_cannot_do(path: str) -> None:
    session, options = weft_onnx.InferenceSession(path), weft_onnx.RunOptions(terminate=True)
    with pytest.raises(ExecutionError, match="the run is ended by its options"):
        session.run(None, {"x": X}, options)
    with pytest.raises(weft_onnx.InvalidArgument, match="input 'x' is no array of float32"):
        session.run(None, {"x": [[1.0], [2.0, 3.0]]})
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", weft_onnx.OrtValue.ortvalue_from_shape_and_type([3, 2]))
    with pytest.raises(InputError, match=r"output 'y': a tensor of float32\[2, 3\] does not fit into one of"):
        session.run_with_iobinding(binding)
    found: list[Any] = []
    done = threading.Event()
    session.run_async(None, {}, lambda *given: (found.extend(given), done.set()), 7)
    assert done.wait(60) and found[:2] == [[], 7] and "Required inputs" in found[2]


# -- maps -------------------------------------------------------------------------------------------------------------


def zip_map(rank: int, **labels: Any) -> Any:
    """A graph whose output is a list of maps."""
    node = helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", **labels)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3][-rank:])]
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    of = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    output = helper.make_value_info("maps", helper.make_sequence_type_proto(of))
    graph = helper.make_graph([node], "maps", inputs, [output])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("labels", [{"classlabels_strings": ["b", "ü", "a"]}, {"classlabels_int64s": [5, -1, 3]}])
def test_maps(labels: Any, rank: int) -> None:
    require("onnxruntime")
    import onnxruntime as ort

    data = zip_map(rank, **labels).SerializeToString()
    mine, theirs = weft_onnx.InferenceSession(data), ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [o.type for o in mine.get_outputs()] == [o.type for o in theirs.get_outputs()]
    for rows in (1, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3) if rank == 2 else 3).astype(F)
        alike(mine.run(None, {"x": x}), theirs.run(None, {"x": x}))
    assert weft.compile(onnx.load_from_string(data)).outputs[0].shape[-1] == 3


def test_maps_within_a_model_are_refused() -> None:
    proto = zip_map(2, classlabels_int64s=[0, 1, 2])
    proto.graph.node.append(helper.make_node("Identity", ["maps"], ["again"]))
    with pytest.raises(UnsupportedError, match="ZipMap: maps are no tensors, and can only leave the model"):
        weft.load(proto)


@pytest.mark.parametrize("names", [False, True])
def test_an_exported_classifier(names: bool) -> None:
    """As skl2onnx exports it by default."""
    require("skl2onnx")
    require("onnxruntime")
    import onnxruntime as ort
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    x = random.standard_normal((60, 4)).astype(F)
    y: Any = (x[:, 0] + x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 0.5)
    data = to_onnx(LogisticRegression().fit(x, np.array(["u", "v", "w"])[y] if names else y), x[:1]).SerializeToString()
    mine = weft_onnx.InferenceSession(data).run(None, {"X": x})
    theirs = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"X": x})
    assert isinstance(mine[1], list) and len(mine[1]) == len(x)
    assert list(mine[0]) == list(theirs[0])
    alike(mine[1], theirs[1])
