from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.passes.library import stage_names

from weft.errors import ScheduleWarning
from weft.loop.parser import parse_program
from weft.loop.pipeline import STAGES

Weft = Callable[..., Any]


def test_stages_kernels_rules_and_declines_are_listed(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe)
    assert result.code == 0, result.err
    for stage in ("load", *stage_names(), "lower_group", "schedule", *(s.name for s in STAGES), "plan"):
        assert f" {stage} " in result.out
    assert "matmul_add_relu_" in result.out
    assert "contraction" in result.out
    assert "elementwise: reduction: a block reduces" in result.out


@pytest.mark.parametrize("stage", ["load", *stage_names()])
def test_graph_stages_print(weft: Weft, recipe: Path, stage: str) -> None:
    result = weft("inspect", recipe, "--stage", stage)
    assert result.code == 0, result.err
    assert result.out.startswith("graph mlp(%x: float32[batch, 64])")


@pytest.mark.parametrize("stage", ["lower_group", "schedule", *(s.name for s in STAGES)])
def test_kernel_stages_print_programs_that_parse(weft: Weft, recipe: Path, stage: str) -> None:
    result = weft("inspect", recipe, "--stage", stage, "--kernel", "relu")
    assert result.code == 0, result.err
    assert parse_program(result.out).name.startswith("matmul_add_relu_")


def test_the_source_of_a_kernel_prints(weft: Weft, recipe: Path) -> None:
    out = weft("inspect", recipe, "--stage", "source", "--kernel", "relu").out
    assert 'define i32 @"matmul_add_relu_' in out  # LLVM's
    assert " source " in weft("inspect", recipe).out


def test_a_schedule_shows_its_rule_and_steps(weft: Weft, recipe: Path) -> None:
    out = weft("inspect", recipe, "-s", "schedule", "-k", "relu").out
    assert out.startswith("# rule: contraction\n# declined: ")
    assert "# step: split(" in out


def test_choices_and_records(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    """Choices print as a file of records; one that is changed by hand is followed, and is seen."""
    out = weft("inspect", recipe, "--stage", "records", "-k", "relu").out
    data = json.loads(out)
    (record,) = data["records"]
    assert record["choices"]["rule"] == "contraction"
    default = record["choices"]["tile_rows"]
    record["choices"] = {"tile_rows": default - 1}
    file = tmp_path / "records.json"
    file.write_text(json.dumps(data))
    # Tables fold long lines, so that the words of a row stand on several.
    rows = [
        line.split() for line in weft("inspect", recipe, "--records", file).out.splitlines() if " tile_rows " in line
    ]
    assert any(row[-3:] == [str(default - 1), str(default), "record"] for row in rows)
    text = weft("inspect", recipe, "-s", "schedule", "-k", "relu", "--records", file).out
    assert f"# choice: tile_rows = {default - 1} (recorded; default {default})\n" in text
    for command in (
        ("run", recipe),
        ("compile", recipe, "-o", tmp_path / "a.weft"),
        ("bench", recipe, "--against", "none", "--rounds", "1"),
    ):
        assert weft(*command, "--records", file).code == 0
    stale = weft("inspect", recipe, "--records", _with(file, data, tile_rows=1000))
    assert "choice 'tile_rows' cannot be 1000" in " ".join(stale.out.split()) + stale.err
    data["records"][0]["program"] = 32 * "0"
    with pytest.warns(ScheduleWarning, match=r"no record in .*records\.json is followed: no kernel"):
        assert weft("inspect", recipe, "--records", _with(file, data, tile_rows=2)).code == 0
    lost = weft("run", recipe, "--records", tmp_path / "none.json")
    assert lost.code != 0 and "no file of records" in lost.err
    archive = weft("run", tmp_path / "a.weft", "--records", file)
    assert archive.code != 0 and "is compiled already, --records does not apply" in archive.err


def _with(file: Path, data: Any, **choices: int) -> Path:
    data["records"][0]["choices"] = choices
    file.write_text(json.dumps(data))
    return file


def test_the_memory_plan_prints(weft: Weft, recipe: Path) -> None:
    out = weft("inspect", recipe, "--stage", "plan").out
    assert out.startswith("arena ")
    assert "bytes at 0, nodes 0 to 1" in out


def test_sizes_can_be_fixed(weft: Weft, recipe: Path) -> None:
    assert weft("inspect", recipe, "-s", "load", "--input-shape", "x=2,64").out.startswith(
        "graph mlp(%x: float32[2, 64])"
    )


def test_an_unknown_stage_or_kernel(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe, "--stage", "fold_constant")
    assert result.code == 1
    assert result.err.startswith("InputError: there is no stage 'fold_constant'\n  stages: load, fold_constants, ")
    assert result.err.endswith("  hint: did you mean 'fold_constants'?\n")
    result = weft("inspect", recipe, "--stage", "schedule", "--kernel", "conv")
    assert result.err.startswith("InputError: there is no kernel 'conv'\n  kernels: matmul_add_relu_")


def test_archives_show_what_they_hold(weft: Weft, archive: Path) -> None:
    result = weft("inspect", archive)
    assert result.code == 0, result.err
    for word in ("x: float32[batch, 64]", "y: float32[batch, 32]", "1 step(s)", "manifest, sections, plan"):
        assert word in result.out
    assert json.loads(weft("inspect", archive, "--stage", "manifest").out)["name"] == "mlp"
    assert "code/main: " in weft("inspect", archive, "--stage", "sections").out
    assert "native main:run(x) -> (y)" in weft("inspect", archive, "--stage", "plan").out
    assert weft("inspect", archive, "--stage", "fuse").err == (
        "InputError: there is no stage 'fuse'\n  stages: manifest, sections, plan\n"
    )


def test_an_archive_is_known_by_its_content_too(weft: Weft, archive: Path) -> None:
    other = archive.rename(archive.with_suffix(".zip"))
    assert "1 step(s)" in weft("inspect", other).out
