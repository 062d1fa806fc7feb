"""Schedules of what is no product: what is stored, what is recomputed, and which loop gives the lanes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.passes.library import run_passes

from weft import dtypes as dt
from weft.expr.nodes import Call, Const, Ramp, Var, walk
from weft.graph.group import Group
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.graph.relayout import Relayout
from weft.loop.nodes import Block, For, Program, Seq, Store, int_const, stmt_exprs, walk_stmts
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.scheduling.access import LoopView, blocks_of, is_reduction, target
from weft.scheduling.rule import Decline, Rule
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_llvm.emitter import FUNCTIONS
from weft_llvm.schedules.elementwise import ElementwiseRule
from weft_llvm.schedules.fallback import FallbackRule
from weft_llvm.schedules.reduction import CHAIN, ReductionRule
from weft_llvm.schedules.rowwise import RowwiseRule
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Multiply
from weft_ops.image import GridSample, Resize
from weft_ops.indexing import ScatterND
from weft_ops.movement import Transpose
from weft_ops.normalization import Softmax
from weft_ops.reduction import ReduceMean, ReduceSum
from weft_ops.transcendental import Exp
from weft_ops.window import AveragePool

MACHINE = Machine("cpu", 256, 16, fma=True)


def scheduled(graph: Graph, rule: Rule) -> Schedule:
    (node,) = run_passes(graph).nodes
    assert isinstance(node.op, Group)
    s = Schedule(lower_group(node.op.body), MACHINE)
    rule.apply(s)
    return s


def writer(s: Schedule) -> Block:
    """The block that writes the program's output."""
    (block,) = [b for b in blocks_of(s.program) if target(b).buffer.name == s.program.outputs[0].name]
    return block


def test_tables_that_every_row_reads_are_stored() -> None:
    b = GraphBuilder()
    b.output(b.add(Resize((3, 16, 12), "linear"), b.input("x", tensor_type("float32", (3, 8, 6)))))
    s = scheduled(b.build(), ElementwiseRule())
    assert len(s.blocks()) > 2
    assert not [n for x in walk_stmts(writer(s).body) for e in stmt_exprs(x) for n in walk(e) if isinstance(n, Call)]


@pytest.mark.parametrize(("padding", "stored"), [("reflection", True), ("zeros", False)])
def test_formulas_that_would_be_written_thousands_of_times_are_stored(padding: Any, stored: bool) -> None:
    b = GraphBuilder()
    b.output(
        b.add(
            GridSample("cubic", padding),
            b.input("x", tensor_type("float32", (1, 2, 4, 3))),
            b.input("grid", tensor_type("float32", (1, 3, 5, 2))),
        )
    )
    assert len(scheduled(b.build(), ElementwiseRule()).blocks()) == 1 + stored


def blocked_input(channels: int = 16, size: int = 12) -> tuple[GraphBuilder, Value]:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, channels, size, size)))
    x.type = x.tensor.with_layout(blocked(4, 1, 8))
    return b, x


def lowered(b: GraphBuilder, y: Value) -> Program:
    b.output(y)
    return lower_group(b.build())


def test_a_mean_over_pixels_takes_its_lanes_from_the_channels() -> None:
    b, x = blocked_input()
    program = lowered(b, b.add(ReduceMean((2, 3), True), x))
    declined = RowwiseRule().offer(program, MACHINE)
    assert isinstance(declined, Decline) and declined.code == "lanes_across_rows"
    s = Schedule(program, MACHINE)
    ReductionRule().apply(s)
    (reduction,) = [b for b in blocks_of(s.program) if is_reduction(b)]
    assert s.loop(s.loops(reduction.name)[-1]).kind == "vectorized"
    assert target(reduction).buffer.scope == "register"


def test_rows_of_neighbours_stay_rowwise() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (3, 40)))
    assert not isinstance(RowwiseRule().offer(lowered(b, b.add(ReduceMean((1,), True), x)), MACHINE), Decline)


def test_a_pool_divides_before_its_sum_leaves_the_registers() -> None:
    b, x = blocked_input()
    y = b.add(AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), x)
    y.type = y.tensor.with_layout(blocked(4, 1, 8))
    s = Schedule(lowered(b, y), MACHINE)
    ReductionRule().apply(s)
    (reduction,) = [b for b in blocks_of(s.program) if is_reduction(b)]
    assert target(reduction).buffer.scope == "register" and [int_const(d) for d in target(reduction).buffer.shape] == [
        2,
        8,
    ]  # both blocks of channels
    assert [s.loop(x).kind for x in s.loops(reduction.name)][-2:] == ["unrolled", "vectorized"]


