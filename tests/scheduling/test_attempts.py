"""Steps that are taken all or not at all: checkpoints, rollbacks, attempts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduling.nests import same

from weft.errors import ScheduleError
from weft.loop.parser import parse_program
from weft.scheduling import Schedule, Trace, replay

TEXT = """program p(x: float32[24, 10]) -> (y: float32[24, 10]) {
  allocate t: float32[24, 10]
  for i in 24 { for j in 10 { block A(a: 24 = i, b: 10 = j) { t[a, b] = x[a, b]*2.0f32 } } }
  for p in 24 { for q in 10 { block B(c: 24 = p, d: 10 = q) { y[c, d] = t[c, d] + 1.0f32 } } }
}"""


def schedule() -> Schedule:
    return Schedule(parse_program(TEXT), checked=True)


def state(s: Schedule) -> tuple[str, str]:
    return str(s.program), s.trace.to_json()


def test_an_attempt_that_is_refused_leaves_nothing_behind() -> None:
    s = schedule()
    s.split("i", [None, 4])
    before = state(s)
    with s.attempt() as tried:
        s.choose("tile", [4, 8], 8)
        s.split("j", [None, 5])
        s.split("nothing", [None, 5])
    assert not tried and state(s) == before and s.trace.choices == {}
    assert isinstance(tried.error, ScheduleError) and tried.reason.startswith("there is no loop 'nothing'")
    s.split("j", [None, 2])  # and goes on
    assert str(replay(parse_program(TEXT), s.trace)) == str(s.program)


def test_an_attempt_that_succeeds_stays() -> None:
    s = schedule()
    with s.attempt() as tried:
        s.split("i", [None, 4])
    assert tried and tried.error is None and tried.reason == "" and s.loops("A") == ["i_0", "i_1", "j"]
    assert len(s.trace) == 1


def test_other_exceptions_go_on_and_leave_nothing_behind_either() -> None:
    s = schedule()
    before = state(s)
    with pytest.raises(ZeroDivisionError), s.attempt():
        s.split("i", [None, 4])
        1 // 0  # noqa: B018
    assert state(s) == before


def test_attempts_within_attempts() -> None:
    s = schedule()
    with s.attempt() as outer:
        s.split("i", [None, 4])
        inside = state(s)
        with s.attempt() as inner:
            s.split("j", [None, 5])
            s.vectorize("nothing")
        assert not inner and state(s) == inside
    assert outer and state(s) == inside


def test_a_checkpoint_may_be_come_back_to_from_before_and_after() -> None:
    s = schedule()
    start = s.checkpoint()
    s.split("i", [None, 4])
    later = s.checkpoint()
    s.rollback(start)
    s.split("i", [None, 6])
    s.rollback(later)
    assert s.loop("i_1").extent == Schedule(later.program).loop("i_1").extent and len(s.trace) == 1
    s.rollback(start)
    assert state(s) == state(schedule())


def test_a_checkpoint_of_another_schedule_is_refused() -> None:
    other = schedule()
    with pytest.raises(ScheduleError, match="a schedule cannot go back to a checkpoint of another") as caught:
        schedule().rollback(other.checkpoint())
    assert "it is of a schedule of program 'p'" in str(
        caught.value
    ) and "take the checkpoint from this schedule" in str(caught.value)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_steps_and_rollbacks_are_the_steps_that_are_left(data: st.DataObject) -> None:
    """Whatever is tried and given up: the program is what its trace replays to, and means what it did."""
    from tests.scheduling.test_random import one_step

    s = schedule()
    marks = [s.checkpoint()]
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            marks.append(s.checkpoint())
            with s.attempt():
                one_step(s, data.draw)
                one_step(s, data.draw)
        else:
            s.rollback(data.draw(st.sampled_from(marks)))
    assert str(replay(parse_program(TEXT), Trace.from_json(s.trace.to_json()))) == str(s.program)
    same(parse_program(TEXT), s.program, {})
