"""Which graph pass changes what a graph means, by evaluating the graph after passes with the operators' references."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.graph.evaluate import Inputs, evaluate
from weft.graph.nodes import Graph
from weft.graph.rewrite import copy_graph
from weft.passes.capabilities import Capabilities
from weft.passes.pipeline import GraphPass, run_passes
from weft_testing.verify.departure import Departure, Values, comparable, first_departure
from weft_testing.verify.measure import Bound, Difference, compare, worst
from weft_testing.verify.rounding import allowed_errors


@dataclass(frozen=True)
class WrongPass:
    """A pass after which a graph gives other results than before; `departure` is the first value that is another one,
    if values of both can be told."""

    name: str
    difference: Difference
    departure: Departure | None
    before: Graph
    after: Graph


@dataclass(frozen=True)
class Passes:
    """Some passes in order: those of the core and of `extra` that `only` names (None: all)."""

    capabilities: Capabilities
    extra: Sequence[GraphPass] = ()
    only: Container[str] | None = None

    def names(self, graph: Graph) -> list[str]:
        """Those that run."""
        ran: list[str] = []
        run_passes(
            copy_graph(graph),
            self.capabilities,
            self.extra,
            lambda name, g, seconds: ran.append(name),
            check=False,
            only=self.only,
        )
        return ran

    def after(self, graph: Graph, count: int) -> Graph:
        """The graph after the first so many passes. They are run again: graphs of every pass would hold the weights of
        every pass."""
        if not count:
            return graph
        ran = 0

        def stop(name: str, result: Graph, seconds: float) -> None:
            nonlocal ran
            ran += 1
            if ran == count:
                raise _Enough(copy_graph(result))

        try:
            run_passes(copy_graph(graph), self.capabilities, self.extra, stop, check=False, only=self.only)
        except _Enough as enough:
            return enough.graph
        raise AssertionError(f"there are {ran} passes only")


class _Enough(Exception):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph


def first_wrong_pass(
    graph: Graph,
    passes: Passes,
    inputs: Inputs,
    want: Sequence[Any],
    bound: Bound,
    show: Callable[[str], None],
    symbols: Mapping[str, int] | None = None,
) -> WrongPass | None:
    """The first pass after which results are wrong, by bisection; None if they are right after the last one.

    Args:
        want: the outputs of `graph`.
    """
    names = passes.names(graph)
    right, wrong = 0, len(names)
    difference = off(passes.after(graph, wrong), inputs, want, bound, symbols) if names else None
    if difference is None or not difference.wrong:
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        show(f"the graph after {names[middle - 1]}")
        found = off(passes.after(graph, middle), inputs, want, bound, symbols)
        if found.wrong:
            wrong, difference = middle, found
        else:
            right = middle
    show(f"the values before and after {names[wrong - 1]}")
    before, after = passes.after(graph, wrong - 1), passes.after(graph, wrong)
    return WrongPass(names[wrong - 1], difference, _departure(before, after, inputs, bound, symbols), before, after)


def off(
    graph: Graph, inputs: Inputs, want: Sequence[Any], bound: Bound, symbols: Mapping[str, int] | None = None
) -> Difference:
    """How far a graph's results are from those wanted: the worst of them."""
    got = evaluate(graph, inputs, symbols=symbols)
    exact = worst([compare(g, w, bound.of(w) if bound.given else 0.0) for g, w in zip(got, want, strict=True)])
    if not exact.wrong or bound.given:
        return exact
    return worst(
        [compare(g, w, a) for g, w, a in zip(got, want, allowed_errors(graph, inputs, got, symbols), strict=True)]
    )


def _departure(
    before: Graph, after: Graph, inputs: Inputs, bound: Bound, symbols: Mapping[str, int] | None
) -> Departure | None:
    types = {v.name: v.type for n in before.nodes for v in n.outputs}
    common = {v.name for n in after.nodes for v in n.outputs if v.name in types and comparable(v.type, types[v.name])}
    values = Values(before, inputs, common, symbols)
    return first_departure(after, inputs, common, values, bound, symbols)
