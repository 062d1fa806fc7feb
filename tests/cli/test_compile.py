from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.plugins import KNOWN_TARGETS
from weft_runtime.executable import Executable

Weft = Callable[..., Any]


def test_an_archive_is_written(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    result = weft("compile", recipe, "-o", tmp_path / "out.weft", "--target", "llvm -threads=1")
    assert result.code == 0, result.err
    assert f"run it with: weft run {tmp_path / 'out.weft'}" in result.out
    manifest = Executable.inspect(tmp_path / "out.weft")
    assert manifest.threads == 1
    assert [str(i) for i in manifest.inputs] == ["x: float32[batch, 64]"]


def test_sizes_can_be_fixed(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    assert weft("compile", recipe, "-o", tmp_path / "out.weft", "--input-shape", "x=2,64").code == 0
    assert [str(i) for i in Executable.inspect(tmp_path / "out.weft").inputs] == ["x: float32[2, 64]"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-t", "lvm"], "TargetError: unknown target 'lvm'\n  lvm\n  hint: did you mean 'llvm'?\n"),
        (
            ["-t", "llvm -mcp=x"],
            "TargetError: target 'llvm' has no option '-mcp'\n  llvm -mcp=x\n  hint: did you mean '-mcpu'?\n",
        ),
        (
            ["-t", "abacus"],
            (
                "TargetError: the plugin of target 'abacus' is not in use\n  abacus\n  hint: weft-abacus is not part of"
                " this installation\n"
            ),
        ),
        (["--input-shape", "y=2,64"], "InputError: input_shapes names 'y', which is no input\n  hint: inputs: x\n"),
    ],
)
def test_wrong_inputs(
    weft: Weft, recipe: Path, tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN_TARGETS, "abacus", "weft-abacus")
    result = weft("compile", recipe, "-o", tmp_path / "out.weft", *words)
    assert (result.code, result.err) == (1, message)
    assert not (tmp_path / "out.weft").exists()


def test_an_archive_is_not_compiled_again(weft: Weft, archive: Path) -> None:
    result = weft("compile", archive, "-o", archive.with_name("other.weft"))
    assert (
        result.err == f"InputError: {archive} is compiled already\n  hint: give the model that it was compiled from\n"
    )


def test_a_place_that_cannot_be_written(weft: Weft, recipe: Path) -> None:
    result = weft("compile", recipe, "-o", recipe / "out.weft")
    assert result.code == 1
    assert (
        result.err
        == f"InputError: cannot write '{recipe / 'out.weft'}'\n  why: '{recipe}' is no folder\n  hint: give another"
        " --output\n"
    )


def test_the_output_is_asked_for(weft: Weft, recipe: Path) -> None:
    result = weft("compile", recipe)
    assert result.code == 2
    assert "Missing option" in result.err
