"""Operators of ai.onnx.ml, classical machine learning."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_onnx.converters.trees import classified, matrix
from weft_onnx.importer import Context
from weft_onnx.protos import captured
from weft_onnx.registry import onnx_op

DOMAIN = "ai.onnx.ml"


@onnx_op("Binarizer", domain=DOMAIN)
def binarizer(c: Context) -> Value:
    x = c.value(0)
    return c.cast(c(ops.Greater(), x, c.real("threshold", 0.0)), x.dtype)


@onnx_op("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    y = c.gather(x, c.indices(c.reshape(indices, (-1,)), x.shape[-1]), len(x.shape) - 1)
    return c.reshape(y, (1, *y.shape)) if len(y.shape) == 1 else y


@onnx_op("Scaler", domain=DOMAIN)
def scaler(c: Context) -> Value:
    x = c.cast(c.value(0), dt.float32)
    offset, scale = (
        c.builder.constant(np.array(c.reals(n) or (d,), np.float32)) for n, d in (("offset", 0.0), ("scale", 1.0))
    )
    return c.mul(c.sub(x, offset), scale)


@onnx_op("Normalizer", domain=DOMAIN)
def normalizer(c: Context) -> Value:
    x = c.cast(c.value(0), dt.float32)
    norm = c.string("norm", "MAX")
    if norm == "MAX":
        return c.div(x, c.max(c(ops.Absolute(), x), (len(x.shape) - 1,)))
    return c(ops.LpNorm(-1, 1 if norm == "L1" else 2), x)


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
    keys, values, default = _table(c)
    if keys is None or values is None:
        raise c.error("there are no keys or no values")
    return _mapped(c, c.value(0), keys, values, default)


@onnx_op("CategoryMapper", domain=DOMAIN)
def category_mapper(c: Context) -> Value:
    x = c.value(0)
    words, numbers = (
        np.array(c.strings("cats_strings") or (), object),
        np.array(c.integers("cats_int64s") or (), np.int64),
    )
    if len(words) != len(numbers):
        raise c.error(
            f"cats_strings and cats_int64s: expected as many of one as of the other, got {len(words)} and"
            f" {len(numbers)}"
        )
    if x.dtype == dt.string:
        return _mapped(c, x, words, numbers, c.integer("default_int64", -1))
    return _mapped(c, x, numbers, words, c.string("default_string", "_Unused"))


def _mapped(c: Context, x: Value, keys: Any, values: Any, default: Any) -> Value:
    """Keys → values by comparison with every key; the first that is equal wins. Strings are found on the host, and are
    places in a table otherwise."""
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
        return c.builder.add(ops.StringTake(), place, strings)
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
        default = (
            c.string("default_string", "_Unused")
            if kind == "O"
            else c.real("default_float", -0.0)
            if kind == "f"
            else c.integer("default_int64", -1)
        )
    return keys, values, default


@onnx_op("LinearClassifier", domain=DOMAIN)
def linear_classifier(c: Context) -> Any:
    x, labels = (
        c.cast(matrix(c), dt.float32),
        len(c.strings("classlabels_strings") or c.integers("classlabels_ints") or ()),
    )
    intercepts, coefficients = (
        np.array(c.reals("intercepts") or (), np.float32),
        np.array(c.reals("coefficients") or (), np.float32),
    )
    classes = len(intercepts) or max(labels, 1)
    if not coefficients.size or coefficients.size % classes:
        raise c.error(f"coefficients: expected some for each of {classes} class(es), got {coefficients.size}")
    scores = c(ops.MatMul(), x, c.builder.constant(np.ascontiguousarray(coefficients.reshape(classes, -1).T)))
    scores = c.add(scores, c.builder.constant(intercepts)) if intercepts.size else scores
    one = "first" if classes == 1 and labels == 2 else ""
    return classified(c, scores, one, positive=True, above=0.0, ints="classlabels_ints")


@onnx_op("Imputer", domain=DOMAIN)
def imputer(c: Context) -> Value:
    x = c.value(0)
    real = x.dtype.is_float
    values = c.reals("imputed_value_floats") if real else c.integers("imputed_value_int64s")
    if not values:
        raise c.error(f"expected imputed_value_{'floats' if real else 'int64s'} for {x.dtype}")
    if len(values) not in (1, x.shape[-1]):
        raise c.error(f"expected one value, or one for each of {x.shape[-1]} features, got {len(values)}")
    replaced = c.real("replaced_value_float", 0.0) if real else c.integer("replaced_value_int64", 0)
    missing = c(ops.IsNan(), x) if replaced != replaced else c(ops.Equal(), x, replaced)
    return c(ops.Where(), missing, c.builder.constant(np.array(values, x.dtype.numpy)), x)


@onnx_op("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(c: Context) -> Value:
    """Columns side by side; of each operand as many as `inputdimensions` says, with zeros behind where it has fewer."""
    parts = [c.cast(v if len(v.shape) > 1 else c.reshape(v, (v.shape[0], 1)), dt.float32) for v in c.values()]
    sizes: tuple[Any, ...] = c.integers("inputdimensions") or tuple(p.shape[1] for p in parts)
    if len(sizes) != len(parts):
        raise c.error(f"inputdimensions: expected {len(parts)}, got {len(sizes)}")
    made = []
    for part, size in zip(parts, sizes):
        has = part.shape[1]
        if isinstance(has, int) and isinstance(size, int) and has != size:
            part = c.slice(part, 1, 0, size) if has > size else c.pad(part, (0, 0, 0, size - has))
        made.append(part)
    return c.concat(made, 1)


@onnx_op("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(c: Context) -> Value:
    """A last axis with one place per category; of others all places are 0, or, without `zeros`, an error."""
    x, categories = c.value(0), c.integers("cats_int64s")
    if not categories or x.dtype.kind not in ("float", "int", "uint"):
        raise c.unsupported("categories that are no numbers")
    numbers = c.cast(x, dt.float64 if x.dtype.is_float else dt.int64)
    known = c.builder.constant(np.array(categories, numbers.dtype.numpy))
    found = c.cast(c(ops.Equal(), c.reshape(numbers, (*x.shape, 1)), known), dt.float32)
    if not c.flag("zeros", True):
        found = c.within(
            found,
            1,
            None,
            "number of categories equal to an element",
            part=c.cast(c.sum(found, (len(x.shape),), False), dt.int64),
        )
    return found


@onnx_op("ZipMap", domain=DOMAIN)
def zip_map(c: Context) -> Value:
    """The numbers of all maps, [maps, keys]: `weft_onnx.InferenceSession` makes maps of what leaves the model."""
    proto, name = c.importer.proto.graph, c.node.output[0]
    used = any(name in (*n.input, *captured(n)) for n in proto.node)
    if c.scope.prefix or used or name not in {o.name for o in proto.output}:
        raise c.unsupported("maps are no tensors, and can only leave the model")
    keys = c.strings("classlabels_strings") or c.integers("classlabels_int64s") or ()
    x = c.value(0)
    x = x if len(x.shape) == 2 else c.reshape(x, (1, *x.shape))
    return c.sized(x, x.shape[1], len(keys), "{0} numbers for {1} keys")


@onnx_op("CastMap", "DictVectorizer", domain=DOMAIN, refuses=True)
def maps(c: Context) -> Any:
    raise c.unsupported("maps are no tensors; skl2onnx exports without them: options={'zipmap': False}")
