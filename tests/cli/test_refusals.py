"""What every command says to wrong input: what, where, why and a hint, in a few lines, before any work; and nothing is
left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from weft.cli.writing import write
from weft.errors import InputError, PluginError
from weft_testing.cli.plugin_new import write as write_files

Weft = Callable[..., Any]

READING = [
    ("run",),
    ("compile", "-o", "out.weft"),
    ("bench",),
    ("verify",),
    ("inspect",),
    ("inspect", "--html", "page.html"),
]
WRITING = [
    ("compile", "--output", ()), ("bench", "--json", ()), ("bench", "--html", ()), ("bench", "--trace", ()), ("verify",
        "--json", ()),
    ("inspect", "--html", ()), ("conform", "--json", ("-t", "llvm")), ("conform", "--html", ("-t", "llvm")),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a model, and what is none."""
    tensor = helper.make_tensor_value_info
    nodes = [helper.make_node("Frobnicate", ["x"], ["h"], "first"), helper.make_node("Relu", ["h"], ["y"], "second")]
    graph = helper.make_graph(
        nodes, "g", [tensor("x", TensorProto.FLOAT, ["n", 8])], [tensor("y", TensorProto.FLOAT, ["n", 8])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    (tmp_path / "unknown.onnx").write_bytes(model)
    (tmp_path / "cut.onnx").write_bytes(model[: len(model) // 2])
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("this is no model\n")
    (tmp_path / "text.txt").write_text("this is no model\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", READING, ids=" ".join)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no.onnx", "FrontendError: no file 'no.onnx'\n  hint: give the path of a model file\n"),
        ("no.weft", "FrontendError: no file 'no.weft'\n  hint: give the path of a model file\n"),
        ("sub", "FrontendError: no frontend takes the folder 'sub'\n  hint: installed frontends: "),
        ("text.txt", "FrontendError: no frontend takes 'text.txt'\n  hint: installed frontends: "),
        ("text.onnx", "FrontendError: 'text.onnx' is not an ONNX model\n  why: it does not parse as a ModelProto: "),
        ("cut.onnx", "FrontendError: 'cut.onnx' is not an ONNX model\n  why: it does not parse as a ModelProto: "),
        (
            "empty.onnx",
            (
                "FrontendError: 'empty.onnx' is not an ONNX model\n  why: it is empty\n  hint: was it cut short? save"
                " or copy it again\n"
            ),
        ),
        (
            "unknown.onnx",
            (
                "UnsupportedError: the model uses one thing that the ONNX frontend does not support\n"
                "  operator Frobnicate of operator set 20, which ONNX does not have: 'first'\n"
                "  hint: export it without; a function of the model (FunctionProto) can define an operator by others, "
                "a plugin can convert it (hook `converters`)\n"
            ),
        ),
    ],
)
def test_models_that_are_none(weft: Weft, folder: Path, command: tuple[str, ...], model: str, message: str) -> None:
    before = sorted(os.listdir(folder))
    result = weft(*command, model)
    assert result.code == 1 and result.err.startswith(message) and "\n  hint: " in result.err
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("command", [*READING, ("run", "--strict")], ids=" ".join)
@pytest.mark.parametrize("target", ["", " ", ","])
def test_a_target_that_names_none(
    weft: Weft, recipe: Path, folder: Path, command: tuple[str, ...], target: str
) -> None:
    result = weft(*command, recipe, "--target", target)
    assert result.code == 1 and result.err.startswith(
        ("TargetError: --target names no target\n  hint: ", "TargetError: no target given\n")
    )


@pytest.mark.parametrize(("command", "option", "others"), WRITING, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize(
    ("file", "why"),
    [("no/out", "there is no folder 'no'"), ("sub", "'sub' is a folder"), ("text.txt/out", "'text.txt' is no folder")],
)
def test_places_where_nothing_can_be_written(
    weft: Weft, recipe: Path, folder: Path, command: str, option: str, others: tuple[str, ...], file: str, why: str
) -> None:
    """Said before the work is done."""
    result = weft(command, *(others or (recipe,)), option, file)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"InputError: cannot write '{file}'\n  why: {why}\n  hint: give another {option}\n"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("-t", "llvm"), "--target"),
        (("--input-shape", "x=2,64"), "--input-shape"),
        (("--frontend", "onnx"), "--frontend"),
        (("-k", "relu"), "--kernel"),
    ],
)
def test_options_that_do_not_apply_to_an_archive(
    weft: Weft, archive: Path, words: tuple[str, ...], option: str
) -> None:
    result = weft("inspect", archive, *words)
    assert result.code == 1 and result.out == ""
    assert (
        result.err
        == f"InputError: {archive} is compiled already, {option} does not apply\n  hint: give the model that it was"
        " compiled from\n"
    )


def test_arrays_that_are_none(weft: Weft, recipe: Path, folder: Path) -> None:
    np.savez(folder / "two.npz", a=np.zeros(2), b=np.zeros(2))
    for file, why in (
        ("text.txt", "it is no .npy file"),
        ("empty.onnx", "it is no .npy file"),
        ("no.npy", "No such file or directory"),
    ):
        result = weft("run", recipe, "-i", f"x={file}")
        assert (result.code, result.err) == (
            1,
            f"InputError: cannot read input 'x' from '{file}'\n  why: {why}\n  hint: write it with numpy.save\n",
        )
    assert weft("run", recipe, "-i", "x=two.npz").err.startswith(
        "InputError: 'two.npz' holds several arrays, input 'x' is one\n"
    )


def test_stages_that_cannot_be_dumped(weft: Weft, recipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", "fuse")
    monkeypatch.setenv("WEFT_DUMP_DIR", "text.txt/stages")
    wanted = (
        "SettingError: WEFT_DUMP_DIR is 'text.txt/stages', where stages cannot be written\n  why: 'text.txt' is no"
        " folder\n  hint: name another folder\n"
    )
    result = weft("compile", recipe, "-o", "out.weft")
    assert (result.code, result.err) == (1, wanted) and not Path("out.weft").exists()


def test_texts_replace_older_ones_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("text.txt", "new")
    assert Path("text.txt").read_text() == "new"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    before = sorted(os.listdir(folder))
    with pytest.raises(
        InputError, match=r"^cannot write 'text.txt'\n  why: No space left on device\n  hint: give another file$"
    ):
        write("text.txt", "newer")
    assert Path("text.txt").read_text() == "new" and sorted(os.listdir(folder)) == before


def test_half_a_plugin_is_not_left_behind(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"^'weft-a' cannot be written\n  why: "):
        write_files(Path("weft-a"), {"a": "text", "a/b": "text"})
    assert not Path("weft-a").exists()


def test_a_plugin_in_a_place_that_is_no_folder(weft: Weft, folder: Path) -> None:
    result = weft("plugin", "new", "abc", "--into", "text.txt")
    assert (result.code, result.err) == (
        1,
        (
            "PluginError: 'text.txt/weft-abc' cannot be written\n  why: 'text.txt' is no folder\n  hint: give another"
            " --into\n"
        ),
    )
