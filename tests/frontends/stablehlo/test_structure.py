"""What StableHLO spells out becomes one operator again, and gives what JAX gives: float32 within 1e-5."""

# ruff: noqa: E402 - without JAX the module is skipped

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("jax", "weft_llvm")
import jax
import jax.numpy as jnp

import weft
from weft.graph.evaluate import evaluate
from weft_ops.passes.cancel_transposes import cancel_transposes
from weft_ops.passes.fuse_attention import fuse_attention
from weft_ops.passes.simplify_algebra import simplify_algebra
from weft_testing.frontend import FrontendCase, check_frontend

pytestmark = pytest.mark.needs("jax")


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, S, B = floats(2, 5, 8), floats(8, seed=1), floats(8, seed=2)


def layer(x: Any, s: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * s + b


def fast_layer(x: Any, s: Any, b: Any) -> Any:
    """As Flax has it."""
    mean, mean2 = x.mean(-1), (x * x).mean(-1)
    var = jnp.maximum(0.0, mean2 - mean * mean)
    y = x - jnp.expand_dims(mean, -1)
    return y * (jax.lax.rsqrt(jnp.expand_dims(var, -1) + 1e-6) * s) + b


def rms(x: Any, s: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s


FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "softmax": (jax.nn.softmax, (X,), ["Softmax"]),
    "softmax_first": (lambda x: jax.nn.softmax(x, 0), (X,), ["Softmax"]),
    "log_softmax": (jax.nn.log_softmax, (X,), ["LogSoftmax"]),
    "gelu": (jax.nn.gelu, (X,), ["Gelu"]),
    "layer_norm": (layer, (X, S, B), ["LayerNorm"]),
    "fast_layer_norm": (fast_layer, (X, S, B), ["LayerNorm"]),
    "standardize": (jax.nn.standardize, (X,), ["LayerNorm"]),
    "rms_norm": (rms, (X, S), ["RMSNorm"]),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_spelled_out_is_one_operator(name: str) -> None:
    function, arguments, wanted = FOUND[name]
    lowered = jax.jit(function).lower(*arguments)
    graph = weft.load(lowered)
    kinds = [type(n.op).__name__ for n in graph.nodes if type(n.op).__name__ not in ("Reshape", "BroadcastTo")]
    assert kinds == wanted
    (found,) = evaluate(graph, arguments)
    np.testing.assert_allclose(found, function(*arguments), rtol=1e-5, atol=1e-5)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "another maximum": lambda x: jnp.exp(x - x.max(0)) / jnp.exp(x - x.max(0)).sum(-1, keepdims=True),
    "the sum of another axis": lambda x: (
        jnp.exp(x - x.max(-1, keepdims=True)) / jnp.exp(x - x.max(-1, keepdims=True)).sum(1, keepdims=True)
    ),
    "the mean of another axis": lambda x: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
    "the mean of fewer": lambda x: (x - x.sum(-1, keepdims=True) / 7) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
    "another cube": lambda x: x * (0.5 * (1 + jnp.tanh(0.79788456 * (x + 0.05 * x**3)))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_so_stays(name: str) -> None:
    function = OTHERS[name]
    graph = weft.load(jax.jit(function).lower(X))
    assert not {type(n.op).__name__ for n in graph.nodes} & {"Softmax", "LayerNorm", "RMSNorm", "Gelu"}
    (found,) = evaluate(graph, [X])
    np.testing.assert_allclose(found, function(X), rtol=1e-5, atol=1e-5)


def test_attention_is_one_operator_when_compiled() -> None:
    q, k, v = (floats(2, 16, 4, 8, seed=s) for s in range(3))
    lowered = jax.jit(jax.nn.dot_product_attention).lower(q, k, v)
    graph = weft.load(lowered)
    names = [x.name for x in graph.inputs]
    wanted = np.asarray(jax.nn.dot_product_attention(q, k, v))
    case = FrontendCase(lowered, dict(zip(names, (q, k, v))), lambda i: [wanted], rtol=1e-5, atol=1e-5)
    check_frontend(case, stages=("compiled",))
    assert "ScaledDotProductAttention" in str(fuse_attention(cancel_transposes(simplify_algebra(graph))))
