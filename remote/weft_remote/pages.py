"""A page in a browser as a board. A server on this machine's loopback gives the page to who knows its address; the page
connects back by WebSocket and is the agent (`page/agent.js`)."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import shlex
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weft_remote import frames
from weft_remote.errors import LinkError
from weft_remote.streams import ProcessStream, Stream
from weft_runtime.errors import InputError

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import ServerConnection

WAIT = 120.0
"""Seconds that a page gets to connect."""
_OPENING = 3.0
"""Seconds that a request gets to be said."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript"}
_HEADERS = {
    # Only such pages share memory with workers, and have fine clocks.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self' ws: wss:;"
    " style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def files() -> dict[str, Path]:
    """What the page is made of, by name: its own files, and the JavaScript runtime, which wheels have beside them."""
    own = Path(__file__).parent / "page"
    runtime = Path(__file__).parents[2] / "bindings" / "javascript"
    names = ("index.html", "page.js", "agent.js", "job.js", "weft.js", "worker.js", "webgpu.js")
    return {name: own / name if (own / name).is_file() else runtime / name for name in names}


class PageStream(Stream):
    """The server of one page, and the connection of the first that comes; others are refused. Nothing listens after
    `close`.

    Attributes:
        address: of the page. Whoever knows it can be the board.
    """

    def __init__(self, *, port: int = 0, command: str | None = None, wait: float = WAIT, timeout: float = 20.0) -> None:
        """Waits for the page.

        Args:
            port: to listen on; 0: any that is free.
            command: starts the page, and gets its address as the last word; ends with the connection. Without one the
                address is printed to standard error.
            wait: seconds for the page to connect.
            timeout: seconds after which a connection that takes nothing is given up.

        Raises:
            InputError: the command is none, or somebody else has the port.
            LinkError: no page connects, or the command fails.
            PluginError: the package websockets is not installed.
        """
        import importlib.util

        if importlib.util.find_spec("websockets") is None:
            from weft.errors import PluginError

            raise PluginError(
                "pages connect by the package websockets, which is not installed",
                hint='pip install "weft-remote[browser]"',
            )
        from websockets.sync.server import serve

        self._files = {name: path.read_bytes() for name, path in files().items()}
        self._token, self._timeout = secrets.token_urlsafe(24), timeout
        self._page: ServerConnection | None = None
        self._here, self._over, self._claiming = threading.Event(), threading.Event(), threading.Lock()
        self._browser: ProcessStream | None = None
        log = logging.getLogger("weft_remote.pages")
        log.propagate = False  # strangers who connect are refused, no more
        log.addHandler(logging.NullHandler())
        try:
            self._server = serve(
                self._connected,
                "127.0.0.1",
                port,
                process_request=self._answered,
                compression=None,
                max_size=frames.HEADER + frames.LARGEST,
                open_timeout=_OPENING,
                close_timeout=1,
                ping_interval=None,  # the protocol has words of its own for that
                server_header=None,
                logger=log,
            )
        except OSError as error:
            raise InputError(
                f"port {port} of this machine cannot be listened on", why=error.strerror, hint="name another: ?port="
            ) from None
        self.port: int = self._server.socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/{self._token}/"
        self._serving = threading.Thread(target=self._server.serve_forever, name="weft-page", daemon=True)
        self._serving.start()
        try:
            self._await(command, wait)
        except BaseException:
            self.close()
            raise

    def _await(self, command: str | None, wait: float) -> None:
        if command is None:
            print(f"weft: open {self.address} in the browser that is to run the programs", file=sys.stderr, flush=True)
        else:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise InputError(f"'{command}' is no command", why=str(error)) from None
            if not words:
                raise InputError("the command that opens the page is empty", hint="for example ?open=firefox")
            self._browser = ProcessStream([*words, self.address])
        ends = time.monotonic() + wait
        while not self._here.wait(0.05):
            if self._browser is not None and self._browser.process.poll():  # one that hands the address on ends with 0
                ended = self._browser.ended()
                raise LinkError("the page was not opened", why=ended.why, hint="is its command right?")
            if time.monotonic() > ends:
                raise LinkError(
                    "no page has connected",
                    why=f"nobody opened its address in {wait:g} s",
                    hint="open the address that is printed, or name a browser: ?open=firefox; ?wait=600 waits longer",
                )

    # -- what the server answers
    def _answered(self, connection: ServerConnection, request: Request) -> Response | None:
        """A file of the page; None to one that may connect."""
        host = request.headers.get("Host", "")
        _, token, *rest = [*request.path.partition("?")[0].split("/", 2), ""][:3]
        if not hmac.compare_digest(token.encode(), self._token.encode()) or rest[0] not in {"", "link", *self._files}:
            return self._response(404, b"There is nothing at this address.\n")
        # A name of elsewhere that leads here would be another site's.
        if urlsplit(f"//{host}").hostname not in _LOOPBACK:
            return self._response(403, b"This page is for this machine, or for the end of a tunnel to it.\n")
        if rest[0] == "link":
            origin = request.headers.get("Origin")
            return None if origin == f"http://{host}" else self._response(403, b"Only the page may connect.\n")
        name = rest[0] or "index.html"
        return self._response(200, self._files[name], _TYPES[Path(name).suffix])

    @staticmethod
    def _response(status: int, body: bytes, kind: str = "text/plain") -> Response:
        from http import HTTPStatus

        from websockets.datastructures import Headers
        from websockets.http11 import Response

        headers = {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
        return Response(status, HTTPStatus(status).phrase, Headers(headers), body)

    def _connected(self, connection: ServerConnection) -> None:
        with self._claiming:
            first = self._page is None and not self._over.is_set()
            if first:
                self._page = connection
        if not first:
            connection.close(1008, "another page has connected with this address")
            return
        seconds = int(self._timeout)
        limit = struct.pack("@ll", seconds, int((self._timeout - seconds) * 1e6))  # timeval
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._here.set()
        self._over.wait()

    # -- the stream
    def read(self, timeout: float) -> bytes:
        from websockets.exceptions import ConnectionClosed

        assert self._page is not None
        try:
            data = self._page.recv(timeout)
        except TimeoutError:
            return b""
        except ConnectionClosed as error:
            raise self._lost(error) from None
        if isinstance(data, str):
            raise LinkError("what the page sends is no frame", why="it is text")
        return data

    def write(self, data: bytes, timeout: float) -> None:
        from websockets.exceptions import ConnectionClosed

        assert self._page is not None
        try:
            self._page.send(data)
        except ConnectionClosed as error:
            raise self._lost(error) from None

    def _lost(self, error: Any) -> LinkError:
        if self._over.is_set():
            return LinkError("the connection is closed")
        said = error.rcvd.reason if error.rcvd is not None else ""
        return LinkError(
            "the connection to the page is lost",
            why=said or "the page was closed or left, or its device sleeps",
            hint="connect again, open the new address, and keep the page in front",
        )

    def close(self) -> None:
        with self._claiming:
            if self._over.is_set():
                return
            self._over.set()
        self._server.shutdown()
        self._serving.join()
        if self._browser is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._browser.process.pid, signal.SIGTERM)  # browsers do not end with their standard input
            self._browser.close()


def open_page(options: Mapping[str, str], timeout: float) -> PageStream:
    """The stream of a URL's options: `port`, `wait`, `open`.

    Raises:
        InputError, LinkError, PluginError: as PageStream.
    """
    try:
        port, wait = int(options.get("port", 0)), float(options.get("wait", WAIT))
    except ValueError as error:
        raise InputError("an option of a page is no number", why=str(error)) from None
    if not 0 <= port < 1 << 16 or not 0 < wait <= 86400:
        raise InputError(f"a page waits at port {port} for {wait:g} s", hint="0 … 65535, and up to a day")
    return PageStream(port=port, command=options.get("open"), wait=wait, timeout=timeout)
