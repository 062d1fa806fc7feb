"""Every environment variable that Weft reads, typed, in one table.

Values are read at each use, so a test or a program may change the environment at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from weft.errors import SettingError, nearest

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
                f"{self.name} is set to '{text}', which cannot be used", why=str(error) or None, hint=f"give {self.accepts}, or unset it"
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


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "weft"


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise ValueError(str(error)) from None


def _optional_count(text: str) -> int | None:
    return _count(text)


LEVELS = ("debug", "info", "warning", "error")


def _level(text: str) -> str | None:
    if text.lower() not in LEVELS:
        raise ValueError("no level of messages")
    return text.lower()


CACHE_DIR = Setting("WEFT_CACHE_DIR", _path, _cache_dir, "a directory", "where compiled models and kernels are kept, in a folder weft-v1 that Weft makes")
CACHE_BYTES = Setting("WEFT_CACHE_BYTES", _size, lambda: 4 << 30, "a size such as 512M or 4G; 0 turns the cache off", "the most that the cache keeps")
THREADS = Setting("WEFT_THREADS", _optional_count, lambda: None, "a number of threads", "threads of a run; default: the CPUs this process may use")
VERIFY_WEIGHTS = Setting(
    "WEFT_VERIFY_WEIGHTS", _flag, lambda: True, "0 or 1", "0 trusts the weights of an archive without computing their hash (code is always checked)"
)
DUMP = Setting("WEFT_DUMP", _names, lambda: (), "stage names separated by commas, or 'all'", "stages whose result is written to WEFT_DUMP_DIR")
DUMP_DIR = Setting("WEFT_DUMP_DIR", _path, lambda: Path("weft-dump"), "a directory", "where dumped stages go")
LOG = Setting("WEFT_LOG", _level, lambda: None, ", ".join(LEVELS[:-1]) + f" or {LEVELS[-1]}", "messages on stderr from this level on: stages and their times")

SETTINGS: tuple[Setting[object], ...] = (CACHE_DIR, CACHE_BYTES, THREADS, VERIFY_WEIGHTS, DUMP, DUMP_DIR, LOG)  # type: ignore[assignment]
OF_TESTS = ("WEFT_EXAMPLES", "WEFT_REQUIRE_ALL")
"""Variables of Weft's own tests."""


def check() -> list[str]:
    """Reads every setting, and says of each variable that begins with WEFT_ and is none that it has no effect.

    Raises:
        SettingError: a variable is set to something that cannot be used.
    """
    for setting in SETTINGS:
        setting.get()
    known = [s.name for s in SETTINGS]
    found = []
    for name in sorted(n for n in os.environ if n.startswith("WEFT_") and n not in (*known, *OF_TESTS)):
        close = nearest(name.removeprefix("WEFT_"), [k.removeprefix("WEFT_") for k in known])
        found.append(f"{name} is no setting of Weft" + (f": did you mean WEFT_{close}?" if close else ", and has no effect"))
    return found


def describe() -> str:
    """The table as text, one line per variable."""
    return "\n".join(f"{s.name:22} {s.help} ({s.accepts})" for s in SETTINGS)
