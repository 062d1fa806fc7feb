"""Compile workers: subprocesses that turn LLVM IR into objects, because every llvmlite call takes one lock per process,
and LLVM may end the process.

    request   := length header-length header IR        header: JSON of Cpu and the kernel's name
    response  := length status payload                 status 0: an object; 1: JSON of an error

Subprocesses of this very module (`python -m weft_llvm.workers`), never of the user's script. They end with the process
that started them. One that ends by LLVM's doing, ends alone: its kernel's future gets a CodegenError, and the next job
starts another. One that the system ends or stops (no memory, a user) is replaced, and its kernel is compiled again,
once, while nothing else is.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, BinaryIO

from weft.errors import CodegenError
from weft_llvm.processes import command, end_with_parent, ended, environment, scratch_file, tail
from weft_llvm.toolchain import Cpu, compile_object

_LENGTH = struct.Struct("<Q")
_SHORT = struct.Struct("<I")
_Job = tuple[str, Cpu, str, "Future[bytes]"]

TICK_SECONDS = 1.0
"""How often a worker that says nothing is looked at."""
STOPPED_SECONDS = 10.0
"""After which a worker that somebody has stopped is given up: a shell that stops and continues a group of processes
does not reach all at one time."""
SILENT_SECONDS = 1800.0
"""After which a worker that runs and does not answer is given up. The largest kernels take seconds."""
_MORE_MEMORY = "give the process more memory, or end others, and compile again"
_MORE_THREADS = "end other processes, or allow more: ulimit -u, the pids.max of the process's control group"
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
"""Signals that a process does not raise by what it computes."""

_NO_MEMORY = re.compile(r"out of memory|bad_alloc|MemoryError")


class _Lost(Exception):
    """A worker that is gone, or that is given up and has to go; `why` it is given up, if so."""

    def __init__(self, why: str | None = None) -> None:
        super().__init__(why)
        self.why = why


class Workers:
    """A pool of compile processes, started as jobs come.

    Args:
        count: processes at most; default: the processors that this process may use.
        in_process: compile in the calling thread instead. For tests.
        command: what to run instead of `python -m weft_llvm.workers`. For tests.
    """

    def __init__(self, count: int | None = None, *, in_process: bool = False, command: list[str] | None = None) -> None:
        if count is None:
            from weft_llvm.target import available_threads

            count = available_threads()
        if count < 1:
            raise CodegenError(f"a pool of compile workers needs at least one, got {count}")
        self.count, self.in_process = count, in_process
        self._command = command
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._turns = _Turns()
        self._waiting = 0  # jobs that no thread has taken, less threads that wait for one
        self._closed = False

    def submit(self, ir: str, cpu: Cpu, name: str) -> Future[bytes]:
        """The object of `ir`; `name` is the kernel's, for errors. The future raises CodegenError."""
        future: Future[bytes] = Future()
        if self.in_process:
            try:
                future.set_result(compile_object(ir, cpu))
            except CodegenError as error:
                future.set_exception(_about(name, error))
            return future
        with self._lock:
            if self._closed:
                raise CodegenError(f"kernel '{name}' is submitted to compile workers that are closed")
            self._waiting += 1
            if self._waiting > 0 and len(self._threads) < self.count:
                thread = threading.Thread(target=self._serve, name=f"weft-compile-{len(self._threads)}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no more; those that run take the job
                    if not self._threads:
                        self._waiting -= 1
                        raise CodegenError(
                            f"no thread could be started for a compile worker of kernel '{name}'",
                            why=str(error),
                            hint=_MORE_THREADS,
                        ) from None
                else:
                    self._threads.append(thread)
                    self._waiting -= 1  # the new thread waits for one
        self._jobs.put((ir, cpu, name, future))
        return future

    def close(self) -> None:
        """Ends the processes; what is being compiled fails."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            processes, threads = list(self._processes), list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for p in processes:
            p.kill()
        for t in threads:
            t.join(5)
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[3].set_exception(CodegenError(f"kernel '{job[2]}' was not compiled: the workers were closed"))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- one thread per process -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (job := self._jobs.get()) is not None:
            ir, cpu, name, future = job
            try:
                if future.set_running_or_notify_cancel():
                    worker, result = self._answer(worker, ir, cpu, name)
                    future.set_result(result)
            except CodegenError as error:
                if worker is not None and worker.process.poll() is not None:
                    worker = None
                future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - a future that never ends would hang its reader
                future.set_exception(error)
            with self._lock:
                self._waiting -= 1
        if worker is not None:
            self._end(worker)

    def _answer(self, worker: _Worker | None, ir: str, cpu: Cpu, name: str) -> tuple[_Worker, bytes]:
        """The object of a job, and who made it: `worker`, or another in its place."""
        for again in (False, True):
            try:
                with self._turns.alone() if again else self._turns.beside():
                    if worker is None or worker.process.poll() is not None:
                        if worker is not None:
                            self._end(worker)
                        worker = self._start(name)
                    try:
                        return worker, worker.ask(ir, cpu, name)
                    except CodegenError as error:
                        raise _about(name, error) from None
            except _Lost as lost:
                assert worker is not None
                code = self._end(worker)
                with self._lock:
                    if self._closed:
                        raise CodegenError(f"kernel '{name}' was not compiled: the workers were closed") from None
                if lost.why is None and -code not in _OUTSIDE and not _NO_MEMORY.search(worker.said()):
                    hint = "this is a bug of LLVM or of the emitter; please report it"
                    raise CodegenError(
                        f"the compile worker died on kernel '{name}' ({ended(code)})",
                        where=worker.said() or None,
                        hint=hint,
                    ) from None
                if again:
                    raise _given_up(name, code, lost.why) from None
                worker = None
        raise AssertionError("unreachable")

    def _start(self, name: str) -> _Worker:
        try:
            worker = _Worker(self._command or command(__name__))
        except OSError as error:
            raise CodegenError(f"no compile worker could be started for kernel '{name}'", why=str(error)) from None
        with self._lock:
            self._processes.add(worker.process)
            closed = self._closed
        if closed:  # close() may have looked just before
            worker.process.kill()
        return worker

    def _end(self, worker: _Worker) -> int:
        """Ends a worker; how it ended, as `Popen.wait` tells it."""
        code = worker.end()
        with self._lock:
            self._processes.discard(worker.process)
        return code


def _given_up(name: str, code: int, why: str | None) -> CodegenError:
    if why is not None:
        hint = "continue what was stopped, or see what keeps the machine busy, and compile again"
        return CodegenError(f"kernel '{name}' was not compiled: two compile workers did not answer", why=why, hint=hint)
    if -code not in _OUTSIDE:
        return CodegenError(
            f"a compile worker had no memory left for kernel '{name}', also with no other worker at work",
            hint=_MORE_MEMORY,
        )
    if -code == signal.SIGKILL:
        why = (
            "the system kills the largest process when memory runs out, and it did so twice, the second time with no"
            " other worker at work"
        )
        return CodegenError(f"a compile worker was killed (signal 9) on kernel '{name}'", why=why, hint=_MORE_MEMORY)
    return CodegenError(
        f"two compile workers were ended from outside ({ended(code)}) on kernel '{name}'",
        hint="see what ends them, and compile again",
    )


class _Turns:
    """Jobs run beside one another, but for those that run alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._one = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._one)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._one)
            self._one = True  # those that run finish; no other begins
            self._changed.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._one = False
                self._changed.notify_all()


