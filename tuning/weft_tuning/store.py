"""What a tuner writes: trials as they are measured, and the best of each kernel."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.choices import Value
from weft.errors import InputError
from weft.record_store import as_record, opened
from weft.records import LONGEST_TEXT, Record, Records

MOST_TRIALS = 5_000
"""The latest trials of a kernel that are read."""
LAST_TIME = 253_402_300_799
"""The last second of the year 9999."""
_PUT = (
    "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " choices = excluded.choices, seconds = excluded.seconds, default_seconds = excluded.default_seconds,"
    " name = excluded.name, time = excluded.time"
    " WHERE excluded.default_seconds / excluded.seconds > default_seconds / seconds"
)
"""Writes a record, unless there is one that gains as much."""


@dataclass(frozen=True)
class Trial:
    """A measurement: `value` is the logarithm of the time over the default's; None if the candidate failed, for the
    reason `error`."""

    choices: Mapping[str, Value]
    value: float | None
    error: str | None = None


@dataclass(frozen=True)
class Kept:
    """A record with what is known of it: seconds of its kernel (or graph) with it and with the defaults, when it was
    made, and for which releases."""

    record: Record
    versions: str
    seconds: float
    default_seconds: float
    name: str
    time: int

    @property
    def gain(self) -> float:
        """How many times as fast it is as the default."""
        return self.default_seconds / self.seconds if self.seconds > 0 else math.inf


class Store:
    """A file of records and trials; each call is a transaction of its own.

    Raises:
        InputError: every method, where the file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], machine: str, versions: str) -> None:
        self.path, self.machine, self.versions = Path(path), machine, versions
        with opened(self.path, write=True):
            pass

    def trials(self, key: str) -> list[Trial]:
        """Those of a kernel (`Work.trial_key`), the oldest first. What is no trial is left out."""
        with opened(self.path) as connection:
            rows = connection.execute(
                "SELECT choices, value, error FROM trials WHERE key = ? AND machine = ? AND versions = ?"
                " ORDER BY time DESC, rowid DESC LIMIT ?",
                (key, self.machine, self.versions, MOST_TRIALS),
            ).fetchall()
        found = []
        for choices, value, error in reversed(rows):
            try:
                data = json.loads(choices)
            except (ValueError, TypeError, RecursionError):
                continue
            named = isinstance(data, dict) and all(isinstance(v, (int, str)) for v in data.values())
            if named and (value is None or (isinstance(value, float) and math.isfinite(value))):
                found.append(Trial(data, value, error if isinstance(error, str) else None))
        return found

    def add_trials(self, trials: Sequence[tuple[str, Trial]]) -> None:
        """(`Work.trial_key`, trial) each."""
        if not trials:
            return
        now = int(time.time())
        rows = [
            ("program", key, self.machine, self.versions, _text(t.choices), t.value, t.error, now) for key, t in trials
        ]
        with opened(self.path, write=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")

    def put(
        self, subject: str, key: str, choices: Mapping[str, Value], seconds: float, default: float, name: str
    ) -> None:
        """Records the best choices so far, in place of earlier ones that gain less."""
        row = (subject, key, self.machine, self.versions, _text(choices), seconds, default, name, int(time.time()))
        as_record((subject, key, self.machine, _text(choices)), str(self.path))
        with opened(self.path, write=True) as connection:
            connection.execute(_PUT, row)

    def drop(self, subject: str, key: str, choices: Mapping[str, Value]) -> None:
        """Takes back a record, if it has these choices: another tuner may have put better ones in their place."""
        with opened(self.path, write=True) as connection:
            connection.execute(
                "DELETE FROM records WHERE subject = ? AND key = ? AND machine = ? AND versions = ? AND choices = ?",
                (subject, key, self.machine, self.versions, _text(choices)),
            )


def kept(path: str | os.PathLike[str]) -> list[Kept]:
    """All records of a file, those that gain most first.

    Raises:
        InputError: it cannot be read, or holds what is no record.
    """
    with opened(path) as connection:
        rows = connection.execute(
            "SELECT subject, key, machine, choices, versions, seconds, default_seconds, name, time FROM records"
        ).fetchall()
    found = []
    for *record, versions, seconds, default, name, made in rows:
        times = (seconds, default)
        timed = all(isinstance(t, float) and 0 < t < math.inf for t in times)
        if not timed or not isinstance(made, int) or not 0 <= made <= LAST_TIME:
            raise InputError(
                f"invalid record in '{path}'",
                why=f"its times are {times!r}, made at {made!r}"[:200],
                hint="`weft records drop --key KEY` takes it back",
            )
        of, called = str(versions)[:LONGEST_TEXT], str(name)[:LONGEST_TEXT]
        found.append(Kept(as_record(tuple(record), str(path)), of, seconds, default, called, made))
    return sorted(found, key=lambda k: -k.gain)


def drop(path: str | os.PathLike[str], gone: Callable[[str, str, str], bool]) -> tuple[int, int]:
    """Takes records back, and what was measured, whether it has led to a record or not.

    Args:
        gone: of a key, a machine and versions: whether what is of them is taken back.

    Returns:
        How many records and trials there were.

    Raises:
        InputError: the file cannot be used.
    """
    counts = []
    with opened(path, write=True) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in ("records", "trials"):
            owners = connection.execute(f"SELECT DISTINCT subject, key, machine, versions FROM {table}").fetchall()
            rows = [o for o in owners if gone(*map(str, o[1:]))]
            of = "subject = ? AND key = ? AND machine = ? AND versions = ?"
            counts.append(connection.executemany(f"DELETE FROM {table} WHERE {of}", rows).rowcount if rows else 0)
        connection.execute("COMMIT")
    records, trials = counts
    return records, trials


def merge(path: str | os.PathLike[str], others: Sequence[str | os.PathLike[str]]) -> int:
    """Takes over the records of other files that gain more than those of `path`, all or none; how many there are
    afterwards.

    Raises:
        InputError: as `kept`, of `others`; `path` cannot be used.
    """
    rows = [
        (r.subject, r.key, r.machine, k.versions, _text(r.choices), k.seconds, k.default_seconds, k.name, k.time)
        for other in others
        for k in kept(other)
        for r in (k.record,)
    ]
    with opened(path, write=True) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_PUT, rows)
        (count,) = connection.execute("SELECT count(*) FROM records").fetchone()
        connection.execute("COMMIT")
    return int(count)


def exported(kept: Sequence[Kept]) -> Records:
    """Records for a file that is shipped, the latest of each program or graph and machine."""
    latest: dict[tuple[str, str, str], Kept] = {}
    for k in sorted(kept, key=lambda k: k.time):
        latest[k.record.subject, k.record.key, k.record.machine] = k
    return Records(tuple(k.record for k in latest.values()))


def _text(choices: Mapping[str, Any]) -> str:
    return json.dumps(dict(sorted(choices.items())), separators=(",", ":"))
