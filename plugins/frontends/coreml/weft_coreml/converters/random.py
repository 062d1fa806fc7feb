"""Random numbers. A seed gives the same numbers at every call, -1 others each time; the format leaves the generator
open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_coreml.context import Context
from weft_coreml.network import Layer
from weft_coreml.registry import layer, op
from weft_frontend.random_numbers import categories, normal, uniform
from weft_ops.shapes import product

F = dt.float32


def key(c: Context, seed: int) -> Value:
    """What the numbers of an operator are made of."""
    if seed == -1:
        return c.builder.add(ops.Entropy())
    return c.builder.constant(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))


def drawn(c: Context, kind: str, shape: Sequence[Dim], seed: int, first: float, second: float = 0.0) -> Value:
    """float32 of a distribution: uniform from `first` to below `second`, normal of mean and standard deviation, or 1
    with the probability `first` and 0 otherwise."""
    if kind == "normal":
        return c.add(c.mul(normal(c, shape, F, key(c, seed)), second), first)
    y = uniform(c, shape, F, key(c, seed))
    return c.cast(c(ops.Less(), y, first), F) if kind == "bernoulli" else c.add(c.mul(y, second - first), first)


PARAMETERS = {
    "uniform": (("low", 0.0), ("high", 1.0)), "normal": (("mean", 0.0), ("stddev", 1.0)), "bernoulli": (("prob", 0.5),),
}  # fmt: skip
"""Of operators of programs, with what they are by default."""
FIELDS = {"uniform": ("minVal", "maxVal"), "normal": ("mean", "stdDev"), "bernoulli": ("prob",)}
"""Of layers."""


@op("random_uniform", "random_normal", "random_bernoulli")
def random(c: Context) -> Value:
    kind = c.op_type.removeprefix("random_")
    numbers = [c.real(name, default) for name, default in PARAMETERS[kind]]
    y = drawn(c, kind, c.dims_of("shape", "a shape"), c.integer("seed", -1), *numbers)
    return c.cast(y, c.result_dtype())


@layer(*(f"random{kind.title()}{how}" for kind in FIELDS for how in ("Like", "Static", "Dynamic")))
def random_layer(c: Layer) -> Value:
    p = c.parameters
    kind = next(k for k in FIELDS if c.op_type.startswith(f"random{k.title()}"))
    shape: Sequence[Dim]
    if c.op_type.endswith("Static"):
        shape = tuple(int(d) for d in p.outputShape)
    elif c.op_type.endswith("Like"):
        shape = c.x().shape
    else:
        shape = c.sizes(c.as_value(c.integers_of(0), "shape"), "a shape")
    return drawn(c, kind, shape, int(p.seed), *(float(getattr(p, name)) for name in FIELDS[kind]))


def drawn_categories(c: Context, x: Value, logits: bool, samples: int, seed: int) -> Value:
    """int64 [..., samples] of [..., classes]."""
    if not x.shape:
        raise c.error("an operand without dimensions")
    if samples < 1:
        raise c.error(f"{samples} samples")
    rows = product(x.shape[:-1])
    wide = c.cast(c.reshape(x, (rows, x.shape[-1])), F)
    shares = c(ops.Softmax(1), wide) if logits else c.div(wide, c.sum(wide, (1,)))
    return c.reshape(categories(c, shares, samples, key(c, seed)), (*x.shape[:-1], samples))


@op("random_categorical")
def random_categorical(c: Context) -> Value:
    logits = c.word("mode", "logits", ("logits", "probs")) == "logits"
    y = drawn_categories(c, c.of("x"), logits, c.integer("size", 1), c.integer("seed", -1))
    return c.cast(y, c.result_dtype())


@layer("categoricalDistribution")
def categorical_layer(c: Layer) -> Any:
    p = c.parameters
    x = c.x()
    if p.temperature not in (0.0, 1.0):
        raise c.unsupported(f"a temperature of {p.temperature}")
    return drawn_categories(c, x, p.isLogits, int(p.numSamples), int(p.seed))


__all__ = ["drawn", "key"]
