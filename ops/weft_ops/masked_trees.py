"""Ensembles of small decision trees without walks: every node of a tree is asked, and strikes leaves out.

The method is that of QuickScorer (Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive
ensembles of regression trees", SIGIR 2015), with rows side by side in vectors as RapidScorer (Ye et al., KDD 2018) has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.loop.nodes import Allocate, Buffer, Let, Stmt, Store, buffer, seq
from weft_ops.examples import floats
from weft_ops.shapes import expect_kind, expect_rank, operands, show
from weft_ops.trees import ROWS, combined, compared, loop, no_weight, rows_of_task
from weft_ops.words import Combine, Missing

VECTORS = 4
"""Vectors of rows whose leaves stay in registers while a tree's nodes are asked."""


@dataclass(frozen=True)
class MaskedTrees(Operator):
    """y [n, k] of rows x [n, f]: over all trees the sum (least, greatest) of the weights of the leaf that a row comes
    to, as `TreeEnsemble`.

    A tree's leaves are numbered from left to right. Every node has a mask of the leaves that are left where a row goes
    to its right; the row comes to the lowest of the leaves that no node has struck out. Inputs, constants as a rule:

    feature, split [m]: of every node, trees one after another; `split` has the dtype in which numbers are compared.
    mask [m]: uint32 or uint64; bit i stands for leaf i. Trees have at most as many leaves as the mask has bits.
    first [t + 1]: each tree's first node, and the number of all nodes.
    leaf [t]: the row of `weights` of each tree's first leaf. weights [l, k]: of the leaves.

    NaN goes to the right, to the left, or as the feature's number says (`missing`, of `TreeEnsemble`; not "node").
    `lanes`: rows in a vector.
    """

    lanes: int
    combine: Combine = "sum"
    missing: Missing = "right"
    kind = "opaque"

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for ranks, dtypes or numbers of nodes that do not fit."""
        x, feature, split, mask, first, leaf, weights = operands(types, 7)
        expect_rank(x, 2, "x")
        expect_rank(weights, 2, "weights")
        expect_kind(x.dtype, ("int", "uint", "float"), "x")
        expect_kind(split.dtype, ("float",), "split")
        expect_kind(feature.dtype, ("int", "uint"), "feature")
        if mask.dtype not in (dt.uint32, dt.uint64):
            raise GraphError(f"mask: expected uint32 or uint64, got {mask.dtype}")
        if feature.rank != 1 or feature.shape != split.shape or mask.shape != split.shape:
            shapes = ", ".join(show(t.shape) for t in (feature, split, mask))
            raise GraphError(f"feature, split and mask: expected vectors of one length, got {shapes}")
        for name, table in (("first", first), ("leaf", leaf)):
            expect_rank(table, 1, name)
            expect_kind(table.dtype, ("int",), name)
        trees, firsts = leaf.shape[0], first.shape[0]
        if isinstance(trees, int) and isinstance(firsts, int) and firsts != trees + 1:
            raise GraphError(f"first: expected {trees + 1} numbers, one more than leaf, got {firsts}")
        if self.missing == "node" or self.lanes < 1:
            raise GraphError(
                f"missing and lanes: expected 'right', 'left' or 'feature' and at least 1, got '{self.missing}' and"
                f" {self.lanes}"
            )
        return TensorType(weights.dtype, (x.shape[0], weights.shape[1]))

    def reference(self, *arrays: Array | None) -> Array:
        x, feature, split, mask, first, leaf, weights = (np.asarray(a) for a in arrays)
        with np.errstate(invalid="ignore"):
            numbers = x.astype(split.dtype)
        place = feature.astype(np.int64)
        high = np.where(np.isnan(numbers), np.inf, numbers)
        low = np.where(np.isnan(numbers), -np.inf, numbers)
        sides = {"right": [high], "left": [low], "feature": [high, low]}[self.missing]
        right = np.concatenate(sides, 1)[:, place] > split
        full = mask.dtype.type(np.iinfo(mask.dtype).max)
        found = np.empty((len(x), len(leaf), weights.shape[1]), np.float64)
        for t, (begin, end) in enumerate(pairwise(first)):
            kept = np.where(right[:, begin:end], mask[begin:end], full)
            left = np.bitwise_and.reduce(kept, axis=1, dtype=mask.dtype, initial=full)
            lowest = np.bitwise_count(~left & (left - mask.dtype.type(1)))
            found[:, t] = weights[leaf[t] + lowest.astype(np.int64)]
        reduce = {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.combine].reduce
        return np.asarray(reduce(found, axis=1)).astype(weights.dtype)

    @algorithm("program")
    def ask(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        """Rows in blocks, in parallel; in a block tree by tree, some vectors of rows through all nodes of a tree."""
        x, feature, split, mask, first, leaf, weights = inputs
        (y,) = outputs
        lanes, wide, bits = self.lanes, split.dtype, mask.dtype
        n, columns, targets = x.shape[0], x.shape[1], y.shape[1]
        group = VECTORS * lanes
        rows = -(-rows_of_task(inputs, columns, targets, wide, weights.dtype) // group) * group
        halves = e.ceildiv(e.ceildiv(n, 2), group) * group
        share = e.minimum(e.maximum(halves, -(-ROWS // group) * group), rows)
        numbers = buffer("numbers", (columns * (2 if self.missing == "feature" else 1), rows), wide, "local")
        total = buffer("total", (rows, targets), weights.dtype, "local")
        everything = const((1 << 8 * bits.bytes) - 1, bits)

        def fill(begin: Expr, r: Expr, f: Expr) -> Stmt:
            high, low = compared(x, e.minimum(begin + r, n - 1), f, wide, self.missing)
            stores = [Store(numbers, (f, r), high)]
            if self.missing == "feature":
                stores.append(Store(numbers, (f + columns, r), low))
            return seq(*stores)

        def vectors(name: str, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
            def vector(v: Expr) -> Stmt:
                return loop(f"l{name}", lanes, lambda lane: body(v * lanes + lane), "vectorized")

            return loop(f"v{name}", count, vector, "unrolled")

        def asked(t: Expr, at: Expr, count: int, name: str) -> Stmt:
            """`count` vectors of rows from `at` on."""
            left = buffer(f"left{name}", (count * lanes,), bits, "register")
            tested, place = Var(f"tested{name}", dt.int64), Var(f"place{name}", dt.int64)
            limit, kept = Var(f"limit{name}", wide), Var(f"kept{name}", bits)

            def ask(j: Expr) -> Stmt:
                def strike(i: Expr) -> Stmt:
                    return Store(left, (i,), left[i] & select(numbers[tested, at + i] > limit, kept, everything))

                # What a Select reads would be read under its condition, lane by lane.
                struck = Let(limit, split[j], Let(kept, mask[j], vectors(f"1{name}", count, strike)))
                return Let(tested, cast_to(feature[j], dt.int64), struck)

            def lowest(i: Expr) -> Stmt:
                return Store(left, (i,), call("popcount", (left[i] ^ everything) & (left[i] - 1)))

            def add(i: Expr) -> Stmt:
                def merged(k: Expr) -> Stmt:
                    row = at + i
                    return Store(total, (row, k), combined(self.combine, total[row, k], weights[place, k]))

                return Let(place, cast_to(leaf[t], dt.int64) + cast_to(left[i], dt.int64),
                           loop(f"k1{name}", targets, merged))  # fmt: skip

            begin, end = (cast_to(first[t + k], dt.int64) for k in (0, 1))
            return Allocate(left, seq(
                vectors(f"0{name}", count, lambda i: Store(left, (i,), everything)),
                loop(f"j{name}", end - begin, lambda j: ask(begin + j)),
                vectors(f"2{name}", count, lowest),
                loop(f"i{name}", count * lanes, add, "unrolled"),
            ))  # fmt: skip

        def tree(t: Expr, here: Expr) -> Stmt:
            groups, left_over = here // group, e.ceildiv(here % group, lanes)
            return seq(
                loop("g", groups, lambda g: asked(t, g * group, VECTORS, "a")),
                loop("h", left_over, lambda h: asked(t, groups * group + h * lanes, 1, "b")),
            )

        def block(b: Expr) -> Stmt:
            begin = b * share
            here = e.minimum(n - begin, share)
            whole = e.ceildiv(here, lanes) * lanes
            start = no_weight(self.combine, weights.dtype)
            return Allocate(numbers, Allocate(total, seq(
                loop("r0", whole, lambda r: loop("f", columns, lambda f: fill(begin, r, f))),
                loop("r1", whole, lambda r: loop("k0", targets, lambda k: Store(total, (r, k), start))),
                loop("t", leaf.shape[0], lambda t: tree(t, here)),
                loop("r2", here, lambda r: loop("k2", targets, lambda k: Store(y, (begin + r, k), total[r, k]))),
            )))  # fmt: skip

        return loop("b", e.ceildiv(n, share), block, "parallel")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.round(floats((5, 3), lo=-2, hi=2) * 2) / 2
        odd = x.copy()
        odd[1, 0], odd[2, 2], odd[4, 1] = np.nan, np.inf, np.nan
        # Three leaves (node 0, on its right node 1), a leaf alone, and four leaves.
        feature, split = np.array([0, 1, 2, 2, 0], np.uint16), np.array([0, 0.5, -0.5, 1, -1], np.float32)
        first, leaf = np.array([0, 2, 2, 5], np.int64), np.array([0, 3, 4], np.int64)
        mask = np.array([0b110, 0b101, 0b1100, 0b1110, 0b1011]) | ~0b1111
        tables = feature, split, mask.astype(np.uint32), first, leaf, floats((8, 2), lo=-1, hi=1)
        for missing in ("right", "left"):
            yield Sample(cls(4, "sum", missing), (odd, *tables), f"nan_{missing}")
        signed = np.array([3, 1, 2, 5, 0], np.uint16)
        yield Sample(cls(4, "sum", "feature"), (odd, signed, *tables[1:]), "nan_feature")
        for combine in ("min", "max"):
            yield Sample(cls(4, combine), (x, *tables), combine)
        wide = feature, split.astype(np.float64), mask.astype(np.uint64), *tables[3:]
        yield Sample(cls(2), (floats((70, 3), "float64"), *wide), "more_rows")


__all__ = ["MaskedTrees"]
