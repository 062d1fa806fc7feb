"""Operators that move elements: every output element is one input element, elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Const, Expr, all_of, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Commutes, Operator, OpKind, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, factors
from weft_ops.examples import booleans, floats, integers
from weft_ops.shapes import (
    axes_of,
    axis_of,
    dim_ceildiv,
    dim_expr,
    dim_max,
    dim_min,
    dim_select,
    equals,
    expect_kind,
    expect_some,
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
from weft_ops.words import PAD_MODES, PadMode

ZERO = Const(0, dt.int64)


class Movement(Operator):
    """Exact: the elements are copied."""

    kind: ClassVar[OpKind] = "injective"

    def tolerance(self, *types: TensorType) -> float:
        return 0.0


# -- shapes -----------------------------------------------------------------------------------------------------------


def _groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[range, range]]:
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
    for old, new in _groups(source, shape):
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
    """That one of two sizes is 1 or both are equal, where only a run knows; what is certain shows as the shapes are put
    together."""
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


def slice_range(size: Dim, start: Dim | None, stop: Dim | None, step: Dim = 1) -> tuple[Dim, Dim]:
    """(first index, number of elements) of the Python slice start:stop:step of an axis of `size`; formulas where they
    are.

    None is Python's omitted bound. A step that is a formula may have either sign.
    """
    if isinstance(step, Expr):
        up, down = slice_range(size, start, stop, 1), slice_range(size, start, stop, -1)
        positive = dim_expr(step) > 0
        count_up, count_down = dim_ceildiv(up[1], dim_max(step, 1)), dim_ceildiv(down[1], dim_max(as_dim(-step), 1))
        return dim_select(positive, up[0], down[0]), dim_select(positive, count_up, count_down)

    def bound(i: Dim | None, default: Dim, lo: Dim, hi: Dim | None) -> Dim:
        if i is None:
            return default
        if isinstance(i, int):
            wrapped: Dim = i if i >= 0 else as_dim(size + i)
        else:
            wrapped = dim_select(i < 0, as_dim(i + size), i)
        if isinstance(wrapped, int) and wrapped == 0 and step > 0:
            return 0
        if isinstance(i, int) and i >= 2**31 - 1 and step > 0 and hi is not None:
            return hi
        if isinstance(i, int) and i <= -(2**31) + 1:
            return lo
        return dim_max(lo, wrapped if hi is None else dim_min(wrapped, hi))

    if step > 0:
        first, last = bound(start, 0, 0, size), bound(stop, size, 0, size)
        if isinstance(first, int) and first == 0:
            return first, dim_ceildiv(last, step)
        # Of a start beyond the end nothing is left anyway, so the shorter formula does: n - 1 elements or none rather
        # than n - min(n, 1).
        return first, dim_ceildiv(dim_max(as_dim(last - bound(start, 0, 0, None)), 0), step)
    top = as_dim(size - 1)
    first, last = bound(start, top, -1, top), bound(stop, -1, -1, top)
    return first, dim_ceildiv(dim_max(as_dim(first - last), 0), -step)


@dataclass(frozen=True)
class Slice(Movement):
    """Elements starts[d] + i · steps[d] for i < sizes[d], per axis d; all given for every axis, already inside the
    operand.

    See `slice_range` for bounds as Python writes them.
    """

    starts: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    steps: tuple[Dim, ...] = ()

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a number of starts, sizes or steps other than the rank, or an element certainly
        outside."""
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        for name, value in (("starts", self.starts), ("sizes", self.sizes), ("steps", self.steps or self.starts)):
            if len(value) != x.rank:
                raise GraphError(f"{name}: expected {x.rank} number(s), got {show(value)}")
        for d, (start, size, step, n) in enumerate(zip(self.starts, self.sizes, self.all_steps, x.shape)):
            if (
                isinstance(start, int)
                and isinstance(size, int)
                and isinstance(step, int)
                and isinstance(n, int)
                and size > 0
            ):
                last = start + (size - 1) * step
                if not (0 <= start < n and 0 <= last < n):
                    raise GraphError(f"dimension {d}: expected elements 0 … {n - 1}, got {start} … {last}")
                continue
            zero, count, first = dim_expr(0), dim_expr(n), dim_expr(start)
            end = first + (dim_expr(size) - 1) * step
            inside = all_of([e.le(zero, first), e.lt(first, count), e.le(zero, end), e.lt(end, count)])
            what = f"dimension {d}: expected elements below {{0}}, got {{1}} … {{2}}"
            holds = e.or_(e.le(dim_expr(size), zero), inside)
            assumed.append(Assumption(holds, (count, first, end), what, "slice inside the operand"))
        return Inferred(TensorType(x.dtype, self.sizes), assumed)

    @property
    def all_steps(self) -> tuple[Dim, ...]:
        return self.steps or (1,) * len(self.starts)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        start = self.starts[axis]
        return self.all_steps[axis] == 1 and isinstance(start, int) and start % factor == 0

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        for d, (start, size, step) in enumerate(zip(static(self.starts), static(self.sizes), static(self.all_steps))):
            x = np.take(x, start + step * np.arange(size), axis=d)
        return x

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        return compute(
            self.sizes,
            lambda *index: x[tuple(i * step + start for i, start, step in zip(index, self.starts, self.all_steps))],
            "slice",
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((0, 1), (2, 2)), (floats((2, 4)),), "unit")
        yield Sample(cls((1, 6), (2, 3), (2, -2)), (floats((4, 7)),), "steps")
        yield Sample(cls((0,), (0,)), (integers((3,)),), "empty")


