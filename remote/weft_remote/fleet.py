"""Many boards as one: Dask distributed hands jobs to hosts, and each host to the boards that it reaches.

    client --TLS-- scheduler --TLS-- worker of a host -- agents of its boards

A worker runs nothing of a model: it carries files to agents and answers back. So a program that crashes costs its own
job and nothing else. Connections are encrypted and listen on this machine unless something else is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft_remote.board import Board, Result, checked
from weft_remote.connection import File
from weft_remote.errors import BusyError, LinkError, RemoteError
from weft_remote.frames import Answer
from weft_runtime.errors import InputError, WeftError

if TYPE_CHECKING:
    import numpy as np

    from weft_runtime.executable import Executable

    Array = np.ndarray[Any, Any]

FAILURES = 3
"""Failures of its link in a row after which a board is set aside."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a board is tried again: twice as many after every failure."""
BUSY_PAUSE = 0.2
"""Seconds before a board is asked again that runs somebody else's job."""
ATTEMPTS = 3
"""Boards that a job is given to whose links fail."""
STARTING = 60.0
"""Seconds that the scheduler and its workers get to start."""


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


# -- what runs in a Dask worker

_pool: Pool | None = None


def _work(job: Job) -> tuple[str, Answer] | WeftError:
    """An error is a value: Dask would take its own view of an exception."""
    assert _pool is not None
    try:
        return _pool.run(job)
    except WeftError as error:
        return error


def _rows(dask_worker: Any) -> list[dict[str, Any]]:
    return [] if _pool is None else _pool.rows()


# -- the process of a host


@dataclass(frozen=True)
class Key:
    """How a client reaches a scheduler: its address, and the certificate that both sides show. Whoever has it can run
    programs on all boards, and on the scheduler's and workers' machines."""

    address: str
    cert: str
    key: str

    def write(self, path: Path) -> None:
        """To a file that its owner alone can read, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Key:
        """
        Raises:
            InputError: it is no such file, or others can read it.
        """
        try:
            if path.stat().st_mode & 0o077:
                raise InputError(f"others can read the key '{path}'", hint=f"chmod 600 {path}")
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"there is no key of a fleet at '{path}'", why=str(error), hint="`weft fleet start` writes one"
            ) from None


def _security(key: Key) -> Any:
    from distributed.security import Security

    return Security(
        require_encryption=True,
        tls_ca_file=key.cert,
        tls_client_cert=key.cert,
        tls_client_key=key.key,
        tls_scheduler_cert=key.cert,
        tls_scheduler_key=key.key,
        tls_worker_cert=key.cert,
        tls_worker_key=key.key,
    )


def _serve(boards: Mapping[str, str], join: Key | None, host: str, port: int, silence: float) -> None:
    """The scheduler and a worker with these boards, or the worker alone; until standard input ends."""
    import asyncio

    global _pool
    _pool = pool = Pool(boards, silence)

    async def main() -> None:
        from distributed import Scheduler, Worker
        from distributed.security import Security

        async with contextlib.AsyncExitStack() as opened:
            key = join
            if key is None:
                made = Security.temporary()
                tls = made.get_tls_config_for_role("client")
                key = Key("", str(tls["cert"]), str(tls["key"]))
                scheduler = await opened.enter_async_context(
                    Scheduler(
                        security=_security(key),
                        protocol="tls",
                        host=host,
                        port=port,
                        dashboard=False,
                        transition_counter_max=False,
                    )
                )
                key = Key(scheduler.address, key.cert, key.key)
            worker = await opened.enter_async_context(
                Worker(
                    key.address,
                    security=_security(key),
                    nthreads=max(1, len(boards)),
                    host=host,
                    memory_limit=0,
                    resources={"board": len(boards)},
                    protocol="tls",
                    validate=False,
                )
            )
            print(json.dumps(asdict(key)), flush=True)
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            threading.Thread(
                target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True
            ).start()
            waits = [asyncio.ensure_future(w) for w in (ended.wait(), worker.finished())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            pool.close()

    try:
        asyncio.run(main())
    finally:
        pool.close()
        sys.stdout.flush()
        os._exit(0)  # threads of jobs that wait for boards do not keep the process


class Host:
    """A process with the boards of this machine: a fleet's first, which has the scheduler, or one that joins. It ends
    with this process."""

    def __init__(
        self,
        boards: Mapping[str, str],
        *,
        join: Key | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        silence: float = 20.0,
    ) -> None:
        """
        Raises:
            InputError: there are no boards, or one's URL is none.
            RemoteError: the process does not start; says why.
        """
        from weft_remote.transports import parse

        require_dask()
        if not boards:
            raise InputError("a fleet has one board or more", hint='for example {"a": "ssh://pi@a"}')
        for url in boards.values():
            parse(url)
        order = json.dumps([dict(boards), None if join is None else asdict(join), address, port, silence])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft_remote.fleet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(STARTING, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            _, said = self.process.communicate()
            why = said.strip().splitlines()[-1] if said.strip() else f"it took longer than {STARTING:g} s"
            raise RemoteError("the process of a fleet does not start", why=why)
        assert self.process.stderr is not None
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # nobody waits for a full pipe
        self.key = Key(**json.loads(line))

    def close(self) -> None:
        """Ends it, its agents and their jobs."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


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
                security=_security(self.key),
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
        given = self._client.submit(_work, job, pure=False, retries=0, resources={"board": 1})
        pending.follow(given)
        return pending.future

    def rows(self) -> list[dict[str, Any]]:
        """Every board: its name, state, jobs, failures in a row, and the last error.

        Raises:
            RemoteError: the fleet does not answer.
        """
        try:
            found = self._client.run(_rows)
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


def require_dask() -> None:
    """
    Raises:
        PluginError: it is not installed.
    """
    import importlib.util

    if any(importlib.util.find_spec(m) is None for m in ("distributed", "cryptography")):
        from weft.errors import PluginError

        raise PluginError("fleets run on Dask, which is not installed", hint='pip install "weft-remote[fleet]"')


def named_boards(texts: Sequence[str]) -> dict[str, str]:
    """Boards of options NAME=URL.

    Raises:
        InputError: one that is no pair, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not equals or not name.replace("-", "").replace("_", "").isalnum() or name in found:
            raise InputError(f"--board takes NAME=URL, each name once, got '{text}'", hint="--board a=ssh://pi@a")
        found[name] = url
    return found


if __name__ == "__main__":
    # The functions of jobs belong to the module by its name, not to __main__.
    from weft_remote import fleet

    given = json.loads(sys.stdin.readline())
    fleet._serve(given[0], None if given[1] is None else fleet.Key(**given[1]), *given[2:])
