"""Placement: the least cost by comparison with every choice, regions in an order that can run, and who is kept on the
host."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.graph.region import Region
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.graph.verify import verify
from weft.machine import Transfer
from weft.passes.correspond import correspond
from weft.passes.place import Offers, Refuse, Take, offers_before, place, show_seconds
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Negative


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> Graph:
    g = GraphBuilder("random")
    values: list[Value] = [g.input(f"x{k}", tensor_type("float32", (3,))) for k in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, most))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        kind = draw(st.sampled_from([Add(), Relu(), Negative()]))
        values.append(g.add(kind, a, b) if isinstance(kind, Add) else g.add(kind, a))
    used = {id(v) for n in g.graph.nodes for v in n.inputs}
    for v in values:
        if v.producer is not None and (id(v) not in used or draw(st.booleans())):
            g.output(v)
    return g.build()


def total(graph: Graph, there: set[int], offers: dict[int, float], here: dict[int, float], copy: float) -> float:
    """What a placement costs: node by node, and one copy of each value that is read, or wanted as a result, where it is
    not made."""
    cost = sum(offers[k] if k in there else here[k] for k in range(len(graph.nodes)))
    for value in graph.values():
        made = any(value in n.outputs for k, n in enumerate(graph.nodes) if k in there)
        read = {k in there for k, n in enumerate(graph.nodes) if value in n.inputs} | (
            {False} if value in graph.outputs else set()
        )
        cost += copy * ((not made) in read)
    return cost


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_two_targets_get_the_least_of_all_placements(graph: Graph, data: st.DataObject) -> None:
    count = len(graph.nodes)
    costs = st.one_of(st.just(math.inf), st.integers(0, 9).map(float))
    there = {k: data.draw(costs) for k in range(count)}
    here = {k: float(data.draw(st.integers(0, 9))) for k in range(count)}
    copy = float(data.draw(st.integers(0, 4)))
    offers: dict[str, Offers] = {
        "npu": [
            Take((n,), there[k]) if there[k] < math.inf else Refuse(n, "no", "it cannot")
            for k, n in enumerate(graph.nodes)
        ],
        "host": [Take((n,), here[k]) for k, n in enumerate(graph.nodes)],
    }
    placed = place(graph, ["npu", "host"], offers, {"npu": Transfer(copy)})
    chosen = {k for k, p in enumerate(placed.nodes) if p.target == "npu"}
    subsets = itertools.chain.from_iterable(
        itertools.combinations([k for k in range(count) if there[k] < math.inf], r) for r in range(count + 1)
    )
    assert total(graph, chosen, there, here, copy) == min(total(graph, set(s), there, here, copy) for s in subsets)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_regions_mean_the_graph(graph: Graph, data: st.DataObject) -> None:
    names = ["a", "b", "host"]
    taken = {t: [n for n in graph.nodes if data.draw(st.booleans())] for t in names[:2]}
    placed = place(graph, names, {t: [Take((n,)) for n in nodes] for t, nodes in taken.items()}, {})
    verify(placed.graph)
    for p in placed.nodes:  # the first that takes a node gets it, where nothing costs
        first = next((t for t in names[:2] if any(n is p.node for n in taken[t])), "host")
        assert p.target == first
        assert set(p.refused) == set(names[: names.index(first)])
    for node in placed.graph.nodes:
        assert isinstance(node.op, Region)
        assert node.op.body.nodes
    assert sum(len(n.op.body.nodes) for n in placed.graph.nodes if isinstance(n.op, Region)) == len(graph.nodes)
    x = [np.linspace(-1, 1, 3, dtype=np.float32) * (k + 1) for k in range(len(graph.inputs))]
    for a, b in zip(evaluate(placed.graph, x), evaluate(graph, x), strict=True):
        np.testing.assert_array_equal(a, b)


def chain() -> tuple[Graph, list[Node]]:
    g = GraphBuilder("chain")
    x = g.input("x", tensor_type("float32", (3,)))
    for _ in range(4):
        x = g.add(Relu(), x)
    g.output(x)
    return g.build(), g.graph.nodes


def test_a_pattern_goes_as_a_whole() -> None:
    graph, nodes = chain()
    pair = Take((nodes[1], nodes[2]), 1.0)
    for cost, wanted in ((0.3, ["host"] * 4), (0.7, ["host", "npu", "npu", "host"])):
        placed = place(graph, ["npu", "host"], {"npu": [pair], "host": [Take((n,), cost) for n in nodes]}, {})
        assert [p.target for p in placed.nodes] == wanted


def test_a_pattern_of_one_target_binds_no_other() -> None:
    graph, nodes = chain()
    offers: dict[str, Offers] = {
        "pairs": [Take((nodes[1], nodes[2]), 9.0)],
        "single": [Take((nodes[1],), 0.0)],
        "host": [Take((n,), 1.0) for n in nodes],
    }
    placed = place(graph, ["pairs", "single", "host"], offers, {})
    assert [p.target for p in placed.nodes] == ["host", "single", "host", "host"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_patterns_that_overlap_go_as_one(order: tuple[int, int]) -> None:
    graph, nodes = chain()
    pairs = [Take((nodes[1], nodes[2]), 0.0), Take((nodes[2], nodes[3]), 0.0)]
    first = [Take((nodes[2],), 0.0)]
    offers: dict[str, Offers] = {
        "first": first,
        "npu": [pairs[k] for k in order],
        "host": [Take((n,), 1.0) for n in nodes],
    }
    assert [p.target for p in place(graph, ["npu", "host"], offers, {}).nodes] == ["host", "npu", "npu", "npu"]
    # Of what goes as a whole one is gone: the rest stays.
    assert [p.target for p in place(graph, ["first", "npu", "host"], offers, {}).nodes] == [
        "host",
        "host",
        "first",
        "host",
    ]


def test_a_pattern_is_in_one_region() -> None:
    g = GraphBuilder("fork")
    x = g.input("x", tensor_type("float32", (3,)))
    start = g.add(Relu(), x)
    first = g.add(Negative(), x)
    between = g.add(Negative(), start)  # stays on the host, after the first node of the device
    g.output(g.add(Add(), first, between))
    graph = g.build()
    nodes = graph.nodes
    offers: Offers = [Take((nodes[0],)), Take((nodes[1], nodes[3]))]
    placed = place(graph, ["npu", "host"], {"npu": offers}, {})
    assert [(n.op.target, len(n.op.body.nodes)) for n in placed.graph.nodes if isinstance(n.op, Region)] == [
        ("npu", 1),
        ("host", 1),
        ("npu", 2),
    ]


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_patterns_of_any_shape_leave_an_order_that_runs(graph: Graph, data: st.DataObject) -> None:
    takes = st.lists(st.sets(st.integers(0, len(graph.nodes) - 1), min_size=1), max_size=3)
    offers: dict[str, Offers] = {
        t: [Take(tuple(graph.nodes[k] for k in sorted(nodes))) for nodes in data.draw(takes)] for t in ("a", "b")
    }
    placed = place(graph, ["a", "b", "host"], offers, {})
    verify(placed.graph)
    x = [np.linspace(-1, 1, 3, dtype=np.float32) * (k + 1) for k in range(len(graph.inputs))]
    for got, wanted in zip(evaluate(placed.graph, x), evaluate(graph, x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_reasons_are_kept() -> None:
    graph, nodes = chain()
    offers: Offers = [
        Refuse(nodes[0], "dtype", "no float32"),
        Take((nodes[1],), 5.0),
        Take((nodes[2],)),
        Take((nodes[3],)),
    ]
    placed = place(graph, ["npu", "host"], {"npu": offers, "host": [Take((n,), 1.0) for n in nodes]}, {})
    assert [dict(p.refused) for p in placed.nodes] == [
        {"npu": ("dtype", "no float32")}, {"npu": ("cost",
            "it would take 5 s there and 0 s more for copies, on 'host' it takes 1 s")}, {}, {},
    ]  # fmt: skip
    assert "not npu: no float32 [dtype]" in str(placed)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_seconds_that_are_said_are_those_of_the_placement(graph: Graph, data: st.DataObject) -> None:
    """Of every node that stays for its cost: what the whole placement would cost with it moved is what was said, and no
    less than it costs now."""
    count = len(graph.nodes)
    there, here = ({k: float(data.draw(st.integers(0, 9))) for k in range(count)} for _ in range(2))
    copy = float(data.draw(st.integers(1, 4)))
    offers: dict[str, Offers] = {
        t: [Take((n,), of[k]) for k, n in enumerate(graph.nodes)] for t, of in (("npu", there), ("host", here))
    }
    placed = place(graph, ["npu", "host"], offers, {"npu": Transfer(copy)})
    chosen = {k for k, p in enumerate(placed.nodes) if p.target == "npu"}
    now = total(graph, chosen, there, here, copy)
    for k, p in enumerate(placed.nodes):
        if k not in chosen:
            more = total(graph, chosen | {k}, there, here, copy) - now - there[k] + here[k]
            copies = f"{show_seconds(abs(more))} {'more' if more >= 0 else 'less'} for copies"
            assert p.refused == {
                "npu": (
                    "cost",
                    (
                        f"it would take {show_seconds(there[k])} there and {copies}, on 'host' it takes"
                        f" {show_seconds(here[k])}"
                    ),
                )
            }


def test_what_goes_together_says_so() -> None:
    graph, nodes = chain()
    host = [Take((n,), 1.0) for n in nodes]
    placed = place(
        graph, ["npu", "host"], {"npu": [Take((nodes[1], nodes[2]), 9.0)], "host": host}, {"npu": Transfer(0.25)}
    )
    said = (
        "cost",
        "with the 1 that go with it it would take 9 s there and 500 ms more for copies, on 'host' it takes 2 s",
    )
    assert [p.refused["npu"] for p in placed.nodes[1:3]] == [said, said]
    offers: dict[str, Offers] = {"first": [Take((nodes[2],))], "npu": [Take((nodes[1], nodes[2]))], "host": host}
    placed = place(graph, ["first", "npu", "host"], offers, {})
    assert placed.nodes[1].refused["npu"] == (
        "together",
        f"it would go with Relu %{nodes[2].outputs[0].name}, which is on 'first'",
    )


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_offers_for_what_passes_made_of_a_graph_are_offers_for_the_graph(graph: Graph, data: st.DataObject) -> None:
    """Random rewrites: the costs are those of all that became of the nodes, whatever is refused takes its part with it,
    and regions mean the graph."""
    changed = {n.outputs[0].name for n in graph.nodes if data.draw(st.booleans())}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if node.outputs[0].name not in changed:
            return None
        if isinstance(node.op, Add):  # -((-a) + (-b))
            return r.add(Negative(), r.add(Add(), *(r.add(Negative(), v) for v in inputs)))
        inner = r.producer(inputs[0], Negative) if isinstance(node.op, Negative) and inputs[0] is not None else None
        return None if inner is None else inner.inputs[0]

    seen = rewrite(graph, rule, rounds=1)
    refused = {id(n) for n in seen.nodes if data.draw(st.integers(0, 3)) == 0}
    offers: Offers = [Refuse(n, "no", "it cannot") if id(n) in refused else Take((n,), 1.0) for n in seen.nodes]
    found = offers_before(graph, seen, offers)
    named = [n for o in found for n in (o.nodes if isinstance(o, Take) else (o.node,))]
    assert len({id(n) for n in named}) == len(named)
    assert all(any(n is m for m in graph.nodes) for n in named)
    for part in correspond(graph, seen):
        if part.before and part.after:
            taken = not any(id(n) in refused for n in part.after)
            assert {
                isinstance(o, Take)
                for o in found
                for n in (o.nodes if isinstance(o, Take) else (o.node,))
                if any(n is m for m in part.before)
            } == {taken}
    if not refused:
        assert sum(o.cost for o in found if isinstance(o, Take)) == len(
            [n for p in correspond(graph, seen) if p.before for n in p.after]
        )
    placed = place(graph, ["npu", "host"], {"npu": found}, {})
    x = [np.linspace(-1, 1, 3, dtype=np.float32) * (k + 1) for k in range(len(graph.inputs))]
    for a, b, c in zip(evaluate(placed.graph, x), evaluate(graph, x), evaluate(seen, x), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)


def test_seconds_for_people() -> None:
    assert [show_seconds(s) for s in (0.0, 2e-9, 1.25e-5, 0.0123456, 1.0, 250.0)] == [
        "0 s",
        "2 ns",
        "12.5 µs",
        "12.3 ms",
        "1 s",
        "250 s",
    ]


def test_strings_and_sizes_stay_on_the_host() -> None:
    g = GraphBuilder("kinds")
    s = g.input("s", tensor_type("int64", (2,)))
    t = g.add(Add(), s, s)
    g.symbol(t, 0)
    g.output(t)
    graph = g.build()
    placed = place(graph, ["npu", "host"], {"npu": [Take(tuple(graph.nodes))]}, {})
    assert placed.nodes[0].target == "host"
    assert placed.nodes[0].refused["npu"][0] == "sizes"


def test_large_graphs_are_placed_in_time() -> None:
    g = GraphBuilder("long")
    x = g.input("x", tensor_type("float32", (3,)))
    for _ in range(3000):
        x = g.add(Relu(), x)
    g.output(x)
    graph = g.build()
    offers: Offers = [Take((n,), 1.0) for k, n in enumerate(graph.nodes) if k % 3]
    placed = place(
        graph, ["npu", "host"], {"npu": offers, "host": [Take((n,), 2.0) for n in graph.nodes]}, {"npu": Transfer(0.1)}
    )
    assert len(placed.graph.nodes) == 2000


def test_a_take_that_stays_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes have one reason: what each of them costs and copies is added up for all of them together."""
    from weft.passes.place import _Reasons

    judged: list[int] = []
    one = _Reasons._judged
    monkeypatch.setattr(_Reasons, "_judged", lambda self, k, t: judged.append(k) or one(self, k, t))
    g = GraphBuilder("chain")
    x = g.input("x", tensor_type("float32", (3,)))
    for _ in range(50):
        x = g.add(Relu(), x)
    g.output(x)
    graph = g.build()
    offers: dict[str, Offers] = {
        "npu": [Take(tuple(graph.nodes), 9.0)],
        "host": [Take((n,), 0.01) for n in graph.nodes],
    }
    placed = place(graph, ["npu", "host"], offers, {"npu": Transfer()})
    assert judged == [0]
    ((code, why),) = {p.refused["npu"] for p in placed.nodes}
    assert code == "cost" and why.startswith(
        "with the 49 that go with it it would take 9 s there and 0 s more for copies, on 'host' it takes 500 ms"
    )
