"""Ensembles of decision trees: laid out when the model is read, one loop program then; those that test for equality
walk by gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.forest import compared
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops import forests
from weft_ops.forests import Forest

DOMAIN = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


# -- reading ----------------------------------------------------------------------------------------------------------


def numbers(c: Context, name: str, dtype: Any) -> Any:
    """A list of numbers, of floats or as a tensor."""
    tensor = c.tensor(f"{name}_as_tensor")
    found = c.reals(name) if tensor is None else tensor.reshape(-1)
    return None if found is None else np.array(found, dtype)


def compared_in(x: Value) -> dt.DType:
    return dt.float32 if x.dtype == dt.float32 else dt.float64


def first_forest(c: Context, x: Value, kind: str, targets: int) -> Forest:
    """The trees of the operators before ai.onnx.ml 5: nodes by tree and number; `kind` is class or target."""
    dtype = compared_in(x).numpy
    tree, number, feature = (
        np.array(c.integers(f"nodes_{n}") or (), np.int64) for n in ("treeids", "nodeids", "featureids")
    )
    values, modes = numbers(c, "nodes_values", dtype), c.strings("nodes_modes") or ()
    count = len(number)
    true, false = (np.array(c.integers(f"nodes_{n}nodeids") or (), np.int64) for n in ("true", "false"))
    missing = np.array(c.integers("nodes_missing_value_tracks_true") or (0,) * count, bool)
    if (
        values is None
        or not count
        or any(len(a) != count for a in (tree, feature, values, modes, true, false, missing))
    ):
        raise c.error("the lists of nodes are not of one length, or empty")
    keys = {pair: k for k, pair in enumerate(zip(tree.tolist(), number.tolist()))}
    leaves = np.array([m == "LEAF" for m in modes])
    unknown = sorted(set(modes) - {*MODES, "LEAF"})
    if unknown:
        raise c.unsupported(f"nodes_modes {unknown[0]}")

    def found(trees: Any, numbers: Any, what: str) -> Any:
        try:
            return np.array([keys[pair] for pair in zip(trees.tolist(), numbers.tolist())], np.int64)
        except KeyError as error:
            raise c.error(f"{what}: tree {error.args[0][0]} has no node {error.args[0][1]}") from None

    inner = ~leaves
    codes = np.array([MODES.index(m) if m != "LEAF" else 0 for m in modes])
    children = [np.full(count, -1, np.int64) for _ in range(2)]
    for side, ids, name in zip(children, (true, false), ("nodes_truenodeids", "nodes_falsenodeids")):
        side[inner] = found(tree[inner], ids[inner], name)
    made = compared(codes, values, missing, children[0], children[1])
    if made is None:
        raise c.unsupported("nodes that test for equality")
    split, nan_left, left, right = made
    weights = numbers(c, f"{kind}_weights", dtype)
    owner, of = (np.array(c.integers(f"{kind}_{n}") or (), np.int64) for n in ("treeids", "nodeids"))
    column = np.array(c.integers(f"{kind}_ids") or (), np.int64)
    if (
        weights is None
        or any(len(a) != len(weights) for a in (owner, of, column))
        or ((column < 0) | (column >= targets)).any()
    ):
        raise c.error(f"{kind}_weights and what they belong to do not fit {targets} {kind}(s)")
    c.affordable(int(leaves.sum()) * targets, "weights of every leaf")
    rows = np.zeros((int(leaves.sum()), targets), dtype)
    leaf = np.cumsum(leaves) - 1
    at = found(owner, of, f"{kind}_nodeids")
    # Weights of inner nodes are reached by nobody.
    np.add.at(rows, (leaf[at[leaves[at]]], column[leaves[at]]), weights[leaves[at]])
    is_child = np.zeros(count, bool)
    is_child[np.concatenate(children)[np.concatenate(children) >= 0]] = True
    roots = np.flatnonzero(~is_child)
    if len(np.unique(tree[roots])) != len(np.unique(tree)) or len(roots) != len(np.unique(tree)):
        raise c.error("the nodes are no trees: every tree has one node that is no other's child")
    return Forest(feature, split, nan_left, left, right, leaf, rows, roots)


def ensemble(c: Context, x: Value, forest: Forest, combine: Any) -> Value:
    """The trees' weights of every row of x, combined."""
    if not isinstance(x.shape[-1], int):
        raise c.unsupported("a number of features that is known only at run time")
    try:
        return forests.ensemble(c, x, forest, combine)
    except forests.BadForest as error:
        raise c.error(f"the nodes are no trees: {error}") from None


# -- operators --------------------------------------------------------------------------------------------------------


def matrix(c: Context) -> Value:
    """Operand 0 as rows; a vector is one row."""
    x = c.value(0)
    if x.dtype.kind not in ("float", "int", "uint"):
        raise c.unsupported(f"features of {x.dtype}")
    return c.reshape(x, (1, x.shape[0])) if len(x.shape) == 1 else x


