"""Reductions, rows and pointwise groups of all kinds of shapes, symbolic ones included: scheduled for machines of
groups, they mean what they meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gpu.kernels import MACHINES, agree, axes_of, lowered_meaning, meaning, programs, random_inputs, scheduled

from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Operator
from weft.loop.nodes import Allocate, Program, walk_stmts
from weft.scheduling import Schedule
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Multiply
from weft_ops.contraction import Conv
from weft_ops.movement import Transpose
from weft_ops.normalization import InstanceNorm, LayerNorm, LogSoftmax, Softmax
from weft_ops.recurrent import Recurrence
from weft_ops.reduction import ReduceMax, ReduceMean, ReduceSum
from weft_ops.scanning import CumSum
from weft_ops.window import AveragePool, MaxPool

UNITS = 40
"""Of the last place: sums are added up in another order."""


def graph(op: Operator, dims: tuple[int | str, ...], *more: tuple[int, ...], dtype: str = "float32") -> Graph:
    b = GraphBuilder("g")
    b.output(
        b.add(
            op,
            b.input("x", tensor_type(dtype, dims)),
            *(b.input(f"w{k}", tensor_type(dtype, m)) for k, m in enumerate(more)),
        ),
        "y",
    )
    return b.build()


def check(program: Program, machine: str, size: int = 37) -> tuple[str, Program]:
    """The rule that took the program, and what it made of it, which means the same."""
    dims = {v.name: size + 5 * k for k, v in enumerate(program.dims)}
    inputs = random_inputs(program, dims)
    rule, s = scheduled(program, MACHINES[machine])
    want = meaning(program, inputs, dims)
    agree(meaning(s.program, inputs, dims, seed=1), want, UNITS, f"{rule} for '{machine}'\n{s.program}")
    agree(
        lowered_meaning(s.program, inputs, dims, seed=1), want, UNITS, f"{rule} for '{machine}', lowered\n{s.program}"
    )
    return rule, s.program


REDUCED: list[tuple[tuple[int | str, ...], tuple[int, ...]]] = [
    ((1, 5000), (1,)), ((3000,), (0,)), ((7, 600), (1,)), ((600, 7), (0,)), ((600, 40), (0,)), ((3, 600, 5), (1,)),
    ((256, 40), (1,)), (("n", 300), (1,)),
    (("n", "m"), (1,)), (("n", "m"), (0,)), (("n", 70), (0,)), ((4, 6, 10, 12), (1, 3)), ((4, 6, 10, 12), (0, 2)), ((5,
        6, 70, 3), (0, 2, 3)),
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dims,axes", REDUCED, ids=str)
def test_reductions(dims: tuple[int | str, ...], axes: tuple[int, ...], machine: str) -> None:
    for op in (ReduceMean(axes), ReduceMax(axes)) if machine == "small" else (ReduceSum(axes),):
        for program in programs(graph(op, dims)):
            rule, _ = check(program, machine)
            assert rule == "reduction"


ROWS: list[tuple[Operator, tuple[int | str, ...], tuple[tuple[int, ...], ...], str]] = [
    (Softmax(-1), (6, 100), (), "rowwise"), (Softmax(-1), (3, 5000), (), "rowwise"), (Softmax(-1), (4, 64, 20), (),
        "rowwise"),
    (Softmax(-1), (600, 8), (), "rowwise"), (Softmax(1), (3, 20, 30), (), "reduction"), (Softmax(-1), ("n", 40), (),
        "rowwise"),
    (Softmax(-1), ("n", "m"), (), "rowwise"), (LayerNorm(axis=-1), (9, 70), ((70,), (70,)), "rowwise"),
    (LayerNorm(axis=1), (4, 6, 30), ((6, 30), (6, 30)), "rowwise"), (InstanceNorm(), (2, 3, 7, 9), ((3,), (3,)),
        "rowwise"),
    (LogSoftmax(-1), (2, 16, 33), (), "rowwise"),
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("op,dims,more,wanted", ROWS, ids=str)
def test_rows(
    op: Operator, dims: tuple[int | str, ...], more: tuple[tuple[int, ...], ...], wanted: str, machine: str
) -> None:
    for program in programs(graph(op, dims, *more)):
        rule, _ = check(program, machine)
        assert rule == wanted


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int | str, ...], bool]] = [
    ((1, 0), (40, 50), True), ((0, 2, 3, 1), (2, 3, 5, 70), False), ((0, 2, 1), (3, 9, 33), True), ((1, 0), ("n", 50),
        True), ((1, 0), ("n", "m"), True),
    ((2, 1, 0), (20, 6, 17), True), ((0, 2, 1, 3), (2, 12, 6, 64), False),
]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("axes,dims,tiled", TRANSPOSED, ids=str)
def test_transpositions(axes: tuple[int, ...], dims: tuple[int | str, ...], tiled: bool, machine: str) -> None:
    """By tiles in shared memory, whose rows are one longer than a tile; not where a direction is too short, or what is
    contiguous stays so."""
    (program,) = programs(graph(Transpose(axes), dims))
    rule, made = check(program, machine)
    shared = [x.buffer for x in walk_stmts(made.body) if isinstance(x, Allocate) and x.buffer.scope == "shared"]
    assert rule == "elementwise" and [str(b.shape[-1]) for b in shared] == ["33"] * tiled


@pytest.mark.parametrize("machine", MACHINES)
def test_recurrences(machine: str) -> None:
    """Each line of the batch is a group's; sums of a step are shared by threads that read along them, and its turns
    meet in shared memory."""
    b = GraphBuilder("g")
    x, r, h = (
        b.input(n, tensor_type("float32", d)) for n, d in (("x", (3, 2, 160)), ("r", (4, 40, 40)), ("h", (2, 40)))
    )
    found = b.add_all(Recurrence("lstm"), x, r, h, None, None, None, None)
    for k, y in enumerate(found):
        b.output(y, f"y{k}")
    (program,) = programs(b.build())
    rule, made = check(program, machine)
    axes = axes_of(made)
    assert rule == "recurrence" and ("blockIdx.x", "2") in axes and ("threadIdx.x", "32") in axes


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dims,axis", [((20, 30), 0), ((20, 30), 1), (("n", 12), 1), ((3, 9, 5), 1)], ids=str)
def test_running_sums_are_lines_of_threads(dims: tuple[int | str, ...], axis: int, machine: str) -> None:
    (program,) = programs(graph(CumSum(axis), dims))
    rule, made = check(program, machine)
    s = Schedule(made)
    assert rule == "recurrence" and [s.loop(x).kind for x in s.loops("total")] == [
        "blockIdx.x",
        "threadIdx.x",
        "serial",
    ]


def test_windows_are_threads() -> None:
    """Pooling and convolutions of each channel with itself are of outputs; those that use a picture for many channels
    are products."""
    for op, more, wanted in (
        (MaxPool((3, 3)), (), "window"), (AveragePool((2, 2), (2, 2)), (), "window"), (Conv((1, 1), (1, 1, 1, 1), (1,
            1), 8), ((8, 1, 3, 3),), "window"),
        (Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), ((16, 8, 3, 3),), "contraction"),
    ):  # fmt: skip
        (program,) = programs(graph(op, (2, 8, 12, 10), *more))
        for machine in MACHINES if wanted == "window" else ():
            assert check(program, machine)[0] == wanted
        assert scheduled(program, MACHINES["wide"])[0] == wanted


def test_a_long_sum_takes_two_launches_and_a_short_one_a_group() -> None:
    (long,) = programs(graph(ReduceSum((0,)), (5000,)))
    _, program = check(long, "wide")
    assert [a for a in axes_of(program) if a[0] == "blockIdx.x"] == [("blockIdx.x", "4"), ("blockIdx.x", "1")]
    (short,) = programs(graph(ReduceSum((1,)), (8, 500)))
    _, program = check(short, "wide")
    assert [a for a in axes_of(program) if a[0] == "blockIdx.x"] == [("blockIdx.x", "8")]


def test_rows_stay_in_shared_memory_while_they_fit() -> None:
    for length, scope in ((1000, "shared"), (9000, "global")):
        (program,) = programs(graph(Softmax(-1), (2, length)))
        _, s = scheduled(program, MACHINES["wide"])
        assert {x.buffer.name: x.buffer.scope for x in walk_stmts(s.program.body) if isinstance(x, Allocate)}[
            "exp"
        ] == scope


def test_vectors_where_memory_is_contiguous_and_whole() -> None:
    (program,) = programs(graph(Relu(), (1 << 13,)))
    _, s = scheduled(program, MACHINES["wide"])
    assert any(getattr(x, "kind", "") == "vectorized" and str(x.extent) == "4" for x in walk_stmts(s.program.body))  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_groups(data: Any) -> None:
    """A chain of a few operators over a picture of random size."""
    draw = data.draw
    dims = tuple(
        draw(
            st.lists(st.sampled_from((1, 2, 3, 5, 8, 16, 17, 33, 64)), min_size=2, max_size=4).filter(
                lambda d: _size(d) <= 3000
            )
        )
    )
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", dims))
    for k in range(draw(st.integers(1, 3))):
        rank = len(x.shape)
        step = draw(st.sampled_from(("relu", "add", "scale", "transpose", "softmax", "sum", "pool")))
        if step == "relu":
            x = b.add(Relu(), x)
        elif step == "add":
            x = b.add(Add(), x, b.input(f"r{k}", tensor_type("float32", x.shape[-1:])))
        elif step == "scale":
            x = b.add(Multiply(), x, x)
        elif step == "transpose":
            x = b.add(Transpose(tuple(draw(st.permutations(range(rank))))), x)
        elif step == "softmax" and rank:
            x = b.add(Softmax(draw(st.integers(0, rank - 1))), x)
        elif step == "sum" and rank:
            x = b.add(ReduceSum((draw(st.integers(0, rank - 1)),), draw(st.booleans())), x)
        elif step == "pool" and rank == 4 and min(x.shape[2:]) >= 3:
            x = b.add(draw(st.sampled_from((MaxPool((3, 3)), AveragePool((3, 3), (2, 2))))), x)
    b.output(x, "y")
    for program in programs(b.build()):
        check(program, draw(st.sampled_from(sorted(MACHINES))))


@pytest.mark.parametrize("machine", sorted(MACHINES))
@pytest.mark.parametrize("dims", [(1, 1), (3, 1), (1, 1, 1)], ids=str)
def test_rows_of_one_element(dims: tuple[int, ...], machine: str) -> None:
    """There is nothing to share out."""
    b = GraphBuilder("one")
    b.output(b.add(Softmax(len(dims) - 1), b.input("x", tensor_type("float32", dims))), "y")
    for program in programs(b.build()):
        check(program, machine)


def _size(dims: list[int]) -> int:
    total = 1
    for d in dims:
        total *= d
    return total
