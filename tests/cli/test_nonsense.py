"""Whatever stands on the command line: a result or a message in the form of errors, within a few lines, and no
traceback, no defect."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from weft.cli.main import build_app

Weft = Callable[..., Any]

NONSENSE = (
    "", " ", "-1", "0", "99999999999999999999", "1e400", "nan", "x=", "=x", "x=1,2,3,-4", "ünï¢ødé",
    "\x1b[31mred\x1b[0m", "a\nb",
    "{0}", "../..", "x" * 300,
)  # fmt: skip
LONG_RUNNING = {("bench", "--seconds"), ("bench", "--rounds")}
"""A number that is large is taken at its word."""


def options() -> Iterator[tuple[str, str]]:
    """Every option of every command that takes a value."""
    group = typer.main.get_command(build_app())
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if name in ("hello", "plugin", "demo", "conform", "tune"):
            continue  # conform and tune are made of long runs: tests/conform/test_command.py, tests/tuning
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_flag:
                yield name, parameter.opts[0]


def run(weft: Weft, recipe: Path, command: str, option: str, value: str) -> Any:
    words: list[Any] = [] if command in ("targets", "plugins") else [recipe]
    more = {
        "compile": ["-o", "out.weft"], "bench": ["--rounds", "1", "--against", "none", "--threads", "1"],
        "verify": ["--input-shape", "x=2,64"],
    }.get(command, [])  # fmt: skip
    same = {"-o": "--output", "-t": "--target"}
    kept = [w for k in range(0, len(more), 2) if same.get(more[k], more[k]) != option for w in more[k : k + 2]]
    return weft(command, *words, *kept, option, value)


@pytest.mark.parametrize(("command", "option"), sorted(set(options())), ids=" ".join)
def test_nonsense_is_answered_in_the_form_of_errors(
    weft: Weft,
    recipe: Path,
    tmp_path: Path,
    command: str,
    option: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In CI two values of each option, each time the same ones."""
    monkeypatch.chdir(tmp_path)
    start = zlib.crc32(f"{command} {option}".encode())
    chosen = (
        range(len(NONSENSE))
        if request.config.getoption("--full")
        else (start % len(NONSENSE), start // 7 % len(NONSENSE))
    )
    for value in (NONSENSE[k] for k in chosen):
        if (command, option) in LONG_RUNNING and value not in ("", " ", "-1", "0", "nan", "x="):
            continue
        result = run(weft, recipe, command, option, value)
        assert "Traceback" not in result.err and "defect" not in result.err, (value, result.err)
        assert result.code in (0, 1, 2), (value, result.err)
        answered = result.code == 1 and result.out.endswith(
            "are wrong\n"
        )  # a tolerance of 0 is no nonsense, and few results are exact
        assert (result.code == 0 or answered) == (not result.err) or result.err.startswith("level"), (value, result.err)
        assert len(result.err) < 3000, value
        assert "\x1b" not in result.err + result.out, value


@pytest.mark.parametrize("command", ["run", "bench", "verify"])
@pytest.mark.parametrize("seed", ["-1", "-99999999999999999999"])
def test_a_seed_is_not_negative(weft: Weft, recipe: Path, command: str, seed: str) -> None:
    result = weft(command, recipe, "--seed", seed)
    assert result.code == 2 and "Invalid value for '--seed'" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("what", ["a folder", "a pipe", "nothing", "an empty file", "a null"])
@pytest.mark.parametrize("command", ["run", "compile", "bench", "inspect", "verify"])
def test_files_that_are_no_models(
    weft: Weft, tmp_path: Path, command: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "a\0b" if what == "a null" else "model.onnx"
    if what == "a folder":
        Path(path).mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "an empty file":
        Path(path).touch()
    result = weft(command, path, *(["-o", "out.weft"] if command == "compile" else []))
    assert result.code == 1 and result.err.startswith("FrontendError: ") and "\n  hint: " in result.err
    assert "plugin" not in result.err and "defect" not in result.err
