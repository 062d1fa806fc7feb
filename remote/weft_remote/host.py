"""The process of a fleet on one machine: a Dask worker with the machine's boards, and of the first one the scheduler.

The worker runs nothing of a model: it carries files to agents and answers back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft_remote.errors import RemoteError
from weft_remote.frames import Answer
from weft_remote.pool import Job, Pool
from weft_runtime.errors import InputError, WeftError

STARTING = 60.0
"""Seconds that the scheduler and its workers get to start."""


def require_dask() -> None:
    """
    Raises:
        PluginError: it is not installed.
    """
    import importlib.util

    if any(importlib.util.find_spec(m) is None for m in ("distributed", "cryptography")):
        from weft.errors import PluginError

        raise PluginError("fleets run on Dask, which is not installed", hint='pip install "weft-remote[fleet]"')


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


def security(key: Key) -> Any:
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
                        security=security(key),
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
                    security=security(key),
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
            [sys.executable, "-m", "weft_remote.host"],
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


# -- what runs in a Dask worker

_pool: Pool | None = None


def work(job: Job) -> tuple[str, Answer] | WeftError:
    """An error is a value: Dask would take its own view of an exception."""
    assert _pool is not None
    try:
        return _pool.run(job)
    except WeftError as error:
        return error


def rows(dask_worker: Any) -> list[dict[str, Any]]:
    return [] if _pool is None else _pool.rows()


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
    from weft_remote import host

    given = json.loads(sys.stdin.readline())
    host._serve(given[0], None if given[1] is None else host.Key(**given[1]), *given[2:])
