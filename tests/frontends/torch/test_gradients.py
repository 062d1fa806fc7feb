"""Gradients of a part of the operators that PyTorch differentiates; `--full`: of all of them."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from typing import Any

import pytest
from tests.needs import require

require("torch", "expecttest")
import torch
from tests.frontends.torch.gradients import COUNTED, UNTRUE, differentiable, judge, run
from tests.frontends.torch.judging import Case, sampled

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


def test_results_without_gradients_are_not_counted() -> None:
    assert judge(case(torch.argmax, torch.ones(3, dtype=torch.float64)), [True]).verdict not in COUNTED


def test_what_pytorch_itself_gets_wrong_is_switched_off_there() -> None:
    entries = {op.formatted_name: op for op in differentiable() if op.name in UNTRUE}
    assert {op.name for op in entries.values()} == set(UNTRUE)
    for op in entries.values():
        assert any(
            s.cls_name == "TestBwdGradients" and s.test_name == "test_fn_grad" and s.device_type is None
            for s in op.skips
            if hasattr(s, "cls_name")
        ), op.name
