"""pad_tile: computes a whole tile, with zeros where the block's condition is false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Add, Cast, Const, Expr, Mul, Select, Var, all_of, const, free_vars, select, substitute, walk
from weft.loop.nodes import Allocate, Block, BlockIter, For, Load, Program, Store
from weft.scheduling.region import Access, accesses, at_least_zero, block_accesses, poly
from weft.scheduling.rewrite import clean_extents, domain, own_nest, tidy
from weft.scheduling.tree import Path, Tree, conjuncts


def pad_tile(program: Program, block: str) -> tuple[Program, None]:
    """Moves the condition of a sum of products into its factors, which are zero where it is false. Start values are
    stored, and results of other blocks copied, for the whole tile.

        allocate c: float32[16] in register { for j in 16 { for k in 8 {
          block C(bj: 16 = j, rk: reduce 9 = k) where j < n and k < m { c[bj] = c[bj] + a[rk]*b[rk, bj] } } } … }
        → pad_tile("C")
        … block C(bj: 16 = j, rk: reduce 9 = k) { c[bj] = c[bj] + select(k < m, a[rk], 0.0f32)*select(j < n and k < m,
            b[rk, bj], 0.0f32) } …

    The buffer is allocated in the program and has space for the whole tile. Nothing reads its excess elements, and only
    zeros are added to the others (zero times infinity or NaN is NaN, as in any product with padding). If the factors
    are staged, the innermost loop has no condition. Each iterator of the block must be one loop (see specialize).
    """
    step = "pad_tile"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    if not isinstance(b.body, Store) or b.init is not None or b.writes is not None or b.body.predicate is not None:
        raise tree.error(
            step, f"the body of '{block}' is not one store", (block,), "decompose_reduction and specialize first"
        )
    store = b.body
    if store.buffer.name not in tree.allocate_paths:
        raise tree.error(
            step,
            f"'{store.buffer.name}' is a parameter, of which '{block}' may store what it is asked for only",
            (block,),
            "stage_result first",
        )
    home = tree.allocate_paths[store.buffer.name]
    _room(tree, step, path, home, b)
    value = store.value
    if isinstance(value, Const):
        if any(isinstance(s, For) for s in path[len(home) : own_nest(path)]):
            why = (
                f"'{block}' shares a loop with others that use '{store.buffer.name}': it might start what is computed"
                " already"
            )
            raise tree.error(step, why, (block,))
        return tree.replace(path, replace(b, predicate=const(True))), None
    if _each_once(store, b, domain(path[len(home) :])) and not any(
        isinstance(e, Load) and e.buffer.name == store.buffer.name for e in walk(value)
    ):
        reads = {a.buffer.name for a in block_accesses(b) if not a.write}
        if reads <= tree.allocate_paths.keys() and all(_inside(a, domain(path)) for a in accesses(b) if not a.write):
            return tree.replace(path, replace(b, predicate=const(True))), None
    target = Load(store.buffer, store.indices)
    term = (
        value.b
        if isinstance(value, Add) and value.a == target
        else value.a
        if isinstance(value, Add) and value.b == target
        else None
    )
    if isinstance(term, Select) and isinstance(term.b, Const) and term.b.value == 0:
        within, term = conjuncts(term.cond), term.a
    else:
        within = []
    if not isinstance(term, Mul):
        raise tree.error(step, f"'{block}' is no sum of products: it stores {value}", (block,))
    b, asked = _conditions(tree, b, domain(path), step)
    a, z = _padded((term.a, term.b), [*asked, *within], clean_extents(b))
    new = replace(store, value=tidy(target + a * z, clean_extents(b)))
    return tree.replace(path, replace(b, body=new, predicate=const(True))), None


def _conditions(tree: Tree, block: Block, loops: Mapping[str, Expr], step: str) -> tuple[Block, list[Expr]]:
    """The conditions of a block's predicate over its iterators, of which it may get more."""
    iter_of = {x.name: i.var for i, x in zip(block.iters, block.bindings) if isinstance(x, Var)}
    moving = {v for x in block.bindings for v in free_vars(x)}
    # Loops that tell where the tile ends, and move nothing in it.
    for v in [v for v in loops if v in free_vars(block.predicate) and v not in moving]:
        iter_of[v] = Var(tree.fresh(f"{v}_v"), dt.int64)
        more, bound = BlockIter(iter_of[v], loops[v]), Var(v, dt.int64)
        block = replace(block, iters=(*block.iters, more), bindings=(*block.bindings, bound))
    asked = [substitute(c, iter_of) for c in conjuncts(block.predicate)]
    if any(free_vars(c).keys() & loops.keys() for c in asked):
        raise tree.error(
            step,
            f"an iterator of '{block.name}' is not one loop of its own",
            (block.name,),
            f"specialize('{block.name}') first",
        )
    return block, asked


def _padded(factors: tuple[Expr, Expr], asked: Sequence[Expr], extents: Mapping[str, Expr]) -> tuple[Expr, Expr]:
    """The factors, each zero where a condition that it takes does not hold."""
    kept = [any(isinstance(x, Load) and x.buffer.scope != "global" for x in walk(e)) for e in factors]
    held: list[list[Expr]] = [[], []]
    for c in asked:
        asks = free_vars(c).keys() & extents.keys()
        varies = [len(asks & free_vars(e).keys()) for e in factors]
        # Any factor does; one that varies with the condition anyway does not grow. A tile of another block may hold
        # anything there, NaN as well.
        takes = [k for k in range(2) if varies[k] == len(asks) or (kept[k] and varies[k])]
        for k in takes or [varies.index(max(varies))]:
            held[k].append(c)
    a, b = (_where(all_of(cs), e) if cs else e for cs, e in zip(held, factors))
    return a, b


def _where(condition: Expr, e: Expr) -> Expr:
    """`e` where the condition holds, else zero; conversions stay outside, so that what is staged is as narrow as it
    was."""
    if isinstance(e, Cast) and not e.value.dtype.is_bool:
        return Cast(_where(condition, e.value), e.dtype)
    return select(condition, e, const(0, e.dtype))


def _each_once(store: Store, block: Block, loops: Mapping[str, Expr]) -> bool:
    """Whether different iterations of the loops store different elements, as each is an index by itself."""
    alone = {i.name for i in store.indices if isinstance(i, Var)}
    driven = {i.var.name: free_vars(x).keys() & loops.keys() for i, x in zip(block.iters, block.bindings)}
    whole = len(alone) == sum(isinstance(i, Var) for i in store.indices) and all(
        isinstance(i, (Var, Const)) for i in store.indices
    )
    return whole and all(len(found) == (name in alone) for name, found in driven.items())


def _room(tree: Tree, step: str, path: Path, home: Path, block: Block) -> None:
    """Checks that the buffer has room for all iterations."""
    allocation = home[-1]
    assert isinstance(allocation, Allocate) and isinstance(block.body, Store)
    moving = domain(path[len(home) :])
    (use,) = [a for a in accesses(block, block.body.buffer.name) if a.write]
    if not _inside(use, moving):
        why = f"'{allocation.buffer.name}' may have no room for all of '{block.name}'"
        raise tree.error(step, why, (block.name, allocation.buffer.name), "stage_result makes a buffer of the loops")


def _inside(use: Access, moving: Mapping[str, Expr]) -> bool:
    """Whether an access stays in its buffer while the loops run, whatever a predicate says."""
    ends = zip(use.box(moving), use.buffer.shape)
    return all(
        e is not None and at_least_zero(e[0]) and at_least_zero((poly(extent) - e[1]).plus(-1)) for e, extent in ends
    )
