"""The base class of operators. The operators are in the package weft_ops, one class each.

An operator is a frozen dataclass whose fields are its typed attributes (numbers, strings, tuples, dtypes, dimensions
that may be formulas, sub-graphs). It holds its type rule, its numpy reference, its tolerance, its samples, and its
algorithms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from weft.dtypes import DType
from weft.errors import GraphError, WeftError
from weft.expr.derivative import derivative
from weft.expr.nodes import Call, Cast, Const, Div, Expr, FloorDiv, FloorMod, TruncDiv, TruncMod, Var, transform, walk
from weft.graph.inferred import Inferred, with_simple_sizes
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value

OpKind = Literal[
    "elementwise", "injective", "reduction", "contraction", "window", "composite", "opaque", "control", "host"
]
"""How the elements of an operator's result depend on its operands; see `Operator.kind`."""
Array = np.ndarray[Any, Any]
"""An array of a reference or sample."""
Commutes = Literal["nothing", "monotone", "anything"]
"""What of an elementwise operator may be moved past it: nothing, operators that keep the order of numbers, or
anything."""
Gradients = Sequence[Value | None]
"""One for each operand or output of a node; None: there is none."""
F = TypeVar("F", bound=Callable[..., Any])
"""The type of a decorated function."""

CHEAP = 2
"""The greatest `Operator.cost` at which computing an element again costs less than storing it."""
STEP = 1 << 16
"""What a step of Python in a reference counts as in `Operator.work`."""
_SHORT = frozenset({"abs", "copysign", "fma"})
_LONG = 8
"""Instructions that a division, or a call of a function that is none of `_SHORT`, counts as."""


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
        # Operator.algorithms finds it by this attribute, which the type of functions does not have.
        function._algorithm = Algorithm(name or function.__name__, form, function)  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Operator(ABC):
    """Base of operators. Subclasses are frozen dataclasses, hashable, and compare by value.

    kind: how fusion sees it. elementwise: output element = formula of the input elements at the same (broadcast) index;
    injective: one input element per output element, elsewhere; reduction, contraction, window: as named; composite:
    only decomposes; opaque: a loop program; control: has sub-graphs; host: no numeric work, a step on the host.

    Passes that group nodes, fold constants, merge nodes or lay out values decide by the facts below, never by a class
    or its name. What a class does not state is taken to be what is right for most operators, perhaps slower. A class
    inherits what its base states.
    """

    kind: ClassVar[OpKind] = "opaque"
    operator_name: ClassVar[str] = "Operator"
    """The name in texts of graphs and in `algorithms` of `lower_group`; no two operators of one text have the same. The
    name of the class, unless its own body states another."""
    role: ClassVar[str] = ""
    """What schedule rules that are made for this kind of operator know its blocks by (annotation `role`; `part_of`,
    where a composite consists of them), whatever the operator is called. A compute's own role comes first."""
    deterministic: ClassVar[bool] = True
    """Whether equal operands give equal results. Nodes of others are never merged, and never computed at compile
    time."""
    is_view: ClassVar[bool] = False
    """Whether the result is the first operand's row-major memory, at most under another shape: no kernel is
    needed."""
    row_wise: ClassVar[bool] = False
    """Of a composite: whether it reads its first operand, of the result's shape, row by row, so that cheap formulas
    may be computed as it is read."""
    reads_twice: ClassVar[bool] = False
    """Whether it reads its first operand twice and compares: it must be a value in memory, as two computations of it
    might be rounded differently."""
    packs_operands: ClassVar[bool] = False
    """Whether its kernel copies what it reads: what moves or cheaply changes its operands, and a transposition of its
    result, may be computed meanwhile."""
    read_often: ClassVar[tuple[int, ...]] = ()
    """With `packs_operands`: operands that are read many times where they lie unless a layout packs them: they may be
    moved, not computed anew."""
    reads_transposed: ClassVar[tuple[int, ...]] = ()
    """Operands that a kernel reads as well with their last two axes exchanged: a transposition that makes them needs
    no kernel of its own."""
    stays_whole: ClassVar[bool] = False
    """Of a composite: whether a target that says nothing of it computes it as one kernel, undecomposed
    (`weft.passes.capabilities.CLAIMED`)."""
    layout_role: ClassVar[str] = ""
    """What default layouts (`weft.passes.layout_offers`) know it by, where operands and attributes are those of the
    operator that has this role: "convolution", "winograd", "product", "attention" or "recurrence"."""
    folds_late: ClassVar[bool] = False
    """Whether the pass `fuse_quantization` reads its operands: with constants alone it is computed after that pass,
    not before."""
    no_gradient: ClassVar[str] = ""
    """Why no gradient passes it, in a sentence, where that is so by its nature: "its results are places"."""
    no_gradient_by: ClassVar[Mapping[int, str]] = {}
    """Operands of floats by which it has no gradient, although its results change with them other than by jumps, and
    why: asking for it is an error."""
    states: ClassVar[bool] = False
    """Whether symbols in its attributes are there for a condition alone, and may be any integers. In those of other
    operators they are sizes, positions, steps: not negative, and within `weft_runtime.abi.LARGEST`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "operator_name" not in vars(cls):
            cls.operator_name = cls.__name__

    @abstractmethod
    def infer(self, *types: Type | None) -> Type | tuple[Type, ...] | Inferred:
        """The types of the outputs; as `Inferred` where they take something for granted of sizes that only a run
        knows.

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
        """Largest allowed error of an output element, in units in the last place of its dtype, relative to the
        largest output."""
        return 4.0

    def cost(self, *types: Type | None) -> float:
        """Instructions that an element of the result takes, beside reading operands; infinite: unknown.

        Up to `CHEAP` an element may be computed anew wherever it is read.
        """
        return math.inf

    @property
    def commutes(self) -> Commutes:
        """Which functions may be applied to the elements of the operands (`elements_of`) as well as to those of the
        result: "anything" where the result's elements are elements of operands; "monotone" where they are so chosen by
        order, as maxima are: functions that never fall; else "nothing"."""
        return "nothing"

    def elements_of(self, count: int) -> tuple[int, ...]:
        """Which of `count` operands have the elements that the result is made of: other operands are places, sizes,
        parameters."""
        return (0,)

    @property
    def fill_operand(self) -> int | None:
        """Of what also has elements of no operand: the operand, of one element, that they are (zeros if it is
        absent)."""
        return None

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        """Whether elements that are together in a block of `factor` along `axis` of the operands (`elements_of`) are so
        in the result, each at its place: then results may be stored as operands are, at no cost. Factor 1: whether the
        axis stays whole."""
        return False

    def permutation(self, rank: int) -> tuple[int, ...] | None:
        """Of an operator that exchanges axes of its first operand, which has `rank`, and does nothing else: for each
        axis of the result that of the operand."""
        return None

    def reduced_axes(self, rank: int) -> tuple[int, ...] | None:
        """Of a reduction: the axes (0 … rank - 1) of its first operand that it reduces, where they are numbers and
        the result has the other axes in order (reduced ones as 1, or not at all); else None."""
        return None

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        """About what `reference` takes with values of these static sizes, in quarters of nanoseconds.

        None: attributes or data decide, so that neither its time nor its memory is bounded by the sizes. Such
        operators are not computed at compile time.
        """
        each = {"elementwise": 64, "injective": 16, "reduction": 16}.get(self.kind)
        return None if each is None else each * touched(*inputs, *outputs)

    def multiply_adds(self, *shapes: Sequence[float] | None) -> float | None:
        """Multiplications with their additions that the definition has, with operands of these sizes, where its loops
        do not tell what another algorithm saves or adds. None: as its loops, or those of its parts, have."""
        return None

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The gradients of a scalar L by the operands of `node`, from those by its outputs (None: L does not depend on
        that output).

        A class that does not define it has the gradient of its decomposition, or of its formula. One that does builds
        it with operators of the graph alone, so that every target has it, and the gradient's own gradient exists. What
        it computes for operands that are not asked for costs nothing: dead nodes are dropped.

        Returns:
            For each operand its gradient, of the operand's dtype, and of its shape or of one that it broadcasts to
            (the caller sums then); None: L does not depend on that operand, or only by jumps.
        """
        raise NotImplementedError(f"{self.operator_name} has no gradient of its own")

    def infer_checked(self, inputs: Sequence[Value | None]) -> tuple[Type, ...]:
        """The types that `infer` gives for values; its errors gain the operator and the operands."""
        return self.inferred(inputs).types

    def inferred(self, inputs: Sequence[Value | None]) -> Inferred:
        """As `infer_checked`, with what the types take for granted, certain or not."""
        try:
            return with_simple_sizes(Inferred.of(self.infer(*(None if v is None else v.type for v in inputs))))
        except WeftError as error:
            operands = ", ".join("_" if v is None else repr(v) for v in inputs)
            raise GraphError(
                f"{self.operator_name}: {error.what}", where=f"{self}({operands})", why=error.why, hint=error.hint
            ) from error

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
        """The output element from input elements (already of the inputs' dtypes); None stands for an absent input."""

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        """The derivative of `formula` by an operand, as a formula of operands and result: where there is a choice, of
        the result alone, so that operands need not be kept.

        Args:
            position: of the operand, which is a variable of a float dtype.
            operands: variables, None for absent ones.
            result: a variable that stands for the output element.
        """
        by = operands[position]
        assert isinstance(by, Var)
        formula = self.formula_of(operands)
        return transform(derivative(formula, by), lambda e: result if e == formula else None)

    def formula_of(self, operands: Sequence[Expr | None]) -> Expr:
        """`formula` of operands some of which may be absent."""
        # Few operators have optional inputs: those of the others need not accept None.
        return self.formula(*operands)  # type: ignore[arg-type]

    def cost(self, *types: Type | None) -> float:
        """Of the formula: a division or a function counts as 8, a conversion as nothing, any other operation as 1."""
        if not all(t is None or isinstance(t, TensorType) for t in types):
            return math.inf
        return _formula_cost(self, tuple(t.dtype if isinstance(t, TensorType) else None for t in types))


@lru_cache(1 << 12)
def _formula_cost(op: Elementwise, dtypes: tuple[DType | None, ...]) -> int:
    formula = op.formula_of([None if d is None else Var(f"operand {k}", d) for k, d in enumerate(dtypes)])
    return sum(_instructions(e) for e in walk(formula))


def _instructions(e: Expr) -> int:
    if isinstance(e, (Const, Var, Cast)):
        return 0
    if isinstance(e, Call):
        return 1 if e.name in _SHORT else _LONG
    return _LONG if isinstance(e, (Div, FloorDiv, FloorMod, TruncDiv, TruncMod)) else 1


def touched(*types: TensorType | None) -> int:
    """Elements of values of static shapes together; a size of 0 counts as 1, as what is computed on the way may have
    the other sizes alone."""
    return sum(math.prod(max(1, d) for d in t.shape if isinstance(d, int)) for t in types if t is not None)
