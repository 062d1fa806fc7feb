"""No two values that live at once overlap; views and in-place results share; sizes may be formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import convolutional, graphs, numbers
from tests.passes.library import run_passes

import weft
from weft import dtypes as dt
from weft.codegen.base import THREADS
from weft.expr.nodes import Expr, Var, add, const, free_vars, mul, wrap
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.machine import GLOBAL_ALIGN
from weft.passes.capabilities import Capabilities
from weft.passes.fuse import fuse
from weft.passes.plan_memory import MemoryPlan, _pack_in_order, bytes_at, most_live, pack, plan_memory
from weft.tensor.language import as_dim
from weft_ops.activation import Relu, Tanh
from weft_ops.arithmetic import Add, Cast, Multiply
from weft_ops.contraction import MatMul
from weft_ops.indexing import CountNonZero, NonZero
from weft_ops.movement import Reshape, Transpose
from weft_ops.reduction import ReduceSum

N = Var("n")


def check(
    plan: MemoryPlan,
    env: dict[str, int],
    scratch: Sequence[tuple[int, Sequence[Expr]]] = (),
    alignment: int = GLOBAL_ALIGN,
) -> None:
    """`scratch`: step and sizes, in the plan's order."""
    total = bytes_at(plan.arena_bytes, env)
    assert bytes_at(plan.lower_bound, env) <= total
    blocks = [(bytes_at(plan.offsets[v], env), bytes_at(plan.sizes[v], env), *plan.lifetimes[v]) for v in plan.offsets]
    for (first, sizes), offsets in zip(scratch, plan.scratch.values(), strict=True):
        blocks += [
            (bytes_at(at, env), bytes_at(as_dim(size), env), first, first)
            for at, size in zip(offsets, sizes, strict=True)
        ]
    for k, (at, size, first, last) in enumerate(blocks):
        assert at % alignment == 0 and at >= 0 and at + size <= total
        for other, other_size, start, end in blocks[:k]:
            assert at + size <= other or other + other_size <= at or last < start or end < first
    for name, root in plan.aliases.items():
        assert name not in plan.offsets and root not in plan.aliases


def simulated(graph: Graph, plan: MemoryPlan, inputs: list[Any], env: dict[str, int]) -> None:
    """Runs the groups on one real arena: a value that was overwritten too early shows."""
    from weft.graph.evaluate import evaluate
    from weft.graph.rewrite import concrete

    expected: dict[str, Any] = {v.name: a for v, a in zip(graph.inputs, inputs)}
    evaluate(graph, inputs, on_value=lambda v, a: expected.update({v.name: a}))
    arena = np.zeros(bytes_at(plan.arena_bytes, env), np.uint8)
    own: dict[str, Any] = {v.name: a for v, a in zip(graph.inputs, inputs)}

    def put(name: str, data: Any) -> None:
        root = plan.aliases.get(name, name)
        if root in plan.offsets:
            at = bytes_at(plan.offsets[root], env)
            arena[at : at + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            own[root] = np.array(data)

    def get(value: Any) -> Any:
        if value.constant is not None:
            return value.constant
        root = plan.aliases.get(value.name, value.name)
        like = expected.get(value.name)
        if root in plan.offsets:
            at = bytes_at(plan.offsets[root], env)
            return arena[at : at + like.nbytes].view(like.dtype).reshape(like.shape)
        return own[root] if like is None else np.ascontiguousarray(own[root]).reshape(like.shape)

    for node in graph.nodes:
        result = concrete(node.op, env).reference(*(None if v is None else np.array(get(v)) for v in node.inputs))
        for o, data in zip(node.outputs, result if isinstance(result, tuple) else (result,)):
            np.testing.assert_array_equal(data, expected[o.name])
            put(o.name, data)
    for v in graph.outputs:
        np.testing.assert_array_equal(get(v), expected.get(v.name, own.get(v.name, v.constant)))


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_random_graphs(case: tuple[Graph, list[Any]]) -> None:
    graph, inputs = case
    final = run_passes(graph, Capabilities(channel_block=4, panel=4), check=False)
    plan = plan_memory(final)
    for n in (2, 1, 7):
        check(plan, {"n": n})
    simulated(final, plan, inputs, {"n": 2})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(0, 5)), max_size=12))
