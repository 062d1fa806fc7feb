"""The tuner with a worker whose times are known: it finds what is fastest, isolates what fails, and goes on later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.errors import InputError, LoopError
from weft.kernel import schedule
from weft.loop.nodes import Program
from weft.resolve import ResolvedTarget, resolve_target
from weft_interpreter.interpret import interpret
from weft_testing.models import mlp
from weft_tuning.budget import Budget
from weft_tuning.measuring import Failed, Times, Worker
from weft_tuning.ranking import LEAST, Ranking
from weft_tuning.report import Report, State
from weft_tuning.search import Search
from weft_tuning.spaces import Space
from weft_tuning.store import Store, drop, kept
from weft_tuning.tuner import CONFIRM, Tuner
from weft_tuning.work import Chosen, FormulaWork, ModelWork, Work

TARGET = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -threads=2"


@pytest.fixture(scope="module")
def target() -> ResolvedTarget:
    return resolve_target(TARGET)


def product(rows: int = 64, columns: int = 48, steps: int = 40) -> Program:
    a, b = weft.placeholder((rows, steps), name="a"), weft.placeholder((steps, columns), name="b")
    k = weft.reduce_axis(steps)
    return schedule(weft.compute((rows, columns), lambda i, j: weft.sum(a[i, k] * b[k, j], axis=k)), TARGET).program


# -- spaces and the search


def test_the_default_is_what_a_compilation_makes(target: ResolvedTarget) -> None:
    space = Space(product(), target)
    default = space.follow(space.default.choices)
    assert default is not None and default.key == space.default.key
    assert default.features == space.default.features
    assert space.follow({"rule": "no such"}) is None
    assert space.follow({**space.default.choices, "more": 1}) is None


@settings(max_examples=25)
@given(st.data())
def test_every_candidate_computes_the_same(data: st.DataObject) -> None:
    program = product(7, 19, 5)
    space = Space(program, resolve_target(TARGET))
    made: list[Any] = []

    def pick(name: str, options: Sequence[Any], default: Any) -> Any:
        made.append(data.draw(st.sampled_from(list(options)), label=name))
        return made[-1]

    from weft.errors import ChoiceError
    from weft.scheduling.run_rules import run_recorded
    from weft_tuning.spaces import _Picking

    target = space.target
    try:
        scheduled = run_recorded(
            target.rules, program, target.machine, target.intrinsics, target.exceeds, _Picking(pick)
        ).schedule.program
    except ChoiceError:
        return
    random = np.random.default_rng(0)
    arrays = {b.name: random.standard_normal([int(d) for d in map(str, b.shape)]).astype("f4") for b in program.inputs}
    expected, found = (interpret(p, arrays, {}) for p in (program, scheduled))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_a_search_finds_the_minimum(target: ResolvedTarget) -> None:
    search = Search(Space(product(), target), Ranking(), seed=1)
    best: dict[str, Any] = {}
    least = 0.0
    for _ in range(60):
        candidate = search.ask()
        if candidate is None:
            break
        value = artificial(candidate.choices)
        search.told(candidate, value)
        if value < least:
            least, best = value, dict(candidate.choices)
    assert least < -1.0 and best["rule"] == "contraction" and abs(int(best["tile_rows"]) - 9) <= 3


def artificial(choices: Mapping[str, Any]) -> float:
    """The logarithm of a time over the default's: a bowl around tiles of 9 rows."""
    if choices["rule"] != "contraction":
        return 1.0
    return 0.02 * (int(choices["tile_rows"]) - 9) ** 2 - 1.5


def test_a_space_that_is_used_up_ends(target: ResolvedTarget) -> None:
    x = weft.placeholder((3,), name="x")
    program = schedule(weft.compute((3,), lambda i: x[i] + 1.0), TARGET).program
    search = Search(Space(program, target), Ranking())
    seen = set()
    while (candidate := search.ask()) is not None:
        assert candidate.key not in seen
        seen.add(candidate.key)
        search.told(candidate, 0.1)
        assert len(seen) < 500
    assert search.exhausted and seen


def test_a_ranking_orders_what_it_has_learned() -> None:
    ranking, random = Ranking(), np.random.default_rng(0)
    default = (0.0, 0.0)
    assert ranking.predict(default, [default]) is None
    for _ in range(4 * LEAST):
        row = tuple(map(float, random.uniform(0, 8, 2)))
        ranking.learn(default, row, row[0] - 4.0)
    low, high = ranking.predict(default, [(1.0, 5.0), (7.0, 5.0)]) or (0.0, 0.0)
    assert low < -1.5 < 1.5 < high


# -- the tuner


