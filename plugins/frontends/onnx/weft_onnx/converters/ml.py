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


@onnx_op("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(c: Context) -> Value:
    """All trees walk down in step: a level is one gather of every sample's node in every tree; leaves stay where they are."""
    x = c.value(0)
    samples = x.shape[0]
    nodes, leaves = _nodes(c, x.dtype)
    count = len(nodes["feature"])
    roots = np.array(c.integers("tree_roots"), np.int64)
    at = c.broadcast(c.builder.constant(roots), (samples, len(roots)))
    table = {key: c.builder.constant(value) for key, value in nodes.items()}
    for _ in range(_depth(nodes, roots)):
        value = c(ops.GatherElements(1), x, c.gather(table["feature"], at, 0))
        split, mode = c.gather(table["split"], at, 0), c.gather(table["mode"], at, 0)
        taken: Value | None = None
        for code in sorted(set(nodes["mode"].tolist())):
            holds = _member(c, value, at) if code == MEMBER else c(COMPARISONS[code], value, split)
            taken = holds if taken is None else c(ops.Where(), c(ops.Equal(), mode, code), holds, taken)
        if c.has("nodes_missing_value_tracks_true"):
            taken = c(ops.LogicalOr(), taken, c(ops.LogicalAnd(), c(ops.IsNan(), value), c.gather(table["missing"], at, 0)))
        at = c(ops.Where(), taken, c.gather(table["true"], at, 0), c.gather(table["false"], at, 0))
    # Leaves are counted behind the inner nodes.
    weights = c.gather(c.builder.constant(leaves), c.sub(at, count - len(leaves)), 0)
    aggregate = c.integer("aggregate_function", 1)
    ids = np.array(c.integers("leaf_targetids"), np.int64)
    which = c.gather(c.builder.constant(ids), c.sub(at, count - len(leaves)), 0)
    columns = []
    for t in range(c.integer("n_targets", 1)):
        here = c(ops.Equal(), which, t)
        if aggregate in (0, 1):
            total = c.sum(c(ops.Where(), here, weights, 0.0), (1,))
            columns.append(c.div(total, float(len(roots))) if aggregate == 0 else total)
        else:
            reducer, start = (ops.ReduceMin, np.inf) if aggregate == 2 else (ops.ReduceMax, -np.inf)
            best = c(reducer((1,), True), c(ops.Where(), here, weights, float(start)))
            columns.append(c(ops.Where(), c(ops.IsInf(), best), 0.0, best))
    y = c.concat(columns, 1)
    transform = c.integer("post_transform", 0)
    if transform not in (0, 1, 2):
        raise c.unsupported(f"post_transform {transform}")
    return y if transform == 0 else c(ops.Softmax(-1) if transform == 1 else ops.Sigmoid(), y)


MEMBER = 6
COMPARISONS: dict[int, Any] = {
    0: ops.LessEqual(), 1: ops.Less(), 2: ops.GreaterEqual(), 3: ops.Greater(), 4: ops.Equal(), 5: ops.NotEqual(),
}  # fmt: skip


def _nodes(c: Context, dtype: dt.DType) -> tuple[dict[str, Any], Any]:
    """The inner nodes and, behind them, the leaves, which lead to themselves; the leaves' weights."""
    weights = c.tensor("leaf_weights")
    assert weights is not None
    features = c.integers("nodes_featureids") or ()
    inner, leaves = len(features), len(weights)
    own = np.arange(inner, inner + leaves)

    def behind(name: str, fill: Any, of: Any) -> Any:
        return np.concatenate([np.asarray(of if of is not None else c.integers(name)), np.full(leaves, fill)])

    def children(name: str) -> Any:
        ids = np.array(c.integers(f"nodes_{name}nodeids"), np.int64)
        is_leaf = np.array(c.integers(f"nodes_{name}leafs"), bool)
        return np.concatenate([np.where(is_leaf, ids + inner, ids), own])

    missing = c.integers("nodes_missing_value_tracks_true") or (0,) * inner
    splits, modes = c.tensor("nodes_splits"), c.tensor("nodes_modes")
    return {
        "feature": behind("nodes_featureids", 0, None).astype(np.int64),
        "split": behind("nodes_splits", 0, splits).astype(dtype.numpy),
        "mode": behind("nodes_modes", 0, modes).astype(np.int64),
        "missing": behind("", 0, missing).astype(bool),
        "true": children("true"),
        "false": children("false"),
    }, weights


def _depth(nodes: dict[str, Any], roots: Any) -> int:
    level, depth = set(roots.tolist()), 0
    while True:
        below = {int(nodes[side][k]) for k in level for side in ("true", "false")}
        if below <= level or depth > len(nodes["true"]):
            return depth
        level, depth = below, depth + 1


def _member(c: Context, value: Value, at: Value) -> Value:
    """Whether a value is in its node's set. Sets stand in `membership_values` one after another, each ended by a NaN."""
    values, modes = c.tensor("membership_values"), c.tensor("nodes_modes")
    assert values is not None and modes is not None
    ends = np.flatnonzero(np.isnan(values))
    sets = [part[~np.isnan(part)] for part in np.split(values, ends + 1)][: len(ends)]
    width = max(map(len, sets))
    table = np.full((len(modes) + len(c.tensor("leaf_weights")), width), np.nan, value.dtype.numpy)  # type: ignore[arg-type]
    for k, s in zip(np.flatnonzero(modes == MEMBER), sets):
        table[k, : len(s)] = s
    own = c.gather(c.builder.constant(table), at, 0)
    same = c(ops.Equal(), own, c.reshape(value, (*value.shape, 1)))
    return c(ops.ReduceMax((2,), False), same)  # type: ignore[no-any-return]
