"""pad_loop: whole tiles in place of a tail."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Const, Var, const, free_vars, lt, select, walk
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify
from weft.loop.nodes import Block, For, Load, Program, Stmt, Store, int_const, replace_buffers, stmt_exprs, transform_stmts, walk_stmts
from weft.scheduling.dependence import writers
from weft.scheduling.tree import Tree, blocks_in


def pad_loop(program: Program, block: str, loop: str, multiple: int) -> tuple[Program, None]:
    """`block` computes more than is wanted of an intermediate buffer, which grows: as many steps of `loop` as make a multiple.

        allocate a: float32[13] { for i in 13 { block A(ai: 13 = i) { a[ai] = x[ai] } } … }
        → pad_loop("A", "i", 8)
        allocate a: float32[16] { for i in 16 { block A(ai: 16 = i) { a[ai] = select(ai < 13, x[ai], 0.0f32) } } … }

    Nobody reads what is new, so anything may stand there; a sum needs no condition where its operands have elements enough. A block that is no
    reduction writes zeros beyond where its operands end. Split the loop afterwards: its tiles are whole.
    """
    step = "pad_loop"
    tree = Tree(program)
    path, b, f = tree.block_path(block, step), tree.block(block, step), tree.loop(loop, step)
    size = int_const(f.extent)
    if size is None:
        raise tree.error(step, f"the extent {f.extent} of '{loop}' is not constant", (loop,))
    if not any(s is f for s in path) or [x.name for x in blocks_in(f.body)] != [block]:
        raise tree.error(step, f"'{loop}' is not a loop of '{block}' alone", (block, loop))
    longer = -(-size // multiple) * multiple
    if longer == size:
        return program, None
    users = [(i, x) for i, x in zip(b.iters, b.bindings) if loop in free_vars(x)]
    if len(users) != 1 or not isinstance(users[0][1], Var) or users[0][0].kind != "spatial" or int_const(users[0][0].extent) != size:
        raise tree.error(step, f"'{loop}' does not run over one spatial iterator of '{block}'", (block, loop), "pad_loop before split")
    var = users[0][0].var
    stores = [s for s in walk_stmts(b.body) if isinstance(s, Store)]
    buffer = stores[0].buffer if len(stores) == 1 else None
    if buffer is None or buffer.name not in tree.allocate_paths or writers(tree, [buffer.name]) != [block]:
        raise tree.error(step, f"'{block}' does not alone write one intermediate buffer", (block,), "cache_write first")
    places = [k for k, e in enumerate(stores[0].indices) if var.name in free_vars(e)]
    if len(places) != 1 or stores[0].indices[places[0]] != var or int_const(buffer.shape[places[0]]) != size:
        raise tree.error(step, f"'{var.name}' is no index of '{buffer.name}' by itself", (block,))
    if b.reads is not None or b.writes is not None:
        raise tree.error(step, f"'{block}' states what it reads and writes", (block,))
    grown = replace(buffer, shape=tuple(const(longer) if k == places[0] else d for k, d in enumerate(buffer.shape)))
    ranges = {i.var.name: Range(0, None if (n := int_const(i.extent)) is None else n - 1) for i in b.iters} | {var.name: Range(0, longer - 1)}
    loads = [e for s in walk_stmts(b.body) for x in stmt_exprs(s) for e in walk(x) if isinstance(e, Load) and e.buffer.name != buffer.name]
    short = next((e for e in loads if not _inside(e, var.name, ranges)), None)
    if short is not None and any(i.kind != "spatial" for i in b.iters):
        why = f"'{short.buffer.name}' has no elements for so many steps of '{loop}'"
        raise tree.error(step, why, (block,), "cache_read it and pad the copy")

    def zeros(s: Stmt) -> Stmt | None:
        return replace(s, value=select(lt(var, size), s.value, Const(0, s.value.dtype))) if isinstance(s, Store) and short is not None else None

    iters = tuple(replace(i, extent=const(longer)) if i.var == var else i for i in b.iters)
    new: Stmt = replace(b, iters=iters, body=transform_stmts(b.body, zeros))

    def rebuild(s: Stmt) -> Stmt | None:
        if isinstance(s, Block) and s.name == block:
            return new
        return replace(s, extent=const(longer)) if isinstance(s, For) and s.var.name == loop else None

    return program.with_body(replace_buffers(transform_stmts(program.body, rebuild), {buffer.name: grown})), None


def _inside(load: Load, name: str, ranges: dict[str, Range]) -> bool:
    """Whether the indices that depend on iterator `name` stay in the buffer."""
    for index, size in zip(load.indices, load.buffer.shape):
        if name in free_vars(index):
            known, n = range_of(index, ranges), int_const(simplify(size))
            if n is None or known.lo is None or known.lo < 0 or known.hi is None or known.hi >= n:
                return False
    return True

