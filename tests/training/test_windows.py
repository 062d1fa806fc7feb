"""Gradients of products, convolutions, pools, resampling and normalisations, beyond first differences of samples: sizes
that only a run knows, gradients of gradients, narrow floats, kernels, and PyTorch's gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.training.differences import Applied, applied, check
from tests.training.test_movement import close, graph_of, with_seeds

import weft
import weft_ops as ops
from weft.errors import GraphError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.operator import Sample
from weft_training import vjp

Array = np.ndarray[Any, Any]
MODULES = ["contraction", "image", "normalization", "resizing", "sampling", "window"]
CASES = [
    pytest.param(sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ops.ALL_OPERATORS
    if op.__module__.rpartition(".")[2] in MODULES and not op.no_gradient
    for k, sample in enumerate(op.samples())
    if applied(sample) is not None
]


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_of_open_sizes_is_that_of_known_ones(sample: Sample) -> None:
    try:
        graph = graph_of(sample, open_sizes=True)
    except GraphError:
        pytest.skip("attributes name a size, or the operator needs a number")
    wrt = differentiable(sample)
    known = graph_of(sample)
    backward_open, backward = vjp(graph, wrt=wrt, unreached="zeros"), vjp(known, wrt=wrt, unreached="zeros")
    given = with_seeds(known, {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}, backward)
    close(evaluate(backward_open, given), evaluate(backward, given))


def differentiable(sample: Sample) -> list[str]:
    """The operands by which the operator has a gradient."""
    names = [k for k, a in enumerate(sample.inputs) if a is not None and a.dtype.kind not in "biu"]
    return [f"x{k}" for k in names if k not in sample.op.no_gradient_by]


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_of_the_gradient_agrees_with_differences(sample: Sample) -> None:
    case = applied(sample)
    assert case is not None
    backward = vjp(case.graph, unreached="zeros")
    check(Applied(backward, with_seeds(case.graph, case.inputs, backward)), seed=2)


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_computed_by_kernels(sample: Sample) -> None:
    graph = graph_of(sample)
    backward = vjp(graph, wrt=differentiable(sample), unreached="zeros")
    given = with_seeds(graph, {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}, backward)
    results = weft.compile(backward, "llvm", cache=False)(*(given[v.name] for v in backward.inputs))
    close(list(results) if isinstance(results, (tuple, list)) else [results], evaluate(backward, given), 2e-2, 1e-4)
