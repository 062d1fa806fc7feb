"""Checks a graph: one definition per name, definitions before uses, types as the operators infer them, symbols
bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from weft.errors import GraphError, WeftError
from weft.expr.nodes import sub
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, OpenType, OptionalType, SequenceType, TensorType, Type, Value
from weft.graph.printer import all_constants, subgraphs
from weft.graph.relayout import Relayout
from weft.graph.rewrite import attribute_symbols, bound_symbols, sort_nodes, type_symbols
from weft.tensor.language import Dim


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly equal."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    from weft.expr.simplify import simplify

    difference = simplify(sub(a, b), {})
    return getattr(difference, "value", None) == 0


def same_type(a: Type, b: Type, layouts: bool = True) -> bool:
    """Whether two types are certainly equal, formulas up to simplification."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype or a.rank != b.rank or (layouts and a.layout != b.layout):
            return False
        return all(same_dim(x, y) for x, y in zip(a.shape, b.shape))
    if isinstance(a, OpenType):
        return a == b
    if isinstance(a, (SequenceType, OptionalType)) and isinstance(b, (SequenceType, OptionalType)):
        return type(a) is type(b) and same_type(a.element, b.element, layouts)
    return False


def verify(graph: Graph, bound: Iterable[str] = ()) -> None:
    """Checks `graph` and its sub-graphs.

    Args:
        bound: symbols bound outside, for a sub-graph.

    Raises:
        GraphError: names the first offending node, with its framework names.
    """
    _names(graph)
    known = _order(graph, set(bound))
    for value in all_constants(graph):
        _constant(value)
    for node in graph.nodes:
        _node(node)
        for inner in subgraphs(node.op).values():
            verify(inner, known)
    if graph.output_names and len(graph.output_names) != len(graph.outputs):
        raise GraphError(
            f"graph '{graph.name}' has {len(graph.outputs)} output(s) and {len(graph.output_names)} output name(s)"
        )


def _where(node: Node) -> str:
    return repr(node) + (f"\nfrom {', '.join(sorted(node.names))}" if node.names else "")


def _names(graph: Graph) -> None:
    seen: dict[str, Value] = {}
    produced: dict[int, Node] = {}
    for node in graph.nodes:
        for value in node.outputs:
            if id(value) in produced:
                raise GraphError(
                    f"value '{value.name}' is produced by two nodes",
                    where=f"{_where(produced[id(value)])}\n{_where(node)}",
                )
            produced[id(value)] = node
    for node in graph.nodes:
        for value in node.outputs:
            if value.producer is not node or value.constant is not None:
                why = "it is a constant" if value.constant is not None else f"its producer is {value.producer!r}"
                raise GraphError(f"output '{value.name}' does not belong to its node", where=_where(node), why=why)
    inputs = {id(v) for v in graph.inputs}
    for value in (*graph.inputs, *all_constants(graph), *(o for n in graph.nodes for o in n.outputs)):
        if value.name in seen and seen[value.name] is not value:
            raise GraphError(f"two values are named '{value.name}'", where=f"{seen[value.name]!r}\n{value!r}")
        if id(value) in inputs and value.producer is not None:
            raise GraphError(f"input '{value.name}' is produced by a node", where=_where(value.producer))
        seen[value.name] = value


