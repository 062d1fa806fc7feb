"""Saved models run with the runtime and numpy alone, and compute what they computed where they were compiled.

Where SAVED_MODELS names a folder that `tests.runtime.saved` has filled, its models are read: an environment without a
compiler has no others. Elsewhere small ones are made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.saved import NAMES, save_models

import weft_runtime
from weft_runtime.errors import InputError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SAVED_MODELS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("saved")
    save_models(folder, size=32, width=8)
    return folder


def arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as found:
        return dict(found)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_compiler(saved: Path, name: str) -> None:
    executable = weft_runtime.load(saved / f"{name}.weft")
    inputs, wanted = arrays(saved / f"{name}.inputs.npz"), arrays(saved / f"{name}.results.npz")
    for _ in range(2):
        found = executable.run(inputs)
        assert set(found) == set(wanted)
        for key, value in wanted.items():
            np.testing.assert_array_equal(found[key], value)


def test_symbolic_sizes(saved: Path) -> None:
    executable = weft_runtime.load(saved / "mlp.weft")
    x = arrays(saved / "mlp.inputs.npz")["x"]
    wanted = arrays(saved / "mlp.results.npz")["y"]
    found = executable.run({"x": np.concatenate([x, x])})["y"]
    assert found.shape == (6, 32)
    np.testing.assert_allclose(found, np.concatenate([wanted, wanted]), rtol=1e-5, atol=1e-6)


def test_wrong_inputs_are_named(saved: Path) -> None:
    executable = weft_runtime.load(saved / "mlp.weft")
    with pytest.raises(InputError, match=r"input 'x' .*float64"):
        executable.run({"x": np.zeros((3, 64))})


LOADED = """
import sys, numpy as np, weft_runtime
name, given = sys.argv[1:]
weft_runtime.load(name).run(dict(np.load(given)))
third = {m.partition(".")[0] for m in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}
print(sorted(n for n in third if not n.startswith(("_", "sitecustom"))))
"""


def test_nothing_but_numpy_is_loaded(saved: Path) -> None:
    command = [sys.executable, "-c", LOADED, str(saved / "resnet18.weft"), str(saved / "resnet18.inputs.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['numpy', 'weft_runtime']\n"
