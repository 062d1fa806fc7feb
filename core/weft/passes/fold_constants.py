"""Computes at compile time what depends on constants only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import WeftError
from weft.expr.nodes import Expr
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Replacement, Rewriter, attribute_symbols, rewrite, substitute_symbols
from weft.ops.checking import Require
from weft.ops.contraction import MatMul
from weft.passes.eliminate_common_subexpressions import RANDOM

LIMIT = 64 << 20
"""Bytes of a result that need no justification by the size of its inputs."""
MADE, MADE_PER_BYTE = 256 << 20, 16
"""Bytes that folding may make in all: so many, and so many for each byte of the model's own constants. A file of 200 bytes may ask for any number of them;
weights go through a few steps at most (dequantised, scaled, transposed)."""
WORK, WORK_PER_ELEMENT = 1 << 32, 1 << 12
"""Multiply-adds, or sixteenths of elements read or written, that folding may do in all, likewise: about a second, and what adapters of a large model take."""
VIEWS = 1 << 20
"""Bytes from which a folded view is not copied."""


def fold_constants(graph: Graph, limit: int = LIMIT, keep: tuple[type[Operator], ...] = ()) -> Graph:
    """Afterwards no node has constant inputs only, but those whose result would be over `limit` bytes and larger than its inputs, and those that come
    when folding has made and done all that it may (`MADE`, `WORK`): the run computes them. No data symbol is bound to a constant.

    Args:
        limit: bytes of a result that need no justification by the size of the inputs.
        keep: operators that stay.
    """

    budget = Budget.of(graph)

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if node.op.kind in ("control", "host") or isinstance(node.op, keep) or type(node.op).__name__ in RANDOM or attribute_symbols(node.op):
            return None
        if any(v is not None and v.constant is None for v in inputs):
            return None
        if not all(isinstance(o.type, TensorType) and o.type.is_static and o.type.dtype.kind != "string" for o in node.outputs):
            return None
        size = sum(math.prod(d for d in o.shape if isinstance(d, int)) * o.dtype.bytes for o in node.outputs)
        given = [v.constant for v in inputs if v is not None and v.constant is not None]
        work = work_of(node, [a.size for a in given])
        if size > max(limit, sum({id(a): a.nbytes for a in given}.values())) or size > budget.made or work > budget.work:
            return None
        try:
            with np.errstate(all="ignore"):
                result = node.op.reference(*(None if v is None else v.constant for v in inputs))
        except (WeftError, ArithmeticError, ValueError, IndexError):
            return None  # it fails at run time as well, where the error names the run's data
        results = result if isinstance(result, tuple) else (result,)
        budget.work -= work
        budget.made -= sum(a.nbytes for a in results if isinstance(a, np.ndarray) and a.base is None)
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
        known = {n: int(s.value.constant.reshape(-1)[s.index]) for n, s in graph.symbols.items() if s.value.constant is not None}
        if not known:
            return graph
        # Sizes that became numbers make shapes static, which may make more nodes foldable.
        graph = substitute_symbols(graph, known)
        graph = refine_types(graph)


@dataclass
class Budget:
    """What folding may still make, in bytes, and do: see `MADE` and `WORK`."""

    made: int
    work: int

    @classmethod
    def of(cls, graph: Graph) -> Budget:
        own = {id(v.constant): v.constant for v in graph.constants() if v.constant is not None}
        size, elements = sum(a.nbytes for a in own.values()), sum(a.size for a in own.values())
        return cls(MADE + MADE_PER_BYTE * size, WORK + WORK_PER_ELEMENT * elements)


def work_of(node: Node, given: Sequence[int]) -> int:
    """What computing a node takes at most, as `WORK` counts; `given` are the elements of its operands."""
    results = sum(math.prod(d for d in o.shape if isinstance(d, int)) for o in node.outputs)
    touched = 16 * (sum(given) + results)
    if node.op.kind in ("elementwise", "injective", "reduction"):
        return touched
    # A product of m × k by k × n: the root of m·k · k·n · m·n is m·n·k. Of others, each result may take all of the second operand.
    largest = sorted(given, reverse=True)[:2]
    if isinstance(node.op, MatMul) and len(largest) == 2:
        return touched + math.isqrt(results * largest[0] * largest[1])
    return touched + results * (largest[-1] if largest else 1)


def refine_types(graph: Graph) -> Graph:
    """The graph with types inferred anew where an input's type is more precise than it was, and with what sizes have to be checked."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if not isinstance(node.op, Require) and all(not isinstance(d, Expr) for o in node.outputs if isinstance(o.type, TensorType) for d in o.type.shape):
            return None
        return r.copy(node, inputs, infer=True)

    return Rewriter(graph).run(rule)
