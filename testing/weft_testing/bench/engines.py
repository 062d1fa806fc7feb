"""Other engines with a model loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    from weft.hooks import EngineKind


def open_engine(kind: EngineKind, model: str, threads: int) -> Callable[[Any], list[Any]]:
    """A peer with the model loaded, ready to run.

    Raises:
        InputError: it cannot load it, in its own words.
    """
    try:
        return kind.open(model, threads)
    except Exception as error:
        raise engine_refuses(kind, model, error) from error


def engine_refuses(kind: EngineKind, model: str, error: Exception) -> InputError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return InputError(
        f"the engine '{kind.name}' {kind.available()} does not run {model}",
        why=" ".join(lines)[:300],
        hint="leave it out with --against",
    )
