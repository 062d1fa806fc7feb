"""Losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft_ops.arithmetic import Negative, Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import floats, integers
from weft_ops.gathering import clamp_indices
from weft_ops.movement import Fill, GatherElements
from weft_ops.normalization import LogSoftmax
from weft_ops.precision import rounded, widen
from weft_ops.shapes import expect_kind, operands, product, show, tensor, unify
from weft_ops.words import LOSS_REDUCTIONS, LossReduction


@dataclass(frozen=True)
class NegativeLogLikelihood(Operator):
    """-weight[target] · x[target] per place; inputs x [n, classes, …], target [n, …], weight [classes] (optional).

    `reduction` none, sum, or mean (over the sum of weights). Targets equal to `ignore` count nothing.
    """

    reduction: LossReduction = "mean"
    ignore: int | None = None
    kind = "composite"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, target = operands(types[:2], 2)
        expect_kind(x.dtype, ("float",))
        expect_kind(target.dtype, ("int", "uint"), "target")
        if self.reduction not in LOSS_REDUCTIONS:
            raise GraphError(f"reduction: expected none, sum or mean, got '{self.reduction}'")
        if x.rank < 2 or target.rank != x.rank - 1:
            raise GraphError(
                f"expected x [n, classes, …] and target [n, …], got {show(x.shape)} and {show(target.shape)}"
            )
        for a, b in zip((x.shape[0], *x.shape[2:]), target.shape):
            unify(a, b, "target", assumed)
        if len(types) > 2 and types[2] is not None:
            unify(x.shape[1], tensor(types[2]).shape[0], "weight", assumed)
        return Inferred(TensorType(x.dtype, target.shape if self.reduction == "none" else ()), assumed)

    def reference(self, *arrays: Array | None) -> Any:
        x, target, weight = (*arrays, None)[:3]
        assert x is not None and target is not None
        index = clamp_indices(target, x.shape[1])
        picked = np.take_along_axis(widen(x), index[:, None], 1)[:, 0]
        w = np.ones(target.shape, picked.dtype) if weight is None else widen(weight)[index]
        w = w if self.ignore is None else np.where(target == self.ignore, 0, w)
        loss = np.where(w == 0, 0, -picked * w)
        if self.reduction != "none":
            loss = loss.sum() if self.reduction == "sum" else loss.sum() / w.sum()
        return rounded(loss, dt.dtype(x.dtype))

    @algorithm("decompose")
    def gathered(self, builder: GraphBuilder, x: Value, target: Value, weight: Value | None = None) -> Any:
        c = Composer(builder)
        index = c.reshape(target, (target.shape[0], 1, *target.shape[1:]))
        wide = c.wide(x)
        loss = c(Negative(), c.reshape(c(GatherElements(1), wide, index), target.shape))
        zero = c.number(0.0, wide.dtype)
        if weight is not None:
            weights = c.gather(c.wide(weight), target, 0)
        else:
            weights = c(Fill(wide.dtype, target.shape, 1.0))
        if self.ignore is not None:
            weights = c(Where(), c(Equal(), target, self.ignore), zero, weights)
        loss = c(Where(), c(Equal(), weights, 0.0), zero, c.mul(loss, weights))
        if self.reduction != "none":
            axes = range(len(target.shape))
            loss = c.sum(loss, axes, False)
            loss = loss if self.reduction == "sum" else c.div(loss, c.sum(weights, axes, False))
        return c.cast(loss, x.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return 4 * reduction_tolerance(product(types[0].shape))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, target, weight = (
            floats((3, 4, 2, 5)),
            integers((3, 2, 5), "int64", 0, 3),
            floats((4,), lo=0.5, hi=1.5, seed=1),
        )
        for r in LOSS_REDUCTIONS:
            yield Sample(cls(r), (x, target), r)
            yield Sample(cls(r, 1), (x, target, weight), f"{r}_ignore")
        yield Sample(cls("mean", -5), (floats((3, 4)), np.array([0, -5, 3], np.int32)), "ignore_outside")


@dataclass(frozen=True)
class SoftmaxCrossEntropy(NegativeLogLikelihood):
    """NegativeLogLikelihood of LogSoftmax along axis 1; outputs the loss and the log probabilities."""

    def infer(self, *types: Type | None) -> Inferred:
        loss = super().infer(*types)
        return Inferred((loss.type, tensor(types[0])), loss.assumes)

    def likelihood(self) -> NegativeLogLikelihood:
        return NegativeLogLikelihood(self.reduction, self.ignore)

    def reference(self, *arrays: Array | None) -> Any:
        x, *rest = arrays
        assert x is not None
        with np.errstate(all="ignore"):
            low = widen(x) - widen(x).max(1, keepdims=True)
            logs = low - np.log(np.exp(low).sum(1, keepdims=True))
        return rounded(self.likelihood().reference(logs, *rest), dt.dtype(x.dtype)), rounded(logs, dt.dtype(x.dtype))

    @algorithm("decompose")
    def gathered(self, builder: GraphBuilder, x: Value, target: Value, weight: Value | None = None) -> Any:
        c = Composer(builder)
        logs = c(LogSoftmax(1), c.wide(x))
        return c.cast(c(self.likelihood(), logs, target, weight), x.dtype), c.cast(logs, x.dtype)


__all__ = ["NegativeLogLikelihood", "SoftmaxCrossEntropy"]
