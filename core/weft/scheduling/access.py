"""Analysis of blocks for schedule rules: the iterators along which an access moves, contiguous axes, the amount of
work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.expr.affine import affine
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Add, And, Call, Cast, Const, Expr, Max, Mul, Var, free_vars, has, substitute, walk
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import Block, For, If, Load, Program, Stmt, Store, int_const, stmt_children, stmt_exprs, walk_stmts

if TYPE_CHECKING:
    from weft.scheduling.schedule import Schedule

UNKNOWN_EXTENT = 256
"""What a symbolic extent is taken for where a schedule must guess."""


TYPICAL_INPUT, TYPICAL_LAYER = 224, 56
"""What a symbol counts as where costs are compared: in a graph, whose symbols are sizes of its inputs, and in a kernel,
whose symbols are sizes of a layer."""


def typical(size: Expr | int, symbol: int = TYPICAL_INPUT) -> int:
    """A size with each of its symbols taken for `symbol`; at least 1."""
    return size if isinstance(size, int) else max(1, int(evaluate(size, dict.fromkeys(free_vars(size), symbol))))


def loads(block: Block) -> Iterator[Load]:
    """Every load of the block's body, reads of the element it writes included."""
    for s in walk_stmts(block.body):
        for e in stmt_exprs(s):
            yield from (n for n in walk(e) if isinstance(n, Load))


def stores(block: Block) -> Iterator[Store]:
    """The stores of a block's body, in order."""
    for s in walk_stmts(block.body):
        if isinstance(s, Store):
            yield s


def target(block: Block) -> Store:
    """The block's (first) store."""
    return next(stores(block))


def is_reduction(block: Block) -> bool:
    """Whether a block has a reduction iterator."""
    return any(i.kind == "reduce" for i in block.iters)


def is_contraction(block: Block) -> bool:
    """Whether the block adds up products of two different loads (perhaps converted)."""
    if not is_reduction(block) or len(list(stores(block))) != 1:
        return False
    store = target(block)
    value = store.value
    if (
        not isinstance(value, Add)
        or not isinstance(value.a, Load)
        or value.a.buffer.name != store.buffer.name
        or not isinstance(value.b, Mul)
    ):
        return False

    def operand(e: Expr) -> bool:
        return isinstance(e.value if isinstance(e, Cast) else e, Load)

    return operand(value.b.a) and operand(value.b.b)


def is_maximum(block: Block) -> bool:
    """Whether the block finds greatest elements."""
    if not is_reduction(block) or len(list(stores(block))) != 1:
        return False
    store = target(block)
    value = store.value
    return isinstance(value, Max) and isinstance(value.a, Load) and value.a.buffer.name == store.buffer.name


def strides(access: Load | Store) -> list[Expr]:
    """Row-major strides of the accessed buffer, in elements."""
    result: list[Expr] = []
    if not access.buffer.shape:
        return []
    stride: Expr = Const(1, access.buffer.shape[0].dtype)
    for d in reversed(access.buffer.shape):
        result.insert(0, stride)
        stride = stride * d
    return result


def stride_of(access: Load | Store, var: str) -> int | None:
    """Elements that the access moves when iterator `var` steps by one: a number if it is constant and known, else
    None."""
    total: int = 0
    for index, stride in zip(access.indices, strides(access)):
        coefficient = _coefficient(index, var)
        if coefficient is None:
            return None
        if coefficient:
            s = int_const(stride)
            if s is None:
                return None
            total += coefficient * s
    return total


def _coefficient(e: Expr, var: str) -> int | None:
    """d e / d var if e is linear in var with a constant coefficient; 0 if var is absent; None otherwise."""
    if var not in free_vars(e):
        return 0
    form = affine(e, [var])
    if form is None:
        return None
    return int_const(form.coefficients.get(var, Const(0, e.dtype)))


