"""Gradients of branches and loops: against differences, and compiled as interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.training.differences import Applied, check

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, OpenType, SequenceType, TensorType, Value, tensor_type
from weft.graph.verify import verify
from weft_training import grad, jvp, vjp

INDEX, BOOL = TensorType(dt.int64, ()), TensorType(dt.bool_, ())


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def f64(*shape: Any) -> TensorType:
    return tensor_type(dt.float64, shape)


def recurrent(b: GraphBuilder, rank2: TensorType = f64(2, 3)) -> Graph:
    """(step, h, x, w) → h' = tanh(h · w + x · h), and h · (step + 1) to collect."""
    body = b.inner("body")
    k, h, x, w = (body.input(n, t) for n, t in (("k", INDEX), ("h", rank2), ("x", rank2), ("w", f64(3, 3))))
    new = body.add(ops.Tanh(), body.add(ops.Add(), body.add(ops.MatMul(), h, w), body.add(ops.Multiply(), x, h)))
    number = body.add(ops.Add(), body.add(ops.Cast(dt.float64), k), body.constant(np.array(1.0)))
    body.output(new, body.unique("new"))
    body.output(body.add(ops.Multiply(), h, number), body.unique("kept"))
    return body.build()


def agrees(graph: Graph, inputs: dict[str, Any]) -> int:
    """Checks the gradients against differences, and that llvm computes them."""
    compared = check(Applied(graph, inputs))
    backward = vjp(graph, unreached="zeros")
    verify(backward)
    results = evaluate(graph, inputs)
    given = inputs | {v.name: numbers(*r.shape, seed=9) for v, r in zip(backward.inputs[len(inputs) :], results)}
    wanted = evaluate(backward, given)
    for want, got in zip(wanted, weft.compile(backward, "llvm").run(given).values()):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    return compared


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_loop(count: int, backward: bool, axis: int) -> None:
    b = GraphBuilder("g")
    shape = (count, 2, 3) if axis == 0 else (2, count, 3)
    h, x, w = b.input("h", f64(2, 3)), b.input("x", f64(*shape)), b.input("w", f64(3, 3))
    op = ops.Loop(recurrent(b), 1, False, count, (axis,), (backward,), (axis,), (not backward,))
    for v in b.add_all(op, None, None, h, x, w):
        b.output(v)
    compared = agrees(b.build(), {"h": numbers(2, 3), "x": numbers(*shape, seed=1), "w": numbers(3, 3, seed=2)})
    assert compared == 6 + 6 * count + 9


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_loop_of_a_number_of_trips(count: int) -> None:
    """Nothing is collected, and nothing is gone over: what the gradient needs of every iteration is."""
    b = GraphBuilder("g")
    x, w = b.input("x", f64(3)), b.input("w", f64(3))
    body = b.inner("body")
    _, s, c = body.input("k", INDEX), body.input("s", f64(3)), body.input("c", f64(3))
    body.output(body.constant(np.array(True)), "on")
    body.output(body.add(ops.Sin(), body.add(ops.Multiply(), s, c)), body.unique("new"))
    trips = b.constant(np.array(count, np.int64))
    b.output(b.add(ops.Loop(body.build(), 1, True), trips, None, x, w))
    agrees(b.build(), {"x": numbers(3), "w": numbers(3, seed=1)})


def test_a_number_of_trips_that_a_run_gives() -> None:
    def make(known: int | None) -> Graph:
        b = GraphBuilder("g")
        trips = b.input("n", INDEX) if known is None else b.constant(np.array(known, np.int64))
        x, w = b.input("x", f64(3)), b.input("w", f64(3))
        body = b.inner("body")
        _, s, c = body.input("k", INDEX), body.input("s", f64(3)), body.input("c", f64(3))
        body.output(body.add(ops.Sin(), body.add(ops.Multiply(), s, c)), body.unique("new"))
        b.output(b.add(ops.Loop(body.build(), 1), trips, None, x, w))
        return grad(b.build(), values=True)

    open_ = weft.compile(make(None), "llvm")
    for n in (0, 1, 5):
        x, w = numbers(3), numbers(3, seed=1)
        wanted = evaluate(make(n), {"x": x, "w": w})
        got = open_.run({"n": np.array(n, np.int64), "x": x, "w": w})
        for a, c in zip(got.values(), wanted):
            np.testing.assert_allclose(a, c, rtol=1e-12)


