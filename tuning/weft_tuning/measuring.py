"""Measuring as a job: executables and inputs → times of every kernel, in a process or on a machine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import ExecutionError, InputError, WeftError
from weft_tuning import worker

if TYPE_CHECKING:
    from weft.resolve import ResolvedTarget
    from weft_runtime.executable import Executable

Array = np.ndarray[Any, Any]

FLOATS = 2e-2
"""Greatest difference of float results over the largest of them. Candidates add up in other orders, and what is rounded
to 8 bits or 16 in between amplifies that; a wrong kernel differs by more."""
INTEGERS = 0.05
"""Greatest share of integers, indices and booleans that may differ, which are other ones where floats were nearly
equal."""
MOST_TURNS = 400
STARTS = 60.0
"""Seconds in which a process answers that it has started."""


@dataclass(frozen=True)
class Times:
    """Of one executable beside another, in turns.

    Attributes:
        base, candidate: ticks by turn and kernel call.
        base_seconds, candidate_seconds: of whole runs, by turn.
    """

    base: Array
    candidate: Array
    base_seconds: Array
    candidate_seconds: Array


@dataclass(frozen=True)
class Failed:
    """A job that gave no times, and why."""

    why: str


class Worker(ABC):
    """Measures executables beside a base, all of them compiled with clocks around their kernels. A context manager."""

    slots = 1
    """Jobs that it works on at the same time."""

    def require(self, target: ResolvedTarget) -> None:  # noqa: B027 - who cannot tell takes every target
        """That it measures on machines of this kind, as far as it can tell.

        Raises:
            InputError: it does not: records would be of another machine than they say.
        """

    @abstractmethod
    def begin(self, base: Executable, inputs: Mapping[str, Array]) -> None:
        """What follows is measured beside `base`, on these inputs."""

    @abstractmethod
    def measure(self, candidates: Sequence[Executable], seconds: float, limit: float) -> list[Times | Failed]:
        """Times of each candidate beside the base.

        Args:
            seconds: of one measurement.
            limit: seconds after which a measurement is ended, and has failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends what it has started."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalWorker(Worker):
    """A process of this machine, which is started again when a candidate ends it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="weft-tune-")
        self._process: subprocess.Popen[str] | None = None

    def begin(self, base: Executable, inputs: Mapping[str, Array]) -> None:
        folder = Path(self._folder.name)
        base.save(folder / "base.weft", durable=False)
        try:
            worker.write_inputs(folder / "inputs.npz", inputs)
        except OSError as error:
            raise ExecutionError(
                "the inputs cannot be given to the process that measures",
                where=str(folder),
                why=error.strerror or str(error),
                hint="TMPDIR may name another folder",
            ) from None

    def measure(self, candidates: Sequence[Executable], seconds: float, limit: float) -> list[Times | Failed]:
        return [self._one(candidate, seconds, limit) for candidate in candidates]

    def _one(self, candidate: Executable, seconds: float, limit: float) -> Times | Failed:
        folder = Path(self._folder.name)
        path = folder / "candidate.weft"
        candidate.save(path, durable=False)
        try:
            archives = [str(folder / "base.weft"), str(path)]
            answer = self.answer(job(archives, str(folder / "inputs.npz"), seconds, limit), limit)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return times_of(answer)

    def answer(self, line: str, limit: float) -> Mapping[str, Any]:
        """What the process answers to a line of `job`, within `limit` seconds."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except OSError:
            return self._ended(process)
        return self._read(process, limit)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weft_tuning.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C ends the tuner after the round, whose measurement goes on until then
            )
            started = self._read(self._process, STARTS)
            if started:
                raise ExecutionError("the process that measures does not start", why=str(started.get("error")))
        return self._process

    def _read(self, process: subprocess.Popen[str], limit: float) -> Mapping[str, Any]:
        assert process.stdout is not None
        ready = select.poll()  # not `select`, which takes no file above 1023
        ready.register(process.stdout, select.POLLIN)
        if not ready.poll(limit * 1000):
            self._kill()
            return {"error": f"no result within {limit:.0f} s"}
        line = process.stdout.readline()
        if not line.endswith("\n"):
            return self._ended(process)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._kill()
            return {"error": "it has damaged the process, whose answer cannot be read"}
        return answer

    def _ended(self, process: subprocess.Popen[str]) -> Mapping[str, Any]:
        code = process.wait()
        self._kill()
        return {"error": f"it ended the process by signal {-code}" if code < 0 else f"the process ended with {code}"}

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # a line that the process has not read
                    pipe.close()  # type: ignore[union-attr]  # both are pipes
            self._process = None

    def close(self) -> None:
        self._kill()
        self._folder.cleanup()


