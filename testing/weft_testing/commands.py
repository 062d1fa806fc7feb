"""The plugin of the distribution weft-testing: commands that prove a target, find a wrong number, and show a model at
work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_testing.cli import conform, demo, verify

    cli.command("verify")(verify.verify)
    cli.command("conform")(conform.conform)
    cli.command("demo")(demo.demo)
