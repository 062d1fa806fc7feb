"""The plugin of the distribution weft-remote: its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_remote import cli as own

    cli.add_typer(own.fleet)
    cli.command("relay")(own.relay)
