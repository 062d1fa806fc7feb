"""Decision trees as masks of leaves, for targets that compute with vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
STEP, ASK, WORD, EXIT = 9, 2, 12, 6
"""Costs in instructions. STEP: one row's step down a level where several rows walk at once; ASK: to compare a vector of
rows with a node, and again to strike out leaves; WORD: to find the lowest bit of a word for a vector of rows; EXIT: to
add the weight of one row's leaf."""
ALONE = 4
"""As ASK, where one vector alone is compared with a node, against walks of few rows, whose loads wait for each
other."""
MOST = 1024
"""Leaves and levels of a tree."""


def mask_trees(graph: Graph, capabilities: Capabilities, choices: Choices | None = None) -> Graph:
    """Afterwards an ensemble of trees of at most `MOST` leaves is a MaskedTrees where that takes fewer instructions.

    A walk takes `STEP` instructions for each row and level; a mask is looked at with those of a comparison and a
    selection for each vector of rows and node. Where the number of rows is open, few rows still walk.
    """
    lanes = capabilities.channel_block or 1
    made = Choices() if choices is None else choices

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        assert isinstance(node.op, TreeEnsemble)
        x, *tables = inputs
        if x is None or not _may_be_masked(node.op, tables):
            return None
        trees = linked(node.op, *(None if t is None else t.constant for t in tables))
        found = None if trees is None else masks(trees, lanes)
        if trees is None or found is None:
            return None
        rows = node.output.shape[0]
        few = found.few(trees)
        walks = isinstance(rows, int) and rows <= few
        default = WALK if walks or found.instructions(lanes) >= trees.instructions() else MASK
        if made.choose(f"algorithm.%{node.output.name}", [WALK, MASK], default) == WALK:
            return None
        constants = [r.constant(np.ascontiguousarray(a)) for a in found.arrays()]
        op = MaskedTrees(lanes, found.words, node.op.combine, node.op.missing)
        if few < 2 or isinstance(rows, int):
            return r.add(op, x, *constants)
        return r.add(replace(op, few=few, depth=node.op.depth), x, *constants, *tables)

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

    @property
    def words(self) -> int:
        return (len(self.first) - 1) // max(len(self.leaf), 1)

    def arrays(self) -> tuple[Array, ...]:
        return self.feature, self.split, self.mask, self.first, self.leaf, self.weights

    def instructions(self, lanes: int) -> float:
        """Of one row."""
        vectors = self.mask.itemsize // 4
        asked = len(self.split) * (self.split.itemsize // 4 + vectors) * ASK
        return (asked + (len(self.first) - 1) * WORD * vectors) / lanes + len(self.leaf) * EXIT

    def few(self, trees: Linked) -> int:
        """The most rows that take less time to walk, one after another, than one vector to be asked."""
        return int(len(self.split) * ALONE // max(trees.instructions(), 1.0))


def linked(
    op: TreeEnsemble, feature: Array | None, split: Array | None, weights: Array | None, *more: Array | None
) -> Linked | None:
    """The trees of a TreeEnsemble, from its constants. None: there is none, one is more than `MOST` nodes
    deep, or two have a node in common (a node's leaves have one place in one mask)."""
    left, leaf, root, *_ = (*more, *(None,) * 3)
    assert feature is not None and weights is not None
    if feature.dtype == np.uint64:
        assert root is not None
        feature, split, left, leaf = unpacked(feature, root)
    assert split is not None
    if left is None or leaf is None or root is None:
        feature, split, left, leaf, root = _of_complete(op.depth, feature, split, len(weights))
    if not len(root):
        return None
    inner = left != np.arange(len(left))
    down = np.where(inner & ~(split < np.inf), left, np.arange(len(left)))
    for _ in range(MOST.bit_length()):  # what nothing exceeds leads to the left
        further = down[down]
        if np.array_equal(further, down):
            break
        down = further
    else:
        return None
    first, second = np.where(inner, down[left], -1), np.where(inner, down[np.minimum(left + 1, len(left) - 1)], -1)
    nodes, trees = down[root.astype(np.int64)], np.arange(len(root))
    levels, seen = [], np.zeros(len(left), bool)
    while len(nodes):
        levels.append((nodes, trees))
        if len(levels) > MOST or seen[nodes].any() or len(np.unique(nodes)) < len(nodes):
            return None
        seen[nodes] = True
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


def masks(trees: Linked, lanes: int) -> Masks | None:
    """In words of 32 or 64 bits, whichever takes fewer instructions. None: a tree has more than `MOST` leaves."""
    leaves = np.where(trees.left < 0, 1, 0)
    for nodes, _ in reversed(trees.levels):
        inside = nodes[trees.left[nodes] >= 0]
        leaves[inside] = leaves[trees.left[inside]] + leaves[trees.right[inside]]
    if leaves[trees.levels[0][0]].max(initial=1) > MOST:
        return None
    begin = np.zeros(len(leaves), np.int64)
    for nodes, _ in trees.levels:
        inside = nodes[trees.left[nodes] >= 0]
        begin[trees.left[inside]] = begin[inside]
        begin[trees.right[inside]] = begin[inside] + leaves[trees.left[inside]]
    made = (_in_words(trees, leaves, begin, word) for word in (np.uint32, np.uint64))
    return min(made, key=lambda m: m.instructions(lanes))


def _in_words(trees: Linked, leaves: Array, begin: Array, word: type[np.uint32 | np.uint64]) -> Masks:
    """`leaves`: of every node the leaves below it, and `begin` the number of the first of them in its tree."""
    bits = 8 * np.dtype(word).itemsize
    counts = leaves[trees.levels[0][0]]
    words = -(-int(counts.max(initial=1)) // bits)
    nodes, owner = (np.concatenate(part) for part in zip(*trees.levels))
    inner = trees.left[nodes] >= 0
    asked, below = nodes[inner], trees.left[nodes[inner]]
    low, high = begin[below], begin[below] + leaves[below]
    # A node is in every word that has one of the leaves which it strikes out.
    several = (high - 1) // bits - low // bits + 1
    entry = np.repeat(np.arange(len(asked)), several)
    of = low[entry] // bits + np.arange(len(entry)) - np.repeat(np.cumsum(several) - several, several)
    place = owner[inner][entry] * words + of
    order = np.argsort(place, kind="stable")
    entry, of, place = entry[order], of[order], place[order]
    lowest, end = (np.clip(a[entry] - of * bits, 0, bits).astype(np.uint64) for a in (low, high))
    struck = _below(end) & ~_below(lowest)
    ends = nodes[~inner]
    rank = np.lexsort((begin[ends], owner[~inner]))
    return Masks(
        trees.feature[asked[entry]].astype(np.uint16 if trees.feature.max(initial=0) < 1 << 16 else np.int32),
        trees.split[asked[entry]],
        (~struck).astype(word),
        np.searchsorted(place, np.arange(trees.trees * words + 1)).astype(np.int64),
        (np.cumsum(counts) - counts).astype(np.int64),
        trees.weights[trees.leaf[ends[rank]]],
    )


def _below(bit: Array) -> Array:
    """uint64 numbers with all bits below `bit`, 0 to 64, set."""
    one = np.uint64(1)
    return np.where(bit >= 64, ~np.uint64(0), (one << np.minimum(bit, 63).astype(np.uint64)) - one)


__all__ = ["Linked", "Masks", "linked", "mask_trees", "masks"]