def test_a_loop_in_a_loop() -> None:
    b = GraphBuilder("g")
    h, x, w = b.input("h", f64(2, 3)), b.input("x", f64(2, 4, 2, 3)), b.input("w", f64(3, 3))
    body = b.inner("outer")
    _, s, part, c = (
        body.input(n, t) for n, t in (("i", INDEX), ("s", f64(2, 3)), ("p", f64(4, 2, 3)), ("c", f64(3, 3)))
    )
    inner = ops.Loop(recurrent(b), 1, False, 4, (0,), (True,), (0,), (False,))
    last, kept = body.add_all(inner, None, None, s, part, c)
    body.output(last, body.unique("last"))
    body.output(kept, body.unique("all"))
    for v in b.add_all(ops.Loop(body.build(), 1, False, 2, (0,), (False,), (1,), (True,)), None, None, h, x, w):
        b.output(v)
    agrees(b.build(), {"h": numbers(2, 3), "x": numbers(2, 4, 2, 3, seed=1), "w": numbers(3, 3, seed=2)})


def test_carried_values_that_are_no_floats_and_results_that_are_given_twice() -> None:
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    body = b.inner("body")
    _, s, n = body.input("k", INDEX), body.input("s", f64(3)), body.input("n", INDEX)
    more = body.add(ops.Add(), n, body.constant(np.array(2, np.int64)))
    new = body.add(ops.Multiply(), s, body.add(ops.Cast(dt.float64), more))
    for k, v in enumerate((new, more, new, s)):
        body.output(v, body.unique(f"r{k}"))
    op = ops.Loop(body.build(), 2, False, 3, result_axes=(0, 0), result_backward=(False, True))
    last, _, *kept = b.add_all(op, b.constant(np.array(3, np.int64)), None, x, b.constant(np.array(1, np.int64)))
    for v in (last, *kept):
        b.output(v)
    agrees(b.build(), {"x": numbers(3)})


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch(taken: bool) -> None:
    b = GraphBuilder("g")
    x, y, z = b.input("x", f64(2, 3)), b.input("y", f64(3)), b.input("z", f64(2, 3))
    then, orelse = b.inner("then"), b.inner("else")
    p, q = then.input("p", f64(2, 3)), then.input("q", f64(3))
    for v in (then.add(ops.Multiply(), p, q), then.add(ops.Exp(), p)):
        then.output(v, then.unique("r"))
    p, r = orelse.input("p2", f64(2, 3)), orelse.input("z2", f64(2, 3))
    for v in (orelse.add(ops.Sin(), orelse.add(ops.Multiply(), p, r)), r):
        orelse.output(v, orelse.unique("r"))
    condition = b.constant(np.array(taken))
    for v in b.add_all(ops.If(then.build(), orelse.build()), condition, x, y, x, z):
        b.output(v)
    agrees(b.build(), {"x": numbers(2, 3), "y": numbers(3, seed=1), "z": numbers(2, 3, seed=2)})


def test_a_branch_over_sizes_that_a_run_gives() -> None:
    """Where a branch does not use an operand, its gradient is zeros of the operand's sizes."""
    b = GraphBuilder("g")
    c, x, y = b.input("c", BOOL), b.input("x", f64("n", 3)), b.input("y", f64("n", 3))
    then, orelse = b.inner("then"), b.inner("else")
    then.output(then.add(ops.Exp(), then.input("p", f64("n", 3))), then.unique("r"))
    q = orelse.input("q", f64("n", 3))
    orelse.output(orelse.add(ops.Multiply(), q, q), orelse.unique("r"))
    b.output(b.add(ops.If(then.build(), orelse.build()), c, x, y))
    backward = grad(b.build())
    verify(backward)
    executable = weft.compile(backward, "llvm")
    for n in (1, 4):
        x_, y_ = numbers(n, 3), numbers(n, 3, seed=1)
        for taken in (True, False):
            by_x, by_y = executable.run({"c": np.array(taken), "x": x_, "y": y_}).values()
            np.testing.assert_allclose(by_x, np.exp(x_) * taken)
            np.testing.assert_allclose(by_y, 2 * y_ * (not taken))


