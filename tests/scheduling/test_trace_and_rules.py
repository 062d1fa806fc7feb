"""Traces as data, rules by offers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from tests.scheduling.nests import matmul, softmax

from weft.errors import PluginError, ScheduleError, ScheduleWarning
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling import Decline, Offer, Rule, Schedule, Trace, replay, select_rule
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.scheduling.rule import offers_of
from weft.scheduling.run_rules import run_recorded, run_rules
from weft.tensor import language as tl


def test_trace_reads_as_the_calls() -> None:
    s = Schedule(matmul())
    s.choose("tile", [2, 4], default=4)
    s.split("i", [None, 4], names=["a", "b"])
    assert str(s.trace).splitlines() == [
        "choose('tile', (2, 4), default=4) → 4",
        "split('i', (None, 4), names=('a', 'b')) → ('a', 'b')",
    ]
    assert Trace.from_json(s.trace.to_json()) == s.trace
    assert str(replay(matmul(), s.trace)) == str(s)


def test_trace_of_another_program() -> None:
    s = Schedule(matmul())
    s.split("i", [None, 4])
    with pytest.raises(ScheduleError, match="there is no loop 'i'"):
        replay(softmax(), s.trace)
    s = Schedule(matmul())
    s.cache_write("matmul", "local")
    steps = s.trace.to_json().replace("matmul_copy", "other")
    with pytest.raises(ScheduleError, match="step 0 of the trace gives 'matmul_copy'"):
        replay(matmul(), Trace.from_json(steps))


def test_text_that_is_no_trace() -> None:
    with pytest.raises(ScheduleError, match="the text is no schedule trace"):
        Trace.from_json('[{"args": []}]')
    with pytest.raises(ScheduleError, match="step 0 of the trace, 'splt', is no primitive") as caught:
        replay(matmul(), Trace.from_json('[{"do": "splt", "args": []}]'))
    assert caught.value.hint == "did you mean 'split'?"


def rule(rule_name: str, answer: Offer | Decline, order: int = 0) -> Rule:
    class Made(Rule):
        name: ClassVar[str] = rule_name
        priority: ClassVar[int] = order

        def offer(self, program: Program, machine: Any) -> Offer | Decline:
            return answer

        def apply(self, schedule: Schedule) -> None:
            schedule.parallel("i")

    return Made()


def test_the_cheapest_offer_wins_and_priority_breaks_ties() -> None:
    rules = [
        rule("low", Offer(2.0)), rule("slow", Offer(9.0), 20), rule("b_fast", Offer(2.0), 5), rule("a_fast", Offer(2.0),
            5),
        rule("special", Decline("dtype", "no int8 here"), 10),
    ]  # fmt: skip
    for order in (rules, rules[::-1]):
        chosen, declines = select_rule(order, matmul(), None)
        assert chosen.name == "a_fast"
        assert declines == [("special", Decline("dtype", "no int8 here"))]


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_a_cost_is_a_time(cost: float) -> None:
    with pytest.raises(PluginError) as caught:
        select_rule([rule("any", Offer(1.0)), rule("odd", Offer(cost))], matmul(), None)
    assert caught.value.what == f"rule 'odd' offers program 'matmul' at {cost} seconds"
    assert caught.value.why is not None and caught.value.hint == "estimate it: weft.scheduling.costs"


def test_no_rule_takes_it() -> None:
    with pytest.raises(ScheduleError) as caught:
        select_rule(
            [rule("x", Decline("rank", "rank 2 only")), rule("y", Decline("op", "MatMul is not mine"), 3)],
            matmul(),
            None,
        )
    text = str(caught.value)
    assert "no schedule rule takes program 'matmul'" in text and "operators: MatMul" in text
    assert "y: MatMul is not mine [op]; x: rank 2 only [rank]" in text
    with pytest.raises(ScheduleError, match="there are no rules"):
        select_rule([], softmax(), None)


def test_a_rule_that_asks_gets_the_intrinsics() -> None:
    class Asks(Rule):
        name: ClassVar[str] = "asks"

        def offer(self, program: Program, machine: Any, intrinsics: Mapping[str, Any] | None = None) -> Offer | Decline:
            return Offer(1.0) if "row4" in (intrinsics or {}) else Decline("no_row", "the machine has no row4")

        def apply(self, schedule: Schedule) -> None:
            raise AssertionError

    found, _ = select_rule([Asks()], matmul(), None, {"row4": intrinsic()})
    assert found.name == "asks"
    for intrinsics in ({}, None):
        with pytest.raises(ScheduleError) as caught:
            select_rule([Asks()], matmul(), None, intrinsics)
        assert caught.value.why == "asks: the machine has no row4 [no_row]"


def intrinsic() -> Intrinsic:
    x = tl.placeholder((4,), name="X")
    return Intrinsic(
        "row4", tl.compute((4,), lambda i: x[i] * 2.0, name="Y"), (Operand("X"), Operand("Y")), Call("row4")
    )


class Begins(Rule):
    """Offers what it has begun; `continued` says whether `apply` took it over."""

    name = "begins"
    continued: bool | None = None

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        s = Schedule(program, machine)
        s.split("i", [None, s.choose("tile", [2, 4], 4)])
        return Offer(1.0, candidate=s)

    def apply(self, s: Schedule, offer: Offer | None = None) -> None:
        assert offer is not None and offer.candidate is not None
        self.continued = s.resume(offer.candidate)
        if not self.continued:
            s.split("i", [None, s.choose("tile", [2, 4], 4)])
        s.vectorize("i_1")


@pytest.mark.parametrize(("choices", "continued"), [({}, True), ({"tile": 2}, False)])
def test_apply_continues_what_offer_began(choices: dict[str, Any], continued: bool) -> None:
    """A recorded choice might have been made otherwise by the offer, so that nothing of it is taken over."""
    rule, program = Begins(), matmul()
    done = run_recorded([rule], program, None, {}, lambda p: None, choices)
    assert rule.continued is continued and done.schedule.trace.choices == {"tile": 4, **choices}
    assert str(replay(program, done.schedule.trace)) == str(done.schedule)
    (offer,) = (o for _, o in offers_of([rule], program, None)[0])
    assert offer.candidate is not None and len(offer.candidate.trace) == 2  # apply adds no steps to it
    again = run_rules([rule], program, None, {}, lambda p: None)
    assert rule.continued and [c.name for c in again.choices] == ["rule", "tile"]


def test_of_rules_of_one_name_a_record_gets_the_cheapest() -> None:
    """The one that runs without a record."""

    class Named(Rule):
        name = "same"

        def __init__(self, cost: float) -> None:
            self.cost = cost

        def offer(self, program: Program, machine: Any) -> Offer | Decline:
            return Offer(self.cost)

        def apply(self, s: Schedule) -> None:
            s.split("i", [None, s.choose("tile", [2, 4], 4)])

    rules, program = [Named(2.0), Named(1.0), Named(3.0)], matmul()
    for choices in ({}, {"rule": "same"}, {"tile": 2}):
        assert run_recorded(rules, program, None, {}, lambda p: None, choices).rule is rules[1]
    assert run_rules(rules, program, None, {}, lambda p: None).rule is rules[1]


def test_a_schedule_resumes_its_own_program_only() -> None:
    program = matmul()
    candidate = Schedule(program)
    candidate.split("i", [None, 4])
    assert not Schedule(matmul()).resume(candidate)
    assert not Schedule(program, checked=True).resume(candidate)
    begun = Schedule(program)
    begun.split("j", [None, 2])
    before = str(begun)
    assert not begun.resume(candidate) and str(begun) == before
    fresh = Schedule(program)
    assert fresh.resume(candidate) and str(fresh) == str(candidate)
    fresh.vectorize("i_1")
    assert str(candidate) != str(fresh) and len(candidate.trace) == 1


def test_rules_that_take_no_offer() -> None:
    class Plain(Rule):
        name = "plain"

        def offer(self, program: Program, machine: Any) -> Offer | Decline:
            return Offer(1.0)

        def apply(self, schedule: Schedule) -> None:
            schedule.vectorize("j")

    assert run_rules([Plain()], matmul(), None, {}, lambda p: None).schedule.trace.steps[0].do == "vectorize"


@pytest.mark.parametrize(("cost", "warns"), [(5e6, True), (601.0, True), (599.0, False), (1e-6, False)])
def test_costs_that_are_no_seconds_are_said(cost: float, warns: bool) -> None:
    class Counts(Rule):
        name = "counts"

        def offer(self, program: Program, machine: Any) -> Offer:
            return Offer(cost)

        def apply(self, schedule: Schedule) -> None:
            """Nothing."""

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        offers_of([Counts()], matmul(), Machine("m", 256, 16))
    said = (
        "rule 'counts' offers costs that are no seconds (more than 600 for one kernel), and may never be chosen:"
        " estimate times by weft.scheduling.costs"
    )
    assert [(w.category, str(w.message)) for w in caught] == [(ScheduleWarning, said)] * warns
