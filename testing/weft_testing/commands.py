"""The plugin of the distribution weft-testing: commands that measure a model, prove a target, find a wrong number, and
show a model at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft.cli.inspect import Inspected, set_page_maker
    from weft_testing.cli import bench, conform, demo, verify

    def page(shown: Inspected) -> tuple[str, str | None]:
        from weft_testing.bench.inspect_page import make_page

        return make_page(shown)

    set_page_maker(page)
    cli.command("bench")(bench.bench)
    cli.command("verify")(verify.verify)
    cli.command("conform")(conform.conform)
    cli.command("demo")(demo.demo)
