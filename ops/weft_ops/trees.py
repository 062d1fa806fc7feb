"""Ensembles of decision trees, as loops without branches: several rows walk down one tree in step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Bitcast, Const, Expr, Var, cast_to, const, select
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.loop.nodes import Allocate, Buffer, For, Let, LoopKind, Stmt, Store, While, buffer, seq
from weft_ops.arithmetic import Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul
from weft_ops.examples import floats
from weft_ops.indexing import Eye
from weft_ops.shapes import expect_kind, expect_rank, operands, show
from weft_ops.words import Combine, Missing

ROWS, STEP = 64, 8
"""Rows that are taken through all trees by one task; rows whose walks go side by side, so that one's loads hide
another's."""
ZERO = const(0, dt.int64)
LARGE, MANY_ROWS, MANY_STEP, NEAR = 1 << 20, (1024, 512, 256), 16, 1 << 18
"""Where the tables have more than `LARGE` bytes, which every task reads whole: rows of a task, the most whose numbers
and sums are at most `NEAR` bytes (of fewer rows there are two tasks, down to the last of these numbers), and those
whose walks go side by side."""
PIECE = 4
"""Levels after which it is looked whether any row is still on its way, in trees whose leaves lie at many depths."""
BEYOND = 1 << 31
"""Numbers from here on are in no set."""
PACKED, LEAF_BITS = dt.uint64, (1 << 22) - 1
"""Of nodes that are one word each; of the split of a leaf, those that are its row of weights."""
ALONE = 2
"""Rows beyond whole groups, up to which each walks alone."""
UNROLLED = 16
"""Levels up to which they are written out."""


