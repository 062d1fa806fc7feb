"""Gradients among the nodes of a graph that is being built, as a frontend's operator for gradients needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, Node, Value
from weft.graph.rewrite import attribute_symbols, concrete, type_symbols
from weft_ops import Fill
from weft_training.reverse import gradients, is_float


def add_gradients(
    builder: GraphBuilder, of: Value, wrt: Sequence[Value], at: Mapping[Value, Value] | None = None
) -> list[Value]:
    """Adds the gradients of the sum of all elements of `of` by each of `wrt`: one of its type for each, zeros where
    `of` does not depend on it.

    Args:
        builder: of a graph that has `of`. If a loop is on the way, its node gets further results.
        wrt: inputs, constants or results of nodes.
        at: values to take instead of some, `wrt` among them: what `of` depends on by them is computed again. What is
            before one of them, or of `wrt`, is not looked at.

    Raises:
        GraphError: a value is no float, or a value to take instead is of another dtype or rank.
        UnsupportedError: an operator on the way has no gradient.
    """
    others = {id(v): (v, w) for v, w in (at or {}).items() if v is not w}
    for value in (of, *wrt):
        if not is_float(value):
            raise GraphError(f"'{value.name}' is a {value.type}: derivatives are those of floats by floats")
    for value, other in others.values():
        if value.tensor.dtype != other.tensor.dtype or value.tensor.rank != other.tensor.rank:
            raise GraphError(f"'{other.name}' is a {other.type}, it cannot stand for '{value.name}', a {value.type}")
    ends = {id(v) for v in (*wrt, *(at or {}))}
    nodes = _between(builder, of, ends)
    if others:
        of, nodes = _again(builder, of, nodes, {key: other for key, (_, other) in others.items()})
    inputs = [others[id(v)][1] if id(v) in others else v for v in wrt]
    seed = builder.add(Fill(of.dtype, of.shape, 1), name=f"seed_{of.name}")
    found = gradients(builder, nodes, {of: seed}, inputs)
    return [builder.add(Fill(v.dtype, v.shape, 0)) if g is None else g for v, g in zip(inputs, found)]


def _between(builder: GraphBuilder, of: Value, ends: set[int]) -> list[Node]:
    """The nodes that `of` needs, in order, those before `ends` left out."""
    needed, stack, inside = set[int](), [of], {id(n) for n in builder.graph.nodes}
    while stack:
        value = stack.pop()
        node = value.producer
        if id(value) in ends or node is None or id(node) in needed or id(node) not in inside:
            continue
        needed.add(id(node))
        stack += [v for v in node.inputs if v is not None]
    return [n for n in builder.graph.nodes if id(n) in needed]


def _again(
    builder: GraphBuilder, of: Value, nodes: Sequence[Node], instead: dict[int, Value]
) -> tuple[Value, list[Node]]:
    """The nodes once more, over other values: what stands for `of`, and the new nodes."""
    first = len(builder.graph.nodes)
    symbols: dict[str, Any] = {}
    for node in nodes:
        needs = {*attribute_symbols(node.op), *(s for v in node.outputs for s in type_symbols(v.type))}
        for name in needs - set(symbols):
            source = builder.graph.symbols.get(name)
            if source is not None and id(source.value) in instead:
                symbols[name] = builder.symbol(instead[id(source.value)], source.index)
        for value in node.inputs:  # sizes that inputs bind are those of what stands for them
            other = None if value is None else instead.get(id(value))
            if value is not None and other is not None:
                for d, new in zip(value.tensor.shape, other.tensor.shape):
                    if isinstance(d, Var) and d != new:
                        symbols.setdefault(d.name, new)
        with builder.named(*node.names):
            made = builder.add_all(
                concrete(node.op, symbols), *(None if v is None else instead.get(id(v), v) for v in node.inputs)
            )
        instead |= {id(old): new for old, new in zip(node.outputs, made)}
    return instead.get(id(of), of), builder.graph.nodes[first:]


__all__ = ["add_gradients"]