class Artificial(Worker):
    """Gives times that a function of the choices says, which the work notes for each executable."""

    def __init__(self, work: Noting, value: Callable[[Mapping[str, Any]], float | str], slots: int = 1) -> None:
        self.work, self.value, self.slots = work, value, slots
        self.measured = 0
        self.unsteady = 0

    def begin(self, base: Any, inputs: Mapping[str, Any]) -> None:
        self.base = base

    def measure(self, candidates: Sequence[Any], seconds: float, limit: float) -> list[Times | Failed]:
        return [self._one(self.work.chosen[id(c)]) for c in candidates]

    def _one(self, chosen: Chosen) -> Times | Failed:
        self.measured += 1
        turns, calls = 5, len(self.work.calls)
        values = {key: self.value(chosen[key]) if key in chosen else 0.0 for key in self.work.calls}
        why = next((v for v in values.values() if isinstance(v, str)), None)
        if why is not None:
            return Failed(why)
        base = np.full((turns, calls), 10_000.0)
        factors = np.array([math.exp(float(values[key])) for key in self.work.calls])
        whole = np.full(turns, 1e-3)
        if self.unsteady:
            self.unsteady -= 1
            whole = whole * np.array([1.0, 2.0, 1.0, 2.0, 1.5])
        return Times(base, base * factors, whole, whole * float(factors.mean()))

    def close(self) -> None:
        pass


