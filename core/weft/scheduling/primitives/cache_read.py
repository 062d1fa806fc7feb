"""cache_read: a copy of an operand in another memory."""

from __future__ import annotations

from weft.loop.nodes import Allocate, Buffer, For, Program, Stmt, replace_buffers, seq
from weft.scheduling.dependence import writers
from weft.scheduling.region import block_accesses
from weft.scheduling.rewrite import copy_block
from weft.scheduling.tree import Tree, contains


def cache_read(program: Program, block: str, buffer: str, scope: str) -> tuple[Program, str]:
    """`block` reads `buffer` from a copy in memory `scope`, made by a new block before it. Returns the new block's name.

        block C(…) { y[bi] = x[bi]*2.0f32 }
        → cache_read("C", "x", "shared") → "x_shared"
        allocate x_shared: float32[n] in shared
        for x_shared_i0 in n { block x_shared(…) { x_shared[v0] = x[v0] } }
        block C(…) { y[bi] = x_shared[bi]*2.0f32 }

    compute_at then moves the copy to where it is used and compact_buffer shrinks it.
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
    name = tree.fresh(f"{buffer}_{scope}")
    cached = Buffer(name, source.shape, source.dtype, scope)
    suppliers = set(writers(tree, [buffer]))
    spot = next((k for k, s in enumerate(path) if isinstance(s, For)), len(path) - 1)
    if contains(path[spot], lambda s: getattr(s, "name", None) in suppliers):
        where = path[spot]
        assert isinstance(where, For)
        raise tree.error(step, f"'{buffer}' is written under the same loop '{where.var.name}'", (block, *suppliers), "cache_read before compute_at")
    late = [w for w in suppliers if list(tree.block_paths).index(w) > list(tree.block_paths).index(block)]
    if late:
        raise tree.error(step, f"'{late[0]}' writes '{buffer}' after '{block}' read it", (block, late[0]))
    new_block = replace_buffers(b, {buffer: cached})
    copy = copy_block(tree, name, cached, source)
    changed = tree.replace(path, new_block)
    again = Tree(changed)
    anchor = again.block_path(block, step)[: spot + 1]
    result = again.replace(anchor, seq(copy, anchor[-1]))
    return allocate(result, cached), name


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


