"""What can go wrong with another machine."""

from __future__ import annotations

import os
import re
import signal

from weft_runtime.errors import ExecutionError, InputError, WeftError

PROTOCOL, MISSING, BUSY, DISK, DAMAGED, TIME, OUTPUT, CRASH, CANCELLED, TOO_LARGE, SYSTEM = range(100, 111)
"""Codes of the agent's errors, beside those of weft.h."""
INPUT = 2
"""WEFT_ERROR_INPUT of weft.h."""


class RemoteError(ExecutionError):
    """A request that another machine did not fulfil. `code` is the agent's number or weft.h's, 0 if there is none."""

    code: int = 0


class LinkError(RemoteError):
    """There is no connection, or it was lost, stalled, or carried something else than the protocol."""


class BusyError(RemoteError):
    """Somebody else's job is on the board, or another connection is sending the same file."""


class StoreError(RemoteError):
    """The board's store does not take a file, or has lost it."""


class JobError(RemoteError):
    """A job that ended before it had an answer: it took too long, too much memory, wrote too much, crashed or was
    cancelled."""


_KINDS: dict[int, type[WeftError]] = {
    PROTOCOL: LinkError,
    MISSING: StoreError,
    BUSY: BusyError,
    DISK: StoreError,
    DAMAGED: StoreError,
    TIME: JobError,
    OUTPUT: JobError,
    CRASH: JobError,
    CANCELLED: JobError,
    TOO_LARGE: StoreError,
    INPUT: InputError,
}


_NUMBERS = re.compile(r"(?<=\nwhy: )(errno|signal) (\d{1,3})(?!\d)")


def _named(number: re.Match[str]) -> str:
    """The agent has no names for numbers of Linux, of which all its architectures have the same."""
    if number[1] == "errno":
        return os.strerror(int(number[2]))
    known = {int(s): s.name for s in signal.Signals}
    return f"{number[0]}, {known[int(number[2])]}" if int(number[2]) in known else number[0]


def said(code: int, message: str, board: str) -> WeftError:
    """The error of what an agent answered: lines of the form of weft.h (`where: `, `why: `, `hint: `)."""
    what, *lines = _NUMBERS.sub(_named, message).split("\n")
    parts: dict[str, str] = {}
    for line in lines:
        label, colon, text = line.partition(": ")
        if colon and label in ("where", "why", "hint"):
            parts[label] = text
    where = f"{parts['where']}, on {board}" if "where" in parts else f"on {board}"
    error = _KINDS.get(code, RemoteError)(
        what or "the board gives no reason", where=where, why=parts.get("why"), hint=parts.get("hint")
    )
    if isinstance(error, RemoteError):
        error.code = code
    return error
