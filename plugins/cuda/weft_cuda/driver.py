"""NVIDIA's driver: found, asked, and its errors said so that one knows what to do.

It is called through NVIDIA's own bindings. `api` is what has their functions: the module, or something that plays it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from weft.errors import ExecutionError
from weft.machine import Grid

HERE = (
    "the driver comes with the system, not from PyPI; `cuda -arch=sm_90` compiles without one, for a GPU somewhere else"
)

_ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "run smaller inputs, or end what else uses the GPU",
    "CUDA_ERROR_NO_DEVICE": "nvidia-smi lists the GPUs that the driver sees; CUDA_VISIBLE_DEVICES hides some",
    "CUDA_ERROR_INVALID_DEVICE": "-device counts from 0; nvidia-smi lists the GPUs",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "compile for this GPU: leave out -arch, or name its own",
    "CUDA_ERROR_INVALID_IMAGE": "compile for this GPU: leave out -arch, or name its own",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "install a newer driver",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated: restart the machine",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "compile for this GPU, or with -maxrregcount",
    "CUDA_ERROR_NOT_PERMITTED": "this process may not use the GPU: see the container's or the cluster's settings",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process has it for itself: see nvidia-smi's compute mode",
}
_LOST = frozenset({
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ASSERT", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_LAUNCH_TIMEOUT",
})  # fmt: skip
"""After these the driver does nothing more in this process."""


class DriverError(ExecutionError):
    """What the driver answered: `code` is its name of the error."""

    code: str = ""


class Driver:
    """Calls of the driver, whose errors are raised."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def __call__(self, function: str, *args: Any) -> Any:
        """The result of a function; none, one, or a tuple of several."""
        result, *values = getattr(self.api, function)(*args)
        if result:
            raise self.error(function, result)
        return values[0] if len(values) == 1 else tuple(values) or None

    def error(self, function: str, result: Any) -> DriverError:
        """What a function's answer, which is not success, is said as."""
        unknown, text = self.api.cuGetErrorString(result)
        code = getattr(result, "name", str(result))
        hint = "the driver takes nothing more from this process: start it again" if code in _LOST else _ADVICE.get(code)
        why = f"{'an error without a text' if unknown or not text else text.decode()} ({code})"
        error = DriverError("the CUDA driver reports an error", where=function, why=why, hint=hint)
        error.code = code
        return error

    # -- what is here
    def count(self) -> int:
        """GPUs, after the driver has been started."""
        self("cuInit", 0)
        return int(self("cuDeviceGetCount"))

    def attribute(self, device: Any, name: str) -> int:
        """A number of a GPU: `name` without CU_DEVICE_ATTRIBUTE_."""
        return int(
            self("cuDeviceGetAttribute", getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
        )

    def capability(self, device: Any) -> int:
        """10·major + minor."""
        return 10 * self.attribute(device, "COMPUTE_CAPABILITY_MAJOR") + self.attribute(
            device, "COMPUTE_CAPABILITY_MINOR"
        )

    def grid(self, device: Any) -> Grid:
        """What a GPU allows of launches."""

        def per_axis(of: str) -> tuple[int, int, int]:
            x, y, z = (self.attribute(device, f"MAX_{of}_DIM_{axis}") for axis in "XYZ")
            return x, y, z

        return Grid(
            threads=self.attribute(device, "MAX_THREADS_PER_BLOCK"),
            threads_per_axis=per_axis("BLOCK"),
            groups_per_axis=per_axis("GRID"),
            warp=self.attribute(device, "WARP_SIZE"),
            registers=self.attribute(device, "MAX_REGISTERS_PER_BLOCK"),
            resident=self.attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR"),
        )

    @contextmanager
    def current(self, context: Any) -> Iterator[None]:
        """The calling thread uses `context`, and afterwards what it used before: others in this process have theirs."""
        self("cuCtxPushCurrent", context)
        try:
            yield
        finally:
            self.api.cuCtxPopCurrent()


@cache
def driver() -> Driver:
    """The driver of this machine.

    Raises:
        ExecutionError: the bindings or the driver are not installed.
    """
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise ExecutionError("CUDA needs NVIDIA's bindings", why=str(error), hint="pip install cuda-bindings") from None
    found = Driver(api)
    try:
        api.cuDriverGetVersion()
    except RuntimeError:  # the bindings look for the library at the first call
        raise ExecutionError("no CUDA driver is here", why="the library libcuda is not found", hint=HERE) from None
    return found


def missing(ordinal: int, found: Driver | None = None) -> str | None:
    """Why there is no such GPU here, as a sentence; None if there is."""
    try:
        count = (found or driver()).count()
    except ExecutionError as error:
        parts = [error.what, *([error.why] if error.why else []), *([error.hint] if error.hint else [])]
        return "; ".join(parts)
    if ordinal >= count:
        return f"there are {count} GPUs, and the one of -device={ordinal} is wanted; -device counts from 0"
    return None
