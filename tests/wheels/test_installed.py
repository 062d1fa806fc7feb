"""What a stranger does with the wheels, in an environment that has no source tree: every command works, an accelerator
and a library take part."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.wheels.conftest import Run
from tests.wheels.distributions import ROOT, Wheel

pytestmark = pytest.mark.full


def resnet18(path: Path, size: int) -> None:
    """A ResNet-18 with random weights for pictures of size × size, as exporters write it."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(shape: tuple[int, ...], terms: int) -> str:
        weights.append(
            numpy_helper.from_array(
                (rng.standard_normal(shape) / np.sqrt(terms)).astype(np.float32), f"w{len(weights)}"
            )
        )
        return str(weights[-1].name)

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], f"n{len(nodes)}", **attributes))
        return str(nodes[-1].output[0])

    def conv(x: str, before: int, after: int, kernel: int, stride: int = 1) -> str:
        w, b = weight((after, before, kernel, kernel), before * kernel**2), weight((after,), 1)
        return add("Conv", x, w, b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)

    x = add("Relu", conv("x", 3, 64, 7, 2))
    x = add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    before = 64
    for after in (64, 128, 256, 512):
        for stride in (1 if after == 64 else 2, 1):
            y = conv(add("Relu", conv(x, before, after, 3, stride)), after, after, 3)
            x = add("Relu", add("Add", y, x if before == after else conv(x, before, after, 1, stride)))
            before = after
    x = add("Flatten", add("GlobalAveragePool", x))
    add("Gemm", x, weight((512, 10), 512), weight((10,), 1))
    nodes[-1].output[0] = "y"
    x_info, y_info = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, size, size]), ("y", [1, 10]))
    )
    graph = helper.make_graph(nodes, "resnet18", [x_info], [y_info], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def test_nothing_comes_from_the_source_tree(installed: Run, wheels: dict[str, Wheel]) -> None:
    modules = [p.parent.name for w in wheels.values() for p in w.folder.glob("*/__init__.py")]
    code = f"import importlib; print([importlib.import_module(m).__file__ for m in {modules}])"
    files = ast.literal_eval(installed("python", "-c", code))
    assert len(files) == len(wheels) - 1, "the meta package has no module"
    for file in files:
        assert ROOT not in Path(file).parents and "site-packages" in file


def test_every_plugin_is_in_use(installed: Run, wheels: dict[str, Wheel]) -> None:
    out = installed("weft", "plugins")
    assert "out of use" not in out
    plugins = [
        name for name, w in wheels.items() if "[project.entry-points" in (w.folder / "pyproject.toml").read_text()
    ]
    assert len(plugins) > 5  # weft-gpu is a library of three of them, no plugin
    for name in plugins:
        assert f"{name} " in out


def test_a_resnet18_on_the_accelerator_agrees_with_the_host(installed: Run, tmp_path: Path) -> None:
    resnet18(tmp_path / "resnet18.onnx", 64)
    shown = installed("weft", "inspect", "resnet18.onnx", "--target", "npu, llvm", cwd=tmp_path)
    (share,) = [line.split()[-1] for line in shown.splitlines() if line.split()[:1] == ["npu"]][:1]
    assert float(share.removesuffix("%")) >= 95
    results = {}
    for name, target in (("host", "llvm"), ("both", "npu, llvm"), ("library", "openblas -always, llvm")):
        installed("weft", "run", "resnet18.onnx", "--target", target, "-d", name, cwd=tmp_path)
        results[name] = np.load(tmp_path / name / "y.npy")
    scale = np.abs(results["host"]).max()
    for name in ("both", "library"):
        # Twenty layers, each rounded in another order: 1e-5 of the largest score is a hundred units in the last place.
        np.testing.assert_allclose(results[name], results["host"], rtol=0, atol=1e-5 * scale)


def test_an_archive_runs_where_it_is_brought(installed: Run, tmp_path: Path) -> None:
    resnet18(tmp_path / "resnet18.onnx", 32)
    installed("weft", "compile", "resnet18.onnx", "-t", "llvm", "-o", "r.weft", cwd=tmp_path)
    assert "y" in installed("weft", "run", "r.weft", cwd=tmp_path)


def test_the_demonstration(installed: Run) -> None:
    assert "success: the compiled model computes what the operators mean" in installed("weft", "demo")


@pytest.mark.parametrize("kind", ["target", "frontend", "operator"])
def test_a_new_plugin_installs_and_passes_its_tests(installed: Run, tmp_path: Path, kind: str) -> None:
    name = f"weft-mine-{kind}"
    installed("weft", "plugin", "new", name, "--kind", kind, "--into", ".", cwd=tmp_path)
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    installed("python", "-m", "pip", "install", *offline, f"./{name}", cwd=tmp_path)
    try:
        assert " passed" in installed("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / name)
        if kind == "target":
            assert "passes what was asked" in installed("weft", "conform", "--target", "mine-target", "--level", "1")
    finally:
        installed("python", "-m", "pip", "uninstall", "--yes", "--quiet", name)


def test_this_python_is_one_that_the_wheels_name(wheels: dict[str, Wheel]) -> None:
    told = wheels["weft"].metadata.get_all("Classifier") or ()
    assert f"Programming Language :: Python :: 3.{sys.version_info.minor}" in told
