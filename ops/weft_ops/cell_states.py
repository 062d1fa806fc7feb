"""What gradients of recurrences need beside `RecurrenceGradient`: activations as operators, cell states, loops over
steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.control import Loop
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Elementwise, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, scan
from weft_ops.arithmetic import Where
from weft_ops.cells import Activation, activations
from weft_ops.comparison import Less
from weft_ops.composing import Composer
from weft_ops.examples import floats
from weft_ops.filling import Fill, Iota
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import expect_kind, expect_rank, operands, unify


@dataclass(frozen=True)
class CellFunction(Elementwise):
    """An activation of a recurrent cell, of its operand bounded to -clip … clip."""

    activation: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None

    @property
    def function(self) -> Activation:
        return Activation(self.activation, self.alpha, self.beta)

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        activations([self.activation], (), ())
        return TensorType(x.dtype, x.shape)

    def bounded(self, x: Expr) -> Expr:
        return (
            x if self.clip is None else e.maximum(e.minimum(x, const(self.clip, x.dtype)), const(-self.clip, x.dtype))
        )

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return cast_to(self.function.formula(self.bounded(cast_to(x, compute_dtype(x.dtype)))), x.dtype)

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        x = operands[position]
        assert x is not None
        one = const(1.0, result.dtype)
        if self.activation == "sigmoid":  # that of the formula is ∞ · 0 far on the left
            found = result * (one - result)
        elif self.activation == "tanh":
            found = one - result * result
        else:
            return super().derivative(position, operands, result)
        if self.clip is None:
            return found
        return select(call("abs", x) <= const(self.clip, x.dtype), found, const(0.0, result.dtype))

    def value(self, x: Any) -> Any:
        """By numpy, of an array that is wide already."""
        return self.function.value(x if self.clip is None else np.clip(x, -self.clip, self.clip))

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return rounded(self.value(widen(x)), dt.dtype(x.dtype))

    def tolerance(self, *types: TensorType) -> float:
        return 16.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((3, 5), lo=-2, hi=2)
        for name in ("sigmoid", "tanh", "relu", "softplus", "softsign"):
            yield Sample(cls(name), (x,), name)
        for name in ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"):
            yield Sample(cls(name, 0.3, 0.4), (x,), name)
        yield Sample(cls("sigmoid", clip=0.7), (x,), "clip")
        yield Sample(cls("tanh", clip=0.7), (x.astype(np.float16),), "float16")


@dataclass(frozen=True)
class CellStates(Operator):
    """The cell states of an LSTM after each step [steps, batch, hidden], from the sums that enter its gates.

    Inputs: sums [steps, batch, 4·hidden], gates in ONNX's order i, o, f, c, without peepholes; None if absent: c0
    [batch, hidden], lengths [batch] int32 or int64, peepholes [3·hidden]. Beyond a sequence's length its state stays.
    """

    gate: CellFunction
    candidate: CellFunction
    input_forget: bool = False
    reverse: bool = False

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes or sizes that do not agree."""
        assumed: list[Assumption] = []
        (sums,) = operands(types[:1], 1)
        expect_kind(sums.dtype, ("float",))
        expect_rank(sums, 3, "sums")
        steps, batch, hidden = sizes_of_sums(sums, 4)
        shapes = (batch, hidden), (batch,), (as_dim(hidden * 3),)
        for t, shape, name in zip(types[1:], shapes, ("c0", "lengths", "peepholes")):
            if t is not None:
                agree(t, shape, name, assumed)
        return Inferred(TensorType(sums.dtype, (steps, batch, hidden)), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        sums, c0, lengths, peep = (*arrays, *[None] * 3)[:4]
        assert sums is not None
        dtype, x = dt.dtype(sums.dtype), widen(sums)
        steps, batch, hidden = x.shape[0], x.shape[1], x.shape[2] // 4
        c = np.zeros((batch, hidden), x.dtype) if c0 is None else widen(c0)
        p = [np.zeros(hidden)] * 3 if peep is None else np.split(widen(peep), 3)
        found = np.zeros((steps, batch, hidden), x.dtype)
        for t in reversed(range(steps)) if self.reverse else range(steps):
            i, _, f, g = np.split(x[t], 4, -1)
            i = self.gate.value(i + p[0] * c)
            f = 1 - i if self.input_forget else self.gate.value(f + p[2] * c)
            new = f * c + i * self.candidate.value(g)
            c = new if lengths is None else np.where((t < lengths)[:, None], new, c)
            found[t] = c
        return rounded(found, dtype)

    @algorithm("tensors")
    def direct(
        self, sums: Tensor, c0: Tensor | None = None, lengths: Tensor | None = None, peep: Tensor | None = None
    ) -> Tensor:
        wide, dtype = compute_dtype(sums.dtype), sums.dtype
        steps, batch, hidden = sizes_of_sums(sums, 4)

        def step(t: Expr, c: Tensor) -> Tensor:
            def gate(g: int, b: Expr, j: Expr, peephole: int | None) -> Expr:
                x = cast_to(sums[t, b, j + as_dim(hidden * g)], wide)
                if peep is not None and peephole is not None:
                    x = x + cast_to(peep[j + as_dim(hidden * peephole)], wide) * c[b, j]
                return (self.candidate if peephole is None else self.gate).formula(x)

            def next_c(b: Expr, j: Expr) -> Expr:
                i = gate(0, b, j, 0)
                forget = const(1.0, wide) - i if self.input_forget else gate(2, b, j, 2)
                new = forget * c[b, j] + i * gate(3, b, j, None)
                return new if lengths is None else select(t < cast_to(lengths[b], dt.int64), new, c[b, j])

            return compute((batch, hidden), next_c, "next_c")

        first = compute(
            (batch, hidden), lambda b, j: const(0.0, wide) if c0 is None else cast_to(c0[b, j], wide), "first_c"
        )
        (states,) = scan(steps, [first], step, name="cells", reverse=self.reverse)
        return compute((steps, batch, hidden), lambda t, b, j: cast_to(states[t, b, j], dtype), "cells")

    @algorithm("decompose")
    def loop(
        self,
        builder: GraphBuilder,
        sums: Value,
        c0: Value | None = None,
        lengths: Value | None = None,
        peep: Value | None = None,
    ) -> Value:
        """Step by step: what a gradient of it is made of."""
        outer, (steps, batch, hidden) = Composer(builder), sizes_of_sums(sums.tensor, 4)
        start = c0 if c0 is not None else outer(Fill(sums.dtype, (batch, hidden), 0))
        steps_of = StepLoop(builder, steps, self.reverse)
        (c,) = steps_of.carries(start)
        x = steps_of.item(sums)
        p = None if peep is None else steps_of.captured(peep)
        inner = steps_of.composer

        def gate(g: int, peephole: int | None) -> Value:
            value = inner.slice(x, 1, hidden * g, hidden)
            if p is not None and peephole is not None:
                value = inner.add(value, inner.mul(c, inner.slice(p, 0, hidden * peephole, hidden)))
            return inner(self.candidate if peephole is None else self.gate, value)

        i = gate(0, 0)
        forget = inner.sub(1.0, i) if self.input_forget else gate(2, 2)
        new = inner.add(inner.mul(forget, c), inner.mul(i, gate(3, None)))
        if lengths is not None:
            new = inner(Where(), steps_of.item(live_steps(outer, steps, batch, lengths)), new, c)
        _, states = steps_of.finished([new], [new])
        return states

    def tolerance(self, *types: TensorType) -> float:
        steps = types[0].shape[0]
        return 16.0 * (1 + (steps if isinstance(steps, int) else 16) / 4)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        gate, candidate = CellFunction("sigmoid"), CellFunction("tanh")
        x, c0, lengths = floats((4, 2, 12)), floats((2, 3), seed=1), np.array([4, 2], np.int32)
        yield Sample(cls(gate, candidate), (x, None, None, None), "plain")
        yield Sample(cls(gate, candidate, reverse=True), (x, c0, lengths, floats((9,), seed=2)), "everything")
        yield Sample(
            cls(CellFunction("sigmoid", clip=0.6), CellFunction("softsign", clip=0.6), True),
            (x, c0, None, floats((9,), seed=2)),
            "coupled",
        )
        yield Sample(cls(gate, candidate), (x.astype(np.float16), None, None, None), "float16")


def sizes_of_sums(sums: TensorType | Tensor, gates: int) -> tuple[Dim, Dim, Dim]:
    """Steps, batch and hidden units."""
    steps, batch, width = sums.shape
    if isinstance(width, int) and width % gates:
        raise GraphError(f"expected a multiple of {gates} sums, got {width}")
    return steps, batch, as_dim(width // gates)


def agree(given: Type, shape: Sequence[Dim], name: str, assumed: list[Assumption]) -> None:
    (t,) = operands([given], 1)
    expect_rank(t, len(shape), name)
    for wanted, got in zip(shape, t.shape):
        unify(wanted, got, name, assumed)


def live_steps(c: Composer, steps: Dim, batch: Dim, lengths: Value) -> Value:
    """Whether a step is within a sequence: bool [steps, batch, 1]."""
    at = c(Iota(dt.int64, (steps, 1, 1)))
    return c(Less(), at, c.reshape(c.cast(lengths, dt.int64), (1, batch, 1)))


class StepLoop:
    """The body of a loop over steps, as it is built: `backward` from the last one on."""

    def __init__(self, builder: GraphBuilder, steps: Dim, backward: bool) -> None:
        self.builder, self.steps, self.backward = builder, steps, backward
        self.inner = builder.inner("step")
        self.composer = Composer(self.inner)
        self._given: tuple[list[Value], list[Value], list[Value]] = [], [], []
        self._inside: tuple[list[Value], list[Value], list[Value]] = [], [], []

    def _input(self, kind: int, outside: Value, shape: Sequence[Dim]) -> Value:
        self._given[kind].append(outside)
        self._inside[kind].append(self.inner.input(outside.name, TensorType(outside.dtype, tuple(shape))))
        return self._inside[kind][-1]

    def carries(self, *starts: Value) -> list[Value]:
        """What stands for values that a step gives to the next one."""
        return [self._input(0, v, v.shape) for v in starts]

    def item(self, value: Value) -> Value:
        """What stands for the part of a step, along the first axis."""
        return self._input(1, value, value.shape[1:])

    def captured(self, value: Value) -> Value:
        return self._input(2, value, value.shape)

    def finished(self, carried: Sequence[Value], collected: Sequence[Value]) -> tuple[Value, ...]:
        """The results of the loop: the last values carried, and those of all steps, along the first axis."""
        inner = self.inner
        inner.graph.inputs = []
        inner.input("step", TensorType(dt.int64, ()))
        inner.graph.inputs += [v for part in self._inside for v in part]
        for v in (*carried, *collected):
            inner.output(v, inner.unique(v.name))
        items, results = len(self._given[1]), len(collected)
        op = Loop(
            inner.build(),
            len(carried),
            False,
            self.steps,
            (0,) * items,
            (self.backward,) * items,
            (0,) * results,
            (self.backward,) * results,
        )
        return self.builder.add_all(op, None, None, *(v for part in self._given for v in part))


__all__ = ["CellFunction", "CellStates"]
