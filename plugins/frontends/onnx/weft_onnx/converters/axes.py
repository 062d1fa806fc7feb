"""Axes of one element: Squeeze and Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Expr, any_of, free_vars, lt, ne
from weft.expr.ranges import Range
from weft.expr.simplify import prove
from weft.graph.identity import Require
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.cases import case_of, fork_at, in_cases
from weft_frontend.operands import Scope
from weft_onnx.bodies import reopened
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr, dim_select, equals, product


def _axes(c: Context, attribute_until: int, operand: int, rank: int) -> tuple[int, ...] | None:
    """Axes that are an attribute up to a version and an operand after it."""
    axes = c.integers("axes") if c.version <= attribute_until else c.numbers(operand, "axes")
    return None if axes is None else tuple(axis_of(a, rank) for a in axes)


def _runtime_axes(c: Context, operand: int) -> bool:
    return c.version >= 13 and c.given(operand) and c.known(operand) is None


@onnx_op("Squeeze")
def squeeze(c: Context) -> Any:
    x = c.value(0)
    if _runtime_axes(c, 1):
        axes = c.runtime_axes(1, len(x.shape))
        assert axes is not None
        for axis in axes:
            size = _at(axis, x.shape)
            x = c.required(
                x,
                Require(
                    size,
                    1,
                    1,
                    "axis {0} has {1} element(s), only axes of one element are squeezed",
                    (axis, size),
                    c.op_type,
                ),
            )
        # The axes to go have one element each: summing over them is reshaping.
        return c.reshape(x, ops.ReduceSum(axes, False).out_shape(x.shape))
    if _axes(c, 12, 1, len(x.shape)) is None and any(isinstance(d, Expr) for d in x.shape):
        if not c.scope.prefix and c.node.output[0] in {o.name for o in c.importer.proto.graph.output}:
            return c.builder.add(ops.Squeezed(), x)
        return _squeezed(c, x, 0)
    return c.reshape(x, squeezed_shape(c, x.shape))


def _squeezed(c: Context, x: Value, start: int) -> Any:
    """`x` without its axes of one element from `start` on. What follows is converted both for an axis of one element
    and for one of others, where only the run knows the size."""
    positive = {name: Range(0, None) for d in x.shape if isinstance(d, Expr) for name in free_vars(d)}
    axis, size = next(
        ((k, d) for k, d in enumerate(x.shape) if k >= start and isinstance(d, Expr) and _may_be_one(d, positive)),
        (0, None),
    )
    if size is None:
        return c.reshape(x, tuple(d for d in x.shape if d != 1))
    one, known = equals(size, 1), case_of(c.importer, equals(size, 1))
    if known is None:
        described = f"axis {axis} of the operand of '{c.name}'"
        texts = (f"{described} has 1 element", f"{described} has not 1 element")
        fork = fork_at(c.importer, c.cast(c.dim(dim_select(one, 1, 0)), dt.bool_), one, texts)
        if fork is not None:
            whole = fork

            def convert(k: int, scope: Scope) -> Any:
                return [_without(reopened(c, scope), whole.inside(c.importer, k, x), axis, k == 0)]

            return in_cases(c.importer, fork, c.scope, convert)[0]
        more = dim_select(one, 0, 1)
        what = "without axes: axis {0}, whose size is known only at run time, has 1 element, and would have to go"
        x = c.required(x, Require(more, 1, None, what, (axis,), "Squeeze"))
    return _without(c, x, axis, known == 0)


def _without(c: Context, x: Value, axis: int, goes: bool) -> Any:
    """As `_squeezed`, of which it is known whether this axis goes."""
    if not goes:
        return _squeezed(c, x, axis + 1)
    return _squeezed(c, c.reshape(x, (*x.shape[:axis], *x.shape[axis + 1 :])), axis)


def _may_be_one(size: Expr, ranges: dict[str, Range]) -> bool:
    """Whether a size may turn out to be 1."""
    return not prove(ne(size, 1), ranges)


def _at(axis: Dim, shape: Sequence[Dim]) -> Dim:
    """The size of an axis that is a formula; 1 if there is none such."""
    result: Dim = 1
    for k, d in enumerate(shape):
        result = dim_select(equals(axis, k), d, result)
    return result


def squeezed_shape(c: Context, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    axes = _axes(c, 12, 1, len(dims))
    if axes is None:
        return tuple(d for d in dims if d != 1)
    for a in axes:
        if isinstance(dims[a], int) and dims[a] != 1:
            raise c.error(f"axis {a} has {dims[a]} elements, only axes of one element are squeezed")
    return tuple(d for k, d in enumerate(dims) if k not in axes)


@onnx_op("Unsqueeze")
def unsqueeze(c: Context) -> Value:
    x = c.value(0)
    if _runtime_axes(c, 1):
        (count,) = c.shape(1) or (1,)
        if not isinstance(count, int):
            raise c.unsupported("axes of unknown number")
        rank = len(x.shape) + count
        axes = c.runtime_axes(1, rank)
        assert axes is not None
        shape: list[Dim] = []
        for k in range(rank):
            before = as_dim(sum((dim_expr(dim_select(lt(dim_expr(a), k), 1, 0)) for a in axes), start=dim_expr(0)))
            new = any_of([equals(a, k) for a in axes])
            shape.append(dim_select(new, 1, _at(as_dim(k - dim_expr(before)), x.shape)))
        return c.reshape(x, tuple(shape))
    return c.reshape(x, unsqueezed_shape(c, x.shape))


def unsqueezed_shape(c: Context, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    count = len(c.integers("axes") or ()) if c.version <= 12 else product(c.shape(1))
    assert isinstance(count, int)  # the axes are known at import
    rank = len(dims) + count
    axes = _axes(c, 12, 1, rank)
    if axes is None or len(set(axes)) != count:
        raise c.error(f"axes {axes} are not {count} different ones")
    rest = iter(dims)
    return tuple(1 if k in axes else next(rest) for k in range(rank))
