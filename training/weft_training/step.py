"""A training step as one executable: forward pass, loss, backward pass, optimiser.

    step = weft.compile_training("resnet18.onnx", "cross_entropy", weft.SGD(momentum=0.9))
    loss = step({"x": pictures, "targets": labels}, rate=0.1)

Parameters and the optimiser's state are inputs and outputs of the executable, in the same memory: an update writes over
what it reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError, WeftError
from weft.graph.evaluate import steps as walk
from weft.graph.operator import Array
from weft.loading import load
from weft.pipeline import compile, specialize
from weft_runtime.executable import Executable
from weft_training import checkpoint
from weft_training.losses import Loss
from weft_training.optimizers import SGD, Optimizer
from weft_training.planning import FINITE, NEW, RATE, STEP, Memory, Planned, plan_training
from weft_training.precision import (
    SCALE,
    Precision,
)
from weft_training.statistics import Statistics


@dataclass
class TrainingStep:
    """A compiled step with the parameters and states that it changes.

    Attributes:
        parameters, states: arrays by name, which every step overwrites. Other values may be written into them between
            steps.
        steps: how many steps were done.
        scale: with float16, what the loss of the next step is multiplied by; else None.
    """

    executable: Executable
    parameters: dict[str, Array]
    states: dict[str, Array]
    planned: Planned = field(repr=False)
    steps: int = 0

    @property
    def scale(self) -> float | None:
        return float(self.states[SCALE]) if SCALE in self.states else None

    def __call__(self, inputs: Mapping[str, Any], rate: float) -> dict[str, Array]:
        """One step with a batch; the loss before it, under "loss", and the model's outputs that were asked for. If the
        loss is not finite (or with `clip` the norm of the gradients), parameters, states and `steps` stay as they were.
        With float16 so they do if a gradient is not finite, but for the scale, which is halved.

        Args:
            inputs: the model's and the loss's, by name.
            rate: the learning rate of this step.

        Raises:
            InputError: an input is missing, unknown or of another type.
        """
        taken = [n for n in inputs if n in self.parameters or n in self.states or n in (RATE, STEP)]
        if taken:
            raise InputError(
                f"the step has {', '.join(repr(n) for n in taken)} itself",
                hint="write into `parameters` and `states`; the rate is an argument of its own",
            )
        own = self.parameters | self.states
        given = {**inputs, **own, RATE: np.asarray(rate, np.float32), STEP: np.asarray(self.steps + 1, np.float64)}
        used = {i.name for i in self.executable.inputs}
        given = {n: v for n, v in given.items() if n in used or n not in (RATE, STEP)}
        results = self.executable.run(given, out={NEW + n: a for n, a in own.items()})
        if results.pop(FINITE).item():
            self.steps += 1
        for name in own:
            del results[NEW + name]
        return results

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters, states and the number of steps to a checkpoint, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        checkpoint.save(path, self.parameters | self.states, self.steps)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint: writes what it holds into `parameters` and `states`.

        Raises:
            OSError: it cannot be read.
            ArchiveError: it is no checkpoint, or damaged.
            InputError: it is one of another model or optimiser.
        """
        arrays, steps = checkpoint.load(path)
        own = self.parameters | self.states
        types = {n: (a.shape, a.dtype) for n, a in arrays.items()}
        wrong = [n for n in {**own, **arrays} if n not in own or types.get(n) != (own[n].shape, own[n].dtype)]
        if wrong:
            raise InputError(
                f"checkpoint '{path}' is one of another training",
                where=", ".join(wrong[:8]),
                why="names, sizes or dtypes of parameters or states differ",
                hint="the model, the optimiser and what is trained must be the same",
            )
        for name, array in own.items():
            array[...] = arrays[name]
        self.steps = steps

    def first_not_finite(self, inputs: Mapping[str, Any]) -> str | None:
        """The node of the forward pass whose result is the first with an infinity or NaN for these inputs, by the
        definitions of the operators: slow, for finding a mistake. None: all are finite, or one cannot be computed."""
        graph = self.planned.graph
        given = {**inputs, **self.parameters, **self.states}
        given |= {RATE: np.float32(0), STEP: np.float64(self.steps + 1)}
        try:
            for node, results in walk(graph, {v.name: np.asarray(given[v.name]) for v in graph.inputs}):
                arrays = [r for r in results if isinstance(r, np.ndarray) and r.dtype.kind == "f"]
                if not all(np.isfinite(a).all() for a in arrays):
                    return repr(node) + (f", made of {', '.join(sorted(node.names))}" if node.names else "")
        except WeftError:
            pass
        return None


def compile_training(
    model: Any,
    loss: str | Loss | None = "cross_entropy",
    optimizer: Optimizer = SGD(),
    target: str = "llvm",
    *,
    memory: Memory = "cut",
    trainable: Iterable[str] | Callable[[str], bool] | None = None,
    clip: float | None = None,
    outputs: bool = False,
    precision: Precision | None = None,
    statistics: Statistics = "model",
    statistics_momentum: float = 0.1,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    frontend: str | None = None,
    **options: Any,
) -> TrainingStep:
    """Compiles a model, a loss and an optimiser into a training step.

    Args:
        model: as `weft.compile` takes it. What it has learned are its constants; those that are trained become
            parameters.
        loss: "cross_entropy", "squared_error", or a function of a GraphBuilder and the model's outputs; None: the
            model's only output is the loss.
        memory: what of the forward pass is kept for the backward pass. "cut": the fewest bytes such that only
            elementwise operators are computed again. "min-time": all that the backward pass uses. "sqrt": so few bytes
            that they grow with the square root of the depth; nearly all of the forward pass is computed twice.
            A number of bytes, or a text as "8GB": the least is computed again with which results that live at once
            fit; parameters and states count.
        trainable: names of constants, or whether one is by its name; None: all of floats with more than one element
            that the loss depends on, but for statistics of a normalisation at inference.
        clip: the greatest Euclidean norm of all gradients together; longer ones are shortened to it.
        outputs: whether the step returns the model's outputs too.
        precision: the dtype in which products of float32, and those of their gradients, have their operands and
            results, summed in float32. Everything else stays float32: parameters, the optimiser, normalisations,
            softmax, losses. With "float16" the loss is multiplied by a scale that follows the formulas of PyTorch's
            GradScaler: 2¹⁶ at first, halved where gradients are not finite, doubled after 2000 good steps.
        statistics: of normalisations at inference, as exported models have them. "model": they are constants.
            "update": such a normalisation is one in training: it normalises by its batch, and its statistics are states
            that every step moves by `statistics_momentum` to those of the batch (the variance with a divisor of one
            less than the elements), as PyTorch's `train()` has it. What a model that is in training mode itself writes,
            as a module of PyTorch to its buffers, always is a state.
        statistics_momentum: the part of a batch's statistics in the running ones.
        input_shapes, frontend, options: as `weft.compile` has them.

    Raises:
        WeftError: of the kind that fits; a budget that cannot be met says the least that can.
    """
    graph = load(model, frontend=frontend, **options)
    if input_shapes:
        graph = specialize(graph, input_shapes)
    planned = plan_training(
        graph,
        loss,
        optimizer,
        memory=memory,
        trainable=trainable,
        clip=clip,
        outputs=outputs,
        precision=precision,
        statistics=statistics,
        statistics_momentum=statistics_momentum,
    )
    return TrainingStep(compile(planned.graph, target), dict(planned.parameters), dict(planned.states), planned)
