"""Products and convolutions of 8-bit or 16-bit operands: the tiles of `contraction`, with each vector computed by dot
product instructions.

`weft.passes.layout_offers` packs the operands: the elements of one dot product are contiguous, those of the right
operand lane after lane. `weft_ops.passes.narrow_products` makes such products of quantised ones.

The choices are those of `contraction`.
"""

from __future__ import annotations

from weft.expr.nodes import Add, Cast, Expr, Mul
from weft.loop.nodes import Block, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import in_registers, seconds, streamed
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.intrinsics import Dot, dots_of
from weft_llvm.schedules.contraction import anchor_of, schedule_tile, split_panels
from weft_llvm.schedules.elementwise import schedule_elementwise


class DotRule(Rule):
    """See the module."""

    name = "dots"
    priority = 11

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        block = anchor_of(program)
        if block is None or access.has_sequential_loop(program):
            return Decline("no_contraction", "the group has no single matrix product or convolution")
        dot = dot_of(block, machine)
        if dot is None:
            return Decline("no_instruction", "no dot product of the machine takes the operands' types")
        trial = Schedule(program, machine)
        split_panels(trial, block.name)
        reason = refusal(access.LoopView.of(trial, block.name), dot)
        if reason is not None:
            return Decline("not_packed", reason)
        name, depth = block.name, dot.depth  # as many dot products start in a cycle as multiply-adds

        def cycles(b: Block) -> float:
            return in_registers(b, machine) / depth if b.name == name else streamed(b, machine)

        return Offer(seconds(program, machine, cycles))

    def apply(self, s: Schedule) -> None:
        block = anchor_of(s.program)
        assert block is not None and s.machine is not None
        dot = dot_of(block, s.machine)
        assert dot is not None
        order = s.blocks()
        before, after = order[: order.index(block.name)], order[order.index(block.name) + 1 :]
        for b in before:
            schedule_elementwise(s, b, s.machine)
        for b in after[:-1]:
            s.compute_inline(b)
        if after:
            s.set_scope(block.name, "register")
        tail = after[-1] if after else s.cache_write(block.name, "register")
        schedule_tile(s, block.name, tail, s.machine, instruction=dot)


def dot_of(block: Block, machine: Machine) -> Dot | None:
    """The machine's dot product for the operands of a sum of products, in their order."""
    value = access.target(block).value
    assert isinstance(value, Add) and isinstance(value.b, Mul)
    left, right = (_widened(e) for e in (value.b.a, value.b.b))
    found = (d for d in dots_of(machine) if (left.dtype, right.dtype, value.dtype) == (d.left, d.right, d.result))
    return next(found, None)


def _widened(e: Expr) -> Expr:
    return e.value if isinstance(e, Cast) else e


def refusal(view: access.LoopView, dot: Dot) -> str | None:
    """Why the operands of a contraction, its panels split, do not lie as the instruction reads them; None if they
    do."""
    if view.conditions:
        return "the sum has conditions"
    left, right = (x for x in view.loads if x.buffer.name != view.store.buffer.name)
    last = [
        x for x in view.loops if view.kinds.get(x) == "reduce" and view.stride(left, x) == view.stride(right, x) == 1
    ]
    if len(last) != 1 or (view.extents[last[0]] or 0) % dot.depth:
        return f"the operands do not have {dot.depth} elements of the sum side by side"
    lanes = [
        x
        for x in view.loops
        if view.kinds.get(x) == "spatial"
        and view.stride(view.store, x) == 1
        and view.stride(right, x) == dot.depth
        and view.stride(left, x) == 0
    ]
    if not lanes or view.extents[lanes[-1]] is None or (int_const(right.buffer.shape[-2]) or 1) % dot.lanes:
        return "the right operand is not packed in panels of whole vectors"
    return None


__all__ = ["DotRule", "dot_of", "refusal"]