def transformed(c: Context, y: Value, name: str) -> Value:
    """Scores after `post_transform`."""
    if name in ("", "NONE"):
        return y
    if name == "LOGISTIC":
        return c(ops.Sigmoid(), y)
    if name == "SOFTMAX":
        return c(ops.Softmax(-1), y)
    if name == "SOFTMAX_ZERO":
        # Scores of zero stay so, and take no part.
        none = c(ops.Equal(), y, 0.0)
        shares = c(ops.Softmax(-1), c(ops.Where(), none, float("-inf"), y))
        return c(ops.Where(), none, 0.0, shares)
    raise c.unsupported(f"post_transform {name}")


def based(c: Context, y: Value) -> Value:
    """With `base_values`, one per column or one for all."""
    base = numbers(c, "base_values", y.dtype.numpy)
    return y if base is None or not base.size else c.add(y, c.builder.constant(base))


@onnx_op("TreeEnsembleRegressor", domain=DOMAIN)
def regressor(c: Context) -> Value:
    x, targets = matrix(c), c.integer("n_targets", 1)
    how = c.string("aggregate_function", "SUM")
    combine = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}.get(how)
    if combine is None:
        raise c.unsupported(f"aggregate_function {how}")
    forest = first_forest(c, x, "target", targets)
    y = ensemble(c, x, forest, combine)
    y = c.div(y, float(len(forest.roots))) if how == "AVERAGE" else y
    return c.cast(transformed(c, based(c, y), c.string("post_transform", "NONE")), dt.float32)


def chosen(c: Context, place: Value, ints: str = "classlabels_int64s", strings: str = "classlabels_strings") -> Value:
    """The label at a place."""
    if c.has(strings) and c.strings(strings):
        labels = c.strings(strings) or ()
        return c.builder.add(ops.StringTake(), place, c.builder.add(ops.StringConstant(tuple(labels), (len(labels),))))
    return c.gather(c.builder.constant(np.array(c.integers(ints) or (0, 1), np.int64)), place, 0)


def classified(
    c: Context, scores: Value, one: str, positive: bool, above: float | None = None, ints: str = "classlabels_int64s"
) -> tuple[Value, Value]:
    """Labels and scores of rows of scores, one per class.

    `one`: of two classes only the first or the second has a score. A row is of the second if it is more than `above`:
    by default a half if `positive`, else 0.
    """
    name = c.string("post_transform", "NONE")
    if name == "PROBIT":
        raise c.unsupported(f"post_transform {name}")
    if not one:
        place = c(ops.Argmax(-1), scores)
        return chosen(c, place, ints), c.cast(transformed(c, scores, name), dt.float32)
    second = c.cast(c(ops.Greater(), scores, (0.5 if positive else 0.0) if above is None else above), dt.int64)
    place = c.reshape(second, (second.shape[0],))
    # As ONNX Runtime, where the specification is silent: a score of the first class stands for both, and only a
    # logistic function is taken of it.
    logistic = name == "LOGISTIC"
    if one == "second":
        other = c.mul(scores, 0.0)
    else:
        other = c.sub(1.0, scores) if positive and not logistic else c(ops.Negative(), scores)
        name = "LOGISTIC" if logistic else "NONE"
    return chosen(c, place, ints), c.cast(transformed(c, c.concat([other, scores], 1), name), dt.float32)


@onnx_op("TreeEnsembleClassifier", domain=DOMAIN)
def classifier(c: Context) -> Any:
    x = matrix(c)
    labels = len(c.strings("classlabels_strings") or c.integers("classlabels_int64s") or ())
    ids = c.integers("class_ids") or ()
    # Of two classes trees may weigh one only.
    one = ("first", "second")[ids[0]] if labels == 2 and set(ids) in ({0}, {1}) else ""
    forest = first_forest(c, x, "class", max(labels, max(ids, default=0) + 1))
    positive = bool((forest.weights >= 0).all())
    if one:
        column = ids[0]
        forest = Forest(**{**vars(forest), "weights": np.ascontiguousarray(forest.weights[:, column : column + 1])})
    y = ensemble(c, x, forest, "sum")
    base = numbers(c, "base_values", y.dtype.numpy)
    if base is not None and base.size:
        y = c.add(y, c.builder.constant(base[-1:] if one and base.size == 2 else base))
    return classified(c, y, one, positive)


