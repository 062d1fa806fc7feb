"""Order: sorting, the k greatest, unique rows, non-maximum suppression. Loop programs over a stable merge sort of
indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, Var, cast_to, const, select, wrap
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import STEP, Array, Gradients, Operator, Sample, algorithm, touched
from weft.loop.nodes import Allocate, Buffer, For, If, Let, Stmt, Store, While, buffer, seq
from weft.tensor.language import Dim
from weft_ops.examples import floats, integers
from weft_ops.filling import Fill
from weft_ops.scattering import ScatterElements, nest
from weft_ops.shapes import axis_of, dim_min, expect_kind, expect_rank, operands, product, show, static, unify

ZERO, ONE = const(0, dt.int64), const(1, dt.int64)
RUN = 8
"""Elements that are sorted by insertion before runs are merged."""


def local(name: str, count: int = 1, dtype: dt.DType = dt.int64) -> Buffer:
    return buffer(name, (count,), dtype, "local")


def before(a: Expr, b: Expr, descending: bool) -> Expr:
    """Whether `a` certainly comes before `b`; NaN is greatest."""
    ordered = b < a if descending else a < b
    if not a.dtype.is_float:
        return ordered
    nan, other = (a, b) if descending else (b, a)
    return e.or_(ordered, e.and_(e.ne(nan, nan), e.eq(other, other)))


def merge_sort(
    key: Callable[[Expr], Expr], n: Expr, order: Buffer, spare: Buffer, line: Sequence[Expr], descending: bool
) -> Stmt:
    """Sorts the indices in order[*line, 0 … n - 1] by `key`, stably: short runs by insertion, then merged, bottom-up;
    `spare` is of the same shape."""
    width, at, hole = local("width"), local("at", 4), local("hole")
    w, m, k, lo, mid, hi = (Var(f"sort_{name}", dt.int64) for name in ("width", "run", "step", "low", "middle", "high"))

    def slot(b: Buffer, index: Expr) -> Expr:
        return b[(*line, index)]

    def step_from(end: str, base: int, to: Expr, by: int) -> Stmt:
        """One element from the two runs' ends at[base] and at[base + 1] to spare[to]."""
        i, j, left, right = (Var(f"sort_{end}_{name}", dt.int64) for name in ("i", "j", "left", "right"))
        last = e.not_(before(key(right), key(left), descending))  # the right one comes last, also of equals
        here, there = (i < mid, hi <= j) if by > 0 else (j < mid, lo <= i)
        chosen = Var(f"sort_{end}_take", dt.bool_)
        take_left = e.and_(here, e.or_(there, last)) if by > 0 else e.and_(there, e.or_(here, e.not_(last)))
        moved = cast_to(chosen, dt.int64) * by
        inside: Callable[[Expr], Expr] = lambda x: e.maximum(e.minimum(x, n - 1), 0)
        store = seq(
            Store(spare, (*line, to), select(chosen, left, right)),
            Store(at, (const(base, dt.int64),), i + moved), Store(at, (const(base + 1, dt.int64),), j + by - moved),
        )  # fmt: skip
        return Let(
            i,
            at[base],
            Let(
                j,
                at[base + 1],
                Let(left, slot(order, inside(i)), Let(right, slot(order, inside(j)), Let(chosen, take_left, store))),
            ),
        )

    # From both ends at once: two chains of dependent loads.
    both = seq(step_from("front", 0, lo + k, 1), step_from("back", 2, hi - 1 - k, -1))
    starts = [Store(at, (const(q, dt.int64),), start) for q, start in enumerate((lo, mid, mid - 1, hi - 1))]
    run = Let(lo, m * w * 2, Let(mid, e.minimum(lo + w, n), Let(hi, e.minimum(lo + w * 2, n), seq(
        *starts, For(k, (hi - lo + 1) // 2, both)
    ))))  # fmt: skip
    back = Var("sort_back", dt.int64)
    r, q, first, moved = (Var(f"sort_{name}", dt.int64) for name in ("short", "next", "first", "moved"))
    above = slot(order, e.maximum(hole[0] - 1, 0))
    shift = seq(Store(order, (*line, hole[0]), above), Store(hole, (ZERO,), hole[0] - 1))
    insert = Let(moved, slot(order, first + q + 1), seq(
        Store(hole, (ZERO,), first + q + 1),
        While(e.and_(first < hole[0], before(key(moved), key(above), descending)), shift),
        Store(order, (*line, hole[0]), moved),
    ))  # fmt: skip
    short = For(r, (n + RUN - 1) // RUN, Let(first, r * RUN, For(q, e.minimum(n - first, RUN) - 1, insert)))
    step = Let(w, width[0], seq(
        For(m, (n + w * 2 - 1) // (w * 2), run), For(back, n, Store(order, (*line, back), slot(spare, back))),
        Store(width, (ZERO,), w * 2)
    ))  # fmt: skip
    merges = Allocate(width, Allocate(at, seq(Store(width, (ZERO,), const(RUN, dt.int64)), While(width[0] < n, step))))
    return seq(Allocate(hole, short), merges)


@dataclass(frozen=True)
class Heap:
    """A binary heap of pairs (value, id) in the first places of two buffers: values[at(i)], ids[at(i)].

    A pair comes before another as its value does, of equal values the lesser id; on top is the first of all, or the
    last if `last_on_top`.
    """

    values: Buffer
    ids: Buffer
    at: Callable[[Expr], tuple[Expr, ...]]
    descending: bool
    last_on_top: bool

    def above(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """Whether pair a stands above pair b."""
        first, second = (b, a) if self.last_on_top else (a, b)
        tied = e.not_(before(second[0], first[0], self.descending))
        return e.or_(before(first[0], second[0], self.descending), e.and_(tied, first[1] < second[1]))

    def pair(self, place: Expr) -> tuple[Expr, Expr]:
        return self.values[self.at(place)], self.ids[self.at(place)]

    def put(self, place: Expr, pair: tuple[Expr, Expr]) -> Stmt:
        return seq(Store(self.values, self.at(place), pair[0]), Store(self.ids, self.at(place), pair[1]))

    def sift(self, place: Expr, count: Expr, pair: tuple[Expr, Expr], name: str) -> Stmt:
        """Puts a pair into `place`, or below it and what stood there above: the heap of `count` pairs holds if it held
        below `place`."""
        hole, child = local(f"{name}_hole"), local(f"{name}_child")
        value, key = Var(f"{name}_value", pair[0].dtype), Var(f"{name}_id", dt.int64)
        left, right, upper = (Var(f"{name}_{part}", dt.int64) for part in ("left", "right", "upper"))
        upward = seq(
            self.put(hole[0], self.pair(upper)), Store(hole, (ZERO,), upper), Store(child, (ZERO,), upper * 2 + 1)
        )
        step = Let(left, child[0], Let(right, e.minimum(left + 1, count - 1), Let(
            upper, select(self.above(self.pair(right), self.pair(left)), right, left),
            If(self.above(self.pair(upper), (value, key)), upward, Store(child, (ZERO,), count)),
        )))  # fmt: skip
        walk = seq(
            Store(hole, (ZERO,), place),
            Store(child, (ZERO,), place * 2 + 1),
            While(child[0] < count, step),
            self.put(hole[0], (value, key)),
        )
        return Let(value, pair[0], Let(key, pair[1], Allocate(hole, Allocate(child, walk))))

    def build(self, count: Expr, name: str) -> Stmt:
        """Makes a heap of the first `count` pairs."""
        k, place = Var(f"{name}_k", dt.int64), Var(f"{name}_place", dt.int64)
        return For(k, count // 2, Let(place, count // 2 - 1 - k, self.sift(place, count, self.pair(place), name)))

    def pop(self, last: Expr, name: str) -> Stmt:
        """Takes the top away from a heap of last + 1 pairs: `last` pairs are left."""
        return self.sift(ZERO, last, self.pair(last), name)


def sort_program(x: Buffer, axis: int, descending: bool, then: Callable[[Buffer, tuple[Expr, ...]], Stmt]) -> Stmt:
    """The indices along `axis` sorted by x, then, per line, `then(order, line)`: order[*line, rank] is an index."""
    outer = [d for k, d in enumerate(x.shape) if k != axis]
    n = x.shape[axis]
    order, spare = buffer("order", (*outer, n), dt.int64), buffer("spare", (*outer, n), dt.int64)

    def body(line: tuple[Var, ...]) -> Stmt:
        s = Var("s", dt.int64)
        key: Callable[..., Any] = lambda index: x[(*line[:axis], index, *line[axis:])]
        return seq(
            For(s, n, Store(order, (*line, s), s)),
            merge_sort(key, n, order, spare, line, descending),
            then(order, line),
        )

    return Allocate(order, Allocate(spare, nest("line", outer, body, parallel=1)))


def stable_argsort(x: Array, axis: int, descending: bool) -> Array:
    """Indices that sort x stably; NaN is greatest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Reversed input sorted ascending and reversed again is descending with ties in order.
    n = x.shape[axis]
    return np.asarray(n - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis))


@dataclass(frozen=True)
class Argsort(Operator):
    """The indices that sort x along `axis`, int64; ties keep their order, NaN is greatest."""

    axis: int = -1
    descending: bool = False
    kind = "opaque"
    no_gradient = "its results are places"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        axis_of(self.axis, x.rank)
        return TensorType(dt.int64, x.shape)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 10) * touched(*inputs, *outputs)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return stable_argsort(arrays[0], self.axis, self.descending).astype(np.int64)

    @algorithm("program")
    def merge(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x,), (y,) = inputs, outputs
        axis = axis_of(self.axis, len(x.shape))
        r = Var("r", dt.int64)

        def then(order: Buffer, line: tuple[Expr, ...]) -> Stmt:
            return For(r, x.shape[axis], Store(y, (*line[:axis], r, *line[axis:]), order[(*line, r)]))

        return sort_program(x, axis, self.descending, then)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for descending in (False, True):
            yield Sample(cls(-1, descending), (integers((2, 7), "int32", 0, 4),), f"ties_{descending}")
            yield Sample(cls(0, descending), (floats((5, 2)),), f"float32_{descending}")
            yield Sample(cls(-1, descending), (integers((2, 43), "int32", 0, 20),), f"runs_{descending}")
            yield Sample(
                cls(0, descending), (np.array([1, np.nan, -1, np.inf, np.nan], np.float32),), f"nan_{descending}"
            )


@dataclass(frozen=True)
class TopK(Operator):
    """The k greatest (else least) elements along `axis` in order, and their indices (int64); of equal ones the first;
    NaN is greatest."""

    k: Dim
    axis: int = -1
    largest: bool = True
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        axis = axis_of(self.axis, x.rank)
        if isinstance(self.k, int) and isinstance(x.shape[axis], int) and not 0 <= self.k <= x.shape[axis]:
            raise GraphError(f"k: expected 0 … {x.shape[axis]}, got {self.k}")
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        found = TensorType(x.dtype, shape), TensorType(dt.int64, shape)
        return Inferred(found, [Assumption.at_most(self.k, x.shape[axis], "k")])

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 10) * touched(*inputs, *outputs)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The gradients of the k elements at their places, zeros elsewhere."""
        (x,), g = node.inputs, gradients[0]
        assert x is not None
        if g is None:
            return (None,)
        zeros = builder.add(Fill(x.dtype, x.shape, 0))
        # No two have one place: nothing is added, but sums have the simpler gradient.
        return (builder.add(ScatterElements(self.axis, "add"), zeros, node.outputs[1], g),)

    def reference(self, *arrays: Array | None) -> Any:
        (x,) = arrays
        assert x is not None
        (k,) = static([self.k])
        order = np.take(stable_argsort(x, self.axis, self.largest), range(k), self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(np.int64)

    @algorithm("program")
    def heap(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        """The best so far are a heap with the worst of them on top: few elements pass it, the others cost a
        comparison."""
        (x,), (values, indices) = inputs, outputs
        axis = axis_of(self.axis, len(x.shape))
        n, k = x.shape[axis], wrap(self.k, dt.int64)
        f, i, r, last, place = (Var(name, dt.int64) for name in ("first", "i", "r", "last", "place"))
        value, worst = Var("value", x.dtype), Var("worst", x.dtype)

        def body(line: tuple[Var, ...]) -> Stmt:
            at: Callable[[Expr], tuple[Expr, ...]] = lambda index: (*line[:axis], index, *line[axis:])
            best = Heap(values, indices, at, self.largest, last_on_top=True)
            fill = For(f, k, best.put(f, (x[at(f)], f)))
            # One comparison, which a NaN fails, keeps most elements out.
            out = (value <= worst) if self.largest else (worst <= value)
            enter = If(before(value, worst, self.largest), best.sift(ZERO, k, (value, place), "enter"))
            scan = For(
                i,
                n - k,
                Let(place, k + i, Let(value, x[at(place)], Let(worst, values[at(ZERO)], If(e.not_(out), enter)))),
            )
            top = tuple(Var(name, d) for name, d in (("top_value", x.dtype), ("top_id", dt.int64)))
            unload = Let(
                top[0],
                values[at(ZERO)],
                Let(top[1], indices[at(ZERO)], seq(best.pop(last, "pop"), best.put(last, (top[0], top[1])))),
            )
            order = For(r, k - 1, Let(last, k - 1 - r, unload))
            return If(k > 0, seq(fill, best.build(k, "build"), scan, order))

        outer = [d for q, d in enumerate(x.shape) if q != axis]
        return nest("line", outer, body, parallel=1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(3), (integers((2, 7), "int64", 0, 4),), "ties")
        yield Sample(cls(2, 0, False), (floats((5, 3)),), "least")
        for largest in (True, False):
            yield Sample(cls(7, largest=largest), (integers((2, 40), "float32", 0, 9),), f"heap_{largest}")
            yield Sample(
                cls(4, largest=largest),
                (np.array([1, np.nan, -1, np.inf, np.nan, np.nan, -2], np.float32),),
                f"nan_{largest}",
            )
        yield Sample(cls(1, 1), (floats((2, 4, 2), "float16"),), "middle")
        yield Sample(cls(0), (integers((3,), "uint8", 0, 9),), "none")


@dataclass(frozen=True)
class UniqueRows(Operator):
    """The different rows of x [n, m], in ascending order if `sorted`, else in order of first occurrence.

    Outputs, int64: first [n], where each different row occurs first; inverse [n], which different row each row is;
    counts [n]; number [1] of different rows. `first` and `counts` are zero beyond `number`, whose element makes the
    symbol that cuts them.
    """

    sorted: bool = True
    kind = "opaque"
    no_gradient = "its results are places and numbers of rows"

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        (x,) = operands(types, 1)
        expect_rank(x, 2)
        expect_kind(x.dtype, ("int", "uint", "float", "bool"))
        line = TensorType(dt.int64, (x.shape[0],))
        return line, line, line, TensorType(dt.int64, (1,))

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return STEP * touched(*inputs, *outputs)

    def reference(self, *arrays: Array | None) -> Any:
        (x,) = arrays
        assert x is not None
        n = x.shape[0]
        keys = x.astype(np.float32) if x.dtype.kind not in "iufb" else x
        order = np.lexsort(keys.T[::-1]) if x.shape[1] else np.arange(n)
        groups: list[list[int]] = []
        for k in order:
            same = groups and all(a == b or (a != a and b != b) for a, b in zip(keys[groups[-1][0]], keys[k]))
            if same:
                groups[-1].append(int(k))
            else:
                groups.append([int(k)])
        groups = [sorted(g) for g in groups]
        groups = groups if self.sorted else sorted(groups)
        first, inverse, counts = (np.zeros(n, np.int64) for _ in range(3))
        for g, members in enumerate(groups):
            first[g], counts[g] = members[0], len(members)
            inverse[members] = g
        return first, inverse, counts, np.array([len(groups)], np.int64)

    @algorithm("program")
    def merge(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x,), (first, inverse, counts, number) = inputs, outputs
        n, m = x.shape
        order, spare = buffer("order", (n,), dt.int64), buffer("spare", (n,), dt.int64)
        differs = buffer("differs", (1,), dt.bool_, "local")
        z, c, d, r, row, g, prev = (Var(name, dt.int64) for name in ("z", "c", "d", "r", "row", "g", "prev"))
        # Stable sorts by each column, last to first, sort by rows.
        key: Callable[..., Any] = lambda i: cast_to(x[i, m - 1 - c], dt.uint8) if x.dtype.is_bool else x[i, m - 1 - c]
        columns = For(c, m, merge_sort(key, n, order, spare, (), False))

        def unequal(a: Expr, b: Expr) -> Expr:
            return e.and_(e.ne(a, b), e.or_(e.eq(a, a), e.eq(b, b))) if a.dtype.is_float else e.ne(a, b)

        compare = Let(
            prev,
            order[e.maximum(r - 1, 0)],
            For(d, m, If(unequal(x[prev, d], x[row, d]), Store(differs, (ZERO,), const(True)))),
        )
        group = Let(g, number[0] - 1, seq(Store(inverse, (row,), g), Store(counts, (g,), counts[g] + 1)))
        walk = For(r, n, Let(row, order[r], seq(
            Store(differs, (ZERO,), e.eq(r, 0)), compare,
            If(differs[0], seq(Store(first, (number[0],), row), Store(number, (ZERO,), number[0] + 1))), group,
        )))  # fmt: skip
        clear = For(z, n, seq(Store(order, (z,), z), Store(first, (z,), ZERO), Store(counts, (z,), ZERO)))
        parts: list[Stmt] = [Store(number, (ZERO,), ZERO), clear, columns, Allocate(differs, walk)]
        if not self.sorted:
            # `order` becomes the old counts, `spare` the new number of each group; a group is met first at its first
            # row.
            i, u, v, old = (Var(name, dt.int64) for name in ("i", "u", "v", "old"))
            following = local("following")
            parts.append(For(u, n, Store(order, (u,), counts[u])))
            number_it = seq(
                Store(spare, (old,), following[0]), Store(counts, (following[0],), order[old]), Store(following, (ZERO,
                    ), following[0] + 1)
            )  # fmt: skip
            renumber = seq(If(e.eq(first[old], i), number_it), Store(inverse, (i,), spare[old]))
            parts.append(
                Allocate(following, seq(Store(following, (ZERO,), ZERO), For(i, n, Let(old, inverse[i], renumber))))
            )
            last = Var("last", dt.int64)
            parts.append(For(v, n, Let(last, n - 1 - v, Store(first, (inverse[last],), last))))
        return Allocate(order, Allocate(spare, seq(*parts)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for ordered in (True, False):
            yield Sample(cls(ordered), (integers((9, 1), "int64", 0, 3),), f"column_{ordered}")
            yield Sample(cls(ordered), (integers((8, 2), "float32", 0, 1),), f"rows_{ordered}")
            yield Sample(cls(ordered), (np.array([[2], [np.nan], [1], [np.nan]], np.float32),), f"nan_{ordered}")


@dataclass(frozen=True)
class NonMaxSuppression(Operator):
    """Boxes that do not overlap better ones: per batch and class, by falling score, those whose overlap with every one
    chosen is at most a threshold.

    Inputs: boxes [b, n, 4] (corners y1, x1, y2, x2 in any order, or centre x, y, width, height if `center_point_box`),
    scores [b, c, n], overlap threshold (one element), score threshold (one element, optional: only greater scores
    count). Outputs, int64: [b·c·min(limit, n), 3] rows (batch, class, box), zero beyond their number [1].
    """

    limit: Dim
    center_point_box: bool = False
    kind = "opaque"
    no_gradient = "its results are places"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        boxes, scores, *thresholds = operands([t for t in types if t is not None])
        expect_rank(boxes, 3, "boxes")
        expect_rank(scores, 3, "scores")
        unify(4, boxes.shape[2], "box", assumed)
        unify(boxes.shape[0], scores.shape[0], "batch", assumed)
        n = unify(boxes.shape[1], scores.shape[2], "boxes", assumed)
        for t in thresholds:
            if product(t.shape) != 1:
                raise GraphError(f"threshold: expected one element, got shape {show(t.shape)}")
        return Inferred(
            (
                TensorType(dt.int64, (product([boxes.shape[0], scores.shape[1], dim_min(self.limit, n)]), 3)),
                TensorType(dt.int64, (1,)),
            ),
            assumed,
        )

    def reference(self, *arrays: Array | None) -> Any:
        boxes, scores, overlap, threshold = (*arrays, None)[:4]
        assert boxes is not None and scores is not None and overlap is not None
        (limit,) = static([self.limit])
        rows: list[tuple[int, int, int]] = []
        for b, c in np.ndindex(*scores.shape[:2]):
            kept: list[int] = []
            for k in stable_argsort(scores[b, c], 0, True):
                if len(kept) >= limit or (threshold is not None and not scores[b, c, k] > threshold.reshape(())):
                    continue
                if all(not self.overlaps(boxes[b, k], boxes[b, q], overlap.reshape(())) for q in kept):
                    kept.append(int(k))
            rows += [(b, c, k) for k in kept]
        out = np.zeros((scores.shape[0] * scores.shape[1] * min(limit, scores.shape[2]), 3), np.int64)
        out[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
        return out, np.array([len(rows)], np.int64)

    def corners(self, box: Callable[[int], Any], lesser: Any, greater: Any) -> tuple[Any, Any, Any, Any]:
        """(low x, low y, high x, high y)."""
        if self.center_point_box:
            half_w, half_h = box(2) * 0.5, box(3) * 0.5
            return box(0) - half_w, box(1) - half_h, box(0) + half_w, box(1) + half_h
        return lesser(box(1), box(3)), lesser(box(0), box(2)), greater(box(1), box(3)), greater(box(0), box(2))

    def overlaps(self, a: Array, b: Array, threshold: Any) -> bool:
        p, q = (self.corners(box.astype(np.float32).__getitem__, min, max) for box in (a, b))
        width, height = min(p[2], q[2]) - max(p[0], q[0]), min(p[3], q[3]) - max(p[1], q[1])
        if width <= 0 or height <= 0:
            return False
        areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (p, q)]
        union = areas[0] + areas[1] - width * height
        return bool(areas[0] > 0 and areas[1] > 0 and union > 0 and width * height / union > threshold)

    @algorithm("program")
    def greedy(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Stmt:
        """The boxes whose score counts are a heap; its top is taken, or overlaps one taken before, until there are
        enough."""
        boxes, scores, overlap, threshold = (*inputs, None)[:4]
        assert boxes is not None and scores is not None and overlap is not None
        chosen, number = outputs
        n, f = boxes.shape[1], dt.float32
        heap = Heap(
            buffer("best", (n,), scores.dtype),
            buffer("order", (n,), dt.int64),
            lambda i: (i,),
            descending=True,
            last_on_top=False,
        )
        # Low x, low y, high x, high y and area of every box, and of those taken.
        shapes, taken = buffer("shapes", (n, 5), f), buffer("taken", (n, 5), f)
        kept, left, k, clash = local("kept"), local("left"), local("k"), buffer("clash", (1,), dt.bool_, "local")
        b, c, s, z, m, box, t, row = (Var(name, dt.int64) for name in ("b", "c", "s", "z", "m", "box", "t", "row"))
        one: Callable[..., Any] = lambda x: x[tuple(ZERO for _ in x.shape)]
        parts = self.corners(lambda d: cast_to(boxes[b, m, d], f), e.minimum, e.maximum)
        measure = For(m, n, seq(
            *(Store(shapes, (m, const(q, dt.int64)), part) for q, part in enumerate(parts)),
            Store(shapes, (m, const(4, dt.int64)), (shapes[m, 2] - shapes[m, 0]) * (shapes[m, 3] - shapes[m, 1])),
        ))  # fmt: skip
        p, q = ([rows[index, d] for d in range(5)] for rows, index in ((shapes, box), (taken, k[0])))
        width, height = e.minimum(p[2], q[2]) - e.maximum(p[0], q[0]), e.minimum(p[3], q[3]) - e.maximum(p[1], q[1])
        union = p[4] + q[4] - width * height
        large = e.all_of([p[4] > 0, q[4] > 0, union > 0, width * height / union > cast_to(one(overlap), f)])
        meets = If(width > 0, If(height > 0, If(large, Store(clash, (ZERO,), const(True)))))
        check = seq(meets, Store(k, (ZERO,), k[0] + 1))
        copy = [Store(taken, (kept[0], const(d, dt.int64)), part) for d, part in enumerate(p)]
        add = Let(row, number[0], seq(*copy, Store(chosen, (row, ZERO), b), Store(chosen, (row, ONE), c), Store(chosen,
        (row, const(2, dt.int64)), box),
                   Store(number, (ZERO,), row + 1), Store(kept, (ZERO,), kept[0] + 1)))  # fmt: skip
        compare = seq(
            Store(clash, (ZERO,), const(False)),
            Store(k, (ZERO,), ZERO),
            While(e.and_(k[0] < kept[0], e.not_(clash[0])), check),
        )
        take = seq(compare, If(e.not_(clash[0]), add), Store(left, (ZERO,), left[0] - 1), heap.pop(left[0], "pop"))
        more = e.and_(left[0] > 0, kept[0] < wrap(self.limit, dt.int64))
        # Put there anyway, and counted if it counts: no branch to guess.
        counts = const(True) if threshold is None else scores[b, c, s] > one(threshold)
        enter = seq(heap.put(left[0], (scores[b, c, s], s)), Store(left, (ZERO,), left[0] + cast_to(counts, dt.int64)))
        per_class = seq(
            Store(left, (ZERO,), ZERO),
            Store(kept, (ZERO,), ZERO),
            For(s, n, enter),
            heap.build(left[0], "build"),
            While(more, Let(box, heap.ids[0], take)),
        )
        clear = For(z, chosen.shape[0], For(t, const(3, dt.int64), Store(chosen, (z, t), ZERO)))
        loops: Stmt = For(b, scores.shape[0], seq(measure, For(c, scores.shape[1], per_class)))
        for own in (heap.values, heap.ids, shapes, taken, kept, left, k, clash):
            loops = Allocate(own, loops)
        return seq(clear, Store(number, (ZERO,), ZERO), loops)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        corner = floats((2, 6, 4), lo=0, hi=1)
        scores = floats((2, 2, 6), lo=0, hi=1)
        yield Sample(cls(3), (corner, scores, np.array([0.3], np.float32), np.array([0.2], np.float32)), "corners")
        many = floats((1, 25, 4), lo=0, hi=1)
        yield Sample(
            cls(8),
            (many, integers((1, 2, 25), "float32", 0, 9), np.array([0.2], np.float32), np.array([1], np.float32)),
            "ties",
        )
        yield Sample(cls(9, True), (corner, scores, np.array([0.1], np.float32)), "centres")
        yield Sample(cls(0), (corner, scores, np.array([0.1], np.float32), None), "none")


__all__ = ["Argsort", "NonMaxSuppression", "TopK", "UniqueRows"]
