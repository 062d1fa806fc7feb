"""The graph of a training step: forward pass, loss, backward pass, optimiser, and what is kept between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError, InputError, UnsupportedError, nearest
from weft.graph.nodes import Graph, GraphBuilder, Node, TensorType, Value
from weft.graph.operator import Array
from weft.graph.rewrite import Rewriter, drop_dead
from weft.training import phase_name
from weft_ops import BroadcastTo, Equal, Fill, LogicalAnd, Minimum, Reciprocal, Sqrt, Where
from weft_ops.composing import Composer
from weft_training.losses import Loss, loss_of
from weft_training.optimizers import SGD, Optimizer
from weft_training.precision import (
    GOOD,
    SCALE,
    START,
    Precision,
    all_finite,
    narrow_dtype,
    narrowed,
    next_scale,
)
from weft_training.rematerialize import Choice, Joint, cheapest_cut, computed_again, peak_bytes, segments
from weft_training.reverse import differentiable_parts, gradients, is_float
from weft_training.statistics import Statistics, statistics_of, with_states

Memory: TypeAlias = 'Literal["cut", "sqrt", "min-time"] | str | int'
"""What is kept for the backward pass; see `compile_training`."""
RATE, STEP, LOSS = "learning_rate", "step", "loss"
FINITE = "finite"
"""The output that says whether the loss (and with `clip` or float16 the gradients) is finite: else nothing changes but
the scale of float16."""
NEW = "new."
"""What stands before the name of a parameter or state as an output."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class Planned:
    """A training step before it is compiled.

    Attributes:
        graph: inputs: those of the model and of the loss, `learning_rate` (float32) and `step` (float64), the
            parameters, the states. Outputs: `loss`, `finite` (a bool), the model's outputs that are asked for, and the
            parameters and states after the step, as `new.<name>`.
        parameters: name → value at the start.
        states: name → value at the start: `<state>.<parameter>` of the optimiser, statistics and other constants that
            the model writes under their own names, `loss_scale` and `good_steps` with float16.
        peak: about the bytes of results that live at once, parameters and states not counted.
        again: the part of the forward pass's work that is done again.
        phases: for each node of the graph which of `weft.training.PHASES` it belongs to.
    """

    graph: Graph
    parameters: dict[str, Array]
    states: dict[str, Array]
    peak: int
    again: float
    phases: tuple[str, ...]

    def labelled(self) -> Graph:
        """The graph, whose nodes have the names of their parts beside the framework's: passes keep them."""
        graph = self.graph
        nodes = [
            Node(n.op, n.inputs, n.outputs, (*n.names, phase_name(phase)))
            for n, phase in zip(graph.nodes, self.phases, strict=True)
        ]
        return Graph(graph.name, graph.inputs, graph.outputs, nodes, graph.symbols, graph.output_names)


def plan_training(
    graph: Graph,
    loss: str | Loss | None = "cross_entropy",
    optimizer: Optimizer = SGD(),
    *,
    memory: Memory = "cut",
    trainable: Iterable[str] | Callable[[str], bool] | None = None,
    clip: float | None = None,
    outputs: bool = False,
    precision: Precision | None = None,
    statistics: Statistics = "model",
    statistics_momentum: float = 0.1,
) -> Planned:
    """The graph of a training step; see `compile_training`."""
    budget = memory if memory in ("cut", "sqrt", "min-time") else _bytes(memory)
    if clip is not None and not clip > 0:
        raise InputError(f"clip: expected a positive norm, got {clip}")
    made = _Step(graph, loss, trainable, precision, statistics, statistics_momentum)
    made.differentiate(required=trainable is not None)
    updates = made.update(optimizer, clip)
    total = made.finished(outputs)
    updated = {id(o) for n in made.updating for o in n.outputs}
    inside = {id(n) for n in made.forward}
    late = _late(total, updated, made.overwritten)
    forward = [n for n in late if id(n) in inside]  # in front: updates of statistics read nothing else
    total.nodes = [*forward, *(n for n in late if id(n) not in inside)]
    # Else all of the forward pass would be computed again for them, at once.
    read = frozenset(id(v) for n in made.updating for v in n.inputs if v is not None)
    joint = Joint(total, len(forward), read)
    phases = {
        id(o): "update" if id(o) in updated else "forward" if id(n) in inside else "backward"
        for n in total.nodes
        for o in n.outputs
    }
    overwriting = frozenset(id(v) for v in updates.values())
    fixed = sum(a.nbytes for a in (*made.parameters.values(), *made.states.values()))
    choice = _chosen(joint, budget, overwriting, fixed)
    final = choice.joint.graph
    final.nodes = _late(final, updated, made.overwritten)  # what is computed again reads parameters, too
    found = tuple(phases.get(id(n.output), "again") for n in final.nodes)
    return Planned(final, made.parameters, made.states, choice.peak, choice.again, found)


