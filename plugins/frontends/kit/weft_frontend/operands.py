"""What stands for the operands of a node while a model is read, beside graph values and contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value

if TYPE_CHECKING:
    from weft_frontend.cases import Fork


class Absent:
    """Stands for an operand that is left out, or an output that was not made."""


class Elements(list[Any]):
    """A sequence whose elements are known at import; of no elements, their dtype."""

    def __init__(self, elements: Iterable[Any] = (), dtype: DType = dt.float32) -> None:
        super().__init__(elements)
        self.dtype = dtype


class Poison:
    """Stands for what an unsupported node would give."""


@dataclass(eq=False)
class Cases:
    """An operand that is one of two, by the case of a fork."""

    fork: Fork
    operands: tuple[Any, Any]


def settled(operand: Any) -> Any:
    """The operand; of cases that of the one which is left, if one is."""
    while isinstance(operand, Cases) and operand.fork.taken is not None:
        fork, found = operand.fork, operand.operands[operand.fork.taken]
        operand = fork.here.get(id(found), found) if isinstance(found, Value) else found
    return operand


@dataclass
class Scope:
    """Names that nodes may use: of a graph, inside those of the graph around it. Functions start one of their own."""

    values: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    prefix: str = ""
    capture: Callable[[Any], Any] | None = None
    """Of a body that is a graph of its own: what stands there for an operand of the graph around."""

    def find(self, name: str) -> Any:
        """What a name stands for; None: it is not known here."""
        if name in self.values or self.outer is None:
            return settled(self.values.get(name))
        found = self.outer.find(name)
        return found if found is None or self.capture is None else self.capture(found)


class Unsupported(Exception):
    """One thing that is not supported; the importer collects all and raises them as one error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Poisoned(Exception):
    """An operand, or a body, comes from what is not supported, which has been noted."""


def poisoned(operand: Any) -> bool:
    """Whether an operand comes from a node that is not supported."""
    return isinstance(operand, Poison) or (isinstance(operand, list) and any(map(poisoned, operand)))


__all__ = ["Absent", "Cases", "Elements", "Poison", "Poisoned", "Scope", "Unsupported", "poisoned", "settled"]
