"""Elements taken and put by indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_ops.shapes import dim_expr, product
from weft_ops.words import Reduction
from weft_torch.context import Context, Number
from weft_torch.converters.movement import axis, tidy
from weft_torch.registry import op


def counted(c: Context, x: Value, size: Dim) -> Value:
    """Indices that may not be negative."""
    return c.within(x, 0, as_dim(dim_expr(size) - 1), "index")


@op("aten.embedding")
def embedding(c: Context, table: Value, indices: Value, padding: int = -1, *_: Any) -> Value:
    found = c(ops.Gather(0), table, counted(c, indices, table.shape[0]))
    if not isinstance(padding, int) or padding < 0:
        return found
    unlearned = c.reshape(c(ops.Equal(), indices, padding), (*indices.shape, 1))
    return c(ops.Detach(), found, unlearned)


@op("aten.index_select", "aten.index_select_backward")
def index_select(c: Context, x: Value, dim: int, indices: Value) -> Value:
    if not x.shape:
        return x
    d = axis(dim, len(x.shape))
    return c(ops.Gather(d), x, counted(c, c.reshape(indices, (product(indices.shape),)), x.shape[d]))


@op("aten.take")
def take(c: Context, x: Value, indices: Value) -> Value:
    size = product(x.shape)
    return c(ops.Gather(0), c.reshape(x, (size,)), c.indices(indices, size))


# -- by several indices at once ---------------------------------------------------------------------------------------


class Places:
    """Index tensors of some axes of an operand, as PyTorch takes them: the operand seen as [indexed, rest…], and one
    index into its first axis, of the shape to which the index tensors broadcast."""

    def __init__(self, c: Context, x: Value, given: Sequence[Value | None]) -> None:
        indices = _without_masks(c, x, given)
        self.axes = [d for d, i in enumerate(indices) if i is not None]
        found = [i for i in indices if i is not None]
        self.rest = [d for d in range(len(x.shape)) if d not in self.axes]
        self.shape = x.shape
        sizes = [x.shape[d] for d in self.axes]
        places = []
        for i, n in zip(found, sizes):
            i = c.indices(c.cast(i, dt.int64), n)
            places.append(c(ops.Where(), c(ops.Less(), i, 0), c.add(i, c.dim(n)), i))
        flat = places[0]
        for i, n in zip(places[1:], sizes[1:]):
            flat = c.add(c.mul(flat, c.dim(n)), i)
        self.index = flat
        self.operand = self.gathered(c, x)

    def gathered(self, c: Context, x: Value) -> Value:
        """[indexed, rest…] of a tensor of the operand's shape."""
        moved = c.transpose(x, (*self.axes, *self.rest))
        n = len(self.axes)
        return c.reshape(moved, (product(moved.shape[:n]), *moved.shape[n:]))

    def spread(self, c: Context, y: Value) -> Value:
        """The inverse of `gathered`."""
        order = (*self.axes, *self.rest)
        y = c.reshape(y, tuple(self.shape[d] for d in order))
        back = sorted(range(len(order)), key=lambda k: order[k])
        return c.transpose(y, back)

    @property
    def before(self) -> int:
        """How many of the other axes come before those of the indices: none, where the indexed ones are apart."""
        together = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        return self.axes[0] if together else 0

    def arranged(self, c: Context, y: Value) -> Value:
        """[index axes…, rest…] with the axes in PyTorch's order."""
        n, rank = len(self.index.shape), len(y.shape)
        k = self.before
        return c.transpose(y, (*range(n, n + k), *range(n), *range(n + k, rank)))

    def disarranged(self, c: Context, y: Value) -> Value:
        """The inverse of `arranged`."""
        n, rank = len(self.index.shape), len(y.shape)
        k = self.before
        return c.transpose(y, (*range(k, k + n), *range(k), *range(k + n, rank)))


def _without_masks(c: Context, x: Value, given: Sequence[Value | None]) -> list[Value | None]:
    """Index tensors, a mask being the places where it holds; those of tensors left out at the end are None."""
    found: list[Value | None] = []
    for index in given:
        if index is None or not (index.dtype.is_bool or index.dtype == dt.uint8):
            found.append(index)
            continue
        places = nonzero_places(c, index)
        found += [c.pick(places, 0, k) for k in range(len(index.shape))]
    return found + [None] * (len(x.shape) - len(found))


def nonzero_places(c: Context, x: Value) -> Value:
    """The indices of the elements that are not zero: [rank, number]."""
    found = c.importer.demanded(c(ops.CountNonZero(), x))
    assert found is not None
    return c(ops.NonZero(as_dim(found.dims()[0])), x)


