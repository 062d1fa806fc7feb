"""Reduces the number of dimensions: removes those of size 1, and merges neighbouring dimensions that every access
traverses together.

Row-major memory does not change by this, so buffers of a Program may take other shapes as long as all accesses agree. A
pointwise group of any rank becomes one loop, a 1×1 convolution has one loop over its pixels, and kernels that differ
only in how a shape is written become the same kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.expr.nodes import Const, Expr, Var, const, free_vars, mul, transform, walk
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    For,
    Load,
    Program,
    Stmt,
    Store,
    map_stmt_exprs,
    stmt_children,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
    with_stmt_children,
)

Pair = tuple[str, int]


def collapse(program: Program) -> Program:
    """See the module. Programs with stores outside blocks, or with opaque blocks, stay as they are."""
    blocks = [s for s in walk_stmts(program.body) if isinstance(s, Block)]
    if not blocks or _outside(program.body) or any(b.reads is not None or b.writes is not None for b in blocks):
        return program
    program = _drop_units(_simplify_sizes(program) if program.dims else program)
    return _join(program)


def _simplify_sizes(program: Program) -> Program:
    """Sizes written alike that are the same, such as `n - 1 + 1` of a window of one and `n`: they are compared as they
    are written."""
    known = {v.name: Range(0, None) for v in program.dims}
    found: dict[Expr, Expr] = {}

    def size(e: Expr) -> Expr:
        if isinstance(e, (Const, Var)):
            return e
        if e not in found:
            found[e] = simplify(e, known)
        return found[e]

    def loop(s: Stmt) -> Stmt | None:
        if isinstance(s, For):
            return replace(s, extent=size(s.extent))
        if isinstance(s, Block):
            return replace(s, iters=tuple(replace(i, extent=size(i.extent)) for i in s.iters))
        return None

    shapes = {name: tuple(map(size, b.shape)) for name, b in _buffers(program).items()}
    index = {name: [[k] for k in range(len(shape))] for name, shape in shapes.items()}
    program = _rebuffer(program, shapes, index)
    return replace(program, body=transform_stmts(program.body, loop))


def _outside(stmt: Stmt) -> bool:
    if isinstance(stmt, Block):
        return False
    if isinstance(stmt, (Store, AtomicUpdate)) or any(isinstance(n, Load) for e in stmt_exprs(stmt) for n in walk(e)):
        return True
    return any(_outside(c) for c in stmt_children(stmt))


def _rebuffer(program: Program, shape: Mapping[str, tuple[Expr, ...]], index: Mapping[str, list[list[int]]]) -> Program:
    """Every buffer with its new shape; `index` lists, per new dimension, the old dimensions that it joins (the last
    one's index is kept)."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, shape=shape[b.name]) if b.name in shape else b

    def indices(b: Buffer, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(old[run[-1]] for run in index[b.name]) if b.name in shape else old

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer.name in shape:
            return Load(buffer(node.buffer), indices(node.buffer, node.indices), node.predicate)
        return None

    def rule(s: Stmt) -> Stmt | None:
        s = map_stmt_exprs(s, lambda e: transform(e, load))
        if isinstance(s, (Store, AtomicUpdate)) and s.buffer.name in shape:
            return replace(s, indices=indices(s.buffer, s.indices), buffer=buffer(s.buffer))
        if isinstance(s, Allocate):
            return replace(s, buffer=buffer(s.buffer))
        return s

    return replace(
        program,
        inputs=tuple(map(buffer, program.inputs)),
        outputs=tuple(map(buffer, program.outputs)),
        body=transform_stmts(program.body, rule),
    )


def _buffers(program: Program) -> dict[str, Buffer]:
    found = {b.name: b for b in program.params}
    for s in walk_stmts(program.body):
        if hasattr(s, "buffer"):
            found.setdefault(s.buffer.name, s.buffer)
    return found


def _drop_units(program: Program) -> Program:
    shape: dict[str, tuple[Expr, ...]] = {}
    index: dict[str, list[list[int]]] = {}
    for name, b in _buffers(program).items():
        kept = [k for k, d in enumerate(b.shape) if not (isinstance(d, Const) and d.value == 1)]
        if len(kept) == len(b.shape) or not b.shape:
            continue
        kept = kept or [len(b.shape) - 1]
        shape[name] = tuple(b.shape[k] for k in kept)
        index[name] = [[k] for k in kept]
    return _rebuffer(program, shape, index) if shape else program


def _accesses(block: Block) -> Iterator[Load | Store]:
    for s in walk_stmts(block):
        if isinstance(s, Store):
            yield s
        for e in stmt_exprs(s):
            yield from (n for n in walk(e) if isinstance(n, Load))


def _loose(block: Block) -> set[str]:
    """Variables that formulas of the block use other than as a whole index of an access."""
    found: set[str] = set()

    def visit(e: Expr) -> None:
        if isinstance(e, Var):
            found.add(e.name)
            return
        children = e.children()
        if isinstance(e, Load):
            children = tuple(c for c in children if not isinstance(c, Var))
        for c in children:
            visit(c)

    for s in walk_stmts(block):
        if isinstance(s, Block):
            visit(s.predicate)
            continue
        exprs = stmt_exprs(s)
        if isinstance(s, Store):
            exprs = tuple(e for k, e in enumerate(exprs) if k >= len(s.indices) or not isinstance(e, Var))
        for e in exprs:
            visit(e)
    return found


def _keep_apart(block: Block, x: Load | Store | AtomicUpdate, dims: set[Pair], iters: set[Pair]) -> None:
    """Takes from `dims` and `iters` the pairs that an access of the block does not go through together."""
    where = {i.var.name: k for k, i in enumerate(block.iters)}
    at = {e.name: k for k, e in enumerate(x.indices) if isinstance(e, Var)}
    if len(at) != sum(isinstance(e, Var) for e in x.indices):
        at = {}  # one variable in two places: a diagonal
    for k in range(len(x.indices) - 1):
        a, b = x.indices[k], x.indices[k + 1]
        i = where.get(a.name) if isinstance(a, Var) else None
        together = (
            i is not None
            and isinstance(b, Var)
            and where.get(b.name) == i + 1
            and (block.name, i) in iters
            and block.iters[i + 1].extent == x.buffer.shape[k + 1]
        )
        if not together:
            dims.discard((x.buffer.name, k))
    for i in range(len(block.iters) - 1):
        pair = block.iters[i].var.name, block.iters[i + 1].var.name
        if (block.name, i) not in iters or not any(free_vars(e).keys() & set(pair) for e in x.indices):
            continue
        a_at, b_at = at.get(pair[0]), at.get(pair[1])
        if a_at is None or b_at != a_at + 1 or (x.buffer.name, a_at) not in dims:
            iters.discard((block.name, i))


def _join(program: Program) -> Program:
    blocks = {s.name: s for s in walk_stmts(program.body) if isinstance(s, Block)}
    buffers = _buffers(program)
    nests = _nests(program.body)
    dims: set[Pair] = {(n, k) for n, b in buffers.items() for k in range(len(b.shape) - 1)}
    iters: set[Pair] = set()
    for name, block in blocks.items():
        loose = _loose(block)
        loops = nests.get(name)
        if loops is None:
            continue
        for k in range(len(block.iters) - 1):
            outer, inner = block.iters[k], block.iters[k + 1]
            apart = outer.kind != inner.kind or outer.kind == "scan" or {outer.var.name, inner.var.name} & loose
            if not apart and loops[k] is not None and loops[k + 1] is not None:
                iters.add((name, k))
    accesses = {name: list(_accesses(block)) for name, block in blocks.items()}
    changed = True
    while changed:
        before = len(dims), len(iters)
        for name, block in blocks.items():
            for x in accesses[name]:
                _keep_apart(block, x, dims, iters)
        changed = before != (len(dims), len(iters))
    if not iters:
        return program
    shape: dict[str, tuple[Expr, ...]] = {}
    index: dict[str, list[list[int]]] = {}
    for name, buffer in buffers.items():
        runs = _runs(len(buffer.shape), {k for n, k in dims if n == name})
        if len(runs) < len(buffer.shape):
            shape[name] = tuple(_product([buffer.shape[k] for k in run]) for run in runs)
            index[name] = runs
    program = _rebuffer(program, shape, index)
    return replace(program, body=_join_loops(program.body, iters))


def _product(extents: list[Expr]) -> Expr:
    total: Expr = const(1)
    for e in extents:
        total = mul(total, e)
    return total


def _runs(count: int, joined: set[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for k in range(count):
        if k and k - 1 in joined:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def _nests(stmt: Stmt, around: tuple[For, ...] = ()) -> dict[str, list[For | None]]:
    """Per block, the loop that each iterator is bound to as it is (None if to something else), if the loops are a
    perfect nest in that order."""
    if isinstance(stmt, Block):
        loops = {f.var.name: f for f in around}
        bound = [loops.get(b.name) if isinstance(b, Var) else None for b in stmt.bindings]
        order = [f.var.name for f in around]
        plain = [b for b in bound if b is not None]
        if [f.var.name for f in plain] != order[len(order) - len(plain) :]:
            return {}
        return {stmt.name: bound}
    found: dict[str, list[For | None]] = {}
    for c in stmt_children(stmt):
        found.update(_nests(c, (*around, stmt) if isinstance(stmt, For) else around))
    return found


def _join_loops(stmt: Stmt, iters: set[Pair]) -> Stmt:
    """Joins the loops of joined iterators; the last of a run keeps its name and takes the product as extent."""
    inner = stmt
    loops: list[For] = []
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, Block):
        children = stmt_children(stmt)
        return with_stmt_children(stmt, tuple(_join_loops(c, iters) for c in children)) if children else stmt
    block = inner
    runs = _runs(len(block.iters), {k for n, k in iters if n == block.name})
    if len(runs) == len(block.iters):
        return stmt
    gone: set[str] = set()
    extent: dict[str, Expr] = {}
    new_iters: list[BlockIter] = []
    bindings: list[Expr] = []
    for run in runs:
        last = block.iters[run[-1]]
        total = _product([block.iters[k].extent for k in run])
        new_iters.append(replace(last, extent=total))
        bindings.append(block.bindings[run[-1]])
        if len(run) > 1:
            names = [b.name for k in run if isinstance(b := block.bindings[k], Var)]
            gone.update(names[:-1])
            extent[names[-1]] = total
    nest: Stmt = replace(block, iters=tuple(new_iters), bindings=tuple(bindings))
    for f in reversed(loops):
        if f.var.name not in gone:
            nest = replace(f, body=nest, extent=extent.get(f.var.name, f.extent))
    return nest
