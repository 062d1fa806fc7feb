"""No command writes over a file that it reads, by whatever name; neither does an executable over what it was compiled
from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft as library
from weft.errors import ExecutionError

Weft = Callable[..., Any]
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x float32[2, 3] → y float32[2, 4], weights in a file beside it."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]),
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    return path


def names(file: Path) -> list[Path]:
    """Other ways to say a file: a link of either kind, and a way round."""
    soft, hard = file.with_name("soft"), file.with_name("hard")
    soft.symlink_to(file)
    os.link(file, hard)
    return [file, soft, hard, file.parent / ".." / file.parent.name / file.name]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize("read", ["m.onnx", "w.bin"])
@pytest.mark.parametrize(
    "words",
    [
        ("compile", "-o"),
        ("bench", "--against=none", "--json"),
        ("bench", "--html"),
        ("bench", "--trace"),
        ("inspect", "--html"),
        ("verify", "--json"),
    ],
    ids=lambda words: " ".join(words),
)
def test_commands_do_not_write_over_their_model(weft: Weft, model: Path, words: tuple[str, ...], read: str) -> None:
    outputs = names(model.with_name(read))
    before = contents(model.parent)
    for output in outputs:
        result = weft(words[0], model, *words[1:], output)
        option = {"-o": "--output"}.get(words[-1], words[-1])
        assert result.code == 1
        assert (
            result.err
            == f"InputError: cannot write '{output}'\n  why: '{model.with_name(read)}' is read by this command, and"
            f" nothing is written over what is read\n  hint: give another {option}\n"
        )
    assert contents(model.parent) == before


def test_a_report_does_not_replace_an_archive(weft: Weft, archive: Path) -> None:
    before = archive.read_bytes()
    result = weft("bench", archive, "--json", archive)
    assert result.code == 1 and "nothing is written over what is read" in result.err
    assert archive.read_bytes() == before


def test_outputs_of_a_run_do_not_replace_its_inputs(weft: Weft, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.ones((2, 3), np.float32))
    before = contents(tmp_path)
    result = weft("run", model, "-i", f"x={tmp_path / 'y.npy'}", "-d", tmp_path)
    assert result.code == 1
    assert (
        f"InputError: cannot write '{tmp_path / 'y.npy'}'\n  why: '{tmp_path / 'y.npy'}' is read by this command"
        in result.err
    )
    assert contents(tmp_path) == before
    assert weft("run", model, "-i", f"x={tmp_path / 'y.npy'}", "-d", tmp_path / "out").code == 0
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), np.ones((2, 3)) @ WEIGHTS)


def test_a_report_does_not_replace_an_input_or_a_baseline(weft: Weft, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    (tmp_path / "old.json").write_text("{}")
    before = contents(tmp_path)
    for words in (["verify", model, "-i", f"x={tmp_path / 'x.npy'}", "--json", tmp_path / "x.npy"],
                  ["conform", "--target", "llvm", "--baseline", tmp_path / "old.json", "--json",
                      tmp_path / "old.json"]):  # fmt: skip
        result = weft(*words)
        assert result.code == 1 and "nothing is written over what is read" in result.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("words", [("bench", "m.onnx", "--against=none", "--json", "--html"), ("bench", "m.onnx",
"--html", "--trace"),
                                   ("conform", "--target=llvm", "--json", "--html")],
                                   ids=lambda w: " ".join(w))  # fmt: skip
def test_two_options_do_not_name_one_file(
    weft: Weft, model: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that is there, by whatever name, and not one that is to come."""
    monkeypatch.chdir(model.parent)
    (model.parent / "report").write_text("of last week")
    *rest, one, other = words
    links = names(model.parent / "report")
    before = contents(model.parent)
    for first, second in (
        *((links[0], link) for link in links),
        (links[1], links[2]),
        (Path("new"), model.parent / "new"),
    ):
        result = weft(*rest, one, first, other, second)
        assert (
            result.code == 1
            and result.err
            == f"InputError: cannot write '{second}'\n  why: {one} writes that file, too\n  hint: give another"
            f" {other}\n"
        )
    assert contents(model.parent) == before


def test_reports_nobody_wants_go_to_one_device(weft: Weft, model: Path) -> None:
    assert weft("bench", model, "--rounds", 1, "--json", "/dev/null", "--trace", "/dev/null").code == 0


@pytest.mark.parametrize("read", ["m.onnx", "w.bin"])
def test_an_executable_is_not_saved_over_what_it_was_compiled_from(
    model: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    made = [
        library.compile(model.name, "llvm"),  # compiled
        library.compile(model.name, "llvm"),  # from the cache
        library.compile(model.name, "llvm", cache=False),
        library.compile(library.load(model.name), "llvm"),
    ]
    outputs = names(model.with_name(read))
    before = contents(model.parent)
    monkeypatch.chdir("/")
    for executable in made:
        for output in outputs:
            with pytest.raises(ExecutionError) as error:
                executable.save(output)
            assert (
                str(error.value)
                == f"cannot write {output}\n  {model.with_name(read)}\n  why: 'm' was compiled from it\n  hint: give"
                " another name"
            )
    assert contents(model.parent) == before


def test_an_executable_is_saved_over_the_archive_that_it_came_from(model: Path) -> None:
    """It goes on with what it has mapped; whoever opens the archive next gets the new one."""
    path = model.with_suffix(".weft")
    library.compile(model, "llvm").save(path)
    executable = library.Executable.load(path)
    x = np.ones((2, 3), np.float32)
    executable.save(path)
    np.testing.assert_allclose(executable(x), x @ WEIGHTS)
    np.testing.assert_allclose(library.Executable.load(path)(x), x @ WEIGHTS)
