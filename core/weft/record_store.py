"""The file in which a tuner keeps records: a database of SQLite, which compilations look up by default.

Several tuners may write to one file at the same time, and none loses what it has written when it is killed. The tables:

    records   one row for each program or graph, machine and versions: the best choices, and the times that tell so
    trials    what was measured, for a tuner that goes on later

A file comes from anywhere. Its schema has to be exactly this one, so that opening it runs nothing that is in it, and
rows are bounded and checked as a file of records is (`weft.records`).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.records import MOST_BYTES, MOST_RECORDS, Record, Records

APPLICATION = 0x57454654
"""SQLite's `application_id` of such files: the letters WEFT."""
VERSION = 1
TABLES = {
    "records": "CREATE TABLE records (subject TEXT NOT NULL, key TEXT NOT NULL, machine TEXT NOT NULL,"
    " versions TEXT NOT NULL, choices TEXT NOT NULL, seconds REAL NOT NULL, default_seconds REAL NOT NULL,"
    " name TEXT NOT NULL, time INTEGER NOT NULL, PRIMARY KEY (subject, key, machine, versions)) WITHOUT ROWID",
    "trials": "CREATE TABLE trials (subject TEXT NOT NULL, key TEXT NOT NULL, machine TEXT NOT NULL,"
    " versions TEXT NOT NULL, choices TEXT NOT NULL, value REAL, error TEXT, time INTEGER NOT NULL)",
    "trials_of": "CREATE INDEX trials_of ON trials (key, machine, versions)",
}
"""Name → its statement, as SQLite stores it."""
BUSY_SECONDS = 60.0
"""How long one waits for another process that writes."""
MOST_TEXT = 16 * MOST_BYTES
"""Bytes of choices that are read from one file, the latest records first."""
_MAGIC = b"SQLite format 3\0"


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a database of SQLite, by its first bytes."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def load_records(path: str | os.PathLike[str]) -> Records:
    """The records in a file, of either form.

    Raises:
        InputError: there is no such file, it cannot be read, or is no file of records.
    """
    return read_store(path) if is_store(path) else Records.load(path)


@contextmanager
def opened(path: str | os.PathLike[str], *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection to the store at `path`; with `write` it is made if it is not there.

    A file without content is a store without records: who was killed before it had made its tables leaves such a file.

    Raises:
        InputError: it cannot be opened, is damaged, or is no such file.
    """
    file = Path(path)
    connection: sqlite3.Connection | None = None
    try:
        if write:
            file.parent.mkdir(parents=True, exist_ok=True)
        # Who was killed while it wrote has left a journal, which the next to open the file plays back: that writes.
        mode = "rwc" if write else "rw" if os.access(file, os.W_OK) else "ro"
        address = f"{file.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        if _is_empty(connection):
            if not write:
                connection.close()
                connection = sqlite3.connect(":memory:", isolation_level=None)
            _create(connection)
        _check(connection, file)
        yield connection
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the file of records '{path}' cannot be used",
            why=str(error) or type(error).__name__,
            hint=_remedy(error),
        ) from None
    finally:
        if connection is not None:
            connection.close()


def read_store(path: str | os.PathLike[str], machine: str | None = None, versions: str | None = None) -> Records:
    """The records in a store, the latest `MOST_RECORDS`; of those of one program or graph that are left, the latest.

    Args:
        machine: only those of this machine (`ResolvedTarget.machine_key`).
        versions: only those of these versions (`ResolvedTarget.versions`).

    Raises:
        InputError: the file is damaged, not there, or holds what is no record.
    """
    with opened(path) as connection:
        rows = connection.execute(
            "SELECT subject, key, machine, choices FROM records"
            " WHERE machine = coalesce(?, machine) AND versions = coalesce(?, versions) ORDER BY time DESC LIMIT ?",
            (machine, versions, MOST_RECORDS),
        )
        latest = _latest(rows, str(path))
    return Records(tuple(latest.values()))


def _latest(rows: Iterable[tuple[Any, ...]], source: str) -> dict[tuple[Any, ...], Record]:
    """(subject, key, machine) → the first of its rows."""
    found: dict[tuple[Any, ...], Record] = {}
    size = 0
    for row in rows:
        size += len(row[3]) if isinstance(row[3], (str, bytes)) else 0
        if size > MOST_TEXT:
            break
        if row[:3] not in found:
            found[row[:3]] = as_record(row, source)
    return found


def as_record(row: tuple[Any, ...], source: str) -> Record:
    """(subject, key, machine, choices as JSON) as a record, checked as one of a file.

    Raises:
        InputError: it is none.
    """
    subject, key, machine, choices = row
    try:
        data = {subject: key, "machine": machine, "choices": json.loads(choices)}
        text = json.dumps({"version": 1, "records": [data]})
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"invalid record in '{source}'", why=str(error)[:200]) from None
    (record,) = Records.from_json(text, source).records
    return record


def _remedy(error: Exception) -> str:
    """What people can do about a file that cannot be used."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more exactly which it is
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process writes to it: wait for that to end, or end it"
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
        return "make room on its disk, or name a file elsewhere with --file or WEFT_RECORDS"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "move it away to begin a new one"
    return "may this user read and write it, and its folder? --file and WEFT_RECORDS name another"


def _is_empty(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):  # another process may have been here between
            for statement in TABLES.values():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, file: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    # Not by name: a trigger may have the name of a table or an index.
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 20").fetchall()
    exact = sorted(str(sql) for (sql,) in found) == sorted(TABLES.values())
    if application != APPLICATION or (version == VERSION and not exact):
        raise InputError(
            f"'{file}' is no file of records", why="its tables are others", hint="`weft tune` makes such a file"
        )
    if version != VERSION:
        raise InputError(
            f"the file of records '{file}' has version {version}",
            why=f"this version of Weft reads version {VERSION}",
            hint="tune again, into another file",
        )
