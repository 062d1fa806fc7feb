"""The command line itself: help, errors, plugins, targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from weft.hooks import hookimpl
from weft.plugins import KNOWN_TARGETS, host

Weft = Callable[..., Any]


def test_help_lists_the_commands_and_the_environment(weft: Weft) -> None:
    result = weft("--help")
    assert result.code == 0
    for word in ("run", "compile", "bench", "inspect", "plugin", "plugins", "targets", "demo", "hello", "WEFT_CACHE_DIR", "WEFT_THREADS"):
        assert word in result.out


@pytest.mark.parametrize("command", ["run", "compile", "bench", "inspect", "plugin", "plugins", "targets", "demo"])
def test_every_command_has_help(weft: Weft, command: str) -> None:
    result = weft(command, "--help")
    assert result.code == 0
    assert "Usage" in result.out


def test_the_version(weft: Weft) -> None:
    assert weft("--version").out == f"weft {host().api_version}\n"


def test_an_unknown_command_or_option_is_a_usage_error(weft: Weft) -> None:
    assert weft("rum").code == 2
    assert weft("run", "--nothing").code == 2


def test_a_traceback_only_on_demand_wherever_it_is_asked_for(weft: Weft) -> None:
    for words in (["--traceback", "run", "no.onnx"], ["run", "no.onnx", "--traceback"]):
        result = weft(*words)
        assert result.code == 1
        assert result.err.startswith("Traceback")
        assert "no file 'no.onnx'" in result.err


def test_plugins_add_commands(weft: Weft) -> None:
    assert weft("hello").out == "hello from a plugin\n"


def test_plugins_cannot_replace_commands(weft: Weft) -> None:
    class Rude:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            cli.command("run")(lambda: typer.echo("the core's command is replaced"))

    host().register(Rude(), "rude")
    try:
        result = weft("run", "no.onnx")
    finally:
        host().unregister("rude")
    assert result.err.endswith("FrontendError: no file 'no.onnx'\n  hint: give the path of a model file\n")
    assert result.err.startswith("warning: the command 'run' of ")


def test_plugins_cannot_replace_groups_of_commands(weft: Weft) -> None:
    class Rude:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            cli.command("plugin")(lambda: typer.echo("the core's group is replaced"))
            group = typer.Typer(name="plugin")
            group.command("new")(lambda: typer.echo("the core's command is replaced"))
            cli.add_typer(group)

    host().register(Rude(), "rude")
    try:
        result = weft("plugin", "new", "weft")
    finally:
        host().unregister("rude")
    assert result.err.startswith("warning: the command 'plugin' of ")
    assert "PluginError: 'weft' is no name for a plugin" in result.err


def test_a_group_of_a_plugin_cannot_replace_a_command(weft: Weft) -> None:
    class Rude:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            group = typer.Typer(name="run")
            group.command("new")(lambda: typer.echo("the core's command is replaced"))
            cli.add_typer(group)

    host().register(Rude(), "rude")
    try:
        result = weft("run", "no.onnx")
    finally:
        host().unregister("rude")
    assert result.err.startswith(f"warning: the command 'run' of {__name__} is left out: the name is taken\n")
    assert "FrontendError: no file 'no.onnx'" in result.err


def test_the_console_script_is_installed() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="weft")
    assert script.value == "weft.cli.main:main"


def test_plugins_are_listed_with_what_they_contribute(weft: Weft) -> None:
    result = weft("plugins")
    assert result.code == 0, result.err
    for word in ("weft-llvm", "targets: llvm", "(registered by hand)", "frontends: recipe (.recipe)", "absent (not installed)", "in use"):
        assert word in result.out


def test_broken_plugins_are_listed_with_the_reason(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = host().plugins[0].__class__("bad", "weft-bad", "2.0", ">=9", "weft_bad", failure="needs weft>=9, this is weft 0.1.0")
    monkeypatch.setattr(host(), "plugins", [*host().plugins, broken])
    monkeypatch.setattr(host(), "failures", [(broken, "engines", RuntimeError("no licence"))])
    out = weft("plugins").out
    assert "quarantined" in out
    assert "weft-bad 2.0 (weft_bad) is out of use: needs weft>=9, this is weft 0.1.0" in out
    assert "weft-bad: hook 'engines' failed: RuntimeError: no licence" in out


def test_targets_are_listed_with_options_and_machine(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_TARGETS, "abacus", "weft-abacus")
    result = weft("targets")
    assert result.code == 0, result.err
    for word in ("llvm: CPUs, through LLVM.", "-mcpu", "-threads", "this machine's", "vector registers", "abacus: not installed (pip install weft-abacus)"):
        assert word in result.out


def test_without_targets_it_says_so(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.pipeline.target_kinds", dict)
    assert "no target is installed" in weft("targets").out
