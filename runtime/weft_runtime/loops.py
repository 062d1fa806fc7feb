"""Loops whose body is one native segment: native code runs the iterations, without Python between them.

The runtime starts the first iteration, which determines the sizes of the body's results. In later iterations, items are
pointers into their tensor, results are written to their place in the tensor that collects them, and carried values
alternate between two buffers. Storage is given for all outputs, so the segment checks their sizes. An iteration with
other sizes, or with an error, fails and is left to the caller.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence

import numpy as np

from weft_runtime.abi import DLTensor, Move, Swap, Trips
from weft_runtime.arrays import Array, aligned_empty, array_address
from weft_runtime.control import Collected, Course
from weft_runtime.native import NativeSegment

_EXACT_BYTES = 1 << 20
"""Up to this size, storage for the results of all possible iterations is allocated at once, although a test may end the
loop sooner."""
_FIRST_ROWS = 64
"""Iterations for which storage is allocated first if their number is not known; it doubles."""
_SLICE_TRIPS, _SLICE_SECONDS = 16, 0.02
"""Iterations between checks of signals, at first; the number doubles while they take less than this."""
_REPEAT = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 5)


class _Rows:
    """Storage for the results of iterations along the first axis of a tensor, in order; `downward`: in reverse order.

    Raises:
        MemoryError, ValueError: there is not enough memory.
    """

    def __init__(self, collected: Collected, k: int, sample: Array, downward: bool) -> None:
        self.shape, self.of, self.downward = sample.shape, sample.dtype, downward
        self.bytes = math.prod(sample.shape) * sample.itemsize
        self.rows = aligned_empty((0, *self.shape), self.of)
        self.collected = collected
        self.k = k

    def reserve(self, count: int) -> None:
        """Allocates storage for `count` iterations in all; keeps the results so far."""
        rows = aligned_empty((count, *self.shape), self.of)
        if self.downward:
            rows = rows[::-1]
        old = 0 if self.collected.rows is None else len(self.collected.rows)
        if self.collected.rows is not None:
            rows[:old] = self.collected.rows
        for i, part in enumerate(self.collected.parts, old):
            rows[i] = part
        self.rows, self.collected.rows, self.collected.parts = rows, rows[: self.k], []

    @property
    def step(self) -> int:
        return -self.bytes if self.downward else self.bytes

    def address(self) -> int:
        """Of the place of the next iteration's result."""
        return array_address(self.rows) + self.k * self.step

    def add(self, count: int) -> None:
        self.k += count
        self.collected.rows = self.rows[: self.k]

    def trim(self) -> None:
        """Holds no more memory than there are results."""
        if self.k < len(self.rows):
            self.collected.rows = self.rows[: self.k].copy()


