"""Ensembles of small decision trees without walks: every node of a tree is asked, and strikes leaves out.

The method is that of QuickScorer (Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive
ensembles of regression trees", SIGIR 2015), with rows side by side in vectors as RapidScorer (Ye et al., KDD 2018) has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
from weft_ops.trees import ROWS, TreeEnsemble, combined, compared, loop, no_weight
from weft_ops.words import Combine, Missing

VECTORS = 4
"""Vectors of rows whose leaves stay in registers while a tree's nodes are asked."""
ALONE = 2
"""Vectors beyond whole groups, up to which each is taken through the nodes alone."""


@dataclass(frozen=True)
class MaskedTrees(Operator):
    """y [n, k] of rows x [n, f]: over all trees the sum (least, greatest) of the weights of the leaf that a row comes
    to, as `TreeEnsemble`.

    A tree's leaves are numbered from left to right; with b bits in a word, leaf i is bit i mod b (0 is the lowest) of
    word i // b of the tree's `words`. Every node has a mask of the leaves that are left where a row goes to its right;
    the row comes to the lowest of the leaves that no node has struck out. Inputs, constants as a rule:

    feature, split [m]: of the nodes that strike leaves of a word, words one after another, as are trees; a node that
    strikes leaves of several words is there for each. `split` has the dtype in which numbers are compared.
    mask [m]: uint32 or uint64, of the word's leaves; bits beyond a tree's last leaf are set.
    first [t · words + 1]: each word's first node, and the number of all nodes.
    leaf [t]: the row of `weights` of each tree's first leaf. weights [l, k]: of the leaves.

    NaN goes to the right, to the left, or as the feature's number says (`missing`, of `TreeEnsemble`; not "node").
    `lanes`: rows in a vector.

    Of few rows most lanes would be idle: with up to `few` rows each walks down the trees. If `few` is not 0, the inputs
    of a `TreeEnsemble` of the depth `depth` follow, of the same trees, without x.
    """

    lanes: int
    words: int = 1
    combine: Combine = "sum"
    missing: Missing = "right"
    few: int = 0
    depth: int = 0
    kind = "opaque"
    no_gradient = "a graph pass makes it of TreeEnsemble, which has one, for targets alone"

    @property
    def walked(self) -> TreeEnsemble:
        """The operator that few rows are given to."""
        return TreeEnsemble(self.depth, self.combine, self.missing)

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for ranks, dtypes or numbers of nodes that do not fit."""
        x, feature, split, mask, first, leaf, weights = operands(types[:7], 7)
        walk = types[7:]
        if bool(walk) != bool(self.few):
            raise GraphError(f"expected the tables of walks where few is not 0, got {len(walk)} and few = {self.few}")
        if walk and self.walked.infer(x, *walk).dtype != weights.dtype:
            raise GraphError("weights: expected one dtype for masks and for walks")
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
        if isinstance(trees, int) and isinstance(firsts, int) and firsts != trees * self.words + 1:
            raise GraphError(
                f"first: expected {trees * self.words + 1} numbers, one more than the words of all trees, got {firsts}"
            )
        if self.missing == "node" or self.lanes < 1 or self.words < 1:
            raise GraphError(
                "missing, lanes and words: expected 'right', 'left' or 'feature', and at least 1, got"
                f" '{self.missing}', {self.lanes} and {self.words}"
            )
        return TensorType(weights.dtype, (x.shape[0], weights.shape[1]))

    def reference(self, *arrays: Array | None) -> Array:
        x, feature, split, mask, first, leaf, weights = (np.asarray(a) for a in arrays[:7])
        if len(x) <= self.few:
            return self.walked.reference(x, *arrays[7:])
        with np.errstate(invalid="ignore"):
            numbers = x.astype(split.dtype)
        tested = feature.astype(np.int64)
        high = np.where(np.isnan(numbers), np.inf, numbers)
        low = np.where(np.isnan(numbers), -np.inf, numbers)
        sides = {"right": [high], "left": [low], "feature": [high, low]}[self.missing]
        right = np.concatenate(sides, 1)[:, tested] > split
        full = mask.dtype.type(np.iinfo(mask.dtype).max)
        found = np.empty((len(x), len(leaf), weights.shape[1]), np.float64)
        for t in range(len(leaf)):
            place = np.zeros(len(x), np.int64)
            for w in reversed(range(self.words)):
                begin, end = first[t * self.words + w], first[t * self.words + w + 1]
                kept = np.where(right[:, begin:end], mask[begin:end], full)
                left = np.bitwise_and.reduce(kept, axis=1, dtype=mask.dtype, initial=full)
                lowest = np.bitwise_count(~left & (left - mask.dtype.type(1))).astype(np.int64)
                place = np.where(left != 0, w * 8 * mask.itemsize + lowest, place)
            found[:, t] = weights[leaf[t] + place]
        reduce = {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.combine].reduce
        return np.asarray(reduce(found, axis=1)).astype(weights.dtype)

    @algorithm("program")
    def ask(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        """Rows in blocks, in parallel; in a block tree by tree, some vectors of rows through all nodes of a tree.

        A block's rows stay in the first cache; the tables, which are read in their order, need not.
        """
        masked, n = inputs[:7], inputs[0].shape[0]
        if not self.few:
            return self.asks(masked, outputs, n)
        none, are_few = const(0, dt.int64), n <= self.few
        return seq(
            self.walked.walks([inputs[0], *inputs[7:]], outputs, select(are_few, n, none)),
            self.asks(masked, outputs, select(are_few, none, n)),
        )

    def asks(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], n: Expr) -> Stmt:
        """Of the first `n` rows. No name is one of a walk's, which may stand beside."""
        x, feature, split, mask, first, leaf, weights = inputs
        (y,) = outputs
        lanes, wide, bits = self.lanes, split.dtype, mask.dtype
        columns, targets = x.shape[1], y.shape[1]
        group = VECTORS * lanes
        rows = -(-ROWS // group) * group
        numbers = buffer("features", (columns * (2 if self.missing == "feature" else 1), rows), wide, "local")
        total = buffer("sums", (rows, targets), weights.dtype, "local")
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
            left, found = (buffer(f"{kind}{name}", (count * lanes,), bits, "register") for kind in ("left", "found"))
            tested, place = Var(f"tested{name}", dt.int64), Var(f"place{name}", dt.int64)
            limit, kept = Var(f"limit{name}", wide), Var(f"kept{name}", bits)

            def ask(j: Expr) -> Stmt:
                def strike(i: Expr) -> Stmt:
                    return Store(left, (i,), left[i] & select(numbers[tested, at + i] > limit, kept, everything))

                # What a Select reads would be read under its condition, lane by lane.
                struck = Let(limit, split[j], Let(kept, mask[j], vectors(f"1{name}", count, strike)))
                return Let(tested, cast_to(feature[j], dt.int64), struck)

            def lowest(i: Expr, beyond: Expr) -> Stmt:
                """A word has the leaf unless all of its bits are struck; those before it are looked at later."""
                number = beyond + call("popcount", (left[i] ^ everything) & (left[i] - 1))
                return Store(found, (i,), number if self.words == 1 else select(e.eq(left[i], 0), found[i], number))

            def word(k: Expr) -> Stmt:
                w = self.words - 1 - k
                at_word = first_of(t * self.words + w)
                beyond = Var(f"beyond{name}", bits)
                return seq(
                    vectors(f"0{name}", count, lambda i: Store(left, (i,), everything)),
                    loop(f"j{name}", first_of(t * self.words + w + 1) - at_word, lambda j: ask(at_word + j)),
                    Let(beyond, cast_to(w * 8 * bits.bytes, bits),
                        vectors(f"2{name}", count, lambda i: lowest(i, beyond))),
                )  # fmt: skip

            def first_of(w: Expr) -> Expr:
                return cast_to(first[w], dt.int64)

            def add(i: Expr) -> Stmt:
                def merged(k: Expr) -> Stmt:
                    row = at + i
                    return Store(total, (row, k), combined(self.combine, total[row, k], weights[place, k]))

                return Let(place, cast_to(leaf[t], dt.int64) + cast_to(found[i], dt.int64),
                           loop(f"k1{name}", targets, merged))  # fmt: skip

            zero = const(0, bits)
            several = [] if self.words == 1 else [vectors(f"3{name}", count, lambda i: Store(found, (i,), zero))]
            return Allocate(left, Allocate(found, seq(
                *several,
                loop(f"w{name}", self.words, word),
                loop(f"i{name}", count * lanes, add, "unrolled"),
            )))  # fmt: skip

        def tree(t: Expr, groups: Expr, alone: Expr) -> Stmt:
            return seq(
                loop("ga", groups, lambda g: asked(t, g * group, VECTORS, "a")),
                loop("gb", alone, lambda h: asked(t, groups * group + h * lanes, 1, "b")),
            )

        def block(b: Expr) -> Stmt:
            begin = b * rows
            here = e.minimum(n - begin, rows)
            beyond = e.ceildiv(here % group, lanes)
            alone = select(beyond <= ALONE, beyond, const(0, dt.int64))
            groups = e.ceildiv(here - alone * lanes, group)
            whole = groups * group + alone * lanes
            start = no_weight(self.combine, weights.dtype)
            return Allocate(numbers, Allocate(total, seq(
                loop("s0", whole, lambda r: loop("c", columns, lambda f: fill(begin, r, f))),
                loop("s1", whole, lambda r: loop("p0", targets, lambda k: Store(total, (r, k), start))),
                loop("u", leaf.shape[0], lambda t: tree(t, groups, alone)),
                loop("s2", here, lambda r: loop("p2", targets, lambda k: Store(y, (begin + r, k), total[r, k]))),
            )))  # fmt: skip

        return loop("m", e.ceildiv(n, rows), block, "parallel")

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
            yield Sample(cls(4, 1, "sum", missing), (odd, *tables), f"nan_{missing}")
        signed = np.array([3, 1, 2, 5, 0], np.uint16)
        yield Sample(cls(4, 1, "sum", "feature"), (odd, signed, *tables[1:]), "nan_feature")
        for combine in ("min", "max"):
            yield Sample(cls(4, 1, combine), (x, *tables), combine)
        wide = feature, split.astype(np.float64), mask.astype(np.uint64), *tables[3:]
        yield Sample(cls(2), (floats((70, 3), "float64"), *wide), "more_rows")
        # The root, below its left side a chain of 36 leaves in two words, below its right side two leaves.
        strikes = [range(36), *([k] for k in range(35)), [36]]
        numbers = floats((len(strikes),), lo=-1, hi=1)
        parts = [(k, sum(1 << i % 32 for i in s if i // 32 == w), w) for w in (0, 1) for k, s in enumerate(strikes)]
        asked, struck, word = np.array([part for part in parts if part[1]]).T
        split, first = numbers[asked], np.array([0, *np.cumsum(np.bincount(word))])
        words = (asked % 3).astype(np.uint16), split, ~struck.astype(np.uint32), first, np.array([0])
        yield Sample(cls(4, 2), (floats((40, 3), lo=-1, hi=1), *words, floats((38, 1))), "words")
        complete = feature[[0, 1, 1]], np.array([0.5, -0.5, 0], np.float32), floats((4, 1), lo=-1, hi=1)
        kept = np.array([0b1100, 0b1110, 0b1011], np.uint32) | np.uint32(0xFFFFFFF0)
        masked = *complete[:2], kept, np.array([0, 3]), np.array([0]), complete[2]
        for rows in (3, 4, 21):
            x = floats((rows, 3), lo=-1, hi=1)
            yield Sample(cls(4, few=3, depth=2), (x, *masked, *complete), f"few_or_{rows}")


__all__ = ["MaskedTrees"]
