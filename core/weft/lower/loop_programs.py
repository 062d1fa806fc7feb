"""Groups whose operator is a loop program, and what every Program of a group has: stored shapes and symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft import dtypes as dt
from weft.errors import LoweringError
from weft.expr.nodes import Const, Expr, Var, free_vars, transform, walk, wrap
from weft.graph.layout import Layout
from weft.graph.nodes import Graph
from weft.loop.nodes import (
    Allocate,
    Block,
    Buffer,
    For,
    Let,
    Load,
    Program,
    Stmt,
    buffer,
    map_exprs,
    stmt_exprs,
    walk_stmts,
)
from weft.lower.expressions import choose_algorithm
from weft.lower.nests import Names
from weft.tensor.language import Dim


def loop_program(body: Graph, name: str, algorithms: Mapping[str, str]) -> Program:
    """The Program of a group of one operator whose algorithm is loops.

    Raises:
        LoweringError: an operand is neither an input of the group nor a number.
    """
    node = body.nodes[0]
    chosen = choose_algorithm(node, algorithms)
    names = Names()
    by_value = {
        id(v): buffer(names.fresh(f"in{k}"), stored_shape(v.shape, v.tensor.layout), v.dtype)
        for k, v in enumerate(body.inputs)
    }
    outputs = [
        buffer(names.fresh(f"out{k}"), stored_shape(v.shape, v.tensor.layout), v.dtype)
        for k, v in enumerate(node.outputs)
    ]
    operands: list[Buffer | None] = []
    numbers: dict[str, Const] = {}
    for v in node.inputs:
        if v is not None and id(v) not in by_value:
            if v.constant is None or v.constant.size != 1:
                raise LoweringError(
                    f"value '{v.name}' is neither an input nor computed in the group",
                    hint="constants of a group are its inputs",
                )
            by_value[id(v)] = buffer(names.fresh("const"), v.shape, v.dtype, "local")
            numbers[by_value[id(v)].name] = Const(v.constant.reshape(-1)[0].item(), v.dtype)
        operands.append(None if v is None else by_value[id(v)])
    stmt: Stmt = chosen.function(node.op, operands, outputs)
    if numbers:  # what stands before the loops would be a launch of its own on a grid

        def number(e: Expr) -> Expr | None:
            return numbers.get(e.buffer.name) if isinstance(e, Load) else None

        stmt = map_exprs(stmt, lambda e: transform(e, number))
    produced = {id(v): b for v, b in zip(node.outputs, outputs)}
    wanted = [produced[id(v)] for v in body.outputs]
    for b in outputs:
        if b not in wanted:
            stmt = Allocate(b, stmt)
    inputs = tuple(by_value[id(v)] for v in body.inputs)
    return Program(name, inputs, tuple(wanted), symbols_of(stmt, (*inputs, *wanted)), stmt)


def stored_shape(shape: Sequence[Dim], layout: Layout | None) -> tuple[Expr, ...]:
    """The shape in memory, as formulas."""
    dims = shape if layout is None else layout.stored_shape(shape)
    return tuple(wrap(d, dt.int64) for d in dims)


def symbols_of(body: Stmt, params: Sequence[Buffer]) -> tuple[Var, ...]:
    """The symbols that a body and its parameters use but do not define."""
    bound: set[str] = set()
    used: dict[str, Var] = {}
    for p in params:
        for d in p.shape:
            used.update(free_vars(d))
    for s in walk_stmts(body):
        if isinstance(s, (For, Let)):
            bound.add(s.var.name)
        elif isinstance(s, Block):
            bound.update(i.var.name for i in s.iters)
        for e in stmt_exprs(s):
            used.update(free_vars(e))
            for node in walk(e):
                if isinstance(node, Load):
                    for d in node.buffer.shape:
                        used.update(free_vars(d))
    return tuple(used[n] for n in sorted(used) if n not in bound)