@onnx_op("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(c: Context) -> Value:
    """By equality (and membership) all trees walk down in step: a level is one gather of every sample's node in every
    tree; leaves stay where they are."""
    x = c.value(0)
    forest = forest_of(c, x)
    if forest is not None:
        return _combined(c, x, forest)
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
            taken = c(
                ops.LogicalOr(), taken, c(ops.LogicalAnd(), c(ops.IsNan(), value), c.gather(table["missing"], at, 0))
            )
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
    """Whether a value is in its node's set. Sets stand in `membership_values` one after another, each ended by a
    NaN."""
    values, modes, leaves = c.tensor("membership_values"), c.tensor("nodes_modes"), c.tensor("leaf_weights")
    assert values is not None and modes is not None and leaves is not None
    ends = np.flatnonzero(np.isnan(values))
    sets = [part[~np.isnan(part)] for part in np.split(values, ends + 1)][: len(ends)]
    width = max(map(len, sets))
    table = np.full((len(modes) + len(leaves), width), np.nan, value.dtype.numpy)
    for k, s in zip(np.flatnonzero(modes == MEMBER), sets):
        table[k, : len(s)] = s
    own = c.gather(c.builder.constant(table), at, 0)
    same = c(ops.Equal(), own, c.reshape(value, (*value.shape, 1)))
    return c(ops.ReduceMax((2,), False), same)


def forest_of(c: Context, x: Value) -> Forest | None:
    """The trees of ai.onnx.ml 5; None if nodes test for equality."""
    weights, splits, modes = c.tensor("leaf_weights"), c.tensor("nodes_splits"), c.tensor("nodes_modes")
    if weights is None or splits is None or modes is None:
        raise c.error("expected leaf_weights, nodes_splits and nodes_modes, got not all of them")
    feature, inner, leaves = np.array(c.integers("nodes_featureids") or (), np.int64), len(splits), len(weights)
    targets, column = c.integer("n_targets", 1), np.array(c.integers("leaf_targetids") or (), np.int64)
    if len(column) != leaves or not leaves or ((column < 0) | (column >= targets)).any():
        raise c.error(f"leaf_targetids: expected {leaves} below {targets}, got {column.tolist()[:8]}")
    sides = []
    for name in ("true", "false"):
        ids, is_leaf = (
            np.array(c.integers(f"nodes_{name}nodeids") or (), np.int64),
            np.array(c.integers(f"nodes_{name}leafs") or (), bool),
        )
        if len(ids) != inner or len(is_leaf) != inner or ((ids < 0) | (ids >= np.where(is_leaf, leaves, inner))).any():
            raise c.error(f"nodes_{name}nodeids: expected {inner} nodes, got {ids.tolist()[:8]}")
        sides.append(np.where(is_leaf, ids + inner, ids))
    roots = np.array(c.integers("tree_roots") or (), np.int64)
    if len(feature) != inner or len(modes) != inner or ((roots < 0) | (roots >= max(inner, 1))).any() or not len(roots):
        raise c.error("tree_roots, nodes_featureids and nodes_modes do not fit the nodes")
    missing = np.array(c.integers("nodes_missing_value_tracks_true") or (0,) * inner, bool)
    if not inner:
        raise c.unsupported("trees without nodes")
    made = compared(modes.astype(np.int64), splits.astype(compared_in(x).numpy), missing, *sides)
    if made is None:
        return None
    split, nan_left, left, right = made
    # A leaf of both sides, or of two nodes, is two leaves.
    ends = [s >= inner for s in (left, right)]
    rows, count = [], inner
    for side, end in zip((left, right), ends):
        rows.append(side[end] - inner)
        side[end] = np.arange(count, count + int(end.sum()))
        count += int(end.sum())
    row = np.concatenate(rows)
    c.affordable(leaves * targets, "weights of every leaf")
    dense = np.zeros((leaves, targets), weights.dtype)
    dense[np.arange(leaves), column] = weights
    behind: Any = lambda a, fill: np.concatenate([a, np.full(count - inner, fill, a.dtype)])
    leaf = np.concatenate([np.zeros(inner, np.int64), row])
    return Forest(
        behind(feature, 0),
        behind(split, 0),
        behind(nan_left, False),
        behind(left, -1),
        behind(right, -1),
        leaf,
        dense,
        roots,
    )


def _combined(c: Context, x: Value, forest: Forest) -> Value:
    """AVERAGE, SUM, MIN and MAX over the leaves that weigh a target; a target that none weighs is 0."""
    how, transform, targets = (
        c.integer("aggregate_function", 1),
        c.integer("post_transform", 0),
        forest.weights.shape[1],
    )
    if transform not in (0, 1, 2, 3):
        raise c.unsupported(f"post_transform {transform}")
    if how in (2, 3) and targets > 1:
        # A leaf says nothing about the targets of others.
        none = np.arange(targets) != np.array(c.integers("leaf_targetids"))[:, None]
        forest = Forest(**{**vars(forest), "weights": np.where(none, np.inf if how == 2 else -np.inf, forest.weights)})
    y = ensemble(c, x, forest, ("sum", "sum", "min", "max")[how])
    if how == 0:
        y = c.div(y, float(len(forest.roots)))
    elif how in (2, 3) and targets > 1:
        y = c(ops.Where(), c(ops.IsInf(), y), 0.0, y)
    return transformed(c, y, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")[transform])
