"""The adapter that the device "webgpu" runs on, by the package wgpu."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import Any

from weft.errors import ExecutionError

LIMITS = (
    "max-buffer-size", "max-storage-buffer-binding-size", "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x", "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z", "max-compute-workgroup-storage-size", "max-compute-workgroups-per-dimension",
)  # fmt: skip
"""Those that kernels may need more of than every device gives."""


@cache
def adapter() -> Any:
    """The system's best GPU, or else a driver that runs on the processor.

    Raises:
        ExecutionError: there is none.
    """
    import wgpu

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # noqa: BLE001 - whatever a driver's loader raises
        raise ExecutionError(
            "no adapter for WebGPU is here",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="install the GPU's Vulkan driver; on a machine without a GPU, Mesa's lavapipe (mesa-vulkan-drivers)",
        ) from None


def missing() -> str | None:
    """None if there is one, else why not."""
    try:
        adapter()
    except ExecutionError as error:
        return "; ".join(filter(None, (error.what, error.why, error.hint)))
    return None
