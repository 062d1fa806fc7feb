"""Branches and loops of neural networks, which give other values to names around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.coreml.models import fill

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft_coreml.schema import schema
from weft_testing.frontend import FrontendCase, check_frontend

F = np.float32
X = F([1, -2])


def model(inputs: dict[str, int], *outputs: str) -> Any:
    made = schema()["Model"](specificationVersion=5)
    made.neuralNetwork.arrayInputShapeMapping = 1
    for name, size in inputs.items():
        feature = made.description.input.add(name=name).type.multiArrayType
        feature.dataType = 65568
        feature.shape.append(size)
    for name in outputs:
        made.description.output.add(name=name).type.multiArrayType.dataType = 65568
    return made


def add(network: Any, kind: str, inputs: list[str], outputs: list[str], **parameters: Any) -> Any:
    layer = network.layers.add(name=f"{kind}_{'_'.join(outputs)}", input=inputs, output=outputs)
    getattr(layer, kind).SetInParent()
    fill(getattr(layer, kind), parameters)
    return getattr(layer, kind)


def branched(other: bool = True) -> bytes:
    """y is x + 1 where t is not 0, and 3 · x otherwise, or x without another branch."""
    made = model({"x": 2, "t": 1}, "y")
    n = made.neuralNetwork
    add(n, "copy", ["x"], ["y"])
    branch = add(n, "branch", ["t"], [])
    add(branch.ifBranch, "add", ["x"], ["own"], alpha=1.0)
    add(branch.ifBranch, "copy", ["own"], ["y"])
    branch.elseBranch.SetInParent()
    if other:
        add(branch.elseBranch, "multiply", ["y"], ["y"], alpha=3.0)
    return bytes(made.SerializeToString())


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("other", [True, False])
def test_a_branch(other: bool) -> None:
    def wanted(given: Any) -> list[Any]:
        return [given["x"] + 1 if given["t"][0] else given["x"] * F(3 if other else 1)]

    cases = [{"x": X, "t": F([t])} for t in (1, 0, -5)]
    check_frontend(FrontendCase(branched(other), cases[0], wanted, "coreml", others=cases[1:]))


def test_a_branch_that_is_known_is_taken() -> None:
    made = model({"x": 2}, "y")
    n = made.neuralNetwork
    add(n, "fillStatic", [], ["t"], value=0.0, targetShape=[1])
    branch = add(n, "branch", ["t"], [])
    add(branch.ifBranch, "add", ["x"], ["y"], alpha=1.0)
    add(branch.elseBranch, "add", ["x"], ["y"], alpha=2.0)
    found = evaluate(weft.load(made.SerializeToString(), frontend="coreml"), {"x": X})
    assert np.array_equal(found[0], X + 2)


def test_a_comparison_of_sizes_is_known() -> None:
    """The other branch would not fit."""
    made = model({"x": 2}, "y")
    n = made.neuralNetwork
    add(n, "getShape", ["x"], ["shape"])
    add(n, "greaterEqual", ["shape"], ["t"], alpha=3.0)
    branch = add(n, "branch", ["t"], [])
    add(branch.ifBranch, "concatND", ["x", "none"], ["y"], axis=0)
    add(branch.elseBranch, "add", ["x"], ["y"], alpha=2.0)
    found = evaluate(weft.load(made.SerializeToString(), frontend="coreml"), {"x": X})
    assert np.array_equal(found[0], X + 2)


def test_branches_give_other_sizes() -> None:
    made = model({"x": 2, "t": 1}, "y")
    branch = add(made.neuralNetwork, "branch", ["t"], [])
    add(branch.ifBranch, "tile", ["x"], ["y"], reps=[3])
    add(branch.elseBranch, "copy", ["x"], ["y"])
    graph = weft.load(made.SerializeToString(), frontend="coreml")
    for t, wanted in ((1, np.tile(X, 3)), (0, X)):
        assert np.array_equal(evaluate(graph, {"x": X, "t": F([t])})[0], wanted)


def looped(most: int = 0, counted: bool = False, test: bool = True) -> bytes:
    """x is added to y, k or `most` times."""
    made = model({"x": 2, "k": 1}, "y")
    n = made.neuralNetwork
    add(n, "copy", ["x"], ["y"])
    add(n, "copy", ["k"], ["i"])
    loop = add(n, "loop", ["k"] if counted else [], [], maxLoopIterations=most)
    add(loop.bodyNetwork, "addBroadcastable", ["y", "x"], ["sum"])
    add(loop.bodyNetwork, "add", ["i"], ["less"], alpha=-1.0)
    add(loop.bodyNetwork, "copy", ["sum"], ["y"])
    add(loop.bodyNetwork, "copy", ["less"], ["i"])
    if test:
        loop.conditionVar = "more"
        add(loop.conditionNetwork, "greaterThan", ["i"], ["more"], alpha=0.0)
    return bytes(made.SerializeToString())


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize(
    "how, trips",
    [({}, lambda k: k), ({"most": 2}, lambda k: min(k, 2)), ({"most": 3, "test": False}, lambda k: 3),
     ({"counted": True, "test": False}, lambda k: k), ({"test": False}, lambda k: 0)],
)  # fmt: skip
def test_a_loop(how: Any, trips: Any) -> None:
    cases = [{"x": X, "k": F([k])} for k in (4, 0)]
    expected: Any = lambda given: [given["x"] * F(1 + trips(int(given["k"][0])))]
    check_frontend(FrontendCase(looped(**how), cases[0], expected, "coreml", others=cases[1:]))


def test_what_a_loop_carries_grows() -> None:
    made = model({"x": 2, "k": 1}, "y")
    n = made.neuralNetwork
    add(n, "copy", ["x"], ["y"])
    loop = add(n, "loop", ["k"], [])
    add(loop.bodyNetwork, "concatND", ["y", "x"], ["y"], axis=0)
    graph = weft.load(made.SerializeToString(), frontend="coreml")
    for k in (3, 0):
        assert np.array_equal(evaluate(graph, {"x": X, "k": F([k])})[0], np.tile(X, k + 1))


def test_what_is_refused() -> None:
    made = schema()["Model"].FromString(looped())
    add(made.neuralNetwork.layers[2].loop.bodyNetwork, "loopBreak", [], [])
    with pytest.raises(UnsupportedError) as caught:
        weft.load(made.SerializeToString(), frontend="coreml")
    assert caught.value.where == "operator network.loopBreak: 'loopBreak_'"
    made = schema()["Model"].FromString(branched())
    add(made.neuralNetwork.layers[1].branch.ifBranch, "custom", ["x"], ["y"])
    with pytest.raises(UnsupportedError, match="one thing") as caught:
        weft.load(made.SerializeToString(), frontend="coreml")
    assert caught.value.where == "operator network.custom: 'custom_y'"
    made = schema()["Model"].FromString(looped())
    made.neuralNetwork.layers[2].loop.conditionVar = "other"
    with pytest.raises(FrontendError, match="'other' is computed by no layer"):
        weft.load(made.SerializeToString(), frontend="coreml")
