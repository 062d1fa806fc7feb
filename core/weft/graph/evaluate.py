"""Evaluation of a graph with numpy, slow and exact: the meaning of a graph after any pass, groups and layouts
included."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import GraphError, InputError, WeftError, from_signal, nearest
from weft.expr.nodes import Const, Expr, Var, free_vars, substitute
from weft.graph.nodes import Graph, Node, OpenType, OptionalType, SequenceType, TensorType, Type, Value
from weft.graph.rewrite import concrete
from weft.tensor.language import Dim

Inputs = Mapping[str, Any] | Sequence[Any]
Run = Callable[[Node, list[Any], Mapping[str, int]], tuple[Any, ...]]


def evaluate(
    graph: Graph,
    inputs: Inputs,
    on_value: Callable[[Value, Any], None] | None = None,
    symbols: Mapping[str, int] | None = None,
) -> list[Any]:
    """The outputs of `graph`.

    Args:
        inputs: arrays by input name, or in order.
        on_value: called with every value a node gives.
        symbols: values of symbols that are bound outside, for a sub-graph.

    Raises:
        InputError: the inputs do not fit the graph.
        GraphError: an operator's reference contradicts its type rule.
    """
    walk = steps(graph, inputs, symbols)
    while True:
        try:
            node, results = next(walk)
        except StopIteration as done:
            outputs: list[Any] = done.value
            return outputs
        if on_value is not None:
            for value, result in zip(node.outputs, results):
                on_value(value, result)


def steps(
    graph: Graph, inputs: Inputs, symbols: Mapping[str, int] | None = None, run: Run | None = None
) -> Generator[tuple[Node, tuple[Any, ...]], None, list[Any]]:
    """As `evaluate`, node by node: yields each node with its results. A value is held until its last use. Returns the
    outputs.

    Args:
        run: (node, its inputs, values of symbols) → its outputs; by default `apply`.
    """
    env = dict(symbols or {})
    arrays = bind_inputs(graph, inputs, env)
    data: dict[int, Any] = {id(v): a for v, a in zip(graph.inputs, arrays)}
    last: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                last[id(value)] = k
    keep = {id(v) for v in graph.outputs}
    sources: dict[int, list[tuple[str, int]]] = {}
    for name, source in graph.symbols.items():
        sources.setdefault(id(source.value), []).append((name, source.index))
        if source.value.constant is not None:
            env.setdefault(name, int(source.value.constant.reshape(-1)[source.index]))

    def read(value: Value | None) -> Any:
        return None if value is None else value.constant if value.constant is not None else data[id(value)]

    for k, node in enumerate(graph.nodes):
        results = (run or apply)(node, [read(v) for v in node.inputs], env)
        for value, result in zip(node.outputs, results):
            data[id(value)] = result
            for name, index in sources.get(id(value), ()):
                env[name] = int(np.reshape(result, -1)[index])
        for value, result in zip(node.outputs, results):
            _check_result(node, value, result, env)
        yield node, results
        for dead in (*node.inputs, *node.outputs):
            if dead is not None and last[id(dead)] == k and id(dead) not in keep:
                data.pop(id(dead), None)
    return [read(v) for v in graph.outputs]


def apply(node: Node, arrays: Sequence[Any], env: Mapping[str, int]) -> tuple[Any, ...]:
    """What a node's reference gives for these inputs, with these values of symbols.

    Raises:
        GraphError: it fails, or contradicts the type rule.
    """
    try:
        with np.errstate(all="ignore"):
            result = concrete(node.op, env).reference(*arrays)
    except WeftError:
        raise
    except Exception as error:
        if from_signal(error):
            raise
        names = f"\nfrom {', '.join(sorted(node.names))}" if node.names else ""
        raise GraphError(
            f"the reference of {node.op.operator_name} failed: {error}", where=repr(node) + names
        ) from error
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(node.outputs):
        raise GraphError(
            f"the reference of {node.op.operator_name} gives {len(results)} result(s), its type rule"
            f" {len(node.outputs)}",
            where=repr(node),
        )
    return tuple(np.asarray(r) if isinstance(v.type, TensorType) else r for r, v in zip(results, node.outputs))


def _check_result(node: Node, value: Value, result: Any, env: Mapping[str, int]) -> None:
    if not isinstance(value.type, TensorType):
        return
    shape = tuple(dim_value(d, env) for d in value.type.shape)
    kind_differs = result.dtype != value.type.dtype.numpy and value.type.dtype.name != "string"
    if kind_differs or len(shape) != result.ndim or any(d is not None and d != n for d, n in zip(shape, result.shape)):
        raise GraphError(
            f"the reference of {node.op.operator_name} gives {result.dtype}{list(result.shape)}, its type rule"
            f" {value.type}",
            where=repr(node),
            why=f"with {', '.join(f'{k}={v}' for k, v in env.items())}" if env else None,
        )


def dim_value(dim: Dim, env: Mapping[str, int]) -> int | None:
    """The value of a dimension; None while a symbol of it is unknown."""
    if isinstance(dim, int):
        return dim
    if any(name not in env for name in free_vars(dim)):
        return None
    value = substitute(dim, env)
    return int(value.value) if isinstance(value, Const) else None


def bind_inputs(graph: Graph, inputs: Inputs, env: dict[str, int]) -> list[Any]:
    """The inputs in order, checked; binds symbols into `env`.

    Raises:
        InputError: says which input, what it takes and what it got.
    """
    given = _in_order(graph, inputs)
    arrays = [_fit(graph, value, value.type, array) for value, array in zip(graph.inputs, given)]
    for value, array in zip(graph.inputs, arrays):
        if isinstance(value.type, TensorType):
            for d, n in zip(value.type.shape, array.shape):
                if isinstance(d, Var) and d.name not in graph.symbols and env.setdefault(d.name, n) != n:
                    raise InputError(
                        f"input '{value.name}' has {d.name} = {n}, another has {d.name} = {env[d.name]}",
                        where=_signature(graph),
                    )
    for name, source in graph.symbols.items():
        for value, array in zip(graph.inputs, arrays):
            if source.value is value:
                if source.index >= array.size:
                    raise InputError(
                        f"input '{value.name}' has {array.size} element(s), element {source.index} is needed as a size",
                        where=_signature(graph),
                    )
                env[name] = int(array.reshape(-1)[source.index])
    for value, array in zip(graph.inputs, arrays):
        if isinstance(value.type, TensorType):
            for k, (d, n) in enumerate(zip(value.type.shape, array.shape)):
                expected = dim_value(d, env)
                if isinstance(d, Expr) and expected is not None and expected != n:
                    raise InputError(
                        f"input '{value.name}' has {n} at dimension {k}, {d} = {expected} is needed",
                        where=_signature(graph),
                    )
    return arrays


def _in_order(graph: Graph, inputs: Inputs) -> list[Any]:
    names = [v.name for v in graph.inputs]
    if isinstance(inputs, Mapping):
        for key in inputs:
            if key not in names:
                close = nearest(str(key), names)
                raise InputError(
                    f"there is no input '{key}'",
                    where=_signature(graph),
                    hint=f"did you mean '{close}'?" if close else None,
                )
        missing = [n for n in names if n not in inputs]
        if missing:
            raise InputError(f"input '{missing[0]}' is missing", where=_signature(graph))
        return [inputs[n] for n in names]
    if len(inputs) != len(names):
        raise InputError(f"the graph takes {len(names)} input(s), got {len(inputs)}", where=_signature(graph))
    return list(inputs)


def _signature(graph: Graph) -> str:
    return f"{graph.name}({', '.join(map(repr, graph.inputs))})"


def _fit(graph: Graph, value: Value, type: Type, data: Any) -> Any:
    if isinstance(type, OptionalType):
        return None if data is None else _fit(graph, value, type.element, data)
    if isinstance(type, SequenceType):
        if not isinstance(data, (list, tuple)):
            raise InputError(
                f"input '{value.name}' takes a {type}, got a {data.__class__.__name__}", where=_signature(graph)
            )
        return [_fit(graph, value, type.element, d) for d in data]
    array = np.asarray(data)
    rank = type.rank if type.rank is not None else array.ndim
    if array.dtype != type.dtype.numpy and type.dtype.name != "string":
        raise InputError(
            f"input '{value.name}' takes {type.dtype}, got {array.dtype}",
            where=_signature(graph),
            hint="convert it with astype",
        )
    if array.ndim != rank:
        raise InputError(
            f"input '{value.name}' takes {rank} dimension(s), got {array.ndim}: {list(array.shape)}",
            where=_signature(graph),
        )
    for k, (d, n) in enumerate(zip(() if isinstance(type, OpenType) else type.shape, array.shape)):
        if isinstance(d, int) and d != n:
            raise InputError(f"input '{value.name}' takes {d} at dimension {k}, got {n}", where=_signature(graph))
    return array
