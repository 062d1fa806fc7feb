"""The boards that one host reaches: which is free, which is set aside, and what runs where."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft_remote.board import Board
from weft_remote.connection import File
from weft_remote.errors import BusyError, LinkError, RemoteError
from weft_remote.frames import Answer
from weft_runtime.errors import InputError, WeftError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FAILURES = 3
"""Failures of its link in a row after which a board is set aside."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a board is tried again: twice as many after every failure."""
BUSY_PAUSE = 0.2
"""Seconds before a board is asked again that runs somebody else's job."""
ATTEMPTS = 3
"""Boards that a job is given to whose links fail."""


@dataclass(frozen=True)
class Job:
    """What is asked of a fleet: an archive, its inputs in order, and how it is run (`Board.run_file`).

    Attributes:
        board: its name; empty: any.
        architecture: that boards must have; empty: any.
        patience: seconds to wait for a board that is free.
    """

    program: bytes
    inputs: tuple[Array, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    board: str = ""
    architecture: str = ""
    patience: float = 600.0


@dataclass
class Slot:
    """A board in a host's pool. `failures` is how many there were in a row; it rests until `rests` (time.monotonic)."""

    name: str
    url: str
    board: Board | None = None
    busy: bool = False
    failures: int = 0
    rests: float = 0.0
    jobs: int = 0
    last: str = ""
    architecture: str = ""

    @property
    def state(self) -> str:
        if self.busy:
            return "busy"
        if self.rests > time.monotonic():
            return "set aside" if self.failures >= FAILURES else "resting"
        return "free" if self.jobs or self.board is not None else "not used yet"


class Pool:
    """The boards of one host."""

    def __init__(self, boards: Mapping[str, str], silence: float = 20.0) -> None:
        self.slots = [Slot(name, url) for name, url in boards.items()]
        self.silence = silence
        self._changed = threading.Condition()
        self._closed = False

    def run(self, job: Job) -> tuple[str, Answer]:
        """A job on a board that fits it and is free; its name and the answer. If a board's link fails, another gets
        the job, at most ATTEMPTS altogether.

        Raises:
            InputError: no board of the pool can fit.
            RemoteError: the job's own failure; that of the last board; or no board has become free.
        """
        ends, attempt = time.monotonic() + job.patience, 0
        last: WeftError | None = None
        while True:
            slot = self._take(job, ends, last)
            try:
                if slot.board is None or slot.board.closed:
                    slot.board = Board(slot.url, silence=self.silence)
                    slot.architecture = slot.board.facts.architecture
                if job.architecture in ("", slot.architecture):
                    answer = slot.board.run_file(File.of(job.program), job.inputs, **job.options)
                    self._leave(slot, None)
                    return slot.name, answer
                self._leave(slot, None, tried=False)
            except LinkError as error:
                last, attempt = error, attempt + 1
                self._leave(slot, error)
                if attempt == ATTEMPTS:
                    raise
            except BusyError as error:  # somebody who is not of the fleet has the board
                last = error
                self._leave(slot, error)
            except BaseException:
                self._leave(slot, None)
                raise

    def _take(self, job: Job, ends: float, last: WeftError | None) -> Slot:
        with self._changed:
            while True:
                fitting = [s for s in self.slots if self._fits(s, job)]
                if not fitting:
                    what = f"called '{job.board}'" if job.board else f"of architecture '{job.architecture}'"
                    raise InputError(f"the fleet has no board {what}", where=self._said())
                now = time.monotonic()
                if self._closed:
                    raise RemoteError("the fleet is closed")
                free = [s for s in fitting if not s.busy and s.rests <= now]
                if free:
                    slot = min(free, key=lambda s: s.jobs)
                    slot.busy = True
                    return slot
                if now >= ends:
                    raise last or RemoteError(
                        "no board has become free", where=self._said(), why=f"{job.patience:g} s have passed"
                    )
                wakes = [s.rests for s in fitting if not s.busy]
                self._changed.wait(max(0.01, min([ends, *wakes]) - now))

    @staticmethod
    def _fits(slot: Slot, job: Job) -> bool:
        return (not job.board or slot.name == job.board) and (
            not job.architecture or slot.architecture in ("", job.architecture)
        )

    def _leave(self, slot: Slot, error: WeftError | None, tried: bool = True) -> None:
        with self._changed:
            slot.busy = False
            slot.jobs += tried
            slot.last = "" if error is None else str(error).splitlines()[0]
            if error is None:
                slot.failures = 0
            elif isinstance(error, LinkError):
                slot.failures += 1
                slot.rests = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (slot.failures - 1))
            else:
                slot.rests = time.monotonic() + BUSY_PAUSE
            self._changed.notify_all()

    def _said(self) -> str:
        return "\n".join(f"{s.name}: {s.state}{', ' + s.last if s.last else ''}" for s in self.slots[:20])

    def rows(self) -> list[dict[str, Any]]:
        """What `weft fleet` shows."""
        with self._changed:
            return [
                {
                    "board": s.name,
                    "url": s.url.partition("?")[0],
                    "architecture": s.architecture,
                    "state": s.state,
                    "jobs": s.jobs,
                    "failures": s.failures,
                    "last error": s.last,
                }
                for s in self.slots
            ]

    def close(self) -> None:
        """Ends every connection, and with them the jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            boards = [s.board for s in self.slots if s.board is not None]
        for board in boards:
            board.close()
