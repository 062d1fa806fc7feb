"""Matrix products and convolutions in tiles: what they mean, for shapes of all kinds, and what their schedules are made
of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu.kernels import MACHINES, agree, meaning, random_inputs, within_limits

from weft.errors import ScheduleError
from weft.expr.functions import FUNCTIONS
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Allocate, For, Program, int_const, walk_stmts
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling import Decline, Schedule, replay
from weft_gpu.machines import grid_machine
from weft_gpu.passes import grid_passes
from weft_gpu.schedules.contraction import ContractionRule
from weft_gpu.schedules.tiles import Problem, candidates, choose_tile, room
from weft_interpreter.interpret import interpret
from weft_ops import Add, Conv, Exp, MatMul, Multiply, ReduceMax, Relu, Sigmoid
from weft_ops.contraction import ConvTranspose

H100 = grid_machine("gpu", cores=132, shared=48 << 10, flops_per_cycle={"float32": 256, "float16": 512})
"""A large one: what the model of costs says of it is what matters most."""


def product(left: tuple[Any, ...], right: tuple[Any, ...], dtype: str = "float32", after: str = "") -> Graph:
    g = GraphBuilder("product")
    a, b = g.input("a", tensor_type(dtype, left)), g.input("b", tensor_type(dtype, right))
    y = g.add(MatMul(), a, b)
    if after:
        y = g.add(Add(), y, g.input("bias", tensor_type(dtype, right[-1:])))
    if after == "silu":
        y = g.add(Multiply(), y, g.add(Sigmoid(), y))
    elif after:
        y = g.add(Relu(), y)
    g.output(y, "y")
    return g.build()


def convolution(
    x: tuple[Any, ...], w: tuple[int, ...], op: Any = Conv, dtype: str = "float32", **attributes: Any
) -> Graph:
    g = GraphBuilder("convolution")
    y = g.add(op(**attributes), g.input("x", tensor_type(dtype, x)), g.input("w", tensor_type(dtype, w)))
    channels = y.shape[1]
    y = g.add(Relu(), g.add(Add(), y, g.input("bias", tensor_type(dtype, (channels,) + (1,) * (len(x) - 2)))))
    g.output(y, "y")
    return g.build()


def tiled(program: Program, machine: Any, **choices: str) -> Schedule:
    """The program as the rule schedules it, every step verified, within the machine's limits."""
    s = Schedule(program, machine, overrides=choices, checked=True)
    ContractionRule().apply(s)
    within_limits(s.program, machine)
    assert not any(isinstance(x, For) and x.kind == "parallel" for x in walk_stmts(s.program.body))
    return s


def check(graph: Graph, machine: Any, dims: dict[str, int] | None = None, seed: int = 0, **choices: str) -> Schedule:
    program = lower_group(graph, "kernel")
    assert not isinstance(ContractionRule().offer(program, machine), Decline)
    s = tiled(program, machine, **choices)
    inputs = random_inputs(program, dims, seed)
    agree(meaning(s.program, inputs, dims, seed), meaning(program, inputs, dims), 64.0, str(s.program))
    assert str(replay(program, s.trace)) == str(s.program)
    return s