@dataclass(frozen=True)
class Pad(Movement):
    """Elements added before and after: pads (begin…, end…) over all axes, negative to crop.

    mode "constant" takes the second input, a scalar (absent: zero); "edge", "reflect", "wrap" repeat elements as numpy
    does.
    """

    pads: tuple[Dim, ...]
    mode: PadMode = "constant"

    def pairs(self, rank: int) -> list[tuple[Dim, Dim]]:
        if len(self.pads) != 2 * rank:
            raise GraphError(f"pads: expected {2 * rank} numbers, got {show(self.pads)}")
        return list(zip(self.pads[:rank], self.pads[rank:]))

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a number of pads that does not fit, another mode, a value of another dtype, or no
        elements to repeat."""
        assumed: list[Assumption] = []
        x, *value = operands([t for t in types if t is not None])
        if self.mode not in PAD_MODES:
            raise GraphError(f"mode: expected constant, edge, reflect or wrap, got '{self.mode}'")
        if value:
            one_dtype([x, *value])
            if value[0].rank and static([product(value[0].shape)]) != (1,):
                raise GraphError(f"padding value: expected a scalar, got {show(value[0].shape)}")
        pairs = self.pairs(x.rank)
        if self.mode != "constant":
            for k, (d, (lo, hi)) in enumerate(zip(x.shape, pairs)):
                expect_some(d, dim_max(lo, hi), f"dimension {k}, whose elements are repeated", assumed)
        return Inferred(TensorType(x.dtype, tuple(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape, pairs))), assumed)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    @property
    def fill_operand(self) -> int | None:
        return 1 if self.mode == "constant" else None

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        return inputs[0] is not None and inputs[0].shape[axis] == output.shape[axis] and self.pads[axis] == 0

    def reference(self, *arrays: Array | None) -> Array:
        x, value = arrays if len(arrays) == 2 else (arrays[0], None)
        assert x is not None
        pads = [(static([lo])[0], static([hi])[0]) for lo, hi in self.pairs(x.ndim)]
        grow = [(max(lo, 0), max(hi, 0)) for lo, hi in pads]
        if self.mode == "constant":
            fill = np.zeros((), x.dtype) if value is None else value.reshape(())
            out = np.full([n + lo + hi for n, (lo, hi) in zip(x.shape, grow)], fill, x.dtype)
            out[tuple(slice(lo, lo + n) for n, (lo, _) in zip(x.shape, grow))] = x
        else:
            out = np.pad(x, grow, mode=self.mode)
        return out[tuple(slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(out.shape, pads))]

    def _repeated(self, k: Expr, n: Dim) -> Expr:
        """Which of `n` elements stands at `k` of an axis that goes on in both directions."""
        if self.mode == "edge":
            return e.minimum(e.maximum(k, 0), as_dim(n - 1))
        if self.mode == "wrap":
            return k % n
        period = dim_max(as_dim(n * 2 - 2), 1)
        k = k % period
        return select(k < n, k, e.wrap(period, dt.int64) - k)

    @algorithm("tensors")
    def direct(self, x: Tensor, value: Tensor | None = None) -> Tensor:
        pairs = self.pairs(x.rank)
        shape = tuple(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape, pairs))

        def constant(*index: Expr) -> Expr:
            at = [i - lo for i, (lo, _) in zip(index, pairs)]
            tests: list[Expr] = []
            for i, n, (lo, hi) in zip(at, x.shape, pairs):
                tests += [] if isinstance(lo, int) and lo <= 0 else [i >= 0]
                tests += [] if isinstance(hi, int) and hi <= 0 else [i < n]
            fill = const(0, x.dtype) if value is None else value[(ZERO,) * value.rank]
            return select(all_of(tests), x[tuple(at)], fill)

        def repeat(*index: Expr) -> Expr:
            at: list[Expr] = []
            for i, n, (lo, hi) in zip(index, x.shape, pairs):
                k = i - lo
                tests = [] if isinstance(lo, int) and lo <= 0 else [k >= 0]
                tests += [] if isinstance(hi, int) and hi <= 0 else [k < n]
                if tests:  # loops are cut there: what is copied as it lies needs no more than that
                    k = select(all_of(tests), k, self._repeated(k, n))
                at.append(k)
            return x[tuple(at)]

        return compute(shape, constant if self.mode == "constant" else repeat, "pad")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for mode in ("constant", "edge", "reflect", "wrap"):
            yield Sample(cls((1, 2, 2, 1), mode), (floats((3, 4)),), mode)
            yield Sample(cls((-1, 2, 0, -2), mode), (floats((4, 5)),), f"{mode}_crop")
            yield Sample(cls((4, 7), mode), (floats((3,)),), f"{mode}_far")
        yield Sample(cls((1, 0)), (integers((3,), "int32"), np.array(7, np.int32)), "value")
        yield Sample(cls((0, 0, 1, 0)), (booleans((2, 2)), None), "bool")


# -- by index ---------------------------------------------------------------------------------------------------------


def safe_index(index: Expr, size: Dim) -> Expr:
    """An index given as data, in range: negative ones count from the end, what is beyond is clamped."""
    i = cast_to(index, dt.int64)
    if index.dtype.kind == "int":
        i = select(i < 0, i + size, i)
    return e.maximum(e.minimum(i, as_dim(size - 1)), 0)


def clamp_indices(indices: Array, size: int) -> Array:
    """`safe_index` by numpy."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, max(size - 1, 0))


