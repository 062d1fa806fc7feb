"""Kernels as a code section: each is one launch or several, in order, of source text or binaries.

    section := (bytes of the kernel: uint64, kernel)*            entries: a kernel's name → where it begins
    kernel  := "WGRD", version: uint32, bytes of the table: uint32, table (JSON), the launches' code one after another
    table   := [[symbol, [x, y, z], [x, y, z], [buffer, …], [dim, …], bytes of code], …]         or, of launches that
        copy boxes,
               [symbol, [x, y, z], [x, y, z], [buffer, …], [dim, …], bytes of code, [[buffer, bytes, [extent, …],
                   [stride, …], [size, …]], …]]

The grid's extents are formulas over the kernel's dims `d0`, `d1` …, as `weft_runtime.formulas` reads them. This module
is runtime: it imports no compiler.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from math import prod
from typing import Any, NoReturn

from weft.errors import ArchiveError, ExecutionError
from weft_runtime.formulas import Formula, formula

MAGIC = b"WGRD"
VERSION = 1
MOST = 1 << 16
"""Launches of a kernel, and buffers and dims of a launch, at most: what is beyond is no code of ours."""
_HEAD = struct.Struct("<4sII")
_SIZE = struct.Struct("<Q")


MOST_DIMS, MOST_EXTENT, MOST_STRIDE, MOST_SIZE, MOST_BOX, PIECE = 5, 1 << 31, 1 << 40, 256, 1 << 18, 16
"""Of a tensor of which boxes are copied: dims, elements and bytes along one; elements of a box along one, bytes of all
of it; what bytes are multiples of."""


@dataclass(frozen=True)
class Tensor:
    """A buffer of a launch as a tensor, boxes of which it copies to shared memory: what a device is told before.

    Args:
        buffer: which of the launch's buffers.
        bytes: of an element.
        extents: elements along each dim, the dim whose elements are neighbours first.
        strides: bytes between neighbours along each dim but the first.
        sizes: of a box, along each dim.
    """

    buffer: int
    bytes: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Bytes from its first element to the end of its last."""
        return self.bytes + sum((n - 1) * step for n, step in zip(self.extents, (self.bytes, *self.strides)))


@dataclass(frozen=True)
class Launch:
    """One launch of a grid.

    Args:
        symbol: what the function is called in the code.
        code: source in UTF-8, or a binary.
        grid: groups along x, y and z, formulas over the kernel's dims `d0`, `d1` …
        group: threads of a group along x, y and z.
        buffers: which of the kernel's buffers (inputs, outputs, scratch) it takes, in the order of its parameters.
        dims: which of the kernel's dims it takes behind them.
        tensors: of which it copies boxes, its last parameters.
    """

    symbol: str
    code: bytes
    grid: tuple[str, str, str]
    group: tuple[int, int, int]
    buffers: tuple[int, ...]
    dims: tuple[int, ...]
    tensors: tuple[Tensor, ...] = ()

    @cached_property
    def extents(self) -> tuple[Formula, Formula, Formula]:
        """The grid's formulas, ready to be evaluated.

        Raises:
            ArchiveError: one of them is none.
        """
        x, y, z = map(formula, self.grid)
        return x, y, z


@dataclass(frozen=True)
class Kernel:
    """A kernel of a code section: its launches, one after another."""

    name: str
    launches: tuple[Launch, ...]

    def to_bytes(self) -> bytes:
        """As a section holds it; the name is the section's to keep."""
        table = [
            [
                x.symbol,
                x.grid,
                x.group,
                x.buffers,
                x.dims,
                len(x.code),
                *([[*map(astuple, x.tensors)]] if x.tensors else []),
            ]
            for x in self.launches
        ]
        text = json.dumps(table, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(MAGIC, VERSION, len(text)), text, *(x.code for x in self.launches)])

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Kernel:
        """The kernel of what `to_bytes` gave.

        Raises:
            ExecutionError: the bytes are anything else, or of another version.
        """
        if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
            _damaged(name, f"it begins with {bytes(data[:4])!r}, not with {MAGIC!r}")
        _, version, size = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ExecutionError(
                f"the code of kernel '{name}' is of version {version}",
                why=f"this device runs version {VERSION}",
                hint="compile it again",
            )
        at = _HEAD.size + size
        if at > len(data):
            _damaged(name, f"its table has {size} bytes, {len(data) - _HEAD.size} are left")
        try:
            table = json.loads(data[_HEAD.size : at].decode())
        except (ValueError, RecursionError) as error:
            _damaged(name, f"its table cannot be read: {error}")
        launches = []
        for row in _items(table, "its table", name):
            launch, size = _launch(row, data, at, name)
            launches.append(launch)
            at += size
        if at != len(data):
            _damaged(name, f"{len(data) - at} bytes follow the last launch")
        return Kernel(name, tuple(launches))


