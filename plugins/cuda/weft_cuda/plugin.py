"""What weft-cuda contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.loop.pipeline import LoopPass
    from weft.runtime.device import DeviceKind
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_cuda.target import CudaTarget

    return [CudaTarget()]


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
    from weft_cuda.target import CudaTarget

    if target.kind != "cuda" or "cp.async" not in CudaTarget().machine(target).features:
        return []
    from weft.loop.passes.copy_async import copy_async
    from weft.loop.pipeline import LoopPass

    return [LoopPass("copy_async", copy_async, "remove_barriers")]


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_cuda.kinds import of

    return [of(0)]
