"""Operators that move elements: every output element is one input element, elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Gradients, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, factors
from weft_ops.examples import booleans, floats, integers
from weft_ops.filling import Dims, Fill, Iota
from weft_ops.gathering import Gather, GatherElements
from weft_ops.moving import ZERO, Movement, composer
from weft_ops.shapes import (
    axes_of,
    axis_of,
    dim_expr,
    equals,
    is_one,
    one_dtype,
    operands,
    product,
    quotient,
    same,
    show,
    simplified,
    static,
    unify,
)
from weft_ops.slicing import Pad, Slice, slice_range

# -- shapes -----------------------------------------------------------------------------------------------------------


def common_runs(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[range, range]]:
    """Cuts two shapes of one product into the shortest runs of axes whose products agree."""
    result: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        i0, j0 = i, j
        i, j = min(i + 1, len(a)), min(j + 1, len(b))
        while factors(a[i0:i]) != factors(b[j0:j]) and (i < len(a) or j < len(b)):
            (n, p), (m, q) = factors(a[i0:i]), factors(b[j0:j])
            # Advance the side that lacks something; numbers decide unless only symbols differ.
            behind = (n < m or (m % n != 0 and n % m == 0)) if n != m else bool(q - p)
            if (behind and i < len(a)) or j == len(b):
                i += 1
            else:
                j += 1
        result.append((range(i0, i), range(j0, j)))
    return result


def reshape_index(index: Sequence[Expr], shape: Sequence[Dim], source: Sequence[Dim]) -> tuple[Expr, ...]:
    """Indices into `source` of the element that has `index` in `shape`, row-major; axes that agree keep their index."""
    result: list[Expr] = []
    if any(isinstance(d, int) and d == 0 for d in (*shape, *source)):
        return (ZERO,) * len(source)  # no element exists
    for old, new in common_runs(source, shape):
        flat: Expr = ZERO
        for k in new:
            if not is_one(shape[k]):
                flat = flat * dim_expr(shape[k]) + index[k]
        rest = [k for k in old if not is_one(source[k])]
        where: dict[int, Expr] = {}
        for place, k in enumerate(rest):
            stride = product([source[m] for m in rest[place + 1 :]])
            i = flat if is_one(stride) else flat // stride
            where[k] = i % source[k] if place else i
        result += [where.get(k, ZERO) for k in old]
    return tuple(result)


@dataclass(frozen=True)
class Reshape(Movement):
    """The elements in row-major order in another shape; one dimension may be -1, which is what remains."""

    shape: tuple[Dim, ...]
    is_view = True

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError if the shapes certainly differ in size."""
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        return Inferred(TensorType(x.dtype, self.out_shape(x.shape, assumed)), assumed)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        return (builder.add(Reshape(x.shape), g),)

    def out_shape(self, shape: Sequence[Dim], assumed: list[Assumption]) -> tuple[Dim, ...]:
        unknown = [k for k, d in enumerate(self.shape) if isinstance(d, int) and d == -1]
        if len(unknown) > 1:
            raise GraphError(f"expected at most one -1, got shape {show(self.shape)}")
        result = list(self.shape)
        if unknown:
            k = unknown[0]
            others = [*result[:k], *result[k + 1 :]]
            result[k] = quotient(shape, others)
            if isinstance(product(others), int) and product(others) == 0:
                result[k] = 0
        before, after = product(shape), product(result)
        equal = same(before, after)
        if equal is False:
            raise GraphError(
                f"expected a shape of {before} elements, got {show(self.shape)}", where=f"reshape of {show(shape)}"
            )
        if equal is None:
            assumed.append(Assumption.equal(before, after, "number of elements"))
        return tuple(result)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return x.reshape(static(self.out_shape(x.shape, [])))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        shape = self.out_shape(x.shape, [])
        return compute(shape, lambda *i: x[reshape_index(i, shape, x.shape)], "reshape")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((2, 3, 4, 6))
        for k, shape in enumerate(
            [(6, 24), (2, 12, 6), (144,), (2, 1, 3, 24), (4, 3, 2, 6), (2, -1, 8), (2, 3, 4, 6, 1)]
        ):
            yield Sample(cls(shape), (x,), f"shape{k}")
        yield Sample(cls(()), (floats((1, 1)),), "scalar")
        yield Sample(cls((1, 1)), (floats(()),), "from_scalar")
        yield Sample(cls((0, 5)), (floats((3, 0)),), "empty")


