"""Random schedules of lowered programs: what a primitive accepts keeps the meaning, verifies, and replays from JSON."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduling.nests import PROGRAMS, same

from weft.errors import ScheduleError
from weft.loop.nodes import Allocate, walk_stmts
from weft.scheduling import Schedule, Trace, replay


def one_step(s: Schedule, draw: Any) -> None:
    """Some primitive with some arguments that name what exists."""
    blocks = s.blocks()
    block = draw(st.sampled_from(blocks))
    loops = s.loops(block)
    buffers = [x.buffer.name for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]
    every = list(dict.fromkeys(v for b in blocks for v in s.loops(b)))
    kind = draw(st.sampled_from([
        "split", "split", "fuse", "reorder", "reorder", "unroll", "vectorize", "parallel", "compute_at", "compute_at",
        "reverse_compute_at",
        "reverse_compute_at", "compute_inline", "reverse_compute_inline", "cache_read", "cache_write",
        "decompose_reduction", "compact_buffer",
        "compact_buffer", "set_scope", "rfactor", "prefetch", "serpentine",
    ]))  # fmt: skip
    if kind in ("compute_inline", "reverse_compute_inline"):
        s.apply(kind, block)
    elif kind in ("compute_at", "reverse_compute_at"):
        s.apply(kind, block, draw(st.sampled_from(every or ["none"])))
    elif kind == "cache_read":
        s.cache_read(block, draw(st.sampled_from([b.name for b in s.program.inputs] + buffers)), "local")
    elif kind == "cache_write":
        s.cache_write(block, "local")
    elif kind == "set_scope":
        s.set_scope(block, "local")
    elif kind == "compact_buffer":
        s.compact_buffer(draw(st.sampled_from(buffers or ["none"])))
    elif not loops:
        return
    elif kind == "split":
        s.split(
            draw(st.sampled_from(loops)),
            draw(st.sampled_from([[None, 2], [None, 3], [2, None], [None, 2, 2], [3, None, 2], [None, 4]])),
        )
    elif kind == "fuse":
        k = draw(st.integers(0, len(loops) - 1))
        s.fuse(*loops[k : k + draw(st.integers(2, 3))])
    elif kind == "reorder":
        s.reorder(*draw(st.permutations(loops))[: draw(st.integers(2, 4))])
    elif kind == "serpentine":
        s.serpentine(draw(st.sampled_from(loops)), draw(st.sampled_from(loops)), draw(st.sampled_from([1, 2])))
    elif kind == "prefetch":
        s.prefetch(
            block,
            draw(st.sampled_from([b.name for b in s.program.inputs])),
            *(draw(st.sampled_from(loops)) for _ in range(2)),
            line=8,
        )
    elif kind in ("decompose_reduction", "rfactor"):
        s.apply(kind, block, draw(st.sampled_from(loops)))
    else:
        s.apply(kind, draw(st.sampled_from(loops)))


@pytest.mark.parametrize("name", PROGRAMS)
@settings(
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "5")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_random_schedules_keep_the_meaning(name: str, data: Any) -> None:
    program = PROGRAMS[name]()
    s = Schedule(program, checked=True)
    for _ in range(data.draw(st.integers(1, 9))):
        try:
            one_step(s, data.draw)
        except ScheduleError as error:
            assert error.why, error
            assert "ill-formed" not in error.what, error
    same(program, s.program, {"n": data.draw(st.integers(1, 7)), "m": 3, "W": data.draw(st.integers(1, 5))})
    again = replay(program, Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s.program)
