"""Bases of elementwise operators: numpy broadcasting, one dtype for all operands, one formula."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Expr
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Elementwise, Sample
from weft_ops.examples import floats, integers, special
from weft_ops.precision import in_compute_dtype, rounded, widen
from weft_ops.shapes import broadcast, expect_kind, one_dtype, operands

NUMERIC = ("int", "uint", "float")


class Scalar(Elementwise):
    """An elementwise operator whose operands have one dtype of `kinds`; the result has it too, or is bool.

    Subclasses give `formula` and `value`, its meaning on arrays already widened. An optional operand may be None in
    both.
    """

    arity: ClassVar[int] = 1
    kinds: ClassVar[tuple[str, ...]] = NUMERIC
    result_bool: ClassVar[bool] = False
    optional: ClassVar[bool] = False

    def infer(self, *types: Type | None) -> Inferred:
        """Shape: the broadcast. Raises GraphError for operands of other kinds, different dtypes or shapes that do not
        broadcast."""
        assumed: list[Assumption] = []
        given = operands([t for t in types if t is not None]) if self.optional else operands(types, self.arity)
        dtype = one_dtype(given)
        expect_kind(dtype, self.kinds)
        return Inferred(
            TensorType(dt.bool_ if self.result_bool else dtype, broadcast(*(t.shape for t in given), assumed=assumed)),
            assumed,
        )

    def value(self, *arrays: Any) -> Any:
        raise NotImplementedError

    def reference(self, *arrays: Array | None) -> Array:
        dtype = next(dt.dtype(a.dtype) for a in arrays if a is not None)
        with np.errstate(all="ignore"):
            result = self.value(*(None if a is None else widen(a) for a in arrays))
        return rounded(result, dt.bool_ if self.result_bool else dtype)


class Unary(Scalar):
    """One operand. `between` is where samples lie; `specials` adds infinities and NaN."""

    between: ClassVar[tuple[float, float]] = (-3.0, 3.0)
    specials: ClassVar[bool] = True

    @classmethod
    def variants(cls) -> Iterable[Unary]:
        """The operator with attributes worth a sample."""
        return (cls(),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        lo, hi = cls.between
        for k, op in enumerate(cls.variants()):
            if "float" in cls.kinds:
                yield Sample(op, (floats((3, 5), "float32", lo, hi),), f"float32_{k}")
                if cls.specials:
                    yield Sample(op, (special("float32"),), f"special_{k}")
                yield Sample(op, (floats((7,), "float16", lo, hi),), f"float16_{k}")
                yield Sample(op, (floats((2, 1, 3), "bfloat16", lo, hi),), f"bfloat16_{k}")
                yield Sample(op, (floats((), "float64", lo, hi),), f"float64_{k}")
            if "int" in cls.kinds:
                yield Sample(op, (integers((4, 3), "int32", -5, 5),), f"int32_{k}")
                yield Sample(op, (integers((5,), "int8", -5, 5),), f"int8_{k}")
                yield Sample(op, (integers((0, 2), "int64"),), f"empty_{k}")
            if "uint" in cls.kinds:
                yield Sample(op, (integers((5,), "uint8", 0, 9),), f"uint8_{k}")


class FloatUnary(Unary):
    """One operand of a float dtype."""

    kinds = ("float",)


class Function(FloatUnary):
    """A function of `weft.expr.functions`, in the precision of its dtype (float32 for narrower floats)."""

    function: ClassVar[str] = ""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return call(self.function, args[0])

    def value(self, *arrays: Any) -> Any:
        return FUNCTIONS[self.function].evaluate(arrays[0])


class Binary(Scalar):
    """Two operands."""

    arity = 2

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        if "float" in cls.kinds:
            yield floats((3, 5), "float32", lo, hi), floats((3, 5), "float32", lo, hi, 1), "float32"
            yield floats((2, 1, 4), "float32", lo, hi), floats((3, 1), "float32", lo, hi, 1), "broadcast"
            yield special(), special()[:, None], "special"
            yield floats((5,), "float16", lo, hi), floats((), "float16", lo, hi, 1), "float16"
            yield floats((1, 3), "bfloat16", lo, hi), floats((2, 1), "bfloat16", lo, hi, 1), "bfloat16"
            yield floats((3,), "float64", lo, hi), floats((3,), "float64", lo, hi, 1), "float64"
        if "int" in cls.kinds:
            yield integers((4, 3), "int32", -9, 9), integers((3,), "int32", 1, 5, 1), "int32"
            yield (
                integers((5,), "int64", -9, 9),
                integers((5,), "int64", 1, 5, 1) * np.array([1, -1, 1, -1, 1]),
                "int64",
            )
            yield integers((5,), "int8", -99, 99), integers((1,), "int8", 1, 5, 1), "int8"
        if "uint" in cls.kinds:
            yield integers((5,), "uint8", 0, 200), integers((5,), "uint8", 1, 9, 1), "uint8"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for a, b, name in cls.pairs():
            yield Sample(cls(), (a, b), name)
