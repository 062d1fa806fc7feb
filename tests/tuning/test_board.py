"""A board that measures; it is simulated by a process of this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.remote import agents

import weft
from weft.kernel import schedule
from weft.resolve import resolve_target
from weft_tuning.measuring import BoardWorker, Failed, Times
from weft_tuning.work import FormulaWork

TARGET = "llvm -threads=1"


def formula(factor: float) -> FormulaWork:
    x = weft.placeholder((32, 64), name="x")
    made = weft.compute((32, 64), lambda i, j: x[i, j] * factor, name="y")
    return FormulaWork(schedule(made, TARGET).program, resolve_target(TARGET))


@pytest.mark.needs("c")
def test_a_board_measures_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = formula(2.0)
    limits: list[float] = []
    with contextlib.closing(BoardWorker(agents.board(tmp_path / "store", agents.real()))) as worker_there:
        run = worker_there.board.run

        def noted(*words: Any, **options: Any) -> Any:
            limits.append(options["limits"].time)
            return run(*words, **options)

        monkeypatch.setattr(worker_there.board, "run", noted)
        worker_there.begin(base.base, base.inputs)
        right, wrong = worker_there.measure([base.build({}), formula(3.0).base], 0.05, 45.0)
    assert isinstance(right, Times) and right.base.shape == right.candidate.shape
    assert isinstance(wrong, Failed) and "differs by" in wrong.why
    assert set(limits) == {45.0}
    assert agents.left_running(tmp_path) == []


@pytest.mark.needs("c")
def test_a_connection_that_is_lost_is_no_fault_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = formula(2.0)
    with contextlib.closing(BoardWorker(agents.board(tmp_path / "store", agents.real()))) as worker_there:
        run, lost = worker_there.board.run, [True]

        def cut(*words: Any, **options: Any) -> Any:
            if lost and lost.pop(0):
                worker_there.board.close()
            return run(*words, **options)

        monkeypatch.setattr(worker_there.board, "run", cut)
        worker_there.begin(base.base, base.inputs)
        (found,) = worker_there.measure([base.base], 0.01, 60.0)
        assert isinstance(found, Times)
        lost[:] = [True, True]
        (found,) = worker_there.measure([base.base], 0.01, 60.0)
        assert isinstance(found, Failed)
        (found,) = worker_there.measure([base.base], 0.01, 60.0)
        assert isinstance(found, Times)
    assert agents.left_running(tmp_path) == []