@dataclass(frozen=True)
class TreeEnsemble(Operator):
    """y [n, k] of rows x [n, f]: over all trees the sum (least, greatest) of the weights of the leaf that a row comes
    to.

    From a node a row goes to the right if x[feature] > split, and at most `depth` times. NaN goes to the right, to the
    left, or as each node says (`missing`): by `nan_left`, or "feature": a feature from f on is the one whose number is
    less by f, and NaN in it goes to the left, in others to the right; to the right of an infinite split it goes only
    where a node says so. Inputs, constants as a rule:

    feature, split [m]: of every node, trees one after another; `split` has the dtype in which numbers are compared.
    weights [l, k]: of the leaves.
    left, leaf, root, levels: absent, trees are complete: each has 2^depth - 1 nodes, the children of i at 2·i + 1, and
    its 2^depth leaves have rows of `weights` of their own, from left to right. Else `left` [m] is each node's left
    child, the right one behind it, and its own number for a leaf, whose split nothing exceeds; `leaf` [m] its row of
    weights; `root` and `levels` [t] each tree's first node and its depth. nan_left [m], bool: present if `missing` is
    "node".
    If `feature` is uint64, it has whole nodes of such trees, and split, left and leaf are absent: bits 0–15 are the
    feature, 16–31 the left child's number in its tree, counted from 0, and 32–63 the split, a float32: of a leaf a NaN,
    which nothing exceeds, whose lower 22 bits are its row of weights. There are neither nan_left nor sets then.
    set_at [m], sets [w] uint32: absent, or there are nodes that test for membership in a set. `set_at` is -1 for the
    others, else the place in `sets` of the node's set: the number of its words, at least 1, then the words. Bit i of
    word j stands for the number 32·j + i. From such a node a row goes to the right if x[feature] ≥ 0, rounded down, is
    in the set; NaN as from other nodes, where `missing` must not be "right".
    """

    depth: int
    combine: Combine = "sum"
    missing: Missing = "right"
    kind = "opaque"

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for ranks, dtypes or numbers of nodes that do not fit."""
        if len(types) > 2 and isinstance(types[1], TensorType) and types[1].dtype == PACKED:
            types = self._unpacked_types(types)
        x, feature, split, weights = operands(types[:4], 4)
        left, leaf, root, levels, nan_left, set_at, sets = (*types[4:], *(None,) * 7)[:7]
        expect_rank(x, 2, "x")
        expect_rank(weights, 2, "weights")
        expect_kind(x.dtype, ("int", "uint", "float"), "x")
        expect_kind(split.dtype, ("float",), "split")
        expect_kind(feature.dtype, ("int", "uint"), "feature")
        if feature.shape != split.shape or feature.rank != 1:
            raise GraphError(
                f"feature and split: expected vectors of one length, got {show(feature.shape)} and {show(split.shape)}"
            )
        if len({t is None for t in (left, leaf, root, levels)}) > 1:
            raise GraphError("left, leaf, root and levels: expected all or none")
        if (nan_left is not None) != (self.missing == "node"):
            raise GraphError(f"nan_left: expected it for missing = 'node' only, got missing = '{self.missing}'")
        self._check_sets(feature, set_at, sets)
        each, nodes = (1 << self.depth) - 1, feature.shape[0]
        if (
            left is None
            and isinstance(nodes, int)
            and isinstance(weights.shape[0], int)
            and nodes * (each + 1) != weights.shape[0] * each
        ):
            raise GraphError(
                f"complete trees of depth {self.depth} have {each} nodes and {each + 1} leaves each, got {nodes} and"
                f" {weights.shape[0]}"
            )
        return TensorType(weights.dtype, (x.shape[0], weights.shape[1]))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of the weights: the leaves that each row comes to are found by trees whose leaves have a column each. Where
        the least or the greatest counts, those that are it share evenly. By features and splits the result only
        jumps."""
        (g,), weights = gradients, node.inputs[3]
        assert g is not None and weights is not None
        c, n, leaves = Composer(builder), g.shape[0], weights.shape[0]
        columns = c(Eye(weights.dtype, leaves, leaves))
        reached = builder.add(replace(self, combine="sum"), *node.inputs[:3], columns, *node.inputs[4:])
        wide = c.wide(g)
        if self.combine == "sum":
            by_weights = c(MatMul(), c.transpose(c.wide(reached), (1, 0)), wide)
        else:
            equal = c(Equal(), c.reshape(weights, (1, *weights.shape)), c.reshape(node.output, (n, 1, g.shape[1])))
            counts = c(Where(), equal, c.reshape(c.wide(reached), (n, leaves, 1)), c.number(0, wide.dtype))
            by_weights = c.sum(
                c.mul(counts, c.div(c.reshape(wide, (n, 1, g.shape[1])), c.sum(counts, (1,)))), (0,), False
            )
        return [c.cast(by_weights, g.dtype) if k == 3 else None for k in range(len(node.inputs))]

    def _unpacked_types(self, types: Sequence[Type | None]) -> tuple[Type | None, ...]:
        """The types of the tables that packed nodes stand for."""
        x, nodes, split, weights, left, leaf, *more = (*types, *(None,) * 2)
        assert isinstance(nodes, TensorType)
        if split is not None or left is not None or leaf is not None:
            raise GraphError("split, left and leaf: expected none beside packed nodes")
        if any(t is not None for t in more[2:]):
            raise GraphError("nan_left and sets: expected none beside packed nodes")
        feature, split = (TensorType(dtype, nodes.shape) for dtype in (dt.uint16, dt.float32))
        return x, feature, split, weights, feature, feature, *more

    def _check_sets(self, feature: TensorType, set_at: Type | None, sets: Type | None) -> None:
        if set_at is None and sets is None:
            return
        if set_at is None or sets is None:
            raise GraphError("set_at and sets: expected both or none")
        set_at, sets = operands((set_at, sets), 2)
        expect_kind(set_at.dtype, ("int",), "set_at")
        if set_at.shape != feature.shape:
            raise GraphError(f"set_at: expected {show(feature.shape)} as feature, got {show(set_at.shape)}")
        if sets.dtype != dt.uint32 or sets.rank != 1:
            raise GraphError(f"sets: expected a vector of uint32, got {sets}")
        if self.missing not in ("left", "node"):
            raise GraphError(f"sets: expected missing = 'left' or 'node', got missing = '{self.missing}'")

    def reference(self, *arrays: Array | None) -> Array:
        x, feature, split, weights, left, leaf, root, _, nan_left, set_at, sets = (*arrays, *(None,) * 11)[:11]
        assert x is not None and feature is not None and weights is not None
        if split is None:
            assert root is not None
            feature, split, left, leaf = unpacked(feature, root)
        numbers, rows = x.astype(split.dtype), np.arange(len(x))[:, None]
        leaves = 1 << self.depth
        trees = len(weights) // leaves if root is None else len(root)
        start = np.arange(trees) * (leaves - 1) if root is None else root.astype(np.int64)
        at = np.broadcast_to(0 if left is None else start, (len(x), trees)).astype(np.int64)
        for _ in range(self.depth):
            node = at + start if left is None else at
            tested = feature[node].astype(np.int64)
            to_left = tested >= x.shape[1] if self.missing == "feature" else np.zeros(tested.shape, bool)
            tested = np.where(to_left, tested - x.shape[1], tested)
            value = numbers[rows, tested]
            above = value > split[node]
            if set_at is not None and sets is not None:
                above = np.where(set_at[node] >= 0, members(value, set_at[node].astype(np.int64), sets), above)
            if self.missing == "node":
                assert nan_left is not None
                away = above | (np.isnan(value) & ~nan_left[node])
            elif self.missing == "left":
                away = above
            else:  # beyond all numbers, but not beyond what nothing exceeds
                away = above | (np.isnan(value) & ~to_left & (split[node] < np.inf))
            if left is not None:
                away = away & (left[node] != node)
            at = 2 * at + 1 + away if left is None else left[node].astype(np.int64) + away
        row = np.arange(trees) * leaves + at - (leaves - 1) if leaf is None else leaf[at].astype(np.int64)
        found = weights[row].astype(np.float64)
        total = {"sum": found.sum, "min": found.min, "max": found.max}[self.combine](axis=1)
        return np.asarray(total).astype(weights.dtype)

    @algorithm("program")
    def walk(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        """Rows in blocks, in parallel; in a block tree by tree, some rows down a tree together."""
        return self.walks(inputs, outputs, inputs[0].shape[0])

    def walks(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], n: Expr) -> Stmt:
        """Of the first `n` rows."""
        x, feature, split, weights, *more = inputs
        (y,) = outputs
        nan_left, set_at, sets = (*more[4:], *(None,) * 3)[:3]
        links = more[:4] if any(m is not None for m in more[:4]) else None
        packed = feature.dtype == PACKED
        wide = dt.float32 if packed else split.dtype
        columns, targets = x.shape[1], y.shape[1]
        leaves = 1 << self.depth
        rows = rows_of_task(inputs, columns, targets, wide, weights.dtype)
        side = STEP if rows == ROWS else MANY_STEP
        share: Expr = const(rows, dt.int64)
        if rows > MANY_ROWS[-1]:
            halves = e.ceildiv(n, 2 * side) * side
            share = e.minimum(e.maximum(halves, MANY_ROWS[-1]), rows)
        numbers = buffer("numbers", (rows, columns * 2 if self.missing == "feature" else columns), wide, "local")
        total = buffer("total", (rows, targets), weights.dtype, "local")
        base = Var("base", dt.int64)
        start = no_weight(self.combine, weights.dtype)

        def fill(first: Expr, r: Expr, f: Expr) -> Stmt:
            high, low = compared(x, e.minimum(first + r, n - 1), f, wide, self.missing)
            stores = [Store(numbers, (r, f), high)]
            if self.missing == "feature":
                stores.append(Store(numbers, (r, f + columns), low))
            return seq(*stores)

        def away(node: Expr, row: Expr) -> Expr:
            value = numbers[row, cast_to(feature[node], dt.int64)]
            above: Expr = value > split[node]
            if set_at is not None and sets is not None:
                above = select(set_at[node] >= 0, member(value, cast_to(set_at[node], dt.int64), sets), above)
            if nan_left is not None:
                above = select(call("isnan", value), e.not_(nan_left[node]), above)
            return cast_to(above, dt.int64)

        def child(at: Expr, row: Expr) -> Expr:
            if packed:
                node = feature[at]
                above = numbers[row, cast_to(node & 0xFFFF, dt.int64)] > Bitcast(cast_to(node >> 32, dt.uint32), wide)
                return base + cast_to((node >> 16) & 0xFFFF, dt.int64) + cast_to(above, dt.int64)
            if links is None:
                return at * 2 + 1 + away(base + at, row)
            return cast_to(links[0][at], dt.int64) + away(at, row)

        def leaf_of(t: Expr, at: Expr) -> Expr:
            if packed:
                return cast_to((feature[at] >> 32) & LEAF_BITS, dt.int64)
            if links is None:
                return at + (t * leaves - (leaves - 1))
            return cast_to(links[1][at], dt.int64)

        def walk(t: Expr, first: Expr, width: int, s: str) -> Stmt:
            """`width` rows from `first` on down a tree, side by side. `s` ends the names in this nest."""
            at = buffer(f"at{s}", (width,), dt.int64, "register")
            moved, below = (buffer(f"{name}{s}", (1,), dt.int64, "register") for name in ("moved", "below"))
            next_node, place = Var(f"next{s}", dt.int64), Var(f"place{s}", dt.int64)

            def level(name: str = "i1") -> Stmt:
                return loop(name + s, width, lambda i: Store(at, (i,), child(at[i], first + i)), "unrolled")

            def last_level() -> Stmt:
                """Which notes whether a row is on its way."""

                def step(i: Expr) -> Stmt:
                    noted = Store(moved, (ZERO,), moved[ZERO] | (next_node ^ at[i]))
                    return Let(next_node, child(at[i], first + i), seq(noted, Store(at, (i,), next_node)))

                return loop(f"i3{s}", width, step, "unrolled")

            def pieces(levels: Expr) -> Stmt:
                """`PIECE` levels at a time, until all rows are in leaves."""
                piece = seq(
                    Store(moved, (ZERO,), ZERO),
                    loop(f"d{s}", PIECE - 1, lambda d: level(), "unrolled"),
                    last_level(),
                    Store(below, (ZERO,), select(e.eq(moved[ZERO], 0), ZERO, below[ZERO] - PIECE)),
                )
                deep = Store(below, (ZERO,), cast_to(levels, dt.int64))
                return Allocate(moved, Allocate(below, seq(deep, While(below[ZERO] > 0, piece))))

            def add(i: Expr) -> Stmt:
                def merged(k: Expr) -> Stmt:
                    row = first + i
                    return Store(total, (row, k), combined(self.combine, total[row, k], weights[place, k]))

                return Let(place, leaf_of(t, at[i]), loop(f"k1{s}", targets, merged))

            if links is None:
                kind: LoopKind = "unrolled" if self.depth <= UNROLLED else "serial"
                down = loop(f"d{s}", self.depth, lambda d: level(), kind)
            else:
                down = pieces(links[3][t])
            begin = loop(f"i0{s}", width, lambda i: Store(at, (i,), ZERO if links is None else base), "unrolled")
            return Allocate(at, seq(begin, down, loop(f"i2{s}", width, add, "unrolled")))

        def tree(t: Expr, here: Expr) -> Stmt:
            root = t * (leaves - 1) if links is None else cast_to(links[2][t], dt.int64)
            rest = here % side
            alone = select(rest <= ALONE, rest, ZERO)
            groups = e.ceildiv(here - alone, side)
            return Let(base, root, seq(
                loop("g", groups, lambda g: walk(t, g * side, side, "")),
                loop("h", alone, lambda h: walk(t, groups * side + h, 1, "_alone")),
            ))  # fmt: skip

        def block(b: Expr) -> Stmt:
            first = b * share
            rows_here = e.minimum(n - first, share)
            here = e.ceildiv(rows_here, side) * side
            trees = weights.shape[0] // leaves if links is None else links[2].shape[0]
            return Allocate(numbers, Allocate(total, seq(
                loop("r0", here, lambda r: loop("f", columns, lambda f: fill(first, r, f))),
                loop("r1", here, lambda r: loop("k0", targets, lambda k: Store(total, (r, k), start))),
                loop("t", trees, lambda t: tree(t, rows_here)),
                loop("r2", rows_here, lambda r: loop("k2", targets, lambda k: Store(y, (first + r, k), total[r, k]))),
            )))  # fmt: skip

        return loop("b", e.ceildiv(n, share), block, "parallel")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.round(floats((5, 3), lo=-2, hi=2) * 2) / 2
        odd = x.copy()
        odd[1, 0], odd[2, 2], odd[4, 1] = np.nan, np.inf, np.nan
        feature, split = np.array([0, 1, 2, 2, 0, 1], np.uint16), np.array([0, 0.5, -0.5, 1, -1, 0], np.float32)
        weights = floats((8, 2), lo=-1, hi=1)
        yield Sample(cls(2), (x, feature, split, weights), "complete")
        for missing in ("right", "left"):
            yield Sample(cls(2, "sum", missing), (odd, feature, split, weights), f"nan_{missing}")
        nan_left = np.array([1, 0, 0, 0, 1, 1], bool)
        signed = np.array([3, 1, 2, 2, 3, 4], np.uint16)
        yield Sample(cls(2, "sum", "feature"), (odd, signed, split, weights), "nan_feature")
        yield Sample(
            cls(2, "sum", "node"), (odd, feature, split, weights, None, None, None, None, nan_left), "nan_node"
        )
        # Two trees: one of three nodes, whose right child is a leaf, and a leaf alone.
        inf = np.inf
        ragged = (
            np.array([0, 1, 0, 0, 0, 0], np.uint16),
            np.array([0, 0.5, inf, inf, inf, inf], np.float32),
            floats((4, 1)),
        )
        left, leaf = np.array([1, 3, 2, 3, 4, 5], np.int32), np.array([0, 0, 0, 1, 2, 3], np.int32)
        links = left, leaf, np.array([0, 5], np.int64), np.array([2, 0], np.int32)
        for combine in ("sum", "min", "max"):
            yield Sample(cls(2, combine), (x, *ragged, *links), combine)
        packed = packed_nodes(ragged[0], ragged[1], links[0], links[1], np.array([0, 0, 0, 0, 0, 5]))
        inputs = odd, packed, None, ragged[2], None, None, *links[2:]
        yield Sample(cls(2, "sum", "right"), inputs, "packed_right")
        yield Sample(cls(2, "sum", "left"), inputs, "packed_left")
        yield Sample(cls(2), (floats((70, 3), "float64"), feature, split.astype(np.float64), weights), "more_rows")
        numbers = np.array([[0, 1, 5], [33, 40, 64], [2.9, 63, 95], [96, -0.5, -1], [np.nan, 1e12, np.inf]], np.float32)
        sets = np.array([1, 0b100110, 2, 1, 1 << 31 | 0b11, 3, 0, 0, 1 << 31], np.uint32)
        set_at = np.array([0, 2, -1, 5, 2, 0], np.int32)
        tables = feature, split, weights, None, None, None, None
        yield Sample(cls(2, "sum", "left"), (numbers, *tables, None, set_at, sets), "sets")
        yield Sample(cls(2, "sum", "node"), (numbers, *tables, nan_left, set_at, sets), "sets_nan_node")


