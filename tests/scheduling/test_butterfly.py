"""butterfly: a reduction in levels of pairs, its meaning kept; on grids its levels are shuffles."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduling.nests import same

from weft.errors import ScheduleError
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.scheduling import Schedule, Trace, replay
from weft_gpu.passes import grid_passes

OPERATIONS = {
    "sum": ("0.0f32", "{0} + {1}"),
    "from_two": ("2.0f32", "{0} + {1}"),
    "greatest": ("-inff32", "max({0}, {1})"),
    "least": ("3.0f32", "min({0}, {1})"),
    "product": ("1.0f32", "{0}*{1}"),
}


def reduction(terms: int, operation: str = "sum") -> Program:
    start, update = OPERATIONS[operation]
    return parse_program(f"""program sums(x: float32[n, {terms}]) -> (y: float32[n]) dims(n) {{
      for i in n {{ for k in {terms} {{ block S(bi: n = i, bk: reduce {terms} = k) {{
        init {{ y[bi] = {start} }} y[bi] = {update.format("y[bi]", "x[bi, bk]")}
      }} }} }}
    }}""")


def test_levels() -> None:
    s = Schedule(reduction(4), checked=True)
    assert s.butterfly("S", "k") == ["S_2", "S_1"]
    text = str(s.program)
    assert "S_2[bi_1, bk_1] = x[bi_1, bk_1] + x[bi_1, bk_1 ^ 2]" in text
    assert "S_1[bi_2, bk_2] = S_2[bi_2, bk_2] + S_2[bi_2, bk_2 ^ 1]" in text
    assert "y[bi] = S_1[bi, 0]" in text and "reduce" not in text


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    operation=st.sampled_from(sorted(OPERATIONS)), terms=st.integers(1, 40), threads=st.sampled_from([2, 4, 8, 16]),
    warp=st.sampled_from([2, 4, 8]),
    rows=st.integers(1, 3), inline=st.booleans(), n=st.integers(1, 5),
)  # fmt: skip
def test_random_trees_keep_the_meaning(
    operation: str, terms: int, threads: int, warp: int, rows: int, inline: bool, n: int
) -> None:
    """As grids have them: partial results of threads, warps of them, several rows in a group; in shared memory what
    goes from warp to warp."""
    program = reduction(terms, operation)
    s = Schedule(program, checked=True)
    group = "i"
    if rows > 1:
        group, _ = s.split("i", [None, rows])
    _, mine = s.split("k", [None, threads])
    part = s.rfactor("S", mine, True)
    if group not in s.loops("S"):
        s.reverse_compute_at("S", group)
    row = s.loops(part)[1:-2]
    s.reorder(*row, mine, s.loops(part)[-2])
    s.set_scope(part, "register")
    s.compact_buffer(part)
    folded, lane = "S", s.loops("S")[-1]
    if threads > warp:
        own, lane = s.split(lane, [None, warp])
        folded = s.rfactor("S", own, True)
    levels = s.butterfly(folded, lane)
    if folded != "S" and inline:
        s.compute_inline(folded)
    for level in levels:
        s.set_scope(level, "shared" if level == levels[-1] else "register")
        s.compact_buffer(level)
        own_loops = s.loops(level)[s.loops(level).index(group) + 1 :]
        count = 2 if threads > warp else 1
        s.bind(s.fuse(*own_loops[-count:]) if count > 1 else own_loops[-1], "threadIdx.x")
    s.bind(mine, "threadIdx.x")
    same(program, s.program, {"n": n})
    assert str(replay(program, Trace.from_json(s.trace.to_json()))) == str(s.program)
    lowered = lower_program(s.program, frozenset(), extra=grid_passes())
    assert str(lowered).count("@shuffle_xor") >= min(threads, warp).bit_length() - 1
    same(program, lowered, {"n": n})


@pytest.mark.parametrize(
    ("prepare", "loop", "words"),
    [
        (lambda s: None, "k", "the extent 6 of 'k' is no power of two"),
        (lambda s: s.split("k", [None, 2]), "k_1", "'S' reduces k_0*2 + k_1, not 'k_1' alone"),
        (lambda s: None, "i", "the extent n of 'i' is no power of two"),
        (lambda s: s.decompose_reduction("S", "k"), "k", "'S' is no reduction by one operation with an init"),
    ],
)
def test_refusals(prepare: object, loop: str, words: str) -> None:
    s = Schedule(reduction(6))
    prepare(s)  # type: ignore[operator]
    with pytest.raises(ScheduleError) as caught:
        s.butterfly("S", loop)
    assert words in str(caught.value.why)


def test_a_condition_on_the_loop_is_refused() -> None:
    text = str(reduction(8)).replace("bk: reduce 8 = k)", "bk: reduce 8 = k) where k < 5")
    with pytest.raises(ScheduleError) as caught:
        Schedule(parse_program(text)).butterfly("S", "k")
    assert "a condition or another iterator of 'S' depends on 'k'" in str(caught.value.why)
