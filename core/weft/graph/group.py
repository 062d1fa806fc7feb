"""The operator that holds a sub-graph and becomes one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, Node, Type, Value
from weft.graph.operator import Array, Operator, Sample


@dataclass(frozen=True)
class Group(Operator):
    """`body` applied to the inputs. A group is part of its graph: its types mention the graph's symbols.

    Args:
        view: the output is the input's memory under another shape (or type): nothing is computed.
    """

    body: Graph
    view: bool = False
    kind = "composite"

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        if len(types) != len(self.body.inputs):
            raise GraphError(f"the group takes {len(self.body.inputs)} inputs, got {len(types)}")
        for k, (given, value) in enumerate(zip(types, self.body.inputs)):
            if given != value.type:
                raise GraphError(
                    f"input {k} of the group '{self.body.name}' is a {value.type} inside, a {given} outside"
                )
        return tuple(v.type for v in self.body.outputs)

    def reference(self, *arrays: Array | None) -> Any:
        from weft.graph.evaluate import evaluate

        results = evaluate(self.body, [a for a in arrays if a is not None])
        return results[0] if len(results) == 1 else tuple(results)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """None: a group has no meaning beyond its body."""
        return ()


def kernel_text(body: Graph) -> str:
    """The body as text that is equal for equal kernels: values and symbols numbered, no framework names. Types, layouts
    and one-element constants show."""
    from weft.graph.printer import print_graph
    from weft.graph.rewrite import mentioned_symbols, substitute_symbols

    symbols = mentioned_symbols(body)
    if symbols:
        body = substitute_symbols(body, {name: Var(f"s{k}") for k, name in enumerate(symbols)})

    new = Graph("kernel")
    values: dict[int, Value] = {}

    def numbered(value: Value) -> Value:
        if id(value) not in values:
            values[id(value)] = Value(f"v{len(values)}", value.type, constant=value.constant)
        return values[id(value)]

    new.inputs = [numbered(v) for v in body.inputs]
    for node in body.nodes:
        inputs = [None if v is None else numbered(v) for v in node.inputs]
        new.nodes.append(Node(node.op, inputs, [numbered(o) for o in node.outputs]))
    new.outputs = [numbered(v) for v in body.outputs]
    # Operators of other packages may have the names of others': what they compute is told by where they are defined.
    owners = [f"{type(n.op).__module__}.{type(n.op).__qualname__}" for n in body.nodes]
    foreign = "".join(f", {k} is {owner}" for k, owner in enumerate(owners) if not owner.startswith("weft."))
    return f"{len(symbols)} symbols{foreign}, {print_graph(new)}"
