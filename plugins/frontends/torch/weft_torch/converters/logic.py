"""Comparisons, logic and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_torch.context import Context, Number
from weft_torch.converters.elementwise import both
from weft_torch.registry import op

COMPARISONS = {
    "eq": ops.Equal, "ne": ops.NotEqual, "lt": ops.Less, "le": ops.LessEqual, "gt": ops.Greater, "ge": ops.GreaterEqual,
}  # fmt: skip


def _compare(name: str, make: Callable[[], Operator]) -> None:
    @op(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def convert(c: Context, x: Any, y: Any) -> Value:
        dtype = c.promoted(0, 1)
        if dtype.is_integer and isinstance(y, int) and not isinstance(y, bool):
            dtype = dt.int64 if dtype.kind == "int" or dtype.bits < 64 else dtype
        a, b = c.to(x, dtype), c.to(y, dtype)
        if dtype.is_bool and name not in ("eq", "ne"):
            a, b = c.cast(a, dt.int32), c.cast(b, dt.int32)
        return c(make(), a, b)


for _name, _make in COMPARISONS.items():
    _compare(_name, _make)


@op("aten.logical_and", "aten.logical_or", "aten.logical_xor")
def logical(c: Context, x: Value, y: Value) -> Value:
    makes: dict[str, Callable[[], Operator]] = {"and": ops.LogicalAnd, "or": ops.LogicalOr, "xor": ops.LogicalXor}
    return c(makes[c.op_type.rpartition("_")[2]](), c.cast(x, dt.bool_), c.cast(y, dt.bool_))


BITWISE = {
    "and": (ops.BitwiseAnd, ops.LogicalAnd), "or": (ops.BitwiseOr, ops.LogicalOr),
    "xor": (ops.BitwiseXor, ops.LogicalXor),
}  # fmt: skip


def _bitwise(name: str, make: Any) -> None:
    @op(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.bitwise_{name}.Scalar_Tensor",
        f"aten.__{name}__.Tensor", f"aten.__{name}__.Scalar")  # fmt: skip
    def convert(c: Context, x: Any, y: Any) -> Value:
        a, b = both(c, x, y)
        return c(make[a.dtype.is_bool](), a, b)


for _name, _pair in BITWISE.items():
    _bitwise(_name, _pair)


@op("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor")  # fmt: skip
def left_shift(c: Context, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    if a.dtype.is_float:
        return c.mul(a, c(ops.Power(), c.number(2.0, a.dtype), b))
    return c(ops.LeftShift(), a, b)


@op("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.__rshift__.Scalar",
    "aten.__rshift__.Tensor")  # fmt: skip
def right_shift(c: Context, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    if a.dtype.is_float:
        return c.div(a, c(ops.Power(), c.number(2.0, a.dtype), b))
    return c(ops.RightShift(), a, b)


@op("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(c: Context, condition: Value, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    return c(ops.Where(), c.cast(condition, dt.bool_), a, b)


@op("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(c: Context, x: Value, mask: Value, value: Any) -> Value:
    return c(ops.Where(), mask, c.to(value, x.dtype), x)


@op("aten.nan_to_num")
def nan_to_num(c: Context, x: Value, nan: Number | None, high: Number | None, low: Number | None) -> Value:
    if not x.dtype.is_float:
        return x
    import numpy as np

    limits = np.finfo(x.dtype.numpy) if x.dtype != dt.bfloat16 else None
    most = float(limits.max) if limits is not None else 3.3895313892515355e38
    y = c(ops.Where(), c(ops.IsNan(), x), c.to(0.0 if nan is None else nan, x.dtype), x)
    y = c(ops.Where(), c(ops.IsInf(negative=False), x), c.to(most if high is None else high, x.dtype), y)
    return c(ops.Where(), c(ops.IsInf(positive=False), x), c.to(-most if low is None else low, x.dtype), y)


@op("prims.view_of")
def view_of(c: Context, x: Value, *_: Any) -> Value:
    return x


@op("aten._assert_tensor_metadata", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size",
    "aten._assert_async.msg")  # fmt: skip
def nothing(c: Context, *_: Any) -> None:
    """What PyTorch knows of dtypes and sizes already, and assertions on data."""


@op("aten._linalg_check_errors")
def check_errors(c: Context, info: Value, name: str, *_: Any) -> None:
    c.importer.expect_zeros(info, f"{name}: the matrix is singular, or not as it should be")


@op("aten._assert_scalar")
def assert_scalar(c: Context, holds: Any, message: str) -> None:
    c.importer.condition(holds, message)


__all__ = ["where"]
