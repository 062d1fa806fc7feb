from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft_testing.cli.demo import multiply_adds
from weft_testing.models import resnet18

Weft = Callable[..., Any]


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_testing.cli.demo.SECONDS", 0.0)


SMALL = ("--size", 32, "--width", 8)


def test_the_demo_succeeds_and_says_what_it_did(weft: Weft) -> None:
    result = weft("demo", *SMALL)
    assert result.code == 0, result.err
    for word in (
        "ResNet-18, 69 operators",
        "distinct kernels",
        "scheduling",
        "latency",
        "arena",
        "weights",
        "largest error",
    ):
        assert word in result.out
    assert result.out.endswith("success: the compiled model computes what the operators mean\n")


def test_a_wrong_result_fails(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graph.evaluate.evaluate", lambda graph, inputs: [float("nan")])
    result = weft("demo", *SMALL)
    assert result.code == 1
    assert result.err == "failed: the compiled model does not compute what the operators mean\n"


def test_resnet18_is_the_network_of_the_paper() -> None:
    graph = resnet18()
    weights = sum(v.constant.size for v in graph.constants() if v.constant is not None)
    # 11,689,512 parameters, and the 4,800 means and as many variances of 20 normalisations.
    assert weights == 11_689_512 + 2 * 4_800
    assert multiply_adds(graph) == 1_814_073_344


def test_seeds_give_the_same_weights_again() -> None:
    first, again, other = (resnet18(s, width=4).constants()[0].constant for s in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    assert (first == again).all() and not (first == other).any()
