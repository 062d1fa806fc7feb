"""Apple's Metal, through pyobjc, where it is: the one place that imports it."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from weft.errors import ExecutionError

METAL3 = 5001
"""MTLGPUFamilyMetal3."""


def metal() -> Any:
    """pyobjc's module Metal.

    Raises:
        ExecutionError: it is not here; says why.
    """
    if sys.platform != "darwin":
        raise ExecutionError(
            "Metal is not here",
            why=f"it is a part of macOS, and this is {sys.platform}",
            hint="compiled models run on a Mac: save and copy them",
        )
    try:
        import Metal
    except ImportError as error:
        raise ExecutionError(
            "Metal cannot be used here",
            why=f"pyobjc's Metal cannot be imported: {error}",
            hint="pip install pyobjc-framework-Metal",
        ) from None
    return Metal


@cache
def _gpu(module: Any) -> Any:
    return module.MTLCreateSystemDefaultDevice()


def gpu() -> Any:
    """The MTLDevice that macOS prefers.

    Raises:
        ExecutionError: there is none, or one that is too old.
    """
    found = _gpu(metal())
    if found is None:
        raise ExecutionError("Metal finds no GPU", hint="a virtual machine or a remote session may have none")
    if not found.supportsFamily_(METAL3):
        raise ExecutionError(
            "the GPU is too old",
            why=f"{found.name()} does not support Metal 3",
            hint="Macs of 2017 and later do; texts are for macOS 14 and later",
        )
    return found


def missing() -> str | None:
    """Why there is no GPU to run on, as a sentence; None if there is one."""
    try:
        gpu()
    except ExecutionError as error:
        return "; ".join(filter(None, (error.what, error.why, error.hint)))
    return None


def family_here() -> str | None:
    """The newest family that Weft knows and the GPU belongs to; None where no GPU is."""
    from weft_metal.families import FAMILIES

    if missing() is not None:
        return None
    device = gpu()
    return next((f.name for f in reversed(FAMILIES) if device.supportsFamily_(f.constant)), None)
