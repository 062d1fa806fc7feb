"""butterfly: computes a reduction in levels that combine pairs."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import BUILDERS, Expr, Var, bitxor, const, free_vars, substitute
from weft.loop.nodes import (
    Block,
    BlockIter,
    Buffer,
    For,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    seq,
    stmt_exprs,
    substitute_stmt,
)
from weft.scheduling.primitives.cache_read import allocate
from weft.scheduling.primitives.rfactor import identity_of, update_of
from weft.scheduling.region import accesses, loops_under
from weft.scheduling.rewrite import domain, own_nest
from weft.scheduling.tree import Tree, nest


def butterfly(program: Program, block: str, loop: str) -> tuple[Program, list[str]]:
    """`block` combines the iterations of reduction loop `loop` two at a time: on each level, every iteration combines
    its value with that of the iteration whose number differs in one bit, the highest bit first. Returns the names of
    the levels' blocks.

        for k in 4 { block S(rk: reduce 4 = k) init { s[0] = 0.0f32 } { s[0] = s[0] + p[rk] } }
        → butterfly("S", "k") → ["S_2", "S_1"]
        allocate S_2: float32[1, 4]  allocate S_1: float32[1, 4]
        for k_1 in 4 { block S_2(l: 4 = k_1) { S_2[0, l] = p[l] + p[l ^ 2] } }
        for k_2 in 4 { block S_1(m: 4 = k_2) { S_1[0, m] = S_2[0, m] + S_2[0, m ^ 1] } }
        block S { s[0] = S_1[0, 0] }

    At the end each iteration has the whole result. If the iterations are threads of a warp and the values are in
    registers, threads exchange them by shuffles. The loop's extent is a power of two, and it is the only reduction loop
    of the block.
    """
    step = "butterfly"
    tree = Tree(program)
    path, b, f = tree.block_path(block, step), tree.block(block, step), tree.loop(loop, step)
    store, operation, value = update_of(tree, b, step)
    n = int_const(f.extent) or 0
    if n < 2 or n & (n - 1):
        raise tree.error(
            step, f"the extent {f.extent} of '{loop}' is no power of two", (loop,), "split it by a power of two"
        )
    loops = [s for s in path[own_nest(path) : -1] if isinstance(s, For)]
    mine = _alone(tree, b, f, loops, step)
    rest = [(i, x) for i, x in zip(b.iters, b.bindings) if i is not mine and i.kind != "reduce"]
    ones: dict[str, Expr] = {i.var.name: x for i, x in zip(b.iters, b.bindings) if i is not mine and i.kind == "reduce"}
    assert isinstance(b.init, Store)
    top = own_nest(path)
    if not all(x.fills(loops_under(path[top])) for x in accesses(path[top], store.buffer.name) if x.write):
        raise tree.error(step, f"the nest of '{block}' stores scattered elements of '{store.buffer.name}'", (block,))
    value, place = substitute(value, ones), tuple(substitute(i, ones) for i in store.indices)

    def held(source: Buffer | None, other: Expr) -> Expr:
        """What an iteration has: a term of the block, or the result of a level."""
        return substitute(value, {mine.var.name: other}) if source is None else Load(source, (*place, other))

    def level(to: Buffer, result: Expr) -> Stmt:
        """A nest like the block's own, whose every iteration stores a result."""
        fresh = {s.var.name: Var(tree.fresh(s.var.name), dt.int64) for s in loops}
        iters = {i.var.name: Var(tree.fresh(i.var.name), dt.int64) for i in (*(i for i, _ in rest), mine)}
        new = Block(
            to.name,
            (*(replace(i, var=iters[i.var.name]) for i, _ in rest), BlockIter(iters[mine.var.name], f.extent)),
            (*(substitute(x, fresh) for _, x in rest), fresh[loop]),
            substitute_stmt(Store(to, (*place, mine.var), result), iters),
            predicate=substitute(b.predicate, {**ones, **iters, **fresh}),
            annotations=b.annotations,
        )
        return nest([replace(s, var=fresh[s.var.name], annotations=()) for s in loops], new)

    levels: list[Stmt] = []
    buffers: list[Buffer] = []
    while n > 1:
        n //= 2
        source = buffers[-1] if buffers else None
        buffers.append(Buffer(tree.fresh(f"{block}_{n}"), (*store.buffer.shape, f.extent), store.buffer.dtype))
        levels.append(
            level(buffers[-1], BUILDERS[operation](held(source, mine.var), held(source, bitxor(mine.var, const(n)))))
        )
    result = held(buffers[-1], const(0))
    if b.init.value != identity_of(operation, value.dtype, b.init.value):
        result = BUILDERS[operation](b.init.value, result)
    body, asked = Store(store.buffer, place, result), substitute(b.predicate, ones)
    used = {v for e in (*stmt_exprs(body), asked) for v in free_vars(e)}
    kept = [(i, x) for i, x in rest if i.var.name in used]
    last = replace(
        b, iters=tuple(i for i, _ in kept), bindings=tuple(x for _, x in kept), predicate=asked, body=body, init=None
    )
    program = tree.replace(path[: top + 1], seq(*levels, nest([s for s in loops if s is not f], last)))
    for buffer in buffers:
        program = allocate(program, buffer)
    return program, [x.name for x in buffers]


def _alone(tree: Tree, block: Block, loop: For, loops: list[For], step: str) -> BlockIter:
    """The iterator of `loop`, the only one of `loops` that the block reduces."""
    name, at = block.name, loop.var.name
    pairs, around = list(zip(block.iters, block.bindings)), domain(tree.block_path(name, step))
    reduced = [(i, x) for i, x in pairs if i.kind == "reduce" and free_vars(x).keys() & around.keys()]
    if not any(s is loop for s in loops) or [x for _, x in reduced] != [loop.var]:
        why = f"'{name}' reduces {', '.join(str(x) for _, x in reduced) or 'nothing'}, not '{at}' alone"
        raise tree.error(step, why, (name, at), "rfactor first")
    ((mine, _),) = reduced
    others = [x for i, x in pairs if i is not mine and i.kind != "reduce"]
    if free_vars(block.predicate).keys() & {at, mine.var.name} or any(at in free_vars(x) for x in others):
        raise tree.error(
            step,
            f"a condition or another iterator of '{name}' depends on '{at}'",
            (name, at),
            "rfactor takes conditions into the value",
        )
    return mine
