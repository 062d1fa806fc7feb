"""Branches and loops: both branches at once where that is harmless, types of what loops carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.control import If
from weft.graph.host import joined
from weft.graph.identity import Require
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft_frontend.bodies import Body, put_here, shaped
from weft_frontend.context import Context
from weft_ops.shapes import same

ROUNDS = 8
"""How often a body is read anew because what it carries changes its type from iteration to iteration."""


def chosen(c: Context, test: Value, then: Body, orelse: Body) -> list[Value]:
    """The results of one of two bodies, which captured all their inputs."""
    if harmless((then, orelse)):
        return both(c, test, (then, orelse))
    found = c.builder.add_all(If(then.graph, orelse.graph), test, *then.captured, *orelse.captured)
    return [shaped(c.builder, v) for v in found]


def harmless(bodies: Sequence[Body]) -> bool:
    """Whether both branches can be computed, so that all stays in one kernel's reach: work on numbers that cannot fail,
    of results alike."""
    for body in bodies:
        if body.graph.symbols and any(s.value.producer is not None for s in body.graph.symbols.values()):
            return False
        if any(n.op.kind in ("control", "host") or isinstance(n.op, Require) for n in body.graph.nodes):
            return False
    pairs = zip(*(b.graph.outputs for b in bodies))
    return all(isinstance(x.type, TensorType) and x.type == y.type and x.dtype.kind != "string" for x, y in pairs)


def both(c: Context, test: Value, bodies: Sequence[Body]) -> list[Value]:
    """Operators have no effects: both branches are computed and one result is taken."""
    test = c.reshape(test, ())
    return [c(ops.Where(), test, x, y) for x, y in zip(*(put_here(c.importer, b) for b in bodies))]


def fitting(c: Context, initial: Sequence[Value], skipped: int, make: Callable[[Sequence[Type]], Body]) -> Body:
    """The body over types of the carried values that hold at every iteration.

    Args:
        initial: the values that it begins with.
        skipped: outputs of the body before the carried ones.
        make: the types of the carried values → the body.

    Raises:
        FrontendError: there are no such types.
    """
    types: list[Type] = [v.type for v in initial]
    for _ in range(ROUNDS):
        body = make(types)
        results = [v.type for v in body.graph.outputs[skipped:]]
        wider = [widened(c.builder, t, r, v.type) for t, r, v in zip(types, results, initial)]
        if wider == types:
            return body
        types = wider
    raise FrontendError(
        f"{c.op_type}: no types of the carried values hold at every iteration", why=", ".join(map(str, types))
    )


def widened(builder: GraphBuilder, taken: Type, result: Type, initial: Type) -> Type:
    """A type for what an iteration takes and what it gives; sizes that change are symbols of its own."""
    if (
        isinstance(taken, TensorType)
        and isinstance(result, TensorType)
        and taken.rank == result.rank
        and taken.dtype == result.dtype
    ):
        assert isinstance(initial, TensorType)
        pairs = zip(taken.shape, result.shape, initial.shape)
        return TensorType(
            taken.dtype,
            tuple(
                x if x != first or same(x, y) is True else Var(builder.unique("size"), dt.int64)
                for x, y, first in pairs
            ),
        )
    return joined(taken, result)


__all__ = ["both", "chosen", "fitting", "harmless", "widened"]
