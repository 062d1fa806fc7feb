"""The plugin of the distribution weft-testing: commands that show a compilation, measure a model, prove a target, find
a wrong number, show a model at work, and create plugin packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def commands(cli: typer.Typer) -> None:
    from weft_testing.cli import bench, conform, demo, explain, inspect, plugin_new, verify

    cli.command("inspect")(inspect.inspect)
    cli.command("explain")(explain.explain_targets)
    cli.command("bench")(bench.bench)
    cli.command("verify")(verify.verify)
    cli.command("conform")(conform.conform)
    cli.command("demo")(demo.demo)
    cli.add_typer(plugin_new.plugin)
