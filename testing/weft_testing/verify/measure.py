"""How far a result is from what is expected: in units in the last place, and as a share of the greatest element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft_ops.precision import float_info, widen

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bound:
    """What an error may be where a user says so, as numpy's allclose has it: `atol` + `rtol` · |expected|. None: that
    is for the operators to say."""

    rtol: float | None = None
    atol: float | None = None

    @property
    def given(self) -> bool:
        return self.rtol is not None or self.atol is not None

    def of(self, want: Any) -> Array:
        """The largest error of each element; of what is no array of numbers, of all."""
        if not is_numeric(want):
            return np.asarray(self.atol or 0.0)
        wide = np.abs(_real(want))
        return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * np.where(np.isfinite(wide), wide, 0.0))


@dataclass(frozen=True)
class Difference:
    """Of one result.

    Attributes:
        elements: how many there are; `wrong`: of them, how many are further off than they may be.
        absolute, ulp: the largest of all elements; ulp in units in the last place of the element that is expected, or,
            where that is 0, of the greatest one. Infinite where one is NaN, or infinite, and the other is not.
        relative: the largest absolute one as a share of the greatest element that is expected.
        allowed: the largest that `absolute` may be.
        at: of the element that is worst, beside what is allowed of it; None if all are as expected to the last bit.
        got, want: that element as text; or both results' types, where these differ already.
    """

    elements: int
    wrong: int
    absolute: float = 0.0
    ulp: float = 0.0
    relative: float = 0.0
    allowed: float = 0.0
    at: tuple[int, ...] | None = None
    got: str = ""
    want: str = ""

    @property
    def text(self) -> str:
        """A sentence."""
        if not self.wrong:
            return f"right: {self.ulp:.3g} ulp at most"
        if self.at is None:
            return f"{self.got} instead of {self.want}"
        place = f"[{', '.join(map(str, self.at))}]" if self.at else "the one"
        return (
            f"{self.wrong} of {self.elements} elements are wrong, worst is {place}: {self.got} instead of {self.want}"
            f" ({self.ulp:.3g} ulp)"
        )


def compare(got: Any, want: Any, allowed: Any = 0.0) -> Difference:
    """Holds a result against what is expected.

    Args:
        got, want: arrays, or sequences of them, or None (an optional that holds nothing).
        allowed: the largest absolute error, of all elements or of each. NaN is right where NaN is expected, an infinity
            where the same one is.
    """
    if isinstance(got, (list, tuple)) or isinstance(want, (list, tuple)) or got is None or want is None:
        return _compare_others(got, want, allowed)
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return _other_type(int(want.size), got, want)
    if not is_numeric(want):
        different = np.asarray(got != want, bool)
        errors = np.where(different, np.inf, 0.0)
        return _difference(got, want, errors, errors, np.zeros(want.shape), 0.0)
    wide_got, wide_want = _real(got), _real(want)
    with np.errstate(all="ignore"):
        same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
        errors = np.abs(wide_got - wide_want)
        errors = np.where(same, 0, np.where(np.isfinite(errors), errors, np.inf))
        scale, units = scale_of(want), spacing(want)
        if eps(want) and scale:
            units = np.where(wide_want == 0, np.maximum(units, scale * eps(want)), units)
        ulps = errors / units
    return _difference(got, want, errors, ulps, allowed, scale)


def _other_type(count: int, got: Any, want: Any) -> Difference:
    return Difference(count, max(1, count), np.inf, np.inf, np.inf, got=type_text(got), want=type_text(want))


def _difference(got: Array, want: Array, errors: Array, ulps: Array, allowed: Any, scale: float) -> Difference:
    limits = np.broadcast_to(np.asarray(allowed), errors.shape)
    wrong = errors > limits
    worst = float(np.max(errors, initial=0.0))
    at, shown = None, ("", "")
    if errors.size and worst > 0:
        with np.errstate(all="ignore"):
            excess = np.where(errors > 0, errors / np.maximum(limits, np.finfo(np.float64).tiny), -1.0)
        place = tuple(
            int(i) for i in np.unravel_index(int(np.argmax(np.where(np.isnan(excess), np.inf, excess))), errors.shape)
        )
        at = place[: want.ndim]  # complex elements are seen as two
        shown = (str(got[at]), str(want[at]))
    relative = worst / scale if scale else (np.inf if worst else 0.0)
    return Difference(
        int(want.size),
        int(wrong.sum()),
        worst,
        float(np.max(ulps, initial=0.0)),
        relative,
        float(np.max(limits, initial=0.0)),
        at,
        *shown,
    )


def _compare_others(got: Any, want: Any, allowed: Any) -> Difference:
    if got is None and want is None:
        return Difference(1, 0)
    if not isinstance(got, (list, tuple)) or not isinstance(want, (list, tuple)) or len(got) != len(want):
        return _other_type(1, got, want)
    return worst([compare(g, w, allowed if np.ndim(allowed) == 0 else 0.0) for g, w in zip(got, want)])


def worst(found: list[Difference]) -> Difference:
    """Of several: the one that is furthest off."""
    return max(found, key=lambda d: (d.wrong > 0, d.ulp), default=Difference(0, 0))


def spacing(want: Array) -> Array:
    """One unit in the last place of each element; 1 of integers and booleans."""
    wide = np.abs(_real(want))
    dtype = dt.dtype(want.dtype)
    if not (dtype.is_float or dtype.kind == "complex"):
        return np.ones(wide.shape)
    parts = np.dtype(np.float32 if dtype.bits == 64 else np.float64) if dtype.kind == "complex" else want.dtype
    info = float_info(parts)
    _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0))
    units = np.where(wide == 0, 0, np.ldexp(wide.dtype.type(info.eps), exponent - 1))
    return np.asarray(np.maximum(units, wide.dtype.type(info.smallest_subnormal)))


def is_numeric(value: Any) -> bool:
    """Whether it is an array of numbers or booleans: no text, no sequence, not nothing."""
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OUST"


def eps(array: Any) -> float:
    """One unit in the last place of 1; 0 of what is no float."""
    if not is_numeric(array):
        return 0.0
    dtype = dt.dtype(array.dtype)
    if not (dtype.is_float or dtype.kind == "complex"):
        return 0.0
    parts = np.dtype(np.float32 if dtype.bits == 64 else np.float64) if dtype.kind == "complex" else array.dtype
    return float(float_info(parts).eps)


def scale_of(value: Any) -> float:
    """The greatest finite magnitude; 0 of what has none."""
    if not is_numeric(value):
        return 0.0
    wide = np.abs(_real(value))
    return float(np.max(wide[np.isfinite(wide)], initial=0.0))


def type_text(value: Any) -> str:
    """What a value is: `float32[2, 3]`."""
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        return f"a sequence of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _real(array: Array) -> Array:
    """The elements in a wider type; complex ones as pairs of reals, along a last axis."""
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "c":
        flat = np.ascontiguousarray(array)
        return flat.view(flat.real.dtype).reshape(*array.shape, 2).astype(np.longdouble)
    wide = widen(array)
    return (
        wide.astype(np.longdouble)
        if array.dtype.itemsize == 8 and wide.dtype.kind in "iu"
        else wide.astype(np.float64)
        if wide.dtype.kind in "iu"
        else wide
    )
