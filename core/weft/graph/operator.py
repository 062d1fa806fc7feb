"""What an operator is. THE operators themselves stand in weft/ops, one class each.

An operator is a frozen dataclass whose fields are its typed attributes (numbers, strings, tuples, dtypes, dimensions that may be
formulas, sub-graphs). It holds its type rule, its numpy reference, its tolerance, its samples, and its algorithms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from weft.errors import GraphError, WeftError
from weft.graph.nodes import TensorType, Type, Value

if TYPE_CHECKING:
    from weft.expr.nodes import Expr

OpKind = Literal["elementwise", "injective", "reduction", "contraction", "window", "composite", "opaque", "control", "host"]
Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Sample:
    """An example application: the operator, input arrays (None for an absent input), and a name for test ids."""

    op: Operator
    inputs: tuple[Array | None, ...]
    name: str = ""


@dataclass(frozen=True)
class Algorithm:
    """A named, hardware-independent way to compute an operator.

    form "tensors":   function(op, *tensors) → Tensor or tuple of Tensors, in logical indices.
    form "decompose": function(op, builder, *values) → Value or tuple of Values, of simpler operators.
    form "program":   function(op, inputs: Buffers, outputs: Buffers) → Stmt, for what index formulas cannot say.
    """

    name: str
    form: Literal["tensors", "decompose", "program"]
    function: Callable[..., Any] = field(compare=False)


def algorithm(form: Literal["tensors", "decompose", "program"], name: str | None = None) -> Callable[[F], F]:
    """Marks a method of an operator as one of its algorithms; the first defined is the default."""

    def mark(function: F) -> F:
        function._algorithm = Algorithm(name or function.__name__, form, function)  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Operator(ABC):
    """Base of operators. Subclasses are frozen dataclasses, hashable, and compare by value.

    kind: how fusion sees it. elementwise: output element = formula of the input elements at the same (broadcast) index; injective: one
    input element per output element, elsewhere; reduction, contraction, window: as named; composite: only decomposes; opaque: a loop
    program; control: has sub-graphs; host: no numeric work, a step on the host.
    """

    kind: ClassVar[OpKind] = "opaque"
    states: ClassVar[bool] = False
    """Whether symbols in its attributes are there for a condition alone, and may be any integers. In those of other operators they are sizes, positions, steps:
    not negative, and within `weft_runtime.abi.LARGEST`."""

    @abstractmethod
    def infer(self, *types: Type | None) -> Type | tuple[Type, ...]:
        """The types of the outputs.

        Raises:
            GraphError: the inputs do not fit; says expected and got.
        """

    @abstractmethod
    def reference(self, *arrays: Array | None) -> Any:
        """The outputs by numpy, floats accumulated one precision wider; the definition of the operator."""

    @classmethod
    @abstractmethod
    def samples(cls) -> Iterable[Sample]:
        """Small applications that together reach every branch of the type rule and every algorithm."""

    def tolerance(self, *types: TensorType) -> float:
        """Largest allowed error of an output element, in units in the last place of its dtype, relative to the largest output."""
        return 4.0

    def infer_checked(self, inputs: Sequence[Value | None]) -> tuple[Type, ...]:
        """`infer` on values; its errors gain the operator and the operands."""
        try:
            result = self.infer(*(None if v is None else v.type for v in inputs))
        except WeftError as error:
            operands = ", ".join("_" if v is None else repr(v) for v in inputs)
            raise GraphError(f"{type(self).__name__}: {error.what}", where=f"{self}({operands})", why=error.why, hint=error.hint) from error
        return result if isinstance(result, tuple) else (result,)

    @classmethod
    def algorithms(cls) -> dict[str, Algorithm]:
        """The algorithms by name, the default first."""
        found: dict[str, Algorithm] = {}
        for klass in cls.__mro__:
            for value in vars(klass).values():
                mark = getattr(value, "_algorithm", None)
                if isinstance(mark, Algorithm):
                    found.setdefault(mark.name, mark)
        return found

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        """None if the named algorithm can compute this application, else the reason why not."""
        return None

    def attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _attribute_names(type(self))}

    def __str__(self) -> str:
        from weft.graph.printer import print_operator

        return print_operator(self)


@cache
def _attribute_names(operator: type[Operator]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(operator))


class Elementwise(Operator):
    """An operator given by a scalar formula; numpy broadcasting over its inputs."""

    kind = "elementwise"

    @abstractmethod
    def formula(self, *args: Expr) -> Expr:
        """The output element from input elements (already of the inputs' dtypes)."""
