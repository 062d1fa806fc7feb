"""Sub-graphs of a model as graphs of their own: bodies of the operators that hold them.

What a body uses of the graph around it becomes an input of the body, behind its own: captured. So does what binds a
symbol that it mentions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.identity import Require
from weft.graph.nodes import Graph, GraphBuilder, Node, OpenType, SymbolSource, TensorType, Type, Value
from weft.graph.rewrite import bound_symbols, drop_dead, mentioned_symbols
from weft_frontend.contents import Content
from weft_ops import Sizes, WithSizes

if TYPE_CHECKING:
    from weft_frontend.cases import Fork
    from weft_frontend.importer import GraphImporter


class InBody(FrontendError):
    """A body cannot be converted; whether it is ever run shows at run time."""


@dataclass
class Body:
    """A sub-graph, and what it captures of the graph around it, in the order of its last inputs."""

    graph: Graph
    captured: list[Value]


@dataclass(eq=False)
class Level:
    """A graph that is being built, inside of another or of none."""

    builder: GraphBuilder
    outer: Level | None = None
    captured: list[Value] = field(default_factory=list)
    inside: dict[int, tuple[Value, Value]] = field(
        default_factory=dict
    )  # id of a value around → it, and what stands for it
    forks: list[Fork] = field(default_factory=list)
    cases: int = 0
    """Of how many forks inside of each other it is a case."""
    required: list[Require] = field(default_factory=list)
    """What has to hold for anything that it computes."""

    def capture(self, importer: GraphImporter, operand: Any) -> Any:
        """What stands here for an operand of the graph around."""
        if isinstance(operand, list):
            return type(operand)(self.capture(importer, o) for o in operand)
        if not isinstance(operand, Value):
            return operand
        if id(operand) not in self.inside:
            if operand.constant is not None:
                new = self.builder.constant(operand.constant, operand.name)
                new.type = operand.type
            else:
                new = self.builder.input(operand.name, operand.type)
                self.captured.append(operand)
            self.inside[id(operand)] = operand, new
            importer.remember(new, importer.known(operand))
        return self.inside[id(operand)][1]

    def carrier(self, importer: GraphImporter, symbol: str) -> Value:
        """A value of this graph that binds a symbol of it, or of one around it."""
        graph = self.builder.graph
        source = graph.symbols.get(symbol)
        if source is not None:
            return source.value
        found = next(
            (v for v in graph.inputs if isinstance(v.type, TensorType) and Var(symbol, dt.int64) in v.shape), None
        )
        if found is not None:
            return found
        assert self.outer is not None, f"symbol '{symbol}' is bound nowhere"
        value: Value = self.capture(importer, self.outer.carrier(importer, symbol))
        outer = self.outer.builder.graph.symbols.get(symbol)
        if outer is not None:
            graph.symbols[symbol] = SymbolSource(value, outer.index)
        return value


def build_body(
    importer: GraphImporter,
    name: str,
    given: Sequence[tuple[str, Type | Content]],
    make: Callable[[Level, list[Any]], Sequence[tuple[str, Value]]],
    counted: bool = False,
) -> Body:
    """A sub-graph as a graph of its own.

    Args:
        given: the names and types of its inputs; a content stands for an input that is known, which is none.
        make: (the level, what stands for the inputs) → the outputs by name.
        counted: it gets a number (int64) before all else.
    """
    level = importer.enter(name or "body")
    try:
        own = int(counted)
        if counted:
            level.builder.input("trip", TensorType(dt.int64, ()))
        operands: list[Any] = []
        for input_name, type in given:
            own += not isinstance(type, Content)
            operands.append(type if isinstance(type, Content) else level.builder.input(input_name, type))
        for k, (output, value) in enumerate(make(level, operands)):
            level.builder.output(importer.required(value), level.builder.unique(f"{output}.{k}"))
    except UnsupportedError:
        raise
    except FrontendError as error:
        raise InBody(error.what, where=error.where, why=error.why, hint=error.hint) from error
    finally:
        importer.leave()
    return finished(importer, level, own)


def finished(importer: GraphImporter, level: Level, own: int) -> Body:
    """The body that was built, whose first inputs, `own` of them, it captured not; what nothing uses goes."""
    built = level.builder.build()
    drop_dead(built)
    _prune(level, own)
    while missing := [name for name in mentioned_symbols(built) if name not in bound_symbols(built)]:
        level.carrier(importer, missing[0])
    return Body(built, level.captured)


def put_here(importer: GraphImporter, body: Body) -> list[Value]:
    """The outputs of a body that is no longer one: its nodes and symbols go to the graph that is being built. The body
    captured all its inputs."""
    graph = importer.builder.graph
    here = {id(inner): outer for inner, outer in zip(body.graph.inputs, body.captured)}
    for node in body.graph.nodes:
        graph.nodes.append(
            Node(node.op, [v if v is None else here.get(id(v), v) for v in node.inputs], node.outputs, node.names)
        )
    for name, source in body.graph.symbols.items():
        graph.symbols.setdefault(name, SymbolSource(here.get(id(source.value), source.value), source.index))
    return [here.get(id(v), v) for v in body.graph.outputs]


def _prune(level: Level, own: int) -> None:
    """Drops captured inputs that nothing uses."""
    graph = level.builder.graph
    used = (
        {id(v) for n in graph.nodes for v in n.inputs}
        | {id(v) for v in graph.outputs}
        | {id(s.value) for s in graph.symbols.values()}
    )
    kept = [k for k, v in enumerate(graph.inputs[own:]) if id(v) in used]
    level.inside = {key: pair for key, pair in level.inside.items() if id(pair[1]) in used}
    graph.inputs = [*graph.inputs[:own], *(graph.inputs[own + k] for k in kept)]
    level.captured = [level.captured[k] for k in kept]


def shaped(builder: GraphBuilder, value: Value, rank: int | None = None) -> Value:
    """A tensor whose sizes are known only at run time, with data symbols for them; the value as it is, if it is none or
    of unknown rank."""
    if not isinstance(value.type, OpenType):
        return value
    rank = value.type.rank if value.type.rank is not None else rank
    if rank is None:
        return value
    if rank == 0:
        return builder.add(WithSizes(()), value)
    sizes = builder.add(Sizes(rank), value)
    return builder.add(WithSizes(tuple(builder.symbol(sizes, k) for k in range(rank))), value)


__all__ = ["Body", "InBody", "Level", "build_body", "finished", "put_here", "shaped"]
