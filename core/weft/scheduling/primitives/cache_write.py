"""cache_write: computes a result in another memory and copies it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.expr.nodes import free_vars
from weft.loop.nodes import Allocate, Block, For, Program, seq
from weft.scheduling.dependence import readers, writers, written_buffers
from weft.scheduling.primitives.cache_read import allocate, dims_in, permuted
from weft.scheduling.rewrite import copy_block
from weft.scheduling.tree import Tree, blocks_in, map_blocks


def cache_write(program: Program, block: str, scope: str, order: Sequence[int] | None = None) -> tuple[Program, str]:
    """`block` computes into a new buffer in memory `scope`, and a new block after it copies that out. Returns the copy
    block's name.

    `order`: the result's dimensions in the order in which the new buffer has them; None: the result's own.

        block C(…) init { y[bi] = 0.0f32 } { y[bi] = y[bi] + x[bi, rk] }
        → cache_write("C", "register") → "C_copy"
        allocate C_register: float32[n] in register
        block C(…) init { C_register[bi] = 0.0f32 } { C_register[bi] = C_register[bi] + x[bi, rk] }
        for C_copy_i0 in n { block C_copy(v0: n = C_copy_i0) { y[v0] = C_register[v0] } }

    Afterwards, reverse_compute_at moves the copy and compact_buffer reduces the new buffer.
    """
    step = "cache_write"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    buffers = written_buffers(b)
    if len(buffers) != 1:
        raise tree.error(step, f"'{block}' writes {len(buffers)} buffers", (block,))
    (old,) = buffers
    several = writers(tree, [old.name])
    if several != [block]:
        raise tree.error(
            step, f"blocks {several} all write '{old.name}'", several, "cache_write before decompose_reduction"
        )
    if b.init is None and block in readers(tree, [old.name]):
        raise tree.error(step, f"'{block}' updates '{old.name}' in place: the new buffer would start empty", (block,))
    dims = dims_in(order, old, tree, step, block)
    new = replace(old, name=tree.fresh(f"{block}_{scope}"), scope=scope, shape=tuple(old.shape[d] for d in dims))
    name = tree.fresh(f"{block}_copy")
    # Inside a scan the copy belongs to the step: later blocks of the step read what it writes.
    steps = {v for i, x in zip(b.iters, b.bindings) if i.kind == "scan" for v in free_vars(x)}
    spot = next((k for k, s in enumerate(path) if isinstance(s, For) and s.var.name not in steps), len(path) - 1)
    if any(isinstance(x, Allocate) and x.buffer.name == old.name for x in path[spot:]):
        raise tree.error(
            step,
            f"'{old.name}' is allocated under the loops that the copy comes after",
            (block, old.name),
            "cache_write before compact_buffer",
        )
    here = {x.name for x in blocks_in(path[spot])}
    users = {r for r in readers(tree, [old.name], but=block) if r in here}
    moved = {block} | users  # readers under the same loop come before the copy: they take the new buffer

    def change(x: Block) -> Block:
        return permuted(x, old.name, new, dims) if x.name in moved else x

    inside = map_blocks(path[spot], change)
    return (
        allocate(
            tree.replace(
                path[: spot + 1],
                seq(inside, copy_block(tree, name, old, new, [dims.index(d) for d in range(len(dims))])),
            ),
            new,
        ),
        name,
    )
