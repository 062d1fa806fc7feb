"""What a converter sees of an operator of a program: its operands by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft.tensor.language import Dim, as_dim
from weft_coreml.types import WORDS
from weft_frontend.contents import Content
from weft_frontend.context import Context as GraphContext
from weft_frontend.operands import Absent, Scope

if TYPE_CHECKING:
    from weft_coreml.importer import Importer
    from weft_frontend.bodies import Level
    from weft_frontend.importer import GraphImporter


class Text:
    """Stands for strings.

    Args:
        values: one after another, of the given shape.
    """

    def __init__(self, values: Sequence[str], shape: tuple[int, ...] = ()) -> None:
        self.values, self.shape = tuple(values), shape


@dataclass(frozen=True)
class Listed:
    """Stands for a list of tensors.

    Args:
        values: [length, ...]; None: the sizes of its elements are not known yet.
        dynamic: it grows when something is written behind its end.
    """

    values: Value | None
    length: Dim
    dtype: DType
    dynamic: bool


def capture(level: Level, importer: GraphImporter, operand: Any) -> Any:
    """What stands in a body for an operand of the graph around."""
    if isinstance(operand, Listed):
        return replace(operand, values=level.capture(importer, operand.values))
    return level.capture(importer, operand)


class Context(GraphContext):
    """An operator of a program.

    Args:
        importer: of the model that is read.
        message: the operator; of layers theirs.
        name: as errors show it.
        named: what stands for its operands, by their names.
        declared: of each result its element type and sizes (None: any), as the program says.
    """

    importer: Importer

    def __init__(
        self,
        importer: Importer,
        message: Any,
        kind: str,
        name: str,
        named: Mapping[str, Sequence[Any]],
        declared: Sequence[tuple[DType | None, tuple[int | None, ...] | None]],
        domain: str = "",
    ) -> None:
        operands = [o for given in named.values() for o in given]
        super().__init__(importer, kind, name, operands, domain=domain, outputs=len(declared))
        self.message, self.named, self.declared = message, named, declared
        self.scope = Scope()

    # -- operands
    def has(self, name: str) -> bool:
        return bool(self.named.get(name)) and not isinstance(self.named[name][0], Absent)

    def at(self, name: str) -> Any:
        """What stands for an operand.

        Raises:
            FrontendError: it is left out.
        """
        if not self.has(name):
            raise self.error(f"operand '{name}' is missing")
        return self.named[name][0]

    def of(self, name: str) -> Value:
        """An operand as a graph value."""
        return self.as_value(self.at(name), name)

    def maybe(self, name: str) -> Value | None:
        return self.of(name) if self.has(name) else None

    def list_of(self, name: str) -> list[Value]:
        self.at(name)
        return [self.as_value(o, name) for o in self.named[name]]

    def as_value(self, operand: Any, name: str) -> Value:
        if isinstance(operand, Text):
            raise self.unsupported(f"'{name}' holds strings")
        if isinstance(operand, Listed):
            raise self.error(f"operand '{name}' is a list")
        value = self.importer.as_value(operand, name)
        if not hasattr(value.type, "shape"):
            raise self.unsupported(f"'{name}', whose rank is known only at run time")
        return value

    def shape_of(self, name: str) -> tuple[Dim, ...]:
        operand = self.at(name)
        return operand.shape if isinstance(operand, Content) else self.of(name).shape

    def content_of(self, name: str) -> Content | None:
        return self.importer.known(self.named[name][0]) if self.has(name) else None

    # -- what must be constant
    def array(self, name: str) -> Array | None:
        """A constant operand; None: it is left out.

        Raises:
            Unsupported: it is known only at run time.
        """
        if not self.has(name):
            return None
        operand = self.at(name)
        if isinstance(operand, Content) and operand.is_constant:
            return operand.array()
        found = operand.constant if isinstance(operand, Value) else None
        if found is None:
            raise self.unsupported(f"'{name}' known only at run time")
        return found

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        found = self.array(name)
        return tuple(default) if found is None else tuple(int(n) for n in found.reshape(-1))

    def flags(self, name: str, count: int) -> tuple[bool, ...]:
        """Booleans, each of which is false by default."""
        found = tuple(bool(n) for n in self.ints(name))
        return (found + (False,) * count)[:count]

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.array(name)
        if found is None and default is not None:
            return default
        if found is None or found.size != 1:
            raise self.error(f"operand '{name}' is not one number")
        return int(found.reshape(-1)[0])

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, int(default)))

    def real(self, name: str, default: float | None = None) -> float:
        """A number in its shortest decimal form: 0.1, not 0.10000000149011612."""
        found = self.array(name)
        if found is None and default is not None:
            return default
        if found is None or found.size != 1:
            raise self.error(f"operand '{name}' is not one number")
        return float(str(found.reshape(-1)[0]))

    def text(self, name: str, default: str | None = None) -> str:
        if not self.has(name) and default is not None:
            return default
        found = self.at(name)
        if not isinstance(found, Text) or len(found.values) != 1:
            raise self.error(f"operand '{name}' is no word")
        return found.values[0]

    def word(self, name: str, default: str, among: Sequence[str]) -> str:
        """A word of a few."""
        found = self.text(name, default)
        if found not in among:
            raise self.unsupported(f"{name} '{found}'")
        return found

    def dtype_named(self, name: str, default: str | None = None) -> DType:
        found = WORDS.get(self.text(name, default))
        if found is None:
            raise self.unsupported(f"{name} '{self.text(name, default)}'")
        return found

    # -- sizes
    def dims_of(self, name: str, what: str) -> tuple[Dim, ...]:
        """The integers of an operand as numbers and formulas, none of them negative where the run reads them."""
        self.at(name)
        found = self.importer.demanded(self.named[name][0])
        if found is None:
            raise self.unsupported(f"{what} of unknown length or dtype, known only at run time")
        return tuple(as_dim(x) for x in found.dims())

    def signed_of(self, name: str, what: str) -> tuple[Dim, ...]:
        """As `dims_of`, for integers that may be negative."""
        found = self.importer.known(self.at(name))
        if found is not None:
            return tuple(as_dim(x) for x in found.dims())
        x = self.within(self.cast(self.of(name), dt.int64), -(2**31), 2**31 - 1, what)
        return self.differences(x, what)

    def integer_of(self, d: Dim) -> int:
        """A size that must be a number."""
        return self.static((d,), "a size of weights")[0]

    def static(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that must be numbers."""
        found = tuple(d for d in dims if isinstance(d, int))
        if len(found) < len(dims):
            raise self.unsupported(f"{what} known only at run time")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} of {rank} dimension(s)")
        return axis % rank

    # -- results
    def result_dtype(self, k: int = 0) -> DType:
        """The element type that the program gives a result."""
        dtype = self.declared[k][0]
        if dtype is None:
            raise self.error(f"result {k} is no tensor")
        return dtype

    def vector_of(self, values: Any, dtype: DType) -> Value:
        """Numbers as a constant."""
        return self.builder.constant(np.asarray(values).astype(dtype.numpy))


__all__ = ["Context", "Listed", "Text", "capture"]
