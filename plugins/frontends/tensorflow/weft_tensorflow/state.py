"""What a model keeps between calls: variables.

A graph of Weft keeps nothing. A variable that no call changes is a constant. Of one that a call changes the option
`state` says what becomes of it: "fresh", every call begins with its first value; "inputs", it is an input, and what it
is after the call is an output NAME.after, which the caller gives to the next call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.dtypes import dtype
from weft.errors import FrontendError
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Level
from weft_tensorflow.bundle import Bundle
from weft_tensorflow.context import Context

if TYPE_CHECKING:
    from weft_tensorflow.importer import Importer

HINT = "the option state: 'fresh' begins every call with the first values, 'inputs' makes them inputs and outputs"


@dataclass(frozen=True)
class Handle:
    """Stands for a variable; `reference`: one whose name as an operand means its value."""

    name: str
    reference: bool = False


@dataclass(frozen=True)
class Stored:
    """Stands for a tensor of the checkpoint."""

    bundle: Bundle
    name: str


class States:
    """The values of variables while a model is read; all are of the outermost graph.

    Args:
        kind: the option `state`.
        changing: variables that a call changes, as a first reading of the model has found.
    """

    def __init__(self, importer: Importer, kind: str | None, changing: Iterable[str] = ()) -> None:
        self.importer, self.kind, self.changing = importer, kind, frozenset(changing)
        self.values: dict[str, Any] = {}
        self.changed: set[str] = set()
        self.first = 0
        """How many graphs that give first values are being read."""
        self._stored: dict[tuple[int, str], tuple[Level, Value]] = {}

    def read(self, c: Context, name: str) -> Any:
        """What a variable holds, in the graph that is being built.

        Raises:
            FrontendError: nothing gives its value.
        """
        if name not in self.values:
            raise FrontendError(
                f"variable '{name}' has no value",
                where=c.place,
                why="no checkpoint was read that has it",
                hint="give the folder of a SavedModel, or freeze the graph",
            )
        operand = self.values[name]
        if isinstance(operand, Stored):
            return self._constant(name, operand, c.place)
        return self._here(operand)

    def _constant(self, name: str, stored: Stored, where: str) -> Value:
        level = self.importer.level
        key = id(level), name
        if key not in self._stored or self._stored[key][0] is not level:
            array = stored.bundle.read(stored.name, where)
            self._stored[key] = level, self.importer.builder.constant(array, name)
        return self._stored[key][1]

    def _here(self, operand: Any) -> Any:
        """An operand of the outermost graph, here."""
        levels: list[Level] = []
        level = self.importer.level
        while level.outer is not None:
            levels.append(level)
            level = level.outer
        for inner in reversed(levels):
            operand = inner.capture(self.importer, operand)
        return operand

    def begin(self) -> None:
        """Makes inputs of the variables that a call changes."""
        for name in sorted(self.changing & set(self.values)):
            operand = self.values[name]
            if isinstance(operand, Stored):
                array = operand.bundle.read(operand.name, f"variable '{name}'")
                type = TensorType(dtype(array.dtype), array.shape)
            else:
                type = self.importer.as_value(operand).tensor
            self.values[name] = self.importer.builder.input(name, type)

    def write(self, c: Context, name: str, value: Any) -> None:
        """Gives a variable another value.

        Raises:
            Unsupported: a call changes it, and `state` says nothing; or it is changed in a branch or loop.
        """
        if not self.first:
            if self.importer.level.outer is not None:
                raise c.unsupported("a variable that a branch or loop changes")
            if self.kind is None:
                raise c.unsupported(f"it keeps a state between calls: {HINT}")
            self.changed.add(name)
        self.values[name] = value

    def results(self) -> list[tuple[str, Value]]:
        """What variables are after the call, by the names of the outputs."""
        if self.kind != "inputs":
            return []
        return [(f"{name}.after", self.importer.as_value(self.values[name])) for name in sorted(self.changed)]


__all__ = ["HINT", "Handle", "States", "Stored"]
