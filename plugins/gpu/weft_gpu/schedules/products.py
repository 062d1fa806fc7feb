"""Recognition of a sum of products: its two operands, and the loops that move one of them, both, or the sum."""

from __future__ import annotations

from dataclasses import dataclass

from weft.expr.nodes import Add, Cast, Expr, FloorDiv, FloorMod, Mul, Select, Var, free_vars, substitute, walk
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import Block, If, Load, Program, Stmt, Store, int_const
from weft.scheduling import access
from weft.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Product:
    """Loops of a sum of products by what they move.

    `columns` move the `right` factor alone, the one that is contiguous where the output is, `rows` the left one,
    `batch` both (or neither), `sums` are reduced. Each in the order of the nest. `right` is 0 or 1: which factor of the
    formula it is.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sums: tuple[str, ...]
    right: int


def product_store(block: Block) -> Store | None:
    """The store of a sum of products (perhaps of one term), under a condition of its own or none; None if the block is
    something else."""
    body: Stmt = block.body
    while isinstance(body, If) and body.orelse is None:
        body = body.then
    if not isinstance(body, Store) or body.predicate is not None:
        return None
    return None if _term(body) is None else body


def _term(store: Store) -> Mul | None:
    value, target = store.value, Load(store.buffer, store.indices)
    if not isinstance(value, Add) or target not in (value.a, value.b):
        return None
    term = value.b if value.a == target else value.a
    term = term.a if isinstance(term, Select) else term
    if not isinstance(term, Mul) or any(isinstance(e, Load) and e.buffer.name == store.buffer.name for e in walk(term)):
        return None
    return term


def factors(block: Block) -> tuple[Expr, Expr]:
    """The two factors of a sum of products."""
    store = product_store(block)
    term = None if store is None else _term(store)
    assert term is not None
    return term.a, term.b


def anchor_of(program: Program) -> Block | None:
    """The one sum of products of a group whose factors both read memory; None if there is none, or several."""
    sums = [b for b in access.blocks_of(program) if access.is_reduction(b) and product_store(b) is not None]
    found = [b for b in sums if all(any(isinstance(e, Load) for e in walk(f)) for f in factors(b))]
    return found[0] if len(found) == 1 else None


def split_groups(s: Schedule, name: str) -> None:
    """Splits loops along which a factor goes by whole blocks of iterations (a convolution's groups): those over blocks
    move both factors, the others one."""
    block, extents = s.block(name), access.LoopView.of(s, name).extents
    loop_of = {
        i.var.name: b.name for i, b in zip(block.iters, block.bindings) if isinstance(b, Var) and i.kind == "spatial"
    }
    sizes: dict[str, int] = {}
    for x in access.loads(block):
        for part in (p for index in x.indices for p in walk(index)):
            if (
                isinstance(part, (FloorDiv, FloorMod))
                and isinstance(part.a, Var)
                and part.a.name in loop_of
                and (c := int_const(part.b)) is not None
            ):
                sizes.setdefault(loop_of[part.a.name], c)
    for loop, c in sizes.items():
        n = extents[loop]
        if n is not None and n > c > 1 and n % c == 0:
            s.split(loop, [None, c])


def find_product(s: Schedule, name: str) -> Product:
    """The loops of a sum of products, by what they move."""
    block, view = s.block(name), access.LoopView.of(s, name)
    values = {i.var.name: b for i, b in zip(block.iters, block.bindings)}
    ranges = {x: Range(0, None if n is None else n - 1) for x, n in view.extents.items()}
    moves = [set(free_vars(simplify(substitute(f, values), ranges))) for f in factors(block)]
    spatial = [x for x in view.loops if view.kinds.get(x) != "reduce"]
    alone = [[x for x in spatial if x in moves[k] and x not in moves[1 - k]] for k in range(2)]
    contiguous = next((x for x in reversed(spatial) if view.stride(view.store, x) == 1 and view.extents[x] != 1), None)
    right = 0 if contiguous in alone[0] else 1 if contiguous in alone[1] else int(len(alone[1]) >= len(alone[0]))
    batch = [x for x in spatial if x not in alone[0] and x not in alone[1]]
    sums = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    return Product(tuple(batch), tuple(alone[1 - right]), tuple(alone[right]), tuple(sums), right)


def narrow(factor: Expr) -> Expr:
    """A factor before its conversions: what is worth keeping in memory."""
    while isinstance(factor, Cast):
        factor = factor.value
    return factor


def contiguous_loop(s: Schedule, name: str, factor: Expr) -> str | None:
    """The loop along which a factor's largest operand lies in memory without gaps, the longest if there are several;
    None if no loop walks it so."""
    block, view = s.block(name), access.LoopView.of(s, name)
    values = {i.var.name: b for i, b in zip(block.iters, block.bindings)}
    reads = [x for x in walk(factor) if isinstance(x, Load)]
    if not reads:
        return None
    largest = max(reads, key=access.buffer_bytes)
    seen = Load(largest.buffer, tuple(substitute(i, values) for i in largest.indices))
    walked = [x for x in view.loops if view.stride(seen, x) == 1 and view.extents[x] != 1]
    return max(walked, key=view.extent, default=None)