@pytest.mark.one_in(2)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize(
    ("graph", "dims"),
    [
        (product((7, 12), (12, 20), after="bias"), {}),
        (product((Var("m"), 12), (12, 20), after="silu"), {"m": 9}),
        (product((Var("m"), 12), (12, 20)), {"m": 0}),
        (product((2, 3, 5, 7), (2, 1, 7, 9)), {}),
        (product((3, 5, 7), (7, 4)), {}),
        (product((1, 40), (40, 21), after="bias"), {}),
        (product((9, 40), (40, 1)), {}),
        (product((5, 7), (7,)), {}),
        (product((7,), (2, 7, 4)), {}),
        (product((5, 8), (8, 24), "float16"), {}),
        (product((4, Var("k")), (Var("k"), 6)), {"k": 11}),
        (product((4, Var("k")), (Var("k"), 6)), {"k": 0}),
        (product((6, 6), (6, 6), "int32"), {}),
        (convolution((Var("n"), 6, 5, 5), (8, 6, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), {"n": 2}),
        (convolution((2, 6, 5, 5), (8, 3, 3, 3), groups=2, pads=(1, 1, 1, 1)), {}),
        (convolution((2, 6, 5, 6), (6, 1, 3, 3), groups=6, pads=(1, 1, 1, 1)), {}),
        (convolution((1, 4, 7, 6), (6, 4, 1, 1)), {}),
        (convolution((1, 3, 12, 12), (4, 3, 7, 7), strides=(2, 2), pads=(3, 3, 3, 3)), {}),
        (convolution((1, 3, 17), (4, 3, 3), dilations=(2,), pads=(2, 2)), {}),
        (convolution((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), pads=(1, 0, 1, 0, 1, 0)), {}),
        (convolution((1, 2, Var("h"), Var("w")), (3, 2, 3, 3), pads=(1, 1, 1, 1)), {"h": 4, "w": 5}),
        (convolution((1, 4, 3, 4), (4, 3, 3, 2), ConvTranspose, strides=(2, 2), pads=(1, 0, 1, 0)), {}),
        (convolution((1, 4, 3, 2), (4, 3, 2, 2), ConvTranspose, strides=(2, 2), groups=2), {}),
        (convolution((1, 2, 4, 4), (2, 2, 3, 3), dtype="float16", pads=(1, 1, 1, 1)), {}),
    ],
)
def test_products_mean_what_they_meant(graph: Graph, dims: dict[str, int], machine: Any) -> None:
    check(graph, machine, dims)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_tile_of_any_product(data: st.DataObject) -> None:
    m, n, k = data.draw(st.integers(1, 40)), data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    graph = product((m, k), (k, n), after=data.draw(st.sampled_from(["", "bias"])))
    machine = data.draw(st.sampled_from(list(MACHINES.values())))
    program = lower_group(graph, "kernel")
    names = next(list(c.options) for c in tiled(program, machine).choices if c.name == "tile")
    check(graph, machine, tile=data.draw(st.sampled_from(names)))


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_tile_of_any_convolution(data: st.DataObject) -> None:
    draw = data.draw
    groups, kernel = draw(st.integers(1, 3)), draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    c, oc = (draw(st.integers(1, 4)) * groups for _ in range(2))
    attributes = {
        "strides": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), "dilations": draw(st.tuples(st.integers(1, 2),
            st.integers(1, 2))),
        "pads": tuple(draw(st.integers(0, 2)) for _ in range(4)), "groups": groups,
    }  # fmt: skip
    graph = convolution(
        (draw(st.integers(1, 2)), c, draw(st.integers(5, 8)), draw(st.integers(5, 8))),
        (oc, c // groups, *kernel),
        **attributes,
    )
    check(graph, draw(st.sampled_from(list(MACHINES.values()))))


def test_what_a_group_does() -> None:
    """Operands lie in shared memory, results and what a thread works on in registers; copies and loads of registers go
    in vectors."""
    s = check(product((64, 64), (64, 64), after="bias"), H100, tile="16x16 of 4x4 by 16")
    text = str(s.program)
    scopes = [x.buffer.scope for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]
    assert sorted(scopes) == ["register"] * 3 + ["shared"] * 2
    assert (
        text.count("vectorized") == 5
        and "where" not in text
        and "select(matmul" not in text.partition("matmul_copy")[0]
    )
    kinds = [x.kind for x in walk_stmts(s.program.body) if isinstance(x, For)]
    assert {"blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y"} <= set(kinds)
    assert (
        s.blocks()[-1] == "matmul_copy" and "in2[" in text.partition("matmul_copy")[2]
    )  # the bias is added on the tile


@pytest.mark.parametrize(
    ("graph", "dims"),
    [
        (product((4, 1024), (1024, 9), after="silu"), {}),
        (product((Var("m"), 1030), (1030, 8), "float16", after="bias"), {"m": 3}),
        (convolution((1, 64, 3, 3), (5, 64, 3, 3), pads=(1, 1, 1, 1)), {}),
    ],
)
def test_long_sums_of_few_elements_are_cut_into_parts(graph: Graph, dims: dict[str, int]) -> None:
    """Two launches: one computes parts of the sum, one adds them up, and what follows."""
    s = check(graph, H100, dims)
    grids = [x for x in walk_stmts(s.program.body) if isinstance(x, For) and x.kind == "blockIdx.x"]
    assert len(grids) == 2 and any(b.endswith("_rf") for b in s.blocks())
    (partial,) = [
        x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate) and x.buffer.scope == "global"
    ]
    assert (int_const(partial.shape[0]) or 0) >= 2


def test_conditions_of_tails_and_borders_are_not_in_the_inner_loop() -> None:
    s = check(convolution((2, 5, 7, 7), (10, 5, 3, 3), pads=(1, 1, 1, 1)), MACHINES["wide"])
    (inner,) = [b for b in s.blocks() if b == "conv"]
    assert (
        "select" not in str(s.block(inner))
        and "where" not in str(s.block(inner))
        and "if" not in str(s.block(inner)).split()
    )


