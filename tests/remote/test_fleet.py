"""Boards that share jobs: simulated ones, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from tests.remote import agents
from tests.remote.agents import left_running, running

from weft.errors import InputError
from weft_remote import Fleet, JobError, Limits, LinkError, RemoteError
from weft_remote.frames import Answer
from weft_remote.host import Key
from weft_remote.pool import Job, Pool

pytestmark = pytest.mark.needs("c", "distributed")

X = np.arange(16, dtype=np.float32)


def boards(folder: Path, count: int) -> dict[str, str]:
    return {f"b{k}": agents.board(folder / f"store{k}") for k in range(count)}


def double(k: int, milliseconds: int = 0) -> Job:
    return Job(f"double {milliseconds}".encode(), (X + k,))


def right(k: int, answer: Answer) -> bool:
    return np.array_equal(answer.arrays[0], 2 * (X + k))


def tags(futures: list[Future[tuple[str, Answer]]], seconds: float = 120) -> list[str]:
    """Of every job "right", or the name of its error; a wrong result is neither."""
    found = []
    for k, future in enumerate(futures):
        try:
            name, answer = future.result(seconds)
        except RemoteError as error:
            found.append(type(error).__name__)
        else:
            assert right(k, answer), (k, name)
            found.append("right")
    return found


# -- the pool of a host, without Dask


def test_a_board_is_set_aside_after_repeated_failures(tmp_path: Path) -> None:
    pool = Pool({"bad": "pipe:sh -c true", **boards(tmp_path, 1)}, silence=5)
    try:
        bad = pool.slots[0]
        for k in range(3):
            bad.rests = 0.0  # as if its pause were over
            assert right(k, pool.run(double(k))[1])  # the other board does it
        assert bad.failures == 3 and bad.state == "set aside" and bad.rests > time.monotonic() + 2
        began = bad.jobs
        for k in range(5):
            assert pool.run(double(k))[0] == "b0"
        assert bad.jobs == began  # it is left alone
        row = pool.rows()[0]
        assert row["state"] == "set aside" and row["last error"] == "the connection to the board is lost"
    finally:
        pool.close()


def test_a_board_that_answers_again_is_taken_again(tmp_path: Path) -> None:
    switch = tmp_path / "on"
    store = tmp_path / "store"
    script = tmp_path / "board.sh"
    script.write_text(f'test -e {switch} && exec {agents.double()} "$@"\n')
    pool = Pool({"b": f"pipe:sh {script}?store={store}&lock={store}.lock"}, silence=5)
    try:
        with pytest.raises(LinkError):
            pool.run(Job(b"double 0", (X,), patience=0.1))
        switch.touch()
        assert right(0, pool.run(double(0))[1])
        assert pool.slots[0].failures == 0
    finally:
        pool.close()


def test_jobs_wait_for_a_board_and_not_for_ever(tmp_path: Path) -> None:
    pool = Pool(boards(tmp_path, 1), silence=5)
    try:
        with pytest.raises(InputError, match="the fleet has no board called 'x'"):
            pool.run(Job(b"double 0", (X,), board="x"))
        pool.slots[0].busy = True
        with pytest.raises(RemoteError, match="no board has become free"):
            pool.run(Job(b"double 0", (X,), patience=0.1))
        pool.slots[0].busy = False
        with pytest.raises(InputError, match="no board of architecture 's390x'"):
            pool.run(Job(b"double 0", (X,), architecture="s390x"))
    finally:
        pool.close()


def test_what_a_program_does_wrong_is_not_the_boards_fault(tmp_path: Path) -> None:
    pool = Pool(boards(tmp_path, 1), silence=5)
    try:
        for _ in range(5):
            with pytest.raises(JobError, match="SIGSEGV"):
                pool.run(Job(b"crash", ()))
        assert pool.slots[0].failures == 0
    finally:
        pool.close()


# -- with Dask


def fifty(folder: Path, count: int, jobs: int) -> None:
    """Boards of which three never answer, jobs of which some crash, and boards that die in the middle."""
    given = {**boards(folder, count - 3), **{f"dead{k}": "pipe:sh -c 'exit 1'" for k in range(3)}}
    with Fleet(given) as fleet:
        futures = [fleet.submit_job(Job(b"crash", ()) if k % 10 == 9 else double(k, 20)) for k in range(jobs)]
        time.sleep(0.5)
        found = running(folder)
        killed = [p for p in found[:: max(1, len(found) // 5)] if str(folder) in _command(p)][:5]
        for process in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        results = tags(futures)
        counts = Counter(results)
        rows = {row["board"]: row for row in fleet.rows()}
    assert len(rows) == count and killed
    assert all(r == "JobError" for k, r in enumerate(results) if k % 10 == 9)
    # A job whose child is killed is an error of its own; one whose agent is killed is done elsewhere, unless it meets
    # one board that dies after another.
    assert counts["right"] >= jobs * 9 // 10 - len(killed)
    assert set(counts) <= {"right", "JobError", "LinkError"}
    assert all(rows[f"dead{k}"]["state"] in ("resting", "set aside", "not used yet", "free") for k in range(3))
    assert left_running(folder) == []


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_boards_die_and_every_result_is_right_or_an_error(tmp_path: Path) -> None:
    fifty(tmp_path, 10, 60)


@pytest.mark.full
def test_fifty_boards(tmp_path: Path) -> None:
    fifty(tmp_path, 50, 500)


def test_a_scheduler_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with Fleet(boards(tmp_path, 3)) as fleet:
        assert tags([fleet.submit_job(double(k)) for k in range(3)]) == ["right"] * 3
        futures = [fleet.submit_job(Job(b"spin", (), {"limits": Limits(time=600)})) for _ in range(6)]
        time.sleep(0.5)
        assert fleet._host is not None
        fleet._host.process.kill()
        began = time.monotonic()
        for future in futures:
            with pytest.raises(RemoteError, match=r"the scheduler of the fleet is gone|the fleet lost a job"):
                future.result(60)
        assert time.monotonic() - began < 30
        with pytest.raises(RemoteError, match="the fleet is gone"):
            fleet.submit_job(double(0)).result(60)
    assert left_running(tmp_path) == []


@pytest.mark.full
def test_a_fleet_that_is_closed_ends_its_jobs(tmp_path: Path) -> None:
    with Fleet(boards(tmp_path, 2)) as fleet:
        futures = [fleet.submit_job(Job(b"spin", (), {"limits": Limits(time=600)})) for _ in range(4)]
        time.sleep(0.5)
    for future in futures:
        with pytest.raises(RemoteError):
            future.result(10)
    assert left_running(tmp_path) == []


def test_who_has_no_certificate_is_refused(tmp_path: Path) -> None:
    from distributed import Client
    from distributed.security import Security

    with Fleet(boards(tmp_path, 1)) as fleet:
        host, _, port = fleet.key.address.removeprefix("tls://").rpartition(":")
        assert host == "127.0.0.1"
        with pytest.raises(OSError):
            Client(f"tcp://{host}:{port}", timeout=2, set_as_default=False)
        with pytest.raises(OSError):
            Client(fleet.key.address, security=Security.temporary(), timeout=2, set_as_default=False)
        assert tags([fleet.submit_job(double(0))]) == ["right"]


def test_the_commands_of_fleets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weft = [sys.executable, "-m", "weft", "fleet"]
    key = str(tmp_path / "folder" / "key.json")
    options = [word for name, url in boards(tmp_path, 2).items() for word in ("--board", f"{name}={url}")]
    process = subprocess.Popen([*weft, "start", "--key", key, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "2 boards at tls://127.0.0.1:" in process.stdout.readline()
        assert os.stat(key).st_mode & 0o777 == 0o600
        with Fleet(key=Key.read(Path(key))) as fleet:
            assert tags([fleet.submit_job(double(k)) for k in range(4)]) == ["right"] * 4
        code, shown, _ = agents.weft_command(capsys, "fleet", "--key", key)
        assert code == 0 and "b0" in shown and "b1" in shown and "free" in shown
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()
    os.chmod(key, 0o644)
    with pytest.raises(InputError, match="others can read the key"):
        Key.read(Path(key))
    code, _, err = agents.weft_command(capsys, "fleet", "--key", tmp_path / "none")
    assert code == 1 and "there is no key of a fleet" in err
