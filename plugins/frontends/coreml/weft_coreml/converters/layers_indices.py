"""Layers of neural networks that take, put, sort and reduce elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft_coreml.network import Layer
from weft_coreml.registry import layer
from weft_frontend import contents as ct
from weft_frontend.contents import Content

REDUCED = {
    "reduceL1": "reduce_l1_norm", "reduceL2": "reduce_l2_norm", "reduceMax": "reduce_max", "reduceMin": "reduce_min",
    "reduceSum": "reduce_sum", "reduceProd": "reduce_prod", "reduceMean": "reduce_mean",
    "reduceLogSum": "reduce_log_sum", "reduceSumSquare": "reduce_sum_square", "reduceLogSumExp": "reduce_log_sum_exp",
}  # fmt: skip
SCATTERED = ("update", "add", "sub", "mul", "div", "max", "min")


@layer("gather", "gatherND", "gatherAlongAxis")
def gather(c: Layer) -> Any:
    known, at = c.operands[0], c.integers_of(1)
    places = c.importer.known(at)
    if isinstance(known, Content) and len(known.shape) == 1 and places is not None and places.is_constant:
        return Content(known.dtype, np.asarray(known.elements[places.array()], object).reshape(places.shape))
    if c.op_type == "gatherND":
        return c.mil("gather_nd", x=c.x(), indices=at)
    return c.mil(
        "gather" if c.op_type == "gather" else "gather_along_axis", x=c.x(), indices=at, axis=c.parameters.axis
    )


@layer("scatter", "scatterND", "scatterAlongAxis")
def scatter(c: Layer) -> Any:
    p = c.parameters
    named = {"data": c.x(), "indices": c.integers_of(1), "updates": c.x(2), "mode": SCATTERED[p.mode]}
    if c.op_type == "scatterND":
        return c.mil("scatter_nd", **named)
    return c.mil("scatter" if c.op_type == "scatter" else "scatter_along_axis", axis=p.axis, **named)


@layer("topK")
def top_k(c: Layer) -> Any:
    p = c.parameters
    k = c.integers_of(1) if len(c.operands) > 1 else int(p.K)
    return c.mil("topk", results=2, x=c.x(), k=k, axis=p.axis, ascending=bool(p.useBottomK))


@layer("argMax", "argMin")
def argument(c: Layer) -> Any:
    p = c.parameters
    kind = "reduce_argmax" if c.op_type == "argMax" else "reduce_argmin"
    y = c.mil(kind, x=c.x(), axis=p.axis, keep_dims=not p.removeDim)
    return y if y.shape else c.reshape(y, (1,))


@layer("argSort")
def argsort(c: Layer) -> Any:
    return c.mil("argsort", x=c.x(), axis=c.parameters.axis, ascending=not c.parameters.descending)


@layer("oneHot")
def one_hot(c: Layer) -> Any:
    p = c.parameters
    depth = c.integers_of(1) if len(c.operands) > 1 else int(p.oneHotVectorSize)
    values = {"on_value": float(p.onValue), "off_value": float(p.offValue)}
    return c.mil("one_hot", indices=c.integers_of(0), one_hot_vector_size=depth, axis=int(p.axis), **values)


@layer("whereNonZero")
def where_non_zero(c: Layer) -> Any:
    return c.mil("non_zero", x=c.x())


@layer("cumSum")
def cumsum(c: Layer) -> Any:
    p = c.parameters
    axis = int(p.axis) if len(c.operands) == 1 else c.integers_of(1)
    return c.mil("cumsum", x=c.x(), axis=axis, exclusive=bool(p.excludeFinalSum), reverse=bool(p.reverse))


@layer(*REDUCED)
def reduced(c: Layer) -> Any:
    p = c.parameters
    axes = None if p.reduceAll or not len(p.axes) else list(p.axes)
    if c.op_type == "reduceProd" and isinstance(c.operands[0], Content) and len(c.operands[0].shape) == 1:
        total: Any = 1
        for d in c.operands[0].dims():
            total = total * d
        return ct.content(dt.int32, [total], (1,))
    y = c.mil(REDUCED[c.op_type], x=c.x(), axes=axes, keep_dims=bool(p.keepDims))
    return y if y.shape else c.reshape(y, (1,))
