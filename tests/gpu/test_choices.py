"""Choices of the rules for grids: every option that is not refused computes
the same within the machine's limits, another value of each changes the program, and records are followed or refused."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
from tests.choices import follows_record, kernel_of, of, over, record_of
from tests.gpu.kernels import MACHINES, agree, lowered_meaning, meaning, random_inputs, sample_programs, within_limits

from weft import dtypes as dt
from weft.compilation import Compilation, Kernel
from weft.errors import ChoiceError, ScheduleWarning
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.lower.lower import lower_group
from weft.scheduling.run_rules import Scheduled, run_recorded
from weft_gpu.schedules import RULES
from weft_ops import Argsort, Conv, CumSum, Erf, MatMul, MaxPool, Recurrence, ReduceSum, Relu, Softmax, Transpose
from weft_ops.winograd import WinogradConv

GRAPHS: dict[str, tuple[str, Graph, tuple[str, ...]]] = {
    "relu": ("elementwise", of(Relu(), 6, 40), ("lanes", "threads", "each")),
    "erf": ("elementwise", of(Erf(), 700), ("lanes", "threads", "each")),
    "transpose": ("elementwise", of(Transpose((1, 0)), 21, 34), ("tile",)),
    "rows": ("reduction", of(ReduceSum((1,)), 3, 200), ("sums", "sum_threads")),
    "columns": ("reduction", of(ReduceSum((0,)), 66, 5), ("sums", "sum_threads")),
    "whole": ("reduction", of(ReduceSum((0,)), 4200), ("sums", "parts")),
    "pool": ("window", of(MaxPool((2, 2)), 1, 3, 6, 8), ("sums", "threads")),
    "product": ("contraction", over(MatMul(), (4, 512), (512, 6)), ("parts",)),
    "short_product": ("contraction", over(MatMul(), (1, 6), (6, 16)), ("parts", "tile")),
    "short_window": ("contraction", over(Conv(), (1, 2, 5, 5), (3, 2, 2, 2)), ("parts",)),
    "winograd": ("winograd", over(WinogradConv(2, (1, 1, 1, 1)), (1, 2, 6, 6), (16, 2, 3)), ("threads",)),
    "sums": ("recurrence", of(CumSum(), 6, 20), ("lines",)),
    "gru": ("recurrence", over(Recurrence("gru"), (2, 1, 99), (3, 33, 33), (1, 33)), ("sum_threads",)),
    "sort": ("fallback", of(Argsort(), 6, 20), ("threads",)),
    "softmax": ("rowwise", of(Softmax(-1), 8, 20), ("rows", "row_threads", "rows_of_group")),
    "long_softmax": ("rowwise", of(Softmax(-1), 4, 130), ("row_threads", "rows_of_group")),
}


@cache
def naive(name: str) -> Program:
    return lower_group(GRAPHS[name][1], "kernel")


def run_with(name: str, machine: str, recorded: dict[str, Any]) -> Scheduled:
    return run_recorded(RULES, naive(name), MACHINES[machine], {}, lambda _: None, recorded)


@pytest.mark.parametrize("machine", ["small", "wide"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_option(name: str, machine: str) -> None:
    """What is followed means what the naive program means; the default is followed; what is not, has its reason."""
    rule, _, wanted = GRAPHS[name]
    found = run_with(name, machine, {})
    assert found.rule.name == rule
    assert {w for c in found.choices for w in wanted if c.name.rpartition(".")[2] == w} == set(wanted), found.choices
    inputs = random_inputs(naive(name))
    want = meaning(naive(name), inputs)
    usual, changing = str(found.schedule.program), set()
    for c in (c for c in found.choices if c.name.rpartition(".")[2] in wanted):
        for option in c.options:
            try:
                made = run_with(name, machine, {c.name: option})
            except ChoiceError as error:
                assert option != c.default and error.why, (c, option)
                continue
            text = f"{c.name} = {option}\n{made.schedule.program}"
            try:
                within_limits(made.schedule.program, MACHINES[machine])
            except AssertionError as error:
                raise AssertionError(text) from error
            agree(meaning(made.schedule.program, inputs), want, 64.0, text)
            if str(made.schedule.program) != usual:
                assert option != c.default
                changing.add(c.name.rpartition(".")[2])
    assert changing >= {w for w in wanted if any(c.name.endswith(w) and len(c.options) > 1 for c in found.choices)}


@pytest.mark.parametrize("machine", ["small", "wide"])
@pytest.mark.parametrize("shape", [(300, 64), (66, 5), (70, 3)])
def test_threads_of_sums_over_columns(shape: tuple[int, int], machine: str) -> None:
    """Each number of threads that is offered is the number that a group has."""
    program, made = lower_group(of(ReduceSum((0,)), *shape), "kernel"), set()
    group = {"reduced.sums": "group"}
    found = run_recorded(RULES, program, MACHINES[machine], {}, lambda _: None, group)
    (choice,) = [c for c in found.choices if c.name == "reduced.sum_threads"]
    for option in choice.options:
        recorded = {**group, choice.name: option}
        made.add(str(run_recorded(RULES, program, MACHINES[machine], {}, lambda _: None, recorded).schedule.program))
    assert len(made) == len(choice.options) > 1


def test_a_window_that_no_group_shares() -> None:
    """The predicate tries the whole schedule: its first step alone may act here."""
    op, n = MaxPool((4, 2), pads=(2, 0, 2, 0)), Var("n", dt.int64)
    b = GraphBuilder("model")
    b.output(b.add(op, b.input("x", tensor_type("float32", (1, 9, n, 3)))), "y")
    with pytest.raises(ChoiceError, match=r"'maxpool\.sums' cannot be 'group'") as caught:
        program = lower_group(b.build(), "kernel")
        run_recorded(RULES, program, MACHINES["wide"], {}, lambda _: None, {"maxpool.sums": "group"})
    assert caught.value.why is not None and "scattered elements" in caught.value.why


@pytest.mark.parametrize("machine", ["small", "wide"])
@pytest.mark.parametrize("sample", ["RNN-plain", "Attention-flat", "MatMul-float64", "Conv-pointwise"])
def test_parts_of_a_short_sum(sample: str, machine: str) -> None:
    """As many parts as an only loop of a sum has iterations are none; another loop may be left of the sum."""
    tried = 0
    for program, inputs, want in sample_programs(sample):
        found = run_recorded(RULES, program, MACHINES[machine], {}, lambda _: None, {})
        for c in (c for c in found.choices if c.name == "parts"):
            for option in c.options:
                made = run_recorded(RULES, program, MACHINES[machine], {}, lambda _: None, {c.name: option})
                agree(meaning(made.schedule.program, inputs), want, 64.0, f"parts = {option}")
                tried += 1
    assert tried


@pytest.mark.parametrize("machine", ["small", "wide"])
@pytest.mark.parametrize("name", ["softmax", "gru"])
def test_the_fallback_rule(name: str, machine: str) -> None:
    """It takes every program if a record says so, and its groups have as many threads as a record says."""
    program, made = naive(name), set()
    inputs = random_inputs(program)
    want = meaning(program, inputs)
    alone = run_with(name, machine, {"rule": "fallback"})
    choices = [c.name for c in alone.choices if c.name.endswith(".threads")]
    for choice, threads in product((choices[0], choices[-1]), (1, 4)):
        found = run_with(name, machine, {"rule": "fallback", choice: threads}).schedule.program
        within_limits(found, MACHINES[machine])
        agree(lowered_meaning(found, inputs, seed=threads), want, 64.0, f"{choice} = {threads}")
        made.add(str(found))
    assert len(made) == 4 and str(alone.schedule.program) not in made


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_of_sums_in_steps(machine: str) -> None:
    """A group's phases have more or fewer threads than the one that has the partial sums."""
    program = naive("gru")
    inputs = random_inputs(program)
    want, made = meaning(program, inputs), set()
    (choice,) = [c for c in run_with("gru", machine, {}).choices if c.name.endswith(".sum_threads")]
    for option in choice.options:
        found = run_with("gru", machine, {choice.name: option}).schedule.program
        made.add(str(found))
        agree(lowered_meaning(found, inputs, seed=option), want, 64.0, f"sum_threads = {option}")
    assert len(made) == len(choice.options) > 4


