"""ONNX for Weft: the frontend, ONNX's own backend interface (`weft_onnx.backend`), and a session for who comes from
ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_onnx.session import InferenceSession, InvalidArgument

__all__ = ["InferenceSession", "InvalidArgument"]


def __getattr__(name: str) -> Any:
    # At first use: a plugin imports in milliseconds, and `onnx` does not.
    if name in __all__:
        from weft_onnx import session

        return getattr(session, name)
    raise AttributeError(f"module 'weft_onnx' has no attribute '{name}'")
