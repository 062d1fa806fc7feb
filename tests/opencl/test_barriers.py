"""Loops around barriers, as PoCL takes them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft_interpreter.interpret import interpret
from weft_opencl.barriers import begin_with_barriers
from weft_testing.conform.kit import Kit

HEAD = (
    "program p(x: float32[4, 4]) -> (y: float32[8, 4], s: float32[4]) { for i in 4 threadIdx.x { s[i] = 1.0f32"
    " @barrier() for t in 8 {"
)
ADD, KEEP, HAND = "for r in 4 { acc[] = acc[] + x[i, r]*s[r] }", "y[t, i] = acc[]", "s[i] = min(acc[], 2.0f32)"


def program(body: str, after: str = "") -> Program:
    return parse_program(f"{HEAD} allocate acc: float32[] in register {body} }} {after} }} }}")


@pytest.mark.parametrize(
    ("body", "after", "begun", "barriers"),
    [
        (
            f"{ADD} {KEEP} @barrier() {HAND} @barrier()",
            "y[0, i] = s[3 - i]",
            True,
            4,
        ),  # the last one is moved, and one stands behind the loop
        (f"{ADD} @barrier() {HAND} @barrier() {KEEP}", "", True, 4),
        (f"{KEEP} @barrier() {ADD} {HAND} @barrier()", "", False, 3),
        (f"{ADD} {KEEP}", "", False, 1),
    ],
)
def test_loops_with_loops_before_their_barriers_begin_with_one(
    body: str, after: str, begun: bool, barriers: int
) -> None:
    before = program(f"acc[] = 0.0f32 {body}", after)
    made = begin_with_barriers(before)
    text = str(made)
    assert (text != str(before)) == begun
    assert text.count("@barrier()") == barriers
    if not begun:
        return
    x = np.random.default_rng(0).uniform(0, 1, (4, 4)).astype(np.float32)
    for seed in range(3):
        got, want = (interpret(p, {"x": x}, shuffle_seed=seed) for p in (made, before))
        for name in ("y", "s"):
            np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("name", ["relu", "leakyrelu", "thresholdedrelu", "elu"])
def test_steps_that_choose_by_a_condition(name: str) -> None:
    """PoCL's compiler ends the process at them otherwise."""
    kit = Kit.open("opencl", quick=False)
    case = kit.cases()[f"Recurrence float32 {name}"]
    with kit.watched():
        got = list(kit.alone(case).executable.run(case.inputs()).values())
    kit.compare(case.name, got, case.expected(), case.tolerance())