class _Step:
    """The graph of a step as it grows.

    Attributes:
        forward: the nodes of the model and the loss.
        updating: the nodes of the optimiser.
        overwritten: names of inputs whose memory a result has.
        parameters, states: name → value at the start.
    """

    def __init__(
        self,
        graph: Graph,
        loss: str | Loss | None,
        trainable: Any,
        precision: str | None,
        statistics: Statistics,
        momentum: float,
    ) -> None:
        narrow = narrow_dtype(precision)
        work, written = with_states(graph, statistics, momentum)
        self.name, self.count = graph.name, len(work.outputs)
        chosen = _trained(work, trainable, written)
        constants = {v.name: v for v in work.constants()}
        self.data = {p.name: np.array(p.constant, order="C") for p in chosen}
        self.states = {name: np.array(constants[name].constant, order="C") for name in written}
        for v in (*chosen, *(constants[name] for name in written)):
            v.constant = None
            work.inputs.append(v)
        work.output_names += written
        work.outputs += written.values()
        with_loss = Rewriter(work)
        total = with_loss.run(lambda r, node, inputs: None)
        total.outputs.append(_loss(with_loss.builder, total.outputs[: self.count], loss))
        total.output_names.append(LOSS)
        own = {RATE, STEP, SCALE, GOOD} if narrow == dt.float16 else {RATE, STEP}
        total = _without(own, differentiable_parts(total))
        rewriter = Rewriter(total if narrow is None else narrowed(total, narrow))
        self.graph = rewriter.run(lambda r, node, inputs: None)
        self.builder = rewriter.builder
        self.loss = self.graph.outputs[-1]
        self.written = dict(zip(written, self.graph.outputs[self.count :]))
        self.forward = list(self.graph.nodes)
        self.updating: list[Node] = []
        self.overwritten: set[str] = set()
        self.parameters: dict[str, Array] = {}
        self.gradients: list[tuple[Value, Value]] = []
        self.scale: Value | None = None
        if narrow == dt.float16:
            self.scale = self._state(SCALE, np.array(START, np.float32))

    def _state(self, name: str, start: Array) -> Value:
        """A further state, which the step begins with."""
        value = self.builder.input(name, TensorType(dt.dtype(start.dtype), start.shape))
        self.states[value.name] = start
        return value

    def differentiate(self, required: bool) -> None:
        """Adds the gradients of the loss. Constants that it does not depend on are constants again.

        Raises:
            UnsupportedError: there are no parameters then, or, if `required`, fewer.
        """
        by_name = {v.name: v for v in self.graph.inputs}
        wrt = [by_name[n] for n in self.data]
        seed = self._seed()
        found = gradients(self.builder, self.forward, {self.loss: seed}, wrt) if wrt else []
        self.gradients = [(p, g) for p, g in zip(wrt, found) if g is not None]
        missing = [p for p, g in zip(wrt, found) if g is None]
        if missing and required:
            raise UnsupportedError(
                f"no gradient reaches {', '.join(repr(p.name) for p in missing[:8])}",
                where=f"graph '{self.name}'",
                why="the loss does not depend on it, or only by jumps, as through rounding, comparisons and indices",
            )
        if not self.gradients:
            why = "the loss depends on none of the model's constants in a way that has a gradient"
            raise UnsupportedError(
                "there is nothing to train",
                where=f"graph '{self.name}'",
                why=why if wrt else "the model has no constants of floats with more than one element",
                hint="trainable=… names the constants that are trained",
            )
        for p in missing:
            p.constant = self.data[p.name]
            self.graph.inputs.remove(p)
        self.parameters = {p.name: self.data[p.name] for p, _ in self.gradients}

    def _seed(self) -> Value:
        """The gradient of what is differentiated, the loss or a multiple of it, by the loss."""
        if self.scale is None:
            return self.builder.add(Fill(self.loss.dtype, self.loss.shape, 1), name="seed_loss")
        c = Composer(self.builder)
        return self.builder.add(BroadcastTo(self.loss.shape), c.cast(self.scale, self.loss.dtype), name="seed_loss")

    def update(self, optimizer: Optimizer, clip: float | None) -> dict[str, Value]:
        """Adds the optimiser; parameters and states after the step, by the names that they have before it."""
        c = Composer(self.builder)
        before = len(self.graph.nodes)
        rate = self.builder.input(RATE, TensorType(dt.float32, ()))
        step = self.builder.input(STEP, TensorType(dt.float64, ()))
        holds = _finite(c, self.loss)
        found = [g for _, g in self.gradients]
        factor = None
        if self.scale is not None:
            holds = c(LogicalAnd(), holds, all_finite(c, found))
            inverse = c(Reciprocal(), self.scale)
            found = [c.mul(g, c.cast(inverse, g.dtype)) for g in found]
        if clip is not None:
            norm = _norm(c, found)
            holds = c(LogicalAnd(), holds, _finite(c, norm))
            factor = c(Minimum(), c.mul(c(Reciprocal(), c.add(norm, 1e-6)), clip), 1.0)
        inputs = {v.name: v for v in self.graph.inputs}
        results: dict[str, Value] = {n: c(Where(), holds, v, inputs[n]) for n, v in self.written.items()}
        for (p, _), g in zip(self.gradients, found):
            g = g if factor is None else c.mul(g, c.cast(factor, g.dtype))
            states = [
                self._state(f"{name}.{p.name}", np.full(self.parameters[p.name].shape, start, p.dtype.numpy))
                for name, start in zip(optimizer.used_states, optimizer.starts)
            ]
            new, new_states = optimizer.update(c, p, g, states, c.cast(rate, p.dtype), step)
            for before_step, after in zip((p, *states), (new, *new_states)):
                results[before_step.name] = c(Where(), holds, after, before_step)
        if self.scale is not None:
            good = self._state(GOOD, np.array(0, np.int32))
            results[self.scale.name], results[good.name] = next_scale(c, self.scale, good, holds)
        self.results, self.finite = results, holds
        self.overwritten = set(results)
        self.updating = self.graph.nodes[before:]
        return results

    def finished(self, outputs: bool) -> Graph:
        """The whole graph, with the loss, the model's outputs if they are asked for, and what the optimiser gives."""
        graph = self.graph
        model = list(zip(graph.output_names, graph.outputs))[: self.count] if outputs else []
        if clash := {n for n, _ in model} & {LOSS, FINITE}:
            raise GraphError(
                f"the model has outputs called {', '.join(sorted(clash))}, as the step has",
                hint="outputs=False leaves them out",
            )
        pairs = [(LOSS, self.loss), (FINITE, self.finite), *model, *((NEW + n, v) for n, v in self.results.items())]
        graph.output_names, graph.outputs = [n for n, _ in pairs], [v for _, v in pairs]
        drop_dead(graph)
        used = {id(v) for n in graph.nodes for v in n.inputs if v is not None}
        graph.inputs = [v for v in graph.inputs if id(v) in used or v.name not in (RATE, STEP)]
        return graph