class BoardWorker(Worker):
    """A board of `weft.remote`, by whose clock times are taken."""

    def __init__(self, url: str) -> None:
        from weft.remote import connect

        self.board: Any = connect(url)

    def begin(self, base: Executable, inputs: Mapping[str, Array]) -> None:
        self._base, self._inputs = base, dict(inputs)

    def measure(self, candidates: Sequence[Executable], seconds: float, limit: float) -> list[Times | Failed]:
        return [self._one(candidate, seconds, limit) for candidate in candidates]

    def _one(self, candidate: Executable, seconds: float, limit: float) -> Times | Failed:
        found = self._turns(candidate, seconds, limit)
        if self.board.closed:  # the connection was lost, of which the candidate may be innocent
            self.board.reconnect()
            found = self._turns(candidate, seconds, limit)
            if self.board.closed:
                self.board.reconnect()
        return found

    def _turns(self, candidate: Executable, seconds: float, limit: float) -> Times | Failed:
        calls: tuple[list[Array], list[Array]] = ([], [])
        totals: tuple[list[float], list[float]] = ([], [])
        ends = time.perf_counter() + seconds
        expected: dict[str, Array] = {}
        limits = replace(self.board.limits, time=limit)
        try:
            while len(totals[0]) < worker.LEAST_RUNS or (time.perf_counter() < ends and len(totals[0]) < MOST_TURNS):
                for k, executable in enumerate((self._base, candidate)):
                    found = self.board.run(
                        executable, self._inputs, warmups=0 if totals[k] else worker.WARM, limits=limits
                    )
                    stamps = found.outputs[worker.PROFILE]
                    calls[k].append(stamps[:, 1] - stamps[:, 0])
                    totals[k].append(found.seconds[-1])
                    results = {name: value for name, value in found.outputs.items() if name != worker.PROFILE}
                    expected = expected or results
                    for name in () if len(totals[0]) > 1 else results:
                        wrong = worker.difference(expected[name], results[name], FLOATS, INTEGERS)
                        if wrong:
                            return Failed(f"its output {wrong}")
        except WeftError as error:
            return Failed(error.what)
        return Times(*(np.array(c) for c in calls), *(np.array(t) for t in totals))

    def close(self) -> None:
        self.board.close()


class ClusterWorker(Worker):
    """A Dask cluster: every one of its workers measures on its own machine, one job at a time.

    Args:
        address: of the scheduler, e.g. "tls://host:8786".
        security: certificates, as `distributed.Security`; None: those of Dask's own configuration.
    """

    def __init__(self, address: str, security: Any = None) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise InputError(
                "a cluster needs the package distributed", hint='pip install "weft-tuning[cluster]"'
            ) from None
        try:
            self._client = Client(address, security=security, timeout=20)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no cluster answers at '{address}'", why=str(error)) from None
        self.address = address
        self._workers = self._there()
        if not self._workers:
            self._client.close()
            raise InputError(f"the cluster at '{address}' has no workers", hint=f"dask worker {address} --nthreads 1")
        self.slots = len(self._workers)

    def _there(self) -> list[str]:
        """The addresses of the workers that the cluster has now; none if it does not answer."""
        try:
            return sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        except Exception:  # noqa: BLE001 - of the connection, whatever form it has
            return []

    def require(self, target: ResolvedTarget) -> None:
        found = self._client.run(machine_here, str(target.target), target.target.kind, on_error="return")
        wanted = target.machine_key, target.versions
        for worker_address, there in found.items():
            if isinstance(there, BaseException) or there[:2] != wanted:
                why = (
                    f"{type(there).__name__}: {there}"
                    if isinstance(there, BaseException)
                    else f"the target is {wanted[0]} of Weft {wanted[1]}, there it is {there[0]} of Weft {there[1]}"
                )
                raise InputError(
                    f"the worker at '{worker_address}' cannot measure for this target",
                    where=self.address,
                    why=why,
                    hint="its processor, number of threads and versions have to be those that records are for",
                )
        if len({own for *_, own in found.values()}) > 1:
            raise InputError(
                f"the workers of the cluster at '{self.address}' are different machines",
                why="times of different machines cannot be compared",
                hint="use a cluster of equal machines",
            )

    def begin(self, base: Executable, inputs: Mapping[str, Array]) -> None:
        self._fixed = self._client.scatter((packed(base), dict(inputs)), broadcast=True, hash=False)

    def measure(self, candidates: Sequence[Executable], seconds: float, limit: float) -> list[Times | Failed]:
        futures = [
            self._client.submit(
                measure_here,
                self._fixed,
                packed(candidate),
                seconds,
                limit,
                pure=False,
                retries=0,
                workers=[self._workers[k % self.slots]],
                allow_other_workers=True,
            )
            for k, candidate in enumerate(candidates)
        ]
        found: list[Times | Failed] = []
        for future in futures:
            try:
                found.append(future.result(timeout=limit * (1 + len(candidates) / self.slots) + STARTS))
            except Exception as error:  # noqa: BLE001 - whatever its machine, or the cluster, failed with
                why = f"{type(error).__name__}: {error}"[:300]
                if not self._there():  # or every candidate that is left would be noted as one that fails
                    raise ExecutionError(
                        f"the cluster at '{self.address}' has no workers left",
                        why=why,
                        hint="what was measured is kept: start workers, and tune on",
                    ) from None
                future.cancel()
                found.append(Failed(why))
        return found

    def close(self) -> None:
        self._client.close()


