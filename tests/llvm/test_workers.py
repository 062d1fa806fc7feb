"""Compile workers: answers, errors, crashes, ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import Future

import pytest

from weft.errors import CodegenError
from weft_llvm.toolchain import Cpu, compile_object, host_cpu, host_features, host_triple
from weft_llvm.workers import Workers, default_workers

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
        assert "the compile worker died on kernel 'aes' (signal" in text and "LLVM ERROR" in text and "please report it" in text
        assert workers.submit(ir(1), HOST, "f1").result(60)


def test_a_killed_worker() -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(600)"]
    with Workers(1, command=slow) as workers:
        future = workers.submit(ir(1), HOST, "victim")
        while not workers._processes:
            time.sleep(0.01)
        os.kill(next(iter(workers._processes)).pid, signal.SIGKILL)
        with pytest.raises(CodegenError, match=r"the compile worker died on kernel 'victim' \(signal 9\)"):
            future.result(60)


def test_a_worker_that_cannot_start() -> None:
    with Workers(1, command=["/nonexistent/python"]) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert "no compile worker could be started for kernel 'f1'" in str(error.value) and "No such file" in str(error.value)


def test_python_without_an_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with Workers(1) as workers, pytest.raises(CodegenError) as error:
        workers.submit(ir(1), HOST, "f1").result(60)
    assert "compile workers cannot start" in str(error.value) and "does not know its own executable" in str(error.value)


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
