"""The commands on several targets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import plugin as recipes
from tests.cli.conftest import recipe, weft
from tests.mixed import board

from weft.plugins import host
from weft.runtime import device as devices

Weft = Callable[..., Any]
__all__ = ["recipe", "recipes", "weft"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "_open", {})
    host().register(sys.modules[board.__name__], "board")
    yield
    host().unregister("board")


def test_inspect_shows_where_nodes_go_and_why(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm")
    assert result.code == 0, result.err
    assert "100.0%" in result.out
    assert "board: anything: the board has no Add [operator] [no_rule]" in " ".join(result.out.split())
    text = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--stage", "place").out
    assert "Region(" in text and "target=\"board\"" in text
    assert weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--stage", "load").out.startswith("graph mlp(")


def test_inspect_has_no_other_stages_for_several_targets(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--stage", "schedule")
    assert result.err == (
        "InputError: there is no stage 'schedule'\n  stages: load, place\n  hint: name one target alone to see the stages of its compilation\n"
    )


def test_run_and_strict(weft: Weft, recipe: Path) -> None:
    result = weft("run", recipe, "-t", "board -ops=MatMul, llvm", "--input-shape", "x=2,64")
    assert result.code == 0, result.err
    result = weft("run", recipe, "-t", "board -ops=MatMul, llvm", "--strict", "--input-shape", "x=2,64")
    assert result.code == 1
    assert "nodes are not computed by 'board'" in result.err and "the board has no Add" in result.err


def test_an_archive_of_several_targets(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    path = tmp_path / "mixed.weft"
    assert weft("compile", recipe, "-t", "board -ops=MatMul, llvm", "-o", path).code == 0
    out = weft("inspect", path).out
    assert "launches on board" in out
    assert {s["kind"] for s in json.loads(weft("inspect", path, "--stage", "manifest").out)["steps"]} == {"native", "copy", "device"}
    assert "copy " in weft("inspect", path, "--stage", "plan").out
    assert "--strict does not apply" in weft("run", path, "--strict").err


def test_commands_for_one_target_say_so(weft: Weft, recipe: Path) -> None:
    result = weft("bench", recipe, "-t", "board, llvm", "--roofline")
    assert result.code == 1
    assert 'one target is wanted here\n  board, llvm\n  hint: name one, for example "board"' in result.err


def test_a_kind_of_target_without_a_word_about_itself_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.cli.targets import options, targets

    assert board.Board.__doc__ is None
    targets()
    out = capsys.readouterr().out
    assert "board" in out and "-latency" in out
    assert options(board.Board()) == [("-ops", "text,…", ""), ("-latency", "integer", "0")]