def machine_here(text: str, kind: str) -> tuple[str, str, str]:
    """What a target is on the machine that runs this: its `machine_key`, its `versions`, and what the kind alone is."""
    from weft.resolve import resolve_target

    found = resolve_target(text)
    return found.machine_key, found.versions, str(resolve_target(kind).target)


def measure_here(
    fixed: tuple[bytes, Mapping[str, Array]], candidate: bytes, seconds: float, limit: float
) -> Times | Failed:
    """A job of a cluster: measures on the machine that runs this, in a process of its own."""
    base, inputs = fixed
    with contextlib.closing(LocalWorker()) as here, tempfile.TemporaryDirectory(prefix="weft-tune-") as folder:
        archives = [str(Path(folder) / name) for name in ("base.weft", "candidate.weft")]
        for path, data in zip(archives, (base, candidate)):
            Path(path).write_bytes(data)
        arrays = str(Path(folder) / "inputs.npz")
        worker.write_inputs(arrays, inputs)
        return times_of(here.answer(job(archives, arrays, seconds, limit), limit))


def under_load() -> str | None:
    """Whether other processes keep this machine busy, as a sentence; None if not."""
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return None
    return f"{load:.1f} processes have wanted one of {cores} cores in the last minute" if load > 0.6 * cores else None


def packed(executable: Executable) -> bytes:
    """The bytes of its archive."""
    with tempfile.TemporaryDirectory(prefix="weft-tune-") as folder:
        path = Path(folder) / "model.weft"
        executable.save(path, durable=False)
        return path.read_bytes()


def job(archives: Sequence[str], inputs: str, seconds: float, limit: float) -> str:
    """The line of JSON that asks a worker's process for a measurement (`worker.measure`), which it ends itself some
    time after `limit` seconds."""
    return json.dumps(
        {
            "archives": list(archives),
            "inputs": inputs,
            "seconds": seconds,
            "limit": limit,
            "most": MOST_TURNS,
            "floats": FLOATS,
            "integers": INTEGERS,
        }
    )


def times_of(answer: Mapping[str, Any]) -> Times | Failed:
    """What a worker's process has answered."""
    if "error" in answer:
        return Failed(str(answer["error"]))
    if "differs" in answer:
        return Failed(f"it computes something else: {answer['differs']}")
    (base, candidate), (one, other) = answer["calls"], answer["totals"]
    return Times(np.array(base), np.array(candidate), np.array(one), np.array(other))


def by_kernel(calls: Sequence[str], ticks: Array) -> dict[str, float]:
    """Key → ticks of all its calls in a run: the sum of each call's median."""
    found: dict[str, float] = {}
    for key, median in zip(calls, np.median(ticks, axis=0), strict=True):
        found[key] = found.get(key, 0.0) + float(median)
    return found
