"""All passes in order: every stage keeps the meaning of hand-made and random programs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passcheck import ALL, DIMS, same, well_formed
from programs import EXAMPLES, programs

from weft.expr.nodes import free_vars
from weft.loop.nodes import Block, For, Program, int_const, transform_stmts, walk_stmts
from weft.loop.pipeline import STAGES, lower_program


def stages(program: Program) -> dict[str, Program]:
    found: dict[str, Program] = {}
    lower_program(program, ALL, found.__setitem__)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_stage_keeps_examples(name: str) -> None:
    program = EXAMPLES[name]()
    for after in stages(program).values():
        same(program, after)
        same(program, after, {"n": 16, "m": 8}) if program.dims else None


def test_stages_are_the_architecture_table() -> None:
    assert [s.name for s in STAGES] == [
        "start_empty_reductions", "lower_blocks", "simplify", "block_sums", "unswitch_loops", "partition_loops",
        "flatten_buffers", "guard_loads",
        "vectorize_loops", "unroll_loops", "relax_masks", "hoist_invariants", "expand_math",
    ]  # fmt: skip


KINDS = st.sampled_from(["serial", "serial", "parallel", "vectorized", "unrolled"])


@st.composite
def scheduled(draw: st.DrawFn) -> Program:
    """A random program whose loops over spatial iterators got random kinds."""
    program = draw(programs())
    spatial: set[str] = set()
    for block in walk_stmts(program.body):
        if isinstance(block, Block):
            spatial |= {n for i, b in zip(block.iters, block.bindings) if i.kind == "spatial" for n in free_vars(b)}
    taken: set[str] = set()

    def rule(s: object) -> For | None:
        if isinstance(s, For) and s.var.name in spatial and s.var.name not in taken:
            taken.add(s.var.name)
            kind = draw(KINDS)
            return For(
                s.var,
                s.extent,
                s.body,
                "serial" if kind == "vectorized" and int_const(s.extent) is None else kind,
                s.annotations,
            )
        return None

    return program.with_body(transform_stmts(program.body, rule))


@settings(max_examples=60, deadline=None)
@given(scheduled(), st.sampled_from([(5, 3), (1, 2), (8, 4), (7, 9)]))
def test_every_stage_keeps_random_programs(program: Program, sizes: tuple[int, int]) -> None:
    dims = {**DIMS, "n": sizes[0], "m": sizes[1]}
    result = stages(program)
    for after in result.values():
        same(program, after, dims)
        well_formed(after)
    last = result["expand_math"]
    kinds = {s.kind for s in walk_stmts(last.body) if isinstance(s, For)}
    assert not kinds & {"vectorized", "unrolled"}
    assert not any(isinstance(s, Block) for s in walk_stmts(last.body))
