"""Control flow of a plan: branches and loops over plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.errors import ExecutionError
from weft.runtime.arrays import Array

SEQUENCE = -1
"""In the place of an axis: what a loop takes items from, or collects, is a sequence."""

Run = Callable[[Sequence[Any]], "list[Any]"]


def truth(value: Any, what: str) -> bool:
    """A condition, which is a bool of one element."""
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ExecutionError(f"{what} is decided by one element, got {list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__}")
    return bool(value.reshape(-1)[0])


def trip_count(trips: Any, items: Sequence[Any], axes: Sequence[int]) -> int | None:
    """How many trips there are at most: as many as said, as each of the items is; None: as the body wants.

    Raises:
        ExecutionError: they differ.
    """
    counts = {len(x) if axis == SEQUENCE else x.shape[axis] for x, axis in zip(items, axes)}
    if len(counts) > 1:
        raise ExecutionError(f"a loop goes over items of different numbers: {', '.join(map(str, sorted(counts)))}")
    if trips is not None:
        said = np.reshape(trips, -1)
        if said.size != 1:
            raise ExecutionError(f"a loop takes one number of trips, got {said.size}")
        counts.add(int(said[0]))
    return min(counts) if counts else None


def item_of(x: Any, axis: int, k: int, backward: bool) -> Any:
    """What the k-th trip takes of an item."""
    if axis == SEQUENCE:
        return x[len(x) - 1 - k if backward else k]
    found = x[(slice(None),) * axis + (x.shape[axis] - 1 - k if backward else k,)]
    return np.asarray(found)


def stacked(parts: Sequence[Any], axis: int, backward: bool, empty: tuple[Any, tuple[int, ...]]) -> Any:
    """What trips gave, along a new axis; `empty` is the dtype and shape of an element where there was none.

    Raises:
        ExecutionError: the trips gave results of different sizes.
    """
    parts = list(reversed(parts)) if backward else list(parts)
    if axis == SEQUENCE:
        return parts
    if not parts:
        dtype, shape = empty
        return np.empty((*shape[:axis], 0, *shape[axis:]), dtype)
    shapes = {p.shape for p in parts}
    if len(shapes) > 1:
        raise ExecutionError("a loop collects results of different sizes", why=f"{', '.join(str(list(s)) for s in sorted(shapes)[:4])}")
    return np.stack(parts, axis)


def branch(values: Sequence[Any], then: Run, orelse: Run, first: int) -> list[Any]:
    """The results of one of two plans; `values` are the condition's, then those of `then`, which takes `first`, then those of the other."""
    taken = truth(values[0], "a branch")
    return then(values[1 : 1 + first]) if taken else orelse(values[1 + first :])


class Course(Protocol):
    """How a loop goes, as `weft.ops.Loop` says; of a step of a plan, or of an operator."""

    @property
    def carried(self) -> int: ...
    @property
    def tests(self) -> bool: ...
    @property
    def item_axes(self) -> tuple[int, ...]: ...
    @property
    def item_backward(self) -> tuple[bool, ...]: ...
    @property
    def result_axes(self) -> tuple[int, ...]: ...
    @property
    def result_backward(self) -> tuple[bool, ...]: ...


def repeat(step: Course, values: Sequence[Any], body: Run, empty: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    """The carried values at last, then what was collected. `empty`: of each collected, the dtype and shape of an element where there was none."""
    count = len(step.item_axes)
    carried, rest = list(values[2 : 2 + step.carried]), values[2 + step.carried :]
    items, captured = rest[:count], rest[count:]
    trips = trip_count(values[0], items, step.item_axes)
    going = values[1] is None or truth(values[1], "a loop")
    found: list[list[Any]] = [[] for _ in step.result_axes]
    k = 0
    while going and (trips is None or k < trips):
        at = [item_of(x, axis, k, back) for x, axis, back in zip(items, step.item_axes, step.item_backward)]
        number: Array = np.array(k, np.int64)
        results = body([number, *carried, *at, *captured])
        if step.tests:
            going = truth(results[0], "a loop")
            results = results[1:]
        carried = results[: step.carried]
        for collected, value in zip(found, results[step.carried :]):
            collected.append(value)
        k += 1
    return [*carried, *(stacked(c, axis, back, e) for c, axis, back, e in zip(found, step.result_axes, step.result_backward, empty))]
