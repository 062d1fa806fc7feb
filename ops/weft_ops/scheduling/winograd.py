"""The parts of a Winograd convolution in a Program, for the schedules of any target.

An algorithm (`weft_ops.winograd`) gives its computes these roles; their blocks have them as the annotation `role`."""

from __future__ import annotations

from weft.loop.nodes import Block, Program
from weft.scheduling import access

STAGES = ("winograd_rows", "winograd_input", "winograd_product", "winograd_columns")
"""Roles of the transform of the input along rows and columns, of the products, and of the first transform of the
result."""
SPARING = ("winograd_product_bottom", "winograd_product_right")
"""Roles of products that the last row or column of tiles does without; the others are in "winograd_product"."""
RESULT = "winograd"
"""Role of the block that writes the result of the convolution."""


def stages_of(program: Program) -> dict[str, Block]:
    """The blocks of the one Winograd convolution of a group by role, its result as "winograd"; empty if there is none,
    or not one."""
    found: dict[str, Block] = {}
    for b in access.blocks_of(program):
        role = str(b.annotation("role"))
        if role in (*STAGES, *SPARING, RESULT):
            if role in found:
                return {}
            found[role] = b
    return found if {*STAGES, RESULT} <= set(found) else {}
