"""weft-runtime where nothing is installed but it and numpy, as on a device: it runs what was compiled elsewhere."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from tests.alone.environment import run_pip
from tests.wheels.conftest import link_here
from tests.wheels.distributions import Wheel

import weft
from weft.graph.nodes import Graph
from weft_testing.models import mlp, picture, resnet18

Alone = Callable[..., str]
MOST_BYTES = 200_000
MOST_SECONDS = 0.060


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Wheel], tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """`alone(code, *arguments)`: what Python prints in an environment of the wheel and of numpy."""
    home = tmp_path_factory.mktemp("device")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    link_here([Requirement("numpy")], site, set())
    run_pip(home, "--no-deps", "--no-index", str(wheels["weft-runtime"].file))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(code: str, *arguments: str) -> str:
        command = [home / "bin" / "python", "-c", code, *arguments]
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


RUN = """
import sys, numpy as np, weft_runtime
path, given, found = sys.argv[1:]
exe = weft_runtime.load(path)
np.savez(found, **{k: np.asarray(v) for k, v in exe.run(dict(np.load(given))).items()})
third = {m.partition(".")[0] for m in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}
print(sorted(n for n in third if not n.startswith("_") and not n.startswith("sitecustom")))
"""


def check(alone: Alone, graph: Graph, x: np.ndarray, folder: Path) -> None:  # type: ignore[type-arg]
    exe = weft.compile(graph, "llvm")
    exe.save(folder / "model.weft")
    given = {graph.inputs[0].name: x}
    np.savez(folder / "given.npz", **given)
    said = alone(RUN, *(str(folder / name) for name in ("model.weft", "given.npz", "found.npz")))
    assert said == "['numpy', 'weft_runtime']\n"
    found, wanted = np.load(folder / "found.npz"), exe.run(given)
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_saved_model_runs_with_numpy_and_nothing_else(alone: Alone, tmp_path: Path) -> None:
    check(alone, mlp(), np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32), tmp_path)


@pytest.mark.full
def test_a_saved_resnet18_runs_with_numpy_and_nothing_else(alone: Alone, tmp_path: Path) -> None:
    check(alone, resnet18(), picture(), tmp_path)


def test_the_wheel_is_small_and_asks_for_numpy_alone(wheels: dict[str, Wheel]) -> None:
    wheel = wheels["weft-runtime"]
    assert wheel.file.stat().st_size < MOST_BYTES
    asked = [Requirement(r) for r in wheel.metadata.get_all("Requires-Dist") or ()]
    assert [r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})] == ["numpy"]


def test_importing_it_takes_no_time(alone: Alone) -> None:
    code = "import time; s = time.process_time(); import weft_runtime; print(time.process_time() - s)"
    assert min(float(alone(code)) for _ in range(5)) < MOST_SECONDS


def test_an_element_type_that_numpy_lacks_says_what_to_install(alone: Alone) -> None:
    said = alone("from weft_runtime.dtypes import bfloat16\ntry: bfloat16.numpy\nexcept Exception as e: print(e)")
    why = "  why: No module named 'ml_dtypes'\n  hint: pip install ml_dtypes\n"
    assert said == f"numpy has no element type 'bfloat16'\n{why}"
