"""Control flow of a plan: branches and loops over plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from weft_runtime.arrays import Array
from weft_runtime.errors import ExecutionError, WeftError
from weft_runtime.plan import SEQUENCE

FEW = 3
"""From so many iterations on it pays to get ready for many (measured: 15 µs an iteration, 50 µs once)."""

Run = Callable[[Sequence[Any]], "list[Any]"]


def truth(value: Any, what: str) -> bool:
    """A condition, which is a bool of one element."""
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ExecutionError(
            f"{what} is decided by one element, got"
            f" {list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__}"
        )
    return bool(value.reshape(-1)[0])


def trip_count(trips: Any, items: Sequence[Any], axes: Sequence[int]) -> int | None:
    """The greatest number of iterations: as given, or the length of an item; None: until the body ends the loop.

    Raises:
        ExecutionError: they differ.
    """
    counts = {len(x) if axis == SEQUENCE else x.shape[axis] for x, axis in zip(items, axes)}
    if len(counts) > 1:
        raise ExecutionError(f"a loop goes over items of different numbers: {', '.join(map(str, sorted(counts)))}")
    if trips is not None:
        said = np.reshape(trips, -1)
        if said.size != 1:
            raise ExecutionError(f"a loop takes one number of iterations, got {said.size}")
        counts.add(int(said[0]))
    return min(counts) if counts else None


def item_of(x: Any, axis: int, k: int, backward: bool) -> Any:
    """What the k-th iteration takes of an item."""
    if axis == SEQUENCE:
        return x[len(x) - 1 - k if backward else k]
    found = x[(slice(None),) * axis + (x.shape[axis] - 1 - k if backward else k,)]
    return np.asarray(found)


@dataclass
class Collected:
    """One collected result of a loop, in order: rows of a tensor that no other code refers to, then the results of
    later iterations, one by one."""

    rows: Array | None = None
    parts: list[Any] = field(default_factory=list)

    def result(self, axis: int, backward: bool, empty: tuple[Any, tuple[int, ...]]) -> Any:
        """All of it, along a new axis; `empty` is the dtype and shape of an element where there was none.

        Raises:
            ExecutionError: the iterations gave results of different sizes.
        """
        if axis == SEQUENCE:
            return self.parts[::-1] if backward else self.parts
        dtype, shape = empty
        shapes = {p.shape for p in self.parts} | ({self.rows.shape[1:]} if self.rows is not None else set())
        if len(shapes) > 1:
            raise ExecutionError(
                "a loop collects results of different sizes",
                why=f"{', '.join(str(list(s)) for s in sorted(shapes)[:4])}",
            )
        rows = self.rows
        if self.parts:
            rows = np.concatenate([*([] if rows is None else [rows]), *(p[None] for p in self.parts)])
        if rows is None:
            try:
                return np.empty((*shape[:axis], 0, *shape[axis:]), dtype)
            except ValueError as error:  # sizes that numpy cannot multiply
                raise ExecutionError(
                    "a loop of no iterations collects results of sizes that no memory holds",
                    why=f"{list(shape)}: {error}",
                ) from None
        rows = rows[::-1] if backward else rows
        return np.ascontiguousarray(np.moveaxis(rows, 0, axis) if axis else rows)


def branch(values: Sequence[Any], then: Run, orelse: Run, first: int) -> list[Any]:
    """The results of one of two plans; `values` are the condition's, then those of `then`, which takes `first`, then
    those of the other."""
    taken = truth(values[0], "a branch")
    return then(values[1 : 1 + first]) if taken else orelse(values[1 + first :])


class Course(Protocol):
    """How a loop goes, as `weft_ops.Loop` says; of a step of a plan, or of an operator."""

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


class Trips(Protocol):
    """Runs several iterations of a loop at once, after one that did not change the sizes of carried values.

    Args:
        k: the number of the next iteration.
        trips: the greatest number of iterations; None: until the body ends the loop.
        last: the results of the iteration before: whether to continue, if the body tests, the carried values, the
            collected values. No other code refers to them.
        items, captured: the other inputs of the body.
        collected: results of the iterations so far; new results are appended.

    Returns:
        The number of the next iteration, the carried values, and whether to continue. If so, and more iterations are
        allowed, the next one fails or changes a size.
    """

    def __call__(
        self,
        k: int,
        trips: int | None,
        last: Sequence[Array],
        items: Sequence[Array],
        captured: Sequence[Array],
        collected: Sequence[Collected],
    ) -> tuple[int, list[Array], bool]: ...


def repeat(
    step: Course,
    values: Sequence[Any],
    body: Run,
    empty: Sequence[tuple[Any, tuple[int, ...]]],
    many: Trips | None = None,
) -> list[Any]:
    """Runs a loop. Returns the last carried values, then the collected values.

    Args:
        body: runs an iteration.
        empty: for each collected value, the dtype and shape of an element if there was no iteration.
        many: runs as many of the iterations after the first as it can.
    """
    count = len(step.item_axes)
    carried, rest = list(values[2 : 2 + step.carried]), values[2 + step.carried :]
    items, captured = rest[:count], rest[count:]
    trips = trip_count(values[0], items, step.item_axes)
    going = values[1] is None or truth(values[1], "a loop")
    found = [Collected() for _ in step.result_axes]
    k = 0
    while going and (trips is None or k < trips):
        at = [item_of(x, axis, k, back) for x, axis, back in zip(items, step.item_axes, step.item_backward)]
        number: Array = np.array(k, np.int64)
        try:
            given = body([number, *carried, *at, *captured])
        except WeftError as error:
            error.where = "\n".join(
                [*([error.where] if error.where else []), f"in iteration {k} of a loop, counted from 0"]
            )
            raise
        if step.tests:
            going = truth(given[0], "a loop")
        results = given[step.tests :]
        before, carried = carried, results[: step.carried]
        for collected, value in zip(found, results[step.carried :]):
            collected.parts.append(value)
        k += 1
        if (
            many is not None
            and going
            and (trips is None or trips - k >= FEW)
            and all(a.shape == b.shape for a, b in zip(before, carried))
        ):
            k, carried, going = many(k, trips, given, items, captured, found)
            many = None
    return [
        *carried,
        *(c.result(axis, back, e) for c, axis, back, e in zip(found, step.result_axes, step.result_backward, empty)),
    ]
