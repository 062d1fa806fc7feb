"""What weft-cuda contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

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
    from weft_runtime.device import DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_cuda.target import CudaTarget

    return [CudaTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "cuda" or target.options.winograd == "off":
        return None
    from weft.passes.capabilities import Capabilities
    from weft_cuda.intrinsics import intrinsics as every
    from weft_cuda.target import CudaTarget
    from weft_gpu.schedules.winograd import choose_winograd

    machine, found = CudaTarget().machine(target), list(every())
    return Capabilities(winograd=lambda node: choose_winograd(node, machine, found))


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "cuda":
        return []
    from weft_cuda.dialect import CUDA
    from weft_gpu.languages import rules_in

    return rules_in(CUDA)


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "cuda":
        return []
    from weft_cuda.intrinsics import intrinsics as every

    return list(every())


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "cuda":
        return []
    from weft_cuda.target import CudaTarget
    from weft_gpu.passes import grid_passes

    return grid_passes(CudaTarget().machine(target).features)


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_cuda.kinds import of

    return [of(0)]
