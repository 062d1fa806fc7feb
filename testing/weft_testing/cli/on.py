"""The option --on: commands whose programs run on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weft.remote import Board

OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="URL",
        help='The board to run on, e.g. "ssh://pi@board", "qemu:aarch64?agent=FOLDER" or "browser://"; without'
        " --target, its own is taken [default: this machine].",
    ),
]


def board_at(context: typer.Context, url: str | None) -> Board | None:
    """The board of --on, on which executables run from now on until the command ends; None without it.

    Raises:
        PluginError: the distribution weft-remote is not installed.
        InputError, LinkError: as `weft.remote.connect`.
    """
    if url is None:
        return None
    from weft.remote import run_on

    board: Board = context.with_resource(run_on(url))
    return board
