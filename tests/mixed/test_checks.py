"""What data has to be is found by the host before a device's kernels run; a device alone checks what inputs tell
without a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from tests.mixed import board as plugin

import weft
from weft.errors import ExecutionError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops.composing import Composer

X = np.arange(12, dtype=np.float32).reshape(3, 4)
pytestmark = pytest.mark.usefixtures("board")


def gather(count: int) -> Graph:
    g = GraphBuilder("gather")
    x, indices = g.input("x", tensor_type("float32", (3, 4))), g.input("i", tensor_type("int64", (count,)))
    c = Composer(g)
    with g.named("lookup"):
        y = c.gather(x, c.within(indices, -3, 2, "index", "Gather"), 0)
    g.output(y, "y")
    return g.build()


def test_the_host_checks_before_the_device_computes() -> None:
    exe = weft.compile(gather(2), "board -ops=Gather,Require, llvm", cache=False)
    for indices in ([0, -3], [2, 1]):
        np.testing.assert_array_equal(exe(X, np.array(indices)), X[indices])
    plugin.launched.clear()
    with pytest.raises(ExecutionError, match="Gather 'lookup': index 3 is out of range, expected -3 … 2"):
        exe(X, np.array([0, 3]))
    assert not plugin.launched
    np.testing.assert_array_equal(exe(X, np.array([1, 1])), X[[1, 1]])


@pytest.mark.parametrize(
    ("target", "strict"), [("board -ops=Gather,Require", False), ("board -ops=Gather,Require, llvm", True)]
)
def test_a_device_alone(target: str, strict: bool) -> None:
    several = weft.compile(gather(2), target, strict=strict, cache=False)
    assert all(s.kind != "native" for s in several.manifest.steps)
    np.testing.assert_array_equal(
        several(X, np.array([0, 7])), X[[0, 2]]
    )  # the nearest valid one, as Gather is defined
    one = weft.compile(gather(1), target, strict=strict, cache=False)
    np.testing.assert_array_equal(one(X, np.array([-1])), X[[-1]])
    with pytest.raises(ExecutionError, match="Gather 'lookup': index 7 is out of range, expected -3 … 2"):
        one(X, np.array([7]))
