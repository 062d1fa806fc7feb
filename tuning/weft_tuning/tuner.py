"""The tuner: measures candidates of all kernels that matter, in rounds, and records what is faster.

A round takes a candidate of every kernel, compiles all of them at once, and measures one executable that has them
beside one that has the defaults, in turns within one process. A candidate's time is therefore of a real run, on the
buffers of that run, and a change of the machine's speed affects both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.choices import Value
from weft.errors import ExecutionError, WeftError
from weft_tuning.budget import Budget
from weft_tuning.graphs import GraphSearch
from weft_tuning.measuring import Failed, Times, Worker, by_kernel
from weft_tuning.ranking import Ranking
from weft_tuning.report import Report, Row, State
from weft_tuning.search import Search
from weft_tuning.spaces import Candidate
from weft_tuning.store import Store, Trial
from weft_tuning.work import ModelWork, Work

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

Batch: TypeAlias = "dict[str, Candidate]"
"""Key of a kernel → its candidate."""
Results: TypeAlias = "dict[str, tuple[Candidate, float | str | None]]"
"""Key → candidate, and the logarithm of its time over the default's; or why it failed; or None, if the machine was
under load."""
GRAPH_PART = 0.35
"""Part of the time, or of the trials, that the choices of graph passes get at most."""
RELEVANT = 0.005
"""Share of a run from which a kernel is tuned."""
GAIN = 0.02
"""Least logarithm of a gain that is recorded: 2 %, and more where measurements vary by more."""
CONFIRM = 6
"""Rounds after which what seems best is measured again."""
PATIENCE = 40
"""Trials of a kernel without a gain after which it rests, if it takes the whole time; a third as many at least."""
RUN_SECONDS = 0.6
"""Of one measurement, or `RUNS` turns where these take longer."""
RUNS = 8
SLOWER = 40.0
"""How many times as long as the default's runs a candidate's may take before it is ended."""
ASSUMED_SECONDS = 0.05
"""Of a run, before one was measured."""
WIDENED = 8.0
"""How many times as patient the tuner becomes, as long as time is left."""
VARIES = 0.2
"""Range of the middle half of the default's times over their median, beyond which the machine is under load."""
SLOWED = 1.35
"""Median of the default's times over the least one of all rounds, beyond which the machine is under load."""
LOADED = "the machine is under load"
REPEATS = 3
"""How often a measurement under load is repeated before its round is left out."""


@dataclass
class Subject:
    """One kernel: what was measured of it.

    Attributes:
        share: of the time of a run, with the defaults.
        noise: how much the logarithm of its time varies between equal executables.
        results: choices → (candidate, logarithms of its time over the default's).
    """

    key: str
    name: str
    search: Search
    share: float
    noise: float
    limit: float | None = None
    results: dict[object, tuple[Candidate, list[float]]] = field(default_factory=dict)
    trials: int = 0
    failures: int = 0
    resting: int = 0

    @property
    def margin(self) -> float:
        return max(GAIN, 2 * self.noise)

    def best(self, times: int = 1) -> tuple[Candidate, float] | None:
        """The fastest candidate that was measured so often, and its value; None if none is faster than the default."""
        found = [(float(np.mean(values)), c) for c, values in self.results.values() if len(values) >= times]
        faster = [(value, c) for value, c in found if value < -self.margin / 2]
        if not faster:
            return None
        value, candidate = min(faster, key=lambda f: f[0])
        return candidate, value

    @property
    def patience(self) -> float:
        return PATIENCE * max(0.33, math.sqrt(self.share))

    def active(self, widened: float) -> bool:
        """Whether it is searched on, by a tuner that is so many times as patient as at first."""
        return not self.search.exhausted and self.resting < self.patience * widened