def test_a_derivative_along_a_direction_passes_loops() -> None:
    b = GraphBuilder("g")
    h, x, w = b.input("h", f64(2, 3)), b.input("x", f64(4, 2, 3)), b.input("w", f64(3, 3))
    op = ops.Loop(recurrent(b), 1, False, 4, (0,), (False,), (0,), (False,))
    for v in b.add_all(op, None, None, h, x, w):
        b.output(v)
    transposed(b.build(), [numbers(2, 3), numbers(4, 2, 3, seed=1), numbers(3, 3, seed=2)])


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_a_derivative_along_a_direction_passes_recurrences(cell: Any) -> None:
    b = GraphBuilder("g")
    n = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    x, r, h = b.input("x", f64(4, 2, 3 * n)), b.input("r", f64(n, 3, 3)), b.input("h", f64(2, 3))
    for v in b.add_all(ops.Recurrence(cell), x, r, h, None, None, None, None):
        b.output(v)
    transposed(b.build(), [numbers(4, 2, 3 * n), numbers(n, 3, 3, seed=1), numbers(2, 3, seed=2)])


def transposed(graph: Graph, inputs: list[Any]) -> None:
    """Σ seed · (Jacobian · tangent) is Σ tangent · (seed · Jacobian)."""
    forward, backward = jvp(graph), vjp(graph)
    tangents = [numbers(*x.shape, seed=5 + k) for k, x in enumerate(inputs)]
    along = evaluate(forward, [*inputs, *tangents])
    seeds = [numbers(*y.shape, seed=15 + k) for k, y in enumerate(along)]
    by = evaluate(backward, [*inputs, *seeds])
    left, right = (sum(np.sum(a * b) for a, b in zip(*pair)) for pair in ((seeds, along), (tangents, by)))
    np.testing.assert_allclose(left, right, rtol=1e-10)


def dropped(b: GraphBuilder, x: Value) -> Value:
    """x · a factor of each element that differs from run to run."""
    words = b.add(ops.RandomBits(3), b.add(ops.Entropy()))
    factor = b.add(ops.Multiply(), b.add(ops.Cast(dt.float64), words), b.constant(np.array(2.0**-32)))
    return b.add(ops.Multiply(), x, factor)


def test_random_numbers_of_a_loop_are_those_of_its_gradient() -> None:
    """x · a factor that each iteration draws: all results are linear in x, so that they are the gradient · x."""
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    body = b.inner("body")
    body.input("k", INDEX)
    body.output(dropped(body, body.input("s", f64(3))), body.unique("new"))
    b.output(b.add(ops.Loop(body.build(), 1, False, 4), b.constant(np.array(4, np.int64)), None, x))
    linear(grad(b.build(), values=True))


@pytest.mark.parametrize("taken", [True, False])
def test_random_numbers_of_a_branch_are_those_of_its_gradient(taken: bool) -> None:
    b = GraphBuilder("g")
    c, x = b.input("c", BOOL), b.input("x", f64(3))
    bodies = []
    for name in ("then", "else"):
        body = b.inner(name)
        body.output(dropped(body, dropped(body, body.input("s", f64(3)))), body.unique("new"))
        bodies.append(body.build())
    b.output(b.add(ops.If(*bodies), c, x, x))
    linear(grad(b.build(), values=True), c=np.array(taken))


def linear(graph: Graph, **more: Any) -> None:
    verify(graph)
    executable = weft.compile(graph, "llvm")
    x = numbers(3)
    for _ in range(2):
        value, gradient = executable.run({"x": x} | more).values()
        np.testing.assert_allclose(gradient * x, value, rtol=1e-12)
        assert np.all(value != 0)


