"""Attention in one kernel without its scores in memory: what it means, threads in random order; what it allocates; what
it declines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu.kernels import MACHINES, agree, lowered_meaning, meaning, programs, shape_of, within_limits
from tests.llvm.test_attention import attention

from weft.errors import ScheduleError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Allocate, For, Program, int_const, walk_stmts
from weft.machine import Scope
from weft.scheduling import Decline, Schedule, replay, select_rule
from weft_gpu.machines import grid_machine
from weft_gpu.schedules import RULES
from weft_gpu.schedules.attention import AttentionRule
from weft_gpu.schedules.attention_tiles import Attention, candidates, choose_tile, registers, shared_bytes
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.normalization import Softmax
from weft_ops.scheduling.attention import ATTENTION
from weft_testing.plugin import resolve_target

UNITS = 256
"""Of the last place: exponentials of a maximum so far are scaled more than once."""
S, T = Var("s"), Var("t")
SHAPES: dict[str, tuple[dict[str, Any], dict[str, int], str]] = {
    "sizes of a run, grouped": (
        {"heads": 4, "kv_heads": 2, "queries": S, "keys": T, "size": 16, "term": "added"},
        {"s": 11, "t": 37},
        "wide",
    ),
    "shorter than a tile": (
        {"heads": 2, "queries": S, "keys": T, "size": 7, "term": "bias"},
        {"s": 1, "t": 3},
        "middle",
    ),
    "no keys": ({"heads": 1, "kv_heads": 1, "queries": 4, "keys": T, "size": 4}, {"t": 0}, "small"),
    "one query": ({"heads": 4, "kv_heads": 2, "queries": 1, "keys": 40, "size": 32}, {}, "wide"),
    "one query, many keys": ({"heads": 2, "queries": 1, "keys": T, "size": 8}, {"t": 21}, "small"),
    "masked rows": (
        {"queries": 3, "keys": 21, "size": 24, "columns": 5, "side_by_side": False, "term": "allowed", "blank": "zero"},
        {},
        "middle",
    ),
    "whole tiles": (
        {"batch": 2, "queries": 16, "keys": 32, "size": 16, "term": "padding", "blank": "empty"},
        {},
        "wide",
    ),
}


def program_of(**shape: Any) -> Program:
    (found,) = [p for p in programs(attention(**shape)) if f'part_of="{ATTENTION}"' in str(p)]
    return found


def inputs_of(program: Program, dims: dict[str, int], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    shapes = [(shape_of(b, dims), b.dtype) for b in program.inputs]
    return [rng.random(x) < 0.6 if d.is_bool else rng.standard_normal(x).astype(d.numpy) for x, d in shapes]


def no_scores(program: Program) -> None:
    """Nothing is in global memory but what the caller gave; the rest is of a size that is known."""
    for s in walk_stmts(program.body):
        if isinstance(s, Allocate):
            assert s.buffer.scope in ("shared", "register") and all(int_const(d) is not None for d in s.buffer.shape), (
                str(s.buffer)
            )


def check(
    program: Program, machine: Any, dims: dict[str, int], seed: int = 0, checked: bool = False, **choices: str
) -> Schedule:
    rule, _ = select_rule(RULES, program, machine)
    assert rule.name == "attention"
    s = Schedule(program, machine, overrides=choices, checked=checked)
    rule.apply(s)
    within_limits(s.program, machine)
    no_scores(s.program)
    assert sum(isinstance(x, For) and x.kind == "blockIdx.x" for x in walk_stmts(s.program.body)) == 1
    assert str(replay(program, s.trace)) == str(s.program)
    inputs = inputs_of(program, dims, seed)
    want = meaning(program, inputs, dims)
    agree(meaning(s.program, inputs, dims, seed), want, UNITS, str(s.program))
    agree(lowered_meaning(s.program, inputs, dims, seed), want, UNITS, str(s.program))
    return s


@pytest.mark.parametrize("shape", SHAPES)
def test_it_means_what_it_meant(shape: str) -> None:
    options, dims, machine = SHAPES[shape]
    check(program_of(**options), MACHINES[machine], dims, checked=shape == "masked rows")


def any_attention(data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.integers(1, 2))
    program = program_of(
        batch=draw(st.integers(1, 2)), heads=groups * draw(st.integers(1, 2)), kv_heads=groups,
        queries=draw(st.sampled_from([1, 3, 13, S])),
        keys=draw(st.sampled_from([2, 9, 24, T])), size=draw(st.sampled_from([2, 7, 16])),
        columns=draw(st.sampled_from([None, 5, 12])),
        term=draw(st.sampled_from(["", "added", "bias", "allowed"])), side_by_side=draw(st.booleans()),
        blank=draw(st.sampled_from(["nan", "zero", "empty"])),
    )  # fmt: skip
    machine = MACHINES[draw(st.sampled_from(list(MACHINES)))]
    answer = AttentionRule().offer(program, machine)
    if isinstance(answer, Decline):
        assert answer.code == "not_tiled" and answer.reason
        return
    trial = Schedule(program, machine)
    AttentionRule().apply(trial)
    names = next(list(x.args[1]) for x in trial.trace.steps if x.do == "choose")
    dims = {"s": draw(st.integers(1, 19)), "t": draw(st.integers(1, 30))}
    seed, tile = draw(st.integers(0, 99)), draw(st.sampled_from(names))
    try:
        check(program, machine, {d.name: dims[d.name] for d in program.dims}, seed, tile=tile)
    except ScheduleError as error:  # of a record: the model's own choice was scheduled above
        assert tile != trial.trace.choices["tile"] and error.what.startswith("attention: ") and error.why


@settings(max_examples=2, deadline=None)
@given(st.data())
def test_any_tile_of_any_attention(data: st.DataObject) -> None:
    any_attention(data)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_tile_of_many_attentions(data: st.DataObject) -> None:
    any_attention(data)


def half(size: Any) -> Graph:
    b = GraphBuilder("half")
    q, k, v = (b.input(name, tensor_type("float16", (2, n, size))) for name, n in (("q", 5), ("k", 12), ("v", 12)))
    b.output(b.add(ScaledDotProductAttention(0.5), q, k, v), "y")
    return b.build()


def test_narrow_floats_are_staged_as_they_are_and_summed_wide() -> None:
    (program,) = programs(half(8))
    s = check(program, MACHINES["wide"], {})
    kept = [x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]
    assert {str(b.dtype) for b in kept if b.scope == "shared"} == {"float16", "float32"}
    assert {str(b.dtype) for b in kept if b.scope == "register" and "part" not in b.name} >= {"float32"}


def test_what_it_declines() -> None:
    softmax = GraphBuilder("softmax")
    softmax.output(softmax.add(Softmax(-1), softmax.input("x", tensor_type("float32", (4, 40)))), "y")
    tiny = replace(MACHINES["wide"], scopes={**MACHINES["wide"].scopes, "shared": Scope("shared", 64, 16, "block")})
    cpu = replace(MACHINES["wide"], grid=None)
    for program, machine, code, reason in (
        (programs(softmax.build())[0], MACHINES["wide"], "no_attention", "holds no attention"),
        (program_of(keys=1), MACHINES["wide"], "other_shape", "one key"),
        (program_of(), tiny, "not_tiled", "do not hold the smallest tile"),
        (program_of(), cpu, "no_grid", "runs no grids"),
        (program_of(columns=1), MACHINES["wide"], "not_tiled", "no loop of the output runs over the columns"),
    ):
        answer = AttentionRule().offer(program, machine)
        assert isinstance(answer, Decline) and answer.code == code and reason in answer.reason, answer


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90", "metal -family=apple7", "gpu"])
@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
def test_tiles_fit_where_they_are_chosen(target: str, size: int) -> None:
    machine = MACHINES["small"] if target == "gpu" else resolve_target(target).machine
    for queries, keys, width in ((128, 128, 4), (None, None, 2), (1, 1000, 4), (4096, 4096, 2)):
        a = Attention(12, queries, keys, size, size, width, width)
        tile = choose_tile(a, machine)
        assert tile in candidates(a, machine)
        room = machine.scopes["shared"].size
        assert room is not None and shared_bytes(a, tile, machine) <= room and registers(a, tile, machine) <= 255
        assert tile.keys_inside > 1 and (keys is None or tile.keys_inside < keys)


def test_more_queries_share_what_a_group_fetches() -> None:
    """Of a large one: keys and values are fetched once for many queries, by enough threads."""
    h100 = grid_machine("gpu", cores=132, shared=113 << 10, flops_per_cycle={"float32": 256})
    tile = choose_tile(Attention(96, 1024, 1024, 64, 64, 4, 4), h100)
    assert tile.queries_inside >= 32 and tile.threads[0] * tile.threads[1] >= 128
    assert choose_tile(Attention(96, 1, 1024, 64, 64, 4, 4), h100).queries_inside == 1
