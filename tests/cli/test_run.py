from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.graph.evaluate import evaluate
from weft_testing.models import mlp

Weft = Callable[..., Any]


def test_random_inputs_are_made_and_told(
    weft: Weft, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    result = weft("run", recipe, "--seed", 3)
    assert result.code == 0, result.err
    assert "mlp: compiled in" in result.out
    assert "random, seed 3, batch = 1" in result.out
    assert "float32[1, 32]" in result.out
    assert "mlp: taken from the cache in" in weft("run", recipe).out


def test_inputs_from_files_and_outputs_to_files(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    result = weft("run", recipe, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out" / "deep")
    assert result.code == 0, result.err
    (expected,) = evaluate(mlp(), {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "out" / "deep" / "y.npy"), expected, rtol=1e-4, atol=1e-5)


def test_an_archive_runs_and_says_that_it_was_loaded(weft: Weft, archive: Path) -> None:
    result = weft("run", archive, "--input-shape", "x=3,64")
    assert result.code == 0, result.err
    assert "mlp: loaded in" in result.out
    assert "float32[3, 32]" in result.out


def test_seeds_give_the_same_inputs_again(weft: Weft, archive: Path, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        weft("run", archive, "--seed", seed, "-d", tmp_path / folder)
    a, b, c = (np.load(tmp_path / folder / "y.npy") for folder in "abc")
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def error(weft: Weft, *words: object) -> str:
    result = weft(*words)
    assert result.code == 1
    assert "Traceback" not in result.err
    return str(result.err)


def test_no_file(weft: Weft) -> None:
    assert (
        error(weft, "run", "nowhere.onnx")
        == "FrontendError: no file 'nowhere.onnx'\n  hint: give the path of a model file\n"
    )


def test_a_missing_archive(weft: Weft) -> None:
    assert error(weft, "run", "nowhere.weft").startswith("FrontendError: no file 'nowhere.weft'\n  hint: ")


def test_a_broken_archive(weft: Weft, archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:500])
    assert "is truncated or corrupt" in error(weft, "run", archive)


def test_a_target_for_an_archive(weft: Weft, archive: Path) -> None:
    assert (
        error(weft, "run", archive, "--target", "llvm")
        == f"InputError: {archive} is compiled already, --target does not apply\n  hint: give the model that it was"
        " compiled from\n"
    )


def test_an_input_that_does_not_exist(weft: Weft, archive: Path) -> None:
    text = error(weft, "run", archive, "--input", "X1=x.npy")
    assert text == "InputError: --input names 'X1', which is no input\n  x: float32[batch, 64]\n"


def test_an_input_that_is_no_pair(weft: Weft, archive: Path) -> None:
    assert (
        error(weft, "run", archive, "--input", "x.npy")
        == "InputError: --input takes NAME=VALUE, got 'x.npy'\n  hint: for example --input x=x.npy\n"
    )


def test_an_input_given_twice(weft: Weft, archive: Path) -> None:
    assert error(weft, "run", archive, "--input", "x=a", "--input", "x=b") == "InputError: --input names 'x' twice\n"


def test_a_file_that_is_no_array(weft: Weft, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("no array")
    text = error(weft, "run", archive, "--input", f"x={tmp_path / 'x.npy'}")
    assert text.startswith(f"InputError: cannot read input 'x' from '{tmp_path / 'x.npy'}'\n  why: ")
    assert text.endswith("  hint: write it with numpy.save\n")


def test_a_file_of_several_arrays(weft: Weft, archive: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(1), b=np.ones(1))
    assert "holds several arrays, input 'x' is one" in error(weft, "run", archive, "--input", f"x={tmp_path / 'x.npz'}")


def test_a_file_of_another_rank(weft: Weft, archive: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(64, np.float32))
    text = error(weft, "run", archive, "--input", f"x={tmp_path / 'x.npy'}")
    assert text == "InputError: input 'x' has 2 dimensions, 1 are given\n  x: float32[batch, 64]\n"


def test_a_file_of_another_dtype(weft: Weft, archive: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 64)))
    assert error(weft, "run", archive, "--input", f"x={tmp_path / 'x.npy'}").startswith(
        "InputError: input 'x' has dtype float64, expected float32\n"
    )


def test_shapes_that_do_not_parse_or_fit(weft: Weft, archive: Path) -> None:
    assert (
        error(weft, "run", archive, "--input-shape", "x=a,b")
        == "InputError: --input-shape gives 'x' the sizes 'a,b', which are no list of numbers\n  hint: for example"
        " --input-shape x=1,3,224,224\n"
    )
    assert (
        error(weft, "run", archive, "--input-shape", "x=3,65")
        == "InputError: --input-shape gives 'x' a size 65 where it has 64\n  x: float32[batch, 64]\n"
    )


def test_outputs_that_cannot_be_written(weft: Weft, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = (
        f"InputError: cannot write '{tmp_path / 'file'}'\n  why: '{tmp_path / 'file'}' is no folder\n  hint: give"
        " another --output-dir\n"
    )
    result = weft("run", archive, "-d", tmp_path / "file")
    assert (result.code, result.out, result.err) == (1, "", wanted), "said before the model runs"


def test_an_unknown_frontend(weft: Weft, recipe: Path) -> None:
    assert error(weft, "run", recipe, "--frontend", "recip").startswith(
        "FrontendError: no frontend 'recip'\n  hint: did you mean 'recipe'?"
    )
    assert error(weft, "run", recipe, "--frontend", "qqqq").startswith(
        "FrontendError: no frontend 'qqqq'\n  hint: installed: "
    )


@pytest.mark.needs("weft_darknet")
def test_options_of_a_frontend(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "n.cfg").write_text("[net]\nchannels=1\nheight=4\nwidth=4\n[maxpool]\nsize=2\nstride=2\n")
    (tmp_path / "w").write_bytes(struct.pack("<4i", 0, 1, 0, 0))  # version 0.1, no picture seen
    words = ("run", tmp_path / "n.cfg", "--target", "llvm -threads=1", "--frontend")
    assert "float32[1, 1, 4, 3]" in weft(*words, f"darknet -weights={tmp_path / 'w'} -width=6 -height=8").out
    assert "float32[1, 1, 2, 3]" in weft(*words, f"-weights={tmp_path / 'w'} -width=6").out
    said = (
        "FrontendError: frontend 'darknet' has no option '-widht'\n  darknet -widht=6\n  hint: did you mean '-width'?\n"
    )
    assert error(weft, *words, "darknet -widht=6") == said
    assert "darknet (.cfg) -weights -width -height" in " ".join(weft("plugins").out.split())
