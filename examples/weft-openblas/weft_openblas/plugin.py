"""What weft-openblas contributes to Weft. Imports in milliseconds: whatever is heavy is imported inside the
functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.loop.pipeline import LoopPass
    from weft.passes.place import Offers
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_openblas.target import OpenBlas

    return [OpenBlas()]


@hookimpl
def offload(graph: Graph, target: Target) -> Offers | None:
    if target.kind != "openblas":
        return None
    from weft_openblas.products import offer

    return [offer(node, target) for node in graph.nodes]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "openblas":
        return []
    from weft_openblas.products import OneProduct

    return [OneProduct()]


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "openblas":
        return []
    from weft_openblas.instructions import INTRINSICS

    return INTRINSICS


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "openblas":
        return []
    from weft.loop.pipeline import LoopPass
    from weft_openblas.products import call_library

    return [LoopPass("call_library", call_library, after="")]


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_openblas.device import OpenBlasDevice, missing
    from weft_runtime.device import DeviceKind

    return [DeviceKind("openblas", missing=missing, open=OpenBlasDevice)]
