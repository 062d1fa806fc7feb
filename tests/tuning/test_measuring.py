"""Workers that measure: on real executables; what a candidate breaks costs its own job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft.kernel import schedule
from weft.resolve import resolve_target
from weft_tuning import worker
from weft_tuning.measuring import ClusterWorker, Failed, LocalWorker, Times
from weft_tuning.work import FormulaWork

TARGET = "llvm -threads=1"


def formula(factor: float = 2.0, rows: int = 32) -> FormulaWork:
    x = weft.placeholder((rows, 64), name="x")
    made = weft.compute((rows, 64), lambda i, j: x[i, j] * factor, name="y")
    return FormulaWork(schedule(made, TARGET).program, resolve_target(TARGET))


@pytest.fixture(scope="module")
def base() -> FormulaWork:
    return formula()


@contextlib.contextmanager
def begun(work: FormulaWork) -> Iterator[LocalWorker]:
    with contextlib.closing(LocalWorker()) as local:
        local.begin(work.base, work.inputs)
        yield local


def test_times_of_every_call_and_run(base: FormulaWork) -> None:
    with begun(base) as local:
        for _ in range(2):  # the same process
            (found,) = local.measure([base.build({})], 0.05, 60.0)
            assert isinstance(found, Times)
            turns = len(found.base_seconds)
            assert turns >= worker.LEAST_RUNS
            assert found.base.shape == found.candidate.shape == (turns, 1)
            assert found.candidate_seconds.shape == (turns,)
            assert (found.base > 0).all() and (found.candidate_seconds > 0).all()


def test_a_candidate_that_computes_something_else_fails(base: FormulaWork) -> None:
    with begun(base) as local:
        wrong, right = local.measure([formula(3.0).base, base.base], 0.05, 60.0)
    assert isinstance(wrong, Failed) and "something else: output differs by" in wrong.why
    assert isinstance(right, Times)


def test_a_candidate_of_another_size_fails(base: FormulaWork) -> None:
    with begun(base) as local:
        (found,) = local.measure([formula(rows=16).base], 0.05, 60.0)
    assert isinstance(found, Failed) and "InputError" in found.why


def test_a_process_that_is_killed_costs_its_job(base: FormulaWork) -> None:
    with begun(base) as local:
        assert isinstance(local.measure([base.base], 0.01, 60.0)[0], Times)
        assert local._process is not None
        pid = local._process.pid
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        process = local._process
        (found,) = local.measure([base.base], 30.0, 60.0)
        killer.join()
        process.wait(timeout=60)  # the job may have ended before
        assert isinstance(found, (Failed, Times))
        if isinstance(found, Failed):
            assert "by signal 9" in found.why
        assert isinstance(local.measure([base.base], 0.01, 60.0)[0], Times)


def test_a_job_that_takes_too_long_is_ended(base: FormulaWork) -> None:
    with begun(base) as local:
        local.measure([base.base], 0.01, 60.0)
        assert local._process is not None
        os.kill(local._process.pid, signal.SIGSTOP)
        stopped = local._process
        (found,) = local.measure([base.base], 0.01, 1.0)
        assert isinstance(found, Failed) and found.why == "no result within 1 s"
        assert stopped.poll() is not None
        assert isinstance(local.measure([base.base], 0.01, 60.0)[0], Times)


def test_nothing_is_left_running(base: FormulaWork) -> None:
    with begun(base) as local:
        local.measure([base.base], 0.01, 60.0)
        process = local._process
        assert process is not None
    assert process.poll() is not None


def test_differences() -> None:
    ones = np.ones((4, 8), np.float32)
    assert worker.difference(ones, ones * 1.001, 0.01, 0.0) is None
    assert "differs by" in (worker.difference(ones, ones * 1.1, 0.01, 0.0) or "")
    assert "finite" in (worker.difference(ones, ones * np.inf, 0.01, 0.0) or "")
    nan = np.full(3, np.nan)
    assert worker.difference(nan, nan, 0.01, 0.0) is None
    assert "in place of" in (worker.difference(ones, ones[:2], 0.01, 0.0) or "")
    numbers = np.arange(100)
    changed = numbers.copy()
    changed[:3] += 1
    assert worker.difference(numbers, changed, 0.0, 0.05) is None
    assert "3.0% of its elements" in (worker.difference(numbers, changed, 0.0, 0.01) or "")
    assert worker.difference(ones[:0], ones[:0], 0.0, 0.0) is None


@pytest.mark.needs("distributed")
def test_a_cluster_of_two_workers_measures_and_survives_a_death(base: FormulaWork) -> None:
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        contextlib.closing(ClusterWorker(cluster.scheduler_address)) as workers,
    ):
        assert workers.slots == 2
        workers.begin(base.base, base.inputs)
        found = workers.measure([base.build({}), formula(3.0).base, base.base], 0.05, 60.0)
        assert [type(f) for f in found] == [Times, Failed, Times]
        dead: Any = next(iter(cluster.workers.values()))
        os.kill(dead.pid if hasattr(dead, "pid") else dead.process.pid, signal.SIGKILL)
        time.sleep(0.2)
        again = workers.measure([base.base, base.base], 0.05, 60.0)
        assert all(isinstance(f, (Times, Failed)) for f in again)
        assert any(isinstance(f, Times) for f in again)
