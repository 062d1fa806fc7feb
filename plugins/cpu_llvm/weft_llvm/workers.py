"""Compile workers: subprocesses that turn LLVM IR into objects, because every llvmlite call takes one lock per process.

    request   := length header-length header IR        header: JSON of Cpu and the kernel's name
    response  := length status payload                 status 0: an object; 1: JSON of an error

Subprocesses of this very module (`python -m weft_llvm.workers`), never of the user's script. One that dies, dies alone: its
kernel's future gets a CodegenError, and the next job starts another.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import IO, BinaryIO, cast

from weft.errors import CodegenError
from weft_llvm.toolchain import Cpu, compile_object

_LENGTH = struct.Struct("<Q")
_SHORT = struct.Struct("<I")
_Job = tuple[str, Cpu, str, "Future[bytes]"]


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
                self._threads.append(thread)
                self._waiting -= 1  # the new thread waits for one
                thread.start()
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
        process: subprocess.Popen[bytes] | None = None
        log: IO[bytes] | None = None
        while (job := self._jobs.get()) is not None:
            ir, cpu, name, future = job
            try:
                if future.set_running_or_notify_cancel():
                    if process is None or process.poll() is not None:
                        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
                        process = self._start(log)
                    future.set_result(_ask(process, ir, cpu, name))
            except (OSError, EOFError) as error:
                future.set_exception(self._crash(process, log, name, error))
                process = None
            except CodegenError as error:
                future.set_exception(_about(name, error))
            except BaseException as error:  # noqa: BLE001 - a future that never ends would hang its reader
                future.set_exception(error)
            with self._lock:
                self._waiting -= 1
        if process is not None:
            process.kill()
            process.wait()
            with self._lock:
                self._processes.discard(process)

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        if self._command is None and not sys.executable:
            raise CodegenError("compile workers cannot start", why="this Python does not know its own executable")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        # -P: nothing in the current directory may shadow a module.
        command = self._command or [sys.executable, "-P", "-m", "weft_llvm.workers"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
        if closed:  # close() may have looked just before
            process.kill()
        return process

    def _crash(self, process: subprocess.Popen[bytes] | None, log: IO[bytes] | None, name: str, error: Exception) -> CodegenError:
        if process is None:
            return CodegenError(f"no compile worker could be started for kernel '{name}'", why=str(error))
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what it had not read yet
                    pipe.close()
        with self._lock:
            self._processes.discard(process)
            if self._closed:
                return CodegenError(f"kernel '{name}' was not compiled: the workers were closed")
        text = ""
        if log is not None:
            log.seek(0)
            text = log.read()[-2000:].decode(errors="replace").strip()
        ended = f"signal {-code}" if code < 0 else f"exit status {code}"
        hint = "this is a bug of LLVM or of the emitter; please report it"
        return CodegenError(f"the compile worker died on kernel '{name}' ({ended})", where=text or None, hint=hint)


def _about(name: str, error: CodegenError) -> CodegenError:
    return CodegenError(f"kernel '{name}': {error.what}", where=error.where, why=error.why, hint=error.hint)


def _read(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if data is None or len(data) < size:
        raise EOFError("the other end of the pipe is gone")
    return data


def _ask(process: subprocess.Popen[bytes], ir: str, cpu: Cpu, name: str) -> bytes:
    header = json.dumps({"cpu": asdict(cpu), "name": name}).encode()
    body = ir.encode()
    to, back = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    to.write(_LENGTH.pack(len(header) + len(body) + _SHORT.size) + _SHORT.pack(len(header)) + header + body)
    to.flush()
    (size,) = _LENGTH.unpack(_read(back, _LENGTH.size))
    status, payload = _read(back, 1), _read(back, size - 1)
    if status == b"\0":
        return payload
    fields = json.loads(payload)
    raise CodegenError(fields["what"], where=fields["where"], why=fields["why"], hint=fields["hint"])


# -- in the worker ----------------------------------------------------------------------------------------------------


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
            answer = b"\1" + json.dumps({"what": error.what, "where": error.where, "why": error.why, "hint": error.hint}).encode()
        except Exception as error:  # noqa: BLE001 - told to the parent, who raises it
            fields = {"what": "LLVM failed", "where": None, "why": f"{type(error).__name__}: {error}", "hint": None}
            answer = b"\1" + json.dumps(fields).encode()
        sink.write(_LENGTH.pack(len(answer)) + answer)
        sink.flush()


def main() -> None:
    import signal

    # Ctrl-C goes to the whole group; the parent decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent prepares the next kernels meanwhile, and nothing is compiled sooner than that: it goes first where processors are few.
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
