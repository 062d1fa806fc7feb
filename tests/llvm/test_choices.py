"""Choices of the rules elementwise, reduction and rowwise: every option that is not refused computes the same, another
value of each changes the program, and a record written by hand is followed, seen, and refused with its reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.choices import follows_record, kernel_of, of, record_of
from tests.gpu.kernels import agree, random_inputs

from weft.compilation import Compilation, Kernel
from weft.errors import ChoiceError, ScheduleWarning
from weft.graph.nodes import Graph
from weft.loop.interpret import interpret
from weft.loop.nodes import Program
from weft.loop.verify import verify
from weft.scheduling.run_rules import Scheduled, run_recorded
from weft_ops import Erf, MaxPool, ReduceSum, Relu, Softmax, Transpose

TARGET = "llvm -mcpu=x86-64-v3 -threads=2"


GRAPHS: dict[str, tuple[str, Graph, tuple[str, ...]]] = {
    "relu": ("elementwise", of(Relu(), 6, 40), ("lanes", "vectors", "tasks_per_core")),
    "erf": ("elementwise", of(Erf(), 3, 140), ("lanes", "vectors", "tasks_per_core")),
    "transpose": ("elementwise", of(Transpose((1, 0)), 21, 34), ("lanes", "line", "tasks_per_core")),
    "columns": ("reduction", of(ReduceSum((0,)), 5, 70), ("lanes", "vectors", "taps", "tasks_per_core")),
    "few_columns": ("reduction", of(ReduceSum((1,)), 6, 5, 16), ("lanes", "rows", "taps", "tasks_per_core")),
    "row": ("reduction", of(ReduceSum((0, 1)), 40, 30), ("lanes", "vectors", "chain")),
    "pool": ("reduction", of(MaxPool((2, 2)), 1, 4, 6, 8), ("lanes", "taps", "tasks_per_core")),
    "softmax": ("rowwise", of(Softmax(-1), 32, 40), ("rows", "parallel", "vectors")),
}


@cache
def default(name: str) -> tuple[Compilation, Kernel]:
    return kernel_of(GRAPHS[name][1], TARGET)


def run_with(name: str, recorded: dict[str, Any]) -> Scheduled:
    compilation, found = default(name)
    target = compilation.target
    return run_recorded(target.rules, found.naive, target.machine, target.intrinsics, lambda _: None, recorded)


def results(program: Program, inputs: list[Any]) -> list[Any]:
    return list(interpret(program, inputs, {}).values())


@pytest.mark.parametrize("name", GRAPHS)
def test_every_option(name: str) -> None:
    """What is followed means what the naive program means; the default is followed; what is not, has its reason."""
    _, found = default(name)
    rule, _, wanted = GRAPHS[name]
    assert found.rule == rule
    assert {w for c in found.choices for w in wanted if c.name.rpartition(".")[2] == w} == set(wanted), found.choices
    inputs = random_inputs(found.naive, {})
    want = results(found.naive, inputs)
    usual, changing = str(run_with(name, {}).schedule.program), set()
    for c in found.choices[1:]:
        for option in c.options:
            try:
                made = run_with(name, {c.name: option})
            except ChoiceError as error:
                assert option != c.default and error.why, (c, option)
                continue
            verify(made.schedule.program)
            agree(results(made.schedule.program, inputs), want, 64.0, f"{c.name} = {option}\n{made.schedule.program}")
            if str(made.schedule.program) != usual:
                assert option != c.default
                changing.add(c.name.rpartition(".")[2])
    assert changing >= set(wanted)


RECORDED = [
    ("relu", "lanes", "none"),
    ("relu", "tasks_per_core", 2),
    ("erf", "vectors", 2),
    ("transpose", "line", 32),
    ("few_columns", "rows", 2),
    ("row", "chain", 16),
    ("softmax", "rows", 4),
]


@pytest.mark.parametrize(("name", "choice", "value"), RECORDED)
def test_a_record_is_followed(name: str, choice: str, value: Any) -> None:
    follows_record(default(name), GRAPHS[name][1], TARGET, choice, value)


@pytest.mark.parametrize(
    ("name", "choice", "value", "reason"),
    [
        ("relu", "lanes", "tiles", "cannot be 'tiles'; the options are 'contiguous', 'none'"),
        ("relu", "tasks_per_core", 3, "cannot be 3; the options are 0, 1, 2, 4"),
        ("softmax", "vectors", 8, "cannot be 8; the loop has 40 iterations, 8 vectors have 64 elements"),
        ("few_columns", "rows", 4, "cannot be 4; the options are 1, 2, 3, 6"),
        ("row", "chain", 512, "cannot be 512; the options are 16, 32, 64, 128, 256"),
        ("softmax", "rows", 3, "cannot be 3; the options are 1, 2, 4, 8"),
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
