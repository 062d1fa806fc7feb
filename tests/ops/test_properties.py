"""Operators on random sizes and attributes: algorithms agree with references, formulas with Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.ops.test_samples import assert_close, outputs_of

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.evaluate import evaluate as evaluate_expr
from weft.expr.nodes import Expr, Var
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType
from weft.graph.operator import Operator, Sample
from weft.tensor.evaluate import evaluate
from weft.tensor.language import placeholder
from weft_ops.examples import floats, integers
from weft_ops.movement import slice_range
from weft_ops.shapes import broadcast, factors, product, quotient

few = settings(max_examples=25, deadline=None)
N = Var("n", dt.int64)
sizes = st.integers(1, 5)
shapes = st.lists(sizes, min_size=0, max_size=4).map(tuple)


def check(op: Operator, *arrays: Any) -> None:
    """The type rule and every tensors algorithm against the reference."""
    sample = Sample(op, arrays)
    inferred = Inferred.of(op.infer(*(TensorType(dt.dtype(x.dtype), x.shape) for x in arrays)))
    want = outputs_of(op, arrays)
    assert [t.shape for t in inferred.types] == [w.shape for w in want] and not inferred.assumes
    for a in op.algorithms().values():
        if a.form == "tensors":
            inputs = [placeholder(x.shape, x.dtype, f"x{k}") for k, x in enumerate(arrays)]
            result = a.function(op, *inputs)
            for got, w in zip(
                evaluate(result if isinstance(result, tuple) else (result,), dict(zip(inputs, arrays))), want
            ):
                assert_close(op, sample, got, w)


def value(d: Any, env: dict[str, int]) -> int:
    return int(evaluate_expr(d, env)) if isinstance(d, Expr) else d


@few
@given(
    st.integers(0, 7),
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-9, 9),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.booleans(),
    st.booleans(),
)
def test_slice_range_is_pythons(
    n: int, start: int | None, stop: int | None, step: int, symbolic_size: bool, symbolic_bounds: bool
) -> None:
    env = {"n": n, "a": start or 0, "b": stop or 0, "s": step}
    size: Any = Var("n", dt.int64) if symbolic_size else n
    wrapped = [
        Var(name, dt.int64) if symbolic_bounds and v is not None else v for name, v in (("a", start), ("b", stop))
    ]
    wanted = range(n)[start:stop:step]
    for s in (step, Var("s", dt.int64)):
        first, count = (value(d, env) for d in slice_range(size, *wrapped, s))
        assert count == len(wanted)
        assert not wanted or first == wanted[0]


@few
@given(shapes, shapes)
def test_broadcast_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        assume(False)
    assumed: list[Assumption] = []
    assert broadcast(a, b, assumed=assumed) == want and not assumed


@few
@given(
    st.lists(st.integers(1, 4), max_size=4), st.permutations([2, 3, 4]), st.lists(st.booleans(), min_size=3, max_size=3)
)
def test_reshape_between_any_shapes_of_one_size(ones: list[int], order: list[int], split: list[bool]) -> None:
    source = (2, 3, 4)
    target: list[int] = []
    for n, halve in zip(order, split):
        target += [2, n // 2] if halve and n % 2 == 0 else [n]
    for k in ones:
        target.insert(k % (len(target) + 1), 1)
    check(ops.Reshape(tuple(target)), floats(source))
    check(ops.Reshape((*target[:1], -1)), floats(source))


@few
@given(
    st.lists(st.sampled_from([N, Var("m", dt.int64), 2, 3, 5]), max_size=4),
    st.lists(st.sampled_from([N, 2, 3]), max_size=2),
)
def test_products_and_quotients_of_dimensions(dims: list[Any], by: list[Any]) -> None:
    env = {"n": 7, "m": 4}
    whole = product([*dims, *by])
    assert value(whole, env) == math.prod(value(d, env) for d in [*dims, *by])
    assert value(quotient([*dims, *by], by), env) == value(product(dims), env)
    assert factors([whole]) == factors([*dims, *by])


@few
@given(st.data())
def test_convolution(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2))
    groups = data.draw(st.integers(1, 2))
    kernel = data.draw(st.tuples(*[st.integers(1, 3)] * n))
    dilations = data.draw(st.tuples(*[st.integers(1, 2)] * n))
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * (2 * n)))
    strides = data.draw(st.tuples(*[st.integers(1, 3)] * n))
    size = tuple(data.draw(st.integers((k - 1) * d + 1, 7)) for k, d in zip(kernel, dilations))
    x, w = floats((1, 2 * groups, *size)), floats((2 * groups, 2, *kernel), seed=1)
    check(ops.Conv(strides, pads, dilations, groups), x, w)
    check(ops.ConvTranspose(strides, (0,) * (2 * n), dilations, groups=groups), x, w)


@few
@given(st.data())
def test_pools(data: st.DataObject) -> None:
    kernel = data.draw(st.tuples(*[st.integers(1, 3)] * 2))
    dilations = data.draw(st.tuples(*[st.integers(1, 2)] * 2))
    pads = tuple(data.draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    strides = data.draw(st.tuples(*[st.integers(1, 3)] * 2))
    ceil_mode = data.draw(st.booleans())
    size = tuple(data.draw(st.integers((k - 1) * d + 1, 7)) for k, d in zip(kernel, dilations))
    x = floats((1, 2, *size))
    check(ops.MaxPool(kernel, strides, pads, dilations, ceil_mode), x)
    check(ops.MaxPoolWithIndices(kernel, strides, pads, dilations, ceil_mode), x)
    check(ops.LpPool(kernel, strides, pads, dilations, ceil_mode), x)
    for include in (False, True):
        check(ops.AveragePool(kernel, strides, pads, dilations, ceil_mode, include), x)


@few
@given(st.lists(sizes, min_size=1, max_size=3).map(tuple), st.data())
def test_reductions_and_running_sums(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = tuple(data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True)))
    keep, axis = data.draw(st.booleans()), data.draw(st.integers(-len(shape), len(shape) - 1))
    x = floats(shape, lo=0.5)
    for reduction in (ops.ReduceSum, ops.ReduceMean, ops.ReduceMax, ops.ReduceMin, ops.ReduceProd):
        check(reduction(axes, keep), x)
    check(ops.Argmax(axis, keep, data.draw(st.booleans())), integers(shape, "int32", 0, 2))
    check(ops.CumSum(axis, data.draw(st.booleans()), data.draw(st.booleans())), x)


@few
@given(
    st.lists(sizes, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["constant", "edge", "reflect", "wrap"]),
    st.data(),
)
def test_pads(shape: tuple[int, ...], mode: Any, data: st.DataObject) -> None:
    pads = tuple(data.draw(st.integers(-(n // 2), 6)) for n in (*shape, *shape))
    assume(all(n + lo + hi > 0 for n, lo, hi in zip(shape, pads, pads[len(shape) :])))
    check(ops.Pad(pads, mode), integers(shape))


@few
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from(["nearest", "linear", "cubic"]), st.data())
def test_resizes(before: int, after: int, mode: Any, data: st.DataObject) -> None:
    coordinates = data.draw(
        st.sampled_from(["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"])
    )
    nearest = data.draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    antialias = mode != "nearest" and data.draw(st.booleans())
    op = ops.Resize(
        (after, 3), mode, coordinates, nearest, exclude_outside=data.draw(st.booleans()), antialias=antialias
    )  # type: ignore[arg-type]
    check(op, floats((before, 3)))


@few
@given(st.lists(sizes, max_size=2), st.lists(sizes, max_size=2), sizes, sizes, sizes, st.booleans(), st.booleans())
def test_matrix_products(lead: list[int], other: list[int], m: int, k: int, n: int, row: bool, column: bool) -> None:
    try:
        np.broadcast_shapes(tuple(lead), tuple(other))
    except ValueError:
        other = lead
    a = floats((k,)) if row else floats((*lead, m, k))
    b = floats((k,), seed=1) if column else floats((*other, k, n), seed=1)
    check(ops.MatMul(), a, b)
