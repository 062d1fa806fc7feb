"""Gradients against differences of the operators' references, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, TensorType
from weft.graph.operator import Sample
from weft_training import vjp

Array = np.ndarray[Any, Any]
STEP = 1e-6
WITHIN = 2e-6
"""Of the difference quotient: the truncation is about STEP², the rounding of it 2⁻⁵² / STEP."""
MOST = 48
"""Elements of an operand that are moved one by one; of larger ones a choice."""


@dataclass(frozen=True)
class Applied:
    """A graph of one operator: operands of floats are its inputs in float64, others, and those by which it has no
    gradient, are constants."""

    graph: Graph
    inputs: dict[str, Array]


def applied(sample: Sample) -> Applied | None:
    """The sample in float64; None: it has no float operand, a float that is not finite, or no result of a float."""
    arrays = [a.astype(np.float64) if a is not None and dt.dtype(a.dtype).is_float else a for a in sample.inputs]
    floats = [a for a in arrays if a is not None and a.dtype == np.float64]
    if not floats or not all(np.isfinite(a).all() for a in floats):
        return None
    builder = GraphBuilder("sample")
    inputs: dict[str, Array] = {}
    values = []
    for k, a in enumerate(arrays):
        if a is not None and a.dtype == np.float64 and k not in sample.op.no_gradient_by:
            values.append(builder.input(f"x{k}", TensorType(dt.float64, a.shape)))
            inputs[f"x{k}"] = a
        else:
            values.append(None if a is None else builder.constant(a, f"c{k}"))
    wide = {k: dt.float64 for k, v in sample.op.attributes().items() if isinstance(v, dt.DType) and v.is_float}
    try:
        results = [v for v in builder.add_all(replace(sample.op, **wide), *values) if isinstance(v.type, TensorType)]
    except GraphError:
        return None  # its floats have to be narrower
    for k, value in enumerate(v for v in results if v.dtype.is_float):
        builder.output(value, f"y{k}")
    graph = builder.build()
    return Applied(graph, inputs) if graph.outputs else None


def quotients(
    graph: Graph, inputs: dict[str, Array], seeds: Sequence[Array], name: str, at: int
) -> tuple[float, float]:
    """Difference quotients of Σ seed · output, to the left and to the right."""

    def total(by: float) -> np.longdouble:
        moved = inputs[name].copy()
        moved.reshape(-1)[at] += by
        results = evaluate(graph, inputs | {name: moved})
        return sum((np.sum(s.astype(np.longdouble) * r) for s, r in zip(seeds, results)), np.longdouble(0))

    here, left, right = total(0.0), total(-STEP), total(STEP)
    return float((here - left) / STEP), float((right - here) / STEP)


def check(case: Applied, seed: int = 0) -> int:
    """Compares every gradient with differences; the number of elements compared.

    Where the quotients to the left and to the right differ, the function has a corner or a jump: there the gradient
    must lie between them, or be whatever it is at a jump.
    """
    rng = np.random.default_rng(seed)
    graph = case.graph
    seeds = [rng.uniform(0.5, 1.5, r.shape) * rng.choice([-1, 1], r.shape) for r in evaluate(graph, case.inputs)]
    backward = vjp(graph, unreached="zeros")
    names = [v.name for v in graph.inputs]
    given = case.inputs | {v.name: s for v, s in zip(backward.inputs[len(names) :], seeds)}
    gradients = evaluate(backward, given)
    compared = 0
    for name, gradient in zip(names, gradients):
        x = case.inputs[name]
        assert gradient.shape == x.shape and gradient.dtype == np.float64
        places = range(x.size) if x.size <= MOST else rng.choice(x.size, MOST, replace=False)
        scale = max(1.0, float(np.max(np.abs(gradient), initial=0.0)))
        for at in map(int, places):
            left, right = quotients(graph, case.inputs, seeds, name, at)
            got = float(gradient.reshape(-1)[at])
            if abs(left - right) > 1e-3 * max(1.0, abs(left), abs(right)):
                if max(abs(left), abs(right)) < 1e4:
                    assert min(left, right) - 1e-3 <= got <= max(left, right) + 1e-3, (name, at, got, left, right)
                    compared += 1
                continue
            if min(abs(left), abs(right)) > 0.1 / STEP:
                continue  # a jump to both sides, as of x / |x| at 0
            middle = (left + right) / 2
            if np.isnan(middle):
                assert np.isnan(got), (name, at, got)
                continue
            assert abs(got - middle) <= WITHIN * scale + 1e-5 * abs(middle), (name, at, got, middle)
            compared += 1
    return compared
