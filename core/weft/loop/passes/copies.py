"""Copies of statements with new names of loops, lets, blocks and buffers, since names are unique in a Program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.expr.nodes import BUILDERS, Binary, Broadcast, Const, Expr, Var, not_
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    Buffer,
    Evaluate,
    For,
    If,
    Let,
    Load,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    map_stmt_exprs,
    seq,
    stmt_children,
    walk_stmts,
    with_stmt_children,
)


class Names:
    """The names that a Program uses; `fresh` returns an unused one."""

    def __init__(self, used: Iterable[str]) -> None:
        self.used = set(used)
        self._next: dict[str, int] = {}

    @staticmethod
    def of(program: Program) -> Names:
        names = Names([b.name for b in program.params] + [d.name for d in program.dims])
        for s in walk_stmts(program.body):
            match s:
                case For() | Let():
                    names.used.add(s.var.name)
                case Allocate():
                    names.used.add(s.buffer.name)
                case Block():
                    names.used.add(s.name)
                    names.used.update(i.var.name for i in s.iters)
        return names

    def fresh(self, base: str) -> str:
        """`base` itself if it is free, else base_1, base_2, …"""
        if base not in self.used:
            self.used.add(base)
            return base
        number = self._next.get(base, 1)
        while f"{base}_{number}" in self.used:
            number += 1
        self._next[base] = number + 1
        name = f"{base}_{number}"
        self.used.add(name)
        return name


def rewrite(expr: Expr, values: dict[str, Expr], buffers: dict[str, Buffer]) -> Expr:
    """`expr` with variables and buffers replaced by name."""
    if not values and not buffers:
        return expr

    # As `transform`, in one function: unrolling spends most of its time here.
    def change(e: Expr) -> Expr:
        if type(e) is Const:
            return e
        if type(e) is Var:
            return values.get(e.name, e)
        if isinstance(e, Binary):
            a, b = change(e.a), change(e.b)
            return e if a is e.a and b is e.b else BUILDERS[type(e)](a, b)
        children = e.children()
        new = [change(c) for c in children]
        for n, c in zip(new, children):
            if n is not c:
                e = e.with_children(tuple(new))
                break
        if isinstance(e, Load):
            if buffers and e.buffer.name in buffers:
                e = Load(buffers[e.buffer.name], e.indices, e.predicate)
            return e if e.predicate is None else plain_load(e)
        return e

    return change(expr)


def plain_load(node: Expr) -> Expr:
    """A Load whose predicate is constant, without it; other nodes as they are."""
    if isinstance(node, Load) and node.predicate is not None:
        predicate = node.predicate.value if isinstance(node.predicate, Broadcast) else node.predicate
        if isinstance(predicate, Const):
            if predicate.value:
                return Load(node.buffer, node.indices)
            zero = Const(0, node.dtype.scalar)
            return zero if node.dtype.lanes == 1 else Broadcast(zero, node.dtype.lanes)
    return node


def copy_stmt(
    stmt: Stmt, values: dict[str, Expr], names: Names | None, buffers: dict[str, Buffer] | None = None
) -> Stmt:
    """`stmt` with variables replaced by `values`; with `names`, every binder inside is renamed to a fresh name.

    Unlike `substitute_stmt` it keeps the buffer of an allocation and of its uses the same when its shape changes.
    """
    buffers = buffers or {}

    def change(expr: Expr) -> Expr:
        return rewrite(expr, values, buffers)

    match stmt:
        case Seq():
            return seq(*(copy_stmt(s, values, names, buffers) for s in stmt.stmts))
        case For() | Let():
            head = map_stmt_exprs(stmt, change)
            assert isinstance(head, (For, Let))
            inner = values
            if names is not None:
                var = Var(names.fresh(stmt.var.name), stmt.var.dtype)
                inner, head = {**values, stmt.var.name: var}, replace(head, var=var)
            return replace(head, body=copy_stmt(stmt.body, inner, names, buffers))
        case Allocate():
            shape = tuple(change(d) for d in stmt.buffer.shape)
            name = names.fresh(stmt.buffer.name) if names is not None else stmt.buffer.name
            if name == stmt.buffer.name and shape == stmt.buffer.shape:
                return Allocate(stmt.buffer, copy_stmt(stmt.body, values, names, buffers))
            moved = replace(stmt.buffer, name=name, shape=shape)
            return Allocate(moved, copy_stmt(stmt.body, values, names, {**buffers, stmt.buffer.name: moved}))
        case Store() | AtomicUpdate():
            result = map_stmt_exprs(stmt, change)
            assert isinstance(result, (Store, AtomicUpdate))
            return replace(result, buffer=buffers[result.buffer.name]) if result.buffer.name in buffers else result
        case Block():
            return _copy_block(stmt, values, names, buffers)
        case Evaluate():
            result = map_stmt_exprs(stmt, change)
            assert isinstance(result, Evaluate)
            return replace(result, within=_moved(result.within, buffers))
        case _:
            head = map_stmt_exprs(stmt, change)
            children = stmt_children(stmt)
            return (
                with_stmt_children(head, tuple(copy_stmt(c, values, names, buffers) for c in children))
                if children
                else head
            )


def _copy_block(block: Block, values: dict[str, Expr], names: Names | None, buffers: dict[str, Buffer]) -> Block:
    """`copy_stmt` of a block."""
    result = map_stmt_exprs(block, lambda e: rewrite(e, values, buffers))
    assert isinstance(result, Block)
    inner = values
    if names is not None:
        iters = tuple(replace(i, var=Var(names.fresh(i.var.name), i.var.dtype)) for i in result.iters)
        inner = {**values, **{old.var.name: new.var for old, new in zip(result.iters, iters)}}
        # The predicate and the regions may speak of the iterators.
        own = {i.var.name: inner[i.var.name] for i in block.iters}
        result = map_stmt_exprs(
            replace(result, iters=iters, name=names.fresh(block.name)), lambda e: rewrite(e, own, {})
        )
        assert isinstance(result, Block)
    init = None if block.init is None else copy_stmt(block.init, inner, names, buffers)
    return replace(
        result,
        init=init,
        body=copy_stmt(block.body, inner, names, buffers),
        reads=None if result.reads is None else _moved(result.reads, buffers),
        writes=None if result.writes is None else _moved(result.writes, buffers),
    )


def _moved(regions: tuple[Region, ...], buffers: dict[str, Buffer]) -> tuple[Region, ...]:
    """Regions of the buffers that others stand for."""
    return tuple(replace(r, buffer=buffers.get(r.buffer.name, r.buffer)) for r in regions)


EMPTY = Seq(())
"""The statement without effect."""


def is_empty(stmt: Stmt | None) -> bool:
    """Whether there is no statement, or a `Seq` of none."""
    return stmt is None or (isinstance(stmt, Seq) and not stmt.stmts)


def if_stmt(cond: Expr, then: Stmt, orelse: Stmt | None = None) -> Stmt:
    """If, decided when the condition is constant, nothing when there is nothing in it."""
    if isinstance(cond, Const):
        return then if cond.value else (EMPTY if orelse is None else orelse)
    if is_empty(orelse):
        orelse = None
    if is_empty(then):
        return EMPTY if orelse is None else If(not_(cond), orelse)
    return If(cond, then, orelse)
