"""The operators of ai.onnx.preview.training: gradients and optimisers.

Inputs and outputs of an optimiser come as groups, one member per parameter. Gradients need the package weft-training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.protos import TRAINING as DOMAIN
from weft_onnx.registry import onnx_op


@onnx_op("Gradient", domain=DOMAIN)
def gradient(c: Context) -> Any:
    """The derivatives of the tensor that `y` names by those that `xs` name, all seen as a function of `xs` and `zs`: at
    the operands, which are values for `xs` and then for `zs`, most often these tensors themselves."""
    try:
        from weft_training import add_gradients
    except ModuleNotFoundError as error:
        if error.name != "weft_training":
            raise
        raise UnsupportedError(
            "Gradient needs the package weft-training", where=c.place, hint="pip install weft-training"
        ) from None
    xs, zs = c.strings("xs") or (), c.strings("zs") or ()
    if len(c.operands) != len(xs) + len(zs):
        raise c.error(f"xs and zs name {len(xs) + len(zs)} tensors, got values for {len(c.operands)}")

    def named(name: str) -> Value:
        operand = c.scope.find(name)
        if operand is None:
            raise c.error(f"there is no tensor '{name}'")
        return c.importer.as_value(operand, name)

    y, values = named(c.string("y")), [named(name) for name in (*xs, *zs)]
    if y.producer is None and y not in values:
        raise c.error(f"'{c.string('y')}' is not computed in the graph of this node, but given to it")
    return add_gradients(c.builder, y, values[: len(xs)], {v: c.value(k) for k, v in enumerate(values)})


def _groups(c: Context, count: int) -> tuple[Value, Value, list[list[Value]]]:
    """Rate, step, and per parameter its `count` tensors."""
    rate, step = c.value(0), c.value(1)
    n = (c.count - 2) // count
    return rate, step, [[c.value(2 + g * n + k) for g in range(count)] for k in range(n)]


def _grouped(results: Sequence[tuple[Value, ...]]) -> list[Value]:
    return [r[k] for k in range(len(results[0])) for r in results]


def _regularized(c: Context, x: Value, gradient: Value) -> Value:
    norm = c.real("norm_coefficient", 0.0)
    return c.add(gradient, c.mul(x, norm)) if norm else gradient


@onnx_op("Adagrad", domain=DOMAIN)
def adagrad(c: Context) -> Any:
    rate, step, parameters = _groups(c, 3)
    decayed = c.div(rate, c.add(c.mul(c.cast(step, rate.dtype), c.real("decay_factor", 0.0)), 1.0))
    results = []
    for x, g, h in parameters:
        g = _regularized(c, x, g)
        total = c.add(h, c.mul(g, g))
        results.append(
            (c.sub(x, c.div(c.mul(g, decayed), c.add(c(ops.Sqrt(), total), c.real("epsilon", 1e-6)))), total)
        )
    return _grouped(results)


@onnx_op("Adam", domain=DOMAIN)
def adam(c: Context) -> Any:
    rate, step, parameters = _groups(c, 4)
    alpha, beta = c.real("alpha", 0.9), c.real("beta", 0.999)
    post = c.real("norm_coefficient_post", 0.0)
    t = c.cast(step, rate.dtype)
    left, kept = (c.sub(1.0, c(ops.Power(), c.number(base, rate.dtype), t)) for base in (alpha, beta))
    corrected = c.div(c.mul(rate, c(ops.Sqrt(), kept)), left)
    adjusted = c(ops.Where(), c(ops.Greater(), step, 0), corrected, rate)
    results = []
    for x, g, v, h in parameters:
        g = _regularized(c, x, g)
        new_v = c.add(c.mul(v, alpha), c.mul(g, 1 - alpha))
        new_h = c.add(c.mul(h, beta), c.mul(c.mul(g, g), 1 - beta))
        y = c.sub(x, c.div(c.mul(new_v, adjusted), c.add(c(ops.Sqrt(), new_h), c.real("epsilon", 1e-6))))
        results.append((c.mul(y, 1 - post) if post else y, new_v, new_h))
    return _grouped(results)


@onnx_op("Momentum", domain=DOMAIN)
def momentum(c: Context) -> Any:
    rate, step, parameters = _groups(c, 3)
    alpha, beta = c.real("alpha"), c.real("beta")
    mode = c.string("mode")
    # The first step takes the whole gradient.
    weight = c(
        ops.Where(), c(ops.Greater(), c.cast(step, dt.int64), 0), c.number(beta, rate.dtype), c.number(1.0, rate.dtype)
    )
    results = []
    for x, g, v in parameters:
        g = _regularized(c, x, g)
        new_v = c.add(c.mul(v, alpha), c.mul(g, weight))
        move = c.add(g, c.mul(new_v, alpha)) if mode == "nesterov" else new_v
        results.append((c.sub(x, c.mul(move, rate)), new_v))
    return _grouped(results)
