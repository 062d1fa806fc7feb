"""What is no numeric work: sequences, optionals, strings, pictures. Each is a step on the host of its own, a function
of `weft_runtime.host`.

A sequence's elements, and what a function gives whose sizes only its result tells, are `OpenType`s; `Sizes` says the
sizes as data and `WithSizes` makes a tensor of it, whose dimensions are data symbols bound to those sizes. From there
on it is numeric work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.graph.host import HostOperator, joined, opened
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import OpenType, OptionalType, SequenceType, TensorType, Type
from weft.tensor.language import Dim
from weft_ops.shapes import broadcast

# -- what type rules ask ----------------------------------------------------------------------------------------------


def _count(types: tuple[Type | None, ...], least: int, most: int | None = None) -> None:
    most = least if most is None else most
    if not least <= len(types) <= most or any(t is None for t in types[:least]):
        raise GraphError(f"takes {least if least == most else f'{least} … {most}'} operand(s), got {len(types)}")


def _sequence(type: Type | None) -> SequenceType:
    if not isinstance(type, SequenceType):
        raise GraphError(f"operand 0: expected a sequence, got {type or 'nothing'}")
    return type


def _position(type: Type | None) -> None:
    if type is not None and not (isinstance(type, (TensorType, OpenType)) and type.dtype.is_integer):
        raise GraphError(f"a position is an integer, got {type}")


def _strings(type: Type | None, k: int = 0) -> TensorType:
    if not isinstance(type, TensorType) or type.dtype != dt.string:
        raise GraphError(f"operand {k}: expected strings, got {type or 'nothing'}")
    return type


# -- tensors of sizes known only at run time -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes(HostOperator):
    """The sizes of a tensor, int64[rank]; `rank` is given where the type does not say it."""

    rank: int | None = None

    def plain(self) -> dict[str, Any]:
        return {}

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        known = opened(types[0]).rank
        rank = self.rank if known is None else known
        if rank is None:
            raise GraphError("the number of dimensions is not known")
        return TensorType(dt.int64, (rank,))


@dataclass(frozen=True)
class WithSizes(HostOperator):
    """The tensor itself, which has these sizes: formulas over data symbols, most often bound to what `Sizes` says of
    it."""

    shape: tuple[Dim, ...]

    def plain(self) -> dict[str, Any]:
        return {}

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        given = opened(types[0])
        if given.rank not in (None, len(self.shape)):
            raise GraphError(f"expected {len(self.shape)} dimensions, got {given}")
        return TensorType(given.dtype, self.shape)


@dataclass(frozen=True)
class Squeezed(HostOperator):
    """The tensor without its axes of one element, where those are known only at run time."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return OpenType(opened(types[0]).dtype, None)


@dataclass(frozen=True)
class OneElement(HostOperator):
    """The only element of a tensor of at most `rank` dimensions, as [1]: it broadcasts to any tensor of that rank. Of
    more elements there is an error."""

    rank: int

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(opened(types[0]).dtype, (1,))


# -- sequences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceEmpty(HostOperator):
    """A sequence of no tensors, of this dtype."""

    dtype: DType

    def plain(self) -> dict[str, Any]:
        return {}

    def infer(self, *types: Type | None) -> Type:
        _count(types, 0)
        return SequenceType(OpenType(self.dtype, None))


@dataclass(frozen=True)
class SequenceConstruct(HostOperator):
    """A sequence of these tensors, which have one dtype."""

    def infer(self, *types: Type | None) -> Type:
        if not types:
            raise GraphError("takes at least one operand", hint="SequenceEmpty has none")
        element: Type = opened(types[0])
        for t in types[1:]:
            element = joined(element, opened(t))
        return SequenceType(element)


@dataclass(frozen=True)
class SequenceAt(HostOperator):
    """The element at a position, which counts from the end if it is negative."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 2)
        _position(types[1])
        return _sequence(types[0]).element


@dataclass(frozen=True)
class SequenceInsert(HostOperator):
    """The sequence with a tensor before the given position, at the end if there is none."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 2, 3)
        _position(types[2] if len(types) > 2 else None)
        return SequenceType(joined(_sequence(types[0]).element, opened(types[1])))


