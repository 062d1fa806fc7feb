"""What relocations of each architecture do to an image that may be mapped at any address.

Every one is the distance of two places of the image, or part of it. Where code expects a table of addresses (a global
offset table), the access is rewritten to a direct one: there is no such table, as its addresses would have to be
written when the image is mapped. An absolute address is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import CodegenError


@dataclass(frozen=True)
class Fix:
    """One relocation.

    Attributes:
        kind: ELF's number of the relocation.
        bytes: the section that is relocated; `at` is where in it.
        place: where in the image that is.
        value: where in the image the symbol is.
        addend: None where it is part of what is relocated.
        where: object, section and symbol, for messages.
    """

    kind: int
    bytes: memoryview
    at: int
    place: int
    value: int
    addend: int | None
    where: str


@dataclass(frozen=True)
class Architecture:
    """How objects of an architecture are told, and relocated.

    Attributes:
        name: LLVM's.
        machine, wide, order: of `weft_llvm.elf.Object`.
        apply: applies the relocations of one object.
        given: symbols that are offsets in every image, and that no object defines.
        ignored: relocations that only tell something of an instruction.
    """

    name: str
    machine: int
    wide: bool
    order: str
    apply: Callable[[Sequence[Fix]], None]
    given: Mapping[str, int] = field(default_factory=dict)
    ignored: frozenset[int] = frozenset({0})


def addend(fix: Fix) -> int:
    """Of a relocation that has one of its own."""
    if fix.addend is None:
        raise CodegenError("a relocation has no addend", where=fix.where, why="it is in a table without addends")
    return fix.addend


def refuse(machine: str, kind: int, absolute: bool, where: str) -> CodegenError:
    """The error for a relocation that no image can have, or that is not known here."""
    if absolute:
        return CodegenError(
            f"compiled code holds an absolute address (relocation {machine} {kind})",
            where=where,
            why="an image may be mapped anywhere",
            hint="compile position-independent, without tables of pointers",
        )
    return CodegenError(f"relocation {machine} {kind} is not supported", where=where)


def no_table(where: str) -> CodegenError:
    """The error for an access through a global offset table in a form that is not known here."""
    return CodegenError(
        "an access through a global offset table cannot be rewritten",
        where=where,
        hint="declare the symbol hidden or dso_local",
    )


def fit(value: int, bits: int, where: str) -> int:
    """`value` as a field of so many bits in two's complement.

    Raises:
        CodegenError: it does not fit.
    """
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CodegenError(
            f"a relocation of {bits} bits overflows",
            where=where,
            why=f"distance {value}",
            hint="the image is too large: split the model",
        )
    return value & ((1 << bits) - 1)


def even(value: int, unit: int, where: str) -> int:
    """`value` in units of so many bytes.

    Raises:
        CodegenError: it is no multiple of them.
    """
    if value % unit:
        raise CodegenError("a branch to a misaligned address", where=where, why=f"distance {value}")
    return value // unit


def signed(value: int, bits: int) -> int:
    """The number that a field of so many bits holds in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value
