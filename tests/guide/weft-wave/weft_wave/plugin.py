"""What wave contributes to Weft. Imports in milliseconds: whatever is heavy is imported inside the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.passes.pipeline import GraphPass
    from weft.passes.place import Offers
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_wave.target import WaveTarget

    return [WaveTarget()]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "wave":
        return []
    from weft_wave.schedules import RULES

    return RULES


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "wave":
        return []
    from weft_wave.instructions import INTRINSICS

    return INTRINSICS


@hookimpl
def graph_passes(target: Target) -> Sequence[GraphPass]:
    if target.kind != "wave":
        return []
    from weft.passes.pipeline import GraphPass

    from weft_wave.passes import pad_first

    return [GraphPass("wave_pad_first", pad_first, after="choose_algorithms")]


@hookimpl
def offload(graph: Graph, target: Target) -> Offers | None:
    if target.kind != "wave" or target.options.prefer == "always":
        return None
    from weft_wave.offers import offers
    from weft_wave.target import WaveTarget

    return offers(graph, WaveTarget().machine(target), target.options.mhz)


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_runtime.device import DeviceKind

    from weft_wave.device import WaveDevice

    return [DeviceKind("wave", missing=lambda: None, open=WaveDevice)]
