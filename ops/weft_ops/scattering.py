"""Operators that put elements where indices say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, Var
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import STEP, Array, Gradients, Operator, Sample, algorithm, touched
from weft.loop.nodes import Block, BlockIter, Buffer, For, Let, Stmt, Store, seq
from weft.tensor.language import as_dim
from weft_ops.arithmetic import Maximum, Where
from weft_ops.comparison import Equal
from weft_ops.examples import floats, integers
from weft_ops.filling import Fill, Iota
from weft_ops.gathering import GatherElements, clamp_indices, safe_index
from weft_ops.moving import INDEX, Movement, composer
from weft_ops.shapes import axis_of, expect_kind, one_dtype, operands, product, show, unify
from weft_ops.words import Reduction

if TYPE_CHECKING:
    from weft_ops.composing import Composer


def nest(prefix: str, extents: Sequence[Expr], body: Callable[[tuple[Var, ...]], Stmt], parallel: int = 0) -> Stmt:
    """`body` under one loop per extent, the outermost `parallel` of them parallel."""
    loop_vars = tuple(Var(f"{prefix}{k}", dt.int64) for k in range(len(extents)))
    stmt = body(loop_vars)
    for k in reversed(range(len(extents))):
        stmt = For(loop_vars[k], extents[k], stmt, "parallel" if k < parallel else "serial")
    return stmt


def copy_of(source: Buffer, target: Buffer, prefix: str = "copy") -> Stmt:
    """Every element of `source` stored to `target`: a block, which a target schedules as any other."""
    iters = tuple(BlockIter(Var(f"{prefix}_v{k}", dt.int64), d) for k, d in enumerate(source.shape))
    at = tuple(i.var for i in iters)
    return nest(prefix, source.shape, lambda i: Block(prefix, iters, i, Store(target, at, source[at])))


def merged(reduction: Reduction, old: Expr, new: Expr) -> Expr:
    match reduction:
        case "add":
            return old + new
        case "mul":
            return old * new
        case "min":
            return e.minimum(old, new)
        case "max":
            return e.maximum(old, new)
    return new


def merge_value(reduction: Reduction, old: Any, new: Any) -> Any:
    match reduction:
        case "add":
            return (old + new).astype(old.dtype)
        case "mul":
            return (old * new).astype(old.dtype)
        case "min":
            return np.minimum(old, new)
        case "max":
            return np.maximum(old, new)
    return new


def scatter_gradient(
    builder: GraphBuilder,
    node: Node,
    gradients: Gradients,
    how: Reduction,
    by: Callable[[Reduction], Operator],
    taken: Operator,
    last: Callable[[Composer, Value, Value, Value], Value],
) -> Gradients:
    """The gradient of what merges updates into a copy of x at the places of indices.

    What was replaced has none. The least and the greatest share theirs evenly, as PyTorch's `scatter_reduce` does. A
    product's is the product of the others: with several zeros at one place it is zero, as are then its own gradients,
    which should not be where there are two.

    Args:
        how: updates are merged.
        by: the same places, merged otherwise.
        taken: gives, of a value of x's shape and the indices, what is at the places of the updates.
        last: (x, indices, updates) → whether no later update has the place of each: of bool, broadcasts to updates.
    """
    (x, indices, updates), (g,) = node.inputs, gradients
    assert x is not None and indices is not None and updates is not None and g is not None
    c, at = composer(builder), indices
    put: Callable[[Reduction, Value, Value], Value] = lambda joined, base, new: c(by(joined), base, at, new)
    take: Callable[[Value], Value] = lambda v: c(taken, v, at)
    if how == "add":
        return g, None, take(g)
    zero = c.number(0, g.dtype)
    if how == "none":
        left = put("none", g, c(Fill(g.dtype, updates.shape, 0)))
        return left, None, c(Where(), last(c, x, indices, updates), take(g), zero)
    wide, zero = c.wide(g), c.number(0, c.wide(g).dtype)
    if how == "mul":
        given = [c.wide(x), c.wide(updates)]
        none = [c(Equal(), v, 0.0) for v in given]
        factors = [c(Where(), n, c.number(1, v.dtype), v) for n, v in zip(none, given)]
        counts = [c.cast(n, dt.int64) for n in none]
        whole, zeros = put("mul", *factors), put("add", *counts)
        found = []
        for v, n, get in ((factors[0], counts[0], lambda v: v), (factors[1], counts[1], take)):
            others = c(Where(), c(Equal(), get(zeros), n), c.div(get(whole), v), zero)
            found.append(c.cast(c.mul(get(wide), others), g.dtype))
        return found[0], None, found[1]
    # All three are values in memory, as programs read them: they are compared as they were merged.
    kept, entered = c(Equal(), x, node.output), c(Equal(), updates, take(node.output))
    count = put("add", c.cast(kept, wide.dtype), c.cast(entered, wide.dtype))
    share = c.div(wide, c(Maximum(), count, 1))  # NaN is none
    left, new = c(Where(), kept, share, zero), c(Where(), entered, take(share), zero)
    return c.cast(left, g.dtype), None, c.cast(new, g.dtype)


@dataclass(frozen=True)
class ScatterElements(Movement):
    """A copy of x in which element [i… with indices[i…] at `axis`] is merged with updates[i…], in order.

    `reduction` none replaces; add, mul, min, max merge with what is there. Indices as in Gather.
    """

    axis: int = 0
    reduction: Reduction = "none"
    kind = "opaque"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        by: Callable[[Reduction], Operator] = lambda reduction: ScatterElements(self.axis, reduction)
        return scatter_gradient(builder, node, gradients, self.reduction, by, GatherElements(self.axis), self._last)

    def _last(self, c: Composer, x: Value, indices: Value, updates: Value) -> Value:
        number = c.reshape(c(Iota(dt.int64, (product(indices.shape),))), indices.shape)
        placed = c(ScatterElements(self.axis), c(Fill(dt.int64, x.shape, -1)), indices, number)
        return c(Equal(), c(GatherElements(self.axis), placed, indices), number)

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, indices, updates = operands(types, 3)
        one_dtype([x, updates])
        expect_kind(indices.dtype, INDEX, "indices")
        axis_of(self.axis, x.rank)
        if not x.rank == indices.rank == updates.rank:
            raise GraphError(
                f"expected indices and updates of {x.rank} dimension(s), got {show(indices.shape)} and"
                f" {show(updates.shape)}"
            )
        for d, (a, b) in enumerate(zip(indices.shape, updates.shape)):
            unify(a, b, f"updates, dimension {d}", assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        """A step of Python for each index."""
        return 16 * touched(*inputs, *outputs) + STEP * touched(inputs[1])

    def reference(self, *arrays: Array | None) -> Array:
        x, indices, updates = arrays
        assert x is not None and indices is not None and updates is not None
        axis = self.axis % x.ndim
        out = x.copy()
        at = clamp_indices(indices, x.shape[axis])
        for i in np.ndindex(*indices.shape):
            where = (*i[:axis], at[i], *i[axis + 1 :])
            out[where] = merge_value(self.reduction, out[where], updates[i])
        return out

    @algorithm("program")
    def ordered(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        x, indices, updates = inputs
        (y,) = outputs
        axis = axis_of(self.axis, len(x.shape))
        # Updates of one place differ only in the index along the axis: the other axes are independent.
        order = [d for d in range(len(x.shape)) if d != axis] + [axis]

        def body(loops: tuple[Var, ...]) -> Stmt:
            i = [loops[order.index(d)] for d in range(len(order))]
            k = Var("place", dt.int64)
            where = (*i[:axis], k, *i[axis + 1 :])
            return Let(
                k,
                safe_index(indices[tuple(i)], as_dim(x.shape[axis])),
                Store(y, where, merged(self.reduction, y[where], updates[tuple(i)])),
            )

        return seq(
            copy_of(x, y), nest("u", [indices.shape[d] for d in order], body, parallel=1 if len(order) > 1 else 0)
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((3, 4))
        yield Sample(cls(1), (x, np.array([[0, -1], [3, 1], [2, 0]]), floats((3, 2), seed=1)), "none")
        reductions: tuple[Reduction, ...] = ("add", "mul", "min", "max")
        for r in reductions:
            yield Sample(cls(0, r), (x, np.array([[0, 1, 0, 2], [0, 1, 2, 2]], np.int32), floats((2, 4), seed=1)), r)
        yield Sample(cls(0), (integers((5,)), np.array([1, 1, 4]), integers((3,), seed=1)), "last_wins")


@dataclass(frozen=True)
class ScatterND(Movement):
    """A copy of x in which the slices at index vectors indices [k…, m] are merged with updates [k…, x.shape[m:]…], in
    order; see ScatterElements."""

    reduction: Reduction = "none"
    kind = "opaque"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        from weft_ops.indexing import GatherND  # which imports this module

        return scatter_gradient(builder, node, gradients, self.reduction, ScatterND, GatherND(), self._last)

    def _last(self, c: Composer, x: Value, indices: Value, updates: Value) -> Value:
        from weft_ops.indexing import GatherND  # which imports this module

        lead, m = indices.shape[:-1], indices.shape[-1]
        assert isinstance(m, int)
        number = c.reshape(c(Iota(dt.int64, (product(lead),))), lead)
        placed = c(ScatterND(), c(Fill(dt.int64, x.shape[:m], -1)), indices, number)
        found = c(Equal(), c(GatherND(), placed, indices), number)
        return c.reshape(found, (*lead, *(1 for _ in x.shape[m:])))

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, indices, updates = operands(types, 3)
        one_dtype([x, updates])
        expect_kind(indices.dtype, INDEX, "indices")
        m = indices.shape[-1] if indices.rank else 0
        if not isinstance(m, int) or not indices.rank or m > x.rank:
            raise GraphError(f"indices: expected a last dimension 0 … {x.rank}, got {show(indices.shape)}")
        want = (*indices.shape[:-1], *x.shape[m:])
        if len(want) != updates.rank:
            raise GraphError(f"updates: expected shape {show(want)}, got {show(updates.shape)}")
        for d, (a, b) in enumerate(zip(want, updates.shape)):
            unify(a, b, f"updates, dimension {d}", assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        """A step of Python for each index."""
        return 16 * touched(*inputs, *outputs) + STEP * touched(inputs[1])

    def reference(self, *arrays: Array | None) -> Array:
        x, indices, updates = arrays
        assert x is not None and indices is not None and updates is not None
        out = x.copy()
        for i in np.ndindex(*indices.shape[:-1]):
            where = tuple(int(clamp_indices(np.asarray(k), n)) for k, n in zip(indices[i], x.shape))
            out[where] = merge_value(self.reduction, out[where], updates[i])
        return out

    @algorithm("program")
    def ordered(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        x, indices, updates = inputs
        (y,) = outputs
        lead = len(indices.shape) - 1
        m = as_dim(indices.shape[-1])
        assert isinstance(m, int)
        inner = x.shape[m:]

        def body(loops: tuple[Var, ...]) -> Stmt:
            rest, k = loops[: len(inner)], loops[len(inner) :]
            at = tuple(safe_index(indices[(*k, q)], as_dim(x.shape[q])) for q in range(m))
            return Store(y, (*at, *rest), merged(self.reduction, y[(*at, *rest)], updates[(*k, *rest)]))

        # Elements of a slice are independent; slices come in order.
        return seq(copy_of(x, y), nest("u", (*inner, *indices.shape[:lead]), body, parallel=1 if inner else 0))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((8,)), np.array([[4], [3], [-1]]), floats((3,), seed=1)), "vector")
        reductions: tuple[Reduction, ...] = ("none", "add", "mul", "min", "max")
        for r in reductions:
            yield Sample(
                cls(r), (floats((3, 2, 2)), np.array([[0], [2], [0]]), floats((3, 2, 2), seed=1)), f"slices_{r}"
            )
        yield Sample(
            cls(), (integers((2, 3)), np.array([[[0, 1]], [[1, 2]]], np.int32), integers((2, 1), seed=1)), "elements"
        )


__all__ = ["ScatterElements", "ScatterND"]
