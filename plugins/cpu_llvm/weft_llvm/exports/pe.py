"""`weft export -f pe`: a DLL of 64-bit Windows (Microsoft, "PE Format").

Its memory: headers, tables that the loader fills and what the runtime writes, code, data that is only read. Code needs
no relocation, so there are none. A run is on one thread: Windows has none of the functions that the worker pool takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from weft.errors import TargetError
from weft_llvm.exports.inside import Inside, check_prefix, inside, runtime_image, table
from weft_llvm.exports.runtime import FUNCTIONS, SYSTEM, WINDOWS

if TYPE_CHECKING:
    from weft_runtime import Executable

_PAGE, _SECTOR = 0x1000, 0x200
_TABLES, _MODEL, _OWN, _CODE = 0x1000, 0x1200, 0x1F00, 0x2000
_LIBRARY = "msvcrt.dll"
"""The C library that every Windows has."""
_HEAD = 0x400


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes | memoryview]]:
    """The DLL of a model; arguments and errors as those of `elf.files`."""
    of = inside(executable)
    if of.arch != "x86_64" or "windows" not in of.triple:
        raise TargetError(
            f"'{of.name}' was compiled for {of.triple}, a DLL holds code for 64-bit Windows on x86-64",
            where=executable.manifest.target,
            hint='compile it with -t "llvm -mtriple=x86_64-pc-windows-gnu"',
        )
    return {".dll": iter([_library(of, name + ".dll", check_prefix(options.get("prefix", "")))])}


def _round(value: int, to: int) -> int:
    return -(-value // to) * to


def _library(of: Inside, own_name: str, prefix: str) -> bytes:
    distances = {"weft_sys": _TABLES - _CODE, "weft_model": _MODEL - _CODE, "weft_own": _OWN - _CODE}
    runtime = runtime_image(of, distances, pool=False)
    text = bytearray(runtime.bytes)
    places: dict[str, int] = {}
    for name, image in of.code.items():
        text.extend(bytes(-len(text) % 4096))
        places["code/" + name] = _CODE + len(text)
        text += image
    base = _round(_CODE + len(text), _PAGE)
    data = bytearray()

    def add(content: bytes, alignment: int = 2) -> int:
        data.extend(bytes(-len(data) % alignment))
        at = base + len(data)
        data.extend(content)
        return at

    # What is taken: the loader writes addresses into runs of neighbouring fields of weft_sys.
    fields = {name: _TABLES + 8 * SYSTEM.index(name) for name in SYSTEM if name in WINDOWS}
    hints = {name: add(b"\0\0" + name.encode() + b"\0") for name in fields}
    library = add(_LIBRARY.encode() + b"\0")
    tables = bytearray(_PAGE)
    runs: list[list[str]] = []
    for name, at in fields.items():
        struct.pack_into("<Q", tables, at - _TABLES, hints[name])
        if runs and fields[runs[-1][-1]] + 8 == at:
            runs[-1].append(name)
        else:
            runs.append([name])
    lookups = [add(struct.pack(f"<{len(run) + 1}Q", *(hints[n] for n in run), 0), 8) for run in runs]
    entries = [struct.pack("<5I", at, 0, 0, library, fields[run[0]]) for at, run in zip(lookups, runs)]
    imports = add(b"".join(entries) + bytes(20), 4)
    # What is given, by name in order.
    given = sorted((prefix + name, _CODE + runtime.entries[name]) for name in FUNCTIONS)
    named = [add(name.encode() + b"\0") for name, _ in given]
    addresses = add(struct.pack(f"<{len(given)}I", *(at for _, at in given)), 4)
    pointers = add(struct.pack(f"<{len(given)}I", *named), 4)
    ordinals = add(struct.pack(f"<{len(given)}H", *range(len(given))), 4)
    title = add(own_name.encode() + b"\0")
    exports = add(
        struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, title, 1, len(given), len(given), addresses, pointers, ordinals), 4
    )
    places["plan"], places["weights"] = add(of.plan, 64), add(of.weights, 64)
    model = table(of, _MODEL, places)
    tables[_MODEL - _TABLES : _MODEL - _TABLES + len(model)] = model

    read, write, execute = 0x40000040, 0xC0000040, 0x60000020
    parts = [
        (b".data", write, _TABLES, bytes(tables)),
        (b".text", execute, _CODE, bytes(text)),
        (b".rdata", read, base, bytes(data)),
    ]
    room = _round(base + len(data), _PAGE)
    directories = [(exports, 40), (imports, 20 * (len(runs) + 1)), *[(0, 0)] * 14]
    optional = struct.pack(
        "<HBBIIIIIQIIHHHHHHIIIIHHQQQQII",
        0x20B, 1, 0, _round(len(text), _SECTOR), _round(len(data), _SECTOR) + _PAGE, 0, 0, _CODE, 0x180000000, _PAGE,
        _SECTOR, 6, 0, 0, 0, 6, 0, 0, room, _HEAD, 0, 3, 0x20 | 0x40 | 0x100, 1 << 20, 1 << 12, 1 << 20, 1 << 12, 0, 16,
    ) + b"".join(struct.pack("<II", *d) for d in directories)  # fmt: skip
    coff = struct.pack("<HHIIIHH", 0x8664, len(parts), 0, 0, 0, len(optional), 2 | 0x20 | 0x2000)
    headers, at = b"", _HEAD
    for label, flags, address, content in parts:
        size = _round(len(content), _SECTOR)
        headers += struct.pack("<8sIIIIIIHHI", label, len(content), address, size, at, 0, 0, 0, 0, flags)
        at += size
    file = bytearray(b"MZ".ljust(60, b"\0") + struct.pack("<I", 64) + b"PE\0\0" + coff + optional + headers)
    assert len(file) <= _HEAD
    file.extend(bytes(_HEAD - len(file)))
    for _, _, _, content in parts:
        file += content.ljust(_round(len(content), _SECTOR), b"\0")
    return bytes(file)
