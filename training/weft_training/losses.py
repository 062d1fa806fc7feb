"""Losses by name: what a training step minimises, as nodes behind a model's first output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft import dtypes as dt
from weft.errors import InputError, nearest
from weft.graph.nodes import GraphBuilder, TensorType, Value
from weft_ops import SoftmaxCrossEntropy
from weft_ops.composing import Composer

Loss: TypeAlias = "Callable[[GraphBuilder, Sequence[Value]], Value]"
"""From a builder and a model's outputs to a value of one element; what else it needs are inputs that it adds."""

TARGETS = "targets"
"""The name of the input that the losses here compare with."""


def cross_entropy(builder: GraphBuilder, outputs: Sequence[Value]) -> Value:
    """The mean of -log softmax(outputs)[target]. Outputs: scores [batch, classes, …]; targets: int64 [batch, …]."""
    scores = outputs[0]
    shape = (*scores.shape[:1], *scores.shape[2:])
    targets = builder.input(TARGETS, TensorType(dt.int64, shape))
    return builder.add_all(SoftmaxCrossEntropy(), scores, targets, None)[0]


def squared_error(builder: GraphBuilder, outputs: Sequence[Value]) -> Value:
    """The mean of (output - target)²; targets are of the output's type."""
    c = Composer(builder)
    value = outputs[0]
    difference = c.sub(value, builder.input(TARGETS, value.type))
    return c.mean(c.mul(difference, difference), tuple(range(len(value.shape))), False)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def loss_of(given: str | Loss) -> Loss:
    """A loss by its name.

    Raises:
        InputError: there is none of that name.
    """
    if not isinstance(given, str):
        return given
    if given not in LOSSES:
        close = nearest(given, LOSSES)
        raise InputError(
            f"there is no loss '{given}'",
            why=f"known are {', '.join(LOSSES)}",
            hint=f"did you mean '{close}'?" if close else "give a function of a builder and the model's outputs",
        )
    return LOSSES[given]
