"""Control flow that depends on data: operators with sub-graphs, which become plans of their own.

A sub-graph captures nothing: values of the graph around it are inputs, after those of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.graph.host import joined, opened
from weft.graph.nodes import Graph, OpenType, OptionalType, SequenceType, TensorType, Type
from weft.graph.operator import Array, Operator, Sample
from weft.graph.rewrite import type_symbols
from weft.tensor.language import Dim
from weft_runtime.control import branch, repeat
from weft_runtime.plan import SEQUENCE


def _check_inputs(graph: Graph, types: Sequence[Type | None], what: str) -> None:
    if len(types) != len(graph.inputs):
        raise GraphError(f"{what} takes {len(graph.inputs)} values, gets {len(types)}")
    for value, given in zip(graph.inputs, types):
        if given is None or not _takes(value.type, given):
            raise GraphError(f"input '{value.name}' of {what} is a {value.type}, gets {given or 'nothing'}")


def _takes(inside: Type, given: Type) -> bool:
    """Whether a value of the one type may be one of the other, as far as no sizes are concerned."""
    if isinstance(inside, OptionalType):
        return _takes(inside.element, given.element if isinstance(given, OptionalType) else given)
    if isinstance(inside, (TensorType, OpenType)) and isinstance(given, (TensorType, OpenType)):
        a, b = opened(inside), opened(given)
        return a.dtype == b.dtype and (a.rank is None or b.rank is None or a.rank == b.rank)
    if isinstance(inside, (TensorType, OpenType)) or isinstance(given, (TensorType, OpenType)):
        return False
    return type(inside) is type(given) and _takes(inside.element, given.element)


def _outside(type: Type, known: set[str]) -> Type:
    """A sub-graph's type in the graph around it: sizes with symbols of the sub-graph are open."""
    return opened(type) if isinstance(type, TensorType) and not set(type_symbols(type)) <= known else type


def _known(types: Sequence[Type | None], graphs: Sequence[tuple[Graph, int]]) -> set[str]:
    """Symbols of the graph around: those of the types given, and those that sub-graphs bind to captured values (the
    inputs from a number on)."""
    found = {name for t in types if t is not None for name in type_symbols(t)}
    for graph, first in graphs:
        captured = {id(v) for v in graph.inputs[first:]}
        found |= {name for name, s in graph.symbols.items() if id(s.value) in captured}
    return found


def _condition(type: Type | None) -> None:
    if not isinstance(type, (TensorType, OpenType)) or not type.dtype.is_bool:
        raise GraphError(f"a condition is a bool, got {type or 'nothing'}")


@dataclass(frozen=True)
class If(Operator):
    """The results of `then` if the condition (a bool of one element) is true, else those of `orelse`.

    Inputs: the condition, those of `then`, those of `orelse`."""

    then: Graph
    orelse: Graph
    kind = "control"

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        _condition(types[0] if types else None)
        cut = 1 + len(self.then.inputs)
        _check_inputs(self.then, types[1:cut], "then")
        _check_inputs(self.orelse, types[cut:], "else")
        if len(self.then.outputs) != len(self.orelse.outputs):
            raise GraphError(f"then gives {len(self.then.outputs)} values, else {len(self.orelse.outputs)}")
        known = _known(types, [(self.then, 0), (self.orelse, 0)])
        return tuple(
            joined(_outside(a.type, known), _outside(b.type, known))
            for a, b in zip(self.then.outputs, self.orelse.outputs)
        )

    def reference(self, *arrays: Array | None) -> Any:
        from weft.graph.evaluate import evaluate

        results = run_bodies(self, arrays, lambda v: evaluate(self.then, v), lambda v: evaluate(self.orelse, v))
        return results[0] if len(results) == 1 else tuple(results)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """None: a branch has no meaning beyond its graphs."""
        return ()