def test_an_exponential_that_two_passes_read_is_computed_once() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 96)))
    s = Schedule(lowered(b, b.add(Softmax(), x)), MACHINE)
    RowwiseRule().apply(s)
    calls = [
        n
        for block in blocks_of(s.program)
        for x in walk_stmts(block.body)
        for e in stmt_exprs(x)
        for n in walk(e)
        if isinstance(n, Call)
    ]
    assert [n.name for n in calls] == ["exp"]


def test_partial_results_meet_in_halves() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 96)))
    s = Schedule(lowered(b, b.add(ReduceSum((1,)), x)), MACHINE)
    RowwiseRule().apply(s)
    shapes = [[d.value for d in target(b).buffer.shape] for b in blocks_of(s.program) if is_reduction(b)]  # type: ignore[attr-defined]
    assert [n for shape in shapes for n in shape][:-1] == [32, 8, 4, 2]


@pytest.mark.parametrize(("rows", "length", "together"), [(256, 64, 8), (30, 40, 2), (31, 64, 1), (256, 2000, 1)])
def test_passes_go_through_several_short_rows(rows: int, length: int, together: int) -> None:
    b = GraphBuilder()
    s = Schedule(lowered(b, b.add(Softmax(), b.input("x", tensor_type("float32", (rows, length))))), MACHINE)
    RowwiseRule().apply(s)
    (outer,) = {s.loops(name)[0] for name in s.blocks()}
    assert int_const(s.loop(outer).extent) == rows // together
    x = np.random.default_rng(0).standard_normal((rows, length), np.float32)
    (stored,) = interpret(s.program, [x]).values() if rows * length < 2000 else (Softmax().reference(x),)
    np.testing.assert_allclose(stored, Softmax().reference(x), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1 << 14,), (3, 6000), (7, 19, 130), ("n",), (5, "n"), ("n", 5, "m")])
def test_long_sums_are_sums_of_pieces(shape: tuple[int | str, ...]) -> None:
    """No partial result adds up more than `CHAIN` elements, however long the sum is, and pieces are in parallel."""
    b = GraphBuilder()
    sizes = {d: n for d, n in zip(("n", "m"), (1301, 3)) if d in shape}
    x = b.input("x", tensor_type("float32", tuple(Var(d, dt.int64) if isinstance(d, str) else d for d in shape)))
    s = Schedule(lowered(b, b.add(ReduceSum(), x)), replace(MACHINE, cores=2))
    ReductionRule().apply(s)
    if not sizes:
        chains = [[i.extent for i in b.iters if i.kind == "reduce"] for b in blocks_of(s.program)]
        assert max(math.prod(d.value for d in chain) for chain in chains if chain) <= 2 * CHAIN  # type: ignore[attr-defined]
    assert any(s.loop(x).kind == "parallel" for n in s.blocks() for x in s.loops(n))
    data = (
        np.random.default_rng(0)
        .integers(-8, 8, [sizes[d] if isinstance(d, str) else d for d in shape])
        .astype(np.float32)
    )
    (stored,) = interpret(s.program, [data.reshape(-1)], sizes).values()  # axes that are summed together are one
    assert float(stored.reshape(())) == data.sum(dtype=np.float64)


def test_an_exponential_that_one_formula_uses_twice_is_not_stored() -> None:
    b = GraphBuilder()
    e = b.add(Exp(), b.input("x", tensor_type("float32", (4, 96))))
    b.output(b.add(Multiply(), b.add(Add(), e, b.constant(np.float32(1))), b.add(Relu(), e)))
    assert len(scheduled(b.build(), ElementwiseRule()).blocks()) == 1


@pytest.mark.parametrize("shape", [(64, 48), (37, 41), (5, 33), (33, 5), (3, 18, 35)])
def test_a_transposition_reads_and_writes_whole_cache_lines(shape: tuple[int, ...]) -> None:
    axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    b = GraphBuilder()
    b.output(b.add(Transpose(axes), b.input("x", tensor_type("float32", shape))))
    s = scheduled(b.build(), ElementwiseRule())
    view, line = LoopView.of(s, writer(s).name), MACHINE.cache_line // 4
    (load,) = view.loads
    read = [x for x in view.loops if view.stride(load, x) == 1]
    if shape[-2] >= MACHINE.vector_bits // 32:
        side = min(8, 1 << (shape[-1] - 1).bit_length())
        assert [view.extents[x] for x in view.loops[-2:]] == [side, side] and read[-1] == view.loops[-1]
        if shape[-1] >= line:
            assert view.extents[view.loops[-3]] == line // 8 and view.stride(load, view.loops[-3]) == 8
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (stored,) = interpret(s.program, [x]).values()
    np.testing.assert_array_equal(stored, x.transpose(axes))


