"""Zeros keep their sign: operators by themselves, with constants, and through all passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.graph.nodes import GraphBuilder, Value, tensor_type
from weft.graph.operator import Elementwise, Operator
from weft_ops import ALL_OPERATORS
from weft_ops.examples import special
from weft_ops.quantization import DynamicQuantize

# Of two zeros IEEE 754's maximum and minimum may give either, and numpy's do: what takes the greater or the lesser of
# two numbers has no sign to keep.
EITHER = {"Maximum", "Minimum", "Clip", "Relu", "PRelu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish"}


def floats_of(op: type[Operator]) -> list[Operator]:
    """The operator with the attributes of each of its samples whose operands are float32 and as many as are needed."""
    found: dict[str, Operator] = {}
    for sample in op.samples():
        if all(x is not None and x.dtype == np.float32 for x in sample.inputs) and len(sample.inputs) in (1, 2):
            found.setdefault(str(sample.op), sample.op)
    return list(found.values())


CASES = [
    (op, made)
    for op in ALL_OPERATORS
    if issubclass(op, Elementwise) and op.__name__ not in EITHER
    for made in floats_of(op)
]


def same_signs(got: Any, want: Any, what: str) -> None:
    zero = np.asarray(want) == 0
    if np.asarray(want).dtype.kind == "f":
        np.testing.assert_array_equal(
            np.signbit(got)[zero & (np.asarray(got) == 0)],
            np.signbit(want)[zero & (np.asarray(got) == 0)],
            err_msg=what,
        )


def arity(op: Operator) -> int:
    return len(next(s for s in type(op).samples() if str(s.op) == str(op)).inputs)


def test_zeros_of_elementwise_operators_have_the_sign_of_the_definition() -> None:
    b = GraphBuilder("zeros")
    x, y = b.input("x", tensor_type("float32", (8, 1))), b.input("y", tensor_type("float32", (1, 8)))
    left, right = special()[:, None], special()[None, :]
    wanted: dict[str, Any] = {}
    for k, (op, made) in enumerate(CASES):
        forms: list[tuple[tuple[Value, ...], tuple[Any, ...]]] = []
        if arity(made) == 1:
            forms = [((x,), (left,))]
        else:
            forms = [((x, y), (left, right))]
            for number in (0.0, -0.0, 1.0, -1.0, 0.5, 2.0):
                array = np.array(number, np.float32)
                forms += [((x, b.constant(array)), (left, array)), ((b.constant(array), x), (array, left))]
        for j, (values, arrays) in enumerate(forms):
            with np.errstate(all="ignore"):
                want = made.reference(*arrays)
            name = f"{op.__name__}_{k}_{j}"
            b.output(b.add(made, *values), name)
            wanted[name] = (want, f"{made} of {arrays}")
    results = weft.compile(b.build(), target="llvm", cache=False).run({"x": left, "y": right})
    assert len(wanted) > 100
    for name, (want, what) in wanted.items():
        same_signs(results[name], want, what)


def test_a_range_of_zeros_has_a_scale() -> None:
    """As ONNX's reference of DynamicQuantizeLinear: a division by the scale is defined."""
    for x in (np.zeros((3,), np.float32), np.array([-0.0, 0.0], np.float32)):
        b = GraphBuilder("g")
        for k, value in enumerate(b.add_all(DynamicQuantize(), b.input("x", tensor_type("float32", x.shape)))):
            b.output(value, f"y{k}")
        y, scale, zero = weft.compile(b.build(), target="llvm", cache=False).run({"x": x}).values()
        assert (y == 0).all() and zero == 0 and scale == np.float32(1) / np.float32(255)
        for got, want in zip((y, scale, zero), DynamicQuantize().reference(x)):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sign_of_minus_zero_is_zero(dtype: str) -> None:
    from weft_ops.arithmetic import Sign

    b = GraphBuilder("g")
    x = special(dtype)
    b.output(b.add(Sign(), b.input("x", tensor_type(dtype, x.shape))), "y")
    y = weft.compile(b.build(), target="llvm", cache=False).run({"x": x})["y"].astype(np.float64)
    np.testing.assert_array_equal(y, [0, 0, 1, -1, 1, 1, -1, np.nan])
    assert not np.signbit(y[:2]).any()