def _trained(
    graph: Graph, trainable: Iterable[str] | Callable[[str], bool] | None, written: Container[str]
) -> list[Value]:
    """The constants that are trained, none of those that are `written`.

    Raises:
        InputError: a name is none of a constant of floats, or that of one that is written.
    """
    constants = {v.name: v for v in graph.constants() if isinstance(v.type, TensorType) and v.dtype.is_float}
    given = [trainable] if isinstance(trainable, str) else trainable
    named = [] if given is None or callable(given) else list(given)
    if taken := [n for n in named if n in written]:
        raise InputError(
            f"'{taken[0]}' is not trained: each step writes a statistic to it", where="trainable", hint="leave it out"
        )
    constants = {n: v for n, v in constants.items() if n not in written}
    if given is None:
        fixed = statistics_of(graph)
        return [v for v in constants.values() if v.constant is not None and v.constant.size > 1 and id(v) not in fixed]
    if callable(given):
        return [v for n, v in constants.items() if given(n)]
    found = []
    for name in named:
        if name not in constants:
            close = nearest(name, constants)
            raise InputError(
                f"the model has no constant of floats called '{name}'",
                where="trainable",
                hint=f"did you mean '{close}'?" if close else None,
            )
        found.append(constants[name])
    return found


def _without(names: Container[str], graph: Graph) -> Graph:
    """The graph, in which no result and no constant has one of these names.

    Raises:
        GraphError: an input has one.
    """
    if clash := sorted({v.name for v in graph.inputs if v.name in names}):
        raise GraphError(f"the model has inputs or parameters called {', '.join(clash)}, as the step has itself")
    taken = {v.name for v in graph.values()}
    for value in graph.values():
        if value.name in names:
            value.name = next(n for k in count(1) if (n := f"{value.name}_{k}") not in taken)
            taken.add(value.name)
    return graph


