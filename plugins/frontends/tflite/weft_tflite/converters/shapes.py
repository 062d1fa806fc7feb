"""Sizes as values: integers known as formulas while a model is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft_frontend import contents as ct
from weft_frontend.contents import LIMIT, Content
from weft_ops.shapes import axis_of
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_formula


@moving_op("SHAPE")
def shape(c: Context) -> Content:
    return ct.content(c.output_dtype(), list(c.shape(0)))


@moving_op("RANK")
def rank(c: Context) -> Content:
    return ct.content(c.output_dtype(), [len(c.shape(0))], ())


tflite_formula("SHAPE")(shape)
tflite_formula("RANK")(rank)

EACH: dict[str, Callable[..., Any]] = {
    "ADD": lambda a, b: a + b, "SUB": lambda a, b: a - b, "MUL": lambda a, b: a * b, "MAXIMUM": ct.larger,
    "MINIMUM": ct.smaller, "FLOOR_DIV": lambda a, b: a // b, "FLOOR_MOD": lambda a, b: a % b, "NEG": lambda a: -a,
    "DIV": ct.divide,
}  # fmt: skip
COMPARED: dict[str, Callable[..., Any]] = {
    "EQUAL": lambda a, b: ct.compare("eq", a, b), "NOT_EQUAL": lambda a, b: ct.compare("ne", a, b),
    "LESS": lambda a, b: ct.compare("lt", a, b), "LESS_EQUAL": lambda a, b: ct.compare("le", a, b),
    "GREATER": lambda a, b: ct.compare("lt", b, a), "GREATER_EQUAL": lambda a, b: ct.compare("le", b, a),
}  # fmt: skip


def _each(function: Callable[..., Any]) -> Callable[[Context], Content | None]:
    def formula(c: Context) -> Content | None:
        contents = [c.content(k) for k in range(c.count)]
        if c.op.options.get("fused_activation_function") or any(x.dtype.is_bool for x in contents):
            return None
        try:
            return ct.each(function, c.output_dtype(), *contents)
        except (ZeroDivisionError, ValueError):
            return None

    return formula


for _name, _function in (*EACH.items(), *COMPARED.items()):
    tflite_formula(_name)(_each(_function))


@tflite_formula("CAST")
def cast(c: Context) -> Content | None:
    x, to = c.content(0), c.output_dtype()
    if to not in ct.KINDS or to.is_bool != x.dtype.is_bool:
        return None
    return Content(to, x.elements)


@tflite_formula("PACK")
def pack(c: Context) -> Content | None:
    parts = [c.content(k).elements for k in range(c.count)]
    if len({p.shape for p in parts}) != 1 or sum(p.size for p in parts) > LIMIT:
        return None
    return Content(c.content(0).dtype, np.stack(parts, axis_of(c.integer("axis"), parts[0].ndim + 1)))


@tflite_formula("CONCATENATION")
def concatenation(c: Context) -> Content | None:
    parts = [c.content(k).elements for k in range(c.count)]
    if any(p.ndim != 1 for p in parts) or sum(p.size for p in parts) > LIMIT:
        return None
    return Content(c.content(0).dtype, np.concatenate(parts))


@tflite_formula("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshaped(c: Context) -> Content | None:
    found = c.output().shape
    x = c.content(0)
    if found is None or any(d < 0 for d in found) or int(np.prod(found)) != x.elements.size:
        return None
    return Content(x.dtype, x.elements.reshape(found))


@tflite_formula("REDUCE_PROD")
def reduce_prod(c: Context) -> Content | None:
    x = c.content(0)
    if x.elements.ndim != 1 or x.dtype.is_bool:
        return None
    total: Any = 1
    for d in x.dims():
        total = total * d
    return ct.content(x.dtype, [total], (1,) if c.flag("keep_dims") else ())


@tflite_formula("GATHER")
def gather(c: Context) -> Content | None:
    x, indices = c.content(0), c.content(1)
    if x.elements.ndim != 1 or not indices.is_constant or c.integer("batch_dims"):
        return None
    where = indices.array().astype(np.int64)
    if where.size and not 0 <= where.min() <= where.max() < x.elements.size:
        return None
    return Content(x.dtype, np.asarray(x.elements[where], object).reshape(where.shape))


@tflite_formula("STRIDED_SLICE")
def strided_slice(c: Context) -> Content | None:
    """Of a vector, by numbers."""
    x = c.content(0)
    bounds = [c.content(k) for k in (1, 2, 3)]
    if x.elements.ndim != 1 or any(not b.is_constant or b.shape != (1,) for b in bounds) or c.flag("offset"):
        return None
    if c.integer("ellipsis_mask") or c.integer("new_axis_mask"):
        return None
    begin, end, step = (int(b.dims()[0]) for b in bounds)
    if c.integer("shrink_axis_mask") & 1:
        if not -x.elements.size <= begin < x.elements.size:
            return None
        return ct.content(x.dtype, [x.elements[begin]], ())
    if step == 0:
        return None
    first = None if c.integer("begin_mask") & 1 else begin
    last = None if c.integer("end_mask") & 1 else end
    return Content(x.dtype, x.elements[first:last:step])
