"""compute_inline: replaces loads of a producer's result by its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.expr.nodes import Const, Expr, Var, substitute, transform, walk
from weft.loop.nodes import Block, Evaluate, IntrinsicCall, Let, Load, Program, Seq, Stmt, Store, map_exprs, walk_stmts
from weft.scheduling.dependence import out_of_scope, readers, reads, writers
from weft.scheduling.region import accesses, loops_under, union_box
from weft.scheduling.rewrite import clean_extents, domain, outgrows, own_predicate, private_depth, tidy
from weft.scheduling.tree import Path, Tree, rebuild_all


def single_store(tree: Tree, block: Block, step: str, hint: str | None = None) -> tuple[Store, Expr]:
    """The one store of a block that reduces nothing, and its value with lets put in."""
    if block.init is not None or any(i.kind == "reduce" for i in block.iters):
        raise tree.error(step, f"'{block.name}' is a reduction", (block.name,), hint)
    if any(i.kind == "scan" for i in block.iters):
        raise tree.error(step, f"'{block.name}' is a step of a scan", (block.name,))
    body: Stmt = block.body
    values: dict[str, Expr] = {}
    while isinstance(body, Let):
        values[body.var.name] = substitute(body.value, values)
        body = body.body
    if not isinstance(body, Store) or body.predicate is not None:
        raise tree.error(step, f"the body of '{block.name}' is more than one store", (block.name,), hint)
    return body, substitute(body.value, values)


def whole_index(store: Store, block: Block) -> dict[int, str] | None:
    """Dimension → iterator, if every iterator indexes one dimension by itself and the other dimensions are zero."""
    iters = [i.var for i in block.iters]
    found = {k: i.name for k, i in enumerate(store.indices) if isinstance(i, Var) and i in iters}
    rest = [i for k, i in enumerate(store.indices) if k not in found]
    if sorted(found.values()) != sorted(v.name for v in iters) or any(
        not isinstance(i, Const) or i.value != 0 for i in rest
    ):
        return None
    return found


def compute_inline(program: Program, block: str) -> tuple[Program, None]:
    """Puts the formula of `block` wherever its result is loaded; block and buffer disappear.

    block A(ai: n = i) { a[ai] = x[ai]*2.0f32 }      block B(bi: n = j) { y[bi] = a[bi] + 1.0f32 }
    → compute_inline("A")
    block B(bi: n = j) { y[bi] = x[bi]*2.0f32 + 1.0f32 }
    """
    step = "compute_inline"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    store, value = single_store(tree, b, step, "compute_at keeps the block and moves it")
    name = store.buffer.name
    if tree.is_output(name):
        raise tree.error(
            step, f"'{block}' writes the output '{name}'", (block,), "reverse_compute_inline puts it into its producer"
        )
    dims = whole_index(store, b)
    if dims is None:
        raise tree.error(
            step,
            f"'{block}' does not store at its own iterators, so the index of a load does not determine the iteration",
            (block,),
            "compute_at",
        )
    if own_predicate(b):
        raise tree.error(step, f"'{block}' runs only where {b.predicate}", (block,))
    users = _users(tree, b, name, value, step)
    for u in users:
        _check_there(tree, b, value, name, dims, u, step)

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer.name == name:
            return substitute(value, {v: node.indices[k] for k, v in dims.items()})
        return None

    new: list[tuple[Path, Stmt | None]] = [
        (path, None),
        *((tree.block_path(u, step), _inlined(tree.block(u, step), load)) for u in users),
    ]
    return program.with_body(rebuild_all(program.body, new, tree.allocate_paths.get(name, ())) or Seq(())), None


def _users(tree: Tree, block: Block, buffer: str, value: Expr, step: str) -> list[str]:
    """The blocks that read `buffer`, once it is known that they may compute `value` instead."""
    name = block.name
    if (
        writers(tree, [buffer]) != [name]
        or buffer in reads(block)
        or any(isinstance(n, Load) and n.buffer.name == buffer for n in walk(value))
    ):
        why = f"'{buffer}' has other writers, or '{name}' updates it in place"
        raise tree.error(step, why, writers(tree, [buffer]))
    users = readers(tree, [buffer], but=name)
    if not users:
        raise tree.error(step, f"nothing reads '{buffer}'", (name,))
    order = [x.name for x in tree.blocks]
    last = max(order.index(u) for u in users)
    late = [w for w in writers(tree, reads(block), but=name) if order.index(name) < order.index(w) <= last]
    if late:
        raise tree.error(step, f"'{late[0]}' changes what '{name}' reads before it would be used", (name, late[0]))
    if any(r.buffer.name == buffer for u in users for r in tree.block(u, step).reads or ()):
        raise tree.error(step, f"an opaque block reads '{buffer}' as a whole", users, "compute_at")
    return users


def _check_there(
    tree: Tree, block: Block, value: Expr, buffer: str, dims: dict[int, str], user: str, step: str
) -> None:
    """Checks that what `value` reads is there, and the same, where `user` reads `buffer`."""
    path, there = tree.block_path(block.name, step), tree.block_path(user, step)
    lost = out_of_scope(tree, replace(block, body=Evaluate(IntrinsicCall("value", (value,))), init=None), there)
    if lost is not None:
        raise tree.error(
            step,
            f"buffer '{lost}' of '{block.name}' does not exist at '{user}'",
            (block.name, user, lost),
            "compute_inline before compact_buffer",
        )
    depth = private_depth(path, block)
    if depth is not None:
        moving = {**loops_under(Seq(()), domain(there[:depth])), **domain(there[depth:])}
        read = union_box([a.box(moving) for a in accesses(tree.block(user, step), buffer) if not a.write])
        if outgrows(path, block, {v: read[k] for k, v in dims.items()}) is not None:
            why = (
                f"'{user}' may read what '{block.name}' stored in another iteration, when its own buffers held"
                " something else"
            )
            raise tree.error(step, why, (block.name, user), "compute_inline before compact_buffer")


def _inlined(block: Block, load: Callable[[Expr], Expr | None]) -> Block:
    """The block with the loads that `load` knows replaced."""
    extents = clean_extents(block)
    # What a reduction accumulates into is named alike where it is read and stored, also where an iterator has one
    # value only.
    stored = [Load(x.buffer, x.indices) for x in walk_stmts(block.body) if isinstance(x, Store)]
    kept = {tidy(x, extents): x for x in stored}

    def own(node: Expr) -> Expr | None:
        return kept.get(node) if isinstance(node, Load) else None

    def change(e: Expr) -> Expr:
        new = transform(e, load)
        return e if new is e else transform(tidy(new, extents), own)

    init = None if block.init is None else map_exprs(block.init, change)
    return replace(block, body=map_exprs(block.body, change), init=init)