@dataclass(frozen=True)
class Transpose(Movement):
    """The axes in another order: output axis k is input axis axes[k]."""

    axes: tuple[int, ...]

    def order(self, rank: int) -> tuple[int, ...]:
        axes = axes_of(self.axes, rank)
        if len(axes) != rank:
            raise GraphError(f"axes: expected a permutation of {rank}, got {self.axes}")
        return axes

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        return TensorType(x.dtype, tuple(x.shape[k] for k in self.order(x.rank)))

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (g,) = gradients
        assert g is not None
        order = self.order(len(g.shape))
        return (builder.add(Transpose(tuple(order.index(k) for k in range(len(order)))), g),)

    def permutation(self, rank: int) -> tuple[int, ...] | None:
        return self.order(rank)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return arrays[0].transpose(self.order(arrays[0].ndim))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        order = self.order(x.rank)
        return compute(
            [x.shape[k] for k in order], lambda *i: x[tuple(i[order.index(k)] for k in range(x.rank))], "transpose"
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((0, 2, 3, 1)), (floats((2, 3, 4, 5)),), "nhwc")
        yield Sample(cls((-1, 0)), (integers((3, 4)),), "matrix")
        yield Sample(cls(()), (floats(()),), "scalar")


def _fit(axis: int, x: Dim, y: Dim) -> list[Assumption]:
    """That one of two sizes is 1 or both are equal, where that is known only at run time; what is certain shows as the
    shapes are put together."""
    if is_one(x) or is_one(y) or same(x, y) is not None:
        return []
    holds = e.any_of([*(equals(d, 1) for d in (x, y) if isinstance(d, Expr)), equals(x, y)])
    what = f"dimension {axis}: {{0}} does not broadcast with {{1}}"
    return [Assumption(holds, (dim_expr(x), dim_expr(y)), what, "")]


@dataclass(frozen=True)
class BroadcastTo(Movement):
    """The operand broadcast with `shape` (both ways, as ONNX's Expand: a 1 in `shape` keeps the operand's dimension).

    Where it is known only at run time whether a dimension is 1, formulas choose.
    """

    shape: tuple[Dim, ...]

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        return gradients  # whoever asked sums it over what was broadcast

    def out_shape(self, shape: Sequence[Dim], assumed: list[Assumption]) -> tuple[Dim, ...]:
        rank = max(len(shape), len(self.shape))
        a = (1,) * (rank - len(shape)) + tuple(shape)
        b = (1,) * (rank - len(self.shape)) + self.shape
        result: list[Dim] = []
        for k, (x, y) in enumerate(zip(a, b)):
            assumed += _fit(k, x, y)
            if is_one(y) or (isinstance(x, int) and x != 1 and isinstance(y, Expr)):
                result.append(x)
            elif is_one(x) or same(x, y):
                result.append(y)
            elif isinstance(x, int) or (isinstance(y, int) and y == 0):
                result.append(unify(x, y, f"dimension {k}", assumed))
            else:
                # x is a formula: 1 (then the result is y), or equal to y or faced by 1 (then it is x).
                result.append(y if isinstance(y, int) else as_dim(select(equals(x, 1), dim_expr(y), dim_expr(x))))
        return tuple(result)

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        return Inferred(TensorType(x.dtype, self.out_shape(x.shape, assumed)), assumed)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return np.broadcast_to(x, static(self.out_shape(x.shape, []))).copy()

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        shape = self.out_shape(x.shape, [])

        def formula(*index: Expr) -> Expr:
            at: list[Expr] = []
            for i, size, out in zip(index[len(shape) - x.rank :], x.shape, shape[len(shape) - x.rank :]):
                certain = isinstance(size, int) or same(size, out)
                at.append(ZERO if is_one(size) else i if certain else select(equals(size, 1), ZERO, i))
            return x[tuple(at)]

        return compute(shape, formula, "broadcast")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((2, 3, 4)), (floats((3, 1)),), "grow")
        yield Sample(cls((1, 4)), (floats((3, 1)),), "both")
        yield Sample(cls((3,)), (integers(()),), "scalar")
        yield Sample(cls((1,)), (booleans((2, 3)),), "keep")