@dataclass(frozen=True)
class SequenceErase(HostOperator):
    """The sequence without the tensor at a position, the last if none is given."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1, 2)
        _position(types[1] if len(types) > 1 else None)
        return _sequence(types[0])


@dataclass(frozen=True)
class SequenceLength(HostOperator):
    """The number of elements, an int64 scalar."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        _sequence(types[0])
        return TensorType(dt.int64, ())


@dataclass(frozen=True)
class SequenceConcat(HostOperator):
    """All elements one after another along `axis`, which is a new one if `new_axis`."""

    axis: int
    new_axis: bool = False

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        element = opened(_sequence(types[0]).element)
        return OpenType(element.dtype, None if element.rank is None else element.rank + self.new_axis)


@dataclass(frozen=True)
class SequenceSplit(HostOperator):
    """The parts of a tensor along `axis`: of the given length or lengths; if there is none, of one element, whose axis
    stays if `keepdims`."""

    axis: int
    keepdims: bool = True

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1, 2)
        x, parted = opened(types[0]), len(types) > 1 and types[1] is not None
        return SequenceType(x if parted or self.keepdims or x.rank is None else OpenType(x.dtype, x.rank - 1))


# -- optionals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionalEmpty(HostOperator):
    """An optional that holds nothing, of a tensor of this dtype or, if `sequence`, a sequence of them."""

    dtype: DType
    sequence: bool = False

    def plain(self) -> dict[str, Any]:
        return {}

    def infer(self, *types: Type | None) -> Type:
        _count(types, 0)
        element: Type = OpenType(self.dtype, None)
        return OptionalType(SequenceType(element) if self.sequence else element)


@dataclass(frozen=True)
class OptionalSome(HostOperator):
    """An optional that holds the value."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        (given,) = types
        assert given is not None
        return (
            given
            if isinstance(given, OptionalType)
            else OptionalType(opened(given) if isinstance(given, TensorType) else given)
        )


@dataclass(frozen=True)
class OptionalHasElement(HostOperator):
    """Whether an optional holds something, a bool scalar; a tensor and a sequence do."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(dt.bool_, ())


