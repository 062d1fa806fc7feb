"""Every operator on its own samples: the type rule fits the reference, and every algorithm computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from weft import dtypes as dt
from weft.graph.inferred import Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Value
from weft.graph.operator import Elementwise, Operator, Sample
from weft.loop.nodes import Program, buffer
from weft.loop.verify import verify
from weft.tensor.evaluate import evaluate
from weft.tensor.language import Tensor, compute, placeholder
from weft_interpreter.interpret import interpret
from weft_ops import ALL_OPERATORS
from weft_ops.precision import widen
from weft_ops.shapes import broadcast_indices, tensor

CASES = [
    pytest.param(op, sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ALL_OPERATORS
    for k, sample in enumerate(op.samples())
]


def types_of(sample: Sample) -> tuple[TensorType | None, ...]:
    return tuple(None if x is None else TensorType(dt.dtype(x.dtype), x.shape) for x in sample.inputs)


def outputs_of(op: Operator, inputs: Any) -> tuple[Any, ...]:
    result = op.reference(*inputs)
    return result if isinstance(result, tuple) else (result,)


def assert_close(op: Operator, sample: Sample, got: Any, want: Any) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    dtype = dt.dtype(want.dtype)
    if not dtype.is_float:
        tolerance = (
            op.tolerance(*(t for t in types_of(sample) if t is not None))
            if dtype.is_integer and type(op).__name__ in ROUNDED
            else 0
        )
        assert (
            np.max(np.abs(got.astype(np.int64) - want.astype(np.int64)), initial=0) <= tolerance
            if tolerance
            else np.array_equal(got, want)
        )
        return
    wide_got, wide_want = widen(got), widen(want)
    finite = np.isfinite(wide_want)
    np.testing.assert_array_equal(np.isnan(wide_got), np.isnan(wide_want))
    np.testing.assert_array_equal(wide_got[~finite & ~np.isnan(wide_want)], wide_want[~finite & ~np.isnan(wide_want)])
    import ml_dtypes

    unit = float(ml_dtypes.finfo(want.dtype).eps) * float(np.max(np.abs(wide_want[finite]), initial=0.0))
    allowed = op.tolerance(*(t for t in types_of(sample) if t is not None)) * unit
    error = float(np.max(np.abs(wide_got[finite] - wide_want[finite]), initial=0.0))
    assert error <= allowed, f"error {error / (unit or 1)} ulp, allowed {allowed / (unit or 1)}"


ROUNDED: set[str] = set()


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_type_rule_fits_reference(op: type[Operator], sample: Sample) -> None:
    inferred = Inferred.of(sample.op.infer(*types_of(sample))).types
    results = outputs_of(sample.op, sample.inputs)
    assert len(results) == len(inferred)
    for type_, result in zip(inferred, results):
        assert isinstance(type_, TensorType)
        assert isinstance(result, np.ndarray)
        assert (type_.dtype.numpy, type_.shape) == (result.dtype, result.shape)


def elementwise_tensors(op: Elementwise, *inputs: Tensor | None) -> Tensor:
    types = (None if t is None else TensorType(t.dtype, t.shape) for t in inputs)
    shape = tensor(Inferred.of(op.infer(*types)).type).shape
    read = lambda t, i: None if t is None else t[broadcast_indices(t.shape, i)]
    return compute(shape, lambda *i: op.formula(*(read(t, i) for t in inputs)))


def tensor_algorithms() -> Iterator[Any]:
    for op in ALL_OPERATORS:
        for k, sample in enumerate(op.samples()):
            given = types_of(sample)
            names = [
                a.name
                for a in op.algorithms().values()
                if a.form == "tensors" and sample.op.applies(a.name, *given) is None
            ]
            for name in names + (["formula"] if issubclass(op, Elementwise) else []):
                yield pytest.param(sample, name, id=f"{op.__name__}-{name}-{sample.name or k}")


@pytest.mark.parametrize(("sample", "name"), list(tensor_algorithms()))
def test_tensors(sample: Sample, name: str) -> None:
    inputs = [None if x is None else placeholder(x.shape, x.dtype, f"x{k}") for k, x in enumerate(sample.inputs)]
    given = {t: x for t, x in zip(inputs, sample.inputs) if t is not None and x is not None}
    if name == "formula":
        assert isinstance(sample.op, Elementwise)
        result: Any = elementwise_tensors(sample.op, *inputs)
    else:
        result = sample.op.algorithms()[name].function(sample.op, *inputs)
    got = evaluate(result if isinstance(result, tuple) else (result,), given)
    want = outputs_of(sample.op, sample.inputs)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert_close(sample.op, sample, g, w)


def decompositions() -> Iterator[Any]:
    for op in ALL_OPERATORS:
        for k, sample in enumerate(op.samples()):
            for a in op.algorithms().values():
                if a.form == "decompose" and sample.op.applies(a.name, *types_of(sample)) is None:
                    yield pytest.param(sample, a.name, id=f"{op.__name__}-{a.name}-{sample.name or k}")


def run(builder: GraphBuilder, values: dict[Value, Any]) -> dict[Value, Any]:
    """The references of the nodes, one by one; `values` gains their results."""
    for node in builder.graph.nodes:
        inputs = [None if v is None else v.constant if v.constant is not None else values[v] for v in node.inputs]
        for value, result in zip(node.outputs, outputs_of(node.op, inputs)):
            assert (value.dtype.numpy, value.shape) == (result.dtype, result.shape), f"{node}"
            values[value] = result
    return values


@pytest.mark.parametrize(("sample", "name"), list(decompositions()))
def test_decompose(sample: Sample, name: str) -> None:
    builder = GraphBuilder()
    inputs = [None if t is None else builder.input(f"x{k}", t) for k, t in enumerate(types_of(sample))]
    values: dict[Value, Any] = {v: x for v, x in zip(inputs, sample.inputs) if v is not None}
    result = sample.op.algorithms()[name].function(sample.op, builder, *inputs)
    assert all(node.op != sample.op for node in builder.graph.nodes)
    run(builder, values)
    want = outputs_of(sample.op, sample.inputs)
    got = result if isinstance(result, tuple) else (result,)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert_close(sample.op, sample, values[g] if g.constant is None else g.constant, w)


def programs() -> Iterator[Any]:
    for op in ALL_OPERATORS:
        for k, sample in enumerate(op.samples()):
            for a in op.algorithms().values():
                if a.form == "program" and sample.op.applies(a.name, *types_of(sample)) is None:
                    yield pytest.param(sample, a.name, id=f"{op.__name__}-{a.name}-{sample.name or k}")


@pytest.mark.parametrize(("sample", "name"), list(programs()))
def test_program(sample: Sample, name: str) -> None:
    inputs = [None if x is None else buffer(f"in{k}", x.shape, x.dtype) for k, x in enumerate(sample.inputs)]
    want = outputs_of(sample.op, sample.inputs)
    outputs = [buffer(f"out{k}", y.shape, y.dtype) for k, y in enumerate(want)]
    body = sample.op.algorithms()[name].function(sample.op, inputs, outputs)
    program = Program("kernel", tuple(b for b in inputs if b is not None), tuple(outputs), (), body)
    verify(program)
    got = interpret(program, [x for x in sample.inputs if x is not None], shuffle_seed=1)
    for b, w in zip(outputs, want):
        assert_close(sample.op, sample, got[b.name], w)


def test_operators_are_exported_once() -> None:
    names = [op.__name__ for op in ALL_OPERATORS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("op", ALL_OPERATORS)
def test_operator_is_whole(op: type[Operator]) -> None:
    assert op.__doc__, "an operator says what it computes"
    samples = list(op.samples())
    assert samples
    assert all(isinstance(hash(s.op), int) and s.op == s.op for s in samples)
    assert op.algorithms() or issubclass(op, Elementwise) or op.kind == "opaque"
