"""ONNX for Weft: the frontend, ONNX's own backend interface (`weft_onnx.backend`), and a session for who comes from
ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_onnx.ort_value import IOBinding, OrtValue
    from weft_onnx.session import (
        InferenceSession,
        InvalidArgument,
        ModelMetadata,
        NodeArg,
        get_available_providers,
        get_device,
        set_default_logger_severity,
    )
    from weft_onnx.session_options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
    )

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
]


def __getattr__(name: str) -> Any:
    # At first use: a plugin imports in milliseconds, and `onnx` does not.
    if name in __all__:
        from weft_onnx import ort_value, session, session_options

        return next(getattr(m, name) for m in (session, session_options, ort_value) if hasattr(m, name))
    raise AttributeError(f"module 'weft_onnx' has no attribute '{name}'")
