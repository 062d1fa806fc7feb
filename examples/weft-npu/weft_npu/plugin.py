"""What the distribution weft-npu contributes. Everything heavy is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from weft.graph.nodes import Graph
    from weft.passes.capabilities import Capabilities
    from weft.passes.place import Offers
    from weft.scheduling import Intrinsic, Rule
    from weft.target import Target, TargetKind
    from weft_runtime.device import Device, DeviceKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_npu.target import Npu

    return [Npu()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "npu":
        return None
    from weft_npu import passes

    return passes.capabilities()


@hookimpl
def graph_passes(target: Target) -> Sequence[Any]:
    if target.kind != "npu":
        return []
    from weft.passes.pipeline import GraphPass
    from weft_npu.passes import legalize

    return [GraphPass("npu_legalize", legalize, after="choose_algorithms")]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "npu":
        return []
    from weft_npu.schedules import rules

    return rules()


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "npu":
        return []
    from weft_npu.intrinsics import INTRINSICS

    return INTRINSICS


@hookimpl
def offload(graph: Graph, target: Target) -> Offers | None:
    if target.kind != "npu":
        return None
    from weft_npu.passes import offers
    from weft_npu.target import Npu

    return offers(graph, Npu().machine(target), target.options.clock)


def _open() -> Device:
    from weft_npu.device import Npu

    return Npu()


@hookimpl
def devices() -> Sequence[DeviceKind]:
    from weft_runtime.device import DeviceKind

    return [DeviceKind("npu", lambda: None, _open)]


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_npu.command import npu_report

    cli.command("npu-report")(npu_report)
