"""`grad`, `vjp` and `jvp`: derivatives of a graph as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from weft.errors import GraphError, UnsupportedError, nearest
from weft.graph.nodes import Graph, GraphBuilder, Value
from weft.graph.rewrite import Rewriter, copy_graph, drop_dead
from weft_ops import Add, Fill
from weft_training.reverse import differentiable_parts, gradients, is_float

Names: TypeAlias = "str | Value | Iterable[str | Value]"
"""Values of a graph, by name or themselves."""
Unreached: TypeAlias = Literal["error", "zeros"]


def grad(
    graph: Graph,
    of: str | Value | None = None,
    wrt: Names | None = None,
    *,
    values: bool = False,
    unreached: Unreached = "error",
) -> Graph:
    """The graph of the gradients of one value by others.

    Args:
        graph: as a frontend or a GraphBuilder makes it, before graph passes. It stays as it is.
        of: the value that is differentiated, of a float dtype; None: the only output. Of a value of several elements
            it is the gradient of their sum.
        wrt: the values by which: inputs, constants (the weights of a model) or results of nodes; None: all inputs of
            float dtypes.
        values: the outputs of `graph` are outputs too, before the gradients.
        unreached: what a value has of which `of` is independent, or on which it depends only by jumps: an error, or
            zeros.

    Returns:
        A graph with the inputs of `graph`, and one output for each of `wrt`, of its type, named `gradient_<name>`.

    Raises:
        GraphError: there is no value of that name, or it is no float.
        UnsupportedError: an operator on the way has no gradient, or no gradient reaches one of `wrt`.
    """
    work = _Work(graph, None if of is None else [of], wrt)
    if len(work.of) != 1:
        raise GraphError(
            f"one value is differentiated, got {len(work.of)}",
            where=", ".join(v.name for v in work.of),
            hint="name it: of=…; `vjp` takes several",
        )
    seeds = [work.builder.add(Fill(v.dtype, v.shape, 1), name=f"seed_{v.name}") for v in work.of]
    return work.finished(work.reversed(seeds, unreached), "gradient", values)


def vjp(
    graph: Graph,
    of: Names | None = None,
    wrt: Names | None = None,
    *,
    values: bool = False,
    unreached: Unreached = "error",
) -> Graph:
    """The graph of the gradients of Σ seed · value: the product of given gradients and the Jacobian.

    As `grad`, but of several values (None: all outputs of float dtypes), each of which has a further input, its
    gradient, of its type, named `seed_<name>`.
    """
    work = _Work(graph, of, wrt)
    seeds = work.given("seed", work.of_names, work.of)
    return work.finished(work.reversed(seeds, unreached), "gradient", values)


def jvp(graph: Graph, of: Names | None = None, wrt: Names | None = None, *, values: bool = False) -> Graph:
    """The graph of the derivatives of values along a direction: the product of the Jacobian and tangents.

    As `vjp`, but each of `wrt` has a further input, the tangent along it, of its type, named `tangent_<name>`, and the
    outputs are one for each of `of`, of its type, named `tangent_<name>`: zeros where it depends on none of `wrt`.

    The product of gradients and the Jacobian is linear in the gradients, and its own gradient by them is this one
    (Christianson, Automatic Hessians by reverse accumulation, 1992).
    """
    work = _Work(graph, of, wrt)
    seeds = work.given("seed", work.of_names, work.of)
    products = work.reversed(seeds, "zeros")
    tangents = work.given("tangent", work.wrt_names, work.wrt)
    pairs = dict(zip(products, tangents))
    found = gradients(work.builder, list(work.graph.nodes), pairs, seeds)
    results = [work.zeros(v) if t is None else t for v, t in zip(work.of, found)]
    work.graph.inputs = [v for v in work.graph.inputs if v not in seeds]
    done = work.finished(results, "tangent", values, work.of_names)
    used = {id(v) for n in done.nodes for v in n.inputs if v is not None} | {id(v) for v in done.outputs}
    if left := [v.name for v in seeds if id(v) in used]:
        raise UnsupportedError(
            "no derivative along a direction",
            where=", ".join(left),
            why="the gradient of an operator on the way is not linear in the gradient that it is given",
        )
    return done


class _Work:
    """A copy of a graph whose operators all can be differentiated, and a builder that adds to it."""

    def __init__(self, graph: Graph, of: Names | None, wrt: Names | None) -> None:
        chosen = _chosen(graph, graph.outputs if of is None else of, "of", drop=of is None)
        by = _chosen(graph, graph.inputs if wrt is None else wrt, "wrt", drop=wrt is None)
        constants = [v.name for v in by if v.constant is not None]
        whole = Graph(graph.name, list(graph.inputs), list(graph.outputs), list(graph.nodes), dict(graph.symbols))
        whole.output_names = list(graph.output_names or [v.name for v in graph.outputs])
        extra = [v for v in (*chosen, *by) if v.producer is not None]
        whole.outputs += extra
        whole.output_names += [v.name for v in extra]
        rewriter = Rewriter(differentiable_parts(copy_graph(whole)))
        self.graph = rewriter.run(lambda r, node, inputs: None)
        self.builder: GraphBuilder = rewriter.builder
        # What stands for a node's result may be a value of another name: an input, where a part passes it on.
        named = {v.name: v for v in self.graph.values()}
        named |= {v.name: w for v, w in zip(extra, self.graph.outputs[len(graph.outputs) :])}
        for name in constants:
            if name not in named:  # nothing that is left uses it
                data = next(v for v in by if v.name == name).constant
                named[name] = self.builder.constant(data, name)
        del self.graph.outputs[len(graph.outputs) :], self.graph.output_names[len(graph.outputs) :]
        self.of, self.wrt = [named[v.name] for v in chosen], [named[v.name] for v in by]
        self.of_names, self.wrt_names = [v.name for v in chosen], [v.name for v in by]

    def reversed(self, seeds: Sequence[Value], unreached: Unreached) -> list[Value]:
        """The gradients by `wrt`, each of its type."""
        nodes = list(self.graph.nodes)
        total: dict[Value, Value] = {}
        for value, seed in zip(self.of, seeds):
            total[value] = self.builder.add(Add(), total[value], seed) if value in total else seed
        found = gradients(self.builder, nodes, total, self.wrt)
        missing = [v.name for v, g in zip(self.wrt, found) if g is None]
        if missing and unreached == "error":
            raise UnsupportedError(
                f"no gradient reaches {', '.join(repr(n) for n in missing[:8])}" + (", …" if len(missing) > 8 else ""),
                where=f"gradients of {', '.join(v.name for v in self.of)}",
                why="it does not depend on them, or only by jumps, as through rounding, comparisons and indices",
                hint='unreached="zeros" gives zeros for them',
            )
        return [self.zeros(v) if g is None else g for v, g in zip(self.wrt, found)]

    def zeros(self, like: Value) -> Value:
        return self.builder.add(Fill(like.dtype, like.shape, 0), name=f"zeros_{like.name}")

    def given(self, prefix: str, names: Sequence[str], like: Sequence[Value]) -> list[Value]:
        """Further inputs, of the types of values."""
        return [self.builder.input(f"{prefix}_{name}", v.type) for name, v in zip(names, like)]

    def finished(
        self, results: Sequence[Value], prefix: str, values: bool, names: Sequence[str] | None = None
    ) -> Graph:
        """The graph with these outputs, dead nodes dropped."""
        graph = self.graph
        if not values:
            graph.outputs, graph.output_names = [], []
        for name, result in zip(self.wrt_names if names is None else names, results):
            graph.outputs.append(result)
            graph.output_names.append(f"{prefix}_{name}")
        drop_dead(graph)
        return graph


def _chosen(graph: Graph, names: Names, what: str, drop: bool) -> list[Value]:
    """The values of the graph; with `drop`, those that are floats.

    Raises:
        GraphError: there is none of that name, one is no float or given twice, or none is left.
    """
    wanted = [names] if isinstance(names, (str, Value)) else list(names)
    known = {v.name: v for v in graph.values()}
    outputs = dict(zip(graph.output_names, graph.outputs))
    found: list[Value] = []
    for name in wanted:
        text = name.name if isinstance(name, Value) else name
        value = known.get(text) or (outputs.get(text) if isinstance(name, str) else None)
        if value is None or (isinstance(name, Value) and value is not name):
            close = nearest(text, [*known, *outputs])
            raise GraphError(
                f"there is no value '{text}' in graph '{graph.name}'",
                where=what,
                hint=f"did you mean '{close}'?" if close else None,
            )
        if drop and not is_float(value):
            continue
        if not is_float(value):
            raise GraphError(f"'{text}' is a {value.type}: derivatives are those of floats by floats", where=what)
        if value in found:
            raise GraphError(f"'{text}' is given twice", where=what)
        found.append(value)
    if not found:
        raise GraphError(f"graph '{graph.name}' has no value of a float dtype to differentiate", where=what)
    return found
