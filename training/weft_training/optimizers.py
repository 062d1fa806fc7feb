"""Optimisers: how a parameter and its state follow from a gradient, as nodes of the training step.

The formulas and defaults are PyTorch's. An optimiser is a frozen dataclass; a new one derives from `Optimizer`. The
learning rate is an input of the step, so schedules are the caller's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_ops import Barrier, Power, Reciprocal, Sqrt, Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer


@dataclass(frozen=True)
class Optimizer(ABC):
    """What optimisers share. `states`: what each parameter has beside itself, of its shape and dtype, zeros at first
    unless `starts` says otherwise."""

    states: ClassVar[tuple[str, ...]] = ()

    @property
    def starts(self) -> tuple[float, ...]:
        """The value of each state before the first step."""
        return (0.0,) * len(self.used_states)

    @property
    def used_states(self) -> tuple[str, ...]:
        """Those of `states` that these attributes need."""
        return self.states

    @abstractmethod
    def update(
        self, c: Composer, parameter: Value, gradient: Value, states: Sequence[Value], rate: Value, step: Value
    ) -> tuple[Value, list[Value]]:
        """The next parameter and states.

        Args:
            gradient: of the parameter's type.
            rate: the learning rate, a scalar of the parameter's dtype.
            step: the number of this step, a float64 scalar, from 1.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: v ← momentum · v + (1 - dampening) · g, p ← p - rate · v, with `weight_decay` · p
    added to g. With `nesterov`, p ← p - rate · (g + momentum · v). The first v is g."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    states = ("velocity",)

    @property
    def used_states(self) -> tuple[str, ...]:
        return self.states if self.momentum else ()

    def update(
        self, c: Composer, parameter: Value, gradient: Value, states: Sequence[Value], rate: Value, step: Value
    ) -> tuple[Value, list[Value]]:
        g = gradient
        if self.weight_decay:
            g = c.add(g, c.mul(parameter, self.weight_decay))
        if not states:
            return c.sub(parameter, c.mul(g, rate)), []
        added = g
        if self.dampening:
            first = c(Equal(), step, 1.0)
            kept = c(Where(), first, c.number(1.0, g.dtype), c.number(1.0 - self.dampening, g.dtype))
            added = c.mul(g, kept)
        velocity = c.add(c.mul(states[0], self.momentum), added)
        along = c(Barrier(), velocity)
        if self.nesterov:
            along = c.add(g, c.mul(along, self.momentum))
        return c.sub(parameter, c.mul(along, rate)), [velocity]


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): p ← p - rate · weight_decay · p, then
    p ← p - rate · m̂ / (√v̂ + epsilon), m̂ and v̂ the means of g and g² corrected for their start."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    states = ("mean", "square")

    def update(
        self, c: Composer, parameter: Value, gradient: Value, states: Sequence[Value], rate: Value, step: Value
    ) -> tuple[Value, list[Value]]:
        mean = c.add(c.mul(states[0], self.beta1), c.mul(gradient, 1.0 - self.beta1))
        square = c.add(c.mul(states[1], self.beta2), c.mul(c.mul(gradient, gradient), 1.0 - self.beta2))

        # In float64: 1 - 0.999 in float32 has four digits.
        def correction(beta: float) -> Value:
            return c.sub(1.0, c(Power(), c.number(beta, dt.float64), step))

        near = parameter.dtype
        by_mean = c.cast(c(Reciprocal(), correction(self.beta1)), near)
        by_square = c.cast(c(Reciprocal(), c(Sqrt(), correction(self.beta2))), near)
        m, v = c(Barrier(), mean), c(Barrier(), square)
        length = c.add(c.mul(c(Sqrt(), v), by_square), self.epsilon)
        change = c.mul(c.div(m, length), c.mul(by_mean, rate))
        kept = c.sub(parameter, c.mul(parameter, c.mul(rate, self.weight_decay))) if self.weight_decay else parameter
        return c.sub(kept, change), [mean, square]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s ← s + g², p ← p - rate / (1 + (step - 1) · decay) · g / (√s + epsilon) (Duchi et al. 2011)."""

    epsilon: float = 1e-10
    decay: float = 0.0
    weight_decay: float = 0.0
    initial: float = 0.0
    states = ("sum",)

    @property
    def starts(self) -> tuple[float, ...]:
        return (self.initial,)

    def update(
        self, c: Composer, parameter: Value, gradient: Value, states: Sequence[Value], rate: Value, step: Value
    ) -> tuple[Value, list[Value]]:
        g = gradient
        if self.weight_decay:
            g = c.add(g, c.mul(parameter, self.weight_decay))
        total = c.add(states[0], c.mul(g, g))
        if self.decay:
            slower = c(Reciprocal(), c.add(c.mul(c.sub(step, 1.0), self.decay), 1.0))
            rate = c.mul(rate, c.cast(slower, rate.dtype))
        length = c.add(c(Sqrt(), c(Barrier(), total)), self.epsilon)
        return c.sub(parameter, c.mul(c.div(g, length), rate)), [total]
