"""Workers that measure: on real executables; what a candidate breaks costs its own job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.dtypes import dtype
from weft.errors import ExecutionError, InputError
from weft.kernel import schedule
from weft.resolve import resolve_target
from weft_tuning import worker
from weft_tuning.measuring import ClusterWorker, Failed, LocalWorker, Times, job
from weft_tuning.work import FormulaWork

TARGET = "llvm -threads=1"
RESOLVED = resolve_target(TARGET)


def formula(factor: float = 2.0, rows: int = 32) -> FormulaWork:
    x = weft.placeholder((rows, 64), name="x")
    made = weft.compute((rows, 64), lambda i, j: x[i, j] * factor, name="y")
    return FormulaWork(schedule(made, TARGET).program, RESOLVED)


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


def test_inputs_of_every_name_and_dtype() -> None:
    names = ["file", "allow_pickle", "a/b", "names", "input0", "x.npy", ""]
    inputs: dict[str, Any] = {name: np.full((2, 3), k, np.float32) for k, name in enumerate(names)}
    for of in ("bfloat16", "float8_e4m3fn", "float16", "int4", "uint8", "bool", "int64", "complex64"):
        inputs[of] = np.ones((3, 2), dtype(of).numpy).T
    inputs["scalar"] = np.array(2.5, dtype("bfloat16").numpy)
    with tempfile.TemporaryDirectory() as folder:
        worker.write_inputs(f"{folder}/x.npz", inputs)
        found = worker.read_inputs(f"{folder}/x.npz")
    assert list(found) == list(inputs)
    for name, value in inputs.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [np.array(["word"], object), [np.ones(2), np.ones(3)], None])
def test_inputs_that_are_no_numbers_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match="the input 'x' cannot be given"):
        worker.write_inputs(tmp_path / "x.npz", {"x": value})


def test_inputs_of_bfloat16_are_measured() -> None:
    x = weft.placeholder((4, 16), "bfloat16", name="file")
    work = FormulaWork(schedule(weft.compute((4, 16), lambda i, j: x[i, j] + x[i, j]), TARGET).program, RESOLVED)
    with begun(work) as local:
        (found,) = local.measure([work.base], 0.01, 60.0)
    assert isinstance(found, Times), found


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_named(base: FormulaWork, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, inputs: object) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    monkeypatch.setattr(worker, "write_inputs", full)
    with (
        contextlib.closing(LocalWorker()) as local,
        pytest.raises(ExecutionError, match=r"cannot be given[\s\S]*No space left[\s\S]*TMPDIR"),
    ):
        local.begin(base.base, base.inputs)


def test_an_answer_that_cannot_be_read_costs_its_job(base: FormulaWork, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(base) as local:
        for line in ("{", "[]", '"text"'):
            read, write = os.pipe()
            os.write(write, f"{line}\n".encode())
            os.close(write)
            process = local._started()
            with open(read) as stdout:
                monkeypatch.setattr(process, "stdout", stdout)
                (found,) = local.measure([base.base], 0.01, 60.0)
            assert isinstance(found, Failed) and "cannot be read" in found.why
            assert process.poll() is not None
        assert isinstance(local.measure([base.base], 0.01, 60.0)[0], Times)


def test_an_interrupt_of_the_tuner_is_none_of_the_process(base: FormulaWork) -> None:
    with begun(base) as local:
        local.measure([base.base], 0.01, 60.0)
        assert local._process is not None
        assert os.getpgid(local._process.pid) != os.getpgrp()  # which is whom a terminal's Ctrl-C goes to


def test_a_process_without_parent_ends_a_job_that_does_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")  # to open it waits for somebody who writes into it
    process = subprocess.Popen(
        [sys.executable, "-m", "weft_tuning.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(job([], str(tmp_path / "x.npz"), 0.01, 0.0) + "\n", timeout=120)
    assert out == "{}\n" and process.returncode == -signal.SIGALRM


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
