"""compute_inline: replaces loads of a producer's result by its formula."""

from __future__ import annotations

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
    if (
        writers(tree, [name]) != [block]
        or name in reads(b)
        or any(isinstance(n, Load) and n.buffer.name == name for n in walk(value))
    ):
        raise tree.error(step, f"'{name}' has other writers, or '{block}' updates it in place", writers(tree, [name]))
    users = readers(tree, [name], but=block)
    if not users:
        raise tree.error(step, f"nothing reads '{name}'", (block,))
    order = [x.name for x in tree.blocks]
    last = max(order.index(u) for u in users)
    late = [w for w in writers(tree, reads(b), but=block) if order.index(block) < order.index(w) <= last]
    if late:
        raise tree.error(step, f"'{late[0]}' changes what '{block}' reads before it would be used", (block, late[0]))
    if any(r.buffer.name == name for u in users for r in tree.block(u, step).reads or ()):
        raise tree.error(step, f"an opaque block reads '{name}' as a whole", users, "compute_at")
    depth = private_depth(path, b)
    for u in users:
        there, user = tree.block_path(u, step), tree.block(u, step)
        lost = out_of_scope(tree, replace(b, body=Evaluate(IntrinsicCall("value", (value,))), init=None), there)
        if lost is not None:
            raise tree.error(
                step,
                f"buffer '{lost}' of '{block}' does not exist at '{u}'",
                (block, u, lost),
                "compute_inline before compact_buffer",
            )
        if depth is not None:
            moving = {**loops_under(Seq(()), domain(there[:depth])), **domain(there[depth:])}
            read = union_box([a.box(moving) for a in accesses(user, name) if not a.write])
            if outgrows(path, b, {v: read[k] for k, v in dims.items()}) is not None:
                why = (
                    f"'{u}' may read what '{block}' stored in another iteration, when its own buffers held something"
                    " else"
                )
                raise tree.error(step, why, (block, u), "compute_inline before compact_buffer")

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer.name == name:
            return substitute(value, {v: node.indices[k] for k, v in dims.items()})
        return None

    def inlined(s: Block) -> Block:
        extents = clean_extents(s)
        # What a reduction accumulates into is named alike where it is read and stored, also where an iterator has one
        # value only.
        stored = [Load(x.buffer, x.indices) for x in walk_stmts(s.body) if isinstance(x, Store)]
        kept = {tidy(x, extents): x for x in stored}

        def own(node: Expr) -> Expr | None:
            return kept.get(node) if isinstance(node, Load) else None

        def change(e: Expr) -> Expr:
            new = transform(e, load)
            return e if new is e else transform(tidy(new, extents), own)

        return replace(s, body=map_exprs(s.body, change), init=None if s.init is None else map_exprs(s.init, change))

    new: list[tuple[Path, Stmt | None]] = [
        (path, None),
        *((tree.block_path(u, step), inlined(tree.block(u, step))) for u in users),
    ]
    return program.with_body(rebuild_all(program.body, new, tree.allocate_paths.get(name, ())) or Seq(())), None
