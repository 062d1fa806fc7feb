"""The numpy meaning of every formula, exact in dtype: integers wrap, floats round after every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, nearest
from weft.expr import nodes as n
from weft.expr.functions import FUNCTIONS
from weft.expr.nodes import Bitcast, Broadcast, Call, Cast, Const, Expr, Not, Ramp, Select, Var

Load: TypeAlias = "Callable[[Any, Sequence[Any]], Any]"


def evaluate(e: Expr, env: Mapping[str, Any], load: Load | None = None) -> Any:
    """The value of `e`.

    Args:
        env: variables by name: Python numbers, numpy scalars, or arrays that broadcast against each other
            (elementwise).
        load: (node, values of its indices) → elements, for Load and Read; for any other node of a layer above, (node,
            values of its children). On the side of a `select` that is not chosen, and in lanes that a predicate masks
            out, the indices given are 0.

    Returns:
        A numpy scalar or array of `e.dtype.numpy`; the last axis is the lanes if `e` is a vector.

    Raises:
        ExprError: an unknown variable, an integer division by zero, or an element read without `load`.
    """
    with np.errstate(all="ignore"):
        return _Evaluator(env, load).value(e)


def convert(value: Any, dtype: DType) -> Any:
    """Numeric conversion as `Cast`: integers wrap, floats saturate where a target makes them (int32 and int64 have any
    value beyond their range)."""
    value = np.asarray(value)
    if np.iscomplexobj(value) and dtype.kind != "complex":
        value = value.real
    if (
        dtype.is_integer
        and value.dtype.kind not in "biu"
        and dtype.name not in ("int32", "int64")
        and dt.dtype(value.dtype).is_float
    ):
        return _saturated(value, dtype)
    if dtype.is_integer and dtype.bits < 8:
        wide = value.astype(np.int64) & ((1 << dtype.bits) - 1)
        if dtype.kind == "int":
            half = 1 << (dtype.bits - 1)
            wide = (wide ^ half) - half
        return wide.astype(dtype.numpy)[()]
    return value.astype(dtype.numpy)[()]


def _saturated(value: Any, dtype: DType) -> Any:
    """Floats truncated, what is out of range as the nearest integer in it, NaN as 0."""
    signed = dtype.kind == "int"
    least, beyond = -float(1 << (dtype.bits - 1)) if signed else 0.0, float(1 << (dtype.bits - signed))
    whole = np.trunc(value.astype(np.result_type(value.dtype, np.float64) if value.dtype.kind == "f" else np.float64))
    wide = np.dtype(np.int64 if signed else np.uint64).type
    inside = np.where((whole >= least) & (whole < beyond), whole, 0).astype(wide)
    result = np.where(
        whole >= beyond, wide((1 << (dtype.bits - signed)) - 1), np.where(whole < least, wide(int(least)), inside)
    )
    return result.astype(dtype.numpy)[()]


class _Evaluator:
    def __init__(self, env: Mapping[str, Any], load: Load | None) -> None:
        self.env, self.load = env, load
        self.mask: Any = None  # where the value is wanted; None is everywhere
        self.variables: dict[str, Any] = {}

    def value(self, e: Expr) -> Any:
        method = _METHODS.get(type(e))
        if method is not None:
            return method(self, e)
        if isinstance(e, n.Binary):
            return self.binary(e)
        return self.foreign(e)

    def const(self, e: Const) -> Any:
        return e.dtype.numpy.type(e.value)

    def var(self, e: Var) -> Any:
        found = self.variables.get(e.name)
        if found is None:
            try:
                given = self.env[e.name]
            except KeyError:
                close = nearest(e.name, self.env)
                raise ExprError(
                    f"the variable '{e.name}' has no value", hint=f"did you mean '{close}'?" if close else None
                ) from None
            found = self.variables[e.name] = np.asarray(given).astype(e.dtype.numpy, copy=False)[()]
        return found

    def binary(self, e: n.Binary) -> Any:
        a, b = self.value(e.a), self.value(e.b)
        dtype = e.a.dtype
        if dtype.is_integer and dtype.bits < 8 and not e.result_bool:
            # ml_dtypes lacks operators on its small integers; computed wide, wrapped after.
            return convert(self.operate(e, np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)), dtype)
        result = self.operate(e, a, b)
        return (
            result
            if e.result_bool or np.asarray(result).dtype == dtype.numpy
            else np.asarray(result).astype(dtype.numpy)[()]
        )

    def operate(self, e: n.Binary, a: Any, b: Any) -> Any:
        if e.symbol in ("//", "%", "truncdiv", "truncmod"):
            return self.divide(e, a, b)
        if e.symbol in ("<<", ">>"):
            return self.shift(e, a, b)
        return _UFUNCS[e.symbol](a, b)

    def divide(self, e: n.Binary, a: Any, b: Any) -> Any:
        if e.a.dtype.is_float:
            if e.symbol == "truncdiv":
                return np.trunc(np.divide(a, b))
            return {"//": np.floor_divide, "%": np.remainder, "truncmod": np.fmod}[e.symbol](a, b)
        zero = np.equal(b, 0)
        if np.any(zero):
            if np.any(zero if self.mask is None else np.logical_and(zero, self.mask)):
                raise ExprError("integer division by zero", where=str(e))
            b = np.where(zero, np.asarray(1, np.asarray(b).dtype), b)
        if e.symbol == "//":
            return np.floor_divide(a, b)
        if e.symbol == "%":
            return np.remainder(a, b)
        rest = np.fmod(a, b)
        return rest if e.symbol == "truncmod" else np.floor_divide(np.subtract(a, rest), b)

    def shift(self, e: n.Binary, a: Any, b: Any) -> Any:
        bits = e.a.dtype.bits
        inside = np.logical_and(np.greater_equal(b, 0), np.less(b, bits))
        count = np.where(inside, b, np.zeros_like(b))
        zero = np.zeros_like(a)
        if e.symbol == "<<":
            return np.where(inside, np.left_shift(a, count), zero)[()]
        return np.where(
            inside, np.right_shift(a, count), np.where(np.less(a, zero), np.subtract(zero, np.ones_like(a)), zero)
        )[()]

    def not_(self, e: Not) -> Any:
        return np.logical_not(self.value(e.a))

    def select(self, e: Select) -> Any:
        cond = self.value(e.cond)
        if np.ndim(cond) == 0:
            return self.value(e.a if cond else e.b)
        outer = self.mask
        try:
            self.mask = cond if outer is None else np.logical_and(cond, outer)
            a = self.value(e.a)
            self.mask = np.logical_not(cond) if outer is None else np.logical_and(np.logical_not(cond), outer)
            b = self.value(e.b)
        finally:
            self.mask = outer
        return np.where(cond, a, b)

    def cast(self, e: Cast) -> Any:
        value = self.value(e.value)
        return np.not_equal(value, 0) if e.dtype.is_bool else convert(value, e.dtype)

    def bitcast(self, e: Bitcast) -> Any:
        return np.ascontiguousarray(self.value(e.value)).view(e.dtype.numpy).reshape(np.shape(self.value(e.value)))[()]

    def call(self, e: Call) -> Any:
        result = FUNCTIONS[e.name].evaluate(*(self.value(a) for a in e.args))
        return np.asarray(result).astype(e.dtype.numpy, copy=False)[()]

    def scalars(self, e: Expr) -> Any:
        """A scalar inside a vector: wanted where any lane is; gives it an axis for lanes."""
        outer = self.mask
        if outer is not None and np.ndim(outer) > 0:
            self.mask = np.any(outer, axis=-1)
        try:
            return np.asarray(self.value(e))[..., None]
        finally:
            self.mask = outer

    def ramp(self, e: Ramp) -> Any:
        steps = np.arange(e.lanes).astype(e.dtype.numpy)
        return np.add(self.scalars(e.base), np.multiply(self.scalars(e.stride), steps))

    def broadcast(self, e: Broadcast) -> Any:
        value = self.scalars(e.value)
        return np.broadcast_to(value, (*value.shape[:-1], e.lanes))

    def foreign(self, e: Any) -> Any:
        """Nodes of layers above: elements of tensors and buffers, intrinsics."""
        if self.load is None:
            raise ExprError(f"'{e}' cannot be evaluated without a way to load it", hint="pass evaluate(…, load=…)")
        vector = e.dtype.lanes > 1
        if not hasattr(e, "indices"):
            return self.load(e, tuple(self.value(c) for c in e.children()))
        values = tuple(self.scalars(i) if vector and i.dtype.lanes == 1 else self.value(i) for i in e.indices)
        predicate = getattr(e, "predicate", None)
        wanted = self.mask
        shown: Any = None
        if predicate is not None:
            shown = self.scalars(predicate) if vector and predicate.dtype.lanes == 1 else self.value(predicate)
            wanted = shown if wanted is None else np.logical_and(wanted, shown)
        if wanted is not None and not np.all(wanted):
            if not np.any(wanted):
                shape = np.broadcast_shapes(np.shape(wanted), *(np.shape(v) for v in values))
                return np.zeros(shape, e.dtype.numpy)[()]
            values = tuple(np.where(wanted, v, 0) for v in values)
        result = self.load(e, values)
        return result if shown is None else np.where(shown, result, np.zeros((), e.dtype.numpy))[()]


_UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum, "max": np.maximum,
    "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor, "and": np.logical_and, "or": np.logical_or, "<": np.less, "<=": np.less_equal, "==": np.equal,
    "!=": np.not_equal,
}  # fmt: skip
_METHODS: dict[type, Callable[[_Evaluator, Any], Any]] = {
    Const: _Evaluator.const, Var: _Evaluator.var, Not: _Evaluator.not_, Select: _Evaluator.select,
    Cast: _Evaluator.cast, Bitcast: _Evaluator.bitcast,
    Call: _Evaluator.call, Ramp: _Evaluator.ramp, Broadcast: _Evaluator.broadcast,
}  # fmt: skip
