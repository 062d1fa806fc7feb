"""Sizes that a group knows as a whole only: `(h + 7)//8` outside is one symbol inside of its kernel.

A detector computes the same convolutions for images of `h`, `(h + 1)//2`, `(h + 3)//4`, … rows. With a symbol for the
whole formula they are one kernel, which is shorter as well: its conditions and indices have no divisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from weft import dtypes as dt
from weft.expr.nodes import Add, Expr, Mul, Sub, Var, free_vars, mul, size_of, wrap
from weft.expr.ranges import Range, range_of
from weft.graph.nodes import Graph, Node, TensorType, Type, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import mentioned_symbols
from weft.tensor.language import as_dim, factors

O = TypeVar("O", bound=Operator)


def whole_sizes(body: Graph) -> tuple[Graph, dict[str, Expr]]:
    """The body of a group with one symbol for each size that it knows as a whole only, and for each of its symbols, in
    order, the formula outside.

    A formula gets a symbol if what it is made of occurs nowhere else in the body, so that no relation of sizes is
    lost. It may be a product. Constants that it is multiplied by stay beside the symbol, since kernels make use of
    them, unless all values of open sizes are stored in blocks: lanes then lie along an axis of known size.
    """
    symbols = mentioned_symbols(body)
    formulas: dict[str, Expr] = {}
    for formula in sorted(dict.fromkeys(_candidates(body, _in_blocks(body))), key=size_of, reverse=True):
        own = free_vars(formula)
        if not own.keys() <= symbols.keys() or range_of(formula, dict.fromkeys(own, Range(0, None))).lo != 0:
            continue
        name = next(n for k in range(len(symbols) + 1) if (n := f"extent{k}") not in symbols)
        changed = _mapped(body, partial(_replaced, formula, Var(name)))
        left = mentioned_symbols(changed)
        if own.keys().isdisjoint(left):
            body, symbols, formulas[name] = changed, left, formula
    return body, {name: formulas.get(name, symbol) for name, symbol in symbols.items()}


def _in_blocks(body: Graph) -> bool:
    """Whether every value of open sizes is stored in blocks of axes of known sizes."""

    def blocks(t: Type) -> bool:
        if not isinstance(t, TensorType) or t.is_static:
            return isinstance(t, TensorType)
        return t.layout is not None and all(isinstance(t.shape[axis], int) for axis, _ in t.layout.blocks(t.rank))

    return all(blocks(v.type) for v in body.values())


def _candidates(body: Graph, multiples: bool) -> Iterator[Expr]:
    """Products of sizes, their factors and terms of sums that are neither symbols nor sums themselves. `multiples`: as
    they are, with the constants that they are multiplied by, as well."""
    stack: list[Expr] = [d for v in body.values() for d in v.shape if isinstance(d, Expr)]
    while stack:
        e = stack.pop()
        if isinstance(e, (Add, Sub)):
            stack += e.children()
        elif isinstance(e, Expr) and not isinstance(e, Var):
            number, symbolic = factors([e])
            if symbolic:
                yield _product(symbolic.elements())
            if multiples and len(symbolic) == 1 and number != 1:
                yield e
            if len(symbolic) > 1 or isinstance(e, Mul):
                stack += symbolic


def _product(parts: Iterable[Expr]) -> Expr:
    result: Expr = wrap(1, dt.int64)
    for part in sorted(parts, key=str):
        result = mul(result, part)
    return result


def _replaced(old: Expr, new: Var, e: Expr) -> Expr:
    """`e` with `new` for `old`, in products too, if it has no constant factor."""
    if e == old:
        return new
    if isinstance(e, Mul) and factors([old])[0] == 1:
        number, symbolic = factors([e])
        _, wanted = factors([old])
        parts = Counter({_replaced(old, new, f): n for f, n in symbolic.items()})
        while wanted <= parts:
            parts = parts - wanted + Counter([new])
        return mul(_product(parts.elements()), number)
    children = e.children()
    changed = tuple(_replaced(old, new, c) for c in children)
    return e if all(a is b for a, b in zip(changed, children)) else e.with_children(changed)


def _mapped(body: Graph, function: Callable[[Expr], Expr]) -> Graph:
    """The body with every formula of its types and attributes changed; not those of sub-graphs."""
    values: dict[int, Value] = {}

    def copy(value: Value) -> Value:
        if id(value) not in values:
            values[id(value)] = Value(value.name, _type(value.type, function), constant=value.constant)
        return values[id(value)]

    new = Graph(body.name, output_names=list(body.output_names), symbols=dict(body.symbols))
    new.inputs = [copy(v) for v in body.inputs]
    for node in body.nodes:
        inputs = [None if v is None else copy(v) for v in node.inputs]
        new.nodes.append(Node(_operator(node.op, function), inputs, [copy(o) for o in node.outputs], node.names))
    new.outputs = [copy(v) for v in body.outputs]
    return new


def _type(type: Type, function: Callable[[Expr], Expr]) -> Type:
    if not isinstance(type, TensorType) or type.is_static:
        return type
    return replace(type, shape=tuple(as_dim(function(d)) if isinstance(d, Expr) else d for d in type.shape))


def _operator(op: O, function: Callable[[Expr], Expr]) -> O:
    def value(v: Any) -> Any:
        if isinstance(v, Expr):
            return as_dim(function(v))
        return tuple(map(value, v)) if isinstance(v, tuple) else v

    old = op.attributes()
    changed = {name: new for name, v in old.items() if (new := value(v)) != v}
    return replace(op, **changed) if changed else op
