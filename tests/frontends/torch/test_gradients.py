"""Gradients of a part of the operators that PyTorch differentiates; `--full`: of all of them."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch", "expecttest")
import torch
from tests.frontends.torch.coverage import named
from tests.frontends.torch.gradients import COUNTED, UNTRUE, differentiable, judge, run
from tests.frontends.torch.judging import Case, sampled
from torch.nn import functional as F

import weft
from weft.graph.evaluate import evaluate

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]


def test_no_gradient_is_wrong(request: pytest.FixtureRequest) -> None:
    chosen = differentiable()[:: 1 if request.config.getoption("--full") else 40]
    results = list(run(chosen))
    bad = [r for r in results if r.verdict in ("wrong", "failed")]
    assert not bad, "\n".join(f"{r.name}: {r.verdict}: {r.reason}" for r in bad)
    agreeing = sum(r.verdict == "agrees" for r in results)
    assert agreeing >= 0.9 * sum(r.verdict in COUNTED for r in results)


class Halved(torch.autograd.Function):
    """x, with half of its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 2


def case(function: Any, *tensors: torch.Tensor) -> Case:
    return Case("case", *sampled(function, tensors, {}))


def test_a_gradient_that_differs_is_wrong() -> None:
    x = torch.ones(3, dtype=torch.float64)
    halved = judge(case(Halved.apply, x), [True])
    assert halved.verdict == "wrong" and "gradient" in halved.reason
    assert judge(case(lambda x: x * 1.0, x), [True]).verdict == "agrees"


def test_an_unused_argument_has_zeros() -> None:
    x, y = torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert judge(case(lambda x, y: x * 2.0, x, y), [True, True]).verdict == "agrees"


Z = torch.tensor([[0.0, 0, 0], [1, -2, 0]])
"""With a row of zeros."""
CORNERS: dict[str, tuple[Any, ...]] = {
    "norms": (lambda x: torch.stack([torch.linalg.vector_norm(x, p, dim=1) for p in (1, 2, 3)]), Z),
    "normalized": (lambda x: F.normalize(x, dim=1), Z),
    "distances": (lambda x: torch.cdist(x, x), Z),
    "deviations": (lambda x: x.std(1), Z),
    "similarity": (lambda x, y: F.cosine_similarity(x, y), Z, Z + 1),
    "angles": (torch.atan2, torch.tensor([0.0, 1, 1, -1, 0, 0]), torch.tensor([1.0, 1, 0, -1, -1, 0])),
    "sinc": (torch.sinc, torch.tensor([0.0, 0.5, 1])),
    "x · log": (lambda x: torch.xlogy(x, torch.tensor([3.0, 0, 2])), torch.tensor([0.0, 0, 2])),
    "x · log1p": (lambda x: torch.special.xlog1py(x, torch.tensor([3.0, -1, 2])), torch.tensor([0.0, 0, 2])),
    "gammas": (lambda x: torch.lgamma(x) + torch.digamma(x), torch.tensor([1.0, 2, 3, 0.5])),
    "errors": (lambda x: torch.special.erfcx(x) + torch.special.log_ndtr(-x), torch.tensor([-2.0, 0, 2, 30])),
    "quantiles": (torch.erfinv, torch.tensor([0.0, 1e-9, 0.5])),
    "bessel": (lambda x: torch.special.i1e(x) + torch.special.i1(x) + torch.special.i0(x), torch.tensor([0.0, 3])),
    "parts": (lambda x: torch.frexp(x)[0], torch.tensor([0.0, 0.75, -5])),
    "next": (torch.nextafter, torch.tensor([0.0, 1, -2]), torch.tensor([1.0, 1, -3])),
    "masked": (lambda x: F.softmax(x.masked_fill(Z == 0, -math.inf), 1).nan_to_num(), Z + 1),
    "detached": (lambda x: x.detach() * x, Z),
    "padding": (lambda w: F.embedding(torch.tensor([0, 1, 0]), w, padding_idx=0), Z),
    "exponentials": (torch.linalg.matrix_exp, torch.tensor([[0.0, 1], [0, 0]])),
    "large exponentials": (torch.linalg.matrix_exp, torch.tensor([[3.0, 1], [-2, 4]])),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    function, *tensors = CORNERS[name]
    result = judge(case(function, *(x.double() for x in tensors)), [True] * len(tensors))
    assert result.verdict == "agrees", result


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_entropy_of_certain_probabilities(target: float) -> None:
    """At 0 and 1 the gradient is that of the logarithm that is finite; PyTorch's has a bound of its own there."""
    given = torch.tensor([target, 0.5], dtype=torch.float64), torch.full((2,), target, dtype=torch.float64)
    module, tensors = sampled(F.binary_cross_entropy, given, {})
    gradient, _ = evaluate(weft.vjp(weft.load(module, inputs=tensors)), [*(x.numpy() for x in tensors), np.array(1.0)])
    assert np.allclose(gradient, [0.5 - target, 1 - 2 * target])


def test_results_without_gradients_are_not_counted() -> None:
    assert judge(case(torch.argmax, torch.ones(3, dtype=torch.float64)), [True]).verdict not in COUNTED


def test_what_pytorch_itself_gets_wrong_is_switched_off_there() -> None:
    entries = {named(op): op for op in differentiable() if named(op) in UNTRUE}
    assert set(entries) == set(UNTRUE)
    for name, op in entries.items():
        off = [(s.cls_name, s.test_name, s.device_type) for s in op.skips if hasattr(s, "cls_name")]
        assert ("TestBwdGradients", "test_fn_grad", None) in off, name