@dataclass(frozen=True)
class OptionalGetElement(HostOperator):
    """What an optional holds."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        (given,) = types
        assert given is not None
        return given.element if isinstance(given, OptionalType) else given


# -- strings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StringConstant(HostOperator):
    """These strings, as a tensor of this shape."""

    values: tuple[str, ...]
    shape: tuple[int, ...]

    def infer(self, *types: Type | None) -> Type:
        _count(types, 0)
        if int(np.prod(self.shape, dtype=np.int64)) != len(self.values):
            raise GraphError(f"{len(self.values)} strings are no tensor of shape {list(self.shape)}")
        return TensorType(dt.string, self.shape)


@dataclass(frozen=True)
class StringConcat(HostOperator):
    """Each string of a with that of b behind it; they broadcast."""

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        _count(types, 2)
        return Inferred(
            TensorType(dt.string, broadcast(_strings(types[0]).shape, _strings(types[1], 1).shape, assumed=assumed)),
            assumed,
        )


@dataclass(frozen=True)
class StringEqual(HostOperator):
    """Whether strings are equal; they broadcast."""

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        _count(types, 2)
        return Inferred(
            TensorType(dt.bool_, broadcast(_strings(types[0]).shape, _strings(types[1], 1).shape, assumed=assumed)),
            assumed,
        )


@dataclass(frozen=True)
class StringSplit(HostOperator):
    """The parts of every string along a new last axis, with empty strings behind the fewer ones, and the numbers of
    parts, int64.

    `delimiter` "": white space. `maxsplit` -1: as many splits as there are.
    """

    delimiter: str = ""
    maxsplit: int = -1

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        _count(types, 1)
        x = _strings(types[0])
        return OpenType(dt.string, x.rank + 1), TensorType(dt.int64, x.shape)


@dataclass(frozen=True)
class StringNormalizer(HostOperator):
    """Strings [C] or [1, C] without stop words, the others in lower or upper case (`case` LOWER, UPPER, NONE)."""

    case: str = "NONE"
    sensitive: bool = False
    stopwords: tuple[str, ...] = ()

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        x = _strings(types[0])
        if x.rank not in (1, 2):
            raise GraphError(f"expected strings [C] or [1, C], got {x}")
        if self.case not in ("NONE", "LOWER", "UPPER"):
            raise GraphError(f"expected the case NONE, LOWER or UPPER, got {self.case}")
        return OpenType(dt.string, x.rank)


@dataclass(frozen=True)
class StringCase(HostOperator):
    """Strings in upper or lower case; `ascii`: only the letters of ASCII change."""

    upper: bool
    ascii: bool = False

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(dt.string, _strings(types[0]).shape)


@dataclass(frozen=True)
class RegexFullMatch(HostOperator):
    """Whether the pattern matches the whole string."""

    pattern: str

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(dt.bool_, _strings(types[0]).shape)


@dataclass(frozen=True)
class StringIndex(HostOperator):
    """Where each string first stands among the keys, int64; the number of keys, if it does not."""

    keys: tuple[str, ...]

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(dt.int64, _strings(types[0]).shape)


@dataclass(frozen=True)
class StringTake(HostOperator):
    """The strings at these places (integers), of all tables' elements one after another: movement of strings is
    movement of their places."""

    def infer(self, *types: Type | None) -> Type:
        if len(types) < 2:
            raise GraphError(f"takes places and at least one table, got {len(types)} operand(s)")
        for k, t in enumerate(types[1:]):
            _strings(t, k + 1)
        index = types[0]
        if not isinstance(index, TensorType) or not index.dtype.is_integer:
            raise GraphError(f"operand 0: expected integers, got {index or 'nothing'}")
        return TensorType(dt.string, index.shape)


@dataclass(frozen=True)
class StringToNumber(HostOperator):
    """The numbers that strings write."""

    dtype: DType

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        return TensorType(self.dtype, _strings(types[0]).shape)


@dataclass(frozen=True)
class NumberToString(HostOperator):
    """Numbers as they are written."""

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        (x,) = types
        if not isinstance(x, TensorType) or x.dtype.kind not in ("bool", "int", "uint", "float"):
            raise GraphError(f"operand 0: expected numbers, got {x or 'nothing'}")
        return TensorType(dt.string, x.shape)


@dataclass(frozen=True)
class NumberFormat(HostOperator):
    """Integers or floats (float32, float64) as a format of C's printf writes them, with one of d, f, e and g: %5d,
    %.3f."""

    format: str

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        (x,) = types
        kinds = ("int", "uint") if self.format.endswith("d") else ("int", "uint", "float")
        if not isinstance(x, TensorType) or x.dtype.kind not in kinds:
            raise GraphError(f"operand 0: expected numbers for '{self.format}', got {x or 'nothing'}")
        return TensorType(dt.string, x.shape)


# -- pictures, and the system -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageDecoder(HostOperator):
    """A picture's file, uint8[bytes] → uint8[height, width, channels], `pixels` being RGB, BGR or Grayscale."""

    pixels: str = "RGB"

    def infer(self, *types: Type | None) -> Type:
        _count(types, 1)
        (x,) = types
        if not isinstance(x, TensorType) or x.dtype != dt.uint8 or x.rank != 1:
            raise GraphError(f"operand 0: expected uint8[n], got {x or 'nothing'}")
        if self.pixels not in ("RGB", "BGR", "Grayscale"):
            raise GraphError(f"expected the pixels RGB, BGR or Grayscale, got {self.pixels}")
        return OpenType(dt.uint8, 3)


@dataclass(frozen=True)
class Entropy(HostOperator):
    """A key for random numbers, uint64[1], another one at every run."""

    deterministic = False

    def infer(self, *types: Type | None) -> Type:
        _count(types, 0)
        return TensorType(dt.uint64, (1,))


__all__ = [
    "Entropy", "ImageDecoder", "NumberFormat", "NumberToString", "OneElement", "OptionalEmpty", "OptionalGetElement",
    "OptionalHasElement",
    "OptionalSome", "RegexFullMatch", "SequenceAt", "SequenceConcat", "SequenceConstruct", "SequenceEmpty",
    "SequenceErase", "SequenceInsert",
    "SequenceLength", "SequenceSplit", "Sizes", "Squeezed", "StringConcat", "StringConstant", "StringEqual",
    "StringIndex", "StringNormalizer",
    "StringCase", "StringSplit", "StringTake", "StringToNumber", "WithSizes",
]  # fmt: skip
