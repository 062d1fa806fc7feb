"""Ensembles of trees as graphs: what every reader makes of its format, and how a graph is made of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Value
from weft_ops import forests
from weft_ops.composing import Composer
from weft_ops.forests import BadForest, Forest

Array: TypeAlias = "np.ndarray[Any, Any]"
Outputs: TypeAlias = dict[str, Value]
MOST_WEIGHTS = 1 << 28
"""Weights of all leaves for all outputs."""
MOST_FEATURES = 1 << 24


def unchanged(c: Composer, x: Value) -> Value:
    return x


@dataclass(frozen=True)
class TreeModel:
    """An ensemble of trees, as read.

    Args:
        name: of the graph.
        forest: its splits are in the dtype in which the library has them.
        features: how many a row has.
        computes: the dtype to which the library converts features.
        finish: sums [n, k] → the outputs by name.
        prepare: features → the features that nodes test.
    """

    name: str
    forest: Forest
    features: int
    computes: Any
    finish: Callable[[Composer, Value], Outputs]
    prepare: Callable[[Composer, Value], Value] = unchanged


def build(model: TreeModel, dtype: str = "auto") -> Graph:
    """The graph of a model: input `x` [n, features].

    Raises:
        FrontendError: the nodes are no trees.
    """
    builder = GraphBuilder(model.name)
    c = Composer(builder)
    computes = dt.dtype(np.dtype(model.computes))
    given = computes if dtype == "auto" else dt.dtype(dtype)
    x = builder.input("x", TensorType(given, (Var("n", dt.int64), model.features)))
    if computes == dt.float32:
        x = c.cast(x, dt.float32)
    x = model.prepare(c, x)
    forest = model.forest
    if x.dtype == dt.float32 and forest.split.dtype == np.float64:
        forest = replace(forest, split=forests.narrowed(forest.split))
    try:
        outputs = model.finish(c, forests.ensemble(c, x, forest))
    except BadForest as error:
        raise FrontendError(
            f"the nodes of {model.name} are no trees", why=str(error), hint="is the file whole?"
        ) from None
    for name, value in outputs.items():
        builder.output(value, name)
    return builder.build()


# -- trees ------------------------------------------------------------------------------------------------------------


@dataclass
class ForestBuilder:
    """Trees, collected one by one.

    Args:
        features: how many a row has.
        columns: sums of a row.
        weights: the dtype of leaves.
        splits: the dtype of splits.
    """

    features: int
    columns: int
    weights: Any
    splits: Any
    parts: list[tuple[Array, ...]] = field(default_factory=list)
    leaves: list[tuple[int, Array]] = field(default_factory=list)
    sets: list[Array] = field(default_factory=list)
    nodes: int = 0

    def add(
        self,
        feature: Array,
        split: Array,
        nan_left: Array,
        left: Array,
        right: Array,
        values: Array,
        column: int = 0,
        in_set: Mapping[int, Array] | None = None,
    ) -> None:
        """One tree, whose first node is node 0. For a leaf left and right are -1; nodes that are not reached are left
        out.

        Args:
            values: [nodes] for one column, or [nodes, columns].
            in_set: of nodes that test for membership, the numbers that go to the right.

        Raises:
            BadForest: a node is reached twice, a child or feature does not exist, or a split is NaN.
        """
        reached = _reached(left, right)
        number = np.full(len(left), -1, np.int64)
        number[reached] = np.arange(len(reached))
        inner = left[reached] >= 0
        tested = feature[reached][inner]
        if ((tested < 0) | (tested >= self.features)).any():
            raise BadForest(f"a node tests feature {int(tested.max())} of {self.features}")
        in_set = in_set or {}
        set_at = np.full(len(left), -1, np.int64)
        for node, members in in_set.items():
            set_at[node] = len(self.sets)
            self.sets.append(members)
        plain = inner & (set_at[reached] < 0)
        splits = np.where(plain, split[reached], np.inf).astype(self.splits)
        if np.isnan(splits).any():
            raise BadForest("a node compares with NaN")
        children = [np.where(inner, number[side[reached]] + self.nodes, -1) for side in (left, right)]
        self.parts.append((np.where(inner, feature[reached], 0), splits, nan_left[reached].astype(bool), *children,
                           np.where(inner, set_at[reached], -1)))  # fmt: skip
        rows = np.asarray(values)[reached[~inner]]
        self.leaves.append((column, rows))
        self.nodes += len(reached)

    def forest(self) -> Forest:
        """Raises FrontendError if there is no tree, or too many weights."""
        if not self.parts:
            raise FrontendError("the model has no trees", hint="was it trained?")
        feature, split, nan_left, left, right, set_at = (np.concatenate(part) for part in zip(*self.parts))
        first = np.cumsum([0, *(len(part[0]) for part in self.parts)])[:-1]
        count = sum(len(rows) for _, rows in self.leaves)
        if count * self.columns > MOST_WEIGHTS:
            raise FrontendError(f"{count} leaves for {self.columns} outputs are more than {MOST_WEIGHTS} weights")
        weights, at = np.zeros((count, self.columns), self.weights), 0
        for column, rows in self.leaves:
            if rows.ndim == 2:
                weights[at : at + len(rows)] = rows
            else:
                weights[at : at + len(rows), column] = rows
            at += len(rows)
        leaf = np.cumsum(left < 0) - 1
        if not self.sets:
            return Forest(feature, split, nan_left, left, right, leaf, weights, first)
        places, words = forests.packed_sets(self.sets)
        set_at = np.where(set_at < 0, -1, places[set_at]).astype(np.int32)
        return Forest(feature, split, nan_left, left, right, leaf, weights, first, set_at, words)


def _reached(left: Array, right: Array) -> Array:
    """The nodes below node 0, itself included, level by level."""
    if not len(left):
        raise BadForest("a tree has no nodes")
    if ((left < 0) != (right < 0)).any():
        raise BadForest("a node has one child only")
    if max(left.max(), right.max()) >= len(left):
        raise BadForest(f"a child is node {max(left.max(), right.max())} of {len(left)}")
    seen, level, found = np.zeros(len(left), bool), np.zeros(1, np.int64), []
    while len(level):
        if seen[level].any() or len(np.unique(level)) != len(level):
            raise BadForest("a node is the child of two nodes")
        seen[level] = True
        found.append(level)
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], 1).reshape(-1)
    return np.concatenate(found)


# -- outputs ----------------------------------------------------------------------------------------------------------


def column(c: Composer, y: Value) -> Value:
    """[n, 1] as [n]; more columns stay."""
    return c.reshape(y, (y.shape[0],)) if y.shape[1] == 1 else y


def two(c: Composer, second: Value) -> Value:
    """Probabilities [n, 2] of those of the second class, [n, 1]."""
    return c.concat([c.sub(1.0, second), second], 1)


def labels(c: Composer, place: Value, classes: Any) -> Value:
    """The class at each place.

    Raises:
        UnsupportedError: classes are neither numbers nor texts.
    """
    known = np.asarray(classes)
    if known.dtype.kind in "UO" and all(isinstance(k, str) for k in known.tolist()):
        texts = tuple(map(str, known.tolist()))
        return c.builder.add(ops.StringTake(), place, c.builder.add(ops.StringConstant(texts, (len(texts),))))
    if known.dtype.kind not in "iufb":
        raise UnsupportedError(f"classes of {known.dtype}", hint="train with classes that are numbers or texts")
    return c.gather(c.builder.constant(np.ascontiguousarray(known)), place, 0)


def classified(c: Composer, probabilities: Value, classes: Any) -> Outputs:
    """`label` of the most probable class, the first of several, and `probabilities`."""
    return {"label": labels(c, c(ops.Argmax(-1), probabilities), classes), "probabilities": probabilities}


def above(c: Composer, y: Value, bound: float, *, equal: bool = False) -> Value:
    """1 where y [n, 1] exceeds a bound, else 0: int64 [n]."""
    return c.reshape(c.cast(c(ops.GreaterEqual() if equal else ops.Greater(), y, bound), dt.int64), (y.shape[0],))


def constant_row(c: Composer, row: Sequence[float] | Array, dtype: Any) -> Value:
    """A row that is added to every row."""
    return c.builder.constant(np.asarray(row, dtype).reshape(1, -1))


__all__ = [
    "ForestBuilder", "Outputs", "TreeModel", "above", "build", "classified", "column", "constant_row", "labels", "two",
]  # fmt: skip