def test_blocks_of_channels_are_taken_apart_by_whole_cache_lines() -> None:
    b, x = blocked_input(24, 20)
    program = lowered(b, b.add(Relayout(None), x))
    s = Schedule(program, MACHINE)
    ElementwiseRule().apply(s)
    view = LoopView.of(s, writer(s).name)
    assert [view.extents[x] for x in view.loops[-2:]] == [8, 8]
    assert [view.stride(view.loads[0], x) for x in view.loops[-2:]] == [8, 1]
    data = np.arange(24 * 400, dtype=np.float32).reshape(3, 400, 8)
    (stored,) = interpret(s.program, [data]).values()
    np.testing.assert_array_equal(stored.reshape(3, 8, 400), data.transpose(0, 2, 1))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_short_inner_axis_is_shuffled_in(n: int) -> None:
    """Lanes lie along the axis that was innermost: vectors are loaded whole, and stored whole among each other."""
    b = GraphBuilder()
    b.output(b.add(Relu(), b.add(Transpose((0, 2, 1)), b.input("x", tensor_type("float32", (3, n, 37))))))
    program = lower_program(scheduled(b.build(), ElementwiseRule()).program, frozenset())
    stores = [s for s in walk_stmts(program.body) if isinstance(s, Store)]
    assert len(stores) == 2 * n  # whole vectors and the last one
    strides = {
        x.stride.value
        for s in stores
        for e in stmt_exprs(s)
        for x in walk(e)
        if isinstance(x, Ramp) and isinstance(x.stride, Const)
    }
    assert strides == {1, n}
    x = np.random.default_rng(0).normal(size=(3, n, 37)).astype(np.float32)
    (got,) = interpret(program, [x.reshape(-1) if len(program.inputs[0].shape) == 1 else x], {}).values()
    np.testing.assert_array_equal(np.asarray(got).reshape(3, 37, n), np.maximum(x.transpose(0, 2, 1), 0))


def test_the_copy_that_a_loop_program_begins_with_goes_by_vectors() -> None:
    b = GraphBuilder()
    x, at, new = (
        b.input(n, tensor_type(d, shape))
        for n, d, shape in (("x", "float32", (40, 64)), ("at", "int64", (3, 1)), ("new", "float32", (3, 64)))
    )
    b.output(b.add(ScatterND(), x, at, new))
    program = lower_program(scheduled(b.build(), FallbackRule()).program, frozenset())
    first = next(s for s in walk_stmts(program.body) if isinstance(s, Store))
    assert isinstance(first.indices[0], Ramp) and first.indices[0].lanes == 8


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_repeated_neighbours_need_no_table(coordinates: str) -> None:
    b = GraphBuilder()
    op = Resize(
        (3, 16, 18),
        "nearest",
        coordinates=coordinates,
        nearest="floor" if coordinates == "asymmetric" else "round_prefer_floor",
    )
    b.output(b.add(op, b.input("x", tensor_type("float32", (3, 8, 6)))))
    s = scheduled(b.build(), ElementwiseRule())
    assert len(s.blocks()) == 1


def test_partial_vectors_at_the_end_of_a_transposition_cost_the_others_no_condition() -> None:
    b, x = blocked_input(24, 77)
    s = Schedule(lowered(b, b.add(Relayout(None), x)), MACHINE)
    ElementwiseRule().apply(s)
    body = lower_program(s.program, FUNCTIONS).body
    squares = [x for x in walk_stmts(body) if isinstance(x, For) and isinstance(x.body, Seq)]
    assert [len(x.body.stmts) for x in squares if isinstance(x.body, Seq)] == [8]  # stores under no condition
    data = np.arange(24 * 77 * 77, dtype=np.float32).reshape(3, 77 * 77, 8)
    (stored,) = interpret(s.program, [data]).values()
    np.testing.assert_array_equal(stored.reshape(3, 8, 77 * 77), data.transpose(0, 2, 1))
