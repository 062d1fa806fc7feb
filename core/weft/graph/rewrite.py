"""The rewriting of graphs: visit the nodes in order, copy or replace each, and drop dead nodes.

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Value | tuple[Value, ...] | None:
        return inputs[0] if isinstance(node.op, Identity) else None

    graph = rewrite(graph, rule)

A rule receives the old node and its rewritten inputs; `r.producer` gives the node that computes a value. It returns
None (the node is copied), or the new outputs of the node. The framework names of replaced nodes are added to their
replacement.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from weft.errors import GraphError
from weft.expr.nodes import Expr, Var, free_vars, substitute
from weft.graph.nodes import (
    Graph,
    GraphBuilder,
    Node,
    OpenType,
    OptionalType,
    SequenceType,
    SymbolSource,
    TensorType,
    Type,
    Value,
    single,
)
from weft.graph.operator import Operator
from weft.tensor.language import as_dim

Replacement: TypeAlias = "Value | tuple[Value, ...] | list[Value] | None"
"""What a rule gives for a node: a value per output (alone if there is one), or None: the node stays."""
Rule: TypeAlias = "Callable[[Rewriter, Node, tuple[Value | None, ...]], Replacement]"
O = TypeVar("O", bound=Operator)


class Rewriter:
    """The state of one rewriting; see the module."""

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.builder = GraphBuilder(graph.name)
        self._values: dict[int, Value] = {}
        self._uses: dict[int, int] = {}
        self._seen: list[Node] = []
        self._built: list[Node] = []
        self._absorbed: dict[int, tuple[Node, list[Node], list[Node]]] = {}
        used = [v for n in graph.nodes for v in n.inputs if v is not None]
        used += graph.outputs
        used += [s.value for s in graph.symbols.values()]
        self._old_uses: Counter[int] = Counter(map(id, used))
        self.builder.reserve(v.name for v in itertools.chain(graph.inputs, used, *(n.outputs for n in graph.nodes)))
        self.builder.reserve(graph.symbols)

    # -- what a rule may use
    def add(self, op: Operator, *inputs: Value | None, name: str | None = None, type: Type | None = None) -> Value:
        """Builds a node of one output before the one at hand; `type` overrides the inferred one (to give it a
        layout)."""
        result = single(op, self.add_all(op, *inputs, name=name))
        if type is not None:
            result.type = type
        return result

    def add_all(self, op: Operator, *inputs: Value | None, name: str | None = None) -> tuple[Value, ...]:
        """Builds a node before the one at hand; its outputs."""
        result = self.builder.add_all(op, *inputs, name=name)
        node = self.builder.graph.nodes[-1]
        for value in inputs:
            if value is not None:
                self._uses[id(value)] = self._uses.get(id(value), 0) + 1
        self._built.append(node)
        return result

    def constant(self, data: object, name: str = "c", like: Value | None = None) -> Value:
        """A new constant; of the dtype of `like`, if given."""
        array = np.asarray(data) if like is None else np.asarray(data).astype(like.dtype.numpy)
        return self.builder.constant(array, name)

    def producer(self, value: Value | None, *classes: type[Operator]) -> Node | None:
        """The node that makes `value` if its operator is one of `classes` (any if none is given). Whatever was
        looked at and dies with the replacement leaves it its names."""
        node = value.producer if value is not None else None
        if node is None or (classes and not isinstance(node.op, classes)):
            return None
        self._seen.append(node)
        return node

    def single_use(self, value: Value) -> bool:
        """Whether nothing but the node at hand uses `value`; a False may be wrong, a True never is."""
        return self._uses.get(id(value), 0) <= 1

    def uses(self, value: Value) -> int:
        """How often `value` is used, at most: uses by nodes that have died since count, too."""
        return self._uses.get(id(value), 0)

    def map(self, value: Value) -> Value:
        """The value of the new graph that stands for a value of the old one."""
        found = self._values.get(id(value))
        if found is None:
            found = Value(value.name, value.type, constant=value.constant)
            self._set(value, found)
        return found

    # -- the walk
    def _set(self, old: Value, new: Value) -> None:
        self._values[id(old)] = new
        self._uses[id(new)] = self._uses.get(id(new), 0) + self._old_uses[id(old)]

    def run(self, rule: Rule, on_subgraph: Callable[[Graph], Graph] | None = None) -> Graph:
        """The rewritten graph; the same values (new objects) where no rule acted."""
        new = self.builder.graph
        for value in self.old.inputs:
            copy = Value(value.name, value.type)
            new.inputs.append(copy)
            self._set(value, copy)
        for node in self.old.nodes:
            inputs = tuple([None if v is None else self.map(v) for v in node.inputs])
            self._seen, self._built = [], []
            self.builder._names = node.names
            result = rule(self, node, inputs)
            if result is None:
                self._copy(node, inputs, on_subgraph)
                continue
            results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            if len(results) != len(node.outputs):
                raise GraphError(f"a rule replaced {len(node.outputs)} output(s) by {len(results)}", where=repr(node))
            self._replace(node, results)
        new.outputs = [self.map(v) for v in self.old.outputs]
        new.output_names = list(self.old.output_names or [v.name for v in self.old.outputs])
        new.symbols = {
            name: SymbolSource(self.map(s.value), s.index) for name, s in self.old.symbols.items()
        } | new.symbols
        drop_dead(new)
        self._give_names(new)
        return new

    def copy(
        self, node: Node, inputs: tuple[Value | None, ...], op: Operator | None = None, infer: bool = False
    ) -> tuple[Value, ...]:
        """The old node over other inputs (and with another operator of the same outputs); its types are kept, layouts
        included, unless an input's logical type changed or `infer` asks for it."""
        op = op or node.op
        types: list[Type] = [o.type for o in node.outputs]
        if infer or any(
            a is not None and b is not None and not _alike(a.type, b.type) for a, b in zip(inputs, node.inputs)
        ):
            inferred = op.infer_checked(inputs)
            types = [
                n.with_layout(o.layout) if isinstance(n, TensorType) and isinstance(o, TensorType) else n
                for n, o in zip(inferred, types)
            ]
        outputs = tuple([Value(o.name, t) for o, t in zip(node.outputs, types)])
        copied = Node(op, inputs, outputs, node.names)
        self.builder.graph.nodes.append(copied)
        self._built.append(copied)
        return outputs

    def _copy(self, node: Node, inputs: tuple[Value | None, ...], on_subgraph: Callable[[Graph], Graph] | None) -> None:
        op = map_subgraphs(node.op, on_subgraph) if on_subgraph is not None else node.op
        for old, new in zip(node.outputs, self.copy(node, inputs, op)):
            self._set(old, new)

    def builder_for_rule(self) -> GraphBuilder:
        """A GraphBuilder whose nodes come before the one at hand, for decompositions."""
        return _RuleBuilder(self)

    def _replace(self, node: Node, results: tuple[Value, ...]) -> None:
        fresh = {id(o) for b in self._built for o in b.outputs}
        named = set()
        for old, new in zip(node.outputs, results):
            if id(new) in fresh and id(new) not in named:
                named.add(id(new))
                new.name = old.name
            self._set(old, new)
        if self._built:
            for built in self._built:
                self._absorbed[id(built)] = (built, list(self._seen), [])
        else:
            # Nothing new computes it: what already did takes over the names.
            for producer in {id(r.producer): r.producer for r in results if r.producer is not None}.values():
                producer.names = producer.names | node.names
                _, seen, _ = self._absorbed.setdefault(id(producer), (producer, [], []))
                seen.extend(self._seen)

    def _give_names(self, graph: Graph) -> None:
        live = {id(n) for n in graph.nodes}
        # Nodes were built in order, so what a node absorbed has its own names complete before.
        for node, seen, _ in self._absorbed.values():
            for other in seen:
                if id(other) not in live:
                    node.names = node.names | other.names


