"""Tiles in shared memory by bulk tensor copies: one thread describes the box of the tensor."""

from __future__ import annotations

from weft.expr.nodes import Expr
from weft.loop.nodes import TRUE, For, If, Stmt, substitute_stmt
from weft.machine import Machine
from weft.scheduling.schedule import Schedule
from weft_gpu.bulk_copies import ALIGNED, BOX
from weft_gpu.passes.bulk_copies import box_nest

FEATURE = "tma"
"""The machine's word for it."""
LEAST_ROW = 64
"""Bytes side by side from which on boxes are taken if no record says so: the machine goes through a box row by row,
threads copy 16 bytes each at once. No GPU has been asked yet."""
DECLINED = "box_declined"
"""The annotation of a block that would be a box on such a machine, but for what it says."""


def bring_box(s: Schedule, copy: str, step: str, machine: Machine, ahead: bool) -> bool:
    """What a block copies into shared memory in each iteration of `step` one thread has the machine copy, as one box;
    `ahead`: one iteration before.

    False, with nothing done, if the machine copies none, if a record has threads copy, or if the block's loops are none
    (`weft_gpu.passes.bulk_copies`), which a note on the block says. Loops keep their meaning, one element after
    another; who lowers them for such a machine makes them one copy.
    """
    if FEATURE not in machine.features:
        return False
    loops, block = s.loops(copy)[s.loops(copy).index(step) + 1 :], s.block(copy)
    values: dict[str, Expr] = {i.var.name: x for i, x in zip(block.iters, block.bindings)}
    nest: Stmt = substitute_stmt(block.body, values)
    nest = nest if block.predicate == TRUE else If(block.predicate, nest)
    for x in reversed(loops):
        nest = For(s.loop(x).var, s.loop(x).extent, nest)
    found = box_nest(nest, {})
    if not isinstance(found, str) and ahead and found.box.tensor.bytes % ALIGNED:
        found = f"its second half does not begin at a multiple of {ALIGNED} bytes"
    if isinstance(found, str):
        s.annotate(copy, DECLINED, found)
        return False
    row = found.box.tensor.sizes[0] * found.box.tensor.buffer.dtype.bytes
    if s.choose("copies", ["boxes", "threads"], "boxes" if row >= LEAST_ROW else "threads") != "boxes":
        return False
    for x in loops:
        if s.loop(x).kind != "serial":
            s.serial(x)
        s.annotate(x, BOX, 1)
    if ahead:
        s.double_buffer(copy, step)
    return True
