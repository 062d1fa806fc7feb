"""Many boards as one: Dask distributed hands jobs to hosts, and each host to the boards that it reaches.

    client --TLS-- scheduler --TLS-- worker of a host -- agents of its boards

A program that crashes costs its own job and nothing else. Connections are encrypted and listen on this machine unless
something else is asked for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft_remote.board import Result, checked
from weft_remote.errors import RemoteError
from weft_remote.frames import Answer
from weft_remote.host import STARTING, Host, Key, require_dask, rows, security, work
from weft_remote.pool import Job
from weft_runtime.errors import InputError, WeftError

if TYPE_CHECKING:
    from weft_runtime.executable import Executable


class Fleet:
    """Boards that share jobs. Usable in `with`, which closes it.

    Attributes:
        key: by which others connect to the same fleet.
    """

    def __init__(
        self, boards: Mapping[str, str] | None = None, *, key: Key | None = None, silence: float = 20.0
    ) -> None:
        """Starts a fleet of these boards (name → URL) on this machine, or connects to the one of `key`.

        Raises:
            InputError: neither or both are given, or a board's URL is none.
            PluginError: Dask distributed is not installed.
            RemoteError: the fleet does not start or answer.
        """
        if (boards is None) == (key is None):
            raise InputError("a fleet is started with boards, or connected to by its key")
        require_dask()
        from distributed import Client

        self._host = None if boards is None else Host(boards, silence=silence)
        self.key = key if key is not None else self._host.key if self._host is not None else Key("", "", "")
        try:
            self._client = Client(
                self.key.address,
                security=security(self.key),
                timeout=STARTING if key is None else 10,
                set_as_default=False,
            )
        except (OSError, TimeoutError) as error:
            if self._host is not None:
                self._host.close()
            raise RemoteError(
                "the fleet does not answer", where=self.key.address, why=str(error).splitlines()[0]
            ) from None
        self._waiting: set[_Pending] = set()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._watch = threading.Thread(target=self._watch_scheduler, name="weft-fleet", daemon=True)
        self._watch.start()

    def submit(
        self,
        program: Executable,
        inputs: Mapping[str, Any],
        *,
        board: str = "",
        architecture: str = "",
        patience: float = 600.0,
        **options: Any,
    ) -> Future[tuple[str, Result]]:
        """A run on some board: a future of the board's name and the result. Its exception is a WeftError.

        Args:
            board: its name; empty: any.
            architecture: that the board must have, such as "aarch64"; empty: any.
            patience: seconds to wait for a board that is free.
            options: those of `Board.run`.

        Raises:
            InputError: the inputs do not fit the program.
        """
        from tempfile import TemporaryDirectory

        arrays = checked(program, inputs)
        with TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "model.weft"
            program.save(path, durable=False)
            content = path.read_bytes()
        names = [o.name for o in program.outputs]
        found: Future[tuple[str, Result]] = Future()

        def done(one: Future[tuple[str, Answer]]) -> None:
            error = one.exception()
            if error is not None:
                found.set_exception(error)
            else:
                name, answer = one.result()
                found.set_result((name, Result(dict(zip(names, answer.arrays)), answer)))

        if "seconds" in options:
            options["budget"] = options.pop("seconds") or 0.0
        job = Job(content, tuple(arrays), options, board, architecture, patience)
        self.submit_job(job).add_done_callback(done)
        return found

    def submit_job(self, job: Job) -> Future[tuple[str, Answer]]:
        """As `submit`, of an archive's bytes."""
        pending = _Pending(self)
        if self._ended.is_set():
            pending.fail(RemoteError("the fleet is gone", hint="start it again"))
            return pending.future
        with self._lock:
            self._waiting.add(pending)
        # One board's slot each; never again by Dask: the pool knows what may be done again.
        given = self._client.submit(work, job, pure=False, retries=0, resources={"board": 1})
        pending.follow(given)
        return pending.future

    def rows(self) -> list[dict[str, Any]]:
        """Every board: its name, state, jobs, failures in a row, and the last error.

        Raises:
            RemoteError: the fleet does not answer.
        """
        try:
            found = self._client.run(rows)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise RemoteError("the fleet does not answer", where=self.key.address, why=str(error)) from None
        return [{"host": host.partition("://")[2], **row} for host, rows in found.items() for row in rows]

    def _watch_scheduler(self) -> None:
        """Dask waits for a scheduler that is gone; whoever waits for a job is told."""
        lost = 0
        while not self._ended.wait(0.2):
            lost = 0 if self._client.status == "running" else lost + 1
            process = None if self._host is None else self._host.process
            if lost < 10 and (process is None or process.poll() is None):
                continue
            self._ended.set()
            self._fail_all("the scheduler of the fleet is gone")

    def _fail_all(self, what: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for pending in waiting:
            pending.fail(RemoteError(what, where=self.key.address, hint="its jobs have ended; start it again"))

    def close(self) -> None:
        """Gives up what still runs; ends the fleet, if it was started here."""
        self._ended.set()
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._client.close(timeout=5)
        if self._host is not None:
            self._host.close()
        self._fail_all("the fleet was closed")

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pending:
    """A job's future: answered by Dask, or by what ends the fleet, whichever is first."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.future = fleet, Future[tuple[str, Answer]]()
        self._lock, self._given = threading.Lock(), None

    def follow(self, given: Any) -> None:
        self._given = given  # Dask forgets a job whose future nobody has
        given.add_done_callback(self._done)

    def _done(self, given: Any) -> None:
        try:
            found = given.result(timeout=30)
        except Exception as error:  # noqa: BLE001 - of whatever kind Dask's errors are
            self.fail(RemoteError("the fleet lost a job", why=f"{type(error).__name__}: {error}"))
            return
        if isinstance(found, WeftError):
            self.fail(found)
            return
        with self._lock:
            if not self.future.done():
                self.future.set_result(found)
        self._forget()

    def fail(self, error: WeftError) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)
        self._forget()

    def _forget(self) -> None:
        with self.fleet._lock:
            self.fleet._waiting.discard(self)
