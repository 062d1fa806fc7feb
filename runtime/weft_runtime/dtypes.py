"""Element types: numpy's and ml_dtypes', plus vectors of them inside loop programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from weft_runtime.errors import ExprError

Kind = Literal["bool", "int", "uint", "float", "complex", "string", "handle"]
"""Kind of an element type: int and uint are signed and unsigned integers; handle is a pointer."""


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    `bits` is the width of the value; `bytes` the width of one stored element (sub-byte types take one byte each at
    the API). `lanes` > 1 only inside loop programs, after vectorisation.
    """

    name: str
    kind: Kind
    bits: int
    lanes: int = 1

    def __str__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.name}x{self.lanes}"

    __repr__ = __str__

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8) * self.lanes

    @property
    def scalar(self) -> DType:
        return self if self.lanes == 1 else _NAMES[self.name]

    def with_lanes(self, lanes: int) -> DType:
        return self if lanes == self.lanes else _vector(self.name, lanes)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """Its numpy type.

        Raises:
            ExprError: it is a type of ml_dtypes, which is not installed.
        """
        if self.name == "string":
            return np.dtype(object)
        return _of_ml_dtypes(self.name) if self.name in _ML else np.dtype(self.name)


@cache
def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes  # the runtime needs it for these types only
    except ModuleNotFoundError as error:
        raise ExprError(f"numpy has no element type '{name}'", why=str(error), hint="pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@cache
def _vector(name: str, lanes: int) -> DType:
    base = _NAMES[name]
    return base if lanes == 1 else DType(base.name, base.kind, base.bits, lanes)


_ML = {
    "bfloat16": 16, "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2,
}  # fmt: skip

bool_ = DType("bool", "bool", 1)
"""Truth values, one byte each."""
int8, int16, int32, int64 = (DType(f"int{b}", "int", b) for b in (8, 16, 32, 64))
"""Signed integers of 8, 16, 32 and 64 bits, in two's complement."""
uint8, uint16, uint32, uint64 = (DType(f"uint{b}", "uint", b) for b in (8, 16, 32, 64))
"""Unsigned integers of 8, 16, 32 and 64 bits."""
float16, float32, float64 = (DType(f"float{b}", "float", b) for b in (16, 32, 64))
"""IEEE 754 floats of 16, 32 and 64 bits."""
bfloat16 = DType("bfloat16", "float", 16)
"""The upper half of a float32: 8 bits of exponent, 7 of fraction."""
int2, int4 = DType("int2", "int", 2), DType("int4", "int", 4)
"""Signed integers of 2 and 4 bits, one byte each in numpy arrays."""
uint2, uint4 = DType("uint2", "uint", 2), DType("uint4", "uint", 4)
"""Unsigned integers of 2 and 4 bits, one byte each in numpy arrays."""
float4_e2m1fn = DType("float4_e2m1fn", "float", 4)
"""Floats of 4 bits (OCP Microscaling Formats 1.0): 2 of exponent, 1 of fraction; no infinity, no NaN."""
float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = (
    DType(n, "float", 8)
    for n in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
)
"""Floats of 8 bits: e is the number of bits of the exponent, m of the fraction. fn: no infinity; uz: no negative zero;
u:
no sign (OCP 8-bit Floating Point 1.0 and Microscaling Formats 1.0; Noune et al., arXiv:2206.02915, for fnuz)."""
complex64, complex128 = DType("complex64", "complex", 64), DType("complex128", "complex", 128)
"""Complex numbers of two float32 and of two float64."""
string = DType("string", "string", 64)
"""Text, Python's str in numpy object arrays; only the runtime computes with it."""
handle = DType("handle", "handle", 64)
"""A pointer, which only a run has; used in loop programs."""

_NAMES: dict[str, DType] = {
    d.name: d
    for d in (
        bool_, int2, int4, int8, int16, int32, int64, uint2, uint4, uint8, uint16, uint32, uint64, float16, bfloat16,
        float32, float64, float4_e2m1fn, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu,
        complex64, complex128, string, handle,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """How a float of 16 bits or less is stored: bits of the exponent and of the fraction, and the exponent's bias.

    `special`: "ieee" has infinities and NaN (IEEE 754); "fn" only NaN, all ones (OCP 8-bit floating point, 2023);
    "fnuz" one NaN in the place of minus zero; "finite" has neither (OCP microscaling formats, 2023).
    """

    exponent: int
    mantissa: int
    bias: int
    special: Literal["ieee", "fn", "fnuz", "finite"]


FLOAT_FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        "float16": FloatFormat(5, 10, 15, "ieee"),
        "float8_e5m2": FloatFormat(5, 2, 15, "ieee"),
        "float8_e4m3fn": FloatFormat(4, 3, 7, "fn"),
        "float8_e4m3fnuz": FloatFormat(4, 3, 8, "fnuz"),
        "float8_e5m2fnuz": FloatFormat(5, 2, 16, "fnuz"),
        "float4_e2m1fn": FloatFormat(2, 1, 1, "finite"),
    }
)
"""By the name of the dtype; bfloat16 is the upper half of a float32."""


def all_dtypes() -> tuple[DType, ...]:
    """Every scalar element type, in a fixed order."""
    return tuple(_NAMES.values())


@cache
def _parse(text: str) -> DType:
    name, _, lanes = text.partition("x") if text not in _NAMES else (text, "", "")
    if name not in _NAMES or (lanes and not lanes.isdigit()):
        raise ExprError(f"unknown dtype '{text}'", hint="one of " + ", ".join(_NAMES))
    return _vector(name, int(lanes or 1))


def dtype(value: object) -> DType:
    """A DType from itself, its name ("float32", "float32x8"), or a numpy dtype or scalar type.

    Raises:
        ExprError: if no such type exists.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        return _parse(value)
    try:
        resolved = np.dtype(value)  # type: ignore[call-overload]  # any object: numpy refuses what is none
    except (TypeError, ValueError) as error:
        raise ExprError(f"unknown dtype {value!r}") from error
    if resolved.kind in "OUST":
        return string
    return _parse(resolved.name)
