"""The search for one kernel: which candidate to measure next.

Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) draws candidates from what was measured of the
kernel; others are fast ones with one choice changed, or random. A learned cost model of all kernels picks one of
several. Every choice is a parameter of its own for each list of options that it is made from: which options there are
may depend on earlier choices.
"""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.choices import Value
from weft.errors import PluginError, WeftError
from weft_tuning.ranking import Ranking
from weft_tuning.spaces import Candidate, Pick, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

DRAWN = 6
"""Candidates that are drawn for one that is measured."""
NEAR = 4
"""The fastest candidates, of which others are made by changing one choice."""
MISSES = 90
"""Draws for one candidate that give nothing new, after which all there is has been measured."""
FAILED = math.log(4.0)
"""What a candidate that fails counts as: four times the default's time."""
FIRST = 10
"""Candidates that are drawn at random before the estimator is asked."""
LEARNED = 0.8
"""Share of the candidates that the cost model picks. The rest is as drawn, since the model may be wrong."""


class Search:
    """Of one kernel.

    Args:
        ranking: learns from this kernel and others.
    """

    def __init__(self, space: Space, ranking: Ranking, seed: int = 0) -> None:
        """
        Raises:
            PluginError: a library that searches is not installed.
        """
        optuna = libraries()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            # Spaces whose parameters depend on each other need `group`, which is marked as experimental since 2021.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=FIRST)
        self._study = optuna.create_study(sampler=sampler, direction="minimize")
        self._random = random.Random(seed)
        self._asked: dict[Any, Trial] = {}
        self._known: set[Any] = set()
        self._fast: list[tuple[float, Candidate]] = []
        self.space, self.ranking = space, ranking
        self.exhausted = False
        self.told(space.default, 0.0)

    def ask(self) -> Candidate | None:
        """A candidate that was not measured before; None if there is none left, as far as draws tell."""
        drawn: dict[object, Candidate] = {}
        trials: dict[object, Trial] = {}
        misses = 0
        while len(drawn) < DRAWN and misses < MISSES:
            found, trial = self._draw(len(drawn) + misses)
            if found is None or found.key in self._known or found.key in drawn:
                misses += 1
                self._leave(trial, FAILED if found is None else None)
                continue
            drawn[found.key] = found
            if trial is not None:
                trials[found.key] = trial
        if not drawn:
            self.exhausted = True
            return None
        chosen = self._best(list(drawn.values()))
        for key, trial in trials.items():
            if key == chosen.key:
                self._asked[key] = trial
            else:
                self._leave(trial, None)
        self._known.add(chosen.key)
        return chosen

    def _draw(self, number: int) -> tuple[Candidate | None, Trial | None]:
        """A candidate by one of three ways in turn: the estimator (with its trial), another value of one choice of a
        fast candidate, and any values. None if a rule does not take its choices."""
        trial = None
        pick: Pick
        if number % 3 == 0:
            trial = self._study.ask()
            pick = _Draw(trial)
        elif number % 3 == 1:
            near = self._random.choice(sorted(self._fast, key=lambda f: f[0])[:NEAR])[1]
            pick = self._changed(near, self._random.choice(list(near.choices)))
        else:
            pick = self._anything
        try:
            return self.space.pick(pick), trial
        except WeftError:
            return None, trial

    def _anything(self, name: str, options: Sequence[Any], default: Any) -> Any:
        return self._random.choice(list(options))

    def _changed(self, near: Candidate, changed: str) -> Pick:
        """Takes what a candidate has, but for one choice; the default of choices that only the change brings about."""

        def pick(name: str, options: Sequence[Any], default: Any) -> Any:
            if name == changed:
                return self._random.choice(list(options))
            return near.choices[name] if near.choices.get(name) in options else default

        return pick

    def _leave(self, trial: Trial | None, value: float | None) -> None:
        """Ends a trial of the study whose candidate is not measured."""
        import optuna

        if trial is not None and value is not None:
            self._study.tell(trial, value)
        elif trial is not None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def told(self, candidate: Candidate, value: float | None) -> None:
        """The result of a candidate, asked for or not: the logarithm of its time over the default's; None: it
        failed."""
        import optuna

        value = FAILED if value is None else value
        trial = self._asked.pop(candidate.key, None)
        if trial is not None:
            self._study.tell(trial, value)
        else:
            known = _Known(candidate.choices)
            self.space.pick(known)
            self._study.add_trial(
                optuna.trial.create_trial(params=known.params, distributions=known.distributions, value=value)
            )
        self._known.add(candidate.key)
        self._fast.append((value, candidate))
        self.ranking.learn(self.space.default.features, candidate.features, value)

    def forget(self, candidate: Candidate) -> None:
        """Of a candidate that was asked for there is no result; it may be asked for again."""
        self._leave(self._asked.pop(candidate.key, None), None)
        self._known.discard(candidate.key)

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        if len(candidates) > 1 and self._random.random() < LEARNED:
            expected = self.ranking.predict(self.space.default.features, [c.features for c in candidates])
            if expected is not None:
                return candidates[min(range(len(candidates)), key=expected.__getitem__)]
        return self._random.choice(candidates)


def libraries() -> Any:
    """Optuna, if all libraries of a search are installed. Asked before anything is compiled.

    Raises:
        PluginError: one is not, or cannot be loaded.
    """
    try:
        import lightgbm  # noqa: F401
        import optuna
    except ImportError as error:
        raise PluginError(
            f"the tuner needs the package {error.name}",
            hint="pip install optuna lightgbm, which are the extra 'search' of weft-tuning",
        ) from None
    except OSError as error:  # of lightgbm, which is there and loads a library of the system
        raise PluginError(
            "the package lightgbm cannot be loaded",
            why=str(error),
            hint="libgomp, of OpenMP, is a package of the system: apt install libgomp1",
        ) from None
    return optuna


class _Draw:
    """Draws options from a trial of the study."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __call__(self, name: str, options: Sequence[Any], default: Any) -> Any:
        from optuna.distributions import IntDistribution

        if len(options) == 1:
            return options[0]
        parameter, distribution = _parameter(name, options)
        if isinstance(distribution, IntDistribution):
            return options[self.trial.suggest_int(parameter, distribution.low, distribution.high)]
        return options[int(self.trial.suggest_categorical(parameter, range(len(options))))]


class _Known:
    """Takes options that are given, and notes them as a trial has them."""

    def __init__(self, choices: Mapping[str, Value]) -> None:
        self.choices = choices
        self.params: dict[str, int] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    def __call__(self, name: str, options: Sequence[Any], default: Any) -> Any:
        value = self.choices.get(name, default)
        if len(options) > 1 and value in options:
            parameter, self.distributions[parameter] = _parameter(name, options)
            self.params[parameter] = list(options).index(value)
        return value


def _parameter(name: str, options: Sequence[Any]) -> tuple[str, BaseDistribution]:
    """A choice among these options as a parameter: an index, in order if the options are numbers."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    parameter = f"{name} of {hashlib.sha256(repr(list(options)).encode()).hexdigest()[:8]}"
    numbers = all(isinstance(o, int) and not isinstance(o, bool) for o in options)
    if numbers and list(options) == sorted(options):
        return parameter, IntDistribution(0, len(options) - 1)
    return parameter, CategoricalDistribution(tuple(range(len(options))))