def test_random_numbers_of_a_loop_in_a_loop_are_refused() -> None:
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    inner, body = b.inner("inner"), b.inner("body")
    inner.input("i", INDEX)
    inner.output(dropped(inner, inner.input("t", f64(3))), inner.unique("new"))
    body.input("k", INDEX)
    s, trips = body.input("s", f64(3)), np.array(2, np.int64)
    body.output(body.add(ops.Loop(inner.build(), 1, False, 2), body.constant(trips), None, s), body.unique("new"))
    b.output(b.add(ops.Loop(body.build(), 1, False, 2), b.constant(trips), None, x))
    with pytest.raises(UnsupportedError, match="no gradient passes the Loop") as caught:
        grad(b.build())
    assert "random" in (caught.value.why or "")


def test_a_loop_that_its_body_ends_is_refused_with_its_name() -> None:
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    body = b.inner("body")
    _, s = body.input("k", INDEX), body.input("s", f64(3))
    total = body.add(ops.ReduceSum((0,), False), s)
    body.output(body.add(ops.Less(), total, body.constant(np.array(9.0))), "on")
    body.output(body.add(ops.Add(), s, s), body.unique("new"))
    with b.named("my_loop"):
        b.output(b.add(ops.Loop(body.build(), 1, True), b.constant(np.array(4, np.int64)), None, x))
    with pytest.raises(UnsupportedError, match="no gradient passes the Loop") as caught:
        grad(b.build())
    assert "its body decides" in (caught.value.why or "") and "my_loop" in (caught.value.where or "")


def test_sequences_are_refused() -> None:
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    sequence = b.add(ops.SequenceConstruct(), x, x)
    at: Value = b.add(ops.SequenceAt(), sequence, b.constant(np.array(0, np.int64)))
    b.output(b.add(ops.Exp(), b.add(ops.WithSizes((3,)), at)))
    assert isinstance(sequence.type, SequenceType) and isinstance(at.type, OpenType)
    with pytest.raises(UnsupportedError, match="no gradient passes WithSizes") as caught:
        grad(b.build())
    assert "host" in (caught.value.why or "")


@pytest.mark.parametrize("count", [0, 3])
def test_second_derivatives_pass_loops(count: int) -> None:
    b = GraphBuilder("g")
    h, x, w = b.input("h", f64(2, 3)), b.input("x", f64(count, 2, 3)), b.input("w", f64(3, 3))
    op = ops.Loop(recurrent(b), 1, False, count, (0,), (False,), (0,), (False,))
    for v in b.add_all(op, None, None, h, x, w):
        b.output(v)
    twice(b.build(), {"h": numbers(2, 3), "x": numbers(count, 2, 3, seed=1), "w": numbers(3, 3, seed=2)})


@pytest.mark.parametrize("taken", [True, False])
def test_second_derivatives_pass_branches(taken: bool) -> None:
    b = GraphBuilder("g")
    x = b.input("x", f64(3))
    then, orelse = b.inner("then"), b.inner("else")
    then.output(then.add(ops.Exp(), then.input("p", f64(3))), then.unique("r"))
    q = orelse.input("q", f64(3))
    orelse.output(orelse.add(ops.Multiply(), q, orelse.add(ops.Sin(), q)), orelse.unique("r"))
    b.output(b.add(ops.If(then.build(), orelse.build()), b.constant(np.array(taken)), x, x))
    graph = b.build()
    twice(graph, {"x": numbers(3)})
    transposed(graph, [numbers(3)])


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_second_derivatives_pass_recurrences(cell: Any, linear: bool) -> None:
    b = GraphBuilder("g")
    n = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    x, r, h = b.input("x", f64(3, 2, 2 * n)), b.input("r", f64(n, 2, 2)), b.input("h", f64(2, 2))
    lengths = b.constant(np.array([3, 2]))
    for v in b.add_all(
        ops.Recurrence(cell, linear_before_reset=linear, reverse=linear), x, r, h, None, lengths, None, None
    ):
        b.output(v)
    twice(b.build(), {"x": numbers(3, 2, 2 * n), "r": numbers(n, 2, 2, seed=1), "h": numbers(2, 2, seed=2)})


def twice(graph: Graph, inputs: dict[str, Any]) -> None:
    """The gradients of the gradients agree with differences."""
    backward = vjp(graph, unreached="zeros")
    seeds = {v.name: numbers(*r.shape, seed=9) for v, r in zip(backward.inputs[len(inputs) :], evaluate(graph, inputs))}
    check(Applied(backward, inputs | seeds))