def test_packing(raw: list[tuple[int, int, int]]) -> None:
    blocks = [(size * 64, start, start + length) for size, start, length in raw]
    offsets, total = pack(blocks)
    live = [sum(size for size, first, last in blocks if first <= step <= last) for step in range(20)]
    assert most_live(blocks) == max(live) <= total
    for k, (size, start, end) in enumerate(blocks):
        assert offsets[k] + size <= total
        for m in range(k):
            if start <= blocks[m][2] and blocks[m][1] <= end:
                assert offsets[k] + size <= offsets[m] or offsets[m] + blocks[m][0] <= offsets[k]


def test_packing_takes_the_smallest_gap_that_fits() -> None:
    """Four blocks side by side; two end, and the ones that come find gaps of 8 and 4."""
    blocks = [(8, 0, 1), (16, 0, 9), (4, 0, 1), (16, 0, 9), (4, 2, 9), (6, 2, 9), (2, 2, 9)]
    assert _pack_in_order(blocks, range(7)) == ([0, 8, 24, 28, 24, 0, 6], 44)


def test_packing_of_blocks_beyond_64_bits_is_exact() -> None:
    size = (1 << 62) + 1
    assert pack([(size, 0, 1), (size, 0, 1), (size, 0, 1), (size, 2, 2)]) == ([0, size, 2 * size, 0], 3 * size)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data(), st.sampled_from([64, 256, 4096]))
def test_scratch_of_a_step_lies_beside_what_lives_then(
    case: tuple[Graph, list[Any]], data: st.DataObject, alignment: int
) -> None:
    graph = run_passes(case[0], Capabilities(channel_block=4, panel=4), check=False)
    sizes = st.sampled_from(
        [const(100), const(4096), mul(THREADS, 64), mul(N, 20), mul(mul(N, THREADS), 4), add(mul(N, 4), 12)]
    )
    wanted = {node.outputs[0].name: data.draw(st.lists(sizes, max_size=3)) for node in graph.nodes}
    plan = plan_memory(graph, scratch=wanted, alignment=alignment)
    used = [(k, wanted[node.outputs[0].name]) for k, node in enumerate(graph.nodes) if wanted[node.outputs[0].name]]
    for n in (2, 1, 7):
        check(plan, {"n": n, THREADS.name: 8}, used, alignment)
    simulated(graph, plan, case[1], {"n": 2, THREADS.name: 8})


def test_scratch_lies_where_values_of_other_steps_lie() -> None:
    b = GraphBuilder()
    y = b.input("x", tensor_type("float32", (16, 16)))
    for k, width in enumerate((64, 64, 16, 16)):
        y = b.add(MatMul(), y, b.constant(numbers(y.shape[1], width, seed=k)), name=f"y{k}")  # type: ignore[arg-type]
    b.output(y)
    graph = fuse(b.build())
    live = 2 * 16 * 64 * 4  # y0 and y1
    assert plan_memory(graph).arena_bytes == live
    plan = plan_memory(graph, scratch={"y3": [const(live - 16 * 16 * 4)]})
    assert plan.arena_bytes == plan.lower_bound == live and len(plan.scratch["y3"]) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([16, 32, 64, 128]), min_size=1, max_size=6), st.data())
def test_scratch_per_thread_lies_above_what_lives_in_its_step(widths: list[int], data: st.DataObject) -> None:
    b = GraphBuilder()
    y = b.input("x", tensor_type("float32", (16, 16)))
    for k, width in enumerate(widths):
        y = b.add(MatMul(), y, b.constant(numbers(y.shape[1], width, seed=k)), name=f"y{k}")  # type: ignore[arg-type]
    b.output(y)
    graph = fuse(b.build())
    sizes = st.sampled_from([const(640), mul(THREADS, 64), mul(THREADS, 1024), mul(THREADS, 4096)])
    wanted = {node.outputs[0].name: data.draw(st.lists(sizes, max_size=2)) for node in graph.nodes}
    plan = plan_memory(graph, scratch=wanted)
    used = [(k, wanted[node.outputs[0].name]) for k, node in enumerate(graph.nodes) if wanted[node.outputs[0].name]]
    for threads in (1, 2, 64):
        env = {THREADS.name: threads}
        check(plan, env, used)
        live = [
            sum(plan.sizes[v] for v, (a, z) in plan.lifetimes.items() if a <= k <= z) for k in range(len(graph.nodes))
        ]  # type: ignore[misc]
        for k, asked in used:
            live[k] += sum(bytes_at(as_dim(size), env) for size in asked)  # type: ignore[operator]
        assert bytes_at(plan.lower_bound, env) == max(live)