def packed_nodes(feature: Array, split: Array, left: Array, leaf: Array, root: Array) -> Array:
    """Nodes as one word each; `root`: of every node its tree's first one."""
    number = (left - root).astype(np.uint64) << np.uint64(16)
    bits = split.astype(np.float32).view(np.uint32)
    bits = np.where(left == np.arange(len(left)), np.uint32(0x7FC00000) | leaf.astype(np.uint32), bits)
    return np.asarray(feature.astype(np.uint64) | number | bits.astype(np.uint64) << np.uint64(32))


def unpacked(nodes: Array, root: Array) -> tuple[Array, Array, Array, Array]:
    """Feature, split, left child and leaf of packed nodes. `root`: each tree's first node."""
    words = nodes.astype(np.uint64)
    first = np.sort(root.astype(np.int64))
    own = first[np.searchsorted(first, np.arange(len(words)), side="right") - 1]
    bits = (words >> np.uint64(32)).astype(np.uint32)
    left = ((words >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int64) + own
    return (words & np.uint64(0xFFFF)).astype(np.int64), bits.view(np.float32), left, bits & np.uint32(LEAF_BITS)


def rows_of_task(inputs: Sequence[Buffer], columns: Expr, targets: Expr, wide: dt.DType, sums: dt.DType) -> int:
    """Rows that go through all trees together: more, where the tables do not stay near for the next ones."""
    sizes = [t.shape[0].value * t.dtype.bytes for t in inputs[1:] if t is not None and isinstance(t.shape[0], Const)]
    if not isinstance(columns, Const) or not isinstance(targets, Const) or sum(sizes) <= LARGE:
        return ROWS
    row = columns.value * wide.bytes + targets.value * sums.bytes
    return next((rows for rows in MANY_ROWS if rows * row <= NEAR), ROWS)


def compared(x: Buffer, row: Expr, f: Expr, wide: dt.DType, missing: Missing) -> tuple[Expr, Expr]:
    """x[row, f] as it is compared, where NaN goes to the right and where it goes to the left: NaN is beyond all splits
    where it goes to the right, and below them where it goes to the left. (With the one form of `missing` that has no
    such number both are what is compared.)"""
    value = cast_to(x[row, f], wide)
    if missing not in ("right", "feature") or not x.dtype.is_float:
        return value, value
    high, low = (select(call("isnan", value), const(sign * float("inf"), wide), value) for sign in (1, -1))
    return high, low


def no_weight(combine: Combine, dtype: dt.DType) -> Const:
    """What is combined with weights without changing them."""
    return const({"sum": 0.0, "min": float("inf"), "max": float("-inf")}[combine], dtype)


def combined(combine: Combine, old: Expr, weight: Expr) -> Expr:
    """Of two weights the sum, the least or the greatest."""
    return {"sum": old + weight, "min": e.minimum(old, weight), "max": e.maximum(old, weight)}[combine]


def member(value: Expr, place: Expr, sets: Buffer) -> Expr:
    """Whether `value`, rounded down, is in the set at `place`; if that is negative, anything."""
    at, zero = e.maximum(place, 0), const(0.0, value.dtype)
    inside = e.and_(value >= zero, value < const(float(BEYOND), value.dtype))
    number = cast_to(select(inside, value, zero), dt.int64)
    words, word = cast_to(sets[at], dt.int64), number >> 5
    bits = cast_to(sets[at + 1 + e.minimum(word, words - 1)], dt.int64)
    return e.and_(e.and_(inside, word < words), e.eq((bits >> (number & 31)) & 1, 1))


def members(value: Array, place: Array, sets: Array) -> Array:
    """As `member`, of arrays of one shape."""
    at = np.maximum(place, 0)
    inside = (value >= 0) & (value < BEYOND)
    number = np.where(inside, value, 0).astype(np.int64)
    words, word = sets[at].astype(np.int64), number >> 5
    bits = sets[at + 1 + np.minimum(word, words - 1)].astype(np.int64)
    return np.asarray(inside & (word < words) & ((bits >> (number & 31)) & 1 == 1))


def loop(name: str, extent: Expr | int, body: Callable[[Var], Stmt], kind: LoopKind = "serial") -> Stmt:
    var = Var(name, dt.int64)
    return For(var, e.wrap(extent, dt.int64), body(var), kind)


__all__ = ["TreeEnsemble"]
