"""The commands on several targets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import plugin as recipes
from tests.cli.conftest import recipe, weft
from tests.mixed import board

from weft.errors import ScheduleError, ScheduleWarning
from weft.loop.parser import parse_program

Weft = Callable[..., Any]
__all__ = ["recipe", "recipes", "weft"]
pytestmark = pytest.mark.usefixtures("board")


def test_inspect_shows_where_nodes_go_and_why(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm")
    assert result.code == 0, result.err
    assert "100.0%" in result.out
    assert "board: anything: the board has no Add [operator] [no_rule]" in " ".join(result.out.split())
    text = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--stage", "place").out
    assert "Region(" in text and 'target="board"' in text
    assert weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--stage", "load").out.startswith("graph mlp(")


def test_inspect_shows_why_what_was_taken_went_to_the_host(
    weft: Weft, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(self: object, schedule: object) -> None:
        raise ScheduleError("the tile does not fit")

    monkeypatch.setattr(board.Anything, "apply", apply)
    monkeypatch.setenv("WEFT_CACHE_BYTES", "0")  # another test may have left the kernel
    with pytest.warns(ScheduleWarning, match="are left to other targets"):
        result = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm")
    assert result.code == 0, result.err
    shown = " ".join(result.out.split())
    assert "anything: failed: the tile does not fit" in shown and "[unscheduled]" in shown


def test_inspect_shows_the_stages_of_every_region(weft: Weft, recipe: Path) -> None:
    target = ("-t", "board -ops=MatMul, llvm")
    out = weft("inspect", recipe, *target).out
    assert re.search(r"board0 +matmul_\w+ +1 +anything", out) and re.search(r"llvm1 +add_relu_\w+ +1 +elementwise", out)
    both = weft("inspect", recipe, *target, "--stage", "schedule").out
    board_text, llvm_text = re.findall(r"# region (?:board0|llvm1)\n(.*?)(?=\n\n# region|\Z)", both, re.DOTALL)[:2]
    assert board_text.startswith("# rule: anything") and llvm_text.startswith("# rule: elementwise")
    assert parse_program(board_text).name.startswith("matmul") and parse_program(llvm_text).name.startswith("add_relu")
    for stage in ("choose_algorithms", "lower_group", "expand_math", "plan"):
        one = weft("inspect", recipe, *target, "--stage", stage, "--region", "llvm1").out
        assert one.startswith("# region llvm1\n") and "# region board0" not in one
        assert set(
            re.findall("# region ([a-z]+)", weft("inspect", recipe, *target, "--stage", stage, "--region", "board").out)
        ) == {"board"}
    shown = weft("inspect", recipe, *target, "--stage", "source").out  # the board makes its code from no text
    assert "# region llvm1" in shown and "# region board" not in shown


def test_inspect_of_one_target_with_a_device_reads_as_that_of_a_cpu(weft: Weft, recipe: Path) -> None:
    target = ("-t", "board -ops=MatMul,Add,Relu")
    result = weft("inspect", recipe, *target)
    assert result.code == 0, result.err
    for stage in ("choose_algorithms", "lower_group", "schedule", "expand_math", "plan"):
        assert f" {stage} " in result.out
    assert re.search(r"matmul_add_relu_\w+ +1 +anything", result.out)
    assert parse_program(weft("inspect", recipe, *target, "--stage", "expand_math", "-k", "relu").out).name.startswith(
        "matmul_add_relu"
    )


def test_what_inspect_does_not_find_in_regions(weft: Weft, recipe: Path) -> None:
    target = ("-t", "board -ops=MatMul, llvm")
    error = weft("inspect", recipe, *target, "--stage", "schedul").err
    assert error.startswith(
        "InputError: there is no stage 'schedul'\n  stages: load, place, fold_constants, "
    ) and error.endswith("did you mean 'schedule'?\n")
    error = weft("inspect", recipe, *target, "--region", "bord0").err
    assert error.startswith("InputError: there is no region 'bord0'\n  regions: board0, llvm1, ") and error.endswith(
        "did you mean 'board0'?\n"
    )
    error = weft("inspect", recipe, *target, "-s", "schedule", "-k", "softmax").err
    assert error.startswith("InputError: there is no kernel 'softmax'\n  kernels: matmul_")
    error = weft("inspect", recipe, "-t", "board -ops=MatMul,Add,Relu", "-s", "source").err
    assert (
        error
        == "InputError: target 'board' shows no source\n  why: it makes code from no text\n  hint: the stage before is"
        " 'expand_math'\n"
    )
    error = weft("inspect", recipe, "-t", "llvm", "--region", "llvm0").err
    assert (
        error
        == "InputError: there is no region 'llvm0'\n  why: 'llvm' computes the whole model on the host's processor\n"
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
    assert {s["kind"] for s in json.loads(weft("inspect", path, "--stage", "manifest").out)["steps"]} == {
        "native",
        "copy",
        "device",
    }
    assert "copy " in weft("inspect", path, "--stage", "plan").out
    assert "--strict does not apply" in weft("run", path, "--strict").err


def test_commands_for_the_host_say_so(weft: Weft, recipe: Path) -> None:
    result = weft("bench", recipe, "-t", "board, llvm", "--roofline")
    assert result.code == 1
    assert (
        "--roofline and --html measure the host's processor" in result.err
        and "--profile and --trace show its kernels" in result.err
    )


def test_a_kind_of_target_without_a_word_about_itself_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.cli.targets import options, targets

    assert board.Board.__doc__ is None
    targets()
    out = capsys.readouterr().out
    assert "board" in out and "-latency" in out
    assert options(board.Board()) == [("-ops", "text,…", ""), ("-latency", "integer", "0")]