class Tuner:
    """Tunes a work's kernels.

    Args:
        seconds: how long it may take; None: no limit.
        trials: candidates that it may measure; None: no limit.
        graph: search the choices of a model's graph passes, too.
        on_state: called after every round.
    """

    def __init__(
        self,
        work: Work,
        worker: Worker,
        store: Store,
        *,
        seconds: float | None = 600.0,
        trials: int | None = None,
        seed: int = 0,
        limits: bool = True,
        graph: bool = True,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        self.work, self.worker, self.store, self.seed = work, worker, store, seed
        self.budget, self.on_state = Budget(seconds, trials), on_state
        self.started = time.perf_counter()
        self.trials = self.failures = self.unsteady = self.rounds = 0
        self.failed: dict[str, int] = {}
        self.least = math.inf
        self.seconds_of_run = ASSUMED_SECONDS
        self.ticks: Mapping[str, float] = {}
        self.subjects: list[Subject] = []
        self.widened = 1.0
        self.stop = False
        self.graph = graph
        self.graph_ratio = 1.0
        self.graph_changed: Mapping[str, Value] = {}
        self._limits = limits
        self._round_seconds = 0.0

    def run(self) -> Report:
        """Measures until the time or the candidates are used up, or `stop` is set; records what is faster.

        Raises:
            WeftError: the defaults cannot be compiled or measured, or the worker does not measure for their target.
        """
        self.worker.require(self.work.target)
        self.worker.begin(self.work.base, self.work.inputs)
        self._search_graph()
        limits = self.work.limits() if self._limits else {}
        self.subjects = self._subjects(limits)
        why: str | None = None
        while why is None and not self.stop and (batches := self._batches()):
            began = time.perf_counter()
            for results in self._measured(batches):
                self._take(results)
            self.rounds += 1
            if self.rounds % CONFIRM == 0:
                self._confirm()
            self._round_seconds = max(self._round_seconds * 0.8, time.perf_counter() - began)
            self._tell_state()
            why = self._over()
            if self.unsteady >= 4 * REPEATS and self.unsteady > self.rounds:
                why = f"{LOADED}, so that its times tell nothing"
        if self.stop:
            why = "it was interrupted"
        why = why or self.budget.spent(0.0, self.trials) or "every kernel has been searched"
        self._confirm()
        ratio = self._finish()
        return self._report(ratio, why)

    def _search_graph(self) -> None:
        """Searches the choices of graph passes, in a part of the time; what follows is of kernels of the graph that
        they make, and measured beside it."""
        first = self.work
        if not isinstance(first, ModelWork) or not self.graph or not first.graph_choices:
            return
        times = self._steady(first.base)
        if isinstance(times, Failed):
            raise _unmeasured(first.name, times.why)
        self.seconds_of_run = float(np.median(times.base_seconds))
        ticks = by_kernel(first.calls, times.base)
        total = sum(ticks.values()) or 1.0
        search = GraphSearch(
            first,
            {key: t / total for key, t in ticks.items()},
            self.store,
            lambda executable: self._all_steady([executable])[0],
            lambda: self.stop or bool(self.budget.spent(self._elapsed(), search.trials, GRAPH_PART)),
        )
        found = search.run()
        self.trials += search.trials
        self.failures += sum(search.failed.values())
        self.failed.update(search.failed)
        if not search.best:
            return
        self.graph_ratio, self.graph_changed = math.exp(search.value), search.best
        seconds = self.seconds_of_run
        self.store.put("graph", first.graph_key, search.best, seconds * self.graph_ratio, seconds, first.name)
        self.work = found
        self.least = math.inf
        self.worker.begin(found.base, found.inputs)

    # -- what there is
    def _subjects(self, limits: Mapping[str, float]) -> list[Subject]:
        times = self._steady(self.work.base)
        if isinstance(times, Failed):
            raise _unmeasured(self.work.name, times.why)
        self.seconds_of_run = float(np.median(times.base_seconds))
        base = by_kernel(self.work.calls, times.base)
        again = by_kernel(self.work.calls, times.candidate)
        total = sum(base.values()) or 1.0
        self.ticks = base
        self.in_kernels = total
        ranking = Ranking(self.seed)
        found = []
        for number, key in enumerate(dict.fromkeys(self.work.calls)):
            share = base[key] / total
            if share < RELEVANT:
                continue
            search = Search(self.work.space(key), ranking, self.seed + number)
            noise = abs(math.log(max(again[key], 1.0) / max(base[key], 1.0)))
            subject = Subject(key, self.work.names[key], search, share, min(noise, 0.1), limits.get(key))
            self._remember(subject)
            found.append(subject)
        return sorted(found, key=lambda s: -s.share)

    def _remember(self, subject: Subject) -> None:
        """What an earlier tuner has measured."""
        known: dict[object, Candidate | None] = {}
        failed = set()
        for trial in self.store.trials(self.work.trial_key(subject.key)):
            of = tuple(sorted(trial.choices.items()))
            if of not in known:
                known[of] = subject.search.space.follow(trial.choices)
                if (new := known[of]) is not None:
                    subject.search.told(new, trial.value)
            candidate = known[of]
            if trial.value is None:
                failed.add(of)
            elif candidate is not None:
                subject.results.setdefault(of, (candidate, []))[1].append(trial.value)
        for of in failed:
            subject.results.pop(of, None)

    # -- rounds
    def _batches(self) -> list[Batch]:
        """Per slot of the worker a candidate of every kernel that has one left."""
        batches: list[Batch] = []
        while self.widened < WIDENED and not any(s.active(self.widened) for s in self.subjects):
            self.widened *= 2
        for _ in range(self.worker.slots):
            batch: Batch = {}
            for subject in self.subjects:
                if self.trials + sum(map(len, batches)) + len(batch) >= self.budget.most:
                    break
                candidate = subject.search.ask() if subject.active(self.widened) else None
                if candidate is not None:
                    batch[subject.key] = candidate
            if batch:
                batches.append(batch)
        return batches

    def _measured(self, batches: Sequence[Batch]) -> list[Results]:
        """The results of batches, those of one that fails as a whole in parts."""
        built: list[tuple[Batch, Executable]] = []
        results: list[Results] = []
        for batch in batches:
            try:
                built.append((batch, self.work.build({key: c.choices for key, c in batch.items()})))
            except WeftError as error:
                results += self._divided(batch, error.what)
        times = self._all_steady([executable for _, executable in built])
        for (batch, _), found in zip(built, times):
            if isinstance(found, Failed):
                results += self._divided(batch, found.why)
            elif found is None:
                results.append({key: (c, None) for key, c in batch.items()})
            else:
                results.append({key: (c, self._value(key, found)) for key, c in batch.items()})
        return results

    def _divided(self, batch: Batch, why: str) -> list[Results]:
        """The results of a batch that fails as a whole: which of its candidates is at fault shows in parts of it."""
        if len(batch) == 1:
            return [{key: (c, why) for key, c in batch.items()}]
        items = list(batch.items())
        half = len(items) // 2
        return [r for part in (items[:half], items[half:]) for r in self._measured([dict(part)])]

    def _take(self, results: Results) -> None:
        by_key = {s.key: s for s in self.subjects}
        rows: list[tuple[str, Trial]] = []
        for key, (candidate, result) in results.items():
            subject = by_key[key]
            value = result if isinstance(result, float) else None
            if result is None:
                subject.search.forget(candidate)
                continue
            before = subject.best()
            self.trials += 1
            subject.trials += 1
            if isinstance(result, str):
                self.failures += 1
                subject.failures += 1
                self.failed[result] = self.failed.get(result, 0) + 1
            subject.search.told(candidate, value)
            if value is not None:
                subject.results.setdefault(candidate.key, (candidate, []))[1].append(value)
            rows.append((key, Trial(candidate.choices, value, result if isinstance(result, str) else None)))
            gained = value is not None and value < (before[1] if before else 0.0) - subject.margin
            subject.resting = 0 if gained else subject.resting + 1
        self._keep(rows)

    def _keep(self, rows: Sequence[tuple[str, Trial]]) -> None:
        self.store.add_trials([(self.work.trial_key(key), trial) for key, trial in rows])

    def _confirm(self) -> None:
        """Measures again what seems best and was measured only once, and records what is faster."""
        for _ in range(3):
            again = {s.key: b[0] for s in self.subjects if (b := s.best()) and len(s.results[b[0].key][1]) < 2}
            if not again:
                break
            for results in self._measured([again]):
                rows = []
                for key, (candidate, result) in results.items():
                    subject = next(s for s in self.subjects if s.key == key)
                    if isinstance(result, str):
                        subject.results.pop(candidate.key, None)
                        rows.append((key, Trial(candidate.choices, None, result)))
                    if isinstance(result, float):
                        subject.results[candidate.key][1].append(result)
                        rows.append((key, Trial(candidate.choices, result)))
                self._keep(rows)
        for subject in self.subjects:
            self._put(subject, subject.best(2))

    def _finish(self) -> float:
        """Measures all records together beside the defaults, twice; takes back those that gain nothing there. The time
        of a run with what is left over that with the defaults."""
        chosen = {s.key: b[0] for s in self.subjects if (b := s.best(2))}
        ratio = 1.0
        for _ in range(2):
            if not chosen:
                return 1.0
            times = self._together(chosen)
            if times is None:  # under load: what was confirmed before holds
                return self._expected(2)
            if isinstance(times, Failed):
                self._take_back(chosen)
                return 1.0
            ratio = float(np.median(times.candidate_seconds) / np.median(times.base_seconds))
            slow = {key: c for key, c in chosen.items() if self._value(key, times) > -GAIN / 2}
            self._take_back(slow)
            chosen = {key: c for key, c in chosen.items() if key not in slow}
            if not slow:
                break
        if ratio > 1.0:
            self._take_back(chosen)
            return 1.0
        return ratio

    def _together(self, chosen: Batch) -> Times | Failed | None:
        try:
            executable = self.work.build({key: c.choices for key, c in chosen.items()})
        except WeftError as error:
            return Failed(error.what)
        (times,) = self._all_steady([executable], 3 * RUN_SECONDS)
        if isinstance(times, Failed):  # each of them has run before: what failed may have been the machine
            (times,) = self._all_steady([executable], 3 * RUN_SECONDS)
        return times

    def _expected(self, times: int) -> float:
        """A run's time over that with the defaults, by what was measured of each kernel so often."""
        return 1.0 - sum(s.share * (1.0 - math.exp(b[1])) for s in self.subjects if (b := s.best(times)))

    def _take_back(self, chosen: Batch) -> None:
        for key, candidate in chosen.items():
            subject = next(s for s in self.subjects if s.key == key)
            subject.results.clear()
            self.store.drop("program", key, candidate.choices)

    def _put(self, subject: Subject, best: tuple[Candidate, float] | None) -> None:
        if best is None:
            return
        candidate, value = best
        seconds = self._seconds(subject.key)
        self.store.put("program", subject.key, candidate.choices, seconds * math.exp(value), seconds, subject.name)

    # -- measuring
    def _steady(self, executable: Executable, seconds: float = RUN_SECONDS) -> Times | Failed:
        (found,) = self._all_steady([executable], seconds, 2 * REPEATS)  # without it there is nothing to compare with
        return found or Failed(LOADED)

    def _all_steady(
        self, executables: Sequence[Executable], seconds: float = RUN_SECONDS, repeats: int = REPEATS
    ) -> list[Times | Failed | None]:
        """Times of each; those that were taken while the machine was under load are taken again, and None if it stays
        so."""
        run = self.seconds_of_run
        seconds = max(seconds, RUNS * 2 * run)
        limit = max(10.0, 3 * seconds + SLOWER * run * RUNS)
        found: list[Times | Failed | None] = [None] * len(executables)
        for attempt in range(repeats):
            missing = [k for k, f in enumerate(found) if f is None]
            if not missing:
                break
            if attempt:
                time.sleep(0.5 * attempt)
            measured = self.worker.measure([executables[k] for k in missing], seconds, limit)
            for k, times in zip(missing, measured):
                if isinstance(times, Failed) or self._is_steady(times):
                    found[k] = times
                else:
                    self.unsteady += 1
        return found

    def _is_steady(self, times: Times) -> bool:
        median = float(np.median(times.base_seconds))
        low, high = np.percentile(times.base_seconds, (25, 75))
        self.least = min(self.least, median)
        return bool((high - low) / median <= VARIES and median <= SLOWED * self.least)

    def _value(self, key: str, times: Times) -> float:
        base = by_kernel(self.work.calls, times.base)[key]
        candidate = by_kernel(self.work.calls, times.candidate)[key]
        return math.log(max(candidate, 1.0) / max(base, 1.0))

    def _seconds(self, key: str) -> float:
        """Of all calls of a kernel in a run with the defaults."""
        return self.seconds_of_run * self.ticks[key] / self.in_kernels

    # -- saying
    def _over(self) -> str | None:
        return self.budget.spent(self._elapsed() + 2.5 * self._round_seconds, self.trials)

    def _elapsed(self) -> float:
        return time.perf_counter() - self.started

    def _tell_state(self) -> None:
        if self.on_state is None:
            return
        limits = [s.share * (1.0 - s.limit) for s in self.subjects if s.limit is not None]
        possible = 1.0 - sum(limits) if limits else None
        active = sum(s.active(self.widened) for s in self.subjects)
        self.on_state(
            State(
                self._elapsed(),
                self.budget.seconds,
                self.trials,
                self.budget.trials,
                self.failures,
                self._expected(1),
                possible,
                active,
                len(self.subjects),
            )
        )

    def _report(self, ratio: float, why: str) -> Report:
        rows = []
        for s in self.subjects:
            best = s.best(2)
            seconds = self._seconds(s.key)
            default = s.search.space.default.choices
            changed = {} if best is None else {n: v for n, v in best[0].choices.items() if default.get(n) != v}
            tuned = seconds if best is None else seconds * math.exp(best[1])
            rows.append(Row(s.key, s.name, s.share, seconds, tuned, s.trials, s.failures, changed, s.limit))
        return Report(
            self.work.name,
            tuple(rows),
            self.trials,
            self.failures,
            ratio * self.graph_ratio,
            self.seconds_of_run / self.graph_ratio,
            self._elapsed(),
            self.unsteady,
            why,
            dict(self.failed),
            self.graph_changed,
            self.graph_ratio,
        )


def _unmeasured(name: str, why: str) -> ExecutionError:
    hint = (
        "end what else runs" if why == LOADED else "does `weft run` run it here? --on and --cluster measure elsewhere"
    )
    return ExecutionError(f"'{name}' cannot be measured", why=why, hint=hint)