@dataclass(frozen=True)
class Gather(Movement):
    """Slices of x along `axis` by integer indices (numpy's take): x.shape[:axis] + indices.shape + x.shape[axis + 1:].

    Negative indices count from the end; those out of range are clamped.
    """

    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, ("int", "uint"), "indices")
        axis = axis_of(self.axis, x.rank)
        return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        return np.asarray(np.take(x, clamp_indices(indices, x.shape[self.axis]), axis=self.axis))

    @algorithm("tensors")
    def direct(self, x: Tensor, indices: Tensor) -> Tensor:
        axis, r = axis_of(self.axis, x.rank), indices.rank

        def formula(*i: Expr) -> Expr:
            return x[(*i[:axis], safe_index(indices[i[axis : axis + r]], x.shape[axis]), *i[axis + r :])]

        return compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), formula, "gather")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(0), (floats((5, 3)), np.array([[0, -1], [4, 2]])), "rows")
        yield Sample(cls(1), (floats((2, 4, 3)), np.array([3, 0, -4], np.int32)), "middle")
        yield Sample(cls(-1), (integers((2, 4)), np.array(2)), "scalar")
        yield Sample(cls(0), (floats((3, 2)), np.array([7, -9])), "clamped")


@dataclass(frozen=True)
class GatherElements(Movement):
    """numpy's take_along_axis: out[i…] = x[i… with indices[i…] at `axis`]; indices as in Gather."""

    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, ("int", "uint"), "indices")
        axis_of(self.axis, x.rank)
        if indices.rank != x.rank:
            raise GraphError(f"indices: expected {x.rank} dimension(s), got {show(indices.shape)}")
        return TensorType(x.dtype, indices.shape)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        axis = self.axis % x.ndim
        at: list[Any] = list(np.indices(indices.shape, sparse=True))
        at[axis] = clamp_indices(indices, x.shape[axis])
        return np.asarray(x[tuple(at)])

    @algorithm("tensors")
    def direct(self, x: Tensor, indices: Tensor) -> Tensor:
        axis = axis_of(self.axis, x.rank)
        return compute(
            indices.shape, lambda *i: x[(*i[:axis], safe_index(indices[i], x.shape[axis]), *i[axis + 1 :])], "gather"
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(1), (floats((3, 4)), np.array([[0, -1], [3, 1], [2, 2]])), "columns")
        yield Sample(cls(0), (floats((3, 4)), np.array([[0, 1, 2]], np.int32)), "rows")


