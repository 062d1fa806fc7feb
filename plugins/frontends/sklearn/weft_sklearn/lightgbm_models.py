"""LightGBM's models: its text files, and its objects, which are written as text first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import weft_ops as ops
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Value
from weft_frontend.archives import read_file
from weft_ops.composing import Composer
from weft_ops.forests import BadForest
from weft_sklearn.models import (
    MOST_FEATURES,
    Array,
    ForestBuilder,
    Outputs,
    TreeModel,
    classified,
    column,
    two,
)

VERSIONS = ("v2", "v3", "v4")
ZERO = float(np.float32(1e-35))
"""Numbers up to this are zero to LightGBM."""
NONE, ZEROS, NANS = range(3)
"""What a node takes for missing: nothing (NaN is 0 then), zeros and NaN, NaN."""
MOST_TREES = 1 << 20
IDENTITY = (
    "regression", "regression_l2", "l2", "mean_squared_error", "mse", "regression_l1", "l1", "mae", "huber", "fair",
    "quantile", "mape", "lambdarank", "rank_xendcg", "custom", "none", "null", "",
)  # fmt: skip
OBJECTIVES = {
    **dict.fromkeys(IDENTITY, ""),
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "exp"),
    **dict.fromkeys(("binary", "cross_entropy", "xentropy"), "sigmoid"),
    "multiclass": "softmax",
    "multiclassova": "sigmoid",
    **dict.fromkeys(("cross_entropy_lambda", "xentlambda"), "log1p"),
}
"""By objective what is made of sums of trees."""


def read(source: Any) -> TreeModel:
    """A text file, its bytes, a Booster or an LGBMModel.

    Raises:
        FrontendError: it is none, or is damaged.
        UnsupportedError: names all that is not supported.
    """
    if isinstance(source, (Path, bytes, bytearray, memoryview)):
        where = f"'{source}'" if isinstance(source, Path) else "these bytes"
        data = read_file(source) if isinstance(source, Path) else bytes(source)
        return of_text(data.decode("utf-8", "replace"), where)
    where = f"the {type(source).__name__}"
    if type(source).__name__ == "Booster":
        return of_text(source.model_to_string(), where)
    if not hasattr(source, "booster_") and not hasattr(type(source), "booster_"):
        raise FrontendError(f"{where} is no model of LightGBM", hint="give a Booster or a fitted estimator")
    try:
        text = source.booster_.model_to_string()
    except ValueError as error:  # also that it is not fitted
        raise FrontendError(f"{where} cannot be read", why=str(error).splitlines()[0], hint="fit it first") from None
    return of_text(text, where, getattr(source, "classes_", None))


class Section:
    """`key=value` lines, with errors that name the section."""

    def __init__(self, name: str, where: str, lines: list[str]) -> None:
        self.name, self.where = name, where
        self.values = dict(line.partition("=")[::2] for line in lines)

    def error(self, key: str, expected: str) -> FrontendError:
        got = self.values.get(key)
        return _damaged(
            self.where,
            f"{self.name}: {key}: expected {expected}, got {'nothing' if got is None else repr(got[:60])}",
        )

    def integer(self, key: str, low: int = 0, high: int = 1 << 31) -> int:
        try:
            found = int(self.values[key])
        except (KeyError, ValueError):
            raise self.error(key, "an integer") from None
        if not low <= found <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return found

    def array(self, key: str, dtype: Any, count: int) -> Array:
        """`count` numbers."""
        try:
            found = np.array(self.values.get(key, "").split(), dtype)
        except (ValueError, OverflowError):
            raise self.error(key, f"{count} numbers") from None
        if len(found) != count:
            raise self.error(key, f"{count} numbers")
        return found


def _damaged(where: str, why: str) -> FrontendError:
    return FrontendError(f"{where} is no LightGBM model", why=why, hint="was it cut short? write it again: save_model")


def of_text(text: str, where: str, classes: Any = None) -> TreeModel:
    """A model from its text. `classes`: of a classifier, which then gives labels and probabilities."""
    body, end, _ = text.partition("\nend of trees")
    lines = [line.strip() for line in body.split("\n")]
    if lines[0] != "tree":
        raise _damaged(where, f"it begins with {lines[0][:40]!r}, not with 'tree'")
    starts = [k for k, line in enumerate(lines) if line.startswith("Tree=")]
    if not end:
        raise _damaged(where, "it has no line 'end of trees'")
    if len(starts) > MOST_TREES:
        raise _damaged(where, f"it has {len(starts)} trees, at most {MOST_TREES} are read")
    head = Section("head", where, lines[: starts[0] if starts else len(lines)])
    version = head.values.get("version", "")
    if version not in VERSIONS:
        raise FrontendError(f"{where} is of version {version[:20]!r}", why=f"LightGBM's {', '.join(VERSIONS)} are read")
    sections = [Section(lines[a][:40], where, lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)])]
    objective, bad = Objective.read(head), []
    if objective.name not in OBJECTIVES:
        bad.append(f"objective {objective.name}")
    linear = sum(s.values.get("is_linear", "0") != "0" for s in sections)
    if linear:
        bad.append(f"{linear} linear trees")
    if classes is not None and not objective.probabilities:
        bad.append(f"a classifier with objective {objective.name or 'of its own'}, which has no probabilities")
    if bad:
        raise UnsupportedError(
            f"{where} uses what is not supported", where="\n".join(bad),
            hint="objectives: " + ", ".join(filter(None, OBJECTIVES)),
        )  # fmt: skip
    return _trees(head, sections, objective, classes)


@dataclass(frozen=True)
class Objective:
    """The line `objective=binary sigmoid:1`."""

    name: str
    parameters: Mapping[str, str]

    @staticmethod
    def read(head: Section) -> Objective:
        name, *words = head.values.get("objective", "").split() or [""]
        return Objective(name, {k: v for k, _, v in (w.partition(":") for w in words)})

    @property
    def probabilities(self) -> bool:
        return self.name in ("binary", "multiclass", "multiclassova", "cross_entropy", "xentropy")

    def of(self, c: Composer, y: Value, where: str) -> Value:
        """Sums as they are predicted."""
        then = OBJECTIVES[self.name]
        if then == "sigmoid":
            try:
                slope = float(self.parameters.get("sigmoid", "1"))
            except ValueError:
                raise _damaged(where, f"objective: sigmoid:{self.parameters['sigmoid'][:20]}") from None
            return c(ops.Sigmoid(), y if slope == 1 else c.mul(y, slope))
        if then == "softmax":
            return c(ops.Softmax(-1), y)
        if then == "exp":
            return c(ops.Exp(), y)
        if then == "log1p":
            return c(ops.Softplus(), y)
        if "sqrt" in self.parameters:
            return c.mul(c(ops.Sign(), y), c.mul(y, y))
        return y


@dataclass
class Features:
    """What nodes take for missing, feature by feature, and which features are categories."""

    count: int
    missing: dict[int, set[int]] = field(default_factory=dict)
    categories: set[int] = field(default_factory=set)

    def note(self, feature: Array, kinds: Array, categorical: Array) -> None:
        for f, kind in set(zip(feature[~categorical].tolist(), kinds[~categorical].tolist())):
            self.missing.setdefault(f, set()).add(kind)
        self.categories.update(feature[categorical].tolist())

    def prepare(self, where: str) -> Callable[[Composer, Value], Value]:
        """Zeros that are missing become NaN, categories are rounded towards zero."""
        zeros = {f for f, kinds in self.missing.items() if ZEROS in kinds}
        mixed = sorted(f for f in zeros if len(self.missing[f]) > 1 or f in self.categories)
        if mixed:
            raise UnsupportedError(
                f"{where} uses what is not supported",
                where=f"features {mixed[:8]}, of which zero is missing in some nodes only",
            )

        def prepared(c: Composer, x: Value) -> Value:
            if zeros:
                small = c(ops.LessEqual(), c(ops.Absolute(), x), ZERO)
                x = c(ops.Where(), c(ops.LogicalAnd(), small, self._mask(c, zeros)), float("nan"), x)
            if self.categories:
                x = c(ops.Where(), self._mask(c, self.categories), c(ops.Trunc(), x), x)
            return x

        return prepared

    def _mask(self, c: Composer, features: set[int]) -> Value:
        mask = np.zeros((1, self.count), bool)
        mask[0, sorted(features)] = True
        return c.builder.constant(mask)


def _trees(head: Section, sections: list[Section], objective: Objective, classes: Any) -> TreeModel:
    features, each = head.integer("max_feature_idx", 0, MOST_FEATURES) + 1, head.integer("num_tree_per_iteration", 1)
    if len(sections) % each:
        raise _damaged(head.where, f"it has {len(sections)} trees, {each} for each iteration")
    known, built = Features(features), ForestBuilder(features, each, np.float64, np.float64)
    for k, section in enumerate(sections):
        _add(built, section, k % each, known)
    average = "average_output" in head.values

    def finish(c: Composer, y: Value) -> Outputs:
        if average:
            y = c.div(y, float(len(sections) // each))
        y = objective.of(c, y, head.where)
        if classes is None:
            return {"prediction": column(c, y)}
        return classified(c, two(c, y) if each == 1 else y, classes)

    return TreeModel("lightgbm", built.forest(), features, np.float64, finish, known.prepare(head.where))


def _add(built: ForestBuilder, tree: Section, group: int, known: Features) -> None:
    leaves = tree.integer("num_leaves", 1)
    inner = leaves - 1
    values = tree.array("leaf_value", np.float64, leaves)
    feature, split = tree.array("split_feature", np.int64, inner), tree.array("threshold", np.float64, inner)
    kinds = tree.array("decision_type", np.int64, inner)
    # A child is an inner node, or a leaf as its complement.
    sides = [tree.array(f"{side}_child", np.int64, inner) for side in ("left", "right")]
    if any(((s < -leaves) | (s >= inner)).any() for s in sides):
        raise tree.error("left_child", f"{inner} nodes and {leaves} leaves")
    if ((feature < 0) | (feature >= built.features)).any():
        raise tree.error("split_feature", f"features below {built.features}")
    left, right = (np.where(s < 0, inner + ~s, s) for s in sides)
    categorical, default_left, missing = (kinds & 1) != 0, (kinds & 2) != 0, (kinds >> 2) & 3
    if (missing > NANS).any() or np.isnan(split).any():
        raise tree.error("decision_type", "what is missing: none, zeros or NaN")
    known.note(feature, missing, categorical)
    # Where nothing is missing NaN is 0.
    nan_left = np.where(missing == NONE, split >= 0, default_left)
    sets = _sets(tree, split, categorical)
    if sets:
        # Sets go to the left, and NaN to the right: children are swapped, for those of `TreeEnsemble` go to the right.
        left, right = np.where(categorical, right, left), np.where(categorical, left, right)
        nan_left = np.where(categorical, True, nan_left)
    # Numbers that are zero to LightGBM go where 0 goes.
    split = np.where(np.abs(split) > ZERO, split, np.where(split < 0, np.nextafter(-ZERO, -1.0), ZERO))
    none = np.full(leaves, -1)
    try:
        built.add(
            np.concatenate([feature, np.zeros(leaves, np.int64)]), np.concatenate([split, np.zeros(leaves)]),
            np.concatenate([nan_left, np.zeros(leaves, bool)]), np.concatenate([left, none]),
            np.concatenate([right, none]), np.concatenate([np.zeros(inner), values]), group, sets,
        )  # fmt: skip
    except BadForest as error:
        raise _damaged(tree.where, f"{tree.name}: {error}") from None


def _sets(tree: Section, split: Array, categorical: Array) -> dict[int, Array]:
    """Of nodes that test a category, the categories that go to the left."""
    count = tree.integer("num_cat") if "num_cat" in tree.values else 0
    if not categorical.any():
        return {}
    bounds = tree.array("cat_boundaries", np.int64, count + 1)
    if (np.diff(bounds) < 0).any() or bounds[0] != 0 or bounds[-1] > len(tree.values.get("cat_threshold", "")):
        raise tree.error("cat_boundaries", "ascending numbers from 0")
    words = tree.array("cat_threshold", np.int64, int(bounds[-1]))
    found: dict[int, Array] = {}
    for node in np.flatnonzero(categorical).tolist():
        which = int(split[node]) if np.isfinite(split[node]) else -1
        if not 0 <= which < count:
            raise tree.error("threshold", f"a number of a set below {count}")
        part = words[bounds[which] : bounds[which + 1]].astype(np.uint32)
        found[node] = np.flatnonzero(np.unpackbits(part.view(np.uint8), bitorder="little"))
    return found


__all__ = ["OBJECTIVES", "read"]
