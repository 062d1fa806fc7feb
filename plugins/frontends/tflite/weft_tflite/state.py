"""What a model keeps between calls: resource variables, and tensors that are variables.

A graph of Weft keeps nothing. A variable that no call changes is a constant. Of one that a call changes the option
`state` says what becomes of it: "fresh", every call begins with its first value; "inputs", it is an input, and what it
is after the call is an output NAME.after, which the caller gives to the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graph.nodes import TensorType, Value
from weft_tflite.context import Context
from weft_tflite.model_file import Model, TensorInfo
from weft_tflite.tensors import dtype_of

if TYPE_CHECKING:
    from weft_tflite.importer import Importer

KINDS = ("fresh", "inputs")
HINT = "the option state: 'fresh' begins every call with the first values, 'inputs' makes them inputs and outputs"


@dataclass(frozen=True)
class Handle:
    """Stands for a resource variable."""

    name: str


class States:
    """The values of variables while a model is read.

    Args:
        kind: the option `state`.
    """

    def __init__(self, importer: Importer, model: Model, kind: str | None) -> None:
        self.importer, self.kind = importer, kind
        self.values: dict[str, Any] = {}
        self.changed: set[str] = set()
        self.given: dict[str, Value] = {}
        self.first = 0
        """How many sub-graphs that give first values are being read."""
        first = {
            op.options["init_subgraph_index"] for g in model.graphs for op in g.operators if op.name == "CALL_ONCE"
        }
        others = [g for k, g in enumerate(model.graphs) if k not in first]
        self.assigned = any(op.name == "ASSIGN_VARIABLE" for g in others for op in g.operators)

    def read(self, c: Context, name: str) -> Any:
        """What a variable holds.

        Raises:
            Unsupported: a call changes it, and `state` says nothing; or it is read in a branch or loop.
            FrontendError: nothing gives its first value.
        """
        self.outermost(c)
        if name not in self.values:
            raise c.error(f"variable '{name}' has no value")
        if self.assigned and not self.first:
            self.begin(c, name, self.importer.as_value(self.values[name]).tensor)
        return self.values[name]

    def tensor(self, c: Context, info: TensorInfo) -> Any:
        """What a tensor that is a variable holds: zeros at first."""
        self.outermost(c)
        if info.name not in self.values:
            zeros = np.zeros(info.declared, dtype_of(info).numpy)
            self.values[info.name] = self.importer.builder.constant(zeros, "zeros")
            self.begin(c, info.name, TensorType(dtype_of(info), info.declared))
        return self.values[info.name]

    def begin(self, c: Context, name: str, type: TensorType) -> None:
        """A variable that a call changes: an input where that is asked for."""
        if self.kind is None:
            raise c.unsupported(f"it keeps a state between calls: {HINT}")
        if self.kind == "inputs" and name not in self.given and name not in self.changed:
            self.given[name] = self.values[name] = self.importer.builder.input(name, type)

    def write(self, c: Context, name: str, value: Any) -> None:
        """Gives a variable another value."""
        self.outermost(c)
        if not self.first:
            if self.kind is None:
                raise c.unsupported(f"it keeps a state between calls: {HINT}")
            self.changed.add(name)
        self.values[name] = value

    def outermost(self, c: Context) -> None:
        if self.importer.level.outer is not None:
            raise c.unsupported("a variable in a branch or loop")

    def results(self) -> list[tuple[str, Value]]:
        """What variables are after the call, by the names of the outputs."""
        if self.kind != "inputs":
            return []
        return [(f"{n}.after", self.importer.as_value(self.values[n])) for n in sorted({*self.given, *self.changed})]


__all__ = ["HINT", "KINDS", "Handle", "States"]
