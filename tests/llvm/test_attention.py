"""Attention as one kernel: what it computes on shapes of every kind, and that it is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.compilation import Compilation
from weft.dtypes import float32
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Allocate, Program, walk_stmts
from weft.lower.lower import lower_group
from weft.resolve import resolve_target
from weft.scheduling.rule import Decline
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_llvm.schedules.attention import LEAST_ROWS, UNKNOWN_KEYS, AttentionRule, choose_height, schedule_attention
from weft_ops.arithmetic import Add
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.movement import Transpose

HEADS_LAST = Transpose((0, 2, 1, 3))


def attention(
    batch: int = 1, heads: int = 2, kv_heads: int = 2, queries: Any = 5, keys: Any = 7, size: int = 8,
    columns: int | None = None,
    term: str = "", side_by_side: bool = True, blank: str = "nan",
) -> Graph:  # fmt: skip
    """One attention; `side_by_side`: operands and result [batch, positions, heads, size], as projections have them."""
    b = GraphBuilder("attention")
    values = []
    for name, n, h, w in (
        ("q", queries, heads, size),
        ("k", keys, kv_heads, size),
        ("v", keys, kv_heads, columns or size),
    ):
        shape = (batch, n, h, w) if side_by_side else (batch, h, n, w)
        x = b.input(name, tensor_type("float32", shape))
        values.append(b.add(HEADS_LAST, x) if side_by_side else x)
    if term:
        shapes = {
            "added": (batch, 1, queries, keys),
            "bias": (heads, queries, keys),
            "allowed": (queries, keys),
            "padding": (batch, 1, 1, keys),
        }
        values.append(
            b.input("term", tensor_type("bool" if term in ("allowed", "padding") else "float32", shapes[term]))
        )
    y = b.add(ScaledDotProductAttention(size**-0.5, blank=blank), *values)
    b.output(b.add(HEADS_LAST, y) if side_by_side else y, "y")
    return b.build()


def arrays(graph: Graph, sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for v in graph.inputs:
        shape = [d if isinstance(d, int) else (sizes or {})[str(d)] for d in v.shape]
        found[v.name] = rng.random(shape) < 0.8 if v.dtype.is_bool else rng.standard_normal(shape).astype(np.float32)
    return found


def check(graph: Graph, inputs: dict[str, Any]) -> list[str]:
    """Compiled it gives what it means; the rules of its kernels."""
    compilation = Compilation(resolve_target("llvm"), cache=False)
    executable = compilation.run(graph)
    got = executable.run(inputs)["y"]
    np.testing.assert_allclose(got, evaluate(graph, inputs)[0], rtol=1e-4, atol=2e-5)
    return [k.rule for k in compilation.kernels.values()]


def draw(data: st.DataObject) -> tuple[Graph, dict[str, Any]]:
    """An attention of any shape with inputs for it."""
    number = lambda lo, hi: data.draw(st.integers(lo, hi))
    groups = number(1, 3)
    graph = attention(
        batch=number(1, 2), heads=groups * number(1, 3), kv_heads=groups, queries=data.draw(st.sampled_from([1, 3, 13,
            49, 70, 131])),
        keys=data.draw(st.sampled_from([2, 9, 49, 64, 150])), size=data.draw(st.sampled_from([2, 7, 16, 40, 64])),
        columns=data.draw(st.sampled_from([None, 5, 33])), term=data.draw(st.sampled_from(["", "added", "bias",
            "allowed"])),
        side_by_side=data.draw(st.booleans()), blank=data.draw(st.sampled_from(["zero", "empty"])),
    )  # fmt: skip
    return graph, arrays(graph, seed=number(0, 99))


@given(st.data())
@settings(max_examples=4, deadline=None)
def test_any_shape(data: st.DataObject) -> None:
    assert "attention" in check(*draw(data))


@pytest.mark.full
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_shape_of_many(data: st.DataObject) -> None:
    assert "attention" in check(*draw(data))


@pytest.mark.parametrize("queries", [1, 13])
def test_queries_that_may_attend_to_nothing(queries: int) -> None:
    graph = attention(queries=queries, keys=9, term="allowed", blank="empty")
    inputs = arrays(graph)
    inputs["term"][-1] = False
    assert "attention" in check(graph, inputs)
    assert not evaluate(graph, inputs)[0][:, -1].any()


def test_weights_that_are_no_normal_numbers_are_zero() -> None:
    """Beside a weight of 1: a mask of -100 costs what one of -∞ costs. The least normal weights count."""
    graph = attention(heads=1, kv_heads=1, queries=3, keys=9, term="added", side_by_side=False)
    inputs = {name: np.zeros_like(x) for name, x in arrays(graph).items()}
    inputs["term"][..., 1:] = np.array([-100, -87, -86.5])[:, None]
    inputs["v"][..., 1:, :] = 1e30
    got = Compilation(resolve_target("llvm"), cache=False).run(graph).run(inputs)["y"]
    assert not got[0, 0, :2].any()
    np.testing.assert_allclose(got[0, 0, 2], 8e30 * np.exp(-86.5), rtol=1e-4)


def lowered(graph: Graph) -> Program:
    """The naive program of the kernel that holds the attention."""
    compilation = Compilation(resolve_target("llvm"), cache=False)
    compilation.run(graph)
    (kernel,) = [k for k in compilation.kernels.values() if k.rule == "attention"]
    return kernel.naive


SHAPES: dict[str, dict[str, Any]] = {
    "packed": {"heads": 2, "queries": 40, "keys": 50, "size": 32},
    "grouped": {"heads": 4, "kv_heads": 2, "queries": 20, "keys": 33, "size": 16, "term": "added"},
    "decode": {"heads": 4, "kv_heads": 2, "queries": 1, "keys": 40, "size": 32},
    "few": {
        "heads": 2,
        "queries": 3,
        "keys": 21,
        "size": 24,
        "columns": 5,
        "side_by_side": False,
        "term": "allowed",
        "blank": "zero",
    },
    "masked": {"heads": 4, "kv_heads": 2, "queries": 20, "keys": 33, "size": 16, "term": "allowed", "blank": "empty"},
    "masked_decode": {"heads": 2, "queries": 1, "keys": 40, "size": 32, "term": "added", "blank": "empty"},
    "one_head": {"heads": 1, "kv_heads": 1, "queries": 70, "keys": 50, "size": 40, "term": "allowed", "blank": "zero"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_step_keeps_the_program_sound_and_its_meaning(shape: str) -> None:
    naive = lowered(attention(**SHAPES[shape]))
    rng = np.random.default_rng(0)
    inputs = {}
    for b in naive.inputs:
        size = [int(str(d)) for d in b.shape]
        inputs[b.name] = rng.random(size) < 0.8 if b.dtype.is_bool else rng.standard_normal(size).astype(np.float32)
    schedule = Schedule(naive, resolve_target("llvm").machine, checked=True)
    schedule_attention(schedule, schedule.machine)
    (wanted,), (got,) = interpret(naive, inputs).values(), interpret(schedule.program, inputs).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(512, 512, 64), (1024, 300, 32), (16, 9000, 32), (300, 9000, 32)]
)
def test_scores_are_in_memory_for_one_tile_only(queries: int, keys: int, size: int) -> None:
    machine = resolve_target("llvm").machine
    naive = lowered(attention(queries=queries, keys=keys, size=size))
    schedule = Schedule(naive, machine)
    schedule_attention(schedule, machine)
    rows = schedule.trace.choices["query_rows"]
    held = [
        s.buffer
        for s in walk_stmts(schedule.program.body)
        if isinstance(s, Allocate) and s.buffer.shape and str(s.buffer.shape[-1]) == str(keys)
    ]
    assert held
    for buffer in held:
        assert np.prod([int(str(d)) for d in buffer.shape]) <= rows * keys, buffer
    assert (
        sum(np.prod([int(str(d)) for d in b.shape]) * b.dtype.bytes for b in held) <= machine.caches[1]
        or rows <= LEAST_ROWS
    )


def test_tiles_are_small_where_keys_are_unknown() -> None:
    machine = resolve_target("llvm").machine
    schedule = Schedule(lowered(attention(queries=Var("s"), keys=Var("t"), size=16)), machine)
    schedule_attention(schedule, machine)
    assert schedule.trace.choices["query_rows"] * UNKNOWN_KEYS * 2 * float32.bytes <= machine.caches[1]


@pytest.mark.parametrize("sizes", [{"s": 1, "t": 33}, {"s": 50, "t": 50}, {"s": 7, "t": 130}])
def test_sizes_known_only_when_run(sizes: dict[str, int]) -> None:
    graph = attention(batch=2, heads=4, kv_heads=2, queries=Var("s"), keys=Var("t"), size=16, term="padding")
    assert "attention" in check(graph, arrays(graph, sizes))


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_one_query_reads_keys_where_they_are(kv_heads: int) -> None:
    graph = attention(heads=8, kv_heads=kv_heads, queries=1, keys=300, size=64)
    assert "Relayout" not in str(lowered(graph))
    check(graph, arrays(graph))


@pytest.mark.parametrize(("queries", "columns", "packed"), [(40, 32, True), (40, 13, True), (1, 32, False)])
def test_values_that_lie_column_by_column_are_packed(queries: int, columns: int, packed: bool) -> None:
    """Where enough queries read them."""
    b = GraphBuilder("attention")
    q, k = (b.input(n, tensor_type("float32", (2, x, 16))) for n, x in (("q", queries), ("k", 50)))
    v = b.add(Transpose((0, 2, 1)), b.input("v", tensor_type("float32", (2, columns, 50))))
    b.output(b.add(ScaledDotProductAttention(0.25), q, k, v), "y")
    graph = b.build()
    assert check(graph, arrays(graph)) == ["attention"]
    compilation = Compilation(resolve_target("llvm"), cache=False)
    compilation.run(graph)
    (kernel,) = compilation.kernels.values()
    assert str(kernel.body).count("Relayout(") == (2 if packed else 0)


def test_why_other_groups_are_declined() -> None:
    machine = resolve_target("llvm").machine
    rule = AttentionRule()
    b = GraphBuilder("sum")
    x = b.input("x", tensor_type("float32", (4,)))
    b.output(b.add(Add(), x, x))
    answer = rule.offer(lower_group(b.build(), "sum"), machine)
    assert isinstance(answer, Decline) and answer.reason == "the group holds no attention"
    answer = rule.offer(lower_group(attention(keys=1), "one_key"), machine)
    assert (
        isinstance(answer, Decline)
        and answer.reason == "there is one key, or heads are of size one, so that a sum has one term"
    )


def test_register_rows_divide_a_tile_that_is_not_all() -> None:
    machine = resolve_target("llvm").machine
    for rows in (16, 24, 35, 64):
        _, tile = choose_height(rows, False, [2], 2, machine, float32)
        assert rows % tile.rows == 0
