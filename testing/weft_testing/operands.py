"""Where an intrinsic's operands lie while it is tried, with what data, and whether its result is near enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.dtypes import DType
from weft.errors import ScheduleError
from weft.scheduling.intrinsic import Form, Intrinsic
from weft_interpreter.calls import int_range
from weft_ops.precision import float_info

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """Where an operand lies in a buffer of one dimension, of `size` elements."""

    offset: int
    strides: tuple[int, ...]
    size: int

    def view(self, array: Array, shape: Sequence[int], base: int = 0) -> Array:
        """The operand in an array, whose buffer begins at element `base`."""
        return np.lib.stride_tricks.as_strided(
            array[base + self.offset :], tuple(shape), [s * array.itemsize for s in self.strides]
        )


def shape_of(intrinsic: Intrinsic, operand: int) -> list[int]:
    """Of an operand whose lengths are given."""
    return [int(str(d)) for d in intrinsic.tensors[operand].shape]


def lay(intrinsic: Intrinsic, k: int, wide: bool, rng: np.random.Generator) -> Place:
    """A place as operand number `k` may have: at an offset that its alignment allows; `wide`: with more than the least
    strides where they are left open."""
    operand, shape = intrinsic.operands[k], shape_of(intrinsic, k)
    asked: Sequence[int | None] = operand.strides if operand.strides is not None else intrinsic.dense(k)
    strides: list[int] = [s or 0 for s in asked]
    reach = 1 + sum(abs(s) * (n - 1) for s, n in zip(asked, shape) if s is not None)
    unit = max(1, operand.align // intrinsic.tensors[k].dtype.scalar.bytes)
    for d in reversed(range(len(shape))):
        if asked[d] is None:
            strides[d] = -(-(reach + (int(rng.integers(1, 4)) if wide else 0)) // unit) * unit
            reach += strides[d] * (shape[d] - 1)
    offset = unit * int(rng.integers(1, 4))
    return Place(offset, tuple(strides), offset + reach + 3)


def values(kind: str, dtype: DType, size: int, rng: np.random.Generator, bits: int | None = None) -> Array:
    """Elements of a kind of data; floats that have no more than `bits` significant bits."""
    if dtype.is_bool:
        return {"greatest": np.ones(size, bool), "least": np.zeros(size, bool)}.get(
            kind, rng.integers(0, 2, size).astype(bool)
        )
    if dtype.is_integer:
        least, greatest = int_range(dtype)
        if kind == "random":
            return rng.integers(
                least, greatest, size, dtype=dtype.numpy if dtype.bits >= 8 else np.int64, endpoint=True
            ).astype(dtype.numpy)
        pool = {"extreme": [least, greatest, 0, 1, greatest - 1], "greatest": [greatest], "least": [least]}[kind]
        return np.array(pool, dtype.numpy)[rng.integers(0, len(pool), size)]
    scale = {"random": 1.0, "extreme": 0.0, "greatest": 16.0, "least": 2.0**-6}[kind]
    found = rng.standard_normal(size) * scale if scale else rng.integers(-8, 9, size)
    if bits is not None:
        fraction, exponent = np.frexp(found)
        found = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return found.astype(dtype.numpy)


def compare(
    intrinsic: Intrinsic,
    form: Form,
    got: Array,
    expected: Array,
    places: Sequence[tuple[Place, int]],
    steps: int,
    how: str,
    last: Intrinsic | None = None,
) -> None:
    """Compares a buffer that holds results with what it should hold.

    Args:
        places: of the results, and where the buffer of each begins; what lies beside them must be exact.
        steps: of the longest sum.
        how: under which circumstances.
        last: whose results they are, if not the intrinsic's.

    Raises:
        ScheduleError: they disagree; names the intrinsic, the element and both values.
    """
    last = last or intrinsic
    result, dtype, shape = last.operands[-1].name, last.meaning.dtype, shape_of(last, len(last.operands) - 1)
    inside = np.zeros(expected.shape, bool)
    for place, base in places:
        place.view(inside, shape, base)[...] = True
    if dtype.is_float:
        wide_got, wide_expected = got.astype(np.float64), expected.astype(np.float64)
        finite = np.abs(wide_expected[np.isfinite(wide_expected) & inside])
        eps = float(float_info(dtype.numpy).eps)
        bound = 4 * (steps + 1) * eps * max(1.0, float(finite.max()) if finite.size else 1.0)
        with np.errstate(invalid="ignore"):  # infinite less infinite
            near = np.abs(wide_got - wide_expected) <= np.where(inside, bound, 0)
        same = near | (wide_got == wide_expected) | (np.isnan(wide_got) & np.isnan(wide_expected))
    else:
        same = got == expected
    if same.all():
        return
    bad = int(np.flatnonzero(~same & inside)[0]) if (~same & inside).any() else int(np.flatnonzero(~same)[0])
    where = None
    for warp, (place, base) in enumerate(places):
        for index in np.ndindex(*shape):
            if where is None and base + place.offset + sum(i * s for i, s in zip(index, place.strides)) == bad:
                where = f"{result}[{', '.join(map(str, index))}]" + (f" of warp {warp}" if len(places) > 1 else "")
    beside = f"{abs(bad - places[0][0].offset)} elements beside the start of {result}, outside of it"
    raise ScheduleError(
        f"the {form} code of intrinsic '{intrinsic.name}' disagrees with its meaning",
        where=f"{where or beside} ({how})",
        why=(
            f"the {'meaning' if where else 'value before'} is {expected[bad]}, the code gives {got[bad]};"
            f" {int((~same).sum())} elements differ"
        ),
    )
