"""Every operator has a gradient that agrees with differences, or a reason why it has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.training.differences import applied, check

from weft.errors import UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.graph.operator import Operator, Sample
from weft_ops import ALL_OPERATORS, Detach, Multiply, Relu, TopK, Where
from weft_training import vjp


def distinct(sample: Sample) -> Sample:
    """The sample without equal elements: of three that share several places of an order, each has the gradient of one
    place, which need not lie between those of the first and the last."""
    arrays = [None if a is None else a + 1e-3 * np.arange(a.size).reshape(a.shape) for a in sample.inputs]
    return replace(sample, inputs=tuple(arrays)) if sample.name.startswith("heap") else sample


CASES = [
    pytest.param(op, sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ALL_OPERATORS
    for k, sample in enumerate(map(distinct if op is TopK else lambda s: s, op.samples()))
    if applied(sample) is not None
]


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_the_gradient_agrees_with_differences(op: type[Operator], sample: Sample) -> None:
    case = applied(sample)
    assert case is not None
    if op.no_gradient:
        with pytest.raises(UnsupportedError, match=f"no gradient passes {op.operator_name}") as caught:
            check(case)
        assert caught.value.why == op.no_gradient
        return
    compared = check(case)
    assert compared or not any(a.size for a in case.inputs.values())


def test_no_gradient_passes_what_is_detached() -> None:
    b = GraphBuilder("detached")
    x = b.input("x", tensor_type("float64", [2, 2]))
    first_row = b.constant(np.array([[True], [False]]))
    b.output(b.add(Multiply(), x, b.add(Detach(), x)), "whole")
    b.output(b.add(Detach(), x, first_row), "part")
    graph = b.build()
    values, seeds = np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6], [7, 8]])
    whole, part = (evaluate(vjp(graph, of), [values, seeds])[0] for of in ("whole", "part"))
    assert np.array_equal(whole, values * seeds)
    assert np.array_equal(part, [[0, 0], [7, 8]])


def test_what_is_not_taken_has_no_gradient_of_nan() -> None:
    b = GraphBuilder("taken")
    x = b.input("x", tensor_type("float64", [3]))
    y = b.input("y", tensor_type("float64", [3]))
    b.output(b.add(Where(), b.constant(np.array([True, False, True])), x, y), "chosen")
    b.output(b.add(Relu(), x), "relu")
    given = [np.array([1.0, 2, -3]), np.zeros(3)]
    seed = np.array([np.nan, np.inf, np.nan])
    by_x, by_y = evaluate(vjp(b.build(), "chosen"), [*given, seed])
    assert np.array_equal(by_x, [np.nan, 0, np.nan], equal_nan=True)
    assert np.array_equal(by_y, [0, np.inf, 0])
    (by_x,) = evaluate(vjp(b.build(), "relu", "x"), [*given, seed])
    assert np.array_equal(by_x, [np.nan, np.inf, 0], equal_nan=True)
