"""Models of treelite, from the arrays of their trees."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Value
from weft_ops.composing import Composer
from weft_ops.forests import BadForest, number_before
from weft_sklearn.models import Array, ForestBuilder, Outputs, TreeModel, column, constant_row

NONE, EQ, LT, LE, GT, GE = range(6)
"""Comparisons of a node, as treelite numbers them."""
LEAF, NUMERIC, CATEGORICAL = range(3)
POSTPROCESSORS = (
    "identity", "identity_multiclass", "sigmoid", "exponential", "exponential_standard_ratio", "logarithm_one_plus_exp",
    "softmax", "multiclass_ova", "hinge", "signed_square",
)  # fmt: skip


def read(model: Any) -> TreeModel:
    """A treelite.Model: what `treelite.gtil.predict` gives, without its axis of targets if there is one.

    Raises:
        FrontendError: it is none.
        UnsupportedError: names all that is not supported.
    """
    if not hasattr(model, "get_header_accessor"):
        raise FrontendError(f"the {type(model).__name__} is no treelite.Model")
    head = model.get_header_accessor()
    post, targets = str(head.get_field("postprocessor")), int(head.get_field("num_target")[0])
    bad = [f"postprocessor {post}"] if post not in POSTPROCESSORS else []
    bad += [f"{targets} targets"] if targets != 1 else []
    if bad:
        raise UnsupportedError("the treelite.Model uses what is not supported", where="\n".join(bad))
    trees, features = model.num_tree, model.num_feature
    columns, dtype = int(np.max(head.get_field("num_class"))), np.dtype(model.input_type)
    built = ForestBuilder(features, columns, np.dtype(model.output_type), dtype)
    groups = head.get_field("class_id")
    for k in range(trees):
        try:
            _add(built, model.get_tree_accessor(k), int(groups[k]))
        except BadForest as error:
            raise FrontendError(
                "the treelite.Model has nodes that are no trees", where=f"tree {k}", why=str(error)
            ) from None
    average = bool(head.get_field("average_tree_output")[0])
    each = np.maximum(np.bincount(np.maximum(groups, 0), minlength=columns), 1) if (groups >= 0).all() else trees
    base, alpha = head.get_field("base_scores"), float(head.get_field("sigmoid_alpha")[0])
    ratio = float(head.get_field("ratio_c")[0])

    def finish(c: Composer, y: Value) -> Outputs:
        if average:
            y = c(ops.Divide(), y, constant_row(c, np.broadcast_to(each, columns), y.dtype.numpy))
        y = c.add(y, constant_row(c, base, y.dtype.numpy))
        return {"prediction": column(c, _processed(c, y, post, alpha, ratio))}

    return TreeModel("treelite", built.forest(), features, dtype, finish)


def _add(built: ForestBuilder, tree: Any, group: int) -> None:
    left, right = (tree.get_field(side).astype(np.int64) for side in ("cleft", "cright"))
    feature, split = tree.get_field("split_index").astype(np.int64), tree.get_field("threshold").astype(built.splits)
    nan_left, cmp = tree.get_field("default_left").astype(bool), tree.get_field("cmp").astype(np.int64)
    categorical = tree.get_field("node_type") == CATEGORICAL
    inner = left >= 0
    if (cmp[inner & ~categorical] == EQ).any():
        raise UnsupportedError("the treelite.Model tests for equality")
    split = np.where((cmp == LT) | (cmp == GE), number_before(split), split)
    swapped = (cmp == GT) | (cmp == GE)
    sets: dict[int, Array] = {}
    members, begin, end = (tree.get_field(f"category_list{part}") for part in ("", "_begin", "_end"))
    to_right = tree.get_field("category_list_right_child").astype(bool)
    for node in np.flatnonzero(categorical).tolist():
        sets[node] = members[int(begin[node]) : int(end[node])].astype(np.int64)
        swapped[node] = not to_right[node]
    left, right = np.where(swapped, right, left), np.where(swapped, left, right)
    nan_left = nan_left != swapped
    values = tree.get_field("leaf_value")
    vectors, first = tree.get_field("leaf_vector"), tree.get_field("leaf_vector_begin").astype(np.int64)
    if len(vectors):
        at = np.where(inner, 0, first)[:, None] + np.arange(built.columns)
        if at.max() >= len(vectors):
            raise BadForest(f"leaves have not {built.columns} numbers")
        values = vectors[at]
    elif group < 0:
        raise BadForest("leaves have one number for all classes")
    built.add(feature, split, nan_left, left, right, values, max(group, 0), sets)


def _processed(c: Composer, y: Value, name: str, alpha: float, ratio: float) -> Value:
    if name == "softmax":
        return c(ops.Softmax(-1), y)
    if name in ("sigmoid", "multiclass_ova"):
        return c(ops.Sigmoid(), c.mul(y, alpha))
    if name == "exponential":
        return c(ops.Exp(), y)
    if name == "exponential_standard_ratio":
        return c(ops.Power(), c.builder.constant(np.asarray(2.0, y.dtype.numpy)), c.div(y, -ratio))
    if name == "logarithm_one_plus_exp":
        return c(ops.Softplus(), y)
    if name == "hinge":
        return c.cast(c(ops.Greater(), y, 0.0), y.dtype)
    if name == "signed_square":
        return c.mul(c(ops.Sign(), y), c.mul(y, y))
    return y


__all__ = ["POSTPROCESSORS", "read"]
