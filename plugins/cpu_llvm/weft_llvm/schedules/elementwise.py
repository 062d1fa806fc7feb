"""Elementwise and data-moving groups: one nest, neighbouring loops joined where every access lets them, lanes on the contiguous one."""

from __future__ import annotations

from weft.expr.nodes import Var
from weft.loop.nodes import Block, Load, Program, Store, int_const
from weft.machine import Machine
from weft.schedule.rule import Decline, Offer, Rule
from weft.schedule.schedule import Schedule
from weft_llvm.schedules import access

PARALLEL_WORK = 1 << 14
"""Operations below which a loop is not worth a fork and join."""


class ElementwiseRule(Rule):
    """Groups whose blocks are all without reductions."""

    name = "elementwise"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        blocks = access.blocks_of(program)
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if any(access.is_reduction(b) for b in blocks):
            return Decline("reduction", "a block reduces")
        if access.has_sequential_loop(program):
            return Decline("scan", "a block lies in a sequential loop")
        return Offer(float(sum(access.block_work(b) for b in blocks)))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s)
        for name in s.blocks():
            schedule_elementwise(s, name, s.machine)


def inline_producers(s: Schedule, among: list[str] | None = None) -> None:
    """Inlines every block without reduction whose result is only read inside the program."""
    outputs = {b.name for b in s.program.outputs}
    for name in among or s.blocks():
        block = s.block(name)
        store = access.target(block)
        if access.is_reduction(block) or store.buffer.name in outputs or len(list(access.stores(block))) != 1:
            continue
        consumers = s.consumers(name)
        if not consumers:
            continue
        heavy = access.formula_cost(block) > 24
        if heavy and (len(consumers) > 1 or any(access.is_reduction(s.block(c)) for c in consumers)):
            continue
        s.compute_inline(name)


def joinable(block: Block, a: int, b: int) -> bool:
    """Whether iterators a and b (neighbours, b inside) may become one loop: every access has both side by side with b's full extent, or neither."""
    va, vb = block.iters[a].var, block.iters[b].var
    accesses: list[Load | Store] = [*access.loads(block), *access.stores(block)]
    used = False
    for x in accesses:
        positions_a = [k for k, i in enumerate(x.indices) if va.name in access.free_vars(i)]
        positions_b = [k for k, i in enumerate(x.indices) if vb.name in access.free_vars(i)]
        if not positions_a and not positions_b:
            continue
        used = True
        if len(positions_a) != 1 or len(positions_b) != 1 or positions_b[0] != positions_a[0] + 1:
            return False
        k = positions_a[0]
        if not access.is_plain(x.indices[k], va) or not access.is_plain(x.indices[k + 1], vb) or x.buffer.shape[k + 1] != block.iters[b].extent:
            return False
    # Formulas on the indices themselves (a mask of positions) need them apart.
    for s in access.walk_stmts(block.body):
        for e in access.stmt_exprs(s):
            for n in access.walk(e):
                if not isinstance(n, Load):
                    if any(isinstance(c, Var) and c.name in (va.name, vb.name) for c in n.children()):
                        return False
    return used


def schedule_elementwise(s: Schedule, name: str, machine: Machine, outer: int = 0, parallel: bool = True) -> None:
    """Schedules one block without reduction.

    Args:
        outer: loops around the block that belong to others and stay as they are.
    """
    block = s.block(name)
    work = access.block_work(block) * access.formula_cost(block)
    loops = s.loops(name)[outer:]
    first = len(s.loops(name)) - len(loops)
    if not loops:
        return
    # Join from the inside out; the block's iterators stand in the order of its loops.
    direct = all(isinstance(b, Var) for b in block.bindings)
    groups: list[list[str]] = [[x] for x in loops]
    if direct:
        position = {b.name: k for k, b in enumerate(block.bindings) if isinstance(b, Var)}
        k = len(loops) - 1
        while k > 0:
            i, j = position.get(loops[k - 1]), position.get(loops[k])
            if i is not None and j is not None and joinable(block, i, j):
                groups[k - 1] = groups[k - 1] + groups[k]
                del groups[k]
            k -= 1
    order = [g[0] if len(g) == 1 else str(s.fuse(*g)) for g in groups]
    block = s.block(name)
    lanes = machine.lanes(access.target(block).buffer.dtype)
    inner = order[-1]
    n = int_const(s.loop(inner).extent)
    rest = order[:-1]
    vector = contiguous_loop(s, name, inner)
    if vector and (n is None or n >= lanes):
        if n is None or n > lanes:
            outer_part, inner = s.split(inner, [None, lanes])
            rest.append(outer_part)
        s.vectorize(inner)
    elif vector and n is not None and n > 1:
        s.vectorize(inner)
    else:
        rest.append(inner)
    if parallel and first == 0 and work >= PARALLEL_WORK and rest:
        s.parallel(rest[0] if len(rest) == 1 else str(s.fuse(*rest)))


def contiguous_loop(s: Schedule, name: str, loop: str) -> bool:
    """Whether the block stores contiguously along `loop` and its loads are contiguous, constant, or few enough to gather."""
    block = s.block(name)
    bound = [k for k, b in enumerate(block.bindings) if loop in access.free_vars(b)]
    if not bound:
        return False
    var = block.iters[bound[-1]].var.name
    store = access.target(block)
    if len(bound) == 1 and access.stride_of(store, var) == 1:
        moves = [access.stride_of(x, var) for x in access.loads(block)]
        return sum(m not in (0, 1) for m in moves) <= 1 or all(m in (0, 1) for m in moves)
    # A fused loop binds its parts by division and remainder: contiguous if the last part is.
    return len(bound) > 1 and access.stride_of(store, var) == 1 and all(access.stride_of(x, var) in (0, 1) for x in access.loads(block)) and _fused_flat(block, bound)


def _fused_flat(block: Block, bound: list[int]) -> bool:
    """Whether fused iterators are used as one flat index everywhere (joined by `joinable`)."""
    return all(joinable(block, a, b) for a, b in zip(bound, bound[1:]))
