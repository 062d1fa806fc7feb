"""Subprocesses that run a module of this package: start and end; they do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from typing import IO

from weft.errors import CodegenError

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 1.0


def command(module: str) -> list[str]:
    """What runs `module` as a program.

    Raises:
        CodegenError: this Python has no path of its own executable, as one that another program embeds.
    """
    if not sys.executable:
        raise CodegenError("compile workers cannot start", why="this Python has no path of its own executable")
    # -P: nothing in the current directory may shadow a module.
    return [sys.executable, "-P", "-m", module, str(os.getpid())]


def environment() -> dict[str, str]:
    """This process's, with its import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def scratch_file() -> IO[bytes]:
    """A file without a name that goes when it is closed; in memory where the system can, as a disk may be full."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("weft", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def tail(log: IO[bytes], size: int = 2000) -> str:
    """The last characters of what a process has written to its log."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 4 * size))
    return log.read().decode(errors="replace").strip()[-size:]


def ended(code: int) -> str:
    """An exit status, for people."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def end_with_parent() -> None:
    """Called first by a process that `command` started: it ends when its parent does, however that ends, also while it
    computes or is stopped."""
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    try:
        tied = sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
    except (OSError, AttributeError):
        tied = False
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(0)
    if not tied:
        threading.Thread(target=_look_for, args=(parent,), daemon=True).start()


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)
