"""Small decision trees as masks of leaves, for targets that compute with vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.choices import Choices
from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities
from weft_ops.masked_trees import MaskedTrees
from weft_ops.trees import PIECE, TreeEnsemble, unpacked

Array: TypeAlias = "np.ndarray[Any, Any]"
WALK, MASK = "walk", "mask"
STEP, EXIT = 9, 6
"""Instructions that take one row down a level of a tree; those that add the weight of the leaf that masks have left."""
MOST = 64
"""Leaves of a tree."""


def mask_trees(graph: Graph, capabilities: Capabilities, choices: Choices | None = None) -> Graph:
    """Afterwards an ensemble of trees of at most 64 leaves is a MaskedTrees where that takes fewer instructions.

    A walk takes `STEP` instructions for each row and level; a mask is looked at with those of a comparison and a
    selection for each vector of rows and node.
    """
    lanes = capabilities.channel_block or 1
    made = Choices() if choices is None else choices

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        assert isinstance(node.op, TreeEnsemble)
        x, *tables = inputs
        if x is None or not _may_be_masked(node.op, tables):
            return None
        trees = linked(node.op, *(None if t is None else t.constant for t in tables))
        found = None if trees is None else masks(trees)
        if trees is None or found is None:
            return None
        default = MASK if found.instructions(lanes) < trees.instructions() else WALK
        if made.choose(f"algorithm.%{node.output.name}", [WALK, MASK], default) == WALK:
            return None
        constants = [r.constant(np.ascontiguousarray(a)) for a in found.arrays()]
        return r.add(MaskedTrees(lanes, node.op.combine, node.op.missing), x, *constants)

    return rewrite(graph, rule, rounds=1, on=(TreeEnsemble,))


def _may_be_masked(op: TreeEnsemble, tables: list[Value | None]) -> bool:
    sets = len(tables) > 8 and tables[8] is not None
    return op.missing != "node" and not sets and all(t is None or t.constant is not None for t in tables)


@dataclass(frozen=True)
class Linked:
    """Trees as nodes with two children each, in any order; leaves have -1 for both. No split is infinite, as what
    nothing exceeds is left out."""

    feature: Array
    split: Array
    left: Array
    right: Array
    leaf: Array
    weights: Array
    levels: list[tuple[Array, Array]]
    """Nodes of each level, from the roots on, and their trees."""

    @property
    def trees(self) -> int:
        return len(self.levels[0][0])

    def instructions(self) -> float:
        """Of the walks of one row."""
        deep = np.zeros(self.trees)
        for level, (_, trees) in enumerate(self.levels):
            deep[trees] = level
        return float((np.ceil(deep / PIECE) * PIECE * STEP).sum())


@dataclass(frozen=True)
class Masks:
    """The constants of `MaskedTrees`, in its order."""

    feature: Array
    split: Array
    mask: Array
    first: Array
    leaf: Array
    weights: Array

    def arrays(self) -> tuple[Array, ...]:
        return self.feature, self.split, self.mask, self.first, self.leaf, self.weights

    def instructions(self, lanes: int) -> float:
        """Of one row."""
        words = self.split.itemsize // 4 + 2 * (self.mask.itemsize // 4)
        return len(self.split) * words / lanes + len(self.leaf) * EXIT


def linked(
    op: TreeEnsemble, feature: Array | None, split: Array | None, weights: Array | None, *more: Array | None
) -> Linked | None:
    """The trees of a TreeEnsemble, from its constants. None: a tree is more than 64 nodes deep."""
    left, leaf, root, *_ = (*more, *(None,) * 3)
    assert feature is not None and weights is not None
    if feature.dtype == np.uint64:
        assert root is not None
        feature, split, left, leaf = unpacked(feature, root)
    assert split is not None
    if left is None or leaf is None or root is None:
        feature, split, left, leaf, root = _of_complete(op.depth, feature, split, len(weights))
    inner = left != np.arange(len(left))
    down = np.where(inner & ~(split < np.inf), left, np.arange(len(left)))
    while True:  # what nothing exceeds leads to the left
        further = down[down]
        if np.array_equal(further, down):
            break
        down = further
    first, second = np.where(inner, down[left], -1), np.where(inner, down[np.minimum(left + 1, len(left) - 1)], -1)
    nodes, trees = down[root.astype(np.int64)], np.arange(len(root))
    levels = []
    while len(nodes):
        levels.append((nodes, trees))
        if len(levels) > MOST:
            return None
        inside = inner[nodes]
        nodes = np.stack([first[nodes[inside]], second[nodes[inside]]], 1).reshape(-1)
        trees = np.repeat(trees[inside], 2)
    return Linked(feature, split, first, second, leaf.astype(np.int64), weights, levels)


def _of_complete(depth: int, feature: Array, split: Array, leaves: int) -> tuple[Array, ...]:
    """Nodes of complete trees, with the leaves among them."""
    each, own = (1 << depth) - 1, 1 << depth
    count = leaves // own
    begin = np.arange(count)[:, None] * (each + own)
    at = np.arange(each + own)
    left = begin + np.where(at < each, 2 * at + 1, at)
    leaf = np.arange(count)[:, None] * own + np.maximum(at - each, 0)
    filled = [
        np.concatenate([a.reshape(count, each), np.full((count, own), rest, a.dtype)], 1).reshape(-1)
        for a, rest in ((feature, 0), (split, np.inf))
    ]
    return (*filled, left.reshape(-1), leaf.reshape(-1), begin[:, 0])


def masks(trees: Linked) -> Masks | None:
    """None: a tree has more leaves than a mask has bits."""
    leaves = np.where(trees.left < 0, 1, 0)
    for nodes, _ in reversed(trees.levels):
        inside = nodes[trees.left[nodes] >= 0]
        leaves[inside] = leaves[trees.left[inside]] + leaves[trees.right[inside]]
    roots = trees.levels[0][0]
    most = leaves[roots].max(initial=1)
    if most > MOST:
        return None
    word = np.uint32 if most <= 32 else np.uint64
    begin = np.zeros(len(leaves), np.int64)
    for nodes, _ in trees.levels:
        inside = nodes[trees.left[nodes] >= 0]
        begin[trees.left[inside]] = begin[inside]
        begin[trees.right[inside]] = begin[inside] + leaves[trees.left[inside]]
    nodes, owner = (np.concatenate(part) for part in zip(*trees.levels))
    inner = trees.left[nodes] >= 0
    order = np.argsort(owner[inner], kind="stable")
    asked, of = nodes[inner][order], owner[inner][order]
    left = trees.left[asked]
    struck = ((np.uint64(1) << leaves[left].astype(np.uint64)) - np.uint64(1)) << begin[left].astype(np.uint64)
    first = np.searchsorted(of, np.arange(trees.trees + 1))
    ends = nodes[~inner]
    rank = np.lexsort((begin[ends], owner[~inner]))
    counts = leaves[roots]
    return Masks(
        trees.feature[asked].astype(np.uint16 if trees.feature.max(initial=0) < 1 << 16 else np.int32),
        trees.split[asked],
        (~struck).astype(word),
        first.astype(np.int64),
        (np.cumsum(counts) - counts).astype(np.int64),
        trees.weights[trees.leaf[ends[rank]]],
    )


__all__ = ["Linked", "Masks", "linked", "mask_trees", "masks"]
