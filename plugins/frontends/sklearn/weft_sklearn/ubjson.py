"""Universal Binary JSON, as XGBoost writes it: plain objects, and arrays of known length or of one type."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMBERS = {
    b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8",
}  # fmt: skip
LITERALS = {b"Z": None, b"T": True, b"F": False}
DEEPEST = 64
"""Values in values."""


class BadUbjson(ValueError):
    """Bytes that are none; says what is wrong, and where."""


def decode(data: bytes) -> Any:
    """The value that `data` writes; arrays of one type of numbers are numpy's.

    Raises:
        BadUbjson: it is cut short, malformed, nested more than `DEEPEST` deep, or goes on behind its end.
    """
    reader = _Reader(data)
    value = reader.value(reader.mark(), 0)
    if reader.at != len(data):
        raise BadUbjson(f"{len(data) - reader.at} bytes follow the end")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise BadUbjson(f"byte {self.at}: {count} bytes are wanted, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def mark(self) -> bytes:
        """The next mark of a type."""
        while (mark := self.take(1)) == b"N":
            pass
        return mark

    def number(self, mark: bytes) -> Any:
        dtype = np.dtype(NUMBERS[mark])
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def length(self) -> int:
        mark = self.mark()
        if mark not in NUMBERS or mark in b"dD":
            raise BadUbjson(f"byte {self.at}: expected a length, got {mark!r}")
        count: int = self.number(mark)
        if count < 0:
            raise BadUbjson(f"byte {self.at}: the length {count}")
        return count

    def text(self) -> str:
        try:
            return self.take(self.length()).decode()
        except UnicodeDecodeError as error:
            raise BadUbjson(f"byte {self.at}: a text that is not UTF-8") from error

    def value(self, mark: bytes, depth: int) -> Any:
        if mark in NUMBERS:
            return self.number(mark)
        if mark in LITERALS:
            return LITERALS[mark]
        if mark == b"S":
            return self.text()
        if mark == b"C":
            return self.take(1).decode("latin-1")
        if mark not in b"[{" or depth >= DEEPEST:
            raise BadUbjson(
                f"byte {self.at}: "
                + (f"more than {DEEPEST} values in values" if depth >= DEEPEST else f"no type {mark!r}")
            )
        return self.array(depth) if mark == b"[" else self.object(depth)

    def header(self) -> tuple[bytes | None, int | None]:
        """The type and the length of what is inside, as far as they stand in front."""
        kind, count = None, None
        if self.data[self.at : self.at + 1] == b"$":
            self.take(1)
            kind = self.take(1)
            if self.data[self.at : self.at + 1] != b"#":
                raise BadUbjson(f"byte {self.at}: a type without a length")
        if self.data[self.at : self.at + 1] == b"#":
            self.take(1)
            count = self.length()
        return kind, count

    def array(self, depth: int) -> Any:
        kind, count = self.header()
        if kind is not None and count is not None:
            if kind not in NUMBERS:
                raise BadUbjson(f"byte {self.at}: an array of {kind!r}, which are no numbers")
            dtype = np.dtype(NUMBERS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        found: list[Any] = []
        while count is None or len(found) < count:
            mark = self.mark()
            if count is None and mark == b"]":
                break
            found.append(self.value(mark, depth + 1))
        return found

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.header()
        if kind is not None:
            raise BadUbjson(f"byte {self.at}: an object of one type")
        found: dict[str, Any] = {}
        read = 0
        while count is None or read < count:
            if count is None and self.data[self.at : self.at + 1] == b"}":
                self.take(1)
                break
            key = self.text()
            found[key] = self.value(self.mark(), depth + 1)
            read += 1
        return found


__all__ = ["BadUbjson", "decode"]
