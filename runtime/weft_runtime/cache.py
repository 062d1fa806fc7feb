"""The cache on disk: owner-only, bounded, safe under concurrent writers. A lost or corrupt entry only costs time.

    WEFT_CACHE_DIR/            the user's: nothing in it is changed or removed but
      weft-v1/                 made by Weft, mode 0700
        CACHEDIR.TAG           the marker: without it the folder is not used
        <kind>/<2 hex>/<64 hex>.bin | .file

Entries are machine code that runs as this user. So folders that are links, belong to another user, or may be written by
others are not used, nor is an entry that is a link, belongs to another user, or may be written by others. What is
removed, to stay within the bound, has the name of an entry and the owner of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from weft_runtime import settings
from weft_runtime.errors import CacheWarning, ExecutionError

FOLDER = "weft-v1"
MARKER = "CACHEDIR.TAG"
# The first line is that of https://bford.info/cachedir/: programs that make backups leave such a folder out.
_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n# Weft's cache, format 1. It is safe to delete.\n"
LASTING = ("machines",)
"""Kinds whose entries stay when room is made for others: a few hundred bytes that took a measurement."""
_MAGIC = b"weft-cache-1\n"
_STALE_SECONDS = 3600
_ENTRY = re.compile(r"[0-9a-f]{64}\.(bin|file)")
_TEMPORARY = re.compile(
    r"\.{1,2}[0-9a-f]{64}\.[a-z0-9_]{8}\.tmp(\.[0-9a-f]{16}\.tmp)?"
)  # the second part: `replacing`, which writers of files use

_told: set[str] = set()


class Cache:
    """Entries of one kind ("kernels", "models"). All kinds share one directory and one bound.

    A bytes entry carries its own hash and is ignored when damaged. A file entry (put with a callback) is handed out as
    a path to be mapped: its reader checks it and calls `discard` if it is no good. The least recently used entries go
    first.

    `disabled` says why the cache keeps nothing, if so; using it then is no error. The first use in a process warns
    (CacheWarning), unless the cache was turned off.

    Args:
        kind: a name for the entries, of letters, digits and `_`.
        root: instead of WEFT_CACHE_DIR.
        limit: bytes, instead of WEFT_CACHE_BYTES; 0 turns the cache off.
    """

    def __init__(self, kind: str, root: Path | None = None, limit: int | None = None) -> None:
        assert kind.isidentifier(), kind
        self.kind = kind
        self.limit = limit if limit is not None else settings.CACHE_BYTES.get()
        self.disabled: str | None = None
        self._total: int | None = None
        self._off = self.limit <= 0
        if self._off:
            self.disabled = "its size is set to 0"
            return
        try:
            base = root if root is not None else settings.CACHE_DIR.get()
            self.root = base / FOLDER
            self.disabled = _claim(base)
            if self.disabled is None:
                self.disabled = _unsafe(_made(self.root / kind))
        except OSError as error:
            self.disabled = str(error)
        except RuntimeError as error:  # there is no home directory
            self.disabled = str(error)

    @staticmethod
    def may_hold(kind: str) -> bool:
        """Whether there may be entries of a kind; makes no folder and warns of nothing, as a Cache does."""
        try:
            return settings.CACHE_BYTES.get() > 0 and (settings.CACHE_DIR.get() / FOLDER / kind).is_dir()
        except (OSError, RuntimeError):
            return False

    def _usable(self) -> bool:
        if self.disabled is None:
            return True
        if not self._off:
            _tell(self.disabled)
        return False

    def _place(self, key: str, suffix: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.root / self.kind / name[:2] / (name + suffix)

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under `key`, None if they are not there or damaged."""
        if not self._usable():
            return None
        place = self._place(key, ".bin")
        handle = _open_entry(place)
        if handle is None:
            return None
        try:
            with os.fdopen(handle, "rb") as file:
                data = file.read()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
            _remove(place)
            return None
        _touch(place)
        return data[head:]

    def get_path(self, key: str) -> Path | None:
        """The file that was put under `key`. It may vanish later; who has it open keeps it."""
        if not self._usable():
            return None
        place = self._place(key, ".file")
        handle = _open_entry(place)
        if handle is None:
            return None
        os.close(handle)  # no one else can change what the path means: the folders above it are this user's alone
        _touch(place)
        return place

    def put(self, key: str, value: bytes | Callable[[Path], object]) -> Path | None:
        """Stores bytes, or what a callback writes to the path that it gets; atomically, so that readers see all or
        nothing.

        Returns:
            The entry, or None where the cache keeps nothing: it is disabled, or the disk is full, of which the first
                time warns.
        """
        if not self._usable():
            return None
        place = self._place(key, ".bin" if isinstance(value, bytes) else ".file")
        temporary = None
        try:
            unsafe = _unsafe(_made(place.parent))
            if unsafe is not None:
                _tell(unsafe)
                return None
            handle, temporary = tempfile.mkstemp(prefix=f".{place.stem}.", suffix=".tmp", dir=place.parent)
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
        except OSError as error:
            self._tell_of(error)
            return None
        except ExecutionError as error:  # a saved executable that cannot be written
            if not isinstance(error.__cause__, OSError):
                raise
            self._tell_of(error.__cause__)
            return None
        finally:
            if temporary is not None:
                _remove(Path(temporary))
        self._total = None if self._total is None else self._total + size
        if self._total is None or self._total > self.limit:
            self._shrink(place)
        return place

    def _tell_of(self, error: OSError) -> None:
        _tell(f"{error.strerror or error}, in '{self.root}'")  # not the file's name, which is another each time

    def discard(self, key: str) -> None:
        """Forgets an entry that its reader found unusable."""
        if not self.disabled:
            for place in (self._place(key, ".bin"), self._place(key, ".file")):
                if _safe(place.parent):
                    _remove(place)

    def size(self) -> int:
        """Bytes that all kinds take together."""
        return 0 if self.disabled else sum(entry[1] for entry in self._entries())

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of the last use in seconds, bytes and place of every entry of every kind. Removes what writers left that
        died."""
        import time

        found = []
        for kind in _folders(self.root):
            for part in _folders(kind):
                for entry in _scan(part):
                    temporary = _TEMPORARY.fullmatch(entry.name) is not None
                    if not temporary and not (_ENTRY.fullmatch(entry.name) and entry.name[:2] == part.name):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # somebody else removed it
                    if not stat.S_ISREG(status.st_mode) or not _own(status):
                        continue
                    if not temporary:
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
                    elif time.time() - status.st_mtime > _STALE_SECONDS:
                        _remove(Path(entry.path))
        return found

    def _shrink(self, keep: Path) -> None:
        """Removes the least recently used entries until a tenth of the bound is free again."""
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        if total > self.limit:
            for _, size, path in sorted(entries):
                if total <= self.limit * 9 // 10:
                    break
                if path != keep and path.parent.parent.name not in LASTING:
                    _remove(path)
                    total -= size
        self._total = total


def _tell(why: str) -> None:
    """Warns that nothing is kept, once in a process for each reason."""
    if why in _told:
        return
    _told.add(why)
    hint = (
        f"name another folder with {settings.CACHE_DIR.name}, or turn the cache off with {settings.CACHE_BYTES.name}=0"
    )
    warnings.warn(f"what is compiled is not kept in the cache: {why}\n  hint: {hint}", CacheWarning, stacklevel=4)


# -- whose it is ------------------------------------------------------------------------------------------------------


def _own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _open_to_others(status: os.stat_result) -> bool:
    """Whether others than the owner may replace what a file or folder holds. In a folder with the sticky bit they may
    not."""
    return bool(status.st_mode & 0o022) and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)


def _claim(base: Path) -> str | None:
    """Makes Weft's folder in `base` if it is not there; why it cannot be used, if so.

    Raises:
        OSError: it cannot be made.
    """
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.stat()
    if not _own(status) and status.st_uid != 0:
        return f"'{base}' belongs to another user"
    if _open_to_others(status):
        return f"'{base}' may be written by others: its mode is {stat.S_IMODE(status.st_mode):04o}"
    folder = base / FOLDER
    if not os.path.lexists(folder):
        _make(folder)
    unsafe = _unsafe(folder)
    if unsafe is not None:
        return unsafe
    handle = _open_own(folder / MARKER)
    if handle is not None:
        with os.fdopen(handle, "rb") as file:
            if file.read(len(_MARK) + 1) == _MARK:
                return None
    return f"'{folder}' was not made by Weft: it has no {MARKER} that says so"


def _unsafe(folder: Path) -> str | None:
    """Why no code may be taken from a folder, if so: it is a link or no folder, or others may put something there."""
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"'{folder}' is a link"
    if not stat.S_ISDIR(status.st_mode):
        return f"'{folder}' is no folder"
    if not _own(status):
        return f"'{folder}' belongs to another user"
    if status.st_mode & 0o022:
        return f"'{folder}' may be written by others: its mode is {stat.S_IMODE(status.st_mode):04o}"
    return None


def _made(folder: Path) -> Path:
    """A folder inside the cache's own, made if nothing is there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def _make(folder: Path) -> None:
    """The folder and its marker appear together."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", suffix=".tmp", dir=folder.parent))
    try:
        (temporary / MARKER).write_bytes(_MARK)
        os.chmod(temporary / MARKER, 0o600)
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.lexists(folder):  # else another process was first
            raise


def _open_own(place: Path) -> int | None:
    """A descriptor of a regular file of this user that no one else may write to; None if the place holds none. Links
    are not followed."""
    try:
        handle = os.open(
            place, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except OSError:
        return None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and _own(status) and not _open_to_others(status):
        return handle
    os.close(handle)
    return None


def _open_entry(place: Path) -> int | None:
    """As `_open_own`, of an entry whose folder is safe as well."""
    return _open_own(place) if _safe(place.parent) else None


def _safe(folder: Path) -> bool:
    try:
        return _unsafe(folder) is None
    except OSError:  # it is not there
        return False


def _folders(place: Path) -> Iterator[Path]:
    for entry in _scan(place):
        if entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _scan(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except OSError:
        return []


def _touch(place: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(place)


def _remove(place: Path) -> None:
    with contextlib.suppress(OSError):
        place.unlink()
