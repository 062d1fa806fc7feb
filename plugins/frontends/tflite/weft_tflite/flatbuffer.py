"""FlatBuffers as hostile input: every read is inside the file, and together they read no more than the file could hold.

A table is at an offset; its first four bytes lead back to its vtable, which has the place of each field (slot) in the
table, or 0 for a field that has its default.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import FrontendError

OFFSET, SIGNED, SHORT = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
SCALARS = {name: struct.Struct(f"<{name}") for name in "?bBhHiIqQfd"}
"""Scalars of tables by the letters of `struct`."""
SPARE = 1 << 20
"""Bytes of strings and elements of vectors that may be read beyond what the file holds: parts may be shared."""


class Buffer:
    """The bytes of a file, and how much of them may still be read.

    Args:
        data: the file.
        what: it should be, for errors.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        self.data, self.what, self.left = data, what, 4 * len(data) + SPARE

    def damaged(self, why: str) -> FrontendError:
        return FrontendError(
            f"{self.what} is damaged or no TensorFlow Lite model", why=why, hint="was it cut short? copy it again"
        )

    def unpack(self, form: struct.Struct, at: int, part: str) -> Any:
        """The scalar at an offset.

        Raises:
            FrontendError: it is not inside the file.
        """
        if at < 0 or at + form.size > len(self.data):
            raise self.damaged(f"{part} is at byte {at:,} of {len(self.data):,}")
        return form.unpack_from(self.data, at)[0]

    def vector(self, at: int, width: int, part: str) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are.

        Raises:
            FrontendError: they are not inside the file, or were read too often.
        """
        count = self.unpack(OFFSET, at, part)
        if at + 4 + count * width > len(self.data):
            raise self.damaged(f"{part} has {count:,} elements at byte {at:,} of {len(self.data):,}")
        return at + 4, count

    def spend(self, size: int, part: str) -> None:
        """Raises FrontendError where more has been read than the file holds: parts of it that refer to each other."""
        self.left -= size
        if self.left < 0:
            raise self.damaged(f"{part}: more is referred to than the file holds")

    def root(self) -> Table:
        return Table(self, self.unpack(OFFSET, 0, "the root"), "the model")


class Table:
    """A table: its fields by slot.

    Args:
        buffer: the file.
        at: the table's offset.
        part: of the model, as errors name it.
    """

    def __init__(self, buffer: Buffer, at: int, part: str) -> None:
        self.buffer, self.at, self.part = buffer, at, part
        self._vtable = at - buffer.unpack(SIGNED, at, part)
        self._size = buffer.unpack(SHORT, self._vtable, f"the vtable of {part}")

    def field(self, slot: int) -> int | None:
        """The offset of a field; None: it has its default."""
        place = 4 + 2 * slot
        if place + 2 > self._size:
            return None
        found = self.buffer.unpack(SHORT, self._vtable + place, f"the vtable of {self.part}")
        return self.at + found if found else None

    def scalar(self, slot: int, form: str, default: Any = 0) -> Any:
        """A number or bool, by its letter of `struct`."""
        at = self.field(slot)
        return default if at is None else self.buffer.unpack(SCALARS[form], at, f"a field of {self.part}")

    def _reference(self, slot: int, part: str) -> int | None:
        at = self.field(slot)
        return None if at is None else at + int(self.buffer.unpack(OFFSET, at, part))

    def table(self, slot: int, part: str) -> Table | None:
        at = self._reference(slot, part)
        return None if at is None else Table(self.buffer, at, part)

    def tables(self, slot: int, part: str) -> list[Table]:
        """The tables of a vector; none where it is absent."""
        at = self._reference(slot, part)
        if at is None:
            return []
        first, count = self.buffer.vector(at, 4, part)
        self.buffer.spend(4 * count, part)
        places = range(first, first + 4 * count, 4)
        return [
            Table(self.buffer, p + self.buffer.unpack(OFFSET, p, part), f"{part} {k}") for k, p in enumerate(places)
        ]

    def numbers(self, slot: int, dtype: str, part: str) -> np.ndarray[Any, Any] | None:
        """The numbers of a vector, a view of the file; None: it is absent."""
        at = self._reference(slot, part)
        if at is None:
            return None
        kind = np.dtype(dtype).newbyteorder("<")
        first, count = self.buffer.vector(at, kind.itemsize, part)
        return np.frombuffer(self.buffer.data, kind, count, first)

    def integers(self, slot: int, part: str) -> tuple[int, ...] | None:
        """The int32 of a vector as Python's; None: it is absent."""
        found = self.numbers(slot, "i4", part)
        if found is None:
            return None
        self.buffer.spend(4 * len(found), part)
        return tuple(found.tolist())

    def string(self, slot: int, part: str) -> str:
        """A string; "" where it is absent."""
        found = self.numbers(slot, "u1", part)
        if found is None:
            return ""
        self.buffer.spend(len(found), part)
        return found.tobytes().decode("utf-8", "replace")


def fields(table: Table | None, layout: Sequence[tuple[str, str, Any]]) -> dict[str, Any]:
    """The fields of a table of options by name: scalars, strings ("s") and vectors of int32 ("[i") and others.

    Args:
        layout: of each slot the name, the letter, and the default.
    """
    if table is None:
        return {name: default for name, _, default in layout}
    found: dict[str, Any] = {}
    for slot, (name, form, default) in enumerate(layout):
        if form == "s":
            found[name] = table.string(slot, name)
        elif form.startswith("["):
            numbers = table.numbers(slot, {"[i": "i4", "[q": "i8", "[f": "f4", "[B": "u1"}[form], name)
            if numbers is not None:
                table.buffer.spend(numbers.nbytes, name)
            found[name] = default if numbers is None else tuple(numbers.tolist())
        elif form != "-":
            found[name] = table.scalar(slot, form, default)
    return found


__all__ = ["Buffer", "Table", "fields"]