class _RuleBuilder(GraphBuilder):
    """Adds nodes through a Rewriter, with the framework names of the replaced nodes."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self.graph, self._taken, self._names = rewriter.builder.graph, rewriter.builder._taken, rewriter.builder._names

    def add_all(self, op: Operator, *inputs: Value | None, name: str | None = None) -> tuple[Value, ...]:
        return self._rewriter.add_all(op, *inputs, name=name)


def rewrite(
    graph: Graph,
    *rules: Rule,
    on_subgraph: Callable[[Graph], Graph] | None = None,
    rounds: int = 10,
    on: tuple[type[Operator], ...] = (),
) -> Graph:
    """`graph` under the rules, the first that acts on a node winning; again until none acts, at most `rounds` times.

    Args:
        on: the operators on whose nodes the rules act; none: on any. A graph without such a node is returned as it is,
            nodes that no output needs included.
    """

    @cache
    def concerned(operator: type[Operator]) -> bool:
        return not on or issubclass(operator, on)

    for _ in range(rounds):
        if on_subgraph is None and on and not any(concerned(type(n.op)) for n in graph.nodes):
            break
        acted = False

        def first(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
            nonlocal acted
            if not concerned(type(node.op)):
                return None
            for rule in rules:
                mark = len(r.builder.graph.nodes)
                result = rule(r, node, inputs)
                if result is not None:
                    acted = True
                    return result
                if len(r.builder.graph.nodes) != mark:
                    raise GraphError(
                        f"rule '{getattr(rule, '__name__', rule)}' built nodes and then declined", where=repr(node)
                    )
                r._seen.clear()
            return None

        graph = Rewriter(graph).run(first, on_subgraph)
        on_subgraph = None
        if not acted:
            break
    return graph


def copy_graph(graph: Graph) -> Graph:
    """The same graph in new objects, dead nodes dropped."""
    return Rewriter(graph).run(lambda r, node, inputs: None)


def _alike(a: Type, b: Type) -> bool:
    """Whether two types are one but for the layout."""
    if a is b:
        return True
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype == b.dtype and a.shape == b.shape
    return a == b


# -- symbols ----------------------------------------------------------------------------------------------------------


def type_symbols(type: Type) -> dict[str, Var]:
    """The symbols in a type."""
    if isinstance(type, OpenType):
        return {}
    if not isinstance(type, TensorType):
        return type_symbols(type.element)
    found: dict[str, Var] = {}
    for d in type.shape:
        if isinstance(d, Expr):
            found.update(free_vars(d))
    return found


def attribute_symbols(value: Any) -> dict[str, Var]:
    """The symbols in an attribute's value; of a sub-graph, those that it does not bind itself."""
    if isinstance(value, Operator):
        value = tuple(value.attributes().values())
    found: dict[str, Var] = {}
    if isinstance(value, Expr):
        found.update(free_vars(value))
    elif isinstance(value, (tuple, list)):
        for v in value:
            found.update(attribute_symbols(v))
    elif isinstance(value, Graph):
        bound = bound_symbols(value)
        found.update({n: v for n, v in mentioned_symbols(value).items() if n not in bound})
    return found