class NativeTrips:
    """The many iterations of a loop, for `weft_runtime.control.repeat`; calls may come from any number of threads.

    Args:
        course: how the loop goes; no items and results of sequences.
        body: its segment.
        repeat: the address of `repeat`.
    """

    def __init__(self, course: Course, body: NativeSegment, repeat: int) -> None:
        self._course, self._body, self._repeat = course, body, _REPEAT(repeat)

    def __call__(
        self,
        k: int,
        trips: int | None,
        last: Sequence[Array],
        items: Sequence[Array],
        captured: Sequence[Array],
        collected: Sequence[Collected],
    ) -> tuple[int, list[Array], bool]:
        course = self._course
        tests, carried = int(course.tests), list(last[course.tests : course.tests + course.carried])
        samples = last[tests + len(carried) :]
        if any(p.shape != sample.shape for c, sample in zip(collected, samples) for p in c.parts):
            return k, carried, True
        # Where the number of iterations is certain, so are the places of their results.
        certain = trips is not None and not tests
        try:
            taken = [_rows_of(x, axis, back) for x, axis, back in zip(items, course.item_axes, course.item_backward)]
            kept = [_plain(x) for x in captured]
            other = [aligned_empty(x.shape, x.dtype) for x in carried]
            rows = [
                _Rows(c, k, sample, back and certain)
                for c, sample, back in zip(collected, samples, course.result_backward)
            ]
            room = _room(k, trips, certain, sum(r.bytes for r in rows)) if rows else None
            for r in rows:
                r.reserve(room or 0)
        except (
            MemoryError,
            ValueError,
            OverflowError,
        ):  # iteration by iteration it may go, or fail where it did before
            return k, carried, True
        number = np.array(k, np.int64)
        with self._body.lend() as call:
            ins, outs = call.inputs, call.outputs
            moves = (Move * max(1, len(items) + len(rows)))()
            swaps = (Swap * max(1, len(carried)))()
            ins.bind(0, array_address(number), ())
            for i, (x, y) in enumerate(zip(carried, other)):
                ins.bind(1 + i, array_address(x), x.shape)
                outs.bind(tests + i, array_address(y), y.shape)
                swaps[i] = Swap(_address(ins.items[1 + i]), _address(outs.items[tests + i]))
            first = 1 + len(carried)
            for i, x in enumerate(taken):
                ins.bind(first + i, array_address(x) + k * x.strides[0], x.shape[1:])
                moves[i] = Move(_address(ins.items[first + i]), x.strides[0])
            for i, x in enumerate(kept, first + len(taken)):
                ins.bind(i, array_address(x), x.shape)
            for i, r in enumerate(rows):
                outs.bind(tests + len(carried) + i, r.address(), r.shape)
                moves[len(taken) + i] = Move(_address(outs.items[tests + len(carried) + i]), r.step)
            if tests:
                outs.bind(0, array_address(last[0]), last[0].shape)
            todo = Trips(
                number=array_address(number),
                test=array_address(last[0]) if tests else None,
                moving=len(taken) + len(rows),
                moves=ctypes.addressof(moves),
                carried=len(carried),
                swaps=ctypes.addressof(swaps),
            )
            going, most = True, _SLICE_TRIPS
            while going and (trips is None or k < trips):
                if room is not None and k == room:
                    try:
                        room = _room(k, trips, certain, sum(r.bytes for r in rows))
                        for r in rows:
                            r.reserve(room)
                    except (MemoryError, ValueError, OverflowError):
                        break
                    for i, r in enumerate(rows):
                        outs.items[tests + len(carried) + i].data = r.address()
                todo.trips = min([most, *([] if trips is None else [trips - k]), *([] if room is None else [room - k])])
                began = time.perf_counter()
                code = self._repeat(call.address, self._body.address, ins.address, outs.address, ctypes.addressof(todo))
                k, going = k + todo.done, bool(todo.going)
                if todo.done % 2:
                    carried, other = other, carried
                for r in rows:
                    r.add(todo.done)
                if code:
                    call.context.error_code = 0
                    break
                if todo.trips == most and time.perf_counter() - began < _SLICE_SECONDS:
                    most *= 2
        for r in rows:
            r.trim()
        return k, carried, going


def _room(k: int, trips: int | None, certain: bool, row: int) -> int:
    """For how many iterations there is to be room, of which there have been `k` and each gives `row` bytes."""
    if trips is not None and (certain or trips * row <= _EXACT_BYTES):
        return trips
    more = max(_FIRST_ROWS, 2 * k)
    return more if trips is None else min(more, trips)


def _rows_of(x: Array, axis: int, backward: bool) -> Array:
    """An item with what iterations take along the first axis, in their order, each contiguous."""
    rows = np.moveaxis(x, axis, 0) if axis else x
    if not (rows[0].flags.c_contiguous and rows.flags.aligned):
        rows = np.array(rows, order="C")
    return rows[::-1] if backward else rows


def _plain(x: Array) -> Array:
    return x if x.flags.c_contiguous and x.flags.aligned else np.array(x, order="C")


def _address(tensor: DLTensor) -> int:
    return ctypes.addressof(tensor)
