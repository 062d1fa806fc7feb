"""Models in a page of Chromium: jobs for test/page.html of the JavaScript runtime, which a server here gives and takes.

The page says what it found by a request, so no driver of browsers is needed.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.bindings.node import FOLDER
from tests.needs import browser

SECONDS = 240.0
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
"""Headers of a page that may share memory with its workers."""


@contextmanager
def served(files: dict[str, bytes], headers: dict[str, str]) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """The address of the runtime's folder and `files` beside it, and what pages send."""
    told: queue.Queue[Any] = queue.Queue()

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {
            **SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript",
            ".js": "text/javascript",
        }

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(FOLDER))

        def do_GET(self) -> None:
            if self.path not in files:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", self.guess_type(self.path))
            self.send_header("Content-Length", str(len(files[self.path])))
            self.end_headers()
            self.wfile.write(files[self.path])

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def end_headers(self) -> None:
            for name, value in headers.items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Options of Chromium: WebGPU where there is no GPU."""


@contextmanager
def opened(url: str, options: Sequence[str] = ("--disable-gpu",)) -> Iterator[None]:
    """A page in a browser of its own."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *options]
        process = subprocess.Popen(
            [*command, "--no-first-run", f"--user-data-dir={profile}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def page(job: dict[str, Any], model: bytes, *, isolated: bool = True, gpu: bool = False) -> list[Any]:
    """The answers of a job."""
    files, options = {"/job": json.dumps(job).encode(), "/model": model}, GPU if gpu else ("--disable-gpu",)
    with served(files, ISOLATED if isolated else {}) as (url, told), opened(f"{url}/test/page.html", options):
        found = told.get(timeout=SECONDS)
    assert "failed" not in found, found["failed"]
    answers: list[Any] = found["answers"]
    return answers
