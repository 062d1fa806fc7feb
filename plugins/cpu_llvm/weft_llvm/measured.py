"""Rates of a machine: measured by `weft probe`, which stores them in Weft's cache, or given in a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from weft.errors import TargetError
from weft.rates import read_numbers
from weft_runtime import settings
from weft_runtime.cache import Cache

MEASURED, TABLE = "measured", "table"
_KIND = "machines"


def processor() -> str:
    """The processor's model and number of cores, by which measurements are kept."""
    from weft_llvm import toolchain

    return f"{_model() or toolchain.host_triple()} ({toolchain.host_cpu()}), {os.cpu_count() or 1} cores"


def _model() -> str | None:
    """What the processor calls itself, where the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), None)
    except OSError:
        return None


def stored() -> dict[str, float] | None:
    """What was measured on this processor, None if nothing was, or by a version that had other rates. A process reads
    it once: all that one compilation asks, its key among it, has one answer, whatever others measure meanwhile."""
    found = _stored(settings.CACHE_DIR.get())
    return None if found is None else dict(found)


@cache
def _stored(folder: Path) -> dict[str, float] | None:
    if not Cache.may_hold(_KIND):
        return None
    found = Cache(_KIND).get(processor())
    try:
        return None if found is None else read_numbers(found.decode())
    except TargetError:
        return None


def store(values: Mapping[str, float]) -> bool:
    """Keeps what was measured on this processor; whether there is a place for it."""
    kept = Cache(_KIND).put(processor(), json.dumps(dict(values)).encode()) is not None
    _stored.cache_clear()
    return kept


def forget() -> None:
    """Removes what was measured on this processor."""
    Cache(_KIND).discard(processor())
    _stored.cache_clear()


def given_rates(option: str | None) -> Mapping[str, float]:
    """The rates that option `-machine` gives, by name; those that it does not are the table's."""
    if option in (None, TABLE):
        return {}
    if option == MEASURED:
        return stored() or {}
    assert option is not None
    return read_numbers(_text(option), option)


def check(option: str | None, where: str) -> None:
    """Raises TargetError if option `-machine` gives no rates."""
    if option == MEASURED and stored() is None:
        hint = "run weft probe, or leave -machine out"
        raise TargetError(f"nothing was measured on {processor()}", where=where, hint=hint)
    given_rates(option)


def fingerprint(option: str | None) -> tuple[str, ...]:
    """What tells the rates that option `-machine` gives from others, for keys of caches."""
    given = given_rates(option)
    return (hashlib.sha256(json.dumps(sorted(given.items())).encode()).hexdigest()[:16],) if given else ()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        hint = 'name a file of rates, "table", or "measured"; weft probe --output FILE writes one'
        raise TargetError("the file of rates cannot be read", where=f"-machine={path}", why=why, hint=hint) from None
