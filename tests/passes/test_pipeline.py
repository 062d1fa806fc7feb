"""All passes together: every stage keeps the meaning of hand-made and random graphs, prints, parses and verifies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.graph.graphs import close, convolutional, graphs, numbers, reparsed
from tests.passes.library import run_passes, stage_names

from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.passes.capabilities import Capabilities
from weft.passes.pipeline import GraphPass, pass_names, shared_passes
from weft.passes.plan_memory import plan_memory
from weft_ops.activation import Relu, Tanh
from weft_ops.arithmetic import Add, Multiply
from weft_ops.movement import BroadcastTo, Reshape
from weft_ops.reduction import ReduceSum

BLOCKED = Capabilities(channel_block=4, panel=4)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_every_stage_keeps_the_meaning_of_random_graphs(case: tuple[Graph, list[Any]]) -> None:
    graph, inputs = case
    expected = evaluate(graph, inputs)
    run_passes(graph, BLOCKED, on_stage=lambda name, g, _: close(evaluate(reparsed(g), inputs), expected))


@pytest.mark.parametrize("capabilities", [Capabilities(), BLOCKED, Capabilities(claims=frozenset())])
def test_every_stage_keeps_the_meaning_of_a_network(capabilities: Capabilities) -> None:
    graph, inputs = convolutional()
    expected = evaluate(graph, inputs)
    seen = []

    def stage(name: str, g: Graph, seconds: float) -> None:
        seen.append(name)
        close(evaluate(reparsed(g), inputs), expected)
        assert seconds >= 0

    final = run_passes(graph, capabilities, on_stage=stage)
    assert seen == stage_names()
    assert all(isinstance(n.op, Group) for n in final.nodes)
    names = {x for n in final.nodes for x in n.names}
    assert names == {f"{c}{s}" for c in ("stem", "left", "right", "wide") for s in ("", ".relu")} - {"right.relu"}


def test_passes_of_others_have_slots() -> None:
    graph, _ = convolutional()
    seen: list[str] = []

    def spy(name: str) -> GraphPass:
        return GraphPass(name, lambda g: g, after={"first": "", "a": "fuse", "b": "fuse", "c": "a"}[name])

    run_passes(graph, extra=[spy("c"), spy("a"), spy("first"), spy("b")], on_stage=lambda name, g, s: seen.append(name))
    assert seen == ["first", *stage_names(), "a", "c", "b"]
    with pytest.raises(GraphError) as error:
        run_passes(graph, extra=[GraphPass("mine", lambda g: g, after="fold_constant")])
    assert "the graph pass 'mine' runs after 'fold_constant', which does not exist" in str(error.value)
    assert "hint: did you mean 'fold_constants'?" in str(error.value)


def test_passes_at_one_place_keep_the_given_order() -> None:
    def places(*given: tuple[str, str, str]) -> list[str]:
        own = [GraphPass(name, lambda g: g, after=after, before=before) for name, after, before in given]
        return [name for name in pass_names(own) if name in {p.name for p in own}]

    assert places(("x", "decompose", ""), ("y", "", "x"), ("z", "decompose", "")) == ["y", "x", "z"]
    assert places(("x", "decompose", ""), ("x2", "x", ""), ("z", "decompose", "")) == ["x", "x2", "z"]
    assert places(("a", "", "fuse"), ("b", "", "fuse"), ("c", "a", "")) == ["a", "c", "b"]
    with pytest.raises(GraphError, match="the graph pass 'p' has both after='fuse' and before='decompose'"):
        GraphPass("p", lambda g: g, after="fuse", before="decompose")


def test_a_pass_runs_where_it_may_do_something() -> None:
    graph, _ = convolutional()
    ran: list[str] = []

    def note(graph: Graph, capabilities: Capabilities) -> Graph:
        ran.append("blocks" if capabilities.channel_block else "rows")
        return graph

    mine = GraphPass("mine", note, after="decompose", when=lambda capabilities: capabilities.channel_block is not None)
    run_passes(graph, Capabilities(), [mine])
    assert ran == []
    run_passes(graph, BLOCKED, [mine])
    assert ran == ["blocks"]


def test_a_shared_pass_at_one_that_is_not_shared_is_refused() -> None:
    own = [GraphPass("n", lambda g: g, after="decompose"), GraphPass("s", lambda g: g, after="n", shared=True)]
    with pytest.raises(GraphError, match="the shared graph pass 's' runs after 'n', which is not shared"):
        shared_passes([own, own])


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    def drop(graph: Graph) -> Graph:
        return Graph(graph.name, graph.inputs, graph.outputs, graph.nodes[1:])

    graph, _ = convolutional()
    with pytest.raises(GraphError, match="after the pass 'drop': "):
        run_passes(graph, extra=[GraphPass("drop", drop, after="decompose")])


def test_running_twice_changes_nothing() -> None:
    graph, inputs = convolutional()
    texts: list[dict[str, str]] = [{}, {}]
    for text in texts:
        run_passes(graph, BLOCKED, on_stage=lambda name, g, _, text=text: text.update({name: str(g)}))  # type: ignore[misc]
    assert texts[0] == texts[1]
    np.testing.assert_array_equal(evaluate(graph, inputs)[0].shape, (2, 5))


def test_sizes_known_only_at_run_time() -> None:
    b = GraphBuilder("sizes")
    x, s = b.input("x", tensor_type("float32", (Var("n"), 4))), b.input("s", tensor_type("int64", (2,)))
    t = b.add(Multiply(), s, b.constant(np.int64(2)), name="t")
    y = b.add(Tanh(), b.add(Add(), x, x))
    y = b.add(Reshape((b.symbol(t, 0), b.symbol(t, 1))), y)
    y = b.add(Relu(), b.add(Add(), y, b.add(BroadcastTo((b.symbol(t, 0), 1)), b.constant(np.float32(1)))))
    b.output(b.add(ReduceSum((1,)), y))
    inputs = [numbers(3, 4), np.array([1, 3])]
    expected = evaluate(b.build(), inputs)
    final = run_passes(b.build(), BLOCKED, on_stage=lambda name, g, _: close(evaluate(reparsed(g), inputs), expected))
    # The size comes first, then what has it.
    assert [n.op.body.name for n in final.nodes if isinstance(n.op, Group)] == [
        "multiply",
        "add_tanh",
        "reshape",
        "add_relu_reducesum",
    ]
    assert "t.0" in str(plan_memory(final).arena_bytes) or plan_memory(final).aliases
