"""Agents, connections and clients that end, stall or lie in the middle of something: every result is right or an error,
and nothing is left running (the fixture of conftest.py)."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.remote import agents
from tests.remote.agents import left_running, running

from weft_remote import Board, BusyError, JobError, Limits, LinkError, RemoteError, StoreError, connect, frames
from weft_remote.connection import File

pytestmark = pytest.mark.needs("c")

X = np.arange(1000, dtype=np.float32)
SPIN, FAIL, DOUBLE = File.of(b"spin"), File.of(b"fail"), File.of(b"double 0")


def soon(action: Callable[[], object], seconds: float = 0.3) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def doubles(board: Board) -> None:
    assert np.array_equal(board.run_file(DOUBLE, [X]).arrays[0], 2 * X)


def agent_of(board: Board) -> int:
    return int(board.facts.said["process"])


# -- processes that are killed


def test_an_agent_that_is_killed_takes_its_job_with_it(tmp_path: Path) -> None:
    with connect(agents.board(tmp_path / "store")) as board:
        soon(lambda: os.kill(agent_of(board), signal.SIGKILL))
        with pytest.raises(LinkError, match="the connection to the board is lost") as caught:
            board.run_file(SPIN, [])
        assert "ended with status -9" in str(caught.value)
        assert left_running(tmp_path) == []
        assert board.closed
        with pytest.raises(LinkError, match="the connection is closed"):
            doubles(board)
        board.reconnect()
        doubles(board)


def test_a_board_that_hangs_is_given_up(tmp_path: Path) -> None:
    """As one whose power or network is gone: nobody says that the connection has ended."""
    with connect(agents.board(tmp_path / "store"), silence=0.8) as board:
        soon(lambda: [os.kill(p, signal.SIGSTOP) for p in running(tmp_path)])
        began = time.monotonic()
        with pytest.raises(LinkError, match="the connection to the board stalls"):
            board.run_file(SPIN, [])
        assert time.monotonic() - began < 10
    assert left_running(tmp_path) == []


def test_a_client_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from weft_remote import connect; from weft_remote.connection import File\n"
        "board = connect(sys.argv[1]); print('up', flush=True); board.run_file(File.of(b'spin'), [])"
    )
    client = subprocess.Popen([sys.executable, "-c", script, agents.board(tmp_path / "store")], stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    time.sleep(0.3)
    assert len(running(tmp_path)) == 3  # the client, the agent, its job
    client.kill()
    client.wait()
    client.stdout.close()
    assert left_running(tmp_path) == []


def test_an_interrupt_ends_the_job_on_the_board(tmp_path: Path) -> None:
    class Interrupt(BaseException):
        pass

    def raise_it(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with connect(agents.board(tmp_path / "store")) as board:
            soon(lambda: os.kill(os.getpid(), signal.SIGUSR1))
            with pytest.raises(Interrupt):
                board.run_file(SPIN, [])
            assert board.closed
            assert left_running(tmp_path) == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_time_limit_ends_the_job_and_not_the_connection(tmp_path: Path) -> None:
    with connect(agents.board(tmp_path / "store")) as board:
        with pytest.raises(JobError, match="it took longer than 200 ms"):
            board.run_file(SPIN, [], limits=Limits(time=0.2))
        assert running(tmp_path) == [agent_of(board)]
        doubles(board)


# -- uploads


def test_an_upload_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = File.of(os.urandom(8 << 20))
    with connect(agents.board(store)) as board:
        connection = board._connection
        sent, write = 0, connection._write

        def cut(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            if sent > 4 << 20:
                os.kill(agent_of(board), signal.SIGKILL)
            write(data)

        connection._write = cut  # type: ignore[method-assign]
        with pytest.raises(LinkError):
            connection.upload(file)
        held = (store / f"{file.digest.hex()}.part").stat().st_size
        assert 0 < held < len(file.content) and not (store / file.digest.hex()).exists()
        board.reconnect()
        assert board._connection.upload(file) == len(file.content) - held
        assert (store / file.digest.hex()).read_bytes() == file.content
        assert board._connection.upload(file) == 0


def test_a_whole_part_that_nobody_has_checked_is_checked(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / f"{DOUBLE.digest.hex()}.part").write_bytes(DOUBLE.content)
    (store / f"{SPIN.digest.hex()}.part").write_bytes(b"spun")
    with connect(agents.board(store)) as board:
        assert board._connection.upload(DOUBLE) == 0
        doubles(board)
        assert board._connection.upload(SPIN) == 4  # what was there is another content
        (store / f"{FAIL.digest.hex()}.part").write_bytes(bytes(100))
        assert board._connection.upload(FAIL) == 4  # more than there is


def test_a_part_that_was_changed_is_sent_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    file = File.of(os.urandom(600_000))
    flipped = bytearray(file.content[:300_000])
    flipped[1234] ^= 4
    (store / f"{file.digest.hex()}.part").write_bytes(flipped)
    with connect(agents.board(store)) as board:
        assert board._connection.upload(file) == 600_000
    assert (store / file.digest.hex()).read_bytes() == file.content


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """The shell's limit of a file's size stands for it: writes fail in the middle."""
    script = tmp_path / "agent.sh"
    script.write_text(f'trap "" XFSZ; ulimit -f 600; exec {agents.double()} "$@"\n')
    store = tmp_path / "store"
    with connect(f"pipe:sh {script}?store={store}&lock={store}.lock") as board:
        with pytest.raises(StoreError) as caught:
            board._connection.upload(File.of(os.urandom(2 << 20)))
        assert "a file cannot be written to the store" in str(caught.value) and "why: " in str(caught.value)
        assert not list(store.glob("*.part"))
        doubles(board)


def test_two_connections_send_the_same_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = File.of(os.urandom(6 << 20))
    boards = [connect(agents.board(store)) for _ in range(4)]
    sent: list[int] = []
    failures: list[BaseException] = []

    def send(board: Board) -> None:
        try:
            sent.append(board._connection.upload(file))
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=send, args=(b,)) for b in boards]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for board in boards:
        board.close()
    assert failures == [] and len(sent) == 4
    assert (store / file.digest.hex()).read_bytes() == file.content


# -- pipes that stall


def raw(store: Path) -> subprocess.Popen[bytes]:
    """An agent without the client that knows it."""
    command = [agents.double(), "--serve", "--store", store, "--lock", f"{store}.lock"]
    return subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def said_hello(agent: subprocess.Popen[bytes], silence: int) -> None:
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(frames.frame(frames.HELLO, 1, struct.pack("<II", frames.VERSION, silence)))
    assert agent.stdout.read(4) == b"WEFT"


def put(file: File) -> bytes:
    return frames.frame(frames.PUT, 2, file.digest + struct.pack("<QQ", len(file.content), 0) + file.content)


def test_an_agent_whose_answers_nobody_reads_ends(tmp_path: Path) -> None:
    agent = raw(tmp_path / "store")
    said_hello(agent, 500)
    assert agent.stdin is not None and agent.stdout is not None
    program, inputs = File.of(b"constant 50000000"), File.of(frames.pack([]))
    order = struct.pack("<4I5Q", 0, 0, 1, 1, 0, 60_000, 0, 0, 1 << 40)
    agent.stdin.write(put(program) + put(inputs) + frames.frame(frames.RUN, 3, program.digest + inputs.digest + order))
    stop = threading.Event()

    def alive() -> None:
        while not stop.wait(0.1) and agent.stdin is not None:
            try:
                agent.stdin.write(frames.frame(frames.ALIVE, 0))
            except OSError:
                return

    thread = threading.Thread(target=alive)
    thread.start()
    try:
        assert agent.wait(20) == 3
    finally:
        stop.set()
        thread.join()
        agent.kill()
        agent.stdin.close()
        agent.stdout.close()


@pytest.mark.parametrize(
    "said", [b"", b"WE", frames.frame(frames.PUT, 5, bytes(1000))[:500]], ids=["nothing", "2", "half"]
)
def test_an_agent_that_hears_nothing_more_ends(tmp_path: Path, said: bytes) -> None:
    agent = raw(tmp_path / "store")
    said_hello(agent, 300)
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(said)
    assert agent.wait(20) == 3
    agent.stdin.close()
    agent.stdout.close()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sh -c 'sleep 1000'", "the connection to the board stalls"),
        ("sh -c yes", "what answers is no agent"),
        ("sh -c true", "the connection to the board is lost"),
        ("sh -c 'echo no such thing >&2; exit 3'", "ended with status 3: no such thing"),
    ],
)
def test_what_is_no_agent_is_an_error(tmp_path: Path, command: str, says: str) -> None:
    with pytest.raises(LinkError) as caught:
        connect(f"pipe:{command}", silence=0.5)
    assert says in str(caught.value)


def test_a_login_may_say_something_before_the_agent(tmp_path: Path) -> None:
    script = tmp_path / "login.sh"
    script.write_text(f'echo "Welcome to the board. WEF"; exec {agents.double()} "$@"\n')
    store = tmp_path / "store"
    with connect(f"pipe:sh {script}?store={store}&lock={store}.lock") as board:
        doubles(board)


# -- several users


def test_two_users_of_a_board_queue_or_are_refused(tmp_path: Path) -> None:
    lock = tmp_path / "board.lock"
    one, two = (connect(agents.board(tmp_path / f"store{k}", lock=lock)) for k in range(2))
    with one, two:
        errors: list[BaseException] = []

        def long() -> None:
            try:
                assert np.array_equal(one.run_file(File.of(b"double 1500"), [X]).arrays[0], 2 * X)
            except BaseException as error:  # noqa: BLE001 - shown below
                errors.append(error)

        thread = threading.Thread(target=long)
        thread.start()
        time.sleep(0.5)
        with pytest.raises(BusyError) as caught:
            doubles(two)
        assert "another job runs on the board" in str(caught.value)
        assert f"user {os.getuid()}, process {agent_of(one)}" in str(caught.value)
        assert "hint: try again, or wait longer for the board" in str(caught.value)
        two.limits = Limits(wait=20)
        doubles(two)
        thread.join()
        assert errors == []


def test_jobs_of_several_users_never_run_at_the_same_time(tmp_path: Path) -> None:
    lock, path = tmp_path / "board.lock", tmp_path / "running"
    program = File.of(f"alone {path}".encode())
    failures: list[BaseException] = []
    done: list[int] = []

    def user(k: int) -> None:
        try:
            with connect(agents.board(tmp_path / f"store{k}", lock=lock), limits=Limits(wait=60)) as board:
                for _ in range(10):
                    board.run_file(program, [], repeats=3)
                    done.append(k)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=user, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == [] and len(done) == 40


def test_a_job_of_a_killed_agent_gives_the_board_free(tmp_path: Path) -> None:
    lock = tmp_path / "board.lock"
    one, two = (connect(agents.board(tmp_path / f"store{k}", lock=lock)) for k in range(2))
    with one, two:
        soon(lambda: os.kill(agent_of(one), signal.SIGKILL))
        with pytest.raises(RemoteError):
            one.run_file(SPIN, [])
        two.limits = Limits(wait=10)
        doubles(two)
