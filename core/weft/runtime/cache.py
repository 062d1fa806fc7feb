"""The cache on disk: owner-only, bounded, safe under concurrent writers. A lost or corrupt entry only costs time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from weft import settings

_MAGIC = b"weft-cache-1\n"
_STALE_SECONDS = 3600


class Cache:
    """Entries of one kind ("kernel", "model"). All kinds share one directory and one bound.

    A bytes entry carries its own hash and is ignored when damaged. A file entry (put with a callback) is handed out as a path to be mapped: its
    reader checks it and calls `discard` if it is no good. The least recently used entries go first.

    `disabled` says why the cache keeps nothing, if so; using it then is no error.
    """

    def __init__(self, kind: str, root: Path | None = None, limit: int | None = None) -> None:
        self.kind = kind
        self.root = root if root is not None else settings.CACHE_DIR.get()
        self.limit = limit if limit is not None else settings.CACHE_BYTES.get()
        self.disabled: str | None = None
        self._total: int | None = None
        if self.limit <= 0:
            self.disabled = "its size is set to 0"
            return
        try:
            self._claim()
        except OSError as error:
            self.disabled = str(error)

    def _claim(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.root.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            # Its entries are machine code that would run as this user.
            self.disabled = f"{self.root} belongs to another user"
            return
        if status.st_mode & 0o077:
            os.chmod(self.root, 0o700)
        (self.root / self.kind).mkdir(mode=0o700, exist_ok=True)

    def _place(self, key: str, suffix: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.root / self.kind / name[:2] / (name + suffix)

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under `key`, None if they are not there or damaged."""
        if self.disabled:
            return None
        place = self._place(key, ".bin")
        try:
            data = place.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
            self._remove(place)
            return None
        self._touch(place)
        return data[head:]

    def get_path(self, key: str) -> Path | None:
        """The file that was put under `key`. It may vanish later; who has it open keeps it."""
        if self.disabled:
            return None
        place = self._place(key, ".file")
        if not place.is_file():
            return None
        self._touch(place)
        return place

    def put(self, key: str, value: bytes | Callable[[Path], object]) -> Path | None:
        """Stores bytes, or what a callback writes to the path that it gets; atomically, so that readers see all or nothing.

        Returns:
            The entry, or None where the cache keeps nothing (disabled, disk full).
        """
        if self.disabled:
            return None
        place = self._place(key, ".bin" if isinstance(value, bytes) else ".file")
        temporary = None
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=place.parent)
            with os.fdopen(handle, "wb") as file:
                if isinstance(value, bytes):
                    file.write(_MAGIC + hashlib.sha256(value).digest() + value)
            if not isinstance(value, bytes):
                value(Path(temporary))
            os.chmod(temporary, 0o600)
            size = os.path.getsize(temporary)
            if size > self.limit:
                return None
            os.replace(temporary, place)
            temporary = None
        except OSError:
            return None
        finally:
            if temporary is not None:
                self._remove(Path(temporary))
        self._total = None if self._total is None else self._total + size
        if self._total is None or self._total > self.limit:
            self._shrink(place)
        return place

    def discard(self, key: str) -> None:
        """Forgets an entry that its reader found unusable."""
        if not self.disabled:
            for suffix in (".bin", ".file"):
                self._remove(self._place(key, suffix))

    def size(self) -> int:
        """Bytes that all kinds take together."""
        return sum(entry[1] for entry in self._entries())

    def _entries(self) -> list[tuple[float, int, Path]]:
        import time

        found = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue  # somebody else removed it
                if name.endswith(".tmp"):
                    if time.time() - status.st_mtime > _STALE_SECONDS:
                        self._remove(path)  # left by a writer that died
                    continue
                found.append((status.st_mtime, status.st_size, path))
        return found

    def _shrink(self, keep: Path) -> None:
        """Removes the least recently used entries until a tenth of the bound is free again."""
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        if total > self.limit:
            for _, size, path in sorted(entries):
                if total <= self.limit * 9 // 10:
                    break
                if path != keep:
                    self._remove(path)
                    total -= size
        self._total = total

    @staticmethod
    def _touch(place: Path) -> None:
        with contextlib.suppress(OSError):
            os.utime(place)

    @staticmethod
    def _remove(place: Path) -> None:
        with contextlib.suppress(OSError):
            place.unlink()