@dataclass(frozen=True)
class LoopView:
    """A block in terms of its loops: accesses as formulas of the loop variables.

    `kinds`: for each loop, the kind of the iterator that it binds."""

    loops: list[str]
    extents: dict[str, int | None]
    kinds: dict[str, str]
    store: Load
    loads: list[Load]
    conditions: list[set[str]]  # loops that each condition of the body depends on

    @classmethod
    def of(cls, s: Schedule, name: str) -> LoopView:
        block = s.block(name)
        loops = s.loops(name)
        values = {i.var.name: b for i, b in zip(block.iters, block.bindings)}
        kinds = {v: i.kind for i, b in zip(block.iters, block.bindings) for v in free_vars(b)}
        extents = {x: int_const(s.loop(x).extent) for x in loops}
        ranges = {x: Range(0, None if n is None else n - 1) for x, n in extents.items()}
        facts = known_of(block)

        def seen(x: Load | Store) -> Load:
            return Load(x.buffer, tuple(simplify(substitute(i, values), ranges, facts) for i in x.indices))

        parts = [c for s in walk_stmts(block.body) if isinstance(s, If) for c in conjuncts(s.cond)]
        conditions = [set(free_vars(substitute(c, values))) for c in parts]
        return cls(loops, extents, dict(kinds), seen(target(block)), [seen(x) for x in loads(block)], conditions)

    def extent(self, loop: str) -> int:
        """Iterations, guessed where symbolic."""
        n = self.extents[loop]
        return UNKNOWN_EXTENT if n is None else n

    def stride(self, x: Load, loop: str) -> int | None:
        return stride_of(x, loop)


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    return [*conjuncts(condition.a), *conjuncts(condition.b)] if isinstance(condition, And) else [condition]


def known_of(block: Block) -> tuple[Expr, ...]:
    """What holds of the loops wherever the block runs: the parts of its predicate that read no memory."""
    return tuple(c for c in conjuncts(block.predicate) if not has(c, Load))


def extent(loop: For) -> int:
    """The loop's iteration count, guessed where symbolic."""
    n = int_const(loop.extent)
    return UNKNOWN_EXTENT if n is None else n


def buffer_bytes(x: Load | Store) -> int:
    """Bytes of the whole buffer that is accessed, symbolic extents guessed."""
    total = x.buffer.dtype.bytes
    for d in x.buffer.shape:
        n = int_const(d)
        total *= UNKNOWN_EXTENT if n is None else n
    return total


def block_work(block: Block, steps: bool = True) -> int:
    """Steps of the block over its whole domain, symbolic extents guessed; without `steps`, those within one step of a
    scan."""
    total = 1
    for i in block.iters:
        if i.kind == "scan" and not steps:
            continue
        n = int_const(i.extent)
        total *= UNKNOWN_EXTENT if n is None else n
    return total


def formula_cost(block: Block) -> int:
    """A rough count of the operations of one step of the block; calls to functions weigh most."""
    cost = 0
    for s in walk_stmts(block.body):
        for e in stmt_exprs(s):
            cost += sum(12 if isinstance(n, Call) else 1 for n in walk(e))
    return cost


INSTRUCTIONS = frozenset({"abs", "ceil", "copysign", "floor", "fma", "round", "sqrt", "trunc"})
"""Functions that are an instruction or two on most machines."""


def calls_formula(block: Block) -> bool:
    """Whether the block calls a function that becomes a long formula, such as exp."""
    return any(
        isinstance(n, Call) and n.name not in INSTRUCTIONS
        for s in walk_stmts(block.body)
        for e in stmt_exprs(s)
        for n in walk(e)
    )


def blocks_of(program: Program) -> list[Block]:
    """The blocks of a program in order."""
    return [s for s in walk_stmts(program.body) if isinstance(s, Block)]


def has_sequential_loop(program: Program) -> bool:
    """Whether some block lies in the loop of a scan, or the program has statements outside blocks."""
    return any(i.kind == "scan" for b in blocks_of(program) for i in b.iters)


def outside_blocks(stmt: Stmt) -> bool:
    """Whether a store or branch stands outside every block (a loop program written by hand)."""
    if isinstance(stmt, Block):
        return False
    if isinstance(stmt, Store) or type(stmt).__name__ in ("While", "If", "AtomicUpdate", "Evaluate", "Let"):
        return True
    return any(outside_blocks(c) for c in stmt_children(stmt))


def is_plain(e: Expr, var: Var) -> bool:
    """Whether a formula is the variable `var` alone."""
    return isinstance(e, Var) and e.name == var.name
