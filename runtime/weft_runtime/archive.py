"""The saved form of an executable: a plain zip, stored uncompressed.

    plan                     first: what the C runtime reads, from byte 64 of the file on, then its sha256
    manifest.json            what all others read
    code/<section>           an image, then the manifest's signature
    weights.safetensors      its data 64-byte aligned in the file, so that they are used where they lie

The plan (`plan_words`) is made from the manifest: it has its signature, and says where in the file the code and the
weights lie, so that who reads it needs neither JSON nor a zip's directory. An archive whose members were moved is one
for Python alone.

Every section has its sha256 in the manifest, checked before the section is used; the manifest itself has the zip's
checksum, and a whole file can be pinned with `expect`. Weights are hashed too, unless WEFT_VERIFY_WEIGHTS=0 or `expect`
has already vouched for the file: in pieces of 4 MiB, several at once (0.15 s for 400 MB on two threads), and the hash
in the manifest is that of the pieces' hashes.

Code believes its manifest: how many inputs it gets, of what types, which constants. So each code section ends with the
signature of the manifest that it was written with, inside of what is hashed, and goes with no other one.

A file of at most COPIED bytes is copied before anything of it is checked: what was checked is what runs. A larger one
is mapped: who writes into it or cuts it short later changes weights that are in use, or ends the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft_runtime import settings
from weft_runtime.errors import ArchiveError, ExecutionError
from weft_runtime.files import obstacle, replacing
from weft_runtime.plan import Manifest, SectionInfo
from weft_runtime.plan_words import Stretch, plan_words
from weft_runtime.weights import ALIGNMENT as ALIGNMENT
from weft_runtime.weights import hash_pieces as hash_pieces
from weft_runtime.weights import places_in_weights, read_weights, weights_pieces

PLAN = "plan"
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
CODE = "code/"
COPIED = 64 << 20
_SIGNATURE = 32
_MOST_MANIFEST = 256 << 20
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # same executable, same bytes
_ZIP64 = 20
_PADDING_FIELD = 0xD935  # the extra field that zipalign uses


@dataclass(frozen=True)
class Content:
    """What an archive holds, checked. `constants` are views of the file as it is mapped, or of the copy."""

    manifest: Manifest
    code: dict[str, bytes]
    constants: dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Stored:
    """What an archive of an executable holds, to be written in another way.

    Attributes:
        manifest: as JSON, with the hash of the weights; the hashes of code are those of the images alone.
        plan: the manifest for the C runtime.
        code: the images of sections, by name.
        weights: the pieces of the weights in the format safetensors, in order; empty without constants.
        weights_bytes: of all pieces.
    """

    manifest: bytes
    plan: bytes
    code: Mapping[str, bytes]
    weights: Iterable[memoryview | bytes]
    weights_bytes: int


def stored(manifest: Manifest, code: Mapping[str, bytes], constants: Mapping[str, np.ndarray[Any, Any]]) -> Stored:
    manifest = _with_weights(manifest, constants)
    plan = plan_words(manifest, places_in_weights(constants))
    if manifest.weights is None:
        return Stored(manifest.to_json(), plan, code, (), 0)
    return Stored(manifest.to_json(), plan, code, weights_pieces(constants), manifest.weights.bytes)


def _with_weights(manifest: Manifest, constants: Mapping[str, np.ndarray[Any, Any]]) -> Manifest:
    """The manifest with hash and size of the weights."""
    return manifest.with_(weights=SectionInfo(*hash_pieces(weights_pieces(constants))) if constants else None)


# -- writing ----------------------------------------------------------------------------------------------------------


def save(
    path: Path,
    manifest: Manifest,
    code: Mapping[str, bytes],
    constants: Mapping[str, np.ndarray[Any, Any]],
    durable: bool = True,
) -> None:
    """Writes the archive, whole or not at all; `durable`: it is on the disk then."""
    why = obstacle(path) or (
        f"'{path}' is no file, and an archive is written with leaps" if path.exists() and not path.is_file() else None
    )
    if why is not None:
        raise ExecutionError(f"cannot write {path}", why=why)
    manifest = _with_weights(manifest, constants)
    manifest, code = sign(manifest, code)
    text = manifest.to_json()
    plan = plan_of(manifest, len(text), constants)
    try:
        with (
            replacing(path, durable) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            _add(archive, file, PLAN, iter([plan]))
            _add(archive, file, MANIFEST, iter([text]))
            for name in manifest.sections:
                _add(archive, file, CODE + name, iter([code[name]]))
            if constants:
                _add(archive, file, WEIGHTS, weights_pieces(constants))
    except OSError as error:
        raise ExecutionError(f"cannot write {path}", why=error.strerror or str(error)) from error


def sign(manifest: Manifest, code: Mapping[str, bytes]) -> tuple[Manifest, dict[str, bytes]]:
    """Code sections as an archive has them, and the manifest with their hashes."""
    signature = manifest.signature()
    signed = {name: code[name] + signature for name in manifest.sections}
    sections = {
        n: replace(s, sha256=hashlib.sha256(signed[n]).hexdigest(), bytes=len(signed[n]))
        for n, s in manifest.sections.items()
    }
    return manifest.with_(sections=sections), signed


def plan_of(manifest: Manifest, text_bytes: int, constants: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The member "plan" of an archive.

    Args:
        manifest: as the archive has it, with hashes and sizes.
        text_bytes: of its JSON.
    """
    weights = {WEIGHTS: manifest.weights.bytes} if manifest.weights is not None else {}
    sizes = {MANIFEST: text_bytes, **{CODE + n: s.bytes for n, s in manifest.sections.items()}, **weights}
    within = places_in_weights(constants)
    plan, known = b"", False
    while not known:  # the second one has the size of the first, and knows it
        known, at, places = bool(plan), 0, {}
        for name, size in {PLAN: len(plan) + 32, **sizes}.items():
            at += _head(name, at)
            places[name] = Stretch(at, size)
            at += size
        code = {n: places[CODE + n] for n in manifest.sections}
        plan = plan_words(manifest, within, code, places.get(WEIGHTS), pool=True)
    return plan + hashlib.sha256(plan).digest()


