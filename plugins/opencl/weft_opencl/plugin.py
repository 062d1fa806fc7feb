"""What weft-opencl contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.loop.pipeline import LoopPass
    from weft.passes.capabilities import Capabilities
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import Device, DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_opencl.target import OpenclTarget

    return [OpenclTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "opencl" or target.options.winograd == "off":
        return None
    from weft.passes.capabilities import Capabilities
    from weft_gpu.schedules.winograd import choose_winograd
    from weft_opencl.target import OpenclTarget

    machine = OpenclTarget().machine(target)
    return Capabilities(winograd=lambda node: choose_winograd(node, machine))


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "opencl":
        return []
    from weft_gpu.languages import rules_in
    from weft_opencl.target import OpenclTarget

    return rules_in(OpenclTarget().dialect(target))


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "opencl":
        return []
    from weft_gpu.passes import grid_passes

    return grid_passes()


@hookimpl
def devices() -> Sequence[DeviceKind]:
    return [_kind("")]


def _kind(title: str) -> DeviceKind:
    """Of one device; "" is the first there is."""
    from weft_runtime.device import DeviceKind

    return DeviceKind(
        f"opencl:{title}" if title else "opencl",
        partial(_missing, title),
        partial(_open, title),
        named=None if title else _kind,
    )


def _missing(title: str) -> str | None:
    from weft.errors import ExecutionError
    from weft_opencl.devices import found, titled

    try:
        if title:
            titled(title)
        else:
            found()
    except ExecutionError as error:
        return "; ".join(filter(None, (error.what, error.why, error.hint)))
    return None


def _open(title: str) -> Device:
    from weft_opencl.device import OpenclDevice
    from weft_opencl.devices import found, titled

    return OpenclDevice(f"opencl:{title}" if title else "opencl", titled(title) if title else found()[0])
