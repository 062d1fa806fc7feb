"""The choices of graph passes: algorithms, layouts and fusion, which decide what kernels there are.

Each is tried by itself beside the defaults, and the time of whole runs counts. Choices of nodes that lie in equal
kernels are changed together, since layers repeat; those of the kernels that take most of the time are tried first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from weft.choices import Choice, Value
from weft.errors import WeftError
from weft_tuning.measuring import Failed, Times
from weft_tuning.store import Store, Trial
from weft_tuning.work import ModelWork

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

LEAST_SHARE = 0.01
"""Share of a run that the kernels of a choice take, from which it is tried."""
GAIN = 0.01
"""Least logarithm of a gain of a whole run that counts."""
MOST_OPTIONS = 8
"""Options of a choice that are tried."""


@dataclass(frozen=True)
class Change:
    """Choices that are changed together, to one value, and the share of a run that their kernels take."""

    choices: Mapping[str, Value]
    share: float


@dataclass
class GraphSearch:
    """Tries the graph's choices one after another; what gains is kept, and what follows is tried with it.

    Args:
        measure: an executable's times beside the base's; None while the machine is under load.
        over: whether the time for this is over.

    Attributes:
        best: the choices that are kept, and `value` the logarithm of a run's time with them over the defaults'.
    """

    work: ModelWork
    shares: Mapping[str, float]
    store: Store
    measure: Callable[[Executable], Times | Failed | None]
    over: Callable[[], bool]
    best: dict[str, Value] = field(default_factory=dict)
    value: float = 0.0
    trials: int = 0
    failed: dict[str, int] = field(default_factory=dict)

    def run(self) -> ModelWork:
        """The work with the choices that gain, which is the same one if none do."""
        known = {
            tuple(sorted(t.choices.items())): t for t in self.store.trials(self.work.trial_key(self.work.graph_key))
        }
        found = self.work
        for change in self.changes():
            if self.over():
                break
            chosen = {**self.best, **change.choices}
            before = known.get(tuple(sorted(chosen.items())))
            if before is not None and (before.value is None or before.value > self.value - GAIN):
                continue
            tried, value = self._try(chosen)
            if tried is None or value is None or value > self.value - GAIN:
                continue
            again = self._measure(tried)
            if isinstance(again, float) and again < self.value - GAIN:
                self.best, self.value, found = chosen, max(value, again), tried
        return found

    def changes(self) -> Iterator[Change]:
        """What is tried, that of the kernels that take most of the time first."""
        groups: dict[tuple[str, str, tuple[Value, ...], Value], list[Choice]] = {}
        shares: dict[tuple[str, str, tuple[Value, ...], Value], float] = {}
        for choice in self.work.graph_choices:
            kind, _, value = choice.name.partition(".%")
            kernel = self.work.kernel_of(value)
            of = (kind, kernel or choice.name, choice.options, choice.value)
            groups.setdefault(of, []).append(choice)
            shares[of] = self.shares.get(kernel or "", 0.0)
        for of in sorted(groups, key=lambda o: -shares[o]):
            _, _, options, default = of
            if shares[of] < LEAST_SHARE:
                return
            for option in [o for o in options if o != default][:MOST_OPTIONS]:
                yield Change({c.name: option for c in groups[of]}, shares[of])

    def _try(self, chosen: Mapping[str, Value]) -> tuple[ModelWork | None, float | None]:
        self.trials += 1
        try:
            tried = self.work.with_graph(chosen)
        except WeftError as error:
            self._note(chosen, error.what)
            return None, None
        result = self._measure(tried)
        if result is not None:
            self._note(chosen, result)
        return tried, result if isinstance(result, float) else None

    def _measure(self, tried: ModelWork) -> float | str | None:
        times = self.measure(tried.base)
        if isinstance(times, Failed):
            return times.why
        if times is None:
            return None
        return math.log(float(np.median(times.candidate_seconds) / np.median(times.base_seconds)))

    def _note(self, chosen: Mapping[str, Value], result: float | str) -> None:
        failed = isinstance(result, str)
        if failed:
            self.failed[str(result)] = self.failed.get(str(result), 0) + 1
        trial = Trial(chosen, None if failed else float(result), str(result) if failed else None)
        self.store.add_trials([(self.work.trial_key(self.work.graph_key), trial)])