@op("aten.nonzero", "aten.argwhere")
def nonzero(c: Context, x: Value) -> Value:
    if not x.shape:  # rows of no elements
        return c.slice(c.transpose(nonzero_places(c, c.reshape(x, (1,))), (1, 0)), 1, 0, 0)
    return c.transpose(nonzero_places(c, x), (1, 0))


@op("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(c: Context, x: Value, given: Sequence[Value | None]) -> Value:
    found = [i for i in given if i is not None]
    if not found:
        return x
    if len(found) == 1 and not found[0].dtype.is_bool and found[0].dtype != dt.uint8:
        d = given.index(found[0])
        return c(ops.Gather(d), x, c.indices(found[0], x.shape[d]))
    places = Places(c, x, given)
    return places.arranged(c, c(ops.Gather(0), places.operand, places.index))


@op("aten.masked_select")
def masked_select(c: Context, x: Value, mask: Value) -> Value:
    x, mask = _broadcast(c, x, mask)
    flat = c.reshape(mask, (product(mask.shape),))
    places = c.pick(nonzero_places(c, flat), 0, 0)
    return c(ops.Gather(0), c.reshape(x, (product(x.shape),)), places)


def _broadcast(c: Context, x: Value, y: Value) -> tuple[Value, Value]:
    import torch

    shape = torch.broadcast_shapes(c.fakes[0].shape, c.fakes[1].shape)
    sizes = tuple(c.size(d) for d in shape)
    return c.broadcast(x, sizes), c.broadcast(y, sizes)


@op("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(c: Context, x: Value, given: Sequence[Value | None], values: Value, accumulate: bool, *_: Any) -> Value:
    found = [i for i in given if i is not None]
    if len(found) == 1 and found[0].dtype.is_bool and given[0] is found[0] and not values.shape and not accumulate:
        mask = found[0]
        mask = c.reshape(mask, (*mask.shape, *([1] * (len(x.shape) - len(mask.shape)))))
        return c(ops.Where(), mask, c.cast(values, x.dtype), x)
    if not found:
        return c.broadcast(c.cast(values, x.dtype), x.shape)
    places = Places(c, x, given)
    k = places.before
    rest = [x.shape[d] for d in places.rest]
    shape = (*rest[:k], *places.index.shape, *rest[k:])
    values = places.disarranged(c, c.broadcast(c.cast(values, x.dtype), shape))
    at = c.reshape(places.index, (*places.index.shape, 1))
    put = c(ops.ScatterND("add" if accumulate else "none"), places.operand, at, values)
    return places.spread(c, put)


# -- along one axis ---------------------------------------------------------------------------------------------------


def _cut(c: Context, x: Value, like: Value, but: int | None = None) -> Value:
    """The first elements of `x` along every axis (except `but`), as many as `like` has."""
    for d in range(len(x.shape)):
        if d != but and x.shape[d] != like.shape[d]:
            x = c.slice(x, d, 0, like.shape[d])
    return x


@op("aten.gather")
def gather(c: Context, x: Value, dim: int, indices: Value, *_: Any) -> Value:
    if not x.shape or not indices.shape:
        flat = c.gather(c.reshape(x, (-1,)), c.reshape(indices, (-1,)), 0)
        return c.reshape(flat, indices.shape)
    d = axis(dim, len(x.shape))
    if product(indices.shape) == 0:
        return c(ops.Fill(x.dtype, indices.shape, 0))
    indices = counted(c, indices, x.shape[d])
    return c(ops.GatherElements(d), _cut(c, x, indices, d), indices)


def scattered(c: Context, x: Value, dim: int, indices: Value, updates: Value, reduction: Reduction) -> Value:
    if product(indices.shape) == 0:
        return x
    if not x.shape:
        x1, i1, u1 = (c.reshape(v, (1,)) for v in (x, indices, updates))
        return c.reshape(c(ops.ScatterElements(0, reduction), x1, i1, u1), ())
    if not indices.shape:
        indices, updates = c.reshape(indices, (1,)), c.reshape(updates, (1,))
    d = axis(dim, len(x.shape))
    return c(ops.ScatterElements(d, reduction), x, counted(c, indices, x.shape[d]), _cut(c, updates, indices))


@op("aten.scatter.src", "aten.scatter.value", "aten.scatter_add", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter(c: Context, x: Value, dim: int, indices: Value, source: Any, reduce: str = "none") -> Value:
    reductions: dict[str, Reduction] = {"none": "none", "add": "add", "multiply": "mul"}
    kind = "add" if c.op_type.endswith("scatter_add") else reductions[reduce]
    updates = c.to(source, x.dtype)
    updates = updates if isinstance(source, Value) and len(updates.shape) else c.broadcast(updates, indices.shape)
    return scattered(c, x, dim, indices, updates, kind)


@op("aten.index_reduce")
def index_reduce(c: Context, x: Value, dim: int, indices: Value, source: Value, reduce: str, own: bool) -> Value:
    if not x.shape:
        x, indices, source = (c.reshape(v, (1,)) for v in (x, indices, source))
        return c.reshape(index_reduce(c, x, 0, indices, source, reduce, own), ())
    places = _along(c, x, dim, indices, source)
    return scatter_reduce(c, x, dim, places, source, reduce, own)


@op("aten.scatter_reduce.two")
def scatter_reduce(c: Context, x: Value, dim: int, indices: Value, source: Value, reduce: str, own: bool) -> Value:
    kinds: dict[str, Reduction] = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
    kind = kinds[reduce]
    updates = _cut(c, source, indices) if source.shape else source
    base = x
    if not own:
        start = c.broadcast(_neutral(c, kind, x), indices.shape)
        base = scattered(c, x, dim, indices, start, "none")
    found = scattered(c, base, dim, indices, updates, kind)
    if reduce != "mean":
        return found
    one = c.number(1, x.dtype)
    counts = c.broadcast(one if own else c.number(0, x.dtype), x.shape)
    counts = scattered(c, counts, dim, indices, c.broadcast(one, indices.shape), "add")
    if x.dtype.is_integer:
        from weft_torch.converters.elementwise import floor_divided

        return floor_divided(c, found, c(ops.Maximum(), counts, 1))
    return c.div(found, c(ops.Maximum(), counts, 1))


def _neutral(c: Context, kind: Reduction, x: Value) -> Value:
    import numpy as np

    if kind in ("add", "mul"):
        return c.number(0 if kind == "add" else 1, x.dtype)
    if x.dtype.is_float:
        return c.number(-np.inf if kind == "max" else np.inf, x.dtype)
    limits = np.iinfo(x.dtype.numpy)
    return c.number(int(limits.min if kind == "max" else limits.max), x.dtype)


def _along(c: Context, x: Value, dim: int, indices: Value, like: Value) -> Value:
    """Indices along an axis, spread over the shape of what is put there."""
    d = axis(dim, len(like.shape))
    flat = c.reshape(indices, tuple(product(indices.shape) if k == d else 1 for k in range(len(like.shape))))
    return c.broadcast(counted(c, flat, x.shape[d]), like.shape)


@op("aten.index_add", "aten.index_copy", "aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_add(c: Context, x: Value, dim: int, indices: Value, source: Any, alpha: Number = 1) -> Value:
    whole = x.shape
    if not whole:
        x = c.reshape(x, (1,))
    updates = c.to(source, x.dtype)
    if "fill" in c.op_type:
        d = axis(dim, len(x.shape))
        updates = c.broadcast(updates, (*x.shape[:d], product(indices.shape), *x.shape[d + 1 :]))
    elif not updates.shape:
        updates = c.reshape(updates, (1,))
    if alpha != 1:
        updates = c.mul(updates, c.to(alpha, x.dtype))
    places = _along(c, x, dim, indices, updates)
    put = c(ops.ScatterElements(axis(dim, len(x.shape)), "add" if "add" in c.op_type else "none"), x, places, updates)
    return c.reshape(put, whole)


@op("aten.masked_scatter")
def masked_scatter(c: Context, x: Value, mask: Value, source: Value) -> Value:
    """The k-th element of the source where the mask holds the k-th time."""
    mask = c.broadcast(mask, x.shape)
    flat = c.cast(c.reshape(mask, (product(mask.shape),)), dt.int64)
    place = c(ops.Maximum(), c.sub(c(ops.CumSum(0), flat), 1), 0)
    size = product(source.shape)
    taken = c(ops.Gather(0), c.reshape(source, (size,)), counted(c, place, size))
    return c(ops.Where(), mask, c.reshape(taken, x.shape), x)


@op("aten.put")
def put(c: Context, x: Value, indices: Value, source: Value, accumulate: bool) -> Value:
    size, count = product(x.shape), product(indices.shape)
    flat, at, updates = c.reshape(x, (size,)), c.reshape(indices, (count,)), c.reshape(source, (count,))
    made = ops.ScatterElements(0, "add" if accumulate else "none")
    return c.reshape(c(made, flat, c.indices(at, size), updates), x.shape)


@op("aten.nonzero_static")
def nonzero_static(c: Context, x: Value, size: int, fill: int) -> Value:
    if not x.shape:
        return c(ops.Fill(dt.int64, c.result_shape(), fill))
    found = c.transpose(c(ops.NonZero(size), x), (1, 0))
    held = c(ops.Less(), c(ops.Iota(dt.int64, (size,))), c(ops.CountNonZero(), x))
    return c(ops.Where(), c.reshape(held, (size, 1)), found, fill)


@op("aten._embedding_bag_forward_only", "aten._embedding_bag")
def embedding_bag(
    c: Context, table: Value, indices: Value, offsets: Value, scaled: bool, mode: int, sparse: bool,
    weights: Value | None, last: bool, padding: int,
) -> list[Value | None]:  # fmt: skip
    """Rows of each bag: those from its offset to the next."""
    if any(user.args[1] != 0 for user in c.node.users):
        raise c.unsupported("what it keeps for gradients")
    bags = as_dim(dim_expr(offsets.shape[0]) - 1) if last else offsets.shape[0]
    n, width = indices.shape[0], table.shape[1]
    rows = c(ops.Gather(0), table, counted(c, indices, table.shape[0]))
    if weights is not None:
        rows = c.mul(rows, c.reshape(weights, (n, 1)))
    place = c(ops.Iota(dt.int64, (n,)))
    starts = c.reshape(c.cast(c.slice(offsets, 0, 0, bags), dt.int64), (bags, 1))
    after = c.builder.constant([2**62])
    bounds = c.concat([c.cast(offsets, dt.int64), after], 0)
    ends = c.reshape(c.slice(bounds, 0, 1, bags), (bags, 1))
    inside = c(ops.LogicalAnd(), c(ops.LessEqual(), starts, place), c(ops.Less(), place, ends))
    if padding >= 0:
        inside = c(ops.LogicalAnd(), inside, c(ops.NotEqual(), indices, padding))
    counts = c(ops.ReduceSum((1,), True), c.cast(inside, rows.dtype))
    if mode == 2:
        spread = c(ops.Where(), c.reshape(inside, (bags, n, 1)), c.reshape(rows, (1, n, width)), float("-inf"))
        found = c(ops.Where(), c(ops.Equal(), counts, 0), 0.0, c(ops.ReduceMax((1,), False), spread))
    else:
        spread = c(ops.Where(), c.reshape(inside, (bags, n, 1)), c.reshape(rows, (1, n, width)), 0.0)
        found = c.sum(spread, (1,), False)  # no product with 0 and 1: a row that is infinite counts in its bag alone
        found = c.div(found, c(ops.Maximum(), counts, 1)) if mode == 1 else found
    return [found, None, None, None]


@op("aten.searchsorted.Tensor", "aten.bucketize.Tensor")
def searchsorted(c: Context, first: Value, second: Value, *options: Any) -> Value:
    """How many of the sorted elements come before each: all are compared."""
    ordered, x = (second, first) if "bucketize" in c.op_type else (first, second)
    right = bool(options[1])
    if "bucketize" not in c.op_type and (options[2] == "right" or options[3] is not None):
        right = options[2] == "right"
        if options[3] is not None:
            raise c.unsupported("a sorter")
    if len(ordered.shape) == 1:
        ordered = c.reshape(ordered, (*([1] * len(x.shape)), *ordered.shape))
    else:
        ordered = c.reshape(ordered, (*ordered.shape[:-1], 1, ordered.shape[-1]))
    dtype = c.promoted(0, 1)
    held = c(
        ops.LessEqual() if right else ops.Less(), c.cast(ordered, dtype), c.cast(c.reshape(x, (*x.shape, 1)), dtype)
    )
    if dtype.is_float:  # NaN comes behind all
        held = c(ops.LogicalOr(), held, c(ops.IsNan(), c.cast(c.reshape(x, (*x.shape, 1)), dtype)))
    return c.cast(c(ops.ReduceSum((-1,), False), c.cast(held, dt.int64)), c.result_dtype())


@op("aten._local_scalar_dense", "aten.item")
def item(c: Context, x: Value) -> Any:
    """An element that sizes depend on: a symbol that only the run knows."""
    fake = c.node.meta.get("val")
    expression = getattr(getattr(fake, "node", None), "expr", None)
    if expression is None or not expression.is_Symbol or not x.dtype.is_integer:
        raise c.unsupported(f"a Python number of {x.dtype} that only the run knows")
    found = c.differences(c.within(c.cast(c.reshape(x, (1,)), dt.int64), -(2**40), 2**40, "element"), "element")
    c.importer.symbols[expression.name] = tidy(found[0])
    from weft_frontend import contents as ct

    return ct.content(dt.int64, [c.importer.symbols[expression.name]], ())


__all__ = ["counted", "nonzero_places"]