@dataclass(frozen=True)
class Loop(Operator):
    """Repeats `body`. The carried values of one iteration are inputs of the next; other results are collected.

    Inputs: the number of iterations (an integer; None: given by the items or by the body's condition), whether to
    begin (a bool; None: yes), the carried values, the items, the captured values. Inputs of the body: the number of the
    iteration (int64, from 0), the carried values, one element of each item, the captured values. Outputs of the body:
    whether to continue (if `tests`), the carried values, the values to collect. Outputs: the last carried values, then
    the collected values.

    Args:
        carried: how many values are carried.
        tests: the body's first output decides whether there is another iteration.
        count: the number of iterations, where that is certain; the collected are tensors of that many then.
        item_axes, item_backward: per item the axis along which an iteration takes one (`SEQUENCE`: an item is a
            sequence), and whether from the end.
        result_axes, result_backward: the same of the collected.
    """

    body: Graph
    carried: int = 0
    tests: bool = False
    count: Dim | None = None
    item_axes: tuple[int, ...] = ()
    item_backward: tuple[bool, ...] = ()
    result_axes: tuple[int, ...] = ()
    result_backward: tuple[bool, ...] = ()
    kind = "control"

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        if len(types) < 2:
            raise GraphError("takes a number of iterations and a condition, or none of them")
        trips, going, given = types[0], types[1], types[2:]
        if trips is not None and not (isinstance(trips, (TensorType, OpenType)) and trips.dtype.is_integer):
            raise GraphError(f"a number of iterations is an integer, got {trips}")
        if going is not None:
            _condition(going)
        items = len(self.item_axes)
        inside = [
            *given[: self.carried],
            *(self._item(t, a) for t, a in zip(given[self.carried :], self.item_axes)),
            *given[self.carried + items :],
        ]
        _check_inputs(self.body, [TensorType(dt.int64, ()), *inside], "the body")
        if self.tests:
            _condition(self.body.outputs[0].type)
        results = [v.type for v in self.body.outputs[self.tests :]]
        if len(results) != self.carried + len(self.result_axes):
            raise GraphError(
                f"the body gives {len(results)} values, {self.carried} are carried and {len(self.result_axes)}"
                " collected"
            )
        known = _known(types, [(self.body, 1 + self.carried + items)])
        last = [joined(t, _outside(r, known)) for t, r in zip(given[: self.carried], results) if t is not None]
        return (
            *last,
            *(self._collected(_outside(r, known), a) for r, a in zip(results[self.carried :], self.result_axes)),
        )

    @staticmethod
    def _item(type: Type | None, axis: int) -> Type:
        if axis == SEQUENCE:
            if not isinstance(type, SequenceType):
                raise GraphError(f"an item is a {type or 'missing value'}, expected a sequence")
            return type.element
        if not isinstance(type, TensorType) or not 0 <= axis < type.rank:
            raise GraphError(f"an item is a {type or 'missing value'}, which has no axis {axis}")
        return TensorType(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))

    def _collected(self, element: Type, axis: int) -> Type:
        if axis == SEQUENCE:
            return SequenceType(opened(element))
        if isinstance(element, TensorType) and self.count is not None:
            return TensorType(element.dtype, (*element.shape[:axis], self.count, *element.shape[axis:]))
        one = opened(element)
        return OpenType(one.dtype, None if one.rank is None else one.rank + 1)

    def reference(self, *arrays: Array | None) -> Any:
        from weft.graph.evaluate import evaluate

        results = run_bodies(self, arrays, lambda values: evaluate(self.body, values))
        return results[0] if len(results) == 1 else tuple(results)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """None: a loop has no meaning beyond its body."""
        return ()


def bodies(op: Operator) -> tuple[Graph, ...]:
    """The graphs that an operator runs: both of a branch, that of a loop, none of others."""
    return (op.then, op.orelse) if isinstance(op, If) else (op.body,) if isinstance(op, Loop) else ()


def run_bodies(op: Operator, arrays: Sequence[Any], *runs: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    """The results of a branch or a loop, whose graphs `runs` compute, in the order of `bodies`."""
    from weft.graph.evaluate import dim_value

    if isinstance(op, If):
        return branch(arrays, runs[0], runs[1], len(op.then.inputs))
    assert isinstance(op, Loop)
    types = [v.type for v in op.body.outputs[op.tests + op.carried :]]
    empty = [
        (
            (t.dtype.numpy, tuple(dim_value(d, {}) or 0 for d in t.shape))
            if isinstance(t, TensorType)
            else (np.dtype(np.float32), (0,))
        )
        for t in types
    ]
    return repeat(op, arrays, runs[0], empty)


__all__ = ["SEQUENCE", "If", "Loop"]
