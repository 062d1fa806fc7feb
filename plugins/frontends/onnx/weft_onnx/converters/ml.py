"""Operators of ai.onnx.ml, classical machine learning."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft import ops
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op

DOMAIN = "ai.onnx.ml"


@onnx_op("Binarizer", domain=DOMAIN)
def binarizer(c: Context) -> Value:
    x = c.value(0)
    return c.cast(c(ops.Greater(), x, c.real("threshold", 0.0)), x.dtype)


@onnx_op("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    y = c.gather(x, c.reshape(indices, (-1,)), len(x.shape) - 1)
    return c.reshape(y, (1, *y.shape)) if len(y.shape) == 1 else y


@onnx_op("Scaler", domain=DOMAIN)
def scaler(c: Context) -> Value:
    x = c.cast(c.value(0), dt.float32)
    offset, scale = (c.builder.constant(np.array(c.reals(n) or (d,), np.float32)) for n, d in (("offset", 0.0), ("scale", 1.0)))
    return c.mul(c.sub(x, offset), scale)


@onnx_op("Normalizer", domain=DOMAIN)
def normalizer(c: Context) -> Value:
    x = c.cast(c.value(0), dt.float32)
    norm = c.string("norm", "MAX")
    if norm == "MAX":
        return c.div(x, c.max(c(ops.Absolute(), x), (len(x.shape) - 1,)))
    return c(ops.LpNorm(-1, 1 if norm == "L1" else 2), x)  # type: ignore[no-any-return]


@onnx_op("LinearRegressor", domain=DOMAIN)
def linear_regressor(c: Context) -> Value:
    x = c.cast(c.value(0), dt.float32)
    targets = c.integer("targets", 1)
    weights = np.array(c.reals("coefficients") or (), np.float32).reshape(targets, -1)
    y = c(ops.MatMul(), x, c.builder.constant(np.ascontiguousarray(weights.T)))
    intercepts = c.reals("intercepts")
    y = y if intercepts is None else c.add(y, c.builder.constant(np.array(intercepts, np.float32)))
    return _transformed(c, y)


def _transformed(c: Context, y: Value) -> Value:
    transform = c.string("post_transform", "NONE")
    found: Any = {"NONE": None, "LOGISTIC": ops.Sigmoid(), "SOFTMAX": ops.Softmax(-1)}.get(transform, "")
    if found == "":
        raise c.unsupported(f"post_transform {transform}")
    return y if found is None else c(found, y)


@onnx_op("LabelEncoder", domain=DOMAIN)
def label_encoder(c: Context) -> Value:
    """Keys → values by comparison with every key; the first that is equal wins. Strings are found on the host, and are places in a table otherwise."""
    x = c.value(0)
    keys, values, default = _table(c)
    if keys is None or values is None:
        raise c.error("there are no keys or no values")
    table = np.array([*values.tolist(), default], values.dtype)
    if x.dtype == dt.string:
        place = c.builder.add(ops.StringIndex(tuple(map(str, keys))), x)
    else:
        place = c.builder.constant(np.full((), len(keys), np.int64))
        for k in reversed(range(len(keys))):
            same = c(ops.IsNan(), x) if keys[k] != keys[k] else c(ops.Equal(), x, keys[k].item())
            place = c(ops.Where(), same, c.builder.constant(np.full((), k, np.int64)), place)
        place = c.broadcast(place, x.shape)
    if values.dtype == object:
        strings = c.builder.add(ops.StringConstant(tuple(map(str, table)), (len(table),)))
        return c.builder.add(ops.StringTake(), place, strings)  # type: ignore[no-any-return]
    return c.gather(c.builder.constant(table), place, 0)


def _table(c: Context) -> tuple[Any, Any, Any]:
    def part(kind: str) -> Any:
        tensor = c.tensor(f"{kind}_tensor")
        if tensor is not None:
            return tensor.reshape(-1)
        if c.has(f"{kind}_int64s"):
            return np.array(c.integers(f"{kind}_int64s"), np.int64)
        if c.has(f"{kind}_floats"):
            return np.array(c.reals(f"{kind}_floats"), np.float32)
        if c.has(f"{kind}_strings"):
            return np.array(c.strings(f"{kind}_strings"), object)
        return None

    keys, values = part("keys"), part("values")
    default: Any = c.tensor("default_tensor")
    if default is not None:
        default = default.reshape(-1)[0]
    elif values is not None:
        kind = values.dtype.kind
        default = c.string("default_string", "_Unused") if kind == "O" else c.real("default_float", -0.0) if kind == "f" else c.integer("default_int64", -1)
    return keys, values, default