def _order(graph: Graph, outside: set[str]) -> set[str]:
    """Checks the order and that symbols are bound before they are used; returns every symbol bound in the end."""
    defined = {id(v) for v in (*graph.inputs, *all_constants(graph))}
    members = {id(n) for n in graph.nodes}
    bound = outside | {name for name in bound_symbols(graph) if name not in graph.symbols}
    everything = outside | set(bound_symbols(graph))

    waiting: dict[int, list[str]] = {}  # value → the symbols that it gives
    for name, source in graph.symbols.items():
        waiting.setdefault(id(source.value), []).append(name)

    def define(values: Iterable[int]) -> None:
        for key in values:
            defined.add(key)
            bound.update(waiting.get(key, ()))

    def check(names: Iterable[str], place: str, where: Callable[[], str]) -> None:
        for name in names:
            if name not in everything:
                hint = "bind it by a bare dimension of an input, or in the graph's symbols"
                raise GraphError(f"symbol '{name}' of {place} is not bound", where=where(), hint=hint)
            if name not in bound:
                raise GraphError(
                    f"symbol '{name}' of {place} is used before the value that gives it is computed", where=where()
                )

    _check_sources(graph, members)
    define(list(defined))
    for value in graph.inputs:
        check(type_symbols(value.type), f"input '{value.name}'", partial(repr, value))
    for node in graph.nodes:
        for value in (v for v in node.inputs if v is not None):
            if id(value) not in defined:
                raise _undefined(graph, node, value, members)
        check(attribute_symbols(node.op), f"node '{node.output.name}'", partial(_where, node))
        define(id(o) for o in node.outputs)
        for o in node.outputs:
            check(type_symbols(o.type), f"value '{o.name}'", partial(_where, node))
    for value in graph.outputs:
        if id(value) not in defined:
            raise GraphError(f"output '{value.name}' is not defined in the graph '{graph.name}'")
    return bound


def _check_sources(graph: Graph, members: set[int]) -> None:
    """Checks what symbols are bound to; `members`: the graph's nodes, by id."""
    for name, source in graph.symbols.items():
        if source.value.producer is not None and id(source.value.producer) not in members:
            raise GraphError(
                f"symbol '{name}' is bound to '{source.value.name}', which is not in the graph '{graph.name}'"
            )
        if not isinstance(source.value.type, TensorType) or not source.value.dtype.is_integer:
            raise GraphError(f"symbol '{name}' is bound to a value that is no integer tensor", where=repr(source.value))


def _undefined(graph: Graph, node: Node, value: Value, members: set[int]) -> GraphError:
    """The error about a value that is not defined where a node uses it."""
    if value.producer is not None and id(value.producer) in members:
        # Raises if there is a cycle.
        sort_nodes(Graph(graph.name, graph.inputs, graph.outputs, list(graph.nodes), graph.symbols))
        both = f"{_where(node)}\n{_where(value.producer)}"
        return GraphError(
            f"'{value.name}' is used before it is computed", where=both, hint="nodes stand in order of computation"
        )
    return GraphError(
        f"'{value.name}' is used but not defined in the graph '{graph.name}'",
        where=_where(node),
        hint="sub-graphs capture nothing: pass it as an input",
    )


def _constant(value: Value) -> None:
    data = value.constant
    assert data is not None
    if not isinstance(value.type, TensorType) or value.type.shape != data.shape or value.type.dtype.numpy != data.dtype:
        raise GraphError(
            f"constant '{value.name}' holds {data.dtype}{list(data.shape)}",
            where=repr(value),
            why="its type says otherwise",
        )
    if value.type.layout is not None:
        value.type.layout.stored_shape(data.shape)


def _node(node: Node) -> None:
    exact = isinstance(node.op, (Group, Relayout))
    operands = node.inputs if exact else tuple(_row_major(v) for v in node.inputs)
    try:
        types = node.op.infer_checked(operands)
        for value in node.outputs:
            if isinstance(value.type, TensorType) and value.type.layout is not None:
                value.type.layout.stored_shape(value.type.shape)
    except WeftError as error:
        raise GraphError(error.what, where=_where(node), why=error.why, hint=error.hint) from error
    if len(types) != len(node.outputs):
        raise GraphError(
            f"the node has {len(node.outputs)} output(s), its operator gives {len(types)}", where=_where(node)
        )
    for inferred, value in zip(types, node.outputs):
        if not same_type(inferred, value.type, layouts=exact):
            raise GraphError(f"'{value.name}' is typed {value.type}, its operator gives {inferred}", where=_where(node))
        for axis, d in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            if isinstance(d, int) and d < 0:
                raise GraphError(
                    f"'{value.name}' has size {d} on axis {axis}", where=_where(node), hint="the operands are too small"
                )


def _row_major(value: Value | None) -> Value | None:
    if value is None or not isinstance(value.type, TensorType) or value.type.layout is None:
        return value
    return Value(value.name, value.type.with_layout(None), value.producer, value.constant)
