"""XLA as a peer: it runs files, also of open sizes, and says values between operations."""

# ruff: noqa: E402 - without JAX the module is skipped

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("jax")
import jax
import jax.numpy as jnp
from jax import export

import weft
from weft.graph.evaluate import evaluate
from weft_stablehlo.engines import ENGINES

pytestmark = pytest.mark.needs("jax")
(XLA,) = ENGINES
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def net(x: Any) -> Any:
    return jnp.fft.fft(jnp.tanh(x) * 2), x.sum()


def saved(folder: Path, function: Any, *shapes: str) -> Path:
    path = folder / "m.mlirbc"
    given = [jax.ShapeDtypeStruct(export.symbolic_shape(s), jnp.float32) for s in shapes]
    path.write_bytes(export.export(jax.jit(function))(*given).mlir_module_serialized)
    return path


def test_xla_says_what_the_graph_gives(tmp_path: Path) -> None:
    assert XLA.available() is not None and XLA.frontends == ("stablehlo",)
    path = saved(tmp_path, net, "2, 3")
    graph = weft.load(path)
    (name,) = (v.name for v in graph.inputs)
    for found, wanted in zip(XLA.open(str(path), 1)({name: X}), evaluate(graph, [X]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_xla_runs_every_size_of_a_symbol(tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: x * x.shape[0], "b, 3")
    (name,) = (v.name for v in weft.load(path).inputs)
    run = XLA.open(str(path), 2)
    for n in (2, 5):
        (found,) = run({name: np.ones((n, 3), np.float32)})
        np.testing.assert_array_equal(found, np.full((n, 3), n))


def test_xla_says_values_between_operations(tmp_path: Path) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(jax.jit(lambda x: jnp.exp(jnp.tanh(x)) + 1).lower(X).as_text())
    assert XLA.values is not None
    found = XLA.values(str(path))(["tanh_0", "exponential_0", "other"], {"arg0": X})
    assert set(found) == {"tanh_0", "exponential_0"}
    np.testing.assert_allclose(found["tanh_0"], np.tanh(X), rtol=1e-6)
