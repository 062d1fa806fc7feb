"""scikit-learn's estimators: ensembles of trees from their arrays, all others through skl2onnx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Graph, Value
from weft_ops.composing import Composer
from weft_ops.forests import BadForest
from weft_sklearn.models import (
    Array,
    ForestBuilder,
    Outputs,
    TreeModel,
    above,
    build,
    classified,
    column,
    constant_row,
    labels,
    two,
)


def load(model: Any, dtype: str = "auto") -> Graph:
    """The graph of a fitted estimator or pipeline: for a regressor `prediction`, for a classifier `label` and
    `probabilities`.

    Raises:
        FrontendError: it is not fitted, or a library is missing.
        UnsupportedError: names what is not supported.
    """
    reader = next((READERS[k.__name__] for k in type(model).__mro__ if _own(k) and k.__name__ in READERS), None)
    if reader is None or not _own(type(model)):
        from weft_sklearn.exported import load_exported

        return load_exported(model, dtype)
    _fitted(model)
    try:
        return build(reader(model), dtype)
    except BadForest as error:
        raise FrontendError(f"the trees of {type(model).__name__} are none", why=str(error)) from None


def _own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "sklearn"


def _fitted(model: Any) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError:
        raise FrontendError(f"the {type(model).__name__} is not fitted", hint="call fit first") from None


def _add(built: ForestBuilder, tree: Any, values: Array, features: Array | None = None, group: int = 0) -> None:
    """A `sklearn.tree._tree.Tree`.

    Args:
        features: which of the model's features the tree's are; None: the same.
    """
    left, right = tree.children_left.astype(np.int64), tree.children_right.astype(np.int64)
    feature = tree.feature.astype(np.int64)
    if features is not None:
        feature = np.where(left < 0, 0, np.asarray(features, np.int64)[np.maximum(feature, 0)])
    nan_left = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(len(left)))).astype(bool)
    built.add(feature, tree.threshold, nan_left, left, right, values, group)


# -- forests ----------------------------------------------------------------------------------------------------------


def forest(model: Any) -> TreeModel:
    """Trees alone, and averages of trees."""
    trees = [model] if hasattr(model, "tree_") else list(model.estimators_)
    outputs, classes = model.n_outputs_, getattr(model, "classes_", None)
    widest = max(np.atleast_1d(model.n_classes_).tolist()) if classes is not None else 1
    built = ForestBuilder(model.n_features_in_, outputs * widest, np.float64, np.float64)
    for tree in trees:
        _add(built, tree.tree_, tree.tree_.value.reshape(tree.tree_.node_count, -1))

    def finish(c: Composer, y: Value) -> Outputs:
        y = y if len(trees) == 1 else c.div(y, float(len(trees)))
        if classes is None:
            return {"prediction": column(c, y)}
        if outputs == 1:
            return classified(c, y, classes)
        found: Outputs = {}
        for k in range(outputs):
            part = c.slice(y, 1, k * widest, len(classes[k]))
            one = classified(c, part, classes[k])
            found |= {f"label_{k}": one["label"], f"probabilities_{k}": one["probabilities"]}
        return found

    return TreeModel(type(model).__name__, built.forest(), model.n_features_in_, np.float32, finish)


def isolation_forest(model: Any) -> TreeModel:
    """`label`, 1 or -1 for an outlier, `decision` and `score_samples`."""
    built = ForestBuilder(model.n_features_in_, 1, np.float64, np.float64)
    for tree, features in zip(model.estimators_, model.estimators_features_):
        t = tree.tree_
        # A leaf's path: to it, and as it would go on among its samples.
        path = t.compute_node_depths() + average_path(t.n_node_samples) - 1.0
        _add(built, t, path, features)
    most = len(model.estimators_) * float(average_path(np.array([model.max_samples_]))[0])
    offset = float(model.offset_)

    def finish(c: Composer, y: Value) -> Outputs:
        share = c.div(y, most) if most else c.add(c.mul(y, 0.0), 1.0)
        score = c(ops.Negative(), c(ops.Power(), c.builder.constant(np.float64(2.0)), c(ops.Negative(), share)))
        decision = c.sub(score, offset)
        inlier = above(c, decision, 0.0, equal=True)
        label = c.sub(c.mul(inlier, 2), 1)
        return {"label": label, "decision": column(c, decision), "score_samples": column(c, score)}

    return TreeModel(type(model).__name__, built.forest(), model.n_features_in_, np.float32, finish)


def average_path(samples: Array) -> Array:
    """The average length of a search that fails, in a search tree of so many samples."""
    n = np.asarray(samples, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n
    return np.where(n <= 1, 0.0, np.where(n == 2, 1.0, longer))


# -- boosting ---------------------------------------------------------------------------------------------------------


def gradient_boosting(model: Any) -> TreeModel:
    columns = model.estimators_.shape[1]
    built = ForestBuilder(model.n_features_in_, columns, np.float64, np.float64)
    for stage in model.estimators_:
        for k, tree in enumerate(stage):
            _add(built, tree.tree_, model.learning_rate * tree.tree_.value[:, 0, 0], None, k)
    first = _first_scores(model, columns)
    classes, loss = getattr(model, "classes_", None), type(model._loss).__name__
    if classes is not None and loss not in ("HalfBinomialLoss", "HalfMultinomialLoss", "ExponentialLoss"):
        raise UnsupportedError(f"{type(model).__name__} with the loss {loss}")

    def finish(c: Composer, y: Value) -> Outputs:
        y = c.add(y, constant_row(c, first, np.float64))
        if classes is None:
            return {"prediction": column(c, y)}
        if columns > 1:
            return classified(c, c(ops.Softmax(-1), y), classes)
        place = above(c, y, 0.0, equal=True)
        y = c(ops.Sigmoid(), c.mul(y, 2.0) if loss == "ExponentialLoss" else y)
        return {"label": labels(c, place, classes), "probabilities": two(c, y)}

    return TreeModel(type(model).__name__, built.forest(), model.n_features_in_, np.float32, finish)


def _first_scores(model: Any, columns: int) -> Array:
    """What trees are added to."""
    name = type(model.init_).__name__
    if name not in ("str", "DummyClassifier", "DummyRegressor"):
        raise UnsupportedError(
            f"{type(model).__name__} that begins with a {name}", hint="train with init=None or init='zero'"
        )
    found = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))
    return np.asarray(found, np.float64).reshape(-1)[:columns]


def hist_gradient_boosting(model: Any) -> TreeModel:
    columns, features = model.n_trees_per_iteration_, model.n_features_in_
    built = ForestBuilder(features, columns, np.float64, np.float64)
    known = _Categories(model)
    for iteration in model._predictors:
        for k, predictor in enumerate(iteration):
            _add_predictor(built, predictor, known, k)
    first = np.asarray(model._baseline_prediction, np.float64).reshape(-1)
    classes, link = getattr(model, "classes_", None), type(model._loss.link).__name__
    if link not in ("IdentityLink", "LogLink", "LogitLink", "HalfLogitLink", "MultinomialLogit"):
        raise UnsupportedError(f"{type(model).__name__} with the link {link}")

    def finish(c: Composer, y: Value) -> Outputs:
        y = c.add(y, constant_row(c, first, np.float64))
        if link == "LogLink":
            y = c(ops.Exp(), y)
        elif link != "IdentityLink":
            y = c(ops.Softmax(-1), y) if columns > 1 else c(ops.Sigmoid(), c.mul(y, 2.0) if "Half" in link else y)
        if classes is None:
            return {"prediction": column(c, y)}
        return classified(c, y if columns > 1 else two(c, y), classes)

    return TreeModel(type(model).__name__, built.forest(), features, np.float64, finish, known.prepare)


class _Categories:
    """Features that are categories: of which columns, and what values the codes 0, 1, … in nodes stand for."""

    def __init__(self, model: Any) -> None:
        flags = model.is_categorical_
        self.columns = np.flatnonzero(flags) if flags is not None else np.zeros(0, np.int64)
        count = model.n_features_in_
        self.order = np.concatenate([self.columns, np.setdiff1d(np.arange(count), self.columns)])
        self.values: list[Array] = []
        if not len(self.columns):
            return
        encoder = model._preprocessor.named_transformers_["encoder"]
        for at, found in zip(self.columns, encoder.categories_):
            if found.dtype.kind not in "iufb":
                raise UnsupportedError(
                    f"{type(model).__name__}: feature {at} has categories that are no numbers",
                    hint="encode them first, e.g. by OrdinalEncoder",
                )
            numbers = found[~np.isnan(found)] if found.dtype.kind == "f" else found
            if ((numbers < 0) | (numbers != np.rint(numbers)) | (numbers > 1 << 24)).any():
                raise UnsupportedError(
                    f"{type(model).__name__}: feature {at} has categories that are no integers from 0 to {1 << 24}",
                    hint="encode them first, e.g. by OrdinalEncoder",
                )
            self.values.append(numbers.astype(np.int64))
        self.count = count

    def prepare(self, c: Composer, x: Value) -> Value:
        """What is no integer is no known category."""
        if not len(self.columns):
            return x
        mask = np.zeros((1, self.count), bool)
        mask[0, self.columns] = True
        other = c(ops.LogicalAnd(), c(ops.NotEqual(), x, c(ops.Floor(), x)), c.builder.constant(mask))
        return c(ops.Where(), other, float("nan"), x)


def _add_predictor(built: ForestBuilder, predictor: Any, known: _Categories, group: int) -> None:
    nodes = predictor.nodes
    leaf, categorical = nodes["is_leaf"].astype(bool), nodes["is_categorical"].astype(bool)
    left, right = nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)
    tested = nodes["feature_idx"].astype(np.int64)
    nan_left = nodes["missing_go_to_left"].astype(bool)
    sets: dict[int, Array] = {}
    for node in np.flatnonzero(categorical & ~leaf).tolist():
        values = known.values[tested[node]]
        words = predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]
        bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
        to_left = bits[np.arange(len(values))] != 0
        # Unknown categories go where NaN goes. What is in the set goes to the right.
        if nan_left[node]:
            sets[node] = values[~to_left]
        else:
            sets[node] = values[to_left]
            left[node], right[node], nan_left[node] = right[node], left[node], True
    feature = np.where(leaf, 0, known.order[np.where(leaf, 0, tested)])
    none = np.where(leaf, -1, left), np.where(leaf, -1, right)
    built.add(feature, nodes["num_threshold"], nan_left, *none, nodes["value"], group, sets)


READERS: dict[str, Callable[[Any], TreeModel]] = {
    **dict.fromkeys(
        (
            "DecisionTreeRegressor",
            "DecisionTreeClassifier",
            "RandomForestRegressor",
            "RandomForestClassifier",
            "ExtraTreesRegressor",
            "ExtraTreesClassifier",
        ),
        forest,
    ),
    "IsolationForest": isolation_forest,
    **dict.fromkeys(("GradientBoostingRegressor", "GradientBoostingClassifier"), gradient_boosting),
    **dict.fromkeys(("HistGradientBoostingRegressor", "HistGradientBoostingClassifier"), hist_gradient_boosting),
}
"""By the name of the class; its subclasses in scikit-learn are read as well."""

__all__ = ["READERS", "load"]
