"""Functions that the source of an interpreted program calls: checked accesses, integer arithmetic, threads and
copies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from weft.dtypes import DType
from weft.loop.meanings import Address, sentinel
from weft_interpreter.pending import Pending


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer or boolean dtype."""
    if dtype.is_bool:
        return 0, 1
    return (
        (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << dtype.bits) - 1)
    )


class Fault(Exception):
    """Raised by generated code; becomes a LoopError with the statement that was running."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def outside(access: str, name: str, shape: Sequence[int], indices: Sequence[Any]) -> NoReturn:
    lists = [int(i) if np.ndim(i) == 0 else [int(x) for x in i] for i in indices]
    raise Fault(f"{access} '{name}' is out of bounds: indices {lists}, shape {[int(d) for d in shape]}")


def off_iterator(block: str, name: str, value: int, extent: int) -> NoReturn:
    raise Fault(
        f"block '{block}': iterator '{name}' is {value}, its extent is {extent}",
        "bind it inside its extent, or exclude the step by the predicate",
    )


def _lanes_inside(access: str, name: str, shape: Sequence[int], indices: Sequence[Any], mask: Any) -> None:
    for i, d in zip(indices, shape):
        bad = (np.asarray(i) < 0) | (np.asarray(i) >= d)
        if np.any(bad & mask):
            outside(access, name, shape, indices)


def vector_load(name: str, array: Any, lanes: int, indices: tuple[Any, ...], mask: Any) -> Any:
    if mask is None:
        _lanes_inside("load of", name, array.shape, indices, True)
        return np.array(np.broadcast_to(array[indices], (lanes,)))
    mask = np.broadcast_to(np.asarray(mask, bool), (lanes,))
    _lanes_inside("load of", name, array.shape, indices, mask)
    result = np.zeros(lanes, array.dtype)
    if mask.any():
        result[mask] = array[tuple(np.broadcast_to(np.asarray(i), (lanes,))[mask] for i in indices)]
    return result


def vector_store(name: str, array: Any, lanes: int, indices: tuple[Any, ...], value: Any, mask: Any) -> None:
    mask = np.broadcast_to(np.asarray(mask, bool), (lanes,))
    _lanes_inside("store to", name, array.shape, indices, mask)
    value = np.broadcast_to(np.asarray(value, array.dtype), (lanes,))
    columns = [np.broadcast_to(np.asarray(i), (lanes,)) for i in indices]
    for lane in np.flatnonzero(mask):
        array[tuple(c[lane] for c in columns)] = value[lane]


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {"add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum}


def vector_atomic(name: str, array: Any, lanes: int, indices: tuple[Any, ...], op: str, value: Any) -> None:
    _lanes_inside("atomic update of", name, array.shape, indices, True)
    value = np.broadcast_to(np.asarray(value, array.dtype), (lanes,))
    columns = [np.broadcast_to(np.asarray(i), (lanes,)) for i in indices]
    for lane in range(lanes):
        at = tuple(c[lane] for c in columns)
        array[at] = _ATOMIC[op](array[at], value[lane])


def fmin(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def fmax(a: Any, b: Any) -> Any:
    return a if b < a or a != a else b


def truncdiv(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def truncmod(a: int, b: int) -> int:
    return a - truncdiv(a, b) * b


def shift_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def shift_right(a: int, b: int, bits: int) -> int:
    return a >> (b if 0 <= b < bits else bits)


def lockstep(numbers: Sequence[int], thread: Callable[[int], Generator[Any, Any, None]]) -> Iterator[None]:
    """Runs threads from barrier to barrier; yields at each. In between they hand each other values, where both come to
    the same shuffle."""
    threads = {n: thread(n) for n in numbers}
    while True:
        at = {n: next(t, _DONE) for n, t in threads.items()}
        while shown := {n: a for n, a in at.items() if type(a) is tuple}:  # (which shuffle, bit, value)
            for n, (site, bit, _) in shown.items():
                if shown.get(n ^ bit, (None,))[0] != site:
                    raise Fault(
                        f"thread {n} reads a value of thread {n ^ bit}, which does not reach the same shuffle",
                        "let all threads of a warp shuffle",
                    )
            at |= {n: _given(threads[n], shown[n ^ bit][2]) for n, (_, bit, _) in shown.items()}
        waiting = [a is None for a in at.values()]
        if not any(waiting):
            return
        if not all(waiting):
            raise Fault(
                f"{sum(waiting)} of {len(waiting)} threads wait at a barrier that the others never reach",
                "move the barrier out of the condition",
            )
        yield None


class Copies(Pending):
    """Copies that threads of a group have begun: one queue per thread."""

    def copy(self, thread: tuple[int, ...], to: Address, source: Address, size: int) -> None:
        count = size // to.buffer.dtype.bytes
        if to.offset + count > to.array.size or source.offset + count > source.array.size:
            raise Fault(
                f"a copy of {count} elements from '{source.buffer.name}' to '{to.buffer.name}' leaves its buffer"
            )
        self._later(thread, to, count, lambda: source.array[source.offset : source.offset + count].copy())

    def box(self, thread: tuple[int, ...], to: Address, source: Address, *numbers: int) -> None:
        n = len(numbers) // 4
        start, extents, strides, sizes = (numbers[k * n : k * n + n] for k in range(4))
        if any(thread):
            raise Fault(f"thread {thread} begins to copy a box: the first of a group does")
        if (
            to.offset + prod(sizes) > to.array.size
            or sum((k - 1) * s for k, s in zip(extents, strides)) >= source.array.size
        ):
            raise Fault(
                f"a box of {list(sizes)} elements of '{source.buffer.name}' leaves its buffer, or '{to.buffer.name}'"
            )
        at, inside = np.zeros((1,) * n, np.int64), np.ones((1,) * n, bool)
        for k in range(n):  # the first dim is the fastest
            here = (start[k] + np.arange(sizes[k])).reshape([-1 if j == n - 1 - k else 1 for j in range(n)])
            at, inside = at + here * strides[k], inside & (here >= 0) & (here < extents[k])
        outside, where = ~inside.reshape(-1), np.where(inside, at, 0).reshape(-1)
        self._later(thread, to, prod(sizes), lambda: np.where(outside, source.array.dtype.type(0), source.array[where]))

    def _later(self, thread: tuple[int, ...], to: Address, count: int, values: Callable[[], Any]) -> None:
        self.later(thread, "", to.array[to.offset : to.offset + count], values, sentinel(to.buffer.dtype))

    def arrive(self, thread: tuple[int, ...]) -> None:
        self.wait(thread, "")


def _given(thread: Generator[Any, Any, None], value: Any) -> Any:
    try:
        return thread.send(value)
    except StopIteration:
        return _DONE


_DONE = object()


def drain(steps: Iterator[None]) -> None:
    for _ in steps:
        raise Fault("a barrier outside every threadIdx loop")


def allocate(shape: tuple[int, ...], dtype: DType) -> Any:
    if any(d < 0 for d in shape):
        raise Fault(f"a buffer of negative size {list(shape)} is allocated")
    return np.full(shape, sentinel(dtype), dtype.numpy)


def first_lane(x: Any) -> bool:
    """The condition WHOLE_WARP where one thread does the work of its warp."""
    return bool(x == 0)
