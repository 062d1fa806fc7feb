"""What tide contributes to Weft. Imports in milliseconds: whatever is heavy is imported inside the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.passes.capabilities import Capabilities
    from weft.passes.pipeline import GraphPass
    from weft.passes.place import Offers
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_tide.target import TideTarget

    return [TideTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "tide":
        return None
    from weft import dtypes
    from weft.passes.capabilities import Capabilities, DotProduct

    from weft_tide.layouts import LAYOUTS

    return Capabilities(dots=(DotProduct(dtypes.int8, dtypes.int8, dtypes.int32, depth=4),), layouts=LAYOUTS)


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "tide":
        return []
    from weft_tide.schedules import RULES

    return RULES


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "tide":
        return []
    from weft_tide.instructions import INTRINSICS

    return INTRINSICS


@hookimpl
def graph_passes(target: Target) -> Sequence[GraphPass]:
    if target.kind != "tide":
        return []
    from weft.passes.pipeline import GraphPass

    from weft_tide.passes import relu_of_maximum

    return [GraphPass("relu_of_maximum", relu_of_maximum, after="simplify_algebra")]


@hookimpl
def offload(graph: Graph, target: Target) -> Offers | None:
    if target.kind != "tide":
        return None
    from weft_tide.instructions import INTRINSICS
    from weft_tide.offers import offers
    from weft_tide.target import TideTarget

    return offers(graph, TideTarget().machine(target), {i.name: i for i in INTRINSICS})


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_runtime.device import DeviceKind

    from weft_tide.device import TideDevice

    return [DeviceKind("tide", missing=lambda: None, open=TideDevice)]
