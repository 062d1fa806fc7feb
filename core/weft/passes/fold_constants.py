"""Computes nodes with constant inputs at compile time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.expr.nodes import Expr
from weft.graph.control import bodies
from weft.graph.identity import Require
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Replacement, Rewriter, attribute_symbols, rewrite, substitute_symbols

LIMIT = 64 << 20
"""Bytes of a result that need no justification by the size of its inputs."""
MADE, MADE_PER_BYTE = 256 << 20, 16
"""Bytes that folding may make in a compilation: so many, and so many for each byte of the imported model's constants,
whose elements count as four at least. A file of 200 bytes may ask for any number of them; weights go through a few
steps at most (dequantised, scaled, transposed)."""
WORK, WORK_PER_ELEMENT = 1 << 32, 1 << 11
"""Quarters of nanoseconds, as `work_of` counts them, that folding may take in a compilation, likewise: about a second,
and what adapters of a large model take."""
BLOCK = 1 << 18
"""Elements that a formula is computed of at a time."""
VIEWS = 1 << 20
"""Bytes from which a folded view is not copied."""


def fold_constants(graph: Graph, limit: int = LIMIT, early: bool = False, budget: Budget | None = None) -> Graph:
    """Afterwards no node has constant inputs only, but those whose result would be over `limit` bytes and larger than
    its inputs, those whose sizes do not tell what computing them takes (`work_of`), and those that come when folding
    has made and done all that it may (`MADE`, `WORK`): the run computes them. No data symbol is bound to a constant.

    Args:
        limit: bytes of a result that need no justification by the size of the inputs.
        early: operators stay whose operands later passes read (`Operator.folds_late`).
        budget: what may still be made and done, from which this takes; None: what a compilation of this graph alone
            may.
    """

    budget = budget or Budget.of(graph)

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        op = node.op
        if op.kind in ("control", "host") or not op.deterministic or (early and op.folds_late) or attribute_symbols(op):
            return None
        if any(v is not None and v.constant is None for v in inputs):
            return None
        if not all(
            isinstance(o.type, TensorType) and o.type.is_static and o.type.dtype.kind != "string" for o in node.outputs
        ):
            return None
        given = {id(v.constant): _size(v, 4) for v in inputs if v is not None}
        # References compute with elements of four bytes or more.
        if sum(_size(v, 4) for v in node.outputs) > max(limit, sum(given.values())):
            return None
        size, work = sum(map(_size, node.outputs)), work_of(node.op, inputs, node.outputs)
        if work is None or not budget.take(size, work):  # of views as well: what is stored is a copy of each
            return None
        try:
            with np.errstate(all="ignore"):
                result = _computed(node, [None if v is None else v.constant for v in inputs])
        except (WeftError, ArithmeticError, ValueError, IndexError):
            return None  # it fails at run time as well, where the error names the run's data
        results = result if isinstance(result, tuple) else (result,)
        folded = []
        for old, data in zip(node.outputs, results):
            array = np.asarray(data)
            if array.shape != old.shape or array.dtype != old.dtype.numpy:
                return None
            # A view of weights, as of a transposed matrix, stays one: they are laid out once, when they are packed.
            if array.ndim and (array.base is None or array.nbytes < VIEWS):
                array = np.ascontiguousarray(array)
            value = r.constant(array, old.name)
            value.type = old.type
            folded.append(value)
        return tuple(folded)

    while True:
        graph = rewrite(graph, rule, rounds=1)
        known = {
            n: int(s.value.constant.reshape(-1)[s.index])
            for n, s in graph.symbols.items()
            if s.value.constant is not None
        }
        if not known:
            return graph
        # Sizes that became numbers make shapes static, which may make more nodes foldable.
        graph = substitute_symbols(graph, known)
        graph = refine_types(graph)


@dataclass
class Budget:
    """Limits of constant folding that are left: bytes of results and time; see `MADE` and `WORK`."""

    made: int
    work: int

    @classmethod
    def of(cls, graph: Graph) -> Budget:
        """What a compilation of `graph` may, by its constants and those of the graphs that it runs."""
        own: dict[int, Any] = {}
        graphs = [graph]
        for one in graphs:
            own.update((id(v.constant), v.constant) for v in one.constants())
            graphs += [body for node in one.nodes for body in bodies(node.op)]
        size, elements = sum(a.size * max(4, a.itemsize) for a in own.values()), sum(a.size for a in own.values())
        return cls(MADE + MADE_PER_BYTE * size, WORK + WORK_PER_ELEMENT * elements)

    def take(self, made: int, work: int = 0) -> bool:
        """Whether so much may still be made and done, which it is then."""
        if made > self.made or work > self.work:
            return False
        self.made -= made
        self.work -= work
        return True


def work_of(op: Operator, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> int | None:
    """`Operator.work` of values of known sizes."""
    return op.work([None if v is None else v.tensor for v in inputs], [v.tensor for v in outputs])


def _computed(node: Node, arrays: Sequence[Any]) -> Any:
    """What a node's reference gives. Elementwise, it computes a block at a time: on the way of a formula there are
    several arrays of wide elements."""
    if node.op.kind != "elementwise" or len(node.outputs) != 1 or _count(node.output.shape) <= BLOCK:
        return node.op.reference(*arrays)
    shape = [d for d in node.output.shape if isinstance(d, int)]
    axis = shape.index(max(shape)) - len(shape)
    step = max(1, BLOCK * max(shape) // math.prod(shape))
    result = None
    for first in range(0, max(shape), step):
        at: Any = (..., slice(first, first + step), *[slice(None)] * (-1 - axis))
        part = node.op.reference(*(a if a is None or a.ndim < -axis or a.shape[axis] == 1 else a[at] for a in arrays))
        result = np.empty(shape, part.dtype) if result is None else result
        result[at] = part
    return result


def _size(value: Value, least: int = 1) -> int:
    """Bytes of a value, if each element has `least` at least."""
    return _count(value.shape) * max(least, value.dtype.bytes)


def _count(shape: Sequence[Expr | int]) -> int:
    """Elements, where sizes of 0 count as 1: what is computed on the way may have some of the sizes alone."""
    return math.prod(max(1, d) for d in shape if isinstance(d, int))


def refine_types(graph: Graph) -> Graph:
    """The graph with types inferred anew where an input's type is more precise than it was, and with what sizes have to
    be checked."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if not isinstance(node.op, Require) and all(
            not isinstance(d, Expr) for o in node.outputs if isinstance(o.type, TensorType) for d in o.type.shape
        ):
            return None
        return r.copy(node, inputs, infer=True)

    return Rewriter(graph).run(rule)
