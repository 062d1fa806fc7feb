"""States that a program keeps between calls.

A graph of Weft keeps nothing. A state that no call changes is zeros, which Core ML begins with. Of one that a call
changes the option `state` says what becomes of it: "fresh", every call begins with zeros; "inputs", it is an input, and
what it is after the call is an output NAME.after, which the caller gives to the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graph.nodes import TensorType, Value

if TYPE_CHECKING:
    from weft_coreml.context import Context
    from weft_coreml.importer import Importer

HINT = "the option state: 'fresh' begins every call with zeros, 'inputs' makes them inputs and outputs"


@dataclass(frozen=True)
class Stored:
    """Stands for a state."""

    name: str


class States:
    """The values of states while a program is read.

    Args:
        kind: the option `state`.
    """

    def __init__(self, importer: Importer, kind: str | None) -> None:
        self.importer, self.kind = importer, kind
        self.values: dict[str, Value] = {}

    def begin(self, name: str, type: TensorType) -> Stored:
        """A state of the function that is read."""
        if self.kind == "inputs":
            self.values[name] = self.importer.builder.input(name, type)
        else:
            zeros = np.zeros(tuple(int(d) for d in type.shape if isinstance(d, int)), type.dtype.numpy)
            self.values[name] = self.importer.builder.constant(zeros, name)
        return Stored(name)

    def read(self, c: Context, state: Any) -> Value:
        """What a state holds.

        Raises:
            Unsupported: it is read in a branch or loop.
        """
        return self.values[self._name(c, state)]

    def write(self, c: Context, state: Any, value: Value) -> None:
        """Gives a state another value.

        Raises:
            Unsupported: the option `state` says nothing, or this is in a branch or loop.
            FrontendError: it has another type.
        """
        name = self._name(c, state)
        if self.kind is None:
            raise c.unsupported(f"it keeps a state between calls: {HINT}")
        if value.type != self.values[name].type:
            raise c.error(f"state '{name}' is {self.values[name].type}, the value {value.type}")
        self.values[name] = value

    def _name(self, c: Context, state: Any) -> str:
        if not isinstance(state, Stored):
            raise c.error("the operand is no state")
        if self.importer.level.outer is not None:
            raise c.unsupported("a state in a branch or loop")
        return state.name

    def results(self) -> list[tuple[str, Value]]:
        """What states are after the call, by the names of the outputs."""
        return [(f"{n}.after", v) for n, v in self.values.items()] if self.kind == "inputs" else []


__all__ = ["HINT", "States", "Stored"]
