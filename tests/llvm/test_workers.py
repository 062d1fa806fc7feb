"""Compile workers: answers, errors, crashes, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest

from weft.errors import CodegenError
from weft_llvm.toolchain import Cpu, compile_object, host_cpu, host_features, host_triple
from weft_llvm.workers import Workers, _Turns, default_workers

HOST = Cpu(host_triple(), host_cpu(), host_features())


def ir(k: int) -> str:
    return f"define i64 @f{k}(i64 %x) {{\n %y = add i64 %x, {k}\n ret i64 %y\n}}\n"


def test_objects_are_those_of_this_process() -> None:
    with Workers(2) as workers:
        futures = [workers.submit(ir(k), HOST, f"f{k}") for k in range(6)]
        assert [f.result(60) for f in futures] == [compile_object(ir(k), HOST) for k in range(6)]
        assert 1 <= len(workers._processes) <= 2
        processes = list(workers._processes)
    assert all(p.wait(10) is not None for p in processes)


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="needs process priorities")
def test_workers_give_way_to_their_parent() -> None:
    with Workers(1) as workers:
        workers.submit(ir(0), HOST, "f0").result(60)
        (process,) = workers._processes
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def test_an_error_names_the_kernel() -> None:
    with Workers(1) as workers:
        for pool in (workers, Workers(in_process=True)):
            with pytest.raises(CodegenError) as error:
                pool.submit("define", HOST, "conv1").result(60)
            assert "kernel 'conv1': LLVM rejects the emitted IR" in str(error.value)
        assert workers.submit(ir(1), HOST, "f1").result(60)  # and the worker goes on


def test_a_crash_is_an_error_and_the_next_job_gets_another_worker() -> None:
    """LLVM ends the process on what it cannot select; nothing may hang."""
    if not HOST.triple.startswith("x86_64"):
        pytest.skip("needs an instruction that the CPU lacks")
    fatal = """declare <2 x i64> @llvm.x86.aesni.aesenc(<2 x i64>, <2 x i64>)
define <2 x i64> @f(<2 x i64> %a) {
  %b = call <2 x i64> @llvm.x86.aesni.aesenc(<2 x i64> %a, <2 x i64> %a)
  ret <2 x i64> %b
}
"""
    with Workers(1) as workers:
        with pytest.raises(CodegenError) as error:
            workers.submit(fatal, Cpu(HOST.triple, "x86-64"), "aes").result(60)
        text = str(error.value)
        assert (
            "the compile worker died on kernel 'aes' (signal" in text
            and "LLVM ERROR" in text
            and "please report it" in text
        )
        assert workers.submit(ir(1), HOST, "f1").result(60)


def worker_of(workers: Workers, other_than: int = 0) -> int:
    """The process of the one worker, when there is one, or another than this."""
    for _ in range(6000):
        for process in list(workers._processes):
            if process.pid != other_than:
                return process.pid
        time.sleep(0.01)
    raise AssertionError("no worker")


SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def first_time(folder: Path, then: str) -> list[str]:
    """A worker that does something else when it is started for the first time."""
    return [
        sys.executable,
        "-c",
        f"""import os, signal, sys, time
from pathlib import Path
sys.argv = ["", str(os.getppid())]
if not Path({str(folder / "again")!r}).exists():
    Path({str(folder / "again")!r}).touch()
    {then}
from weft_llvm.workers import main
main()""",
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_the_system_ends_is_replaced_once(number: signal.Signals, tmp_path: Path) -> None:
    with Workers(1, command=first_time(tmp_path, f"os.kill(os.getpid(), {int(number)})")) as workers:
        assert workers.submit(ir(1), HOST, "f1").result(120) == compile_object(ir(1), HOST)


def test_a_worker_that_is_killed_twice() -> None:
    """It is said what that means, and not that LLVM has a bug."""
    with Workers(1, command=SLEEP) as workers:
        future = workers.submit(ir(1), HOST, "victim")
        first = worker_of(workers)
        os.kill(first, signal.SIGKILL)
        os.kill(worker_of(workers, other_than=first), signal.SIGKILL)
        with pytest.raises(CodegenError) as error:
            future.result(60)
    assert (
        str(error.value)
        == "a compile worker was killed (signal 9) on kernel 'victim'\n  why: the system kills the largest process when"
        " memory runs out, and it did so twice, the second time with no other worker at work\n  hint: give the"
        " process more memory, or end others, and compile again"
    )


def test_a_worker_without_memory() -> None:
    ends = "import os, sys; sys.stderr.write('LLVM ERROR: out of memory'); sys.stderr.flush(); os.abort()"
    with Workers(1, command=[sys.executable, "-c", ends]) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert error.value.what == "a compile worker had no memory left for kernel 'f1', also with no other worker at work"


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system does not tell who is stopped")
def test_a_stopped_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has not read its request yet, which does not fit into the pipe."""
    monkeypatch.setattr("weft_llvm.workers.TICK_SECONDS", 0.05)
    monkeypatch.setattr("weft_llvm.workers.STOPPED_SECONDS", 0.3)
    large = ir(1) + ";" + "x" * (1 << 20) + "\n"
    with Workers(1, command=first_time(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)")) as workers:
        assert workers.submit(large, HOST, "f1").result(120) == compile_object(ir(1), HOST)
    stop = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
    with Workers(1, command=stop) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert (
        "kernel 'f1' was not compiled: two compile workers did not answer\n  why: the process was stopped (SIGSTOP,"
        " SIGTSTP)" in str(error.value)
    )
    assert "hint: continue what was stopped" in str(error.value)


def test_a_worker_that_is_continued_in_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_llvm.workers.TICK_SECONDS", 0.05)
    with Workers(1) as workers:
        assert workers.submit(ir(1), HOST, "f1").result(60)
        pid = worker_of(workers)
        os.kill(pid, signal.SIGSTOP)
        future = workers.submit(ir(2), HOST, "f2")
        time.sleep(0.3)
        assert not future.done()
        os.kill(pid, signal.SIGCONT)
        assert future.result(60) == compile_object(ir(2), HOST)
        assert worker_of(workers) == pid


def test_a_worker_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_llvm.workers.TICK_SECONDS", 0.05)
    monkeypatch.setattr("weft_llvm.workers.SILENT_SECONDS", 0.2)
    with (
        Workers(1, command=SLEEP) as workers,
        pytest.raises(CodegenError, match=r"two compile workers did not answer\n  why: it took more than 0.2 s"),
    ):
        workers.submit(ir(1), HOST, "f1").result(60)


def test_a_second_try_runs_alone() -> None:
    """What ran out of memory beside others gets all of it."""
    turns = _Turns()
    log: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def beside() -> None:
        with turns.beside():
            inside.set()
            go.wait(60)
            log.append("beside")

    def alone() -> None:
        with turns.alone():
            log.append("alone begins")
            time.sleep(0.1)
            log.append("alone ends")

    def later() -> None:
        with turns.beside():
            log.append("later")

    threads = [threading.Thread(target=f) for f in (beside, alone, later)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    time.sleep(0.1)
    threads[2].start()
    time.sleep(0.1)
    assert log == []
    go.set()
    for t in threads:
        t.join(60)
    assert log == ["beside", "alone begins", "alone ends", "later"]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "os._exit(0)", "sys.exit(0)"])