def pack(kernels: Mapping[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """A section of kernels (name → `Kernel.to_bytes()`), and its entries."""
    image, entries = bytearray(), {}
    for name, data in kernels.items():
        entries[name] = len(image)
        image += _SIZE.pack(len(data)) + data
    return bytes(image), entries


def unpack(image: bytes, entries: Mapping[str, int], tensors: bool = False) -> dict[str, Kernel]:
    """The kernels of a section, by name. `tensors`: the device copies boxes of tensors.

    Raises:
        ExecutionError: the section is not what `pack` makes, or has tensors for a device that knows none; names the
            kernel.
    """
    found = {}
    for name, at in entries.items():
        if not _is_int(at) or not 0 <= at <= len(image) - _SIZE.size:
            _damaged(name, f"its entry is {at!r}, the section has {len(image)} bytes")
        (size,) = _SIZE.unpack_from(image, at)
        at += _SIZE.size
        if size > len(image) - at:
            _damaged(name, f"it has {size} bytes, {len(image) - at} are left")
        found[name] = Kernel.from_bytes(bytes(image[at : at + size]), name)
        if not tensors and any(x.tensors for x in found[name].launches):
            _damaged(name, "it copies boxes of tensors, which this device does not")
    return found


def _launch(row: Any, data: bytes, at: int, name: str) -> tuple[Launch, int]:
    """A row of the table with its code, which begins at `at`, and how long that is."""
    match row:
        case [
            str(symbol),
            [str(), str(), str()] as grid,
            [_, _, _] as group,
            list(buffers),
            list(dims),
            size,
            *more,
        ] if len(more) < 2:
            pass
        case _:
            _damaged(name, f"a launch is {str(row)[:80]}")
    if not (symbol.isascii() and symbol.isidentifier()):
        _damaged(name, f"a launch is called {symbol[:40]!r}")
    if not all(_is_int(n) and 1 <= n < 1 << 31 for n in group):
        _damaged(name, f"a group of '{symbol}' is {str(group)[:80]}")
    for numbers, what in ((buffers, "buffers"), (dims, "dims")):
        if not all(_is_int(n) and 0 <= n < MOST for n in _items(numbers, f"a list of {what}", name)):
            _damaged(name, f"the {what} of '{symbol}' are {str(numbers)[:80]}")
    if not _is_int(size) or not 0 <= size <= len(data) - at:
        _damaged(name, f"the code of '{symbol}' has {str(size)[:40]} bytes, {len(data) - at} are left")
    tensors = (
        tuple(_tensor(x, len(buffers), symbol, name) for x in _items(more[0], f"the tensors of '{symbol}'", name))
        if more
        else ()
    )
    if more and not tensors:
        _damaged(name, f"'{symbol}' has an empty list of tensors")
    launch = Launch(symbol, data[at : at + size], _three(grid), _three(group), tuple(buffers), tuple(dims), tensors)
    try:
        _ = launch.extents
    except ArchiveError as error:
        _damaged(name, f"the grid of '{symbol}': {error.what}")
    return launch, size


def _tensor(row: Any, buffers: int, symbol: str, name: str) -> Tensor:
    match row:
        case [buffer, each, [_, *_] as extents, list(strides), list(sizes)] if (
            len(extents) == len(sizes) == len(strides) + 1 <= MOST_DIMS
        ):
            pass
        case _:
            _damaged(name, f"a tensor of '{symbol}' is {str(row)[:80]}")
    known = all(_is_int(n) for n in (buffer, each, *extents, *strides, *sizes))
    if not known or not 0 <= buffer < buffers or each not in (1, 2, 4, 8):
        _damaged(name, f"a tensor of '{symbol}' is {str(row)[:80]}")
    whole = not any(n % PIECE for n in (*strides, sizes[0] * each)) and prod(sizes) * each <= MOST_BOX
    bounds = ((extents, MOST_EXTENT), (strides, MOST_STRIDE), (sizes, MOST_SIZE + 1))
    if not whole or not all(0 < n < most for numbers, most in bounds for n in numbers):
        _damaged(name, f"no device copies boxes of the tensor {str(row)[:80]} of '{symbol}'")
    return Tensor(buffer, each, tuple(extents), tuple(strides), tuple(sizes))


def _items(value: Any, what: str, name: str) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > MOST:
        _damaged(name, f"{what} is {str(value)[:40]}")
    return value


def _three(values: list[Any]) -> tuple[Any, Any, Any]:
    x, y, z = values
    return x, y, z


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _damaged(name: str, why: str) -> NoReturn:
    raise ExecutionError(f"the code of kernel '{name}' is damaged", why=why, hint="compile the model again")
