"""Ensembles of decision trees."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft_coreml.classical import Part
from weft_coreml.registry import model
from weft_coreml.types import label_list
from weft_frontend.forest import EQ, compared
from weft_ops import forests
from weft_ops.forests import Forest

LEAF = 6
"""The behaviour of a node that is one."""
TRANSFORMS = ("NoTransform", "SoftMax", "Logistic", "SoftMaxWithZero")


def forest(c: Part, targets: int) -> Forest:
    """The trees."""
    nodes = list(c.parameters.treeEnsemble.nodes)
    places = {(n.treeId, n.nodeId): k for k, n in enumerate(nodes)}
    if not nodes or len(places) < len(nodes):
        raise c.error("it has no nodes" if not nodes else "two nodes of a tree have one number")

    def child(node: Any, name: str) -> int:
        key = (node.treeId, getattr(node, name))
        if key not in places:
            raise c.error(f"node {node.nodeId} of tree {node.treeId} has the child {key[1]}, which there is not")
        return places[key]

    mode = np.array([n.nodeBehavior for n in nodes])
    inner = mode != LEAF
    if (mode[inner] >= EQ).any():
        raise c.unsupported("nodes that test for equality")
    count, width = int((~inner).sum()), targets
    c.affordable(count * width, "weights of every leaf")
    weights, leaf = np.zeros((count, width)), np.cumsum(~inner) - 1
    sides = np.full((2, len(nodes)), -1, np.int64)
    for k, node in enumerate(nodes):
        if inner[k]:
            sides[:, k] = child(node, "trueChildNodeId"), child(node, "falseChildNodeId")
            continue
        for info in node.evaluationInfo:
            if info.evaluationIndex >= targets:
                raise c.error(f"a leaf has a value of dimension {info.evaluationIndex}, there are {targets}")
            weights[leaf[k], info.evaluationIndex] += info.evaluationValue
    most = max(n.branchFeatureIndex for n in nodes)
    if most >= 1 << 31:
        raise c.error(f"a node tests feature {most}")
    feature = np.array([n.branchFeatureIndex for n in nodes], np.int64)
    split = np.array([n.branchFeatureValue for n in nodes])
    missing = np.array([n.missingValueTracksTrueChild for n in nodes], bool)
    made = compared(np.where(inner, mode, 0), split, missing, sides[0], sides[1])
    assert made is not None
    split, nan_left, left, right = made
    is_child = np.zeros(len(nodes), bool)
    is_child[sides[sides >= 0]] = True
    roots = np.flatnonzero(~is_child)
    if len(roots) != len({n.treeId for n in nodes}):
        raise c.error("the nodes are no trees: every tree has one node that is no other's child")
    return Forest(feature, split, nan_left, left, right, leaf, weights, roots)


def totals(c: Part) -> Value:
    """The sums of the leaves and of the base values, [1, dimensions]."""
    p = c.parameters.treeEnsemble
    targets, base = int(p.numPredictionDimensions), np.array(list(p.basePredictionValue))
    if not 1 <= targets <= 1 << 20 or len(base) not in (0, targets):
        raise c.error(f"{len(base)} base values for {targets} dimensions")
    try:
        y = forests.ensemble(c, c.row(), forest(c, targets))
    except forests.BadForest as error:
        raise c.error(f"the nodes are no trees: {error}") from None
    return c.add(y, c.constant_of(base)) if len(base) else y


@model("treeEnsembleRegressor")
def tree_regressor(c: Part) -> dict[str, Any]:
    y, transform = totals(c), TRANSFORMS[c.parameters.postEvaluationTransform]
    if transform not in ("NoTransform", "Logistic"):
        raise c.unsupported(f"the transform {transform} of a regressor")
    return c.predicted(c(ops.Sigmoid(), y) if transform == "Logistic" else y)


@model("treeEnsembleClassifier")
def tree_classifier(c: Part) -> dict[str, Any]:
    """Of two classes one dimension may stand for the second."""
    labels, transform = label_list(c.parameters), TRANSFORMS[c.parameters.postEvaluationTransform]
    y = totals(c)
    dimensions, classes = y.shape[1], len(labels)
    if transform == "SoftMaxWithZero" and dimensions == classes - 1:
        shares = c(ops.Softmax(1), c.pad(y, (0, 1, 0, 0)))
    elif transform in ("NoTransform", "Logistic") and classes == 2 and dimensions == 1:
        second = c(ops.Sigmoid(), y) if transform == "Logistic" else y
        shares = c.concat([c.sub(1.0, second), second], 1)
    elif transform in ("NoTransform", "SoftMax") and dimensions == classes:
        shares = y if transform == "NoTransform" else c(ops.Softmax(1), y)
    else:
        raise c.unsupported(f"the transform {transform} of {dimensions} dimensions for {classes} classes")
    return c.classified(shares, labels, c(ops.Argmax(1, False), shares))


__all__ = ["forest", "totals"]
