"""The plain training loop: batches, a rate that may change, progress, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import ExecutionError, InputError
from weft_training.planning import LOSS
from weft_training.step import TrainingStep

Batches = Callable[[int], Mapping[str, Any]]
"""The batch of a step, by its number from 0: the same for the same number, so that a training that was interrupted goes
on as it would have."""


@dataclass
class Trainer:
    """Runs the steps of a training.

        trainer = weft.Trainer(step, batches, rate=0.1, checkpoint="digits.safetensors", every=100)
        trainer.run(1000)

    Args:
        step: what `weft.compile_training` made.
        batches: from the number of a step to its batch.
        rate: the learning rate, or a function of the number of a step.
        checkpoint: a file that every `every` steps, and the end of a run, replaces. If there is one, the training goes
            on from it, and comes to the same bits as without the interruption.
        progress: whether a bar and the loss are shown, on a terminal.

    Attributes:
        losses: of the steps that were done here.
    """

    step: TrainingStep
    batches: Batches
    rate: float | Callable[[int], float]
    checkpoint: str | os.PathLike[str] | None = None
    every: int = 100
    progress: bool = True
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"every: expected at least 1 step, got {self.every}")
        if self.checkpoint is not None and Path(self.checkpoint).exists():
            self.step.load(self.checkpoint)

    def run(self, steps: int) -> float:
        """Steps until `steps` are done in all; the last loss.

        Raises:
            ExecutionError: a loss is not finite, or with `clip` the gradients, or with float16 the gradients at a scale
                of 1; names the node that is the first to give such numbers. Parameters and state are those before that
                step, but for the scale.
            InputError: a batch does not fit; a checkpoint is one of another model.
        """
        from weft.cli.terminal import Progress

        done = 0.0
        with Progress("training") as shown:
            if not self.progress:
                shown.bar.disable = True
            shown.bar.update(shown.task, total=steps, completed=self.step.steps)
            while self.step.steps < steps:
                number = self.step.steps
                batch = self.batches(number)
                rate = self.rate(number) if callable(self.rate) else self.rate
                loss = float(self.step(batch, rate)[LOSS].reshape(()))
                if self.step.steps == number:
                    if np.isfinite(loss) and self.step.scale is not None and self.step.scale >= 1:
                        continue  # gradients in float16 overflowed: the same batch with the smaller scale
                    raise self._not_finite(batch, number, loss)
                self.losses.append(loss)
                done = loss
                shown.bar.advance(shown.task)
                shown.show(f"loss {loss:.4g}")
                if self.checkpoint is not None and self.step.steps % self.every == 0 and self.step.steps < steps:
                    self.step.save(self.checkpoint)
        if self.checkpoint is not None:
            self.step.save(self.checkpoint)
        return done

    def _not_finite(self, batch: Mapping[str, Any], number: int, loss: float) -> ExecutionError:
        node = self.step.first_not_finite(batch)
        what = f"the loss of step {number + 1} is {loss}"
        if np.isfinite(loss):
            what = f"the gradients of step {number + 1} are not finite, its loss is {loss}"
        return ExecutionError(
            what,
            where=node,
            why="the first numbers that are not finite come from there" if node else None,
            hint="a lower rate, clip=…, or an epsilon in a division may help; parameters are those before this step",
        )
