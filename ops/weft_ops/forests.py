"""Decision trees of any format, laid out as the tables of `weft_ops.TreeEnsemble`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from weft.graph.nodes import Value
from weft_ops.composing import Composer
from weft_ops.trees import LEAF_BITS, TreeEnsemble, packed_nodes
from weft_ops.words import Combine, Missing

Array: TypeAlias = "np.ndarray[Any, Any]"
DEEPEST, MOST = 10, 4
"""Complete trees are at most so deep, and have at most so many times the nodes that the trees have."""


class BadForest(ValueError):
    """Trees that are none; says what is wrong."""


@dataclass(frozen=True)
class Forest:
    """Nodes in any order. A row goes to the right from node i if x[feature] > split; NaN to the left where `nan_left`
    says so.

    `left` and `right` are nodes; for a leaf both are -1. `leaf` is its row of `weights` [leaves, targets]; `roots`
    [trees] are nodes. `set_at` [nodes] and `sets` are those of `TreeEnsemble`, None where no node tests for
    membership.
    """

    feature: Array
    split: Array
    nan_left: Array
    left: Array
    right: Array
    leaf: Array
    weights: Array
    roots: Array
    set_at: Array | None = None
    sets: Array | None = None


def number_before(split: Array) -> Array:
    """The float before each: x < split is x ≤ this."""
    return np.asarray(np.nextafter(split, split.dtype.type(-np.inf)))


def narrowed(split: Array) -> Array:
    """float64 as the float32 at or below each: what a float32 exceeds of both is the same."""
    with np.errstate(over="ignore"):
        near = split.astype(np.float32)
    return np.asarray(np.where(near > split, number_before(near), near))


def packed_sets(sets: Sequence[Array]) -> tuple[Array, Array]:
    """Sets of integers from 0, as `TreeEnsemble` takes them: the place of each, and the words. Equal sets are one."""
    places, parts, known, end = np.zeros(len(sets), np.int32), [], dict[bytes, int](), 0
    for k, members in enumerate(sets):
        numbers = np.asarray(members, np.int64)
        words = np.zeros(int(numbers.max(initial=0)) // 32 + 1, np.uint32)
        np.bitwise_or.at(words, numbers >> 5, np.uint32(1) << (numbers & 31).astype(np.uint32))
        key = words.tobytes()
        if key not in known:
            known[key] = end
            parts.append(np.concatenate([np.array([len(words)], np.uint32), words]))
            end += len(words) + 1
        places[k] = known[key]
    return places, np.concatenate(parts) if parts else np.zeros(0, np.uint32)


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


def tables(forest: Forest, columns: int) -> Tables:
    """A forest laid out: complete trees where these are small, else each node's left child with the right one behind
    it.

    Args:
        columns: features of a row.

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
    if forest.sets is None and not to_left.any() and np.isfinite(forest.split[reached]).all():
        missing = "right"
    elif to_left.all():
        missing = "left"
    elif forest.sets is None and np.isfinite(forest.split[reached][~to_left]).all():
        missing = "feature"
        forest = replace(forest, feature=forest.feature + np.where(inner & forest.nan_left, columns, 0))
    narrow = np.uint16 if forest.feature.max(initial=0) < 1 << 16 else np.int32
    complete = depth <= DEEPEST and trees << depth <= MOST * nodes
    built = _complete(forest, depth, inner) if complete else _linked(forest, levels, inner)
    feature, split, nan_left, set_at, weights, *links = built
    more = (*(links or (None,) * 4), nan_left if missing == "node" else None)
    if forest.sets is not None:
        more = (*more, set_at, forest.sets)
    elif links and missing != "node" and split.dtype == np.float32 and _packable(feature, links[2], len(weights)):
        own = np.repeat(links[2], np.diff([*links[2], len(split)]))
        words = packed_nodes(feature, split, links[0], links[1], own)
        return Tables(depth, missing, (words, None, weights, None, None, *links[2:]))
    return Tables(depth, missing, (feature.astype(narrow), split, weights, *more))


def _packable(feature: Array, roots: Array, leaves: int) -> bool:
    """Whether features, and numbers of nodes in their tree, have 16 bits, and rows of weights 22."""
    sizes = np.diff([*roots, len(feature)])
    small = feature.max(initial=0) < 1 << 16 and sizes.max() <= 1 << 16
    return bool(small and sizes.min() > 0 and leaves <= LEAF_BITS)


def _complete(forest: Forest, depth: int, inner: Array) -> tuple[Array, ...]:
    """A leaf further up is below itself on both sides, so that every way leads to it."""
    at, parts, sets = forest.roots[:, None], [], _sets(forest)
    for _ in range(depth):
        here = inner[at]
        parts.append(
            (
                np.where(here, forest.feature[at], 0),
                np.where(here, forest.split[at], np.inf),
                np.where(here, forest.nan_left[at], True),
                np.where(here, sets[at], -1),
            )
        )
        at = np.stack([np.where(here, forest.left[at], at), np.where(here, forest.right[at], at)], -1).reshape(
            len(at), -1
        )
    empty = tuple(np.zeros((len(at), 0), dtype) for dtype in (np.int64, np.float64, bool, np.int32))
    feature, split, nan_left, set_at = (np.concatenate([e, *p], 1).reshape(-1) for e, *p in zip(empty, *parts))
    return feature, split.astype(forest.split.dtype), nan_left, set_at, forest.weights[forest.leaf[at.reshape(-1)]]


def _sets(forest: Forest) -> Array:
    return np.full(len(forest.feature), -1, np.int32) if forest.set_at is None else forest.set_at


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
        np.where(here, _sets(forest)[nodes], -1),
        forest.weights,
        left,
        leaf,
        place[: len(forest.roots)],
        deep,
    )


def ensemble(c: Composer, x: Value, forest: Forest, combine: Combine = "sum") -> Value:
    """The trees' weights of every row of x [n, f], combined.

    Raises:
        BadForest: a node is reached more than once, or never, or tests a feature that x does not have.
    """
    columns, tested = x.shape[-1], forest.feature[forest.left >= 0]
    wrong = tested[(tested < 0) | (tested >= columns)] if isinstance(columns, int) else tested
    if wrong.size or not isinstance(columns, int):
        raise BadForest(f"a node tests feature {wrong[0] if wrong.size else '?'} of {columns}")
    made = tables(forest, columns)
    constants = [None if a is None else c.builder.constant(np.ascontiguousarray(a)) for a in made.arrays]
    return c(TreeEnsemble(made.depth, combine, made.missing), x, *constants)


__all__ = ["BadForest", "Forest", "Tables", "ensemble", "narrowed", "number_before", "packed_sets", "tables"]