def test_workers_end_with_their_parent(how: str, stopped: bool) -> None:
    """Also where they compute, or are stopped, and so do not see that the pipe is closed."""
    if stopped and sys.platform != "linux":
        pytest.skip("only Linux ends a stopped process")
    work = "os.kill(os.getpid(), 19)" if stopped else "time.sleep(600)"
    worker = (
        "import os, sys, time; from weft_llvm.processes import end_with_parent; sys.argv = ['', str(os.getppid())];"
        f" end_with_parent(); {work}"
    )
    script = f"""import os, sys, time
from weft_llvm.workers import Workers
from weft_llvm.toolchain import Cpu
workers = Workers(1, command=[sys.executable, "-c", {worker!r}])
workers.submit("", Cpu("", ""), "f")
while not workers._processes: time.sleep(0.01)
print(next(iter(workers._processes)).pid, flush=True)
time.sleep(1)
{how}"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False, timeout=120)
    pid = int(done.stdout)
    for _ in range(1000):
        if not is_running(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the worker goes on")


def is_running(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )  # who is gone and not buried is gone
    except OSError:
        return False


def test_a_worker_that_cannot_start() -> None:
    with Workers(1, command=["/nonexistent/python"]) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert "no compile worker could be started for kernel 'f1'" in str(error.value) and "No such file" in str(
        error.value
    )


def test_python_without_an_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with Workers(1) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert "compile workers cannot start" in str(error.value) and "has no path of its own executable" in str(
        error.value
    )


def test_closing_fails_what_is_left() -> None:
    workers = Workers(1, command=[sys.executable, "-c", "import time; time.sleep(600)"])
    futures = [workers.submit(ir(k), HOST, f"f{k}") for k in range(3)]
    while not workers._processes:
        time.sleep(0.01)
    workers.close()
    for k, f in enumerate(futures):
        with pytest.raises(CodegenError, match=f"kernel 'f{k}' was not compiled: the workers were closed"):
            f.result(10)
    with pytest.raises(CodegenError, match="kernel 'late' is submitted to compile workers that are closed"):
        workers.submit(ir(1), HOST, "late")
    workers.close()


@pytest.mark.parametrize("had", [0, 1])
def test_a_thread_that_cannot_start(had: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run take the job; without any it is an error, and nothing waits for a thread that never ran."""
    start = threading.Thread.start
    with Workers(2) as workers:
        first = [workers.submit(ir(k), HOST, f"f{k}") for k in range(had)]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            for k in range(3):
                if had:
                    first.append(workers.submit(ir(k), HOST, f"f{k}"))
                    continue
                with pytest.raises(CodegenError) as error:
                    workers.submit(ir(k), HOST, f"f{k}")
                assert str(error.value).startswith(
                    f"no thread could be started for a compile worker of kernel 'f{k}'\n  why: can't start new thread\n"
                    "  hint: end other processes"
                )
        assert threading.Thread.start is start
        assert all(f.result(60) for f in [*first, workers.submit(ir(7), HOST, "f7")])


def test_at_least_one() -> None:
    with pytest.raises(CodegenError, match="a pool of compile workers needs at least one, got 0"):
        Workers(0)


def test_in_process_starts_nothing() -> None:
    workers = Workers(in_process=True)
    future: Future[bytes] = workers.submit(ir(3), HOST, "f3")
    assert future.done() and future.result() == compile_object(ir(3), HOST) and not workers._processes


def test_a_forked_child_gets_a_pool_of_its_own() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    parent = default_workers()
    want = parent.submit(ir(5), HOST, "f5").result(60)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child = default_workers()
            code = 0 if child is not parent and child.submit(ir(5), HOST, "f5").result(60) == want else 2
            child.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert parent.submit(ir(5), HOST, "f5").result(60) == want
