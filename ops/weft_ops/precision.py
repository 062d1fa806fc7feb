"""Floats one precision wider: references compute in it and round once; formulas of narrow floats compute in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import Expr, cast_to

Array = np.ndarray[Any, Any]


def float_info(dtype: np.dtype[Any]) -> np.finfo[Any]:
    """`numpy.finfo` of a float type, those of ml_dtypes included."""
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes declares no types here


def wide_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type in which a reference accumulates values of `dtype`."""
    if dtype.is_float:
        return np.dtype(np.float32 if dtype.bits < 32 else np.float64 if dtype.bits == 32 else np.longdouble)
    if dtype.kind == "complex":
        return np.dtype(np.complex128 if dtype.bits == 64 else np.clongdouble)
    return (
        np.dtype(np.int64 if dtype.kind == "int" else np.uint64) if dtype.is_integer and dtype.bits < 8 else dtype.numpy
    )


def widen(x: Array) -> Array:
    """`x` in its wide dtype."""
    return np.asarray(x).astype(wide_dtype(dt.dtype(x.dtype)))


def rounded(x: Any, dtype: DType) -> Array:
    """A wide result as `dtype`; integers wrap."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x).astype(dtype.numpy)


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which formulas accumulate values of `dtype`: float32 for narrower floats, int32 for sub-byte
    integers."""
    if dtype.is_float and dtype.bits < 32:
        return dt.float32
    return dt.int32 if dtype.is_integer and dtype.bits < 8 else dtype


def in_compute_dtype(formula: Callable[..., Expr]) -> Callable[..., Expr]:
    """Marks a formula to be computed in `compute_dtype` of its operands and rounded to their dtype once."""

    @functools.wraps(formula)
    def wide(self: Any, *args: Expr | None) -> Expr:
        dtype = next(a.dtype for a in args if a is not None and not a.dtype.is_bool)
        to = compute_dtype(dtype)
        if to == dtype:
            return formula(self, *args)
        result = formula(self, *(cast_to(a, to) if a is not None and a.dtype == dtype else a for a in args))
        return cast_to(result, dtype) if result.dtype == to else result

    return wide
