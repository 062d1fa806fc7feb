"""pad_loop: extends a loop to whole tiles."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import (
    BUILDERS,
    Const,
    Expr,
    Lt,
    Select,
    Var,
    const,
    floordiv,
    free_vars,
    lt,
    select,
    transform,
    walk,
)
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Block,
    Buffer,
    For,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    replace_buffers,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
)
from weft.scheduling.dependence import writers
from weft.scheduling.primitives.rfactor import IDENTITIES, combination, identity_of, start_of
from weft.scheduling.region import at_least_zero, poly
from weft.scheduling.rewrite import clean
from weft.scheduling.tree import Tree, blocks_in, conjuncts

STEP = "pad_loop"


def pad_loop(
    program: Program, block: str, loop: str, multiple: int, value: float | None = None
) -> tuple[Program, None]:
    """Rounds the number of iterations of `loop` up to a multiple. Split the loop afterwards: its tiles are whole.

    If the loop runs over a spatial iterator, `block` computes excess elements of an intermediate buffer, which grows:

        allocate a: float32[13] { for i in 13 { block A(ai: 13 = i) { a[ai] = x[ai] } } … }
        → pad_loop("A", "i", 8)
        allocate a: float32[16] { for i in 16 { block A(ai: 16 = i) { a[ai] = select(ai < 13, x[ai], 0.0f32) } } … }

    Nothing reads the excess elements, so they may have any value; a sum needs no condition if its operands have enough
    elements. A block without reduction writes zeros beyond the end of its operands. With a `value`, it writes this
    value to all excess elements.

    If a reduction runs over the loop, the new iterations use the neutral element: 0 of a sum (-0 if it does not start
    from 0), 1 of a product, the least value of a maximum, the greatest of a minimum, true of "and", false of "or".
    If the padding of the operands gives this element, no condition is needed, and the formula still matches an
    instruction. Therefore pad the copies of the operands first:

        for i in 16 { block X(xi: 16 = i) { t[xi] = select(xi < 13, x[xi], 0.0f32) } }      (and so w)
        for k in 13 { block S(rk: reduce 13 = k) { init { s[0] = 0.0f32 } s[0] = s[0] + t[rk]*w[rk] } }
        → pad_loop("S", "k", 8)
        for k in 16 { block S(rk: reduce 16 = k) { init { s[0] = 0.0f32 } s[0] = s[0] + t[rk]*w[rk] } }

    Otherwise the sum becomes s[0] + select(rk < 13, …, 0.0f32).
    """
    tree = Tree(program)
    path, b, f = tree.block_path(block, STEP), tree.block(block, STEP), tree.loop(loop, STEP)
    if not any(s is f for s in path) or [x.name for x in blocks_in(f.body)] != [block]:
        raise tree.error(STEP, f"'{loop}' is not a loop of '{block}' alone", (block, loop))
    if multiple < 1:
        raise tree.error(STEP, f"{multiple} is no multiple to pad to", (loop,), "give 1 or more")
    size = f.extent
    longer = clean(floordiv(size + (multiple - 1), multiple) * multiple, {})
    if poly(longer) == poly(size):
        return program, None
    users = [(i, x) for i, x in zip(b.iters, b.bindings) if loop in free_vars(x)]
    kind = users[0][0].kind if len(users) == 1 else ""
    if kind not in ("spatial", "reduce") or not isinstance(users[0][1], Var) or poly(users[0][0].extent) != poly(size):
        raise tree.error(
            STEP,
            f"'{loop}' does not run over one spatial or reduce iterator of '{block}'",
            (block, loop),
            "pad_loop before split",
        )
    if b.reads is not None or b.writes is not None:
        raise tree.error(
            STEP, f"'{block}' states what it reads and writes", (block,), "pad_loop first, tensorize later"
        )
    var = users[0][0].var
    moved: dict[str, Buffer] = {}
    if kind == "reduce":
        if value is not None:
            raise tree.error(
                STEP, f"'{loop}' is of a reduction, whose new steps change nothing", (block, loop), "leave out value"
            )
        body: Stmt = _longer_sum(tree, b, var, size, longer)
    else:
        body, buffer = _longer_result(tree, b, loop, var, size, longer, value)
        moved[buffer.name] = buffer
    new: Stmt = replace(b, iters=tuple(replace(i, extent=longer) if i.var == var else i for i in b.iters), body=body)

    def rebuild(s: Stmt) -> Stmt | None:
        if isinstance(s, Block) and s.name == block:
            return new
        return replace(s, extent=longer) if isinstance(s, For) and s.var.name == loop else None

    changed = transform_stmts(program.body, rebuild)
    return program.with_body(replace_buffers(changed, moved) if moved else changed), None


def _longer_result(
    tree: Tree, b: Block, loop: str, var: Var, size: Expr, longer: Expr, value: float | None
) -> tuple[Stmt, Buffer]:
    """The body that computes more of its result, and the buffer that it then has."""
    stores = [s for s in walk_stmts(b.body) if isinstance(s, Store)]
    buffer = stores[0].buffer if len(stores) == 1 else None
    if buffer is None or buffer.name not in tree.allocate_paths or writers(tree, [buffer.name]) != [b.name]:
        raise tree.error(
            STEP, f"'{b.name}' does not alone write one intermediate buffer", (b.name,), "cache_write first"
        )
    places = [k for k, e in enumerate(stores[0].indices) if var.name in free_vars(e)]
    if len(places) != 1 or stores[0].indices[places[0]] != var or poly(buffer.shape[places[0]]) != poly(size):
        raise tree.error(STEP, f"'{var.name}' is no index of '{buffer.name}' by itself", (b.name,))
    grown = replace(buffer, shape=tuple(longer if k == places[0] else d for k, d in enumerate(buffer.shape)))
    sizes = {i.var.name: longer if i.var == var else i.extent for i in b.iters}
    ranges = {v: Range(0, None if (n := int_const(simplify(x))) is None else n - 1) for v, x in sizes.items()}
    loads = [
        e
        for s in walk_stmts(b.body)
        for x in stmt_exprs(s)
        for e in walk(x)
        if isinstance(e, Load) and e.buffer.name != buffer.name
    ]
    short = next((e for e in loads if not _inside(e, var, longer, ranges)), None)
    reduces = any(i.kind != "spatial" for i in b.iters)
    if short is not None and reduces:
        why = f"'{short.buffer.name}' has no elements for so many steps of '{loop}'"
        raise tree.error(STEP, why, (b.name,), "cache_read it and pad the copy")
    if value is not None and reduces:
        raise tree.error(
            STEP,
            f"'{b.name}' is a reduction: `value` applies to copies and other results only",
            (b.name,),
            "leave out value",
        )
    if short is None and value is None:
        return b.body, grown

    def filled(s: Stmt) -> Stmt | None:
        return (
            replace(s, value=select(lt(var, size), s.value, Const(value or 0, s.value.dtype)))
            if isinstance(s, Store)
            else None
        )

    return transform_stmts(b.body, filled), grown


def _longer_sum(tree: Tree, b: Block, var: Var, size: Expr, longer: Expr) -> Stmt:
    """The body of a reduction whose steps from `size` on change nothing."""
    found = combination(b.body) if isinstance(b.body, Store) and b.body.predicate is None else None
    if found is None or not isinstance(b.body, Store):
        names = ", ".join(c.__name__.lower() for c in IDENTITIES)
        raise tree.error(STEP, f"'{b.name}' does not combine its result and a new value by one of {names}", (b.name,))
    operation, step = found
    start = start_of(b)
    if b.init is None:
        before = [tree.block(n, STEP).body for n in writers(tree, [b.body.buffer.name], but=b.name)]
        start = before[0].value if len(before) == 1 and isinstance(before[0], Store) else None
    identity = identity_of(operation, step.dtype, start)

    def beyond(e: Expr) -> Expr | None:
        return (
            _beyond(tree, e, var, size, longer)
            if isinstance(e, Load) and any(var.name in free_vars(i) for i in e.indices)
            else None
        )

    if simplify(transform(step, beyond)) == identity:
        return b.body
    return replace(
        b.body, value=BUILDERS[operation](Load(b.body.buffer, b.body.indices), select(lt(var, size), step, identity))
    )


def _beyond(tree: Tree, load: Load, var: Var, size: Expr, longer: Expr) -> Expr | None:
    """The number that stands in a padded buffer wherever `var`, an index of the load, is `size` or more; None if none
    is certain to."""
    at = [d for d, i in enumerate(load.indices) if var.name in free_vars(i)]
    if (
        len(at) != 1
        or load.indices[at[0]] != var
        or load.predicate is not None
        or load.buffer.name not in tree.allocate_paths
    ):
        return None
    if not at_least_zero(poly(load.buffer.shape[at[0]]) - poly(longer)):
        return None
    names = writers(tree, [load.buffer.name])
    writer = tree.block(names[0], STEP) if len(names) == 1 else None
    if (
        writer is None
        or not isinstance(writer.body, Store)
        or writer.init is not None
        or writer.predicate != const(True)
        or writer.body.predicate is not None
    ):
        return None
    # Each iterator of the writer is a loop of its own over a whole dimension: it has stored every element.
    whole = dict(zip(writer.body.indices, load.buffer.shape))
    loops = {s.var: s.extent for s in tree.block_paths[names[0]] if isinstance(s, For)}
    if (
        len(whole) != len(load.buffer.shape)
        or {i.var for i in writer.iters} != whole.keys()
        or len(set(writer.bindings)) != len(writer.bindings)
    ):
        return None
    if any(
        not isinstance(x, Var) or x not in loops or poly(loops[x]) != poly(whole[i.var])
        for i, x in zip(writer.iters, writer.bindings)
    ):
        return None
    mine, filled = writer.body.indices[at[0]], writer.body.value
    # It may have been padded in several dimensions, one after another, each with the same number.
    while isinstance(filled, Select) and isinstance(filled.b, Const):
        if any(isinstance(c, Lt) and c.a == mine and poly(c.b) == poly(size) for c in conjuncts(filled.cond)):
            return filled.b
        if not (isinstance(filled.a, Select) and filled.a.b == filled.b):
            return None
        filled = filled.a
    return None


def _inside(load: Load, var: Var, longer: Expr, ranges: dict[str, Range]) -> bool:
    """Whether the indices that depend on iterator `var`, which makes `longer` steps, stay in the buffer."""
    for index, size in zip(load.indices, load.buffer.shape):
        if var.name in free_vars(index) and not (index == var and poly(size) == poly(longer)):
            known, n = range_of(index, ranges), int_const(simplify(size))
            if n is None or known.lo is None or known.lo < 0 or known.hi is None or known.hi >= n:
                return False
    return True