def test_small_elements_of_unknown_count_are_not_blown_up_to_cache_lines() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("bool", (N, N)))
    b.output(b.add(ReduceSum((0, 1)), b.add(Cast(dt.int64), b.add(Transpose((1, 0)), x, name="t"))))
    plan = plan_memory(b.build())
    sizes = {name: bytes_at(size, {"n": 1000}) for name, size in plan.sizes.items()}
    assert sizes["t"] == 1_000_000
    assert bytes_at(plan.sizes["t"], {"n": 3}) == GLOBAL_ALIGN


def test_a_chain_uses_two_slots() -> None:
    b = GraphBuilder()
    y = b.input("x", tensor_type("float32", (N, 16)))
    for k in range(6):
        y = b.add(MatMul(), y, b.constant(numbers(16, 16, seed=k)))
    b.output(y)
    plan = plan_memory(fuse(b.build()))
    assert str(plan.arena_bytes) == str(plan.lower_bound) == "128*n" and len(plan.offsets) == 5


def test_in_place_and_views() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 4)))
    w = b.constant(numbers(4, 4))
    y = b.add(MatMul(), x, w, name="y")
    flat = b.add(Reshape((16,)), y, name="flat")
    t = b.add(Tanh(), flat, name="t")
    z = b.add(MatMul(), b.add(Reshape((4, 4)), t, name="u"), w, name="z")
    keep = b.add(MatMul(), z, w, name="keep")
    b.output(b.add(MatMul(), b.add(Relu(), b.add(Add(), z, keep), name="r"), w, name="out"))
    graph = fuse(b.build())
    plan = plan_memory(graph)
    assert plan.aliases == {"flat": "y", "t": "y", "u": "y"} and plan.in_place == {"t"}
    assert "out" not in plan.offsets and "x" not in plan.offsets
    check(plan, {})
    simulated(graph, plan, [numbers(4, 4)], {})
    assert not plan_memory(graph, in_place=False).in_place


def test_a_view_that_is_an_output_takes_its_source_there() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 4)))
    b.output(b.add(Reshape((16,)), b.add(Tanh(), x, name="t"), name="out"))
    plan = plan_memory(fuse(b.build()))
    assert plan.aliases == {"t": "out"} and not plan.offsets and plan.arena_bytes == 0


def test_network_is_near_its_bound() -> None:
    graph, inputs = convolutional()
    final = run_passes(graph, Capabilities(channel_block=4, panel=4))
    plan = plan_memory(final)
    check(plan, {"n": 3})
    assert bytes_at(plan.arena_bytes, {"n": 3}) <= 1.05 * bytes_at(plan.lower_bound, {"n": 3})
    simulated(final, plan, [inputs["x"]], {"n": 2})


def counted_twice() -> Graph:
    """Two sizes that depend on data, the name of the later one first in the alphabet."""
    b = GraphBuilder()
    x, y = b.input("x", tensor_type("float32", (8,))), b.input("y", tensor_type("float32", (8,)))
    early = b.symbol(b.add(CountNonZero(), x), prefix="z")
    first = b.add(Relu(), b.add(Cast(dt.float32), b.add(NonZero(early), x)))
    total = b.add(ReduceSum((0, 1), True), first)
    late = b.symbol(b.add(CountNonZero(), b.add(Multiply(), y, b.add(Reshape((1,)), total))), prefix="a")
    second = b.add(Cast(dt.float32), b.add(NonZero(late), y))
    b.output(b.add(ReduceSum((0, 1)), b.add(Relu(), second)), "s")
    b.output(b.add(ReduceSum((0, 1)), first), "t")
    return b.build()


def test_offsets_need_only_sizes_that_are_known_by_then() -> None:
    graph = fuse(counted_twice())
    plan = plan_memory(graph)
    steps = {o.name: k for k, node in enumerate(graph.nodes) for o in node.outputs}
    for name, offset in plan.offsets.items():
        for symbol in free_vars(wrap(offset, dt.int64)):
            assert steps[graph.symbols[symbol].value.name] < plan.lifetimes[name][0]


@pytest.mark.needs("weft_llvm")
def test_an_arena_that_grows_with_data_has_room_for_the_rest() -> None:
    executable = weft.compile(counted_twice(), target="llvm", cache=False)
    x, y = np.array([0, 1, 0, 1, 0, 0, 1, 0], np.float32), np.array([1, 0, 0, 0, 0, 1, 0, 0], np.float32)
    results = executable.run({"x": x, "y": y})
    assert float(results["s"]) == 5 and float(results["t"]) == 10
