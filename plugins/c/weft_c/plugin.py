"""What weft-c contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import Exporter, ExportOption, hookimpl

if TYPE_CHECKING:
    from weft.graph.operator import Operator
    from weft.loop.pipeline import LoopPass
    from weft.passes.capabilities import Capabilities
    from weft.passes.pipeline import GraphPass
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_c.target import CTarget

    return [CTarget()]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "c":
        return []
    from weft_c.schedules import rules

    return rules(target.options.profile)


@hookimpl
def operators() -> Sequence[type[Operator]]:
    from weft_c.byte_sums import ChannelSum, Rescale, WindowSum

    return [ChannelSum, Rescale, WindowSum]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "c" or target.options.profile == "host":
        return None
    from weft.passes.capabilities import Capabilities

    return Capabilities(narrow_results=True)


@hookimpl
def graph_passes(target: Target) -> Sequence[GraphPass]:
    if target.kind != "c" or target.options.profile != "mcu":
        return []
    from weft.passes.pipeline import GraphPass
    from weft_c.narrow_sums import narrow_sums

    invariant = "products of 8-bit integers with constant weights take these, channels last"
    return [GraphPass("narrow_sums", narrow_sums, after="fold_decomposed", invariant=invariant)]


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "c" or target.options.profile == "host":
        return []
    from weft.loop.pipeline import LoopPass
    from weft_c.byte_copies import byte_copies, share_buffers
    from weft_c.joined_calls import joined_calls
    from weft_c.windows import windows

    holds = "buffers that are not used at the same time are one"
    passes = [LoopPass("share_buffers", share_buffers, after="unroll_loops", holds=holds)]
    if target.options.profile == "mcu":
        holds = "no nest only widens part of a picture"
        passes.append(LoopPass("windows", windows, after="simplify", holds=holds))
        holds = "sums of 8-bit products are scaled where they are made"
        passes.append(LoopPass("joined_calls", joined_calls, after="flatten_buffers", holds=holds))
        holds = "no long loop only widens neighbouring bytes"
        passes.append(LoopPass("byte_copies", byte_copies, after="share_buffers", holds=holds))
    return passes


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "c" or target.options.profile != "mcu":
        return []
    from weft_c.mcu_intrinsics import INTRINSICS

    return INTRINSICS


@hookimpl
def exporters() -> Sequence[Exporter]:
    from weft_c import export_c

    profile = ExportOption("profile", "what it is for: portable (the default), mcu", ("portable", "mcu"))
    about = "C99 with a header, for processors without an operating system"
    return [Exporter("c", ".c", about, export_c.target, export_c.files, (profile,), export_c.report)]
