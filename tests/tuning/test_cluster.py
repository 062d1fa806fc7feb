"""Tuning by the workers of a Dask cluster: what it finds is what a process of this machine finds.

Everything is real but the process that runs executables: it answers times that a function of the choices says, so that
which candidate is the fastest does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import ExecutionError, InputError
from weft.kernel import schedule
from weft.record_store import opened
from weft.resolve import ResolvedTarget, resolve_target
from weft_tuning import measuring
from weft_tuning.measuring import ClusterWorker, LocalWorker, Worker
from weft_tuning.report import Report
from weft_tuning.spaces import Space
from weft_tuning.store import Store, kept
from weft_tuning.tuner import Tuner
from weft_tuning.work import Chosen, FormulaWork, Work

pytestmark = pytest.mark.needs("distributed")
TARGET = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -threads=1"
INPUT = 3.0
BEST = {"rule": "elementwise", "y.lanes": "contiguous", "y.tasks_per_core": 16}


class Written:
    """An executable whose archive is the choices of its kernel, as JSON."""

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self.choices = dict(choices)

    def save(self, path: Path, durable: bool = True) -> None:
        import json

        Path(path).write_text(json.dumps(self.choices))


class Choices(Work):
    """The choices of a small formula's kernel; nothing is compiled."""

    def __init__(self) -> None:
        x = weft.placeholder((4, 4), name="x")
        program = schedule(weft.compute((4, 4), lambda i, j: x[i, j] + 1.0, name="y"), TARGET).program
        of = FormulaWork(program, resolve_target(TARGET))
        self.name, self.target, self.calls, self.names = of.name, of.target, of.calls, of.names
        self.inputs = {"x": np.full((4, 4), INPUT, np.float32)}
        self.base: Any = Written({})
        self._space = of.space(of.calls[0])

    def space(self, key: str) -> Space:
        return self._space

    def build(self, chosen: Chosen) -> Any:
        return Written(chosen.get(self.calls[0], {}))


def stand_in(folder: Path, given: float) -> Callable[[LocalWorker, str, float], Mapping[str, Any]]:
    """In place of `LocalWorker.answer`, here or in a worker of the cluster, which cannot import this module: all that
    it needs is in it. Each process leaves its number in `folder`."""

    def answer(self: LocalWorker, line: str, limit: float) -> Mapping[str, Any]:
        import json
        import math
        import os
        import time
        from pathlib import Path

        from weft_tuning.worker import read_inputs

        asked = json.loads(line)
        base, choices = (json.loads(Path(archive).read_text()) for archive in asked["archives"])
        assert base == {} and float(read_inputs(asked["inputs"])["x"].mean()) == given
        (folder / str(os.getpid())).touch()
        value = 0.0
        if choices.get("rule") == "elementwise":
            value = 0.02 * abs(int(choices["y.tasks_per_core"]) - 16) - (1.0 if choices["y.lanes"] == "none" else 1.5)
        elif choices:
            value = 0.05 * len(json.dumps(choices)) / 100 - 0.1
        time.sleep(0.02 * (1.0 - value))  # so that what is begun first does not end first
        ticks, whole = 10_000.0, 1e-3
        return {
            "calls": [[[ticks]] * 5, [[ticks * math.exp(value)]] * 5],
            "totals": [[whole] * 5, [whole * math.exp(value)] * 5],
        }

    return answer


@pytest.fixture(scope="module")
def work() -> Choices:
    return Choices()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


def tuned(work: Work, worker: Worker, path: Path) -> Report:
    store = Store(path, work.target.machine_key, work.target.versions)
    return Tuner(work, worker, store, seconds=None, seed=0, limits=False).run()


def measured(path: Path) -> list[tuple[Any, ...]]:
    with opened(path) as connection:
        return connection.execute("SELECT key, choices, value, error FROM trials ORDER BY rowid").fetchall()


def test_a_cluster_finds_what_the_process_of_this_machine_finds(
    work: Choices, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    of_cluster = stand_in(there, INPUT)

    def replaced(answer: Any) -> Any:
        from weft_tuning.measuring import LocalWorker

        before, LocalWorker.answer = LocalWorker.answer, answer  # type: ignore[method-assign]
        return before

    with ClusterWorker(address) as workers:
        before = workers._client.run(replaced, of_cluster)
        try:
            report = tuned(work, workers, tmp_path / "cluster.sqlite")
        finally:
            workers._client.run(replaced, next(iter(before.values())))
    assert len(list(there.iterdir())) == 2  # both have measured
    (best,) = kept(tmp_path / "cluster.sqlite")

    monkeypatch.setattr(LocalWorker, "answer", stand_in(here, INPUT))
    with LocalWorker() as local:
        alone = tuned(work, local, tmp_path / "alone.sqlite")
    (same,) = kept(tmp_path / "alone.sqlite")
    assert best.record == same.record and best.record.choices == BEST
    assert best.seconds == same.seconds and best.default_seconds == same.default_seconds
    assert report.ratio == alone.ratio < 0.4 and report.why == alone.why

    # With as many at a time, one process measures the very same candidates in the same order.
    with LocalWorker() as local:
        local.slots = 2
        tuned(work, local, tmp_path / "two.sqlite")
    assert measured(tmp_path / "two.sqlite") == measured(tmp_path / "cluster.sqlite")


def test_workers_have_to_be_the_machine_of_the_target(address: str) -> None:
    with ClusterWorker(address) as workers:
        workers.require(resolve_target(TARGET))
        with pytest.raises(InputError, match=r"cannot measure for this target[\s\S]*there it is llvm-"):
            workers.require(Other(resolve_target(TARGET)))


class Other(ResolvedTarget):
    """As another one, of a machine that is described otherwise."""

    def __init__(self, of: ResolvedTarget) -> None:
        super().__init__(of.target, of.kind, of.fingerprint, of.threads, of.plugins, of.owner)
        self.__dict__["machine_key"] = "llvm-0123456789ab"


def test_a_cluster_that_is_gone_ends_the_tuner(work: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(measuring, "STARTS", 0.1)
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with ClusterWorker(cluster.scheduler_address) as workers:
            workers.begin(work.base, work.inputs)
            cluster.scale(0)
            cluster.sync(cluster._correct_state)
            with pytest.raises(ExecutionError, match="has no workers left"):
                workers.measure([work.build({})], 0.01, 0.1)
        with pytest.raises(InputError, match="has no workers"):
            ClusterWorker(cluster.scheduler_address)
