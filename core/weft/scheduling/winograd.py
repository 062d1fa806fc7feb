"""What a Winograd convolution consists of as a Program: the blocks of its stages (`weft.ops.winograd`), for the schedules of any target."""

from __future__ import annotations

from weft.loop.nodes import Block, Program
from weft.scheduling import access

STAGES = ("winograd_rows", "winograd_input", "winograd_product", "winograd_columns")
SPARING = ("winograd_product_bottom", "winograd_product_right")
"""Stages of products that the last row or column of tiles does without; the others are in "winograd_product"."""
RESULT = "winograd"


def stages_of(program: Program) -> dict[str, Block]:
    """The blocks of the one WinogradConv of a group by stage, its result as "winograd"; empty if there is none, or not one."""
    found: dict[str, Block] = {}
    for b in access.blocks_of(program):
        if b.annotation("op") == "WinogradConv":
            stage = str(b.annotation("stage") or RESULT)
            if stage in found:
                return {}
            found[stage] = b
    return found if {*STAGES, RESULT} <= set(found) <= {*STAGES, RESULT, *SPARING} else {}
