"""rfactor: computes a reduction in two levels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import (
    BUILDERS,
    Add,
    And,
    Binary,
    Const,
    Expr,
    Max,
    Min,
    Mul,
    Or,
    Var,
    all_of,
    free_vars,
    select,
    substitute,
    walk,
)
from weft.loop.nodes import Block, BlockIter, Buffer, For, If, Load, Program, Store, seq
from weft.scheduling.dependence import writers
from weft.scheduling.primitives.cache_read import allocate
from weft.scheduling.region import accesses, interval, loops_under
from weft.scheduling.rewrite import domain, own_nest, renest, tidy
from weft.scheduling.tree import Tree, conjuncts, rebuild, rename_iters
from weft.tensor.language import highest, lowest

IDENTITIES: dict[type[Expr], Callable[[DType], Const]] = {
    Add: lambda d: Const(0, d), Mul: lambda d: Const(1, d), Min: highest, Max: lowest, And: lambda d: Const(True, d),
    Or: lambda d: Const(False, d),
}  # fmt: skip


def identity_of(operation: type[Expr], dtype: DType, start: Expr | None) -> Const:
    """What changes nothing in a reduction from `start` (None: unknown). Only a sum from 0 is never -0, and may take 0
    for it."""
    found = IDENTITIES[operation](dtype)
    return Const(-0.0, dtype) if operation is Add and dtype.is_float and start != found else found


def start_of(block: Block) -> Expr | None:
    return block.init.value if isinstance(block.init, Store) else None


def rfactor(program: Program, block: str, loop: str, last: bool = False) -> tuple[Program, str]:
    """A new block computes one partial result per iteration of reduction loop `loop`; `block` then combines them.
    Returns the new block's name.

        for k_0 in 8 { for k_1 in 4 { block S(rk: reduce 32 = k_0*4 + k_1) init { s[0] = 0.0f32 } { s[0] = s[0] + x[rk]
            } } }
        → rfactor("S", "k_1") → "S_rf"
        for k_0 in 8 { for k_1 in 4 { block S_rf(f: 4 = k_1, r: reduce 8 = k_0) init { S_rf[f, 0] = 0.0f32 } { S_rf[f,
            0] = S_rf[f, 0] + x[r*4 + f] } } }
        for k_1_1 in 4 { block S(rf: reduce 4 = k_1_1) init { s[0] = 0.0f32 } { s[0] = s[0] + S_rf[rf, 0] } }

    Afterwards the loop is spatial and can be reordered and vectorized or parallel. It is the first dimension of the
    partial results, or with `last` the last one, for lanes.
    """
    step = "rfactor"
    tree = Tree(program)
    path = tree.block_path(block, step)
    b, f = tree.block(block, step), tree.loop(loop, step)
    store, operation, value = update_of(tree, b, step)
    if writers(tree, [store.buffer.name]) != [block]:
        raise tree.error(
            step,
            f"'{store.buffer.name}' has other writers",
            writers(tree, [store.buffer.name]),
            "rfactor before decompose_reduction",
        )
    top = own_nest(path)
    reduced = _reduction_loops(tree, b, f, step)
    if not all(a.fills(loops_under(path[top])) for a in accesses(path[top], store.buffer.name) if a.write):
        raise tree.error(step, f"the nest of '{block}' stores scattered elements of '{store.buffer.name}'", (block,))

    name = tree.fresh(f"{block}_rf")
    partial = Buffer(
        name, (*store.buffer.shape, f.extent) if last else (f.extent, *store.buffer.shape), store.buffer.dtype
    )
    part = _part(tree, b, f, (store, operation, value), partial, dict.fromkeys(reduced), last, step)
    combine = _combine(tree, b, f, (store, operation), partial, last)
    renamed = rename_iters(tree, combine)
    inside = domain(path[top:-1])
    boxes = {
        n.var.name: ends
        for n, x in zip(renamed.iters, renamed.bindings)
        if n.kind != "reduce" and (ends := interval(x, inside)) is not None
    }
    final = renest(tree, renamed, boxes, domain(path[:top]), ())
    nest = rebuild(path[top:], part)
    assert nest is not None
    return allocate(tree.replace(path[: top + 1], seq(nest, final)), partial), name


def _reduction_loops(tree: Tree, block: Block, loop: For, step: str) -> list[str]:
    """The loops of a reduction, once it is known that they are its own, and `loop` is one of them."""
    path, name = tree.block_path(block.name, step), loop.var.name
    loops, outer = domain(path), domain(path[: own_nest(path)])
    pairs = list(zip(block.iters, block.bindings))
    reduced = [v for i, x in pairs if i.kind == "reduce" for v in free_vars(x) if v in loops]
    spatial = {v for i, x in pairs if i.kind != "reduce" for v in free_vars(x) if v in loops}
    if not any(s is loop for s in path) or name not in reduced:
        raise tree.error(step, f"loop '{name}' is no reduction loop of '{block.name}'", (block.name, name))
    both = spatial & set(reduced)
    if both:
        raise tree.error(step, f"loop '{min(both)}' drives spatial and reduce iterators at once", (min(both),))
    shared = [v for v in reduced if v in outer]
    if shared:
        raise tree.error(step, f"the reduction loop '{shared[0]}' is shared with other blocks", (shared[0], block.name))
    return reduced


def _part(
    tree: Tree,
    block: Block,
    loop: For,
    update: tuple[Store, type[Binary], Expr],
    partial: Buffer,
    reduced: Iterable[str],
    last: bool,
    step: str,
) -> Block:
    """The block that computes the partial results. `update`: what `update_of` found; `reduced`: the loops of the
    reduction, each once."""
    (store, operation, value), loops = update, domain(tree.block_path(block.name, step))
    pairs = list(zip(block.iters, block.bindings))
    new_iters = {v: Var(tree.fresh(f"{v}_v"), dt.int64) for v in reduced}
    mine = Var(tree.fresh(f"{loop.var.name}_f"), dt.int64)
    new_iters[loop.var.name] = mine
    values = {i.var.name: substitute(x, new_iters) for i, x in pairs if i.kind == "reduce"}
    keep = [(i, x) for i, x in pairs if i.kind != "reduce"]
    iters = [*keep, (BlockIter(mine, loop.extent), loop.var)]
    iters += [(BlockIter(v, loops[n], "reduce"), Var(n, dt.int64)) for n, v in new_iters.items() if v is not mine]
    if len(iters) == len(keep) + 1:  # nothing is left to reduce, but an init needs a reduction
        one = Var(tree.fresh(f"{loop.var.name}_one"), dt.int64)
        iters.append((BlockIter(one, Const(1, dt.int64), "reduce"), Const(0, dt.int64)))
    # A step that the condition holds back must still start the partial result, so the condition moves into the value.
    held = [c for c in conjuncts(block.predicate) if free_vars(c).keys() & new_iters.keys()]
    by_iter: dict[str, Expr] = {v: i.var for i, x in keep for v in free_vars(x) if x == Var(v, dt.int64)}
    spatial = {v for _, x in keep for v in free_vars(x) if v in loops}
    if any(free_vars(c).keys() & spatial - by_iter.keys() for c in held):
        raise tree.error(step, f"a condition of '{block.name}' mixes spatial and reduce loops", (block.name,))
    identity = identity_of(operation, value.dtype, start_of(block))
    guard = all_of(substitute(c, {**by_iter, **new_iters}) for c in held)
    extents = {i.var.name: i.extent for i, _ in iters}
    term = tidy(select(guard, substitute(value, values), identity), extents)
    target = (*store.indices, mine) if last else (mine, *store.indices)
    return Block(
        partial.name,
        tuple(i for i, _ in iters),
        tuple(x for _, x in iters),
        Store(partial, target, BUILDERS[operation](Load(partial, target), term)),
        Store(partial, target, identity),
        predicate=all_of(c for c in conjuncts(block.predicate) if c not in held),
        annotations=block.annotations,
    )


def _combine(
    tree: Tree, block: Block, loop: For, update: tuple[Store, type[Binary]], partial: Buffer, last: bool
) -> Block:
    """The old block, over the partial results."""
    store, operation = update
    index = Var(tree.fresh(f"{loop.var.name}_r"), dt.int64)
    # What only terms needed (where they lie in a part of a buffer) would become a loop for nothing.
    told = {v for i in store.indices for v in free_vars(i)}
    keep = [
        (i, x)
        for i, x in zip(block.iters, block.bindings)
        if i.kind != "reduce" and (i.kind != "spatial" or i.var.name in told)
    ]
    whole = (*store.indices, index) if last else (index, *store.indices)
    value = BUILDERS[operation](Load(store.buffer, store.indices), Load(partial, whole))
    return replace(
        block,
        iters=(*(i for i, _ in keep), BlockIter(index, loop.extent, "reduce")),
        bindings=(*(x for _, x in keep), loop.var),
        body=Store(store.buffer, store.indices, value),
        predicate=Const(True, dt.bool_),
    )


def update_of(tree: Tree, block: Block, step: str) -> tuple[Store, type[Binary], Expr]:
    """The store of a reduction, its operation, and the value of one step: where a condition around the body holds, else
    what changes nothing."""
    body, asked = block.body, []
    while isinstance(body, If) and body.orelse is None:
        asked.append(body.cond)
        body = body.then
    if block.init is None or not isinstance(body, Store) or body.predicate is not None:
        raise tree.error(
            step,
            f"'{block.name}' is no reduction by one operation with an init",
            (block.name,),
            f"{step} before decompose_reduction",
        )
    found = combination(body)
    if found is not None:
        operation, value = found
        return (
            body,
            operation,
            select(all_of(asked), value, identity_of(operation, value.dtype, start_of(block))) if asked else value,
        )
    names = ", ".join(c.__name__.lower() for c in IDENTITIES)
    raise tree.error(
        step, f"'{block.name}' does not combine its result and a new value by one of {names}", (block.name,)
    )


def combination(store: Store) -> tuple[type[Binary], Expr] | None:
    """The operation by which a store combines what its element holds with a value that does not depend on its buffer,
    and that value; None if it does not."""
    target = Load(store.buffer, store.indices)
    if isinstance(store.value, tuple(IDENTITIES)):
        assert isinstance(store.value, Binary)
        for mine, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if mine == target and not any(
                isinstance(n, Load) and n.buffer.name == store.buffer.name for n in walk(other)
            ):
                return type(store.value), other
    return None
