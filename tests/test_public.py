"""Wrong inputs at the public face: what weft.compile, weft.load and a run say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.graph.evaluate import evaluate
from weft_runtime.executable import Executable
from weft_testing.models import mlp, picture


@pytest.fixture(scope="module")
def exe() -> Executable:
    return weft.compile(mlp())


def message(kind: str, *arguments: Any, **options: Any) -> str:
    with pytest.raises(weft.WeftError) as caught:
        weft.compile(*arguments, **options)
    assert type(caught.value).__name__ == kind
    return str(caught.value)


# -- targets


def test_an_unknown_target_names_the_nearest() -> None:
    assert message("TargetError", mlp(), "lvm") == "unknown target 'lvm'\n  lvm\n  hint: did you mean 'llvm'?"


def test_a_target_like_none_lists_what_is_there() -> None:
    assert message("TargetError", mlp(), "abacus").startswith("unknown target 'abacus'\n  abacus\n  hint: available: ")


@pytest.mark.parametrize(
    ("target", "package"),
    [("cuda", "weft-cuda"), ("opencl", "weft-opencl"), ("metal -x=1", "weft-metal"), ("webgpu", "weft-webgpu")],
)
def test_a_target_whose_plugin_is_not_installed_names_the_package(
    target: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.plugins import PluginHost

    # Where the package is installed after all, this process acts as if it were not.
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: PluginHost([]))
    name = target.split()[0]
    hint = f'{package} is not part of this installation, in Weft\'s repository: pip install ".[gpu]"'
    assert (
        message("TargetError", mlp(), target)
        == f"the plugin of target '{name}' is not in use\n  {target}\n  hint: {hint}"
    )


@pytest.mark.parametrize(("word", "names"), [("cpu", "'llvm'"), ("X86_64", "'llvm'"), ("host", "'llvm'"),
("native -threads=2", "'llvm'"), ("gcc", "'c'"),
                                             ("nvidia", "'cuda'"), ("gpu",
                                                 "'cuda' or 'metal' or 'opencl' or 'webgpu'")])  # fmt: skip
def test_words_that_people_use_for_a_target_are_answered_with_its_name(word: str, names: str) -> None:
    assert (
        message("TargetError", mlp(), word)
        == f"unknown target '{word.split()[0]}'\n  {word}\n  hint: did you mean {names}?"
    )


def test_a_target_that_is_no_text() -> None:
    assert (
        message("TargetError", mlp(), None)
        == 'a target is a text, got NoneType\n  hint: for example "llvm", which is this machine'
    )


def test_an_unknown_option_names_the_nearest() -> None:
    text = message("TargetError", mlp(), "llvm -thread=2")
    assert text == "target 'llvm' has no option '-thread'\n  llvm -thread=2\n  hint: did you mean '-threads'?"


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("llvm -threads=two", "option '-threads' takes an integer, got 'two'"),
        ("llvm -threads", "option '-threads' needs a value"),
        ("llvm -threads=1 -threads=2", "option '-threads' is given twice"),
        ("llvm threads=2", "expected an option, got 'threads=2'"),
        ("llvm -threads=0", "option '-threads' is at least 1, got 0"),
        ("llvm -threads=5000", "option '-threads' is at most 4096, got 5000"),
        ("llvm -mcpu=znver44", "'znver44' is no processor of x86_64"),
        ("llvm -mattr=+avx3", "'avx3' is no feature of x86_64"),
        ("llvm -mtriple=vax-dec-vms", "'vax-dec-vms' is no machine that LLVM makes code for"),
        ("llvm -opt=9", "option '-opt' is 0, 1, 2 or 3, got 9"),
        ("", "no target given"),
        ("llvm -mcpu='", "the target string does not parse"),
    ],
)
def test_options_that_do_not_fit(target: str, what: str) -> None:
    if "x86_64" in what:
        target += " -mtriple=x86_64-unknown-linux-gnu"
    assert message("TargetError", mlp(), target).splitlines()[0] == what


# -- models


def test_no_file() -> None:
    assert message("FrontendError", "nowhere.onnx") == "no file 'nowhere.onnx'\n  hint: give the path of a model file"


def test_a_format_that_nothing_reads_says_what_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.plugins import PluginHost

    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: PluginHost([]))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    with pytest.raises(weft.WeftError) as caught:
        weft.load(path)
    assert (
        str(caught.value)
        == f"no frontend takes '{path}'\n  hint: it is a file of llama.cpp: export the model to ONNX; installed"
        " frontends: none"
    )


def test_a_format_whose_frontend_is_not_installed_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.plugins import PluginHost

    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: PluginHost([]))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")
    with pytest.raises(weft.WeftError) as caught:
        weft.load(path)
    hint = "weft-onnx is not part of this installation, in Weft's repository: pip install ."
    assert str(caught.value) == f"no frontend takes '{path}'\n  hint: {hint}"


def test_hints_name_packages_that_exist() -> None:
    """Of this repository, with the extra that installs them; nothing else of this name is on any index."""
    import tomllib

    from weft.plugins import INSTALLS, KNOWN_FRONTENDS, KNOWN_TARGETS

    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    members = {
        "pip install .": project["dependencies"],
        'pip install ".[gpu]"': project["optional-dependencies"]["gpu"],
    }
    where = {d.split(" @ ")[0]: command for command, listed in members.items() for d in listed}
    assert {d: where[d] for d in INSTALLS} == INSTALLS
    assert set(KNOWN_TARGETS.values()) | set(KNOWN_FRONTENDS.values()) <= set(INSTALLS)


def test_a_file_of_no_known_format(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("hello")
    assert message("FrontendError", path).startswith(f"no frontend takes '{path}'\n  hint: installed frontends: ")


def test_bytes_and_objects_that_no_frontend_takes() -> None:
    assert message("FrontendError", b"hello").startswith("no frontend takes these bytes\n")
    assert message("FrontendError", {"a": 1}).startswith("no frontend takes an object of type builtins.dict\n")


def test_an_unknown_frontend() -> None:
    assert message("FrontendError", "model.onnx", frontend="onx") == "no frontend 'onx'\n  hint: did you mean 'onnx'?"
    assert message("FrontendError", "model.onnx", frontend="qqqq").startswith("no frontend 'qqqq'\n  hint: installed: ")


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({"X": (1, 64)}, "input_shapes names 'X', which is no input"),
        ({"x": (1, 2, 3)}, "input_shapes gives 'x' 3 dimensions, the model has 2"),
        ({"x": (-1, 64)}, "input_shapes gives 'x' (-1, 64), which is no list of sizes"),
        ({"x": ("n", 64)}, "input_shapes gives 'x' ('n', 64), which is no list of sizes"),
        ({"x": 64}, "input_shapes gives 'x' 64, which is no list of sizes"),
        ([(1, 64)], "input_shapes takes sizes by input name, got list"),
        ({"x": (1, 65)}, "input_shapes gives dimension 1 of 'x' as 65, expected 64"),
    ],
)
def test_input_shapes_that_do_not_fit(shapes: Any, what: str) -> None:
    assert message("InputError", mlp(), input_shapes=shapes).splitlines()[0] == what


def test_a_pass_after_one_that_does_not_exist() -> None:
    from weft.passes.pipeline import GraphPass

    text = message("GraphError", mlp(), passes=[GraphPass("mine", lambda g: g, after="fold_constant")])
    assert (
        text == "the graph pass 'mine' runs after 'fold_constant', which does not exist\n  hint: did you mean"
        " 'fold_constants'?"
    )


def test_passes_that_are_none_or_leave_no_graph() -> None:
    assert message("GraphError", mlp(), passes=[3]).startswith(
        "`passes` holds 3, which is no graph pass\n  hint: give functions from Graph to Graph"
    )

    def forgetful(graph: Any) -> Any:
        graph.nodes.reverse()

    assert message("GraphError", mlp(), passes=[forgetful]).startswith(
        "the pass 'forgetful' returned None, not a Graph\n  hint: "
    )

    def breaking(graph: Any) -> Any:
        graph.nodes.reverse()
        return graph

    assert message("GraphError", mlp(), passes=[breaking]).startswith("after the pass 'breaking': ")


def test_a_plain_function_is_a_pass() -> None:
    seen: list[str] = []

    def look(graph: Any) -> Any:
        seen.append(graph.name)
        return graph

    weft.compile(mlp(), passes=[look])
    assert seen == ["mlp"]


# -- runs


def refused(exe: Executable, inputs: dict[str, Any], **options: Any) -> str:
    with pytest.raises(weft.WeftError) as caught:
        exe.run(inputs, **options)
    assert type(caught.value).__name__ == "InputError"
    return str(caught.value)


X = np.ones((2, 64), np.float32)


def test_inputs_that_are_missing_or_unknown(exe: Executable) -> None:
    assert refused(exe, {}) == "inputs of 'mlp' do not match: missing 'x'\n  x: float32[batch, 64]"
    assert refused(exe, {"x": X, "y": X}) == "inputs of 'mlp' do not match: unknown 'y'\n  x: float32[batch, 64]"
    assert refused(exe, {"X1": X}).startswith("inputs of 'mlp' do not match: missing 'x'; unknown 'X1'\n")


def test_an_input_of_another_dtype_is_never_converted(exe: Executable) -> None:
    assert (
        refused(exe, {"x": X.astype(np.float64)})
        == "input 'x' has dtype float64, expected float32\n  x: float32[batch, 64]\n"
        "  hint: convert it yourself, for example with .astype('float32'): nothing is converted silently"
    )


def test_an_input_of_another_rank(exe: Executable) -> None:
    assert (
        refused(exe, {"x": X[0]})
        == "input 'x' has 1 dimensions, expected 2\n  x: float32[batch, 64]\n  why: its shape is [64]"
    )


def test_an_input_of_another_size(exe: Executable) -> None:
    assert (
        refused(exe, {"x": np.ones((2, 63), np.float32)})
        == "input 'x' has size 63 on axis 1, expected 64\n  x: float32[batch, 64]\n  why: its shape is [2, 63]"
    )


def test_something_that_is_no_array(exe: Executable) -> None:
    assert "x" in refused(exe, {"x": object()})


def test_storage_that_does_not_fit(exe: Executable) -> None:
    assert refused(exe, {"x": X}, out={"z": X}).startswith("'mlp' has no output 'z'\n")
    assert refused(exe, {"x": X}, out={"y": np.zeros((2, 32))}).startswith("storage for output 'y' does not fit\n")
    assert (
        refused(exe, {"x": X}, out={"y": np.zeros((3, 32), np.float32)})
        == "storage for output 'y' has size 3 on axis 0, the result has 2\n  y: float32[batch, 32]"
    )


def test_the_wrong_number_of_arguments(exe: Executable) -> None:
    with pytest.raises(weft.WeftError, match="'mlp' takes 1 inputs, got 2"):
        exe(X, X)


def test_after_an_error_the_executable_still_runs(exe: Executable) -> None:
    refused(exe, {"x": np.ones((2, 63), np.float32)})
    (expected,) = evaluate(mlp(), {"x": X})
    np.testing.assert_allclose(exe(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [0, 1, 7, 33])
def test_any_size_runs(exe: Executable, batch: int) -> None:
    x = np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)
    (expected,) = evaluate(mlp(), {"x": x})
    np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_the_generated_picture_is_of_one_kind() -> None:
    image = picture(32)
    assert (image.shape, image.dtype) == ((1, 3, 32, 32), np.float32)
    assert abs(float(image.mean())) < 0.5 < float(image.std()) < 2
    np.testing.assert_array_equal(image, picture(32))
