"""Running compiled models on other machines.

from weft.remote import connect
with connect("ssh://pi@board") as board:
    exe = weft.compile("model.onnx", target=board.target)
    result = board.run(exe, {"x": x}, warmups=3, repeats=20)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from weft_remote.board import Board as Board
    from weft_remote.board import Result as Result
    from weft_remote.connection import Limits as Limits
    from weft_remote.errors import BusyError as BusyError
    from weft_remote.errors import JobError as JobError
    from weft_remote.errors import LinkError as LinkError
    from weft_remote.errors import RemoteError as RemoteError
    from weft_remote.errors import StoreError as StoreError
    from weft_remote.fleet import Fleet as Fleet
    from weft_remote.place import run_on as run_on

_PUBLIC = {
    "Board": "board",
    "BusyError": "errors",
    "Fleet": "fleet",
    "JobError": "errors",
    "Limits": "connection",
    "LinkError": "errors",
    "RemoteError": "errors",
    "Result": "board",
    "StoreError": "errors",
    "run_on": "place",
}

__all__ = [
    "Board", "BusyError", "Fleet", "JobError", "Limits", "LinkError", "RemoteError", "Result", "StoreError", "connect",
    "run_on",
]  # fmt: skip


def connect(url: str, *, limits: Limits | None = None, silence: float = 20.0) -> Board:
    """The board behind a URL.

    Args:
        url: ssh://user@host[:port][/path], adb:[serial], pipe:command, qemu:architecture,
            tls://host:port?ca=FILE&cert=FILE&key=FILE, or browser://, a page that is served here. Options follow a
            question mark: `agent` is a file, or the folder of `python -m libweft.build FOLDER`, from which weft-run is
            sent to the board; `store`, `lock` and `store-bytes` are the agent's. Those of a page: `open`, a command
            that opens its address; `port`; `wait`, seconds for it to connect.
        limits: of jobs for which nothing else is said.
        silence: seconds without a word after which the connection counts as lost, on both sides.

    Raises:
        InputError: the URL cannot be used.
        LinkError: no agent answers, or it speaks another version of the protocol.
        PluginError: the package that pages connect by is not installed.
    """
    from weft_remote.board import Board

    return Board(url, limits=limits, silence=silence)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("weft-remote")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'weft_remote' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"weft_remote.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
