"""Peers that run ONNX models on the CPU, in their fastest documented settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def open_openvino(path: str, threads: int) -> Run:
    """OpenVINO in latency mode: one stream over all threads, float32 kept."""
    import openvino

    model = openvino.Core().compile_model(
        path,
        "CPU",
        {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"},
    )
    request = model.create_infer_request()

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        request.infer(dict(inputs), share_inputs=True)
        return [request.get_output_tensor(k).data.copy() for k in range(len(model.outputs))]

    return run


ENGINES = [
    EngineKind("onnxruntime", lambda: _version("onnxruntime"), open_onnxruntime),
    EngineKind("openvino", lambda: _version("openvino"), open_openvino),
]