# -- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Concat(Movement):
    """The operands one after another along `axis`."""

    axis: int = 0

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for no operands, different dtypes, or other dimensions that differ."""
        assumed: list[Assumption] = []
        given = operands(types)
        if not given:
            raise GraphError("expected at least one operand, got none")
        dtype = one_dtype(given)
        axis = axis_of(self.axis, given[0].rank)
        shape = list(given[0].shape)
        for k, t in enumerate(given[1:], 1):
            if t.rank != len(shape):
                raise GraphError(f"operand {k}: expected {len(shape)} dimension(s), got {show(t.shape)}")
            for d in range(len(shape)):
                shape[d] = (
                    as_dim(shape[d] + t.shape[d])
                    if d == axis
                    else unify(shape[d], t.shape[d], f"operand {k}, dimension {d}", assumed)
                )
            if k % 16 == 0:
                shape[axis] = simplified(shape[axis])  # n + n + … as a product
        return Inferred(TensorType(dtype, tuple(shape)), assumed)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def elements_of(self, count: int) -> tuple[int, ...]:
        return tuple(range(count))

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        return True

    def reference(self, *arrays: Array | None) -> Array:
        return np.concatenate([a for a in arrays if a is not None], self.axis)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The parts of the gradient."""
        (g,) = gradients
        assert g is not None
        c, axis = composer(builder), axis_of(self.axis, len(g.shape))
        parts: list[Value | None] = []
        start: Dim = 0
        for x in node.inputs:
            assert x is not None
            parts.append(g if len(node.inputs) == 1 else c.slice(g, axis, start, x.shape[axis]))
            start = simplified(as_dim(start + x.shape[axis]))
        return parts

    @algorithm("tensors")
    def direct(self, *xs: Tensor) -> Tensor:
        axis = axis_of(self.axis, xs[0].rank)
        starts: list[Dim] = [0]
        for x in xs:
            starts.append(
                as_dim(starts[-1] + x.shape[axis])
                if len(starts) % 16
                else simplified(as_dim(starts[-1] + x.shape[axis]))
            )
        shape = (*xs[0].shape[:axis], starts[-1], *xs[0].shape[axis + 1 :])

        def choose(lo: int, hi: int, index: Sequence[Expr]) -> Expr:
            # A balanced tree of conditions: as deep as the logarithm of the number of operands.
            if hi - lo == 1:
                return xs[lo][(*index[:axis], index[axis] - starts[lo], *index[axis + 1 :])]
            middle = (lo + hi) // 2
            return select(index[axis] < starts[middle], choose(lo, middle, index), choose(middle, hi, index))

        return compute(shape, lambda *i: choose(0, len(xs), i), "concat")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(1), (floats((2, 3, 2)), floats((2, 1, 2)), floats((2, 4, 2))), "middle")
        yield Sample(cls(-1), (integers((2, 3)), integers((2, 2))), "last")
        yield Sample(cls(0), (floats((2,)), floats((0,)), floats((3,)), floats((1,)), floats((2,))), "five")
        yield Sample(cls(0), (booleans((2,)),), "one")


__all__ = [
    "BroadcastTo",
    "Concat",
    "Dims",
    "Fill",
    "Gather",
    "GatherElements",
    "Iota",
    "Pad",
    "Reshape",
    "Slice",
    "Transpose",
    "reshape_index",
    "slice_range",
]
