"""Planted bugs: each is found, and the one that is wrong is blamed by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.verify.planted import Planted, given, model, subtract_adds

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass
from weft.passes.pipeline import GraphPass
from weft.scheduling.schedule import Schedule
from weft_testing.verify.report import Blame, Verification


def only(found: Verification) -> Blame:
    assert not found.passed
    (blame,) = found.blames
    return blame


def test_what_is_right_passes_and_so_does_every_node() -> None:
    found = Planted().verify(model(), given(), every=True)
    assert found.passed and found.looked and not found.blames
    (y,) = found.outputs
    assert (y.name, y.type, y.difference.wrong) == ("y", "float32[3, 3]", 0)
    assert 0 <= y.difference.ulp < 100 and y.difference.allowed < 1e-3


def test_a_graph_pass_is_named_and_the_node_that_it_changed() -> None:
    bug = Planted(graph_passes=[GraphPass("subtract_adds", subtract_adds, after="simplify_algebra")])
    blame = only(bug.verify(model(), given()))
    assert (blame.kind, blame.stage, blame.operator, blame.names) == ("pass", "subtract_adds", "Add", ("layer1/bias",))
    assert blame.target == "planted" and blame.title == "the graph pass 'subtract_adds' changes the results"
    assert blame.difference is not None and blame.difference.wrong


def test_a_schedule_rule_that_writes_the_program_itself() -> None:
    def plan(s: Schedule) -> None:
        text = str(s.program)
        if "Subtract" in text:
            s.program = parse_program(text.replace(" - in", " + in"))

    blame = only(Planted(schedule=plan).verify(model(), given()))
    assert (blame.kind, blame.stage, blame.rule, blame.operator, blame.names) == (
        "kernel",
        "schedule",
        "planted",
        "Subtract",
        ("layer1/bias",),
    )
    assert blame.step == "" and "its steps do not: it changes the program beside them" in blame.why


def test_a_step_of_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.scheduling import primitives

    right = primitives.PRIMITIVES["unroll"]

    def wrong(program: Program, loop: str) -> Any:
        program, result = right(program, loop)
        return parse_program(str(program).replace(" - in", " + in")), result

    def plan(s: Schedule) -> None:
        block = s.blocks()[-1]
        s.split(s.loops(block)[-1], [None, 2])
        s.unroll(s.loops(block)[-1])

    monkeypatch.setitem(primitives.PRIMITIVES, "unroll", wrong)
    blame = only(Planted(schedule=plan).verify(model(), given()))
    assert (blame.kind, blame.stage, blame.names) == ("kernel", "schedule", ("layer1/bias",))
    assert blame.step.startswith("unroll('")


def test_a_loop_pass() -> None:
    def wrong(program: Program) -> Program:
        return parse_program(str(program).replace(" - in", " + in"))

    blame = only(
        Planted(loop_passes=[LoopPass("add_instead", wrong, after="flatten_buffers")]).verify(model(), given())
    )
    assert (blame.kind, blame.stage, blame.operator, blame.names) == (
        "kernel",
        "add_instead",
        "Subtract",
        ("layer1/bias",),
    )
    assert blame.title == "a kernel departs: the loop pass 'add_instead'"


def test_an_emitter() -> None:
    blame = only(Planted(code=lambda text: text.replace(" - in", " + in")).verify(model(), given()))
    assert (blame.kind, blame.stage, blame.operator, blame.names) == ("kernel", "codegen", "Subtract", ("layer1/bias",))
    assert blame.node == "%bias1 = Subtract()(%product1, %z)"
    assert blame.kernel.startswith("matmul_subtract_relu_")
    assert blame.why == "the program that it was made from is right when it is interpreted"
    assert blame.title == "a kernel departs: its machine code"


def test_the_lowering_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_ops import Subtract

    monkeypatch.setattr(Subtract, "formula", lambda self, a, b: a + b)
    blame = only(Planted().verify(model(), given()))
    assert (blame.kind, blame.stage, blame.operator) == ("kernel", "lower_group", "Subtract")


def test_the_error_of_an_earlier_node_is_not_blamed_on_what_amplifies_it() -> None:
    """The last layer's softmax departs most in all; by itself it is right."""
    blame = only(Planted(code=lambda text: text.replace(" - in", " + in")).verify(model(), given()))
    assert blame.names == ("layer1/bias",)
    assert blame.carried is not None and blame.carried.wrong


def test_what_a_kernel_leaves_unwritten_is_wrong() -> None:
    blame = only(
        Planted(code=lambda text: text.replace("for relu_i1 in 4 {", "for relu_i1 in 3 {")).verify(model(), given())
    )
    assert (blame.stage, blame.operator, blame.names) == ("codegen", "Relu", ("layer1/end",))
    assert blame.difference is not None and (blame.difference.wrong, blame.difference.got) == (3, "nan")


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("stage", ["codegen", "schedule"])
def test_what_is_too_large_to_be_interpreted_is_compiled_for_another_target(stage: str) -> None:
    def plan(s: Schedule) -> None:
        s.program = parse_program(str(s.program).replace(" - in", " + in"))

    wrong = Planted(schedule=plan) if stage == "schedule" else Planted(code=lambda text: text.replace(" - in", " + in"))
    blame = only(wrong.verify(model(), given(), patience=0.0))
    assert (blame.kind, blame.stage, blame.names) == ("kernel", stage, ("layer1/bias",))
    assert "compiled for '" in blame.why and "to interpret its program once would take about 0 s" in blame.why


def test_what_nobody_can_tell_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_testing.verify import stages

    monkeypatch.setattr(stages, "target_kinds", dict)
    blame = only(Planted(code=lambda text: text.replace(" - in", " + in")).verify(model(), given(), patience=0.0))
    assert (blame.kind, blame.stage, blame.names, blame.title) == ("kernel", "", ("layer1/bias",), "a kernel departs")
    assert (
        blame.why
        == "to interpret its program once would take about 0 s: smaller inputs, or more --patience, are needed to find"
        " the stage"
    )


def test_symbolic_sizes() -> None:
    bug = Planted(code=lambda text: text.replace(" - in", " + in"))
    for rows in (1, 4):
        blame = only(bug.verify(model("batch"), given(rows)))
        assert (blame.stage, blame.names) == ("codegen", ("layer1/bias",))


def test_bounds_that_the_user_gives() -> None:
    from weft_testing.verify.measure import Bound

    found = Planted(code=lambda text: text.replace("exp(", "1.0001f32*exp(")).verify(
        model(), given(), bound=Bound(rtol=1e-2)
    )
    assert found.passed
    wrong = Planted(code=lambda text: text.replace(" - in", " + in"))
    assert only(wrong.verify(model(), given(), bound=Bound(rtol=1e-3, atol=1e-5))).names == ("layer1/bias",)
    assert wrong.verify(model(), given(), bound=Bound(atol=10.0)).passed
