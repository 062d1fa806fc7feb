"""The `weft` command: gathers the commands, and prints errors in their one form."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import CommandInfo, TyperInfo

from weft.cli import compile, export, plugins, run, targets
from weft.cli.terminal import say
from weft.errors import PluginError, WeftError, raised_in
from weft.settings import check, describe

if TYPE_CHECKING:
    from weft.plugins import Plugin

EPILOG = "\b\nEnvironment variables:\n" + "\n".join("  " + line for line in describe().splitlines())


def build_app() -> typer.Typer:
    """The application with the core's commands and those of plugins."""
    app = typer.Typer(
        name="weft",
        help="Compiles and runs deep-learning models.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing what draws boxes would take as long as all the rest
    )
    app.callback()(_options)
    for name, function in (
        ("run", run.run),
        ("compile", compile.compile_model),
        ("plugins", plugins.plugins),
        ("targets", targets.targets),
    ):
        app.command(name)(function)
    app.command("export", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
        export.export_model
    )
    _add_plugin_commands(app)
    for name in sorted(ELSEWHERE.keys() - {_name(c) for c in _registered(app)}):
        error = PluginError(f"the command '{name}' is not installed", hint=f'pip install "{ELSEWHERE[name]}"')
        app.command(name, hidden=True, context_settings={"ignore_unknown_options": True})(_refused(error))
    return app


ELSEWHERE = {
    "bench": "weft-testing",
    "conform": "weft-testing[conform]",
    "demo": "weft-testing",
    "explain": "weft-testing",
    "fleet": "weft-remote[fleet]",
    "inspect": "weft-testing",
    "plugin": "weft-testing",
    "probe": "weft-llvm",
    "records": "weft-tuning",
    "relay": "weft-remote",
    "tune": "weft-tuning[search]",
    "verify": "weft-testing",
}
"""Commands of plugins that people look for: name → what brings it."""


def _refused(error: PluginError) -> Callable[[list[str] | None], None]:
    """A command that does nothing but raise, whatever is asked of it."""

    def command(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise error

    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        from weft.plugins import host

        typer.echo(f"weft {host().api_version}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show where in Weft an error was raised; allowed anywhere on the command line."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print stages and their times on stderr; allowed anywhere on the command line."
        ),
    ] = False,
) -> None:
    """`main` takes --traceback and --verbose itself; here they only stand in the help."""


def _add_plugin_commands(app: typer.Typer) -> None:
    """Adds the plugins' commands and groups. A name that is claimed twice, the core's own included, is a command that
    says so."""
    from weft.plugins import claimed, host

    plugins = host()
    owners: dict[str, list[Plugin]] = {_name(c): [plugins.core] for c in _registered(app)}
    seen = {id(c) for c in _registered(app)}
    for call in plugins.each("commands", cli=app):
        for added in _registered(app):
            if id(added) not in seen:
                seen.add(id(added))
                owners.setdefault(_name(added), []).append(call.plugin)
    for name, claims in owners.items():
        if len(claims) == 1 or not name:  # a group without a name gives its commands to the application
            continue
        error = claimed(f"the command '{name}'", claims)
        for plugin in claims:
            if not plugin.kept:
                plugins.failed(plugin, "commands", error, warn=False)
        app.registered_commands = [c for c in app.registered_commands if _name(c) != name]
        app.registered_groups = [g for g in app.registered_groups if _name(g) != name]
        app.command(name, help=f"Cannot be used: {error.what}.", context_settings={"ignore_unknown_options": True})(
            _refused(error)
        )


def _registered(app: typer.Typer) -> list[CommandInfo | TyperInfo]:
    return [*app.registered_commands, *app.registered_groups]


def _name(added: CommandInfo | TyperInfo) -> str:
    if isinstance(added, TyperInfo):
        own = added.typer_instance.info.name if added.typer_instance is not None else None
        return next((n for n in (added.name, own) if isinstance(n, str)), "")
    return added.name or (added.callback.__name__.replace("_", "-") if added.callback is not None else "")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line.

    Raises:
        SystemExit: always; 0 success, 1 a WeftError (printed on stderr) or a failed check, 2 a misused option.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that lacks a character of a message still gets the message
    words = list(sys.argv[1:] if arguments is None else arguments)
    formatted, warnings.formatwarning = warnings.formatwarning, _line_of_warning
    ends = words.index("--") if "--" in words else len(words)
    flags = {name: any(w in spelled for w in words[:ends]) for name, spelled in FLAGS.items()}
    words = [w for k, w in enumerate(words) if k >= ends or not any(w in spelled for spelled in FLAGS.values())]
    try:
        from weft.log import show

        for line in check():
            say(f"warning: {line}", err=True)
        show("info" if flags["verbose"] else None)
        build_app()(words, obj=flags, prog_name="weft")
    except Exception as error:  # noqa: BLE001 - whatever it is, people get it in the one form of errors
        if flags["traceback"]:
            import traceback as python_traceback

            python_traceback.print_exception(error)
        else:
            said = error if isinstance(error, WeftError) else _of_another_kind(error)
            typer.echo(f"{type(said).__name__}: {said}", err=True)
        raise SystemExit(1) from None
    finally:
        warnings.formatwarning = formatted


def _line_of_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Of a command there is no line of the caller's to show."""
    return f"{category.__name__}: {message}\n"


FLAGS = {"traceback": ("--traceback",), "verbose": ("--verbose", "-v")}


def _of_another_kind(error: Exception) -> WeftError:
    """What went wrong, where Weft did not foresee it."""
    if isinstance(error, MemoryError):
        return WeftError(
            "there is not enough memory",
            why=str(error) or None,
            hint="give smaller inputs, or a machine with more memory",
        )
    if isinstance(error, RecursionError):
        return WeftError("something nests deeper than can be followed", why=str(error), hint="--traceback shows where")
    if isinstance(error, OSError):
        return WeftError(
            f"'{error.filename}' cannot be used" if error.filename else "the system refuses",
            why=error.strerror or str(error),
        )
    place = _innermost(error) or raised_in(error)
    return WeftError(
        "this is a defect",
        where=place,
        why=f"{type(error).__name__}: {error}",
        hint="--traceback shows the whole way; please report it",
    )


def _innermost(error: Exception) -> str | None:
    """The innermost line of Weft's own."""
    import traceback as python_traceback

    own = [
        f
        for f, _ in python_traceback.walk_tb(error.__traceback__)
        if str(f.f_globals.get("__name__", "")).startswith("weft")
    ]
    return (
        f"in {own[-1].f_globals['__name__']}, {Path(own[-1].f_code.co_filename).name}:{own[-1].f_lineno}"
        if own
        else None
    )


if __name__ == "__main__":
    main()