# -- from nothing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Iota(Movement):
    """0, 1, 2, … along `axis` of a new tensor."""

    dtype: DType
    shape: tuple[Dim, ...]
    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        expect_kind(self.dtype, ("int", "uint", "float"), "dtype")
        axis_of(self.axis, len(self.shape))
        return TensorType(self.dtype, self.shape)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def reference(self, *arrays: Array | None) -> Array:
        shape, axis = static(self.shape), axis_of(self.axis, len(self.shape))
        line = np.arange(shape[axis]).astype(self.dtype.numpy)
        return np.broadcast_to(line.reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape).copy()

    @algorithm("tensors")
    def direct(self) -> Tensor:
        return compute(self.shape, lambda *i: cast_to(i[self.axis], self.dtype), "iota")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.int64, (5,)), (), "int64")
        yield Sample(cls(dt.float32, (2, 3), -1), (), "float32")


@dataclass(frozen=True)
class Fill(Movement):
    """A new tensor of one value."""

    dtype: DType
    shape: tuple[Dim, ...]
    value: float = 0

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        return TensorType(self.dtype, self.shape)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def reference(self, *arrays: Array | None) -> Array:
        return np.full(static(self.shape), self.value).astype(self.dtype.numpy)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        return compute(self.shape, lambda *i: const(self.value, self.dtype), "fill")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.float32, (2, 3), 1.5), (), "float32")
        yield Sample(cls(dt.int64, (), 7), (), "scalar")
        yield Sample(cls(dt.bool_, (0, 2), 1), (), "empty")


@dataclass(frozen=True)
class Dims(Movement):
    """The numbers that formulas give, as a vector: how a dimension becomes data."""

    values: tuple[Dim, ...]
    dtype: DType = dt.int64

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        expect_kind(self.dtype, ("int", "uint", "float"), "dtype")
        return TensorType(self.dtype, (len(self.values),))

    def reference(self, *arrays: Array | None) -> Array:
        return np.array(static(self.values), np.int64).astype(self.dtype.numpy)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        def formula(i: Expr) -> Expr:
            value: Expr = const(0, dt.int64)
            for k, d in reversed(list(enumerate(self.values))):
                value = dim_expr(d) if k == len(self.values) - 1 else select(e.eq(i, k), dim_expr(d), value)
            return cast_to(value, self.dtype)

        return compute((len(self.values),), formula, "dims")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((3, 1, 4)), (), "int64")
        yield Sample(cls((7,), dt.float32), (), "float32")
        yield Sample(cls(()), (), "empty")


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
