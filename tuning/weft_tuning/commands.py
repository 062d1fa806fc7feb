"""The plugin of the distribution weft-tuning: its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_tuning import cli as own

    cli.command("tune")(own.tune)
    cli.add_typer(own.records)
