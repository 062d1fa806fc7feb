"""Gives every buffer one dimension, in row-major order."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Add, Const, Expr, Mul, Sub, add, mul, sub, transform
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Buffer,
    Evaluate,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    map_stmt_exprs,
    transform_stmts,
)


def scale(index: Expr, factor: Expr) -> Expr:
    """index * factor, multiplied out over sums if `factor` is constant, so that constant parts of an index meet and add
    up."""
    if isinstance(factor, Const):
        if isinstance(index, Add):
            return add(scale(index.a, factor), scale(index.b, factor))
        if isinstance(index, Sub) and isinstance(index.b, Const):
            return add(scale(index.a, factor), mul(Const(-index.b.value, index.dtype), factor))
        if isinstance(index, Sub):
            return sub(scale(index.a, factor), scale(index.b, factor))
        if isinstance(index, Mul) and isinstance(index.b, Const):
            return mul(index.a, mul(index.b, factor))
    return mul(index, factor)


def join(terms: Expr, more: Expr) -> Expr:
    """terms + more, with the summands of `more` appended one by one and constants kept last."""
    if isinstance(more, Add):
        return join(join(terms, more.a), more.b)
    if isinstance(terms, Add) and isinstance(terms.b, Const) and not isinstance(more, Const):
        return add(add(terms.a, more), terms.b)
    if isinstance(terms, Const) and not isinstance(more, Const):
        return add(more, terms)
    return add(terms, more)


def flatten_buffers(program: Program) -> Program:
    """Buffers of rank other than 1, parameters included, get one dimension; indices become sums of index * stride."""
    flat: dict[Buffer, tuple[Buffer, tuple[Expr, ...]] | None] = {}

    def target(buffer: Buffer) -> tuple[Buffer, tuple[Expr, ...]] | None:
        if buffer not in flat:
            if len(buffer.shape) == 1:
                flat[buffer] = None
            else:
                size: Expr = int64(1)
                strides: list[Expr] = []
                for dim in reversed(buffer.shape):
                    strides.append(size)
                    size = mul(dim, size)
                flat[buffer] = replace(buffer, shape=(size,)), tuple(reversed(strides))
        return flat[buffer]

    def offset(indices: tuple[Expr, ...], strides: tuple[Expr, ...]) -> tuple[Expr]:
        total: Expr = int64(0)
        for index, stride in zip(indices, strides):
            total = join(total, scale(index, stride))
        return (total,)

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and (found := target(node.buffer)) is not None:
            return Load(found[0], offset(node.indices, found[1]), node.predicate)
        return None

    def rule(stmt: Stmt) -> Stmt | None:
        stmt = map_stmt_exprs(stmt, lambda e: transform(e, load))
        if isinstance(stmt, (Store, AtomicUpdate)) and (found := target(stmt.buffer)) is not None:
            return replace(stmt, buffer=found[0], indices=offset(stmt.indices, found[1]))
        if isinstance(stmt, Allocate) and (found := target(stmt.buffer)) is not None:
            return replace(stmt, buffer=found[0])
        return (
            Evaluate(stmt.call) if isinstance(stmt, Evaluate) and stmt.within else stmt
        )  # whoever asked where instructions stay has been told

    def param(buffer: Buffer) -> Buffer:
        found = target(buffer)
        return buffer if found is None else found[0]

    return replace(
        program,
        inputs=tuple(param(b) for b in program.inputs),
        outputs=tuple(param(b) for b in program.outputs),
        body=transform_stmts(program.body, rule),
    )