SCATTERED = """
program kernel(a: float32[4, 8], b: float32[8, 16]) -> (y: float32[8, 16]) {
  for i in 4 {
    for j in 16 {
      for k in 8 {
        block C(vi: 4 = i, vj: 16 = j, vk: reduce 8 = k) {
          init { y[vi*2, vj] = 0.0f32 }
          y[vi*2, vj] = y[vi*2, vj] + a[vi, vk]*b[vk, vj]
        }
      }
    }
  }
}
"""


def test_parts_that_cannot_be_summed_apart() -> None:
    with pytest.raises(ChoiceError, match="choice 'parts' cannot be 2") as caught:
        run_recorded(RULES, parse_program(SCATTERED), MACHINES["wide"], {}, lambda _: None, {"parts": 2})
    assert caught.value.why is not None and "scattered elements" in caught.value.why


# -- records

TARGET = "cuda -arch=sm_80"


@cache
def default(name: str) -> tuple[Compilation, Kernel]:
    return kernel_of(GRAPHS[name][1], TARGET)


@pytest.mark.parametrize(
    ("name", "choice", "value"),
    [
        ("relu", "lanes", 4),
        ("relu", "threads", 64),
        ("relu", "each", 2),
        ("transpose", "tile", 8),
        ("rows", "sums", "output"),
        ("rows", "sum_threads", 8),
        ("gru", "sum_threads", 2),
        ("softmax", "row_threads", 4),
        ("long_softmax", "rows_of_group", 2),
    ],
)
def test_a_record_is_followed(name: str, choice: str, value: Any) -> None:
    follows_record(default(name), GRAPHS[name][1], TARGET, choice, value)


@pytest.mark.parametrize(
    ("name", "choice", "value", "reason"),
    [
        ("relu", "lanes", 3, "cannot be 3; the options are 1, 2, 4"),
        ("relu", "threads", 300, "cannot be 300; the options are 1, 2, 4"),
        ("transpose", "tile", 7, "cannot be 7; the options are 0, 8, 16, 32"),
        ("rows", "sums", "warp", "cannot be 'warp'; the options are 'output', 'group'"),
        ("long_softmax", "rows", "thread", "cannot be 'thread'; the options are 'group'"),
    ],
)
def test_a_stale_record(name: str, choice: str, value: Any, reason: str) -> None:
    """The default stands, and a warning has the reason."""
    full, records = record_of(default(name), choice, value)
    before = default(name)[1]
    with pytest.warns(ScheduleWarning, match=f"choice '{full}' {reason}"):
        _, after = kernel_of(GRAPHS[name][1], TARGET, records)
    assert str(after.scheduled).replace(after.name, before.name) == str(before.scheduled)
    assert after.refused and not any(c.recorded for c in after.choices)
