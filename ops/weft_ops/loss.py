"""Losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.tensor.language import as_dim
from weft_ops.arithmetic import Maximum, Minimum, Negative, Where
from weft_ops.comparison import Equal, Less
from weft_ops.composing import Composer
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import floats, integers
from weft_ops.gathering import added_rows, clamp_indices
from weft_ops.movement import Fill, GatherElements, Iota
from weft_ops.normalization import LogSoftmax, Softmax
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
        x, *rest = arrays
        assert x is not None
        return rounded(self._losses(widen(x), *rest), dt.dtype(x.dtype))

    def _losses(self, x: Array, target: Array | None, weight: Array | None = None) -> Any:
        """Of wide log probabilities."""
        assert target is not None
        index = clamp_indices(target, x.shape[1])
        picked = np.take_along_axis(x, index[:, None], 1)[:, 0]
        w = np.ones(target.shape, picked.dtype) if weight is None else widen(weight)[index]
        w = w if self.ignore is None else np.where(target == self.ignore, 0, w)
        loss = np.where(w == 0, 0, -picked * w)
        if self.reduction != "none":
            loss = loss.sum() if self.reduction == "sum" else loss.sum() / w.sum()
        return loss

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """-weight[target] at the target, over the sum of weights for the mean; of the weights -x[target], for the mean
        less the loss."""
        (g,) = gradients
        x, target, weight = (*node.inputs, None)[:3]
        assert x is not None and target is not None and g is not None
        c = Composer(builder)
        wide = c.wide(x)
        at, here, by_place, total = self._places(c, wide, target, weight, c.wide(g))
        by_x = c(Where(), here, c(Negative(), c.reshape(by_place, at.shape)), c.number(0, wide.dtype))
        by_weight = self._by_weight(c, wide, target, weight, c.wide(g), total)
        return (c.cast(by_x, x.dtype), None, by_weight)[: len(node.inputs)]

    def _places(
        self, c: Composer, x: Value, target: Value, weight: Value | None, g: Value
    ) -> tuple[Value, Value, Value, Value | None]:
        """For x and the loss's gradient, both wide: the class of each place [n, 1, …]; where x has it, of bool; the
        gradient by each place's -x, of the target's shape; for the mean the sum of weights."""
        n = x.shape[1]
        at = c.cast(target, dt.int64)
        if target.dtype.kind == "int":
            at = c(Where(), c(Less(), at, 0), c.add(at, c.dim(n)), at)
        at = c(Maximum(), c(Minimum(), at, c.dim(as_dim(n - 1))), 0)
        at = c.reshape(at, (target.shape[0], 1, *target.shape[1:]))
        here = c(Equal(), c(Iota(dt.int64, (n, *(1 for _ in x.shape[2:])))), at)
        weights = self._weights(c, x.dtype, target, weight)
        total = c.sum(weights, range(len(target.shape)), False) if self.reduction == "mean" else None
        return at, here, c.mul(weights, g if total is None else c.div(g, total)), total

    def _by_weight(
        self, c: Composer, x: Value, target: Value, weight: Value | None, g: Value, total: Value | None
    ) -> Value | None:
        """The gradient by `weight`, from that by the loss; x, the log probabilities, and the gradient are wide."""
        if weight is None:
            return None
        index = c.reshape(target, (target.shape[0], 1, *target.shape[1:]))
        loss = c(Negative(), c.reshape(c(GatherElements(1), x, index), target.shape))
        if total is not None:
            axes = range(len(target.shape))
            mean = c.div(c.sum(c.mul(loss, self._weights(c, x.dtype, target, weight)), axes, False), total)
            loss = c.div(c.sub(loss, mean), total)
        each = c.mul(loss, g)
        if self.ignore is not None:
            each = c(Where(), c(Equal(), target, self.ignore), c.number(0, each.dtype), each)
        return c.cast(added_rows(c.builder, c.wide(weight), target, each), weight.dtype)

    def _weights(self, c: Composer, wide: DType, target: Value, weight: Value | None) -> Value:
        """What each place counts, in the dtype in which it is computed."""
        if weight is not None:
            weights = c.gather(c.cast(weight, wide), target, 0)
        else:
            weights = c(Fill(wide, target.shape, 1.0))
        if self.ignore is not None:
            weights = c(Where(), c(Equal(), target, self.ignore), c.number(0.0, wide), weights)
        return weights

    @algorithm("decompose")
    def gathered(self, builder: GraphBuilder, x: Value, target: Value, weight: Value | None = None) -> Any:
        c = Composer(builder)
        index = c.reshape(target, (target.shape[0], 1, *target.shape[1:]))
        wide = c.wide(x)
        loss = c(Negative(), c.reshape(c(GatherElements(1), wide, index), target.shape))
        zero = c.number(0.0, wide.dtype)
        weights = self._weights(c, wide.dtype, target, weight)
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
        return rounded(self._losses(logs, *rest), dt.dtype(x.dtype)), rounded(logs, dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """softmax · w less w at the target, w what each place counts times the gradient of the loss: of x alone, so
        that the log probabilities need not be kept. That of the log probabilities is LogSoftmax's."""
        g, by_logs = gradients
        x, target, weight = (*node.inputs, None)[:3]
        assert x is not None and target is not None
        c = Composer(builder)
        wide = c.wide(x)
        y = c(Softmax(1), wide)
        by_x: Value | None = None
        by_weight: Value | None = None
        if g is not None:
            at, here, by_place, total = self._places(c, wide, target, weight, c.wide(g))
            each = c.reshape(by_place, at.shape)
            by_x = c.sub(c.mul(y, each), c(Where(), here, each, c.number(0, wide.dtype)))
            if weight is not None:
                by_weight = self._by_weight(c, c(LogSoftmax(1), wide), target, weight, c.wide(g), total)
        if by_logs is not None:
            given = c.wide(by_logs)
            more = c.sub(given, c.mul(y, c.sum(given, (1,))))
            by_x = more if by_x is None else c.add(by_x, more)
        return (None if by_x is None else c.cast(by_x, x.dtype), None, by_weight)[: len(node.inputs)]

    @algorithm("decompose")
    def gathered(self, builder: GraphBuilder, x: Value, target: Value, weight: Value | None = None) -> Any:
        c = Composer(builder)
        logs = c(LogSoftmax(1), c.wide(x))
        return c.cast(c(self.likelihood(), logs, target, weight), x.dtype), c.cast(logs, x.dtype)


__all__ = ["NegativeLogLikelihood", "SoftmaxCrossEntropy"]
