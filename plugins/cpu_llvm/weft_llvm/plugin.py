"""The hooks of weft-llvm. Functions import expensive modules themselves: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft import forks
from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from weft.hooks import Exporter
    from weft.loop.pipeline import LoopPass
    from weft.passes.capabilities import Capabilities
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind

forks.need("llvmlite")


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_llvm.target import LlvmTarget

    return [LlvmTarget()]


@hookimpl
def capabilities(target: Target) -> Capabilities | None:
    if target.kind != "llvm":
        return None
    from weft.dtypes import bfloat16, float16, float32
    from weft.passes.capabilities import Capabilities, DotProduct
    from weft_llvm.intrinsics import dots_of
    from weft_llvm.schedules.contraction import PANEL_VECTORS
    from weft_llvm.schedules.winograd import choose_winograd
    from weft_llvm.target import LlvmTarget

    machine = LlvmTarget().machine(target)
    lanes = machine.lanes(float32)
    winograd = None if target.options.winograd == "off" else lambda node: choose_winograd(node, machine)
    precision = {"fp32": None, "fp16": float16, "bf16": bfloat16}[target.options.precision]
    dots = tuple(DotProduct(d.left, d.right, d.result, d.depth) for d in dots_of(machine))
    return Capabilities(
        channel_block=lanes,
        panel=PANEL_VECTORS * lanes,
        precision=precision,
        winograd=winograd,
        dots=dots,
        store_cost=1.0,
        doubles=True,
        bytes_per_flop=machine.bytes_per_flop(float32),
        relayout_bytes_per_second=machine.rates.relayout_bytes_per_second,
    )


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "llvm":
        return []
    from weft_llvm.schedules import rules

    return rules()


@hookimpl
def exporters() -> Sequence[Exporter]:
    from weft_llvm import exports

    return exports.exporters()


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_llvm.command import probe

    cli.command("probe")(probe)


@hookimpl
def intrinsics(target: Target) -> Sequence[Intrinsic]:
    if target.kind != "llvm":
        return []
    from weft_llvm.intrinsics import intrinsics
    from weft_llvm.target import LlvmTarget

    return intrinsics(LlvmTarget().machine(target))


@hookimpl
def loop_passes(target: Target) -> Sequence[LoopPass]:
    if target.kind != "llvm":
        return []
    from weft.loop.pipeline import LoopPass
    from weft_llvm.shorter_tiles import shorter_tiles

    holds = "no register tile of an open size asks for each of its rows"
    return [LoopPass("shorter_tiles", shorter_tiles, "partition_loops", holds)]
