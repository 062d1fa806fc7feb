"""Recognition of attention in a group, for rules of any target: its blocks by role, and the steps that join them before
tiling."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from weft.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.nodes import Block, Load, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule

ATTENTION = "attention"
"""The role of operators whose parts these are: the annotation `part_of` of their blocks."""
PACKED = "relayout"
"""The role of what stores an operand in another layout."""


@dataclass(frozen=True)
class Parts:
    """Blocks of an attention by role: two products, the two reductions of softmax, and the exponentials that the second
    product reads."""

    scores: str
    greatest: str
    exps: str
    total: str
    product: str


class TiledAttention(Rule):
    """A rule for groups that contain one attention, which a target schedules in tiles of its own.

    Whether the primitives apply to operands stored by formulas is known only after a trial: `offer` makes one, and
    `apply` continues its candidate."""

    name = "attention"
    priority = 12

    @abstractmethod
    def schedule(self, s: Schedule, machine: Machine) -> None:
        """Schedules the group, whose parts `find_parts` finds.

        Raises:
            ScheduleError: it does not go into tiles; says why, which is the reason of the decline.
        """

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        parts = find_parts(program)
        if isinstance(parts, Decline):
            return parts
        trial = Schedule(program, machine)
        try:
            self.schedule(trial, machine)
        except ScheduleError as error:
            return Decline("not_tiled", error.why or error.what)
        cost = of_blocks(program, machine, tiled=[b.name for b in access.blocks_of(program)])
        return Offer(cost, candidate=trial)

    def apply(self, s: Schedule, offer: Offer | None = None) -> None:
        assert s.machine is not None
        if offer is None or offer.candidate is None or not s.resume(offer.candidate):
            self.schedule(s, s.machine)


def find_parts(program: Program) -> Parts | Decline:
    """The blocks of an attention by role, or why there is none."""
    if access.outside_blocks(program.body) or access.has_sequential_loop(program):
        return Decline("loop_program", "statements or blocks stand outside a plain nest")
    blocks = access.blocks_of(program)
    if not any(b.annotation("part_of") == ATTENTION for b in blocks):
        return Decline("no_attention", "the group holds no attention")
    sums = [b for b in blocks if access.is_reduction(b)]
    products = [b for b in sums if access.is_contraction(b) and b.annotation("part_of") == ATTENTION]
    others = [b for b in sums if b not in products]
    if len(products) != 2 or len(others) != 2:
        return Decline(
            "other_shape",
            f"the group has {len(products)} products and {len(others)} other reductions, an attention two of each",
        )
    if any(int_const(i.extent) == 1 for b in sums for i in b.iters if i.kind == "reduce"):
        return Decline("other_shape", "there is one key, or heads are of size one, so that a sum has one term")
    weights = operands(products[1])[0].buffer.name
    exps = next((b.name for b in blocks if access.target(b).buffer.name == weights), None)
    if exps is None or not access.is_maximum(others[0]):
        return Decline("other_shape", "the weights of the second product are not computed in the group")
    return Parts(products[0].name, others[0].name, exps, others[1].name, products[1].name)


def operands(product: Block) -> tuple[Load, Load]:
    """What a product reads, left and right."""
    store = access.target(product)
    left, right = [x for x in access.loads(product) if x.buffer.name != store.buffer.name]
    return left, right


def move_results(s: Schedule) -> None:
    """Stores each result where the blocks that only move it would put it, so that heads which share keys keep an axis
    of their own."""
    while isinstance(access.target(s.block(s.blocks()[-1])).value, Load):
        try:
            s.reverse_compute_inline(s.blocks()[-1])
        except ScheduleError:
            return  # the result is not moved element by element: the last block stays as it is


def inline_formulas(s: Schedule, parts: Parts, once: bool) -> None:
    """Inlines what is computed element by element, but for packed keys and values, scores, and weights.

    Args:
        once: scaled queries, the reciprocals of the rows' sums, and what the result asks of the rows' maxima (whether
            a query may attend to nothing) stay blocks of their own as well: what is read more often than computed.
    """
    outputs = {b.name for b in s.program.outputs}
    total = access.target(s.block(parts.total)).buffer
    kept = {
        access.target(s.block(parts.exps)).buffer.name,
        *(x.buffer.name for x in access.loads(s.block(parts.greatest))),
    }
    if once:
        kept.add(operands(s.block(parts.scores))[0].buffer.name)
    for name in s.blocks():
        block = s.block(name)
        buffer = access.target(block).buffer
        if (
            access.is_reduction(block)
            or buffer.name in outputs
            or buffer.name in kept
            or block.annotation("role") == PACKED
        ):
            continue
        if once and buffer.shape == total.shape and any(x.buffer.name == total.name for x in access.loads(block)):
            continue
        if once and name in row_flags(s, parts):
            continue
        s.compute_inline(name)


def row_flags(s: Schedule, parts: Parts) -> list[str]:
    """Blocks that compute from the rows' maxima, one element a row, what the result asks of them: whether a query may
    attend to nothing."""
    order = s.blocks()
    greatest = access.target(s.block(parts.greatest)).buffer
    after = {x.buffer.name for b in order[order.index(parts.exps) + 1 :] for x in access.loads(s.block(b))}
    between = order[order.index(parts.greatest) + 1 : order.index(parts.exps)]
    return [
        b
        for b in between
        if (target := access.target(s.block(b)).buffer).name in after
        and target.shape == greatest.shape
        and any(x.buffer.name == greatest.name for x in access.loads(s.block(b)))
    ]


def tail_loops(s: Schedule, parts: Parts, tail: str) -> tuple[str | None, list[str]]:
    """The loop of `tail` along the queries (None if there is one query), and its others, the values' columns last."""
    product, block = s.block(parts.product), s.block(tail)
    left, right = operands(product)
    store = access.target(product)
    loops = dict(zip((i.var.name for i in block.iters), s.loops(tail)))
    read = next(x for x in access.loads(block) if x.buffer.name == store.buffer.name)

    def loop_of(moves: Load, stays: Load) -> str | None:
        moving = [
            k
            for k, e in enumerate(store.indices)
            if isinstance(e, Var) and access.stride_of(moves, e.name) != 0 == access.stride_of(stays, e.name)
        ]
        index = read.indices[moving[-1]] if moving else None
        return loops[index.name] if isinstance(index, Var) else None

    rows, columns = loop_of(left, right), loop_of(right, left)
    if columns is None:
        raise ScheduleError(
            "attention: no loop of the output runs over the columns of the values",
            hint="it has a single column, or is stored by a formula",
        )
    return rows, [*(x for x in s.loops(tail) if x not in (rows, columns)), columns]
