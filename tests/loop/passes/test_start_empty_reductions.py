"""A reduction over nothing gives its start value, before and after the loop passes, whichever way it is scheduled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passcheck import ALL

import weft
from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_ops.contraction import MatMul
from weft_ops.reduction import ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum

REDUCTIONS: list[Any] = [ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceMean]


def graph(op: Any, length: Any, dtype: str = "float32") -> Any:
    builder = GraphBuilder()
    x = builder.input("x", tensor_type(dtype, (3, length, 20)))
    builder.output(builder.add(op, x), "y")
    return builder.build()


@pytest.mark.parametrize("op", REDUCTIONS[:4])
def test_interpreted(op: Any) -> None:
    program = lower_group(graph(op((1,)), Var("n", dt.int64)))
    x = np.zeros((3, 0, 20), np.float32)
    for stage in (program, lower_program(program, ALL)):
        (y,) = interpret(stage, [x.reshape(-1) if len(stage.inputs[0].shape) == 1 else x], {"n": 0}).values()
        np.testing.assert_array_equal(y.reshape(3, 20), op((1,)).reference(x))


def test_split_and_factored() -> None:
    program = lower_group(graph(ReduceSum((1,)), Var("n", dt.int64)))
    s = Schedule(program, None)
    (name,) = s.blocks()
    _, inner = s.split(s.loops(name)[-1], [None, 8])
    s.vectorize(s.loops(s.rfactor(name, inner))[-1])
    for n in (0, 3):
        x = np.ones((3, n, 20), np.float32)
        lowered = lower_program(s.program, ALL)
        (y,) = interpret(lowered, [x.reshape(-1)], {"n": n}).values()
        np.testing.assert_array_equal(y.reshape(3, 20), np.full((3, 20), n))


def test_a_reduction_that_has_steps_stays_as_it_is() -> None:
    program = lower_group(graph(ReduceSum((1,)), 4))
    assert start_empty_reductions(program) == program


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("length", [0, Var("n", dt.int64)], ids=["static", "symbolic"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_compiled(op: Any, length: Any, dtype: str) -> None:
    x = np.zeros((3, 0, 20), dtype)
    for axes in ((1,), (0, 1, 2)):
        executable = weft.compile(graph(op(axes), length, dtype), target="llvm", cache=False)
        (y,) = executable.run({"x": x}).values()
        with np.errstate(all="ignore"):
            want = np.full(y.shape, np.nan, dtype) if op is ReduceMean and dtype == "float32" else op(axes).reference(x)
        np.testing.assert_array_equal(y, want)


def test_a_product_over_nothing() -> None:
    builder = GraphBuilder()
    n = Var("n", dt.int64)
    x, y = builder.input("x", tensor_type("float32", (5, n))), builder.input("y", tensor_type("float32", (n, 7)))
    builder.output(builder.add(MatMul(), x, y), "z")
    executable = weft.compile(builder.build(), target="llvm", cache=False)
    (z,) = executable.run({"x": np.zeros((5, 0), np.float32), "y": np.zeros((0, 7), np.float32)}).values()
    np.testing.assert_array_equal(z, np.zeros((5, 7)))
