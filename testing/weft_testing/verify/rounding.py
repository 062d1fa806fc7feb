"""How far a graph's results may be from what its references give, each operator being off by as much as it may.

Monte Carlo arithmetic (Parker, 1997): the graph is evaluated again, each node's result off by its operator's tolerance,
up or down at random. How far this takes the results is what rounding may do to them, be it amplified or not, and an
integer that comes of floats near a threshold may come out otherwise.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.graph.evaluate import Inputs, apply, steps
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft_ops.precision import widen
from weft_testing.verify.measure import eps, is_numeric, scale_of

Array: TypeAlias = np.ndarray[Any, Any]

MARGIN = 4.0
"""How much further than a random walk takes results they may be: in a sum of few terms all errors may point the same
way."""
USUAL = 0.99
"""The share of elements whose deviation is taken for usual; what deviates more is a jump (a rounding to integers, a
choice), allowed only where it was seen."""


def allowed_errors(
    graph: Graph,
    inputs: Inputs,
    want: Sequence[Any],
    symbols: Mapping[str, int] | None = None,
    seeds: Sequence[int] = (0, 1),
) -> list[Any]:
    """The largest absolute error of each element of each output: its own operator's tolerance, and what those before
    may have done to it.

    Args:
        want: the outputs as `evaluate` gives them.
        seeds: one evaluation for each.
    """
    deviations: list[list[Any]] = [[] for _ in want]
    own: list[float] = [0.0] * len(want)
    for seed in seeds:
        shaken = _Shaken(seed)
        results = shaken.outputs(graph, inputs, symbols)
        if any(_left_domain(got, exact) for got, exact in zip(results, want)):
            results = _Shaken(seed, by_element=True).outputs(graph, inputs, symbols)
        for k, (got, exact) in enumerate(zip(results, want)):
            if is_numeric(exact) and is_numeric(got) and got.shape == exact.shape:
                deviations[k].append(_deviation(got, exact))
        own = [max(a, shaken.own.get(id(v), 0.0)) for a, v in zip(own, graph.outputs)]
    return [_allowed(o, d, w) for o, d, w in zip(own, deviations, want)]


def _left_domain(got: Any, exact: Any) -> bool:
    """Whether errors made elements infinite or NaN that are neither: an element near 0 left the domain of a logarithm
    or a root, by an error in proportion to the greatest element."""
    return (
        is_numeric(exact)
        and is_numeric(got)
        and got.shape == exact.shape
        and bool(np.any(np.isfinite(exact) & ~np.isfinite(got)))
    )


def _deviation(got: Array, exact: Array) -> Array:
    with np.errstate(all="ignore"):
        off = np.abs(_wide(got) - _wide(exact)).astype(np.float64)
    return np.where(np.isfinite(off), off, 0.0)


def _wide(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.clongdouble)
    return array.astype(np.longdouble) if array.dtype.kind in "biu" else widen(array)


def _allowed(own: float, deviations: Sequence[Array], want: Any) -> Any:
    if not deviations:
        return own
    most = np.max(np.stack(deviations), axis=0)
    if not most.size or not most.any():
        return own
    if want.dtype.kind == "b":
        return own + most
    if want.dtype.kind in "iu":  # steps of a quantization: any of them may be off by one, if some are
        return own + np.maximum(most, min(1.0, float(most.max())))
    allowed = own + MARGIN * np.maximum(most, np.quantile(most, USUAL))
    return allowed[..., None] if want.dtype.kind == "c" else allowed


def tolerated(node: Node, arrays: Sequence[Any], result: Any) -> float:
    """The largest absolute error of a result of a node, by its operator's own tolerance; 0 of integers."""
    if not is_numeric(result) or not result.size or not eps(result):
        return 0.0
    types = [TensorType(dt.dtype(a.dtype), a.shape) for a in arrays if isinstance(a, np.ndarray)]
    return node.op.tolerance(*types) * eps(result) * scale_of(result)


def drain(walk: Generator[object, None, list[Any]]) -> list[Any]:
    """The outputs of an evaluation, run to its end."""
    while True:
        try:
            next(walk)
        except StopIteration as done:
            outputs: list[Any] = done.value
            return outputs


class _Shaken:
    """An evaluation with errors. Nodes that give the outputs are exact: `own` is what each of these outputs may be off
    by itself.

    Tolerances are in proportion to a result's greatest element. `by_element`: to each element's own terms instead,
    where the operator's kind says what these are: the element itself (elementwise), or the sum of its terms'
    magnitudes (reductions, products; Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    """

    def __init__(self, seed: int, by_element: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.by_element = by_element
        self.own: dict[int, float] = {}

    def outputs(self, graph: Graph, inputs: Inputs, symbols: Mapping[str, int] | None, exact: bool = True) -> list[Any]:
        ends = {id(v) for v in graph.outputs} if exact else frozenset[int]()
        walk = steps(
            graph,
            inputs,
            symbols,
            lambda node, arrays, env: self.run(node, arrays, env, any(id(o) in ends for o in node.outputs)),
        )
        return drain(walk)

    def run(self, node: Node, arrays: Sequence[Any], env: Mapping[str, int], exact: bool) -> tuple[Any, ...]:
        if isinstance(node.op, Group):
            inner = self.outputs(node.op.body, [a for a in arrays if a is not None], env, exact)
            self.own.update((id(o), self.own.get(id(i), 0.0)) for o, i in zip(node.outputs, node.op.body.outputs))
            return tuple(inner)
        results = apply(node, arrays, env)
        return tuple(self.off(node, arrays, env, value, result, exact) for value, result in zip(node.outputs, results))

    def off(
        self, node: Node, arrays: Sequence[Any], env: Mapping[str, int], value: Value, result: Any, exact: bool
    ) -> Any:
        error = tolerated(node, arrays, result)
        if exact:
            self.own[id(value)] = error
        if exact or not error:
            return result
        with np.errstate(all="ignore"):
            wide = result.astype(np.complex128) if result.dtype.kind == "c" else widen(result)
            sign = np.where(self.random.integers(0, 2, result.shape, dtype=np.int8), 1.0, -1.0)
            if self.by_element:
                sign *= _share(node, arrays, env, wide)
            return (wide + sign * error).astype(result.dtype)


def _share(node: Node, arrays: Sequence[Any], env: Mapping[str, int], wide: Array) -> Any:
    """The terms of each element of a node's only result over its greatest element, at most 1."""
    if node.op.kind == "elementwise":
        terms = np.abs(wide)
    elif node.op.kind in ("reduction", "contraction", "window") and len(node.outputs) == 1:
        terms = np.abs(widen(apply(node, [np.abs(a) if eps(a) else a for a in arrays], env)[0]))
    else:
        return 1.0
    share = terms / np.max(np.abs(wide[np.isfinite(wide)]))
    return np.where(np.isfinite(share), np.minimum(share, 1.0), 1.0)
