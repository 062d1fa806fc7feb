"""Peers that run ONNX models on the CPU, in their fastest documented settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def _version(module: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module)
    except PackageNotFoundError:
        return None


def open_onnxruntime(path: str, threads: int) -> Run:
    """ONNX Runtime with every graph optimisation and its own thread pool, spinning as it does by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: list(session.run(None, dict(inputs)))


def onnxruntime_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between a model's nodes, as ONNX Runtime computes them without any optimisation. Only those asked for are
    held."""
    import onnx
    import onnxruntime

    model = onnx.load(path, load_external_data=False)
    declared = {o.name for o in model.graph.output}
    known = {name for node in model.graph.node for name in node.output if name}

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = [n for n in names if n in known]
        if not wanted:
            return {}
        asking = onnx.ModelProto()
        asking.CopyFrom(model)
        asking.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted if n not in declared)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(Path(path).resolve().parent)
        )
        session = onnxruntime.InferenceSession(asking.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip(wanted, session.run(wanted, dict(inputs)), strict=True))

    return ask


def open_openvino(path: str, threads: int) -> Run:
    """OpenVINO in latency mode: one stream over all threads, float32 kept."""
    import openvino

    model = openvino.Core().compile_model(
        path,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = model.create_infer_request()

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        request.infer(dict(inputs), share_inputs=True)
        return [request.get_output_tensor(k).data.copy() for k in range(len(model.outputs))]

    return run


ENGINES = [
    EngineKind("onnxruntime", lambda: _version("onnxruntime"), open_onnxruntime, onnxruntime_values, ("onnx",)),
    EngineKind("openvino", lambda: _version("openvino"), open_openvino, frontends=("onnx",)),
]