def _loss(builder: GraphBuilder, outputs: Sequence[Value], loss: str | Loss | None) -> Value:
    """The loss behind the model's outputs: one element of a float dtype."""
    if loss is None and len(outputs) != 1:
        raise InputError(f"the model has {len(outputs)} outputs: which is the loss?", hint="give a function as `loss`")
    value = outputs[0] if loss is None else loss_of(loss)(builder, outputs)
    if not is_float(value) or any(d != 1 for d in value.shape):
        raise GraphError(f"the loss is a {value.type}: it must be one number", where=f"'{value.name}'")
    return value


def _norm(c: Composer, found: Sequence[Value]) -> Value:
    """The Euclidean norm of all gradients together, a float32."""
    total: Value | None = None
    for g in found:
        wide = c.wide(g)
        square = c.cast(c.sum(c.mul(wide, wide), tuple(range(len(g.shape))), False), dt.float32)
        total = square if total is None else c.add(total, square)
    assert total is not None
    return c(Sqrt(), total)


def _finite(c: Composer, value: Value) -> Value:
    """Whether a value of one element is finite: a bool scalar."""
    one = c.reshape(value, ())
    return c(Equal(), c.sub(one, one), 0.0)  # the difference of infinities is NaN


def _chosen(joint: Joint, budget: str | int, overwriting: frozenset[int], fixed: int) -> Choice:
    if isinstance(budget, int):
        return segments(joint, budget - fixed, overwriting)
    if budget == "sqrt":
        return segments(joint, None, overwriting)
    if budget == "cut":
        cut = cheapest_cut(joint)
        joint = computed_again(joint, lambda v: id(v) in cut)
    return Choice(joint, peak_bytes(joint, overwriting), 0.0)


def _bytes(memory: object) -> int:
    """A number of bytes, or a text such as "8GB" or "512 MiB", in powers of 1024.

    Raises:
        InputError: it is neither.
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", memory) if isinstance(memory, str) else None
    if found is None:
        raise InputError(
            f"memory: {memory!r} is no amount of memory",
            hint='"cut", "sqrt", "min-time", a number of bytes, or a text such as "8GB"',
        )
    return int(float(found[1]) * _UNITS[found[2]])


def _late(graph: Graph, updating: set[int], overwritten: set[str]) -> list[Node]:
    """The nodes, those of the optimiser right behind the last use of what they overwrite: then gradients live briefly,
    and an update may have the memory of what it reads. `updating`: ids of the optimiser's values."""
    base = [n for n in graph.nodes if id(n.output) not in updating]
    updates = [n for n in graph.nodes if id(n.output) in updating]
    made = {id(o): k for k, n in enumerate(base) for o in n.outputs}
    last: dict[int, int] = {}
    for k, node in enumerate(base):
        for v in node.inputs:
            if v is not None and v.name in overwritten:
                last[id(v)] = k
    for node in updates:
        at = max((max(made.get(id(v), -1), last.get(id(v), -1)) for v in node.inputs if v is not None), default=-1)
        made.update((id(o), at) for o in node.outputs)
    # What needs no gradient, as what momentum leaves of a velocity, is computed where it is used.
    wanted: dict[int, int] = {}
    places: dict[int, int] = {}
    for node in reversed(updates):
        at = min((wanted[id(o)] for o in node.outputs if id(o) in wanted), default=made[id(node.output)])
        places[id(node)] = at
        for v in node.inputs:
            if v is not None and id(v) in updating:
                wanted[id(v)] = min(at, wanted.get(id(v), at))
    behind: dict[int, list[Node]] = {}
    for node in updates:
        behind.setdefault(places[id(node)], []).append(node)
    return [*behind.get(-1, []), *(m for k, n in enumerate(base) for m in (n, *behind.get(k, [])))]
