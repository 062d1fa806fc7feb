"""The example of gradients by JAX through an executable."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs("jaxlib")


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "jax-gradient" / "weft_in_jax.py"
    spec = importlib.util.spec_from_file_location("weft_in_jax", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["weft_in_jax"] = module
    spec.loader.exec_module(module)
    return module


def test_gradients_are_those_of_jax(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    words = capsys.readouterr().out.split()
    assert float(words[1]) > 0.1 and float(words[-1]) < 1e-5


def test_integers_have_no_gradient(example: Any) -> None:
    """Inputs of integers, several outputs, and one of integers, under jit and without."""
    import jax
    import jax.numpy as jnp

    def model(table: Any, rows: Any) -> Any:
        picked = jnp.tanh(table[rows])
        return picked.sum(1), jnp.argmax(picked, 1), picked * 2

    rng = np.random.default_rng(1)
    table, rows = jnp.asarray(rng.normal(size=(7, 5)), jnp.float32), jnp.asarray([1, 3, 3, 6], jnp.int32)
    by_weft = example.differentiable(jax.jit(model).lower(table, rows))

    def loss(function: Any, table: Any) -> Any:
        sums, best, twice = function(table, rows)
        return (sums**2).sum() + (twice * (best[:, None] + 1)).sum()

    wanted = jax.grad(lambda t: loss(model, t))(table)
    for wrapped in (lambda f: f, jax.jit):
        found = wrapped(jax.grad(lambda t: loss(by_weft, t)))(table)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
