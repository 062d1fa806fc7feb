"""`weft fleet` and `weft relay`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.terminal import print_table, say

fleet = typer.Typer(
    name="fleet", help="Boards that share jobs: shows them, without a command.", invoke_without_command=True
)

KEY = Path.home() / ".config" / "weft" / "fleet.json"

KeyOption = Annotated[Path, typer.Option("--key", help="File of the fleet's address and certificate.")]
BoardOption = Annotated[
    list[str], typer.Option("--board", metavar="NAME=URL", help='A board, e.g. "a=ssh://pi@a"; may be repeated.')
]
ListenOption = Annotated[
    str, typer.Option("--listen", metavar="ADDRESS", help="Address to listen on; the default is for this machine only.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any that is free.")]


def _until_told() -> None:
    """Returns at Ctrl-C, or when the process is asked to end."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    told.wait()


@fleet.callback()
def show(context: typer.Context, key: KeyOption = KEY) -> None:
    """Shows every board of a fleet: its state, jobs and failures."""
    if context.invoked_subcommand is not None:
        return
    from weft_remote.fleet import Fleet
    from weft_remote.host import Key

    with Fleet(key=Key.read(key)) as here:
        rows = here.rows()
    columns = ["board", "host", "url", "architecture", "state", "jobs", "failures", "last error"]
    print_table(f"{len(rows)} boards", columns, [[row[c] for c in columns] for row in rows], right=(5, 6))


@fleet.command("start")
def start(board: BoardOption, key: KeyOption = KEY, listen: ListenOption = "127.0.0.1", port: PortOption = 0) -> None:
    """Starts a fleet of these boards, until Ctrl-C.

    Writes the file --key, by which programs of the same user, and `weft fleet join` elsewhere, connect. Connections are
    encrypted, and both sides show the certificate in it.
    """
    from weft_remote.host import Host, named_boards

    host = Host(named_boards(board), address=listen, port=port)
    try:
        host.key.write(key)
        say(f"{len(board)} boards at {host.key.address}; the key is in {key}")
        _until_told()
    finally:
        host.close()


@fleet.command("join")
def join(board: BoardOption, key: KeyOption = KEY, listen: ListenOption = "127.0.0.1") -> None:
    """Adds boards that this machine reaches to a fleet that was started elsewhere, until Ctrl-C."""
    from weft_remote.host import Host, Key, named_boards

    host = Host(named_boards(board), join=Key.read(key), address=listen)
    try:
        say(f"{len(board)} boards joined {host.key.address}")
        _until_told()
    finally:
        host.close()


def relay(
    board: Annotated[str, typer.Argument(metavar="BOARD", help='URL of the board, e.g. "pipe:weft-run".')],
    ca: Annotated[Path, typer.Option("--ca", help="Authority that signed the certificates of those who may connect.")],
    cert: Annotated[Path, typer.Option("--cert", help="The relay's own certificate.")],
    key: Annotated[Path, typer.Option("--key", help="The key of --cert.")],
    listen: ListenOption = "127.0.0.1",
    port: PortOption = 0,
) -> None:
    """Lets others reach a board over TCP, until Ctrl-C: only with TLS, and only with a certificate that --ca signed.

    On the other side the board is tls://host:port?ca=FILE&cert=FILE&key=FILE.
    """
    from weft_remote.relay import Relay

    with Relay(board, ca=ca, cert=cert, key=key, host=listen, port=port) as here:
        say(f"{board} at {listen}:{here.port}")
        _until_told()
