"""Where executables run that are not run by this process: a package that reaches other machines says how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from weft_runtime.arrays import Array

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

Run: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any] | None], list[Array]]
"""Inputs in order, and storage for outputs by name or None → outputs in order."""
Place: TypeAlias = "Callable[[Executable], Run]"
"""How an executable is run there."""

_place: Place | None = None


def place() -> Place | None:
    """Where executables run that are made now; None: in this process."""
    return _place


@contextmanager
def runs_at(there: Place) -> Iterator[None]:
    """Executables that any thread of the process makes or loads meanwhile run `there`, also those for this machine.
    Those made before run where they did."""
    global _place
    before, _place = _place, there
    try:
        yield
    finally:
        _place = before
