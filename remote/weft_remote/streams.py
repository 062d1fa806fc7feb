"""Two ways to carry bytes: the pipes of a process, and a socket with TLS; a third is in `pages`. Nothing here waits
without a limit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from weft_remote.errors import LinkError

GRACE = 2.0
"""Seconds that a process gets to end after its standard input has ended."""


class Stream(ABC):
    """Bytes to and from an agent. One thread reads; writes are serialised by the caller. After a LinkError it is of no
    use but to be closed."""

    @abstractmethod
    def read(self, timeout: float) -> bytes:
        """What has come, at least one byte; b"" if nothing came in `timeout` seconds.

        Raises:
            LinkError: the other side has ended.
        """

    @abstractmethod
    def write(self, data: bytes, timeout: float) -> None:
        """All of `data`.

        Raises:
            LinkError: the other side has ended, or takes nothing for `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, and the process that carries it. May be called again."""


def stalled(timeout: float) -> LinkError:
    return LinkError(
        "the connection to the board stalls",
        why=f"nothing more was taken or heard for {timeout:g} s",
        hint="the agent ends its job by itself; connect again",
    )


class ProcessStream(Stream):
    """A process that is the agent, or leads to it: its standard input and output."""

    def __init__(self, command: Sequence[str]) -> None:
        """
        Raises:
            LinkError: the command cannot be started.
        """
        self.command = list(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it; a pipe that nobody reads would fill
        try:
            # A session of its own: a Ctrl-C on the terminal is Python's to handle, and all of it can be killed.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            why = error.strerror or str(error)
            raise LinkError(f"the command '{self.command[0]}' cannot be started", why=why) from None
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdout.fileno(), self.process.stdin.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._closed, self._using = False, threading.Lock()

    @property
    def reads(self) -> int:
        """The number of the file that `read` reads."""
        return self._in

    def read(self, timeout: float) -> bytes:
        if not self._ready(self._in, select.POLLIN, timeout):
            return b""
        with self._using:  # the number of a closed file may be another's
            self._require_open()
            try:
                data = os.read(self._in, 1 << 18)
            except BlockingIOError:
                return b""
        if not data:
            raise self.ended()
        return data

    def write(self, data: bytes, timeout: float) -> None:
        left, moved = memoryview(data), time.monotonic()
        while left:
            try:
                with self._using:
                    self._require_open()
                    left = left[os.write(self._out, left) :]
                moved = time.monotonic()
            except BlockingIOError:
                if time.monotonic() - moved > timeout:
                    raise stalled(timeout) from None
                self._ready(self._out, select.POLLOUT, min(timeout, 1.0))
            except OSError:
                raise self.ended() from None

    @staticmethod
    def _ready(file: int, events: int, timeout: float) -> bool:
        p = select.poll()
        p.register(file, events)
        return bool(p.poll(max(0.0, timeout) * 1000))

    def _require_open(self) -> None:
        if self._closed:
            raise LinkError("the connection is closed")

    def ended(self) -> LinkError:
        """The error of a process that has ended, with what it said."""
        try:
            status: int | None = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            status = None
        self._errors.seek(0)
        said = self._errors.read(2000).decode(errors="replace").strip()
        why = "" if status is None else f"'{self.command[0]}' ended with status {status}"
        if said:
            why += f": {said}" if why else said
        return LinkError("the connection to the board is lost", why=why or "the other side has closed it")

    def close(self) -> None:
        with self._using:
            if self._closed:
                return
            self._closed = True
            process = self.process
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._errors.close()


class TlsStream(Stream):
    """A connection over TCP on which both sides have shown certificates."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, timeout: float) -> None:
        """
        Raises:
            LinkError: nobody listens there, or one side does not trust the other.
        """
        where = f"{host}:{port}"
        try:
            plain = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise LinkError(f"there is no connection to {where}", why=error.strerror or str(error)) from None
        try:
            self.socket = context.wrap_socket(plain, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise LinkError(
                f"TLS with {where} fails",
                why=str(error),
                hint="both sides need a certificate that the other's authority (ca) has signed",
            ) from None
        self.where = where

    def read(self, timeout: float) -> bytes:
        try:
            self.socket.settimeout(max(timeout, 0.001))
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return b""
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            raise self._lost(error) from None
        if not data:
            raise self._lost(None)
        return data

    def write(self, data: bytes, timeout: float) -> None:
        try:
            for at in range(0, len(data), 1 << 16):
                self.socket.settimeout(timeout)
                self.socket.sendall(data[at : at + (1 << 16)])
        except TimeoutError:
            raise stalled(timeout) from None
        except (OSError, ValueError) as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception | None) -> LinkError:
        why = str(error) if error is not None and str(error) else "the other side has closed it"
        hint = "was the certificate of this side accepted?" if isinstance(error, ssl.SSLError) else None
        return LinkError(f"the connection to {self.where} is lost", why=why, hint=hint)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
