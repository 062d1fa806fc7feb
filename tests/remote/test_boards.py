"""Jobs on one simulated board: answers, limits, and what errors say."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from tests.remote import agents

from weft_remote import JobError, Limits, RemoteError, StoreError, connect
from weft_remote.connection import File
from weft_runtime.errors import InputError, WeftError

pytestmark = pytest.mark.needs("c")

X = np.arange(1000, dtype=np.float32)


def program(text: str) -> File:
    return File.of(text.encode())


def test_a_job_gives_its_outputs_and_the_times_of_the_board(tmp_path: Path) -> None:
    with connect(agents.board(tmp_path / "store")) as board:
        answer = board.run_file(program("double 2"), [X], warmups=2, repeats=5)
        assert np.array_equal(answer.arrays[0], 2 * X)
        assert len(answer.seconds) == 5 and all(0.002 <= s < 1 for s in answer.seconds)
        assert board.run_file(program("double 0"), [X], outputs=False).arrays == ()
        assert len(board.run_file(program("double 10"), [X], repeats=1000, budget=0.05).seconds) <= 5
        assert board.facts.cores >= 1 and board.facts.bits in (32, 64) and board.target.startswith("llvm -mtriple=")
        large = board.run_file(program("constant 3000000"), []).arrays[0]
        assert np.array_equal(large, (np.arange(3_000_000) % 251).astype(np.uint8))
    assert board.closed


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("crash", JobError, "a job ended before it had an answer.*why: signal 11, SIGSEGV"),
        ("exit", JobError, "a job ended before it had an answer.*why: exit status 7"),
        ("fail", RemoteError, "the run failed\n  node 'a', on pipe:.*why: it is a test"),
        ("spin", JobError, "a job was ended.*why: it took longer than 300 ms"),
        ("fork", JobError, "a job was ended.*why: it took longer than 300 ms"),
        ("fill 100000000", RemoteError, "there is not enough memory"),
        ("constant 2000000", JobError, "a job was ended.*why: its results are larger than they may be"),
        (" ", RemoteError, "it is no archive.*why: it is empty.*hint: compile one"),
    ],
)
def test_what_a_job_does_wrong_is_its_own_error(tmp_path: Path, text: str, kind: type[WeftError], says: str) -> None:
    limits = Limits(time=0.3, memory=64 << 20, output=1 << 20)
    with connect(agents.board(tmp_path / "store"), limits=limits) as board:
        with pytest.raises(kind) as caught:
            board.run_file(program(text), [])
        assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
        assert np.array_equal(board.run_file(program("double 0"), [X]).arrays[0], 2 * X)  # the board goes on


def test_inputs_that_do_not_fit_are_an_input_error(tmp_path: Path) -> None:
    with connect(agents.board(tmp_path / "store")) as board:
        with pytest.raises(InputError, match="another input"):
            board.run_file(program("double 0"), [X.astype(np.int32)])
        with pytest.raises(InputError, match="another number of inputs"):
            board.run_file(program("double 0"), [])
        with pytest.raises(InputError, match="repeats is a number from 1 to 100000, got 0"):
            board.run_file(program("double 0"), [X], repeats=0)


def test_another_thread_cancels_a_job(tmp_path: Path) -> None:
    import threading

    with connect(agents.board(tmp_path / "store")) as board:
        timer = threading.Timer(0.3, board.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(JobError, match="the job was cancelled"):
            board.run_file(program("spin"), [])
        assert time.monotonic() - began < 10
        assert np.array_equal(board.run_file(program("double 0"), [X]).arrays[0], 2 * X)


def test_a_store_deletes_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with connect(agents.board(store, more="&store-bytes=1000000")) as board:
        files = [File.of(bytes([k]) * 300_000) for k in range(5)]
        for file in files:
            board._connection.upload(file)
        held = {f.name for f in store.iterdir()}
        assert files[4].digest.hex() in held and files[0].digest.hex() not in held
        assert sum(f.stat().st_size for f in store.iterdir()) <= 1_000_000
        with pytest.raises(StoreError, match="a file is larger than the store"):
            board._connection.upload(File.of(bytes(1_000_001)))
        # What the connection has sent, and the store has lost, is sent again.
        first = program("double 0")
        assert np.array_equal(board.run_file(first, [X]).arrays[0], 2 * X)
        (store / first.digest.hex()).unlink()
        assert np.array_equal(board.run_file(first, [X]).arrays[0], 2 * X)


def test_a_damaged_file_of_the_store_never_runs(tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = program("constant 5")
    with connect(agents.board(store)) as board:
        board.run_file(file, [])
        (store / file.digest.hex()).write_bytes(b"constant 6")
        assert board.run_file(file, []).arrays[0].size == 5  # deleted, sent again
        assert (store / file.digest.hex()).read_bytes() == b"constant 5"


def test_a_candidate_costs_at_most_50_ms_beside_its_runs(tmp_path: Path) -> None:
    """A new program for the same inputs, as a tuner asks for them."""
    beside = []
    with connect(agents.board(tmp_path / "store")) as board:
        for k in range(21):
            candidate = File.of(f"double 1 {k} ".encode() + bytes(20_000))
            began = time.perf_counter()
            answer = board.run_file(candidate, [X], warmups=0, repeats=3, outputs=False)
            beside.append(time.perf_counter() - began - sum(answer.seconds))
    assert sorted(beside)[10] <= 0.050


@pytest.mark.full
@pytest.mark.parametrize("architecture", agents.ARCHITECTURES)
def test_agents_of_other_architectures(tmp_path: Path, architecture: str) -> None:
    store = tmp_path / "store"
    folder = agents.foreign(architecture)
    with connect(f"qemu:{architecture}?agent={folder}&store={store}&lock={store}.lock") as board:
        assert board.facts.architecture == architecture
        assert board.facts.bits == (32 if architecture == "arm" else 64)
        assert np.array_equal(board.run_file(program("double 0"), [X]).arrays[0], 2 * X)
        with pytest.raises(JobError, match="it took longer than 500 ms"):
            board.run_file(program("spin"), [], limits=Limits(time=0.5))
