"""Choices of the rules of llvm: every option that is not refused computes the same, another value of each changes the
program, and a record written by hand is followed, seen, and refused with its reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.choices import follows_record, kernel_of, of, over, record_of
from tests.gpu.kernels import agree, random_inputs

from weft.compilation import Compilation, Kernel
from weft.errors import ChoiceError, ScheduleWarning
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.verify import verify
from weft.resolve import resolve_target
from weft.scheduling import meanings
from weft.scheduling.run_rules import Scheduled, run_recorded
from weft_interpreter.interpret import interpret
from weft_ops import (
    Argsort,
    CumSum,
    Erf,
    MatMul,
    MatMulInteger,
    MaxPool,
    Recurrence,
    ReduceSum,
    Relu,
    Softmax,
    Transpose,
)
from weft_ops.recurrent import Cell

TARGET = "llvm -mcpu=x86-64-v3 -threads=2"
VNNI = "llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake -threads=2"
MEANINGS = meanings(resolve_target(VNNI).intrinsics.values())


def recurrence(cell: Cell, gates: int, steps: int, batch: int, hidden: int) -> Graph:
    """A graph of a recurrent cell whose weights are constant."""
    b = GraphBuilder("model")
    weights = b.constant(np.random.default_rng(0).uniform(-1, 1, (gates, hidden, hidden)).astype(np.float32), "r")
    inputs = [
        b.input(n, tensor_type("float32", s))
        for n, s in (("x", (steps, batch, gates * hidden)), ("h", (batch, hidden)))
    ]
    b.output(b.add_all(Recurrence(cell), inputs[0], weights, inputs[1], None, None, None)[0], "y")
    return b.build()


def quantized(rows: int, depth: int, columns: int) -> Graph:
    """A product of uint8 by constant int8."""
    b = GraphBuilder("model")
    x, w = b.input("x", tensor_type("uint8", (rows, depth))), b.constant(np.ones((depth, columns), np.int8), "w")
    b.output(b.add(MatMulInteger(), x, w, None, None), "y")
    return b.build()


GRAPHS: dict[str, tuple[str, Graph, tuple[str, ...]]] = {
    "relu": ("elementwise", of(Relu(), 6, 40), ("lanes", "vectors", "tasks_per_core")),
    "erf": ("elementwise", of(Erf(), 3, 140), ("lanes", "vectors", "tasks_per_core")),
    "transpose": ("elementwise", of(Transpose((1, 0)), 21, 34), ("lanes", "block", "tasks_per_core")),
    "channels": ("elementwise", of(Transpose((1, 0)), 40, 3), ("lanes", "line", "tasks_per_core")),
    "columns": ("reduction", of(ReduceSum((0,)), 5, 70), ("lanes", "vectors", "taps", "tasks_per_core")),
    "few_columns": ("reduction", of(ReduceSum((1,)), 6, 5, 16), ("lanes", "rows", "taps", "tasks_per_core")),
    "row": ("reduction", of(ReduceSum((0, 1)), 40, 30), ("lanes", "vectors", "chain")),
    "pool": ("reduction", of(MaxPool((2, 2)), 1, 4, 6, 8), ("lanes", "taps", "tasks_per_core")),
    "softmax": ("rowwise", of(Softmax(-1), 32, 40), ("rows", "parallel", "vectors")),
    "sort": ("fallback", of(Argsort(), 6, 20), ("parallel",)),
    "product": ("contraction", over(MatMul(), (40, 6), (6, 64)), ("tile_rows", "tile_columns", "tasks_per_core")),
    "few_rows": ("contraction", over(MatMul(), (3, 20), (20, 40)), ("tile_rows", "tile_columns", "tasks_per_core")),
    "one_row": ("contraction", over(MatMul(), (1, 128), (128, 40)), ("tile_columns", "unrolled")),
    "dots": ("dots", quantized(5, 8, 320), ("tile_rows", "tile_columns", "tasks_per_core")),
    "lstm": (
        "recurrence",
        recurrence("lstm", 4, 2, 2, 40),
        ("tile_rows", "tile_columns", "panels", "parallel", "lanes"),
    ),
    "even_lstm": ("recurrence", recurrence("lstm", 4, 2, 1, 64), ("panels",)),
    "rnn": ("recurrence", recurrence("rnn", 1, 2, 3, 40), ("tile_rows", "panels")),
    "sums": ("recurrence", of(CumSum(), 6, 20), ("lanes", "vectors")),
}


@cache
def default(name: str) -> tuple[Compilation, Kernel]:
    return kernel_of(GRAPHS[name][1], VNNI if name == "dots" else TARGET)


def run_with(name: str, recorded: dict[str, Any]) -> Scheduled:
    compilation, found = default(name)
    target = compilation.target
    return run_recorded(target.rules, found.naive, target.machine, target.intrinsics, lambda _: None, recorded)


def results(program: Program, inputs: list[Any]) -> list[Any]:
    return list(interpret(program, inputs, {}, intrinsics=MEANINGS).values())


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
    for c in (c for c in found.choices if c.name.rpartition(".")[2] in wanted):
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


@pytest.mark.parametrize("name", ["erf", "columns"])
def test_the_fallback_rule(name: str) -> None:
    """It takes every program if a record says so, and shares out a block where a record says so."""
    _, found = default(name)
    inputs, made = random_inputs(found.naive, {}), {}
    alone = run_with(name, {"rule": "fallback"})
    (choice,) = [c for c in alone.choices if c.name.endswith(".parallel")]
    for option in choice.options:
        made[option] = program = run_with(name, {"rule": "fallback", choice.name: option}).schedule.program
        agree(results(program, inputs), results(found.naive, inputs), 64.0, str(program))
    assert choice.default is False and str(made[False]) == str(alone.schedule.program)
    assert "parallel" in str(made[True]) and "parallel" not in str(made[False])


DEPENDENT = """
program kernel(x: float32[8, 4]) -> (y: float32[4]) {
  for i in 8 {
    for j in 4 {
      block C(vi: 8 = i, vj: 4 = j) {
        y[vj] = x[vi, vj]
      }
    }
  }
}
"""


def test_the_fallback_rule_refuses_what_depends() -> None:
    target, program = default("erf")[0].target, parse_program(DEPENDENT)
    with pytest.raises(ChoiceError, match=r"choice 'C\.parallel' cannot be True") as caught:
        recorded = {"rule": "fallback", "C.parallel": True}
        run_recorded(target.rules, program, target.machine, target.intrinsics, lambda _: None, recorded)
    assert caught.value.why is not None and "y" in caught.value.why


def test_serpentine_order() -> None:
    """A choice of panels in parallel; refused where the last iteration has fewer of them."""
    choice = "product0.serpentine"
    with pytest.raises(ChoiceError, match="serpentine' cannot be True") as caught:
        run_with("lstm", {choice: True})
    assert caught.value.why is not None and "runs only where" in caught.value.why
    assert choice not in {c.name for c in run_with("even_lstm", {"product0.parallel": False}).choices}
    usual, made = (run_with("even_lstm", {"product0.panels": 1, choice: on}).schedule.program for on in (False, True))
    inputs = random_inputs(made, {})
    assert str(made) != str(usual)
    agree(results(made, inputs), results(usual, inputs), 64.0, str(made))


RECORDED = [
    ("sort", "parallel", False),
    ("product", "tasks_per_core", 0),
    ("dots", "tasks_per_core", 0),
    ("dots", "tile_rows", 2),
    ("one_row", "unrolled", 2),
    ("lstm", "parallel", False),
    ("rnn", "panels", 1),
    ("relu", "lanes", "none"),
    ("relu", "tasks_per_core", 2),
    ("erf", "vectors", 2),
    ("transpose", "block", 2),
    ("channels", "line", 32),
    ("few_columns", "rows", 2),
    ("row", "chain", 16),
    ("softmax", "rows", 4),
]


@pytest.mark.parametrize(("name", "choice", "value"), RECORDED)
def test_a_record_is_followed(name: str, choice: str, value: Any) -> None:
    follows_record(default(name), GRAPHS[name][1], VNNI if name == "dots" else TARGET, choice, value)


@pytest.mark.parametrize(
    ("name", "choice", "value", "reason"),
    [
        ("relu", "lanes", "tiles", "cannot be 'tiles'; the options are 'contiguous', 'none'"),
        ("relu", "tasks_per_core", 3, "cannot be 3; the options are 0, 1, 2, 4"),
        ("softmax", "vectors", 8, "cannot be 8; the loop has 40 iterations, 8 vectors have 64 elements"),
        ("few_columns", "rows", 4, "cannot be 4; the options are 1, 2, 3, 6"),
        ("row", "chain", 512, "cannot be 512; the options are 16, 32, 64, 128, 256"),
        ("softmax", "rows", 3, "cannot be 3; the options are 1, 2, 4, 8"),
        ("rnn", "panels", 4, "cannot be 4; the options are 1, 2, 3"),
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
