"""Numbers, names and sections as WebAssembly's binary format has them (specification, chapter 5)."""

from __future__ import annotations

from collections.abc import Sequence


class Reader:
    """Reads a part of an object.

    Raises:
        ValueError: it ends too early, or a number is too long.
    """

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end
        if not 0 <= at <= self.end <= len(data):
            raise ValueError(f"a part ends at {self.end}, beyond its section")

    def bytes(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise ValueError(f"{count} bytes are wanted at {self.at}, where {self.end - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.bytes(1)[0]

    def number(self) -> int:
        """An unsigned LEB128 of at most 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"a number of more than five bytes at {self.at}")

    def signed(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value
            if shift >= 70:
                raise ValueError(f"a number of more than ten bytes at {self.at}")

    def text(self) -> str:
        return self.bytes(self.number()).decode()

    def part(self) -> Reader:
        """What a length in front says."""
        size = self.number()
        start = self.at
        self.bytes(size)
        return Reader(self.data, start, self.at)

    @property
    def more(self) -> bool:
        return self.at < self.end


def unsigned(value: int) -> bytes:
    """LEB128 of a number that is not negative."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def signed(value: int) -> bytes:
    """LEB128 of a signed number."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        done = value == (-1 if low & 0x40 else 0)
        out.append(low | (0 if done else 0x80))
        if done:
            return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return unsigned(len(data)) + data


def section(number: int, content: bytes) -> bytes:
    """A section of a module; 0 is a custom one, whose content begins with its name."""
    return bytes([number]) + unsigned(len(content)) + content


def vector(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)