class Noting(Work):
    """Another work, that notes which choices each executable has."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.name, self.target, self.inputs = work.name, work.target, work.inputs
        self.calls, self.names, self.base = work.calls, work.names, work.base
        self.trial_key = work.trial_key  # type: ignore[method-assign]
        self.chosen: dict[int, Chosen] = {id(self.base): {}}
        self.built: list[Any] = []

    def space(self, key: str) -> Space:
        return self.work.space(key)

    def build(self, chosen: Chosen) -> Any:
        made = object()
        self.built.append(made)  # or its id would be another's
        self.chosen[id(made)] = chosen
        return made


@pytest.fixture(scope="module")
def work(target: ResolvedTarget) -> FormulaWork:
    return FormulaWork(product(), target)


def tuned(
    work: Work, path: Path, value: Callable[[Mapping[str, Any]], float | str], **options: Any
) -> tuple[Tuner, Artificial, Report]:
    noting = Noting(work)
    worker = Artificial(noting, value)
    store = Store(path, work.target.machine_key, work.target.versions)
    tuner = Tuner(noting, worker, store, seconds=None, limits=False, **options)
    return tuner, worker, tuner.run()


def test_the_fastest_is_recorded(work: FormulaWork, tmp_path: Path) -> None:
    _, _, report = tuned(work, tmp_path / "r.sqlite", artificial, trials=60)
    (record,) = kept(tmp_path / "r.sqlite")
    assert abs(int(record.record.choices["tile_rows"]) - 9) <= 3 and record.gain > 2.5
    assert report.trials == 60 and report.ratio < 0.4 and report.why == "all trials are made"
    assert report.rows[0].changed["tile_rows"] == record.record.choices["tile_rows"]


def test_nothing_is_recorded_where_nothing_is_faster(work: FormulaWork, tmp_path: Path) -> None:
    _, _, report = tuned(work, tmp_path / "r.sqlite", lambda choices: 0.01, trials=20)
    assert kept(tmp_path / "r.sqlite") == [] and report.ratio == 1.0 and not report.rows[0].changed


def test_what_is_faster_once_only_is_not_recorded(work: FormulaWork, tmp_path: Path) -> None:
    seen: set[Any] = set()

    def lucky(choices: Mapping[str, Any]) -> float:
        key = tuple(sorted(choices.items()))
        first = key not in seen
        seen.add(key)
        return -0.2 if first else 0.2

    tuned(work, tmp_path / "r.sqlite", lucky, trials=15)
    assert kept(tmp_path / "r.sqlite") == []


def test_what_is_taken_back_is_the_own_record(work: FormulaWork, tmp_path: Path) -> None:
    seen: dict[Any, int] = {}

    def slow_at_last(choices: Mapping[str, Any]) -> float:
        key = tuple(sorted(choices.items()))
        seen[key] = seen.get(key, 0) + 1
        return -0.2 if seen[key] <= 2 else 0.2

    store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
    store.put("program", work.calls[0], {"rule": "of another tuner"}, 1.0, 9.0, "x")
    _, _, report = tuned(work, store.path, slow_at_last, trials=15)
    assert not report.rows[0].changed
    assert [k.record.choices["rule"] for k in kept(store.path)] == ["of another tuner"]


def test_a_candidate_that_fails_costs_itself_alone(target: ResolvedTarget, tmp_path: Path) -> None:
    model = ModelWork(mlp(), target)
    assert len(set(model.calls)) > 1

    def value(choices: Mapping[str, Any]) -> float | str:
        return "it ended the process by signal 11" if choices.get("tile_rows") == 3 else -0.1

    tuner, _, report = tuned(model, tmp_path / "r.sqlite", value, trials=200)
    assert set(report.failed) <= {"it ended the process by signal 11"}
    assert all(r.failures < r.trials for r in report.rows)
    for subject in tuner.subjects:
        assert all(c.choices.get("tile_rows") != 3 for c, _ in subject.results.values())
    for record in kept(tmp_path / "r.sqlite"):
        assert record.record.choices.get("tile_rows") != 3


def test_times_under_load_are_taken_again_and_never_recorded(work: FormulaWork, tmp_path: Path) -> None:
    noting = Noting(work)
    worker = Artificial(noting, artificial)
    store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
    tuner = Tuner(noting, worker, store, seconds=None, trials=10, limits=False)
    worker.unsteady = 2
    report = tuner.run()
    assert report.unsteady == 2 and report.trials == 10


@pytest.mark.parametrize(
    "limits", [{"seconds": 0.0}, {"seconds": -1}, {"seconds": math.nan}, {"seconds": math.inf}, {"seconds": "1"},
               {"trials": 0}, {"trials": 2.5}, {"trials": True}]
)  # fmt: skip
def test_a_budget_is_positive(limits: Any) -> None:
    with pytest.raises(InputError, match=r"'(seconds|trials)' is .*\n  why: it is a (whole )?number above 0"):
        Budget(**limits)


def test_why_it_ended(work: FormulaWork, tmp_path: Path) -> None:
    def why(seconds: float | None, trials: int | None, made: int = 0) -> str:
        noting = Noting(work)
        store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
        tuner = Tuner(noting, Artificial(noting, artificial), store, seconds=seconds, trials=trials, limits=False)
        tuner.trials = made
        return tuner.run().why

    assert why(1e6, 3) == "all trials are made"
    assert why(None, 3, made=3) == "all trials are made"  # by the search of graph choices
    assert why(1e-6, None) == why(1e-6, 100) == "the time is over"


def test_what_fails_when_it_is_measured_again_is_not_tried_later(work: FormulaWork, tmp_path: Path) -> None:
    seen: set[Any] = set()

    def once(choices: Mapping[str, Any]) -> float | str:
        key = tuple(sorted(choices.items()))
        first = key not in seen
        seen.add(key)
        return -0.3 if first else "it ended the process by signal 11"

    path = tmp_path / "r.sqlite"
    tuned(work, path, once, trials=6)
    trials = Store(path, work.target.machine_key, work.target.versions).trials(work.calls[0])
    again = {tuple(sorted(t.choices.items())) for t in trials if t.value is None}
    assert again and kept(path) == []
    tuner, _, _ = tuned(work, path, lambda choices: 0.1, trials=1)
    assert not again & set(tuner.subjects[0].results)


def test_kernels_that_do_not_go_together_are_not_recorded(target: ResolvedTarget, tmp_path: Path) -> None:
    class Apart(Noting):
        def build(self, chosen: Chosen) -> Any:
            if len(chosen) > 1:
                raise LoopError("too much at once")
            return super().build(chosen)

    noting = Apart(ModelWork(mlp(), target))
    store = Store(tmp_path / "r.sqlite", target.machine_key, target.versions)
    worker = Artificial(noting, lambda choices: -0.3)
    report = Tuner(noting, worker, store, seconds=None, trials=12, limits=False).run()
    assert report.ratio == 1.0 and kept(store.path) == []


@pytest.mark.parametrize(("times", "records"), [(1, 1), (2, 0)])
def test_a_failure_at_the_end_is_looked_at_again(work: FormulaWork, tmp_path: Path, times: int, records: int) -> None:
    seen: dict[Any, int] = {}

    def value(choices: Mapping[str, Any]) -> float | str:
        key = tuple(sorted(choices.items()))
        seen[key] = seen.get(key, 0) + 1
        return "the process ended with 1" if 2 < seen[key] <= 2 + times else -0.3

    _, _, report = tuned(work, tmp_path / "r.sqlite", value, trials=4)
    assert len(kept(tmp_path / "r.sqlite")) == records and (report.ratio < 1.0) == bool(records)


def test_under_load_at_the_end_what_was_confirmed_holds(
    target: ResolvedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_tuning.tuner.time.sleep", lambda seconds: None)
    noting = Noting(ModelWork(mlp(), target))
    store = Store(tmp_path / "r.sqlite", target.machine_key, target.versions)
    worker = Artificial(noting, lambda choices: math.log(0.5))
    tuner = Tuner(noting, worker, store, seconds=None, limits=False)

    def loaded(state: State) -> None:
        if tuner.rounds == CONFIRM:
            tuner.stop, worker.unsteady = True, 10**6

    tuner.on_state = loaded
    report = tuner.run()
    halved = sum(row.share for row in report.rows if row.changed)
    assert len(report.rows) > 1 and halved > 0.9
    assert report.ratio == pytest.approx(1.0 - halved / 2)


def test_a_machine_that_stays_under_load_ends_it(
    work: FormulaWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_tuning.tuner.time.sleep", lambda seconds: None)
    noting = Noting(work)
    worker = Artificial(noting, artificial)
    store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
    tuner = Tuner(noting, worker, store, seconds=None, limits=False)

    def loaded(state: State) -> None:
        worker.unsteady = 10**6

    tuner.on_state = loaded
    report = tuner.run()
    assert "under load" in report.why
    assert kept(tmp_path / "r.sqlite") == []
    key = work.calls[0]
    assert len(store.trials(key)) == 1  # of the round before the load


def test_tuning_goes_on_with_what_was_measured(work: FormulaWork, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    first, _, _ = tuned(work, path, artificial, trials=15)
    second, _, _ = tuned(work, path, artificial, trials=5)
    (a,), (b,) = first.subjects, second.subjects
    assert set(a.results) <= set(b.results) and len(b.results) == len(a.results) + 5


def test_an_interrupt_ends_after_the_round_and_keeps_what_was_found(work: FormulaWork, tmp_path: Path) -> None:
    noting = Noting(work)
    store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
    tuner = Tuner(noting, Artificial(noting, lambda choices: -0.3), store, seconds=None, limits=False)

    def told(state: State) -> None:
        tuner.stop = state.trials >= 4

    tuner.on_state = told
    report = tuner.run()
    assert report.why == "it was interrupted" and report.trials == 4
    assert len(kept(tmp_path / "r.sqlite")) == 1


def test_several_slots_measure_different_candidates(work: FormulaWork, tmp_path: Path) -> None:
    noting = Noting(work)
    worker = Artificial(noting, artificial, slots=4)
    store = Store(tmp_path / "r.sqlite", work.target.machine_key, work.target.versions)
    report = Tuner(noting, worker, store, seconds=None, trials=8, limits=False).run()
    keys = [tuple(sorted(c[work.calls[0]].items())) for c in noting.chosen.values() if c]
    assert report.trials == 8 and len(set(keys)) >= 8


def test_sizes_of_a_formula(target: ResolvedTarget) -> None:
    n = weft.var("n")
    x, y = weft.placeholder((n * 2, 4), name="x"), weft.placeholder((n, 4), name="y")
    program = schedule(weft.compute((n, 4), lambda i, j: x[i * 2, j] + y[i, j]), TARGET).program
    for sizes, rows in ((None, 1), ({"n": 5}, 5)):
        made = FormulaWork(program, target, sizes=sizes).inputs
        assert made["x"].shape == (2 * rows, 4) and made["y"].shape == (rows, 4)
    with pytest.raises(InputError, match=r"'m' is no symbol of[\s\S]*its symbols are n"):
        FormulaWork(program, target, sizes={"m": 5})


def test_times_at_other_sizes_are_not_remembered(target: ResolvedTarget, tmp_path: Path) -> None:
    n = weft.var("n")
    x = weft.placeholder((n, 40), name="x")
    program = schedule(weft.compute((n, 40), lambda i, j: x[i, j] + 1.0), TARGET).program
    few, many = (FormulaWork(program, target, sizes={"n": size}) for size in (4, 400))
    assert few.calls == many.calls
    path = tmp_path / "r.sqlite"
    tuned(few, path, lambda choices: -0.5, trials=4)
    tuner, _, _ = tuned(many, path, lambda choices: -0.5, trials=2)
    assert len(tuner.subjects[0].results) == 2
    tuner, _, _ = tuned(few, path, lambda choices: -0.5, trials=2)
    assert len(tuner.subjects[0].results) == 6
    _, trials = drop(path, lambda key, machine, versions: key.startswith(few.calls[0]))
    assert trials >= 8


def test_keys_of_trials_have_sizes_that_are_open(target: ResolvedTarget) -> None:
    closed, opened = (ModelWork(mlp(batch=batch), target, shapes={"x": (4, 64)}) for batch in (4, "batch"))
    keys = [*closed.calls, closed.graph_key]
    assert [closed.trial_key(key) for key in keys] == keys
    keys = [*opened.calls, opened.graph_key]
    assert [opened.trial_key(key) for key in keys] == [f"{key}@batch=4" for key in keys]


@pytest.mark.parametrize("name", ["sizes", "inputs", "shapes", "frontend"])
def test_arguments_that_mean_nothing_are_refused(name: str, tmp_path: Path) -> None:
    what = mlp() if name in ("sizes", "inputs") else product()
    with pytest.raises(InputError, match=f"'{name}' has no meaning for a (model|formula)"):
        weft.tune(what, TARGET, trials=1, file=tmp_path / "r.sqlite", **{name: {}})
