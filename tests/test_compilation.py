"""What a compilation leaves as it found it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import weft
from weft.errors import GraphError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.rewrite import copy_graph
from weft.hooks import StageReport
from weft_ops import Add


def one_add() -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (4,)))
    b.output(b.add(Add(), x, x), "y")
    return b.build()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    def fail(graph: Graph) -> Graph:
        assert not gc.isenabled()
        raise GraphError("stop here")

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        exe = weft.compile(one_add(), cache=False)
        assert gc.isenabled() == enabled
        with pytest.raises(GraphError, match="stop here"):
            weft.compile(one_add(), passes=[fail], cache=False)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    np.testing.assert_array_equal(exe(np.ones(4, np.float32)), np.full(4, 2, np.float32))


def test_graphs_of_passes_go_before_kernels_are_compiled_and_nobody_elses_objects_are_visited() -> None:
    between: list[weakref.ref[Graph]] = []
    visited: list[int] = []

    def keep(graph: Graph) -> Graph:
        copy = copy_graph(graph)
        between.append(weakref.ref(copy))
        return copy

    def generation(phase: str, info: dict[str, int]) -> None:
        visited.append(info["generation"])

    def stage(report: StageReport) -> None:
        if report.stage == "assemble":
            alive.extend(r() is not None for r in between)

    alive: list[bool] = []
    gc.callbacks.append(generation)
    try:
        weft.compile(one_add(), passes=[keep], cache=False, on_stage=stage)
    finally:
        gc.callbacks.remove(generation)
    assert set(visited) == {0} and alive == [False]