def bound_symbols(graph: Graph) -> dict[str, Var]:
    """The symbols that the graph binds: bare dimensions of its inputs, and its data symbols."""
    found = {name: Var(name) for name in graph.symbols}
    for value in graph.inputs:
        if isinstance(value.type, TensorType):
            found.update({d.name: d for d in value.type.shape if isinstance(d, Var)})
    return found


def mentioned_symbols(graph: Graph) -> dict[str, Var]:
    """Every symbol that a type or attribute of the graph mentions."""
    found: dict[str, Var] = {}
    for value in graph.values():
        found.update(type_symbols(value.type))
    for node in graph.nodes:
        found.update(attribute_symbols(node.op))
    return found


def concrete(op: O, env: Mapping[str, int]) -> O:
    """`op` with the symbols of `env` replaced by their values in its formulas and sub-graphs."""
    if not env:
        return op
    old = op.attributes()
    new = {name: _substituted(value, env) for name, value in old.items()}
    changed = {name: value for name, value in new.items() if value is not old[name]}
    return replace(op, **changed) if changed else op


def _substituted(value: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(value, Expr):
        new = substitute(value, env)
        return value if new is value else as_dim(new)
    if isinstance(value, tuple):
        items = tuple(_substituted(v, env) for v in value)
        return items if any(a is not b for a, b in zip(items, value)) else value
    if isinstance(value, Operator):
        return concrete(value, env)
    if isinstance(value, Graph):
        return substitute_symbols(value, env) if any(n in env for n in mentioned_symbols(value)) else value
    return value


def substitute_type(type: Type, env: Mapping[str, Any]) -> Type:
    """The type with symbols replaced."""
    if isinstance(type, OpenType):
        return type
    if isinstance(type, SequenceType):
        return SequenceType(substitute_type(type.element, env))
    if isinstance(type, OptionalType):
        return OptionalType(substitute_type(type.element, env))
    if all(isinstance(d, int) for d in type.shape):
        return type
    return replace(type, shape=tuple(d if isinstance(d, int) else as_dim(substitute(d, env)) for d in type.shape))


def substitute_symbols(graph: Graph, env: Mapping[str, Any]) -> Graph:
    """A new graph with symbols replaced (by ints or formulas) in all types, attributes and sub-graphs."""
    new = Graph(graph.name, output_names=list(graph.output_names))
    values: dict[int, Value] = {}

    def copy(value: Value) -> Value:
        if id(value) not in values:
            values[id(value)] = Value(value.name, substitute_type(value.type, env), constant=value.constant)
        return values[id(value)]

    new.inputs = [copy(v) for v in graph.inputs]
    for node in graph.nodes:
        inputs = [None if v is None else copy(v) for v in node.inputs]
        new.nodes.append(Node(concrete(node.op, env), inputs, [copy(o) for o in node.outputs], node.names))
    new.outputs = [copy(v) for v in graph.outputs]
    new.symbols = {n: SymbolSource(copy(s.value), s.index) for n, s in graph.symbols.items() if n not in env}
    return new


# -- parts ------------------------------------------------------------------------------------------------------------


def map_subgraphs(op: O, function: Callable[[Graph], Graph]) -> O:
    """`op` with every graph among its attributes replaced."""

    def mapped(value: Any) -> Any:
        if isinstance(value, Graph):
            return function(value)
        if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
            return tuple(mapped(v) for v in value)
        return value

    old = op.attributes()
    changed = {k: n for k, n in ((k, mapped(v)) for k, v in old.items()) if n is not old[k]}
    return replace(op, **changed) if changed else op


def live_parts(graph: Graph) -> tuple[list[Node], dict[str, SymbolSource]]:
    """The nodes that an output needs and the symbols that something live mentions, in the order of the graph."""
    inside = {id(n) for n in graph.nodes}
    live: set[int] = set()
    stack: list[Node] = []
    symbols: set[str] = set()
    looked_at: set[int] = set()  # types, which values share

    def need(value: Value) -> None:
        producer = value.producer
        if producer is not None and id(producer) in inside and id(producer) not in live:
            live.add(id(producer))
            stack.append(producer)
        if graph.symbols and id(value.type) not in looked_at:
            looked_at.add(id(value.type))
            need_symbols(type_symbols(value.type))

    def need_symbols(names: Iterable[str]) -> None:
        for name in names:
            if name in graph.symbols and name not in symbols:
                symbols.add(name)
                need(graph.symbols[name].value)

    for value in (*graph.inputs, *graph.outputs):
        need(value)
    while stack:
        node = stack.pop()
        for v in node.inputs:
            if v is not None:
                need(v)
        if graph.symbols:
            for v in node.outputs:
                need(v)
            need_symbols(attribute_symbols(node.op))
    return [n for n in graph.nodes if id(n) in live], {n: s for n, s in graph.symbols.items() if n in symbols}


def drop_dead(graph: Graph) -> None:
    """Removes, in place, nodes that no output needs and symbols that nothing live mentions."""
    graph.nodes, graph.symbols = live_parts(graph)


def sort_nodes(graph: Graph) -> None:
    """Puts the nodes, in place, into an order where definitions come before uses, keeping the old order where it may.

    Raises:
        GraphError: there is a cycle; names its nodes.
    """
    index = {id(n): k for k, n in enumerate(graph.nodes)}
    order: list[Node] = []
    state: dict[int, int] = {}

    def before(node: Node) -> list[Node]:
        values = [v for v in node.inputs if v is not None]
        if graph.symbols:
            names = [*attribute_symbols(node.op), *(n for o in node.outputs for n in type_symbols(o.type))]
            values += [graph.symbols[n].value for n in names if n in graph.symbols]
        return sorted(
            {id(v.producer): v.producer for v in values if v.producer is not None and id(v.producer) in index}.values(),
            key=lambda n: index[id(n)],
        )

    for root in graph.nodes:
        stack: list[tuple[Node, list[Node]]] = [(root, before(root))] if id(root) not in state else []
        state.setdefault(id(root), 1)
        while stack:
            node, todo = stack[-1]
            if not todo:
                stack.pop()
                state[id(node)] = 2
                order.append(node)
                continue
            child = todo.pop(0)
            if state.get(id(child)) == 1 and child is not node:
                path = [n for n, _ in stack]
                raise cycle_error(path[path.index(child) :])
            if child is node:
                if any(v is not None and v.producer is node for v in node.inputs):
                    raise cycle_error([node])
                continue  # the symbol in its own output's type: a size that the node itself computes
            if id(child) not in state:
                state[id(child)] = 1
                stack.append((child, before(child)))
    graph.nodes = order


def cycle_error(nodes: list[Node]) -> GraphError:
    return GraphError(
        f"the graph has a cycle of {len(nodes)} node(s)",
        where="\n".join(repr(n) + (f"  # {', '.join(sorted(n.names))}" if n.names else "") for n in nodes),
        why="each of these needs a result of the next",
    )
