from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.verify.planted import Planted

from weft.scheduling.schedule import Schedule

Weft = Callable[..., Any]


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_model_against_the_reference(weft: Weft, recipe: Path) -> None:
    result = weft("verify", recipe, "--input-shape", "x=3,64")
    assert result.code == 0, result.err
    assert "mlp: 'llvm' against the reference" in result.out and "float32[3, 32]" in result.out
    assert words(result.out).endswith("all outputs are within their tolerances")


def test_every_node_of_a_model(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    with Planted().installed():
        result = weft("verify", recipe, "-t", "planted", "--every-node", "--json", tmp_path / "found.json")
    assert result.code == 0, result.err
    assert result.out.endswith("all outputs are within their tolerances, and so is every part by itself\n")
    data = json.loads((tmp_path / "found.json").read_text())
    assert data["passed"] and data["blames"] == [] and data["inputs"] == {"x": "float32[1, 64]"}


def test_a_mismatch_ends_with_1_and_names_who_departs(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    with Planted(code=lambda text: text.replace("select(", "0.5f32*select(")).installed():
        result = weft("verify", recipe, "-t", "planted", "--json", tmp_path / "found.json")
    assert result.code == 1 and result.err == ""
    out = words(result.out)
    assert "1 of 1 outputs are wrong" in out
    assert "'planted': a kernel departs: its machine code" in out
    assert "by the rule 'planted'" in out
    (blame,) = json.loads((tmp_path / "found.json").read_text())["blames"]
    assert (blame["kind"], blame["stage"], blame["operator"]) == ("kernel", "codegen", "Relu")


def test_what_a_cache_holds_is_told_from_what_is_compiled_now(weft: Weft, recipe: Path) -> None:
    with Planted(code=lambda text: text.replace("select(", "0.5f32*select("), version="same").installed():
        assert weft("run", recipe, "-t", "planted").code == 0
    with Planted(version="same").installed():
        result = weft("verify", recipe, "-t", "planted")
    assert result.code == 1
    assert "what the cache holds is wrong: compiled anew, the model is right" in words(result.out)


def test_inputs_and_bounds_are_given_as_to_other_commands(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 64), np.float32))
    result = weft("verify", recipe, "-i", f"x={tmp_path / 'x.npy'}", "--rtol", 1e-3, "--atol", 1e-4)
    assert result.code == 0, result.err
    assert "float32[2, 32]" in result.out
    assert weft("verify", recipe, "--rtol", 0).code == 1  # to the last bit


def test_records_are_followed_in_the_model_and_in_its_parts(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    """Each compilation says that a stale record is refused: the model's, and that which takes it apart."""
    data = json.loads(weft("inspect", recipe, "--stage", "records", "-k", "relu").out)
    file = tmp_path / "records.json"
    for rows, said in ((data["records"][0]["choices"]["tile_rows"] - 1, 0), (1000, 2)):
        data["records"][0]["choices"] = {"tile_rows": rows}
        file.write_text(json.dumps(data))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = weft("verify", recipe, "--every-node", "--records", file)
        assert result.code == 0, result.err
        refused = [w for w in caught if "choice 'tile_rows' cannot be 1000" in str(w.message)]
        assert len(refused) == said
    lost = weft("verify", recipe, "--records", tmp_path / "none.json")
    assert lost.code == 1 and "no file of records" in lost.err
    over = weft("verify", recipe, "--records", file, "--json", file)
    assert over.code == 1 and "--json" in over.err


def test_a_cache_is_told_from_a_model_that_is_compiled_anew_with_the_same_records(
    weft: Weft, recipe: Path, tmp_path: Path
) -> None:
    """The kernel is wrong in the cache, and compiled anew it is right with the recorded width only."""

    def plan(s: Schedule) -> None:
        width = s.choose("width", [2, 4], 2)
        s.split(s.loops(s.blocks()[-1])[-1], [None, width])

    def halved(text: str) -> str:
        return text.replace("select(", "0.5f32*select(")

    file = tmp_path / "records.json"
    with Planted(schedule=plan, code=halved, version="recorded").installed():
        data = json.loads(weft("inspect", recipe, "-t", "planted", "--stage", "records").out)
        data["records"] = [{**r, "choices": {"width": 4}} for r in data["records"] if "width" in r["choices"]]
        file.write_text(json.dumps(data))
        assert weft("run", recipe, "-t", "planted", "--records", file).code == 0

    def wrong_by_default(text: str) -> str:
        return halved(text) if " in 2 {" in text else text

    with Planted(schedule=plan, code=wrong_by_default, version="recorded").installed():
        result = weft("verify", recipe, "-t", "planted", "--records", file)
        default = weft("verify", recipe, "-t", "planted")
    assert "'planted': a kernel departs: its machine code" in words(default.out)
    assert result.code == 1
    assert "what the cache holds is wrong: compiled anew, the model is right" in words(result.out)


def test_against_an_engine_and_another_target(weft: Weft, recipe: Path) -> None:
    with Planted().installed():
        result = weft("verify", recipe, "-t", "planted", "--against", "numpy")
        assert result.code == 0, result.err
        assert "mlp: 'planted' against 'numpy'" in result.out
        result = weft("verify", recipe, "-t", "llvm", "--against", "planted")
        assert result.code == 0, result.err
        assert "mlp: 'llvm' against 'planted'" in result.out


def test_of_two_targets_the_one_that_departs_is_blamed(weft: Weft, recipe: Path) -> None:
    with Planted(code=lambda text: text.replace("select(", "0.5f32*select(")).installed():
        result = weft("verify", recipe, "-t", "llvm", "--against", "planted")
    assert result.code == 1
    assert "'planted': a kernel departs" in result.out and "'llvm': " not in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--against", "referense"],
            (
                "InputError: 'referense' is neither 'reference', an engine nor a target\n  hint: did you mean"
                " 'reference'?\n"
            ),
        ),
        (["--against", "absent"], "InputError: the engine 'absent' is not installed\n  hint: pip install absent\n"),
        (
            ["--against", "llvm"],
            "InputError: --against names the target itself, 'llvm'\n  hint: leave it out for the reference\n",
        ),
        (
            ["--against", "llvm -thread=2"],
            "TargetError: target 'llvm' has no option '-thread'\n  llvm -thread=2\n  hint: did you mean '-threads'?\n",
        ),
        (["--input", "X1=x.npy"], "InputError: --input names 'X1', which is no input\n  x: float32[batch, 64]\n"),
    ],
)
def test_what_it_does_not_take(weft: Weft, recipe: Path, arguments: list[str], said: str) -> None:
    result = weft("verify", recipe, *arguments)
    assert (result.code, result.err) == (1, said)


def test_an_archive_has_nothing_to_be_held_against(weft: Weft, archive: Path) -> None:
    result = weft("verify", archive)
    assert (
        result.err
        == f"InputError: {archive} is compiled already, nothing says what it should compute\n  hint: give the model"
        " that it was compiled from\n"
    )
