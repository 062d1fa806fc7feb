"""The device kinds of weft-cuda: "cuda" is the first GPU, "cuda:1" the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_runtime.device import DeviceKind

if TYPE_CHECKING:
    from weft_runtime.device import Device


def of(ordinal: int) -> DeviceKind:
    """The kind of one GPU. Nothing of NVIDIA's is imported until it is asked for."""

    def missing() -> str | None:
        from weft_cuda.driver import missing

        return missing(ordinal)

    def open_() -> Device:
        from weft_cuda.device import CudaDevice

        return CudaDevice(ordinal)

    return DeviceKind(f"cuda:{ordinal}" if ordinal else "cuda", missing, open_, None if ordinal else _named)


def _named(which: str) -> DeviceKind:
    if not which.isdecimal():
        return DeviceKind(f"cuda:{which}", lambda: f"'{which}' is no number of a GPU", lambda: of(0).open())
    return of(int(which))
