"""Decision trees of ai.onnx.ml as the tables of `weft_ops.TreeEnsemble`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft_ops.words import Missing

Array: TypeAlias = "np.ndarray[Any, Any]"
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
"""Comparisons, as TreeEnsemble of ai.onnx.ml 5 numbers them."""
DEEPEST, MOST = 10, 4
"""Complete trees are at most so deep, and have at most so many times the nodes that the trees have."""


class BadForest(ValueError):
    """Trees that are none; says what is wrong."""


@dataclass(frozen=True)
class Forest:
    """Nodes in any order. A row goes to the right from node i if x[feature] > split; NaN to the left where `nan_left`
    says so.

    `left` and `right` are nodes; for a leaf both are -1. `leaf` is its row of `weights` [leaves, targets]; `roots`
    [trees] are nodes.
    """

    feature: Array
    split: Array
    nan_left: Array
    left: Array
    right: Array
    leaf: Array
    weights: Array
    roots: Array


def compared(
    mode: Array, split: Array, nan_true: Array, true: Array, false: Array
) -> tuple[Array, Array, Array, Array] | None:
    """Nodes of any order comparison as x > split: split, nan_left, left, right; None if some test for equality."""
    if not (mode <= GT).all():
        return None
    # x < s is x ≤ the number before s; x ≥ s and x > s are their opposites.
    below = (mode == LT) | (mode == GTE)
    swapped = (mode == GTE) | (mode == GT)
    split = np.where(below, np.nextafter(split, split.dtype.type(-np.inf)), split)
    return split, nan_true != swapped, np.where(swapped, false, true), np.where(swapped, true, false)


def levels_of(forest: Forest) -> list[tuple[Array, Array]]:
    """Node and tree of everything that is reached, level by level; children side by side, in the order of their
    parents.

    Raises:
        BadForest: a node is reached more than once, or never.
    """
    nodes, trees = forest.roots, np.arange(len(forest.roots))
    found, seen = [(nodes, trees)], np.zeros(len(forest.feature), bool)
    while True:
        if seen[nodes].any() or len(np.unique(nodes)) != len(nodes):
            raise BadForest("a node is the child of two nodes")
        seen[nodes] = True
        inner = forest.left[nodes] >= 0
        if not inner.any():
            if not seen.all():
                raise BadForest("a node is below no tree's first one")
            return found
        nodes = np.stack([forest.left[nodes[inner]], forest.right[nodes[inner]]], 1).reshape(-1)
        trees = np.repeat(trees[inner], 2)
        found.append((nodes, trees))


@dataclass(frozen=True)
class Tables:
    """The constants of `weft_ops.TreeEnsemble`, in its order, and its attributes."""

    depth: int
    missing: Missing
    arrays: tuple[Array | None, ...]


def tables(forest: Forest) -> Tables:
    """A forest laid out: complete trees where these are small, else each node's left child with the right one behind
    it.

    Raises:
        BadForest: a node is reached more than once, or never.
    """
    levels = levels_of(forest)
    depth, trees, nodes = len(levels) - 1, len(forest.roots), sum(len(n) for n, _ in levels)
    inner = forest.left >= 0
    reached = np.concatenate([n for n, _ in levels])
    reached = reached[inner[reached]]
    to_left = forest.nan_left[reached]
    missing: Missing = "node"
    if not to_left.any() and np.isfinite(forest.split[reached]).all():
        missing = "right"
    elif to_left.all():
        missing = "left"
    narrow = np.uint16 if forest.feature.max(initial=0) < 1 << 16 else np.int32
    complete = depth <= DEEPEST and trees << depth <= MOST * nodes
    built = _complete(forest, depth, inner) if complete else _linked(forest, levels, inner)
    feature, split, nan_left, weights, *links = built
    more = (*(links or (None,) * 4), nan_left if missing == "node" else None)
    return Tables(depth, missing, (feature.astype(narrow), split, weights, *more))


def _complete(forest: Forest, depth: int, inner: Array) -> tuple[Array, ...]:
    """A leaf further up is below itself on both sides, so that every way leads to it."""
    at, parts = forest.roots[:, None], []
    for _ in range(depth):
        here = inner[at]
        parts.append(
            (
                np.where(here, forest.feature[at], 0),
                np.where(here, forest.split[at], np.inf),
                np.where(here, forest.nan_left[at], True),
            )
        )
        at = np.stack([np.where(here, forest.left[at], at), np.where(here, forest.right[at], at)], -1).reshape(
            len(at), -1
        )
    empty = (np.zeros((len(at), 0), np.int64), np.zeros((len(at), 0)), np.zeros((len(at), 0), bool))
    feature, split, nan_left = (np.concatenate([e, *p], 1).reshape(-1) for e, *p in zip(empty, *parts))
    return feature, split.astype(forest.split.dtype), nan_left, forest.weights[forest.leaf[at.reshape(-1)]]


def _linked(forest: Forest, levels: list[tuple[Array, Array]], inner: Array) -> tuple[Array, ...]:
    """Each tree's nodes together, level by level."""
    nodes, trees = (np.concatenate(part) for part in zip(*levels))
    order = np.argsort(trees, kind="stable")
    place = np.empty(len(nodes), np.int64)
    place[order] = np.arange(len(nodes))
    # Children come in the order of their parents, two by two, behind the roots.
    first = np.arange(len(nodes))
    here = inner[nodes]
    first[here] = len(forest.roots) + 2 * np.arange(int(here.sum()))
    left = np.where(here, place[first], place)[order].astype(np.int32)
    nodes, here = nodes[order], here[order]
    feature, split = (
        np.where(here, forest.feature[nodes], 0),
        np.where(here, forest.split[nodes], np.inf).astype(forest.split.dtype),
    )
    deep = np.zeros(len(forest.roots), np.int32)
    for level, (_, reached) in enumerate(levels):
        deep[reached] = level
    leaf = np.where(here, 0, forest.leaf[nodes]).astype(np.int32)
    return (
        feature,
        split,
        np.where(here, forest.nan_left[nodes], True),
        forest.weights,
        left,
        leaf,
        place[: len(forest.roots)],
        deep,
    )
