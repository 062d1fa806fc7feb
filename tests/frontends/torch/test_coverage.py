"""A part of PyTorch's own lists of operators and modules; `--full`: all of them."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

import pytest
from tests.needs import require

require("torch", "expecttest")
from tests.frontends.torch.coverage import entries, named, run
from tests.frontends.torch.judging import compared

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]


def test_no_operator_gives_a_wrong_answer(request: pytest.FixtureRequest) -> None:
    chosen = entries()[:: 1 if request.config.getoption("--full") else 13]
    results = list(run(chosen))
    bad = [r for r in results if r.verdict in ("wrong", "failed")]
    assert not bad, "\n".join(f"{r.name}: {r.verdict}: {r.reason}" for r in bad)
    read = sum(r.verdict == "agrees" for r in results)
    assert read >= 0.65 * sum(r.verdict in ("agrees", "refused") for r in results)


def test_every_module_that_pytorch_exports_agrees(request: pytest.FixtureRequest) -> None:
    chosen = entries("modules")[:: 1 if request.config.getoption("--full") else 13]
    results = list(run(chosen, suite="modules"))
    bad = [r for r in results if r.verdict not in ("agrees", "not exported")]
    assert not bad, "\n".join(f"{r.name}: {r.verdict}: {r.reason}" for r in bad)
    assert sum(r.verdict == "agrees" for r in results) >= 0.9 * len(results)


def test_operators_are_right_when_compiled() -> None:
    names = {
        "torch._scaled_mm_v2",
        "addmm",
        "cumsum",
        "gather",
        "index_put",
        "nn.functional.conv2d",
        "softmax",
        "sort",
        "where",
    }
    results = list(run([op for op in entries() if named(op) in names], "llvm"))
    assert {r.name: r.verdict for r in results} == dict.fromkeys(names, "agrees"), results


def test_losses_in_chunks() -> None:
    names = {f"nn.functional.linear_cross_entropy.{kind}" for kind in ("chunked", "chunked_none")}
    results = list(run([op for op in entries() if named(op) in names]))
    assert {r.name: r.verdict for r in results} == dict.fromkeys(names, "agrees"), results


def test_a_difference_is_wrong() -> None:
    import numpy as np
    import torch

    assert compared("x", {"y": np.ones(2, np.float32)}, [torch.zeros(2)]).verdict == "wrong"
    assert compared("x", {"y": np.ones(2, np.float32)}, [torch.ones(2)]).verdict == "agrees"