def test_what_it_declines() -> None:
    rule = ContractionRule()
    machine = MACHINES["wide"]
    dot = rule.offer(lower_group(product((7,), (7,)), "kernel"), machine)
    assert isinstance(dot, Decline) and (dot.code, dot.reason) == (
        "one_element",
        "the result is one number, which no tile shares out",
    )
    g = GraphBuilder("other")
    g.output(g.add(ReduceMax((1,)), g.add(Exp(), g.input("x", tensor_type("float32", (3, 4))))), "y")
    other = rule.offer(lower_group(g.build(), "kernel"), machine)
    assert isinstance(other, Decline) and other.reason == "the group has no single sum of products"
    cpu = rule.offer(lower_group(product((3, 4), (4, 5)), "kernel"), grid_less())
    assert isinstance(cpu, Decline) and cpu.code == "no_grid"


def grid_less() -> Any:
    from weft.machine import Machine

    return Machine("cpu", 256, 16)


def test_a_tile_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScheduleError, match="choice 'tile' cannot be '3x3 of 3x3 by 3'"):
        tiled(lower_group(product((8, 8), (8, 8)), "kernel"), H100, tile="3x3 of 3x3 by 3")


AHEAD = [
    (product((16, 24), (24, 12), after="bias"), {}, "8x4 of 2x4 by 8 ahead"),
    (product((Var("m"), 24), (24, 13), after="silu"), {"m": 5}, "4x8 of 1x2 by 8 ahead"),
    (product((9, Var("k")), (Var("k"), 8), "float16"), {"k": 19}, "4x4 of 1x1 by 8 ahead"),
    (convolution((1, 4, 4, 4), (4, 4, 3, 3), pads=(1, 1, 1, 1)), {}, "4x8 of 1x1 by 9 ahead"),
]


@pytest.mark.parametrize("features", [("shuffle",), ("shuffle", "cp.async")], ids=["registers", "async"])
@pytest.mark.parametrize(("graph", "dims", "tile"), AHEAD)
def test_operands_come_a_step_ahead(graph: Graph, dims: dict[str, int], tile: str, features: tuple[str, ...]) -> None:
    """Through registers, or by copies that nobody waits for: one barrier a step, and what was meant."""
    machine = replace(MACHINES["wide"], features=frozenset(features))
    s = check(graph, machine, dims, tile=tile)
    extra = grid_passes(features)
    program, low = lower_group(graph, "kernel"), lower_program(s.program, frozenset(FUNCTIONS), extra=extra)
    inputs = random_inputs(program, dims)
    got = list(interpret(low, [x.reshape(-1) for x in inputs], dims, shuffle_seed=3).values())
    agree(got, list(interpret(program, inputs, dims).values()), 64.0, str(low))
    if not dims:
        steps = next(
            x for x in walk_stmts(low.body) if isinstance(x, For) and x.kind == "serial" and "@barrier" in str(x)
        )
        assert str(steps).count("@barrier()") == 1, str(low)
        assert ("@copy_async" in str(steps)) == ("cp.async" in features), str(steps)


def test_tiles_fit_the_machine_and_grow_with_the_product() -> None:
    from weft.dtypes import float32

    def problem(m: int, n: int, k: int, batch: int = 1) -> Problem:
        return Problem(batch, m, n, k, 1, float32, (4, 4))

    for machine in (H100, *MACHINES.values()):
        assert machine.grid is not None
        for p in (
            problem(1, 1, 1),
            problem(4096, 4096, 4096),
            problem(1, 1000, 512),
            problem(3, 5, 7),
            problem(49, 512, 4608),
            problem(128, 64, 64, 12),
        ):
            for t in candidates(p, machine):
                assert t.threads[0] * t.threads[1] <= machine.grid.threads and room(p, t) <= (
                    machine.scopes["shared"].size or 0
                )
    large, small = choose_tile(problem(4096, 4096, 4096), H100), choose_tile(problem(256, 256, 256), H100)
    assert large.rows * large.columns >= 64 * 64 > small.rows * small.columns and large.each[0] * large.each[1] >= 32
    groups = -(-256 // small.rows) * -(-256 // small.columns)
    assert groups >= H100.cores // 3
    skinny = choose_tile(problem(1, 4096, 4096), H100)
    assert skinny.rows == 1 and -(-4096 // skinny.columns) >= H100.cores // 3


def test_sizes_are_constants_where_threads_are() -> None:
    s = check(product((Var("m"), 16), (16, 16)), MACHINES["small"], {"m": 5})
    assert all(
        int_const(x.extent) is not None
        for x in walk_stmts(s.program.body)
        if isinstance(x, For) and x.kind.startswith("threadIdx")
    )