def _head(name: str, at: int) -> int:
    """Bytes of the zip between where a member begins and its content."""
    start = at + 30 + len(name.encode()) + _ZIP64 + 4
    return start + -start % ALIGNMENT - at


def _add(archive: zipfile.ZipFile, file: BinaryIO, name: str, pieces: Iterator[memoryview | bytes]) -> None:
    info = zipfile.ZipInfo(name, _FIXED_DATE)
    info.external_attr = 0o644 << 16
    padding = _head(name, file.tell()) - 30 - len(name.encode()) - _ZIP64 - 4
    info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=True) as member:
        for piece in pieces:
            member.write(piece)


# -- reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, path: Path, file: BufferedReader, copy: bool | None = None) -> None:
        self.where = str(path)
        self.size = os.fstat(file.fileno()).st_size
        if self.size == 0:
            raise ArchiveError(f"{self.where} is empty", hint="the file was cut short: save or copy it again")
        if file.read(4) != b"PK\3\4":
            raise ArchiveError(
                f"{self.where} is no Weft archive",
                why="it does not start as a zip",
                hint="a saved executable is written by exe.save(path)",
            )
        self.data = (
            self._copy(file)
            if copy or (copy is None and self.size <= COPIED)
            else memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        )
        try:
            # zipfile reads from memory as from a file, and so cannot see another file than this one.
            self.zip = zipfile.ZipFile(_MappedFile(self.data))
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
            EOFError,
            struct.error,
            UnicodeDecodeError,
            OverflowError,
        ) as error:
            raise ArchiveError(
                f"{self.where} is truncated or corrupt", why=str(error), hint="save or copy it again"
            ) from None
        self.members: dict[str, tuple[int, int]] = {}
        for info in self.zip.infolist():
            if info.filename in self.members:
                raise ArchiveError(f"{self.where} holds '{info.filename}' twice")
            if info.filename not in (PLAN, MANIFEST, WEIGHTS) and not info.filename.startswith(CODE):
                raise ArchiveError(f"{self.where} holds '{info.filename}', which is no part of a Weft archive")
            self.members[info.filename] = self._place(info)
        if MANIFEST not in self.members:
            raise ArchiveError(f"{self.where} is no Weft archive", why=f"it has no {MANIFEST}")
        if self.members[MANIFEST][1] > _MOST_MANIFEST:
            raise ArchiveError(
                f"{self.where} has a manifest of {self.members[MANIFEST][1]} bytes",
                why=f"at most {_MOST_MANIFEST} are read",
            )

    def _copy(self, file: BufferedReader) -> memoryview:
        """The file in memory of this process, on the boundary of a page as if it were mapped."""
        try:
            room = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, MemoryError) as error:
            raise ArchiveError(
                f"no memory for a copy of {self.where}",
                why=f"it has {self.size} bytes: {error}",
                hint="load it with copy=False",
            ) from None
        with contextlib.suppress(AttributeError, OSError):  # a system without huge pages
            room.madvise(mmap.MADV_HUGEPAGE)
        file.seek(0)
        with memoryview(room) as view:
            at = 0
            while at < self.size and (read := file.readinto(view[at:])):
                at += read
        if at != self.size or file.read(1):
            raise ArchiveError(f"{self.where} has changed while it was read", hint="load it again")
        return memoryview(room).toreadonly()

    def _place(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        """Offset and size of a member's data."""
        stored = (
            info.compress_type == zipfile.ZIP_STORED
            and info.compress_size == info.file_size
            and not info.flag_bits & 0x1
        )
        at = info.header_offset
        if not stored:
            raise ArchiveError(
                f"{self.where} holds '{info.filename}' compressed or encrypted",
                why="sections are used where they lie in the file",
            )
        if 0 <= at <= self.size - 30 and bytes(self.data[at : at + 4]) == b"PK\3\4":
            name, extra = struct.unpack_from("<HH", self.data, at + 26)
            begin = at + 30 + name + extra
            if (
                bytes(self.data[at + 30 : at + 30 + name]) == info.filename.encode()
                and begin + info.file_size <= self.size
            ):
                return begin, info.file_size
        raise ArchiveError(
            f"{self.where} is truncated or corrupt",
            why=f"'{info.filename}' does not lie where the directory says",
            hint="save or copy it again",
        )

    def manifest(self) -> Manifest:
        try:
            text = self.zip.read(MANIFEST)  # checks the zip's checksum
        except (zipfile.BadZipFile, EOFError, NotImplementedError, struct.error, RuntimeError, ValueError) as error:
            raise ArchiveError(
                f"{self.where} has a corrupt manifest", why=str(error), hint="save or copy it again"
            ) from None
        return Manifest.from_json(text, self.where)

    def check_plan(self) -> None:
        """Compares the plan of the C runtime, which nothing here reads, with its hash."""
        begin, size = self.members.get(PLAN, (0, 0))
        content, digest = self.data[begin : begin + size - 32], self.data[begin + size - 32 : begin + size]
        if size and (size < 32 or hashlib.sha256(content).digest() != digest):
            raise ArchiveError(
                f"{self.where} is corrupt", why=f"the hash of '{PLAN}' is another", hint="save or copy it again"
            )

    def section(self, name: str, info: SectionInfo, check: bool = True) -> memoryview:
        """Its bytes, where they lie."""
        if name not in self.members:
            raise ArchiveError(f"{self.where} lacks '{name}', which its manifest names")
        begin, size = self.members[name]
        if size != info.bytes:
            raise ArchiveError(
                f"{self.where} is corrupt", why=f"'{name}' has {size} bytes, its manifest says {info.bytes}"
            )
        data = self.data[begin : begin + size]
        if check:
            self._agree(name, hash_pieces([data])[0], info)
        return data

    def code(self, name: str, info: SectionInfo, signature: bytes) -> bytes:
        """An image, which is a copy, without its signature."""
        data = bytes(self.section(CODE + name, info, check=False))
        self._agree(CODE + name, hashlib.sha256(data).hexdigest(), info)
        if data[-_SIGNATURE:] != signature:
            why = f"'{CODE + name}' was made for another manifest, with other inputs, outputs, constants or steps"
            raise ArchiveError(
                f"{self.where} holds code that does not go with its manifest", why=why, hint="save or copy it again"
            )
        return data[:-_SIGNATURE]

    def _agree(self, name: str, hashed: str, info: SectionInfo) -> None:
        if hashed != info.sha256:
            raise ArchiveError(
                f"{self.where} is corrupt",
                why=f"the hash of '{name}' is not the one in its manifest",
                hint="save or copy it again",
            )


class _MappedFile(io.RawIOBase):
    """A read-only file over memory."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, len(self._data))[whence]
        if at < 0:
            raise ValueError("a place before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else min(len(self._data), self._at + size)
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece


def _open(path: Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:
        raise ArchiveError(f"cannot open {path}", why=error.strerror) from None


def inspect(path: Path) -> Manifest:
    """The manifest alone."""
    with _open(path) as file:
        return _Reader(path, file).manifest()


def load(path: Path, expect: str | None = None, copy: bool | None = None) -> Content:
    """Manifest, code and constants, each checked; see `Executable.load`."""
    with _open(path) as file:
        reader = _Reader(path, file, copy)
    if expect is not None:
        _check_whole(reader, expect)
    manifest = reader.manifest()
    trouble = manifest.trouble()
    if trouble is not None:
        raise ArchiveError(f"{path} has a malformed manifest", why=trouble)
    loops = manifest.sections.get(manifest.loops) if manifest.loops is not None else None
    if manifest.loops is not None and (loops is None or "repeat" not in loops.entries):
        raise ArchiveError(
            f"{path} has a malformed manifest",
            why=f"'{manifest.loops}', which runs loops, is no section with the entry 'repeat'",
        )
    if manifest.constants and manifest.weights is None:
        raise ArchiveError(f"{path} has a malformed manifest", why="it lists constants and no weights")
    known = {CODE + name for name in manifest.sections} | {PLAN, MANIFEST} | ({WEIGHTS} if manifest.weights else set())
    foreign = sorted(set(reader.members) - known)
    if foreign:
        raise ArchiveError(f"{path} holds '{foreign[0]}', which its manifest does not name")
    reader.check_plan()
    signature = manifest.signature()
    code = {name: reader.code(name, info, signature) for name, info in manifest.sections.items()}
    bare = {
        n: replace(s, sha256=hashlib.sha256(code[n]).hexdigest(), bytes=len(code[n]))
        for n, s in manifest.sections.items()
    }
    constants: dict[str, np.ndarray[Any, Any]] = {}
    if manifest.constants and manifest.weights is not None:
        check = expect is None and settings.VERIFY_WEIGHTS.get()
        constants = read_weights(reader.section(WEIGHTS, manifest.weights, check), manifest.constants, str(path))
    return Content(manifest.with_(sections=bare), code, constants)


def _check_whole(reader: _Reader, expect: str) -> None:
    kind, _, digest = expect.partition(":")
    if kind != "sha256" or len(digest) != 64:
        raise ArchiveError(
            f"'{expect}' is no hash to expect", hint="write sha256: and 64 hexadecimal digits, as sha256sum prints"
        )
    got = hashlib.sha256(reader.data).hexdigest()
    if got != digest.lower():
        raise ArchiveError(
            f"{reader.where} is not the expected file", why=f"its hash is sha256:{got}, expected {expect}"
        )
