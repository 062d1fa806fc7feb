"""Executables that run on a board: what `weft bench|verify|conform --on` use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from weft_remote.board import Array, Board
from weft_remote.connection import Limits
from weft_runtime.elsewhere import Run, runs_at
from weft_runtime.errors import InputError

if TYPE_CHECKING:
    from weft_runtime.executable import Executable


@contextmanager
def run_on(board: Board | str, *, limits: Limits | None = None) -> Iterator[Board]:
    """Executables that are compiled or loaded meanwhile, by any thread of the process, run on the board: `run` and
    calls of them answer as if they ran here. A board that is given by its URL is closed at the end.

    Raises:
        InputError, LinkError: as `connect`.
    """
    opened = Board(board, limits=limits) if isinstance(board, str) else board
    try:
        with runs_at(lambda executable: _on(opened, executable)):
            yield opened
    finally:
        if opened is not board:
            opened.close()


def _on(board: Board, executable: Executable) -> Run:
    def run(values: Sequence[Any], out: Mapping[str, Any] | None) -> list[Array]:
        names = [i.name for i in executable.inputs]
        inputs = dict(zip(names, (_array(v) for v in values), strict=True))
        storage = _storage(executable, out or {})
        arrays = list(board.run(executable, inputs).outputs.values())
        for k, (info, array) in enumerate(zip(executable.outputs, arrays)):
            if info.name in storage:
                given = storage[info.name]
                if given.dtype != array.dtype or given.shape != array.shape:
                    raise InputError(
                        f"the storage of '{info.name}' is {given.dtype}{list(given.shape)}, its result"
                        f" {array.dtype}{list(array.shape)}"
                    )
                given[...] = array
                arrays[k] = given
        return arrays

    return run


def _array(value: Any) -> Array:
    """An input as numpy's array: what has neither `__array__` nor a number is taken by DLPack."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def _storage(executable: Executable, out: Mapping[str, Any]) -> dict[str, Array]:
    known = [o.name for o in executable.outputs]
    for name, array in out.items():
        if name not in known:
            raise InputError(f"there is no output '{name}'", where="\n".join(map(str, executable.outputs)))
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise InputError(f"the storage of '{name}' is no writable array of numpy", hint="boards fill these alone")
    return dict(out)
