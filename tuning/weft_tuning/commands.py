"""The plugin of the distribution weft-tuning: its commands, and the rule that its search may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from weft.scheduling.rule import Rule
    from weft.target import Target


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_tuning import cli as own

    cli.command("tune")(own.tune)
    cli.add_typer(own.records)


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    from weft_tuning.searched import SearchedRule

    return [SearchedRule()]
