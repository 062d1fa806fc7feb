"""The first node of a graph whose value is not that of another source: of the graph before a pass, or of an engine that
runs the same model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.graph.evaluate import Inputs, apply, steps
from weft.graph.nodes import Graph, Node, TensorType, Type
from weft_testing.verify.measure import Bound, Difference, compare, scale_of
from weft_testing.verify.rounding import tolerated

SLACK = 8.0
"""Both sides round, and several nodes may stand where the other side has one."""


@dataclass(frozen=True)
class Departure:
    """A node that gives another value than the other source for the same inputs."""

    node: Node
    value: str
    difference: Difference


def first_departure(
    graph: Graph,
    inputs: Inputs,
    known: Collection[str],
    other: Callable[[str], Any],
    bound: Bound,
    symbols: Mapping[str, int] | None = None,
) -> Departure | None:
    """Evaluates `graph`, every node on the other source's values as far as it knows them: what departs does so by
    itself.

    Args:
        known: names of the values that the other source has.
        other: the value of that name; asked in the order of the graph, for each once.
    """
    found: list[Departure] = []
    carried: dict[int, float] = {}  # id(value) → what may be off already, of values that the other source does not have

    def run(node: Node, arrays: list[Any], env: Mapping[str, int]) -> tuple[Any, ...]:
        results = list(apply(node, arrays, env))
        before = max((carried.get(id(v), 0.0) for v in node.inputs if v is not None), default=0.0)
        for k, value in enumerate(node.outputs):
            error = before + _relative(tolerated(node, arrays, results[k]), results[k])
            if value.name not in known:
                carried[id(value)] = error
                continue
            expected = other(value.name)
            if expected is None:
                carried[id(value)] = error
                continue
            allowed = bound.of(expected) if bound.given else SLACK * error * scale_of(expected)
            difference = compare(results[k], expected, allowed)
            if difference.wrong and not found:
                found.append(Departure(node, value.name, difference))
            if (
                difference.at is not None or not difference.wrong
            ):  # the same type: what follows is judged on the same ground
                results[k] = expected
        return tuple(results)

    walk = steps(graph, inputs, symbols, run)
    for _ in walk:
        if found:
            return found[0]
    return None


def _relative(error: float, array: Any) -> float:
    scale = scale_of(array)
    return error / scale if scale else 0.0


class Values:
    """The values of a graph by name, as its evaluation comes to them; one is held until it is asked for."""

    def __init__(
        self, graph: Graph, inputs: Inputs, wanted: Collection[str], symbols: Mapping[str, int] | None = None
    ) -> None:
        self.names = {v.name for n in graph.nodes for v in n.outputs} & set(wanted)
        self._walk: Iterator[tuple[Node, tuple[Any, ...]]] = steps(graph, inputs, symbols)
        self._held: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        while name not in self._held:
            found = next(self._walk, None)
            if found is None:
                return None
            self._held.update((v.name, r) for v, r in zip(found[0].outputs, found[1]) if v.name in self.names)
        return self._held.pop(name)


def comparable(a: Type, b: Type) -> bool:
    """Whether two values of one name may be held against each other: their types are the same, but for how they are
    stored."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.with_layout(None) == b.with_layout(None)
    return a == b
