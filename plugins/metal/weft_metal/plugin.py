"""What weft-metal contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.loop.pipeline import LoopPass
    from weft.passes.capabilities import Capabilities
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import Device, DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_metal.target import MetalTarget

    return [MetalTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "metal" or target.options.winograd == "off":
        return None
    from weft.passes.capabilities import Capabilities
    from weft_gpu.schedules.winograd import choose_winograd
    from weft_metal.intrinsics import intrinsics as every
    from weft_metal.target import MetalTarget

    machine, found = MetalTarget().machine(target), list(every())
    return Capabilities(winograd=lambda node: choose_winograd(node, machine, found))


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "metal":
        return []
    from weft_gpu.languages import rules_in
    from weft_metal.dialect import dialect

    return rules_in(dialect())


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "metal":
        return []
    from weft_metal.intrinsics import intrinsics as every

    return list(every())


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "metal":
        return []
    from weft_gpu.passes import grid_passes

    return grid_passes()


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_metal.driver import missing
    from weft_runtime.device import DeviceKind

    return [DeviceKind("metal", missing, _open)]


def _open() -> Device:
    from weft_metal.device import MetalDevice

    return MetalDevice()
