"""cache_read: copies an operand to another memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.expr.nodes import Expr, transform
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    Buffer,
    For,
    Load,
    Program,
    Region,
    Stmt,
    Store,
    map_stmt_exprs,
    replace_buffers,
    seq,
    transform_stmts,
)
from weft.scheduling.dependence import writers
from weft.scheduling.region import block_accesses
from weft.scheduling.rewrite import copy_block
from weft.scheduling.tree import Tree, contains


def cache_read(
    program: Program, block: str, buffer: str, scope: str, order: Sequence[int] | None = None
) -> tuple[Program, str]:
    """`block` reads `buffer` from a copy in memory `scope`, made by a new block before it. Returns the new block's
    name.

    `order`: the buffer's dimensions in the order in which the copy has them, and the copying loops; None: the buffer's
    own.

        block C(…) { y[bi] = x[bi]*2.0f32 }
        → cache_read("C", "x", "shared") → "x_shared"
        allocate x_shared: float32[n] in shared
        for x_shared_i0 in n { block x_shared(…) { x_shared[v0] = x[v0] } }
        block C(…) { y[bi] = x_shared[bi]*2.0f32 }

    Afterwards, compute_at moves the copy to its use and compact_buffer reduces it.
    """
    step = "cache_read"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    uses = block_accesses(b, buffer)
    if not uses or any(a.write for a in uses):
        why = f"'{block}' writes '{buffer}'" if uses else f"'{block}' does not read a buffer '{buffer}'"
        known = sorted({a.buffer.name for a in block_accesses(b) if not a.write})
        raise tree.error(step, why, (block,), "it reads " + (", ".join(known) or "nothing"))
    source = uses[0].buffer
    dims = dims_in(order, source, tree, step, block)
    name = tree.fresh(f"{buffer}_{scope}")
    cached = Buffer(name, tuple(source.shape[d] for d in dims), source.dtype, scope)
    suppliers = set(writers(tree, [buffer]))
    spot = next((k for k, s in enumerate(path) if isinstance(s, For)), len(path) - 1)
    if contains(path[spot], lambda s: getattr(s, "name", None) in suppliers):
        where = path[spot]
        assert isinstance(where, For)
        raise tree.error(
            step,
            f"'{buffer}' is written under the same loop '{where.var.name}'",
            (block, *suppliers),
            "cache_read before compute_at",
        )
    late = [w for w in suppliers if list(tree.block_paths).index(w) > list(tree.block_paths).index(block)]
    if late:
        raise tree.error(step, f"'{late[0]}' writes '{buffer}' after '{block}' read it", (block, late[0]))
    new_block = replace_buffers(b, {buffer: cached}) if order is None else permuted(b, buffer, cached, dims)
    copy = copy_block(tree, name, cached, source, dims)
    changed = tree.replace(path, new_block)
    again = Tree(changed)
    anchor = again.block_path(block, step)[: spot + 1]
    result = again.replace(anchor, seq(copy, anchor[-1]))
    return allocate(result, cached), name


def permuted(block: Block, buffer: str, cached: Buffer, order: tuple[int, ...]) -> Block:
    """The block on `cached` in place of `buffer`, its indices in `order`."""

    def at(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(indices[d] for d in order)

    def load(e: Expr) -> Expr | None:
        return Load(cached, at(e.indices), e.predicate) if isinstance(e, Load) and e.buffer.name == buffer else None

    def regions(found: tuple[Region, ...] | None) -> tuple[Region, ...] | None:
        return found and tuple(
            Region(cached, tuple(r.ranges[d] for d in order)) if r.buffer.name == buffer else r for r in found
        )

    def rule(s: Stmt) -> Stmt:
        s = map_stmt_exprs(s, lambda e: transform(e, load))
        if isinstance(s, (Store, AtomicUpdate)) and s.buffer.name == buffer:
            return replace(s, buffer=cached, indices=at(s.indices))
        return replace(s, reads=regions(s.reads), writes=regions(s.writes)) if isinstance(s, Block) else s

    changed = transform_stmts(block, rule)
    assert isinstance(changed, Block)
    return changed


def dims_in(order: Sequence[int] | None, buffer: Buffer, tree: Tree, step: str, block: str) -> tuple[int, ...]:
    """The dimensions of `buffer` in `order`, its own if that is None.

    Raises:
        ScheduleError: it does not name each once.
    """
    dims = tuple(range(len(buffer.shape))) if order is None else tuple(order)
    if sorted(dims) != list(range(len(buffer.shape))):
        raise tree.error(
            step,
            f"the order {dims} does not name each of the {len(buffer.shape)} dimensions of '{buffer.name}' once",
            (block,),
        )
    return dims


def allocate(program: Program, buffer: Buffer) -> Program:
    """The Program with `buffer` allocated inside the allocations around everything."""
    above: list[Buffer] = []
    body: Stmt = program.body
    while isinstance(body, Allocate):
        above.append(body.buffer)
        body = body.body
    body = Allocate(buffer, body)
    for b in reversed(above):
        body = Allocate(b, body)
    return program.with_body(body)
