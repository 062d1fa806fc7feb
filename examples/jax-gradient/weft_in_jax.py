"""Gradients by JAX through an executable of Weft: a function with a derivative of its own.

    python weft_in_jax.py

`differentiable` makes of a model what `jax.grad`, `jax.vjp` and `jax.jit` take as any function of arrays. Its values
and its gradients are computed by two executables of Weft, which JAX calls on the host. A gradient of its gradient is
refused by JAX: compile `weft.grad` of `weft.grad` for those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft


def differentiable(model: Any, target: str = "llvm") -> Callable[..., Any]:
    """A function of the model's inputs, in order, that gives a tuple of its outputs.

    Args:
        model: as `weft.compile` takes it, with fixed sizes; such as `jax.jit(f).lower(x)`.

    Raises:
        WeftError: the model cannot be read or compiled, or has no gradient.
    """
    graph = weft.load(model)
    trained = [v.name for v in graph.inputs if v.dtype.is_float]
    forward = weft.compile(graph, target)
    backward = weft.compile(weft.vjp(graph, wrt=trained), target)
    names = [v.name for v in forward.inputs]
    outputs = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy) for v in graph.outputs]
    floats = [k for k, v in enumerate(graph.outputs) if v.dtype.is_float]
    seeds = [v.name for v in backward.inputs if v.name not in names]

    def run(*arrays: Any) -> tuple[Any, ...]:
        return tuple(forward.run(dict(zip(names, map(np.asarray, arrays)))).values())

    def gradients(arrays: Any, given: Any) -> tuple[Any, ...]:
        inputs = {i.name for i in backward.inputs}
        feeds = dict(zip([*names, *seeds], map(np.asarray, (*arrays, *given))))
        return tuple(backward.run({n: a for n, a in feeds.items() if n in inputs}).values())

    @jax.custom_vjp
    def function(*arrays: Any) -> Any:
        return jax.pure_callback(run, tuple(outputs), *arrays)

    def first(*arrays: Any) -> Any:
        return function(*arrays), arrays

    def then(arrays: Any, given: Any) -> tuple[Any, ...]:
        types = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in zip(names, arrays) if n in trained)
        found = iter(jax.pure_callback(gradients, types, arrays, tuple(given[k] for k in floats)))
        return tuple(
            next(found) if n in trained else np.zeros(a.shape, jax.dtypes.float0) for n, a in zip(names, arrays)
        )

    function.defvjp(first, then)
    return function


def layer(x: Any, weights: Any) -> Any:
    """What Weft computes: a product and GELU."""
    return jax.nn.gelu(x @ weights)


def main() -> None:
    rng = np.random.default_rng(0)
    x, weights = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((16, 8), (8, 4)))
    by_weft = differentiable(jax.jit(layer).lower(x, weights))

    def loss(weights: Any) -> Any:
        return (by_weft(x, weights)[0] ** 2).mean()  # the rest is JAX's

    value, slope = jax.jit(jax.value_and_grad(loss))(weights)
    wanted = jax.grad(lambda w: (layer(x, w) ** 2).mean())(weights)
    print("loss", float(value), "difference of gradients", float(jnp.abs(slope - wanted).max()))


if __name__ == "__main__":
    main()
