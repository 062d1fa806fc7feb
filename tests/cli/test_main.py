"""The command line itself: help, errors, plugins, targets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from onnx import helper

from weft.errors import PluginWarning
from weft.hooks import hookimpl
from weft.plugins import KNOWN_TARGETS, host

Weft = Callable[..., Any]


def test_help_lists_the_commands_and_the_environment(weft: Weft) -> None:
    result = weft("--help")
    assert result.code == 0
    for word in (
        "run",
        "compile",
        "bench",
        "inspect",
        "plugin",
        "plugins",
        "targets",
        "demo",
        "hello",
        "WEFT_CACHE_DIR",
        "WEFT_THREADS",
    ):
        assert word in result.out


@pytest.mark.parametrize(
    "command", ["run", "compile", "bench", "explain", "inspect", "plugin", "plugins", "targets", "demo"]
)
def test_every_command_has_help(weft: Weft, command: str) -> None:
    result = weft(command, "--help")
    assert result.code == 0
    assert "Usage" in result.out


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("bench m.onnx --profile", "weft-testing"),
        ("conform --target npu", "weft-testing[conform]"),
        ("verify m.onnx -k 3", "weft-testing"),
        ("demo", "weft-testing"),
        ("inspect m.onnx --html m.html", "weft-testing"),
        ("explain llvm", "weft-testing"),
        ("plugin new npu", "weft-testing"),
        ("probe --json", "weft-llvm"),
    ],
)
def test_a_command_whose_package_is_not_installed_names_it(
    words: str, package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.cli.main import main

    monkeypatch.setattr("weft.cli.main._add_plugin_commands", lambda app: None)
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 1
    command, hint = words.split()[0], f'  hint: pip install "{package}"'
    assert capsys.readouterr().err == f"PluginError: the command '{command}' is not installed\n{hint}\n"


def test_the_option_of_a_command_that_is_not_installed_names_its_package(
    weft: Weft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cli.main._add_plugin_commands", lambda app: None)
    result = weft("plugins", "--explain", "llvm")
    said = "PluginError: the command 'explain' is not installed\n  hint: pip install \"weft-testing\"\n"
    assert (result.code, result.err) == (1, said)


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


def claiming(name: str, group: bool = False) -> object:
    class Claims:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            if group:
                added = typer.Typer(name=name)
                added.command("new")(lambda: typer.echo("replaced"))
                cli.add_typer(added)
            else:
                cli.command(name)(lambda: typer.echo("replaced"))

    return Claims()


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("name", ["run", "plugins"])
def test_a_command_of_the_core_that_a_plugin_claims(weft: Weft, name: str, group: bool) -> None:
    host().register(claiming(name, group), "rude")
    try:
        result, others, listed = weft(name, "new", "no.onnx"), weft("hello"), weft("explain", "llvm")
    finally:
        host().unregister("rude")
    assert result.code == 1 and "replaced" not in result.out
    assert (
        result.err
        == f"PluginError: the command '{name}' is claimed by {host().core} and plugin 'rude' (registered by hand)\n "
        " why: nothing says which of them is meant, and the order of plugins decides nothing\n  hint: unregister"
        " 'rude'\n"
    )
    assert others.out == "hello from a plugin\n" and not others.err, "other commands are not harmed"
    assert f"hook 'commands' failed: PluginError: the command '{name}' is claimed by" in " ".join(listed.out.split())


def test_a_command_that_two_plugins_claim(weft: Weft) -> None:
    host().register(claiming("info"), "one")
    host().register(claiming("info", group=True), "two")
    try:
        result, shown = weft("info", "--anything"), weft("--help")
    finally:
        host().unregister("one")
        host().unregister("two")
    said = "the command 'info' is claimed by plugin 'one' (registered by hand) and plugin 'two' (registered by hand)"
    assert result.code == 1 and result.err.startswith(f"PluginError: {said}\n  why: ")
    assert "Cannot be used: the command 'info' is claimed" in " ".join(shown.out.split())


def test_a_plugin_that_fails_behind_its_command_is_the_one_that_claims_it(weft: Weft) -> None:
    class Fails:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            cli.command("run")(lambda: None)
            raise RuntimeError("no more")

    host().register(Fails(), "fails")
    try:
        assert "and plugin 'fails' (registered by hand)\n" in weft("run", "no.onnx").err
    finally:
        host().unregister("fails")


def test_a_warning_is_one_line_without_a_place(weft: Weft) -> None:
    class Warns:
        @hookimpl
        def commands(self, cli: typer.Typer) -> None:
            warned = PluginWarning("it is old")
            cli.command("old")(lambda: typer.echo(warnings.formatwarning(warned, PluginWarning, __file__, 1), nl=False))

    host().register(Warns(), "warns")
    try:
        assert weft("old").out == "PluginWarning: it is old\n"
    finally:
        host().unregister("warns")
    assert __file__ in warnings.formatwarning("x", PluginWarning, __file__, 1)


def test_the_console_script_is_installed() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="weft")
    assert script.value == "weft.cli.main:main"


def test_plugins_are_listed_with_what_they_contribute(weft: Weft) -> None:
    result = weft("plugins")
    assert result.code == 0, result.err
    for word in (
        "weft-llvm",
        "targets: llvm",
        "(registered by hand)",
        "frontends: recipe (.recipe)",
        "absent (not installed)",
        "in use",
    ):
        assert word in result.out


def test_broken_plugins_are_listed_with_the_reason(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (
        host()
        .plugins[0]
        .__class__("bad", "weft-bad", "2.0", ">=9", "weft_bad", failure="needs weft>=9, this is weft 0.1.0")
    )
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
    absent = "abacus: not here (weft-abacus is not part of this installation)"
    first = "llvm: CPUs, through LLVM: aarch64"
    for word in (first, "-mcpu", "-threads", "this machine's", "vector registers", absent):
        assert word in result.out


def test_without_targets_it_says_so(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.resolve.target_kinds", dict)
    assert "no target is installed" in weft("targets").out


def test_it_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "weft", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"weft {host().api_version}\n"


def test_the_version_is_an_attribute() -> None:
    import weft as package

    assert package.__version__ == metadata.version("weft-core") and "__version__" in dir(package)


def test_variables_that_are_no_settings_are_warned_of(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_THREDS", "2")
    monkeypatch.setenv("WEFT_ZZZ", "2")
    err = weft("--version").err
    assert (
        err
        == "warning: WEFT_THREDS is no setting of Weft: did you mean WEFT_THREADS?\nwarning: WEFT_ZZZ is no setting of"
        " Weft, and has no effect\n"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEFT_THREADS", "x"),
        ("WEFT_THREADS", "-1"),
        ("WEFT_CACHE_BYTES", "-4G"),
        ("WEFT_VERIFY_WEIGHTS", "perhaps"),
        ("WEFT_LOG", "loud"),
    ],
)
def test_every_setting_is_checked_before_anything_is_done(
    weft: Weft, recipe: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    result = weft("plugins")
    assert result.code == 1 and result.err.startswith(
        f"SettingError: {name} is set to '{value}', which cannot be used\n  why: "
    )


@pytest.mark.parametrize(("stage", "close"), [("nosuch", ""), ("shedule", "did you mean 'schedule'? ")])
def test_a_stage_that_is_none_cannot_be_dumped(
    weft: Weft, recipe: Path, stage: str, close: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP", f"fuse,{stage}")
    result = weft("run", recipe)
    assert result.code == 1
    assert result.err.startswith(
        f"SettingError: WEFT_DUMP names '{stage}', which is no stage with a text\n  hint: {close}stages: lower_group,"
        " schedule, "
    )
    for name in ("fuse", "vectorize_loops", "fold_constants"):
        assert f" {name}," in result.err


@pytest.mark.parametrize("words", [["--verbose", "run"], ["run", "-v"]])
def test_verbose_says_what_is_done(weft: Weft, recipe: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.log import logger

    before = list(logger.handlers)
    monkeypatch.setenv("WEFT_CACHE_BYTES", "0")
    try:
        err = weft(*words, recipe).err
    finally:
        logger.handlers[:] = before
        logger.setLevel("NOTSET")
    for stage in ("load", "fuse", "codegen", "link"):
        assert re.search(rf"ms INFO +weft: {stage} \S+: [\d.]+ ms", err), err
    assert "lower_group" not in err
    assert weft("run", recipe).err == ""


def test_what_nobody_foresaw_is_said_in_the_form_of_errors(
    weft: Weft, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("weft.cli.inputs.make_inputs", fails)
    raised: Exception = MemoryError()
    assert (
        weft("run", recipe).err
        == "WeftError: there is not enough memory\n  hint: give smaller inputs, or a machine with more memory\n"
    )
    raised = KeyError("x")
    result = weft("run", recipe)
    assert result.code == 1 and re.fullmatch(
        r"WeftError: this is a defect\n  in .+:\d+\n  why: KeyError: 'x'\n  hint: --traceback shows .*\n", result.err
    )
    assert weft("run", recipe, "--traceback").err.startswith("Traceback")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    """As the shells ask: the line and the word of it in variables of the environment."""
    for words, wanted in (("weft co", {"compile", "conform"}), ("weft run --out", {"--output-dir"})):
        last = words.split()[-1]
        asked = {
            "_WEFT_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_WORD_TO_COMPLETE": last,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "weft"], env={**os.environ, **asked}, capture_output=True, text=True
        )
        assert wanted == {w for w in wanted if w in done.stdout}, done
        assert "bench" not in done.stdout.replace("Weft beside", "")


def test_output_that_is_asked_for_is_written_though_nobody_reads_the_report(recipe: Path, tmp_path: Path) -> None:
    """As in `weft run … | head -1`: what reads the report has gone, and that is no error."""
    model = tmp_path / "m.onnx"
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [tensor("x", 1, [2])], [tensor("y", 1, [2])]
    )
    model.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    )
    for words, file in (
        (["run", str(model), "-d", str(tmp_path)], "y.npy"),
        (["bench", str(model), "--rounds", "1", "--against", "none", "--json", str(tmp_path / "b.json")], "b.json"),
        (["verify", str(model), "--json", str(tmp_path / "v.json")], "v.json"), (["inspect", str(model), "--html",
            str(tmp_path / "p.html")], "p.html"),
    ):  # fmt: skip
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run([sys.executable, "-m", "weft", *words], stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert done.stderr == "" and (tmp_path / file).stat().st_size > 100, done
    json.loads((tmp_path / "b.json").read_text())
