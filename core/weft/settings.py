"""Every environment variable that Weft reads, typed, in one table: the runtime's (`weft_runtime.settings`) and the
compiler's.

Values are read at each use, so a test or a program may change the environment at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from weft_runtime.errors import nearest
from weft_runtime.settings import CACHE_BYTES, CACHE_DIR, THREADS, VERIFY_WEIGHTS, Setting, path
from weft_runtime.settings import SETTINGS as OF_RUNS

__all__ = [
    "CACHE_BYTES", "CACHE_DIR", "DUMP", "DUMP_DIR", "LEVELS", "LOG", "OF_TESTS", "RECORDS", "SETTINGS", "Setting",
    "THREADS", "VERIFY_WEIGHTS", "check", "describe",
]  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


LEVELS = ("debug", "info", "warning", "error")


def _level(text: str) -> str | None:
    if text.lower() not in LEVELS:
        raise ValueError("no level of messages")
    return text.lower()


DUMP = Setting(
    "WEFT_DUMP", _names, lambda: (), "stage names separated by commas, or 'all'", "stages to write to WEFT_DUMP_DIR"
)
DUMP_DIR = Setting("WEFT_DUMP_DIR", path, lambda: Path("weft-dump"), "a directory", "directory for dumped stages")
LOG = Setting(
    "WEFT_LOG",
    _level,
    lambda: None,
    ", ".join(LEVELS[:-1]) + f" or {LEVELS[-1]}",
    "level of messages on stderr, such as stages and their times",
)


def _records() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "weft" / "records.sqlite"


def _records_file(text: str) -> Path | None:
    return None if text.lower() == "none" else path(text)


RECORDS = Setting(
    "WEFT_RECORDS", _records_file, _records, "a file, or 'none'", "the tuner's records, which compilations look up"
)


SETTINGS: tuple[Setting[Any], ...] = (*OF_RUNS, DUMP, DUMP_DIR, LOG, RECORDS)
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
        found.append(
            f"{name} is no setting of Weft" + (f": did you mean WEFT_{close}?" if close else ", and has no effect")
        )
    return found


def describe() -> str:
    """The table as text, one line per variable."""
    return "\n".join(f"{s.name:22} {s.help} ({s.accepts})" for s in SETTINGS)
