"""Environment variables, typed, and the table of those that running a model reads. The compiler's stand beside them in
`weft.settings`.

Values are read at each use, so a test or a program may change the environment at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from weft_runtime.errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: `get()` gives its value, or the default where it is unset or empty."""

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    accepts: str
    help: str

    def get(self) -> T:
        """The value.

        Raises:
            SettingError: if the variable is set to something that cannot be used.
        """
        text = os.environ.get(self.name, "")
        if not text.strip():
            return self.default()
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise SettingError(
                f"{self.name} is set to '{text}', which cannot be used",
                why=str(error) or None,
                hint=f"give {self.accepts}, or unset it",
            ) from None


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 4096:
        raise ValueError(f"{value} is not between 1 and 4096")
    return value


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _size(text: str) -> int:
    digits = text.rstrip("kKmMgGtTiIbB")
    unit = text[len(digits) :].lower().removesuffix("b").removesuffix("i")
    if unit not in _UNITS or not digits.strip().isdigit():
        raise ValueError("not a size")
    return int(digits) * _UNITS[unit]


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("neither on nor off")


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "weft"


def path(text: str) -> Path:
    """A path, with `~` for a home.

    Raises:
        ValueError: `~` is nobody's home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise ValueError(str(error)) from None


def _optional_count(text: str) -> int | None:
    return _count(text)


CACHE_DIR = Setting(
    "WEFT_CACHE_DIR",
    path,
    _cache_dir,
    "a directory",
    "directory of the cache of compiled models and kernels, in a folder weft-v1",
)
"""The folder of the on-disk caches."""
CACHE_BYTES = Setting(
    "WEFT_CACHE_BYTES",
    _size,
    lambda: 4 << 30,
    "a size such as 512M or 4G; 0 turns the cache off",
    "largest size of the cache",
)
THREADS = Setting(
    "WEFT_THREADS",
    _optional_count,
    lambda: None,
    "a number of threads",
    "threads of a run; default: the CPUs this process may use",
)
VERIFY_WEIGHTS = Setting(
    "WEFT_VERIFY_WEIGHTS",
    _flag,
    lambda: True,
    "0 or 1",
    "0 trusts the weights of an archive without computing their hash (code is always checked)",
)

SETTINGS: tuple[Setting[Any], ...] = (CACHE_DIR, CACHE_BYTES, THREADS, VERIFY_WEIGHTS)
