"""A board: another machine that runs programs, by its agent."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from weft_remote import frames, transports
from weft_remote.connection import Connection, File, Limits
from weft_remote.errors import LinkError
from weft_remote.facts import Facts, facts_of
from weft_remote.frames import Answer
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, InputError

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

Array = np.ndarray[Any, Any]

MOST_KEPT = 16
"""Programs whose archives are kept in memory for the next run."""


@dataclass(frozen=True)
class Result:
    """What a run on a board gave: `outputs` by name, and `answer` with the times that were taken there."""

    outputs: dict[str, Array]
    answer: Answer

    @property
    def seconds(self) -> tuple[float, ...]:
        """Of every counted run, by the board's clock."""
        return self.answer.seconds


class Board:
    """An agent's board. Threads may share it; jobs run one after another. Usable in `with`, which closes it.

    Attributes:
        url: how it was reached.
        facts: what it said of itself when it was connected.
        limits: of jobs for which nothing else is said.
    """

    def __init__(self, url: str, *, limits: Limits | None = None, silence: float = 20.0) -> None:
        """
        Raises:
            InputError: the URL cannot be used.
            LinkError: no agent answers, or it speaks another version of the protocol.
        """
        self.url, self.silence = url, silence
        self.name = url.partition("?")[0]
        self.limits = limits or Limits()
        self._connection = self._connect()
        self._kept: dict[int, tuple[Executable, File]] = {}
        self._keeping = threading.Lock()

    def _connect(self) -> Connection:
        connection = Connection(transports.open_stream(self.url, self.silence), self.name, self.silence)
        try:
            self.facts: Facts = facts_of(connection.hello)
        except LinkError:
            connection.close()
            raise
        return connection

    @property
    def target(self) -> str:
        """A target string for `weft.compile` that fits the board."""
        return f"{self.facts.target} -threads={self.facts.cores}"

    def run(
        self,
        program: Executable | str | os.PathLike[str],
        inputs: Mapping[str, Any],
        *,
        warmups: int = 0,
        repeats: int = 1,
        seconds: float | None = None,
        outputs: bool = True,
        threads: int | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Runs a program on the board.

        Args:
            program: an executable, of any machine, or the file of an archive.
            inputs: by name, of exactly the program's dtypes.
            warmups: runs that are not counted, before those that are.
            repeats: counted runs, at most 100,000; the outputs are those of the last.
            seconds: no further run is begun after counted runs have taken this long together.
            outputs: False leaves them on the board.
            threads: instead of those that the target or the board's WEFT_THREADS asks for.

        Raises:
            InputError: the inputs do not fit.
            JobError: a limit was reached, or the program crashed.
            RemoteError: the board refuses, or the run failed there; LinkError if the connection is lost.
        """
        executable, file = self._file_of(program)
        arrays = checked(executable, inputs)
        answer = self.run_file(
            file,
            arrays,
            warmups=warmups,
            repeats=repeats,
            budget=seconds or 0.0,
            outputs=outputs,
            threads=threads or 0,
            limits=limits,
        )
        found: dict[str, Array] = {}
        if outputs:
            if len(answer.arrays) != len(executable.outputs):
                raise LinkError(f"the board gives {len(answer.arrays)} outputs of {len(executable.outputs)}")
            for info, array in zip(executable.outputs, answer.arrays):
                if array.dtype != dtype(info.dtype).numpy or array.ndim != len(info.shape):
                    raise LinkError(f"the board gives {array.dtype}{list(array.shape)} for the output {info}")
                found[info.name] = array
        return Result(found, answer)

    def run_file(
        self,
        program: File,
        arrays: Sequence[Array],
        *,
        warmups: int = 0,
        repeats: int = 1,
        budget: float = 0.0,
        outputs: bool = True,
        threads: int = 0,
        limits: Limits | None = None,
    ) -> Answer:
        """As `run`, of an archive's bytes (of a page: those of `weft export -f wasm`), and inputs in order: what a
        tuner calls for every candidate."""
        for name, value, least, most in (("warmups", warmups, 0, 10**6), ("repeats", repeats, 1, frames.MOST_SAMPLES)):
            if not least <= value <= most:
                raise InputError(f"{name} is a number from {least} to {most}, got {value}")
        return self._connection.run(
            program,
            File.of(frames.pack(arrays, self.facts.order)),
            self._bounded(limits or self.limits),
            threads=threads,
            warmups=warmups,
            repeats=repeats,
            budget=budget,
            outputs=outputs,
            byte_order=self.facts.order,
        )

    def _bounded(self, limits: Limits) -> Limits:
        """A job that takes all memory takes the board with it."""
        if limits.memory or not self.facts.memory:
            return limits
        return replace(limits, memory=self.facts.memory * 7 // 8)

    def upload(self, program: Executable | str | os.PathLike[str]) -> int:
        """Sends an archive before it is needed; returns the bytes that were sent, 0 if the board has it."""
        return self._connection.upload(self._file_of(program)[1])

    def cancel(self) -> None:
        """Ends the job that another thread waits for, which gets a JobError."""
        self._connection.cancel()

    def _file_of(self, program: Executable | str | os.PathLike[str]) -> tuple[Executable, File]:
        from weft_runtime.executable import Executable

        if not isinstance(program, Executable):
            path = Path(program)
            try:
                executable = Executable.open(path)
                return executable, File.of(path.read_bytes()) if not self._page else self._exported(executable)
            except OSError as error:
                raise ArchiveError(f"{path} cannot be read", why=error.strerror) from None
        with self._keeping:
            kept = self._kept.get(id(program))
            if kept is None and self._page:
                kept = program, self._exported(program)
            elif kept is None:
                with tempfile.TemporaryDirectory(prefix="weft-") as folder:
                    path = Path(folder) / "model.weft"
                    program.save(path, durable=False)
                    kept = program, File.of(path.read_bytes())
            if id(program) not in self._kept:
                while len(self._kept) >= MOST_KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[id(program)] = kept  # which keeps the executable, and with it its id
            return kept

    @property
    def _page(self) -> bool:
        return self.facts.architecture == "wasm32"

    @staticmethod
    def _exported(program: Executable) -> File:
        """What a page takes for an archive: the file of `weft export -f wasm`.

        Raises:
            TargetError: the program is for another machine.
            UnsupportedError: a step of it runs where Python is.
        """
        from weft.exporting import exporter

        written = exporter("wasm", Path("model.wasm")).files(program, "model", {})
        return File.of(b"".join(written[".wasm"]))

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, by `close` or because it was lost."""
        return self._connection.closed

    def reconnect(self) -> None:
        """Connects anew after the connection was lost. Files that were sent are still there.

        Raises:
            LinkError: as when the board was connected first.
        """
        self._connection.close()
        self._connection = self._connect()

    def close(self) -> None:
        """Ends the connection, and what runs on the board."""
        self._connection.close()

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Board({self.url!r}, {self.facts.architecture}, {self.facts.cores} cores)"


def checked(executable: Executable, inputs: Mapping[str, Any]) -> list[Array]:
    """Inputs by name as row-major arrays in the program's order.

    Raises:
        InputError: one is missing, unknown, or of another dtype, rank or size.
    """
    names = [i.name for i in executable.inputs]
    if not isinstance(inputs, Mapping) or set(names) != set(inputs):
        got = ", ".join(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise InputError(
            f"the program takes the inputs {', '.join(names) or 'none'}, got {got or 'none'}",
            where="\n".join(map(str, executable.inputs)) or None,
        )
    arrays = []
    for info in executable.inputs:
        array = np.ascontiguousarray(inputs[info.name]) if np.ndim(inputs[info.name]) else np.array(inputs[info.name])
        fits = array.dtype == dtype(info.dtype).numpy and array.ndim == len(info.shape)
        if not fits or any(isinstance(w, int) and w != s for w, s in zip(info.shape, array.shape)):
            raise InputError(f"input {array.dtype}{list(array.shape)} does not fit", where=str(info))
        arrays.append(array)
    return arrays
