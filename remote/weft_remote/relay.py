"""A board behind TCP: a program beside it that lets in who has a certificate, and nobody else. Each connection gets an
agent of its own."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path

from weft_remote import transports
from weft_remote.errors import LinkError
from weft_remote.streams import ProcessStream
from weft_runtime.errors import InputError

HANDSHAKE = 10.0
"""Seconds in which a connection must show its certificate."""
STALLED = 600.0
"""Seconds that one side may keep the other waiting; agents end earlier."""
PIECE = 1 << 16


class Relay:
    """Listens until it is closed. Usable in `with`.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        board: str,
        *,
        ca: str | Path,
        cert: str | Path,
        key: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        most: int = 16,
    ) -> None:
        """
        Args:
            board: its URL: pipe, qemu, ssh or adb.
            ca: file of the authority that signed the certificates of those who may connect.
            cert, key: files of the relay's own certificate.
            host: address to listen on; the default is reached from this machine only.
            port: 0 takes one that is free.
            most: connections at once.

        Raises:
            InputError: a file cannot be read, the URL is none, or the address cannot be listened on.
        """
        if transports.parse(board).scheme == "tls":
            raise InputError("a relay leads to a board, not to another relay", where=board)
        self.board = board
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(str(ca))
            context.load_cert_chain(str(cert), str(key))
        except (OSError, ssl.SSLError) as error:
            raise InputError("a certificate or key cannot be read", why=str(error)) from None
        try:
            self._listening = socket.create_server((host, port))
        except OSError as error:
            raise InputError(f"{host}:{port} cannot be listened on", why=error.strerror or str(error)) from None
        self.port: int = self._listening.getsockname()[1]
        self._context, self._free = context, threading.BoundedSemaphore(most)
        self._open: set[socket.socket] = set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._ended = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._accept, name="weft-relay", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                plain, _ = self._listening.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                plain.close()
                continue
            with self._lock:
                self._open.add(plain)
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        stream: ProcessStream | None = None
        connection: socket.socket = plain
        try:
            plain.settimeout(HANDSHAKE)
            connection = self._context.wrap_socket(plain, server_side=True)
            with self._lock:
                self._open.discard(plain)
                self._open.add(connection)
                if self._closed.is_set():
                    return
            opened = transports.open_stream(self.board)
            assert isinstance(opened, ProcessStream)
            stream = opened
            _carry(connection, stream)
        except (OSError, LinkError, InputError):
            pass  # the other side hears that the connection ends
        finally:
            if stream is not None:
                stream.close()
            with self._lock:
                self._open -= {plain, connection}
                self._ended.notify_all()
            connection.close()
            self._free.release()

    def close(self) -> None:
        """Ends all connections, and their agents."""
        self._closed.set()
        with self._lock:
            for one in (self._listening, *self._open):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._listening.close()
        self._thread.join()
        with self._ended:
            self._ended.wait_for(lambda: not self._open, timeout=10.0)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _carry(connection: ssl.SSLSocket | socket.socket, stream: ProcessStream) -> None:
    """Bytes in both directions until either side ends."""
    assert isinstance(connection, ssl.SSLSocket)
    connection.settimeout(0.0)
    there = connection.fileno()
    p = select.poll()
    p.register(there, select.POLLIN)
    p.register(stream.reads, select.POLLIN)
    while True:
        ready = {file for file, _ in p.poll(STALLED * 1000)}
        if not ready:
            return
        if there in ready:
            try:
                while True:  # TLS may hold more than one reading takes, of which poll knows nothing
                    data = connection.recv(PIECE)
                    if not data:
                        return
                    stream.write(data, STALLED)
                    if not connection.pending():
                        break
            except ssl.SSLWantReadError:
                pass
        if stream.reads in ready:
            data = stream.read(0)
            connection.settimeout(STALLED)
            connection.sendall(data)
            connection.settimeout(0.0)
