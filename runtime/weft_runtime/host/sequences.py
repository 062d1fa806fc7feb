"""Sequences, optionals, and tensors whose sizes are known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_runtime.arrays import Array
from weft_runtime.errors import ExecutionError
from weft_runtime.host.registry import host_function


def sequence(value: Any, what: str) -> list[Any]:
    """A value that must be a sequence."""
    if not isinstance(value, (list, tuple)):
        raise ExecutionError(f"{what} takes a sequence, got {_shown(value)}")
    return list(value)


def tensor(value: Any, what: str) -> Array:
    """A value that must be a tensor."""
    if not isinstance(value, np.ndarray):
        raise ExecutionError(f"{what} takes a tensor, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "an optional that holds nothing"
    return (
        f"a tensor {value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    )


def _one(value: Any, what: str) -> int:
    array = tensor(value, what)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise ExecutionError(f"{what} takes one integer as a position, got {_shown(array)}")
    return int(array.reshape(-1)[0])


def _position(value: Any, count: int, last: int, what: str) -> int:
    """A position among 0 … last, counted from the end if it is negative."""
    given = _one(value, what)
    position = given + count if given < 0 else given
    if not 0 <= position <= last:
        raise ExecutionError(f"{what}: position {given} is not in a sequence of {count}")
    return position


# -- values as they are -----------------------------------------------------------------------------------------------


@host_function("HostIdentity")
@host_function("OptionalSome")
@host_function("WithSizes")
def same(value: Any) -> Any:
    return value


@host_function("Sizes")
def sizes(value: Any) -> Array:
    return np.array(tensor(value, "Sizes").shape, np.int64)


@host_function("Squeezed")
def squeezed(value: Any) -> Array:
    return np.squeeze(tensor(value, "Squeeze"))


@host_function("OneElement", rank="int")
def one_element(value: Any, *, rank: int) -> Array:
    x = tensor(value, "an elementwise operator")
    if x.size != 1 or x.ndim > rank:
        why = f"next to a tensor of {rank} dimension(s) it would have to be one element of at most as many"
        raise ExecutionError(f"a tensor whose rank is known only at run time is {x.dtype}{list(x.shape)}", why=why)
    return x.reshape(1)


@host_function("OptionalEmpty")
def optional_empty() -> Any:
    return None


@host_function("OptionalHasElement")
def optional_has_element(value: Any) -> Array:
    return np.array(value is not None)


@host_function("OptionalGetElement")
def optional_get_element(value: Any) -> Any:
    if value is None:
        raise ExecutionError("OptionalGetElement: the optional holds nothing", hint="test it with OptionalHasElement")
    return value


# -- sequences --------------------------------------------------------------------------------------------------------


@host_function("SequenceConstruct")
def sequence_construct(*elements: Any) -> Any:
    return list(elements)


@host_function("SequenceLength")
def sequence_length(given: Any) -> Array:
    return np.array(len(sequence(given, "SequenceLength")), np.int64)


@host_function("SequenceAt")
def sequence_at(given: Any, position: Any) -> Any:
    elements = sequence(given, "SequenceAt")
    return elements[_position(position, len(elements), len(elements) - 1, "SequenceAt")]


@host_function("SequenceInsert")
def sequence_insert(given: Any, element: Any, position: Any = None) -> Any:
    elements = sequence(given, "SequenceInsert")
    at = len(elements) if position is None else _position(position, len(elements), len(elements), "SequenceInsert")
    return [*elements[:at], tensor(element, "SequenceInsert"), *elements[at:]]


@host_function("SequenceErase")
def sequence_erase(given: Any, position: Any = None) -> Any:
    elements = sequence(given, "SequenceErase")
    if not elements:
        raise ExecutionError("SequenceErase: the sequence is empty")
    at = (
        len(elements) - 1
        if position is None
        else _position(position, len(elements), len(elements) - 1, "SequenceErase")
    )
    return elements[:at] + elements[at + 1 :]


@host_function("SequenceConcat", axis="int", new_axis="bool")
def sequence_concat(given: Any, *, axis: int, new_axis: bool) -> Array:
    elements = sequence(given, "ConcatFromSequence")
    if not elements:
        raise ExecutionError("ConcatFromSequence: the sequence is empty", why="its result would have no shape")
    return np.stack(elements, axis) if new_axis else np.concatenate(elements, axis)


@host_function("SequenceSplit", axis="int", keepdims="bool")
def sequence_split(given: Any, split: Any = None, *, axis: int, keepdims: bool) -> Any:
    x = tensor(given, "SplitToSequence")
    if not -x.ndim <= axis < x.ndim:
        raise ExecutionError(f"SplitToSequence: axis {axis} is not one of {x.ndim}")
    count = x.shape[axis]
    if split is None:
        parts = [np.take(x, k, axis) if not keepdims else np.take(x, [k], axis) for k in range(count)]
        return [np.ascontiguousarray(p) if p.ndim else p for p in map(np.asarray, parts)]
    lengths = [int(n) for n in tensor(split, "SplitToSequence").reshape(-1)]
    if np.ndim(split) == 0:
        if lengths[0] <= 0:
            raise ExecutionError(f"SplitToSequence: parts of {lengths[0]} elements")
        lengths = [min(lengths[0], count - k) for k in range(0, count, lengths[0])]
    if any(n < 0 for n in lengths) or sum(lengths) != count:
        raise ExecutionError(f"SplitToSequence: parts of {lengths} elements do not make up {count}")
    starts = np.cumsum([0, *lengths])
    return [np.ascontiguousarray(np.take(x, range(a, a + n), axis)) for a, n in zip(starts, lengths)]


@host_function("SequenceEmpty")
def sequence_empty() -> Any:
    return []
