"""XGBoost's models: its JSON, the same as UBJSON, and its objects, which are written as UBJSON first."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Value
from weft_frontend.archives import read_file
from weft_ops.composing import Composer
from weft_ops.forests import BadForest, number_before
from weft_sklearn.models import (
    MOST_FEATURES,
    Array,
    ForestBuilder,
    Outputs,
    TreeModel,
    above,
    classified,
    column,
    constant_row,
    labels,
    two,
)
from weft_sklearn.ubjson import BadUbjson, decode

NEWEST = 3
"""The major version of XGBoost whose files are read; older ones are."""
Link = Callable[[float], float]


def logit(p: float) -> float:
    return -math.log(1 / p - 1)


def same(x: float) -> float:
    return x


OBJECTIVES: dict[str, tuple[Link, str]] = {
    **dict.fromkeys(("binary:logistic", "reg:logistic"), (logit, "sigmoid")),
    "binary:logitraw": (same, ""),
    "binary:hinge": (same, "hinge"),
    "multi:softprob": (same, "softmax"),
    "multi:softmax": (same, "argmax"),
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), (math.log, "exp")),
    **dict.fromkeys(
        (
            "reg:squarederror",
            "reg:linear",
            "reg:squaredlogerror",
            "reg:pseudohubererror",
            "reg:absoluteerror",
            "reg:quantileerror",
            "rank:pairwise",
            "rank:ndcg",
            "rank:map",
        ),
        (same, ""),
    ),
}
"""By objective: what is made of the base score before it is added, and of sums of trees."""


def read(source: Any) -> TreeModel:
    """A .json or .ubj file, its bytes, a Booster or an XGBModel.

    Raises:
        FrontendError: it is none, or is damaged.
        UnsupportedError: names all that is not supported.
    """
    if isinstance(source, Path):
        return of_document(document(read_file(source), f"'{source}'"), f"'{source}'")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return of_document(document(bytes(source), "these bytes"), "these bytes")
    return of_object(source)


def document(data: bytes, where: str) -> Any:
    """JSON or UBJSON."""
    try:
        if data[:1] == b"{" and data.lstrip(b"{ \t\r\n")[:1] in (b'"', b"}"):
            return json.loads(data)
        return decode(data)
    except (BadUbjson, ValueError, RecursionError) as error:  # of json: ValueError, for texts not in UTF-8 as well
        raise _damaged(where, str(error)) from None


def _damaged(where: str, why: str) -> FrontendError:
    return FrontendError(f"{where} is no XGBoost model", why=why, hint="was it cut short? write it again: save_model")


def of_object(model: Any) -> TreeModel:
    """A Booster, or an estimator: what its `predict` and `predict_proba` give."""
    where = f"the {type(model).__name__}"
    if type(model).__name__ == "Booster":
        return of_document(decode(bytes(model.save_raw("ubj"))), where)
    if not hasattr(model, "get_booster"):
        raise FrontendError(f"{where} is no model of XGBoost", hint="give a Booster or a fitted estimator")
    try:
        booster = model.get_booster()
    except ValueError as error:  # also that it is not fitted
        raise FrontendError(f"{where} cannot be read", why=str(error).splitlines()[0], hint="fit it first") from None
    best = getattr(booster, "best_iteration", None) if _stopped(booster) else None
    classes = np.arange(model.n_classes_) if hasattr(model, "n_classes_") else None
    found = of_document(decode(bytes(booster.save_raw("ubj"))), where, best, classes)
    if model.missing is not None and not np.isnan(model.missing):
        return replace(found, prepare=absent(float(model.missing)))
    return found


def _stopped(booster: Any) -> bool:
    return booster.attr("best_iteration") is not None


def absent(number: float) -> Callable[[Composer, Value], Value]:
    """A number that stands for what is missing, as NaN."""
    return lambda c, x: c(ops.Where(), c(ops.Equal(), x, number), float("nan"), x)


# -- the document -----------------------------------------------------------------------------------------------------


class Document:
    """A document's parts, with errors that name them."""

    def __init__(self, value: Any, where: str, path: str = "") -> None:
        self.value, self.where, self.path = value, where, path

    def part(self, key: str) -> Document:
        path = f"{self.path}.{key}".lstrip(".")
        if not isinstance(self.value, dict) or key not in self.value:
            raise _damaged(self.where, f"it has no '{path}'")
        return Document(self.value[key], self.where, path)

    def has(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.error("a text")
        return self.value

    def items(self) -> list[Document]:
        if not isinstance(self.value, list):
            raise self.error("a list")
        return [Document(v, self.where, f"{self.path}[{k}]") for k, v in enumerate(self.value)]

    def integer(self, low: int = 0, high: int = 1 << 31) -> int:
        try:
            found = int(self.value)
        except (TypeError, ValueError, OverflowError):
            raise self.error("an integer") from None
        if not low <= found <= high:
            raise self.error(f"an integer from {low} to {high}")
        return found

    def array(self, dtype: Any) -> Array:
        """Numbers, all within the dtype."""
        try:
            found = np.asarray(self.value)
            if found.ndim != 1 or found.dtype.kind not in ("biuf" if found.size else "biufO"):
                raise ValueError
            with np.errstate(invalid="ignore", over="ignore"):
                cast = found.astype(dtype)
            if cast.dtype.kind != "f" and not (cast == found).all():
                raise ValueError
            return cast
        except (TypeError, ValueError, OverflowError):
            raise self.error("a list of numbers") from None

    def error(self, expected: str) -> FrontendError:
        return _damaged(self.where, f"'{self.path}': expected {expected}, got {str(self.value)[:60]!r}")


def of_document(value: Any, where: str, best: int | None = None, classes: Any = None) -> TreeModel:
    """A model from its document.

    Args:
        best: the last iteration that counts; None: all.
        classes: of a classifier, which then gives labels and probabilities.
    """
    top = Document(value, where)
    learner = top.part("learner")
    version = top.part("version").array(np.int64) if top.has("version") else np.array([1])
    if len(version) and version[0] > NEWEST:
        raise FrontendError(
            f"{where} was written by XGBoost {version[0]}", why=f"files up to version {NEWEST} are read",
            hint=f"write it with XGBoost {NEWEST}",
        )  # fmt: skip
    objective, booster = learner.part("objective").part("name").text(), learner.part("gradient_booster")
    name, drops = booster.part("name").text(), None
    bad = [] if objective in OBJECTIVES else [f"objective {objective}"]
    if name == "dart":
        drops, booster = booster.part("weight_drop").array(np.float32), booster.part("gbtree")
    elif name != "gbtree":
        bad.append(f"booster {name}")
    if len(version) and version[0] < 2 and objective == "binary:logitraw":
        bad.append("objective binary:logitraw as versions before 2 wrote it")
    if classes is not None and objective == "binary:logitraw":
        bad.append("a classifier with objective binary:logitraw, which has no probabilities")
    if bad:
        raise UnsupportedError(
            f"{where} uses what is not supported", where="\n".join(bad),
            hint="objectives: " + ", ".join(OBJECTIVES) + "; boosters: gbtree, dart",
        )  # fmt: skip
    return _trees(where, learner, booster.part("model"), drops, objective, best, classes)


def _trees(
    where: str, learner: Document, model: Document, drops: Array | None, objective: str, best: int | None, classes: Any
) -> TreeModel:
    params = learner.part("learner_model_param")
    features = params.part("num_feature").integer(0, MOST_FEATURES)
    targets = params.part("num_target").integer() if params.has("num_target") else 1
    columns = max(params.part("num_class").integer(), targets, 1)
    trees, groups = model.part("trees").items(), model.part("tree_info").array(np.int64)
    if len(groups) != len(trees) or (drops is not None and len(drops) != len(trees)):
        raise _damaged(where, "tree_info and weight_drop do not fit the number of trees")
    if ((groups < 0) | (groups >= columns)).any() or (columns > max(1, len(trees)) and not _vectors(trees)):
        raise _damaged(where, f"{len(trees)} trees are for outputs {sorted(set(groups.tolist()))[:8]} of {columns}")
    if best is not None:
        each = model.part("gbtree_model_param").part("num_parallel_tree").integer(1)
        per = each * (1 if _vectors(trees) else columns)
        trees = trees[: (best + 1) * per]
    built = ForestBuilder(features, columns, np.float32, np.float32)
    for k, tree in enumerate(trees):
        _add(built, tree, int(groups[k]), 1.0 if drops is None else float(drops[k]))
    link, then = OBJECTIVES[objective]
    base = _base(params.part("base_score"), columns, link)

    def finish(c: Composer, y: Value) -> Outputs:
        return _finish(c, c.add(y, constant_row(c, base, np.float32)), then, classes)

    return TreeModel("xgboost", built.forest(), features, np.float32, finish)


def _vectors(trees: list[Document]) -> bool:
    """Whether leaves have a weight for every output."""
    return bool(trees) and trees[0].part("tree_param").part("size_leaf_vector").integer() > 1


def _base(score: Document, columns: int, link: Link) -> list[float]:
    """The base score of every output, as it is added to sums: one number, or a text of one or of a list."""
    try:
        text = score.value if isinstance(score.value, (int, float)) else json.loads(score.text())
        numbers = [float(n) for n in (text if isinstance(text, list) else [text])]
        found = [link(float(np.float32(n))) for n in numbers]
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise score.error("a base score that fits the objective") from None
    if len(found) not in (1, columns) or not np.isfinite(found).all():
        raise score.error(f"1 or {columns} finite numbers")
    return found if len(found) == columns else found * columns


def _add(built: ForestBuilder, tree: Document, group: int, scale: float) -> None:
    left, right = tree.part("left_children").array(np.int64), tree.part("right_children").array(np.int64)
    split, feature = tree.part("split_conditions").array(np.float32), tree.part("split_indices").array(np.int64)
    nan_left = tree.part("default_left").array(np.int64)
    count = len(left)
    if any(len(a) != count for a in (right, split, feature, nan_left)):
        raise tree.error("lists of one length")
    leaf = left < 0
    size = tree.part("tree_param").part("size_leaf_vector").integer(0, built.columns)
    values: Array = split
    if size > 1:
        values = _leaf_vectors(tree, right, leaf, size)
        if size != built.columns:
            raise tree.error(f"leaves of {built.columns} numbers")
    sets = _sets(tree, count)
    compared = np.array([k not in sets for k in range(count)], bool) & ~leaf if sets else ~leaf
    if not np.isfinite(split[compared]).all():
        raise tree.error("finite splits")
    # A row goes to the left if x < split.
    try:
        built.add(feature, number_before(split), nan_left != 0, np.where(leaf, -1, left), np.where(leaf, -1, right),
                  values * np.float32(scale), group, sets)  # fmt: skip
    except BadForest as error:
        raise _damaged(tree.where, f"'{tree.path}': {error}") from None


def _leaf_vectors(tree: Document, right: Array, leaf: Array, size: int) -> Array:
    if not tree.has("leaf_weights"):
        raise UnsupportedError(
            f"{tree.where} has leaves of several outputs as XGBoost wrote them before version 3.1",
            hint="load it with XGBoost 3.1 or newer and save it again",
        )
    weights = tree.part("leaf_weights").array(np.float32)
    at = np.where(leaf, right, 0)
    if len(weights) % size or ((at < 0) | (at >= len(weights) // size)).any():
        raise tree.error(f"leaf_weights of {size} numbers for each leaf")
    return np.asarray(weights.reshape(-1, size)[at])


def _sets(tree: Document, count: int) -> dict[int, Array]:
    """Of nodes that test a category, the categories that go to the right."""
    if not tree.has("categories_nodes"):
        return {}
    nodes, begin, sizes, members = (
        tree.part(f"categories{part}").array(np.int64) for part in ("_nodes", "_segments", "_sizes", "")
    )
    if len(begin) != len(nodes) or len(sizes) != len(nodes) or len(set(nodes.tolist())) != len(nodes):
        raise tree.error("categories of one length")
    wrong = (nodes < 0) | (nodes >= count) | (begin < 0) | (sizes < 0) | (begin + sizes > len(members))
    if wrong.any() or ((members < 0) | (members >= 1 << 24)).any():
        raise tree.error("categories from 0 to 16777215 of nodes that there are")
    return {int(n): members[b : b + s] for n, b, s in zip(nodes, begin, sizes)}


def _finish(c: Composer, y: Value, then: str, classes: Any) -> Outputs:
    """The outputs of sums with their base score."""
    if classes is not None and y.shape[1] > 1 and then not in ("softmax", "argmax"):
        raise UnsupportedError(
            f"a classifier with {y.shape[1]} labels for each row", hint="give its Booster: model.get_booster()"
        )
    if then == "hinge":
        y = c.cast(c(ops.Greater(), y, 0.0), dt.float32)
    elif then == "sigmoid":
        y = c(ops.Sigmoid(), y)
    elif then == "exp":
        y = c(ops.Exp(), y)
    elif then == "softmax" or (then == "argmax" and classes is not None):
        y = c(ops.Softmax(-1), y)
    elif then == "argmax":
        y = c.cast(c(ops.Argmax(-1), y), dt.float32)
        return {"prediction": y}
    if classes is None:
        return {"prediction": column(c, y)}
    if y.shape[1] > 1:
        return classified(c, y, classes)
    return {"label": labels(c, above(c, y, 0.5), classes), "probabilities": two(c, y)}


__all__ = ["OBJECTIVES", "read"]
