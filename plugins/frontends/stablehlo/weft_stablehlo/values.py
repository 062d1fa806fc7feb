"""What stands for the values of a module while it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Values:
    """By MLIR's value what stands for it, in a block inside of another or of none.

    Args:
        outer: what the block around has.
        capture: of a block that becomes a graph of its own: what stands there for an operand of the graph around.
    """

    def __init__(self, outer: Values | None = None, capture: Callable[[Any], Any] | None = None) -> None:
        self.outer, self.capture = outer, capture
        self._own: dict[Any, Any] = {}

    def __setitem__(self, value: Any, operand: Any) -> None:
        self._own[value] = operand

    def __getitem__(self, value: Any) -> Any:
        """What stands for a value.

        Raises:
            KeyError: nothing does.
        """
        if value in self._own:
            return self._own[value]
        if self.outer is None:
            raise KeyError(str(value))
        found = self.outer[value]
        return found if self.capture is None else self.capture(found)


__all__ = ["Values"]
