"""What weft-webgpu contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
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
    from weft_webgpu.target import WebgpuTarget

    return [WebgpuTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "webgpu" or target.options.winograd == "off":
        return None
    from weft.passes.capabilities import Capabilities
    from weft_gpu.schedules.winograd import choose_winograd
    from weft_webgpu.target import WebgpuTarget

    machine = WebgpuTarget().machine(target)
    return Capabilities(winograd=lambda node: choose_winograd(node, machine))


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "webgpu":
        return []
    from weft_gpu.languages import rules_in
    from weft_webgpu.target import WebgpuTarget

    return rules_in(WebgpuTarget().dialect(target))


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "webgpu":
        return []
    from weft_gpu.passes import grid_passes

    return grid_passes()


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_runtime.device import DeviceKind
    from weft_webgpu.adapter import missing

    return [DeviceKind("webgpu", missing, _open)]


def _open() -> Device:
    from weft_webgpu.adapter import adapter
    from weft_webgpu.device import WebgpuDevice

    return WebgpuDevice("webgpu", adapter())