class _Worker:
    """A process that compiles one job after another.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, words: list[str]) -> None:
        self._log: IO[bytes] = scratch_file()
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment(), bufsize=0
        )
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def said(self) -> str:
        """The last that it has written to its standard error."""
        return tail(self._log)

    def end(self) -> int:
        """Ends the process if it has not ended; how it ended."""
        self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return code

    def ask(self, ir: str, cpu: Cpu, name: str) -> bytes:
        """The object of `ir`.

        Raises:
            CodegenError: LLVM rejects it.
            _Lost: the process ended, or does not answer.
        """
        header = json.dumps({"cpu": asdict(cpu), "name": name}).encode()
        body = ir.encode()
        answer = self._exchange(
            _LENGTH.pack(len(header) + len(body) + _SHORT.size) + _SHORT.pack(len(header)) + header + body
        )
        if answer[:1] == b"\0":
            return bytes(answer[1:])
        fields = json.loads(answer[1:])
        raise CodegenError(fields["what"], where=fields["where"], why=fields["why"], hint=fields["hint"])

    def _exchange(self, request: bytes) -> bytearray:
        """Sends a request and waits for its answer, as long as the process is not stopped and there is hope."""
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        left, answer, wanted = memoryview(request), bytearray(), _LENGTH.size
        since = stopped = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(back, selectors.EVENT_READ)
            selector.register(to, selectors.EVENT_WRITE)
            while len(answer) < wanted:
                events = selector.select(TICK_SECONDS)
                now = time.monotonic()
                for key, _ in events:
                    try:
                        if key.fileobj is to:
                            left = left[os.write(key.fd, left[: 1 << 16]) :]
                            if not left:
                                selector.unregister(to)
                        else:
                            piece = os.read(key.fd, 1 << 20)
                            if not piece:
                                raise _Lost
                            answer += piece
                            if wanted == _LENGTH.size and len(answer) >= wanted:
                                wanted += _LENGTH.unpack_from(answer)[0]
                    except BlockingIOError:
                        continue
                    except OSError:
                        raise _Lost from None
                if events or not self._is_stopped():
                    stopped = now
                elif now - stopped > STOPPED_SECONDS:
                    raise _Lost(
                        f"the process was stopped (SIGSTOP, SIGTSTP) and not continued within {STOPPED_SECONDS:g} s"
                    )
                if now - since > SILENT_SECONDS:
                    raise _Lost(f"it took more than {SILENT_SECONDS:g} s")
        return answer[_LENGTH.size :]

    def _is_stopped(self) -> bool:
        try:
            found = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except (AttributeError, OSError):  # not on every system; it has ended, which the pipe tells
            return False
        return found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)


def _about(name: str, error: CodegenError) -> CodegenError:
    return CodegenError(f"kernel '{name}': {error.what}", where=error.where, why=error.why, hint=error.hint)


# -- in the worker ----------------------------------------------------------------------------------------------------


def _read(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if data is None or len(data) < size:
        raise EOFError("the other end of the pipe is gone")
    return data


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answers requests until the parent closes its end."""
    while True:
        try:
            (size,) = _LENGTH.unpack(_read(source, _LENGTH.size))
            message = _read(source, size)
        except EOFError:
            return
        (length,) = _SHORT.unpack_from(message)
        header = json.loads(message[_SHORT.size : _SHORT.size + length])
        try:
            answer = b"\0" + compile_object(message[_SHORT.size + length :].decode(), Cpu(**header["cpu"]))
        except CodegenError as error:
            answer = (
                b"\1"
                + json.dumps({"what": error.what, "where": error.where, "why": error.why, "hint": error.hint}).encode()
            )
        except Exception as error:  # noqa: BLE001 - told to the parent, who raises it
            fields = {"what": "LLVM failed", "where": None, "why": f"{type(error).__name__}: {error}", "hint": None}
            answer = b"\1" + json.dumps(fields).encode()
        sink.write(_LENGTH.pack(len(answer)) + answer)
        sink.flush()


def main() -> None:
    end_with_parent()
    # Ctrl-C goes to the whole group; the parent decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent prepares the next kernels meanwhile, and nothing is compiled sooner than that: it goes first where
    # processors are few.
    with suppress(OSError, AttributeError):
        os.nice(5)
    # Whatever prints to standard output must not get between the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sink)
    os._exit(0)  # nothing here needs an orderly end, and LLVM's takes time


# -- the pool of this process -----------------------------------------------------------------------------------------

_default: Workers | None = None
_default_lock = threading.Lock()


def default_workers() -> Workers:
    """The pool of this process, started on first use, ended at exit, made anew in a forked child."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Workers()
            atexit.register(_default.close)
        return _default


def _after_fork() -> None:
    global _default, _default_lock
    _default_lock = threading.Lock()
    if _default is not None:
        # The threads stayed with the parent. Our copies of the pipes would keep its workers alive after it.
        atexit.unregister(_default.close)
        for process in _default._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    os.close(pipe.fileno())
        _orphans.append(_default)  # its objects must not be finalised: their descriptors are gone
        _default = None


_orphans: list[Workers] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

if __name__ == "__main__":
    main()
