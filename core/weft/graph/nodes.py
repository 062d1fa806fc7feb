"""The graph IR.

    Graph := name, inputs: Value*, outputs: Value*, nodes: Node* (in order), symbols: name → SymbolSource
    Node  := op: Operator, inputs: (Value | None)*, outputs: Value*, names
    Value := name, type, constant data or none
    Type  := TensorType(dtype, shape, layout) | OpenType(dtype, rank) | SequenceType(element) | OptionalType(element)

SSA: a Value is an input, a constant, or the output of exactly one Node. Names of values are unique in a Graph. A
dimension is an int or an int64 formula over symbols. A symbol is bound by the dimension of an input whose shape holds
it as a bare variable, or by `symbols`: one element of an integer value computed (or given) earlier ("data symbols": how
a Reshape to a shape known only at run time is expressed). Sub-graphs (control flow, groups) capture nothing: what they
need are their inputs.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr.nodes import Const, Expr, Var, free_vars
from weft.graph.layout import Layout
from weft.tensor.language import Dim, as_dim

if TYPE_CHECKING:
    from weft.graph.operator import Operator


@dataclass(frozen=True)
class TensorType:
    """dtype × shape, stored by `layout` (None: row-major). `shape` is always the logical one."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    def with_layout(self, layout: Layout | None) -> TensorType:
        return self if layout is self.layout else replace(self, layout=layout)

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(str(d) for d in self.shape)}]"
        return text if self.layout is None else f"{text} @ {self.layout}"


@dataclass(frozen=True)
class OpenType:
    """A tensor whose sizes have no symbols: an element of a sequence, or a result whose sizes are known only at run
    time. `rank` None: the number of dimensions is not known either."""

    dtype: DType
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{'...' if self.rank is None else f'rank {self.rank}'}]"


@dataclass(frozen=True)
class SequenceType:
    """A sequence of any length, of values of type `element`."""

    element: Type

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True)
class OptionalType:
    """A value of type `element`, or none."""

    element: Type

    def __str__(self) -> str:
        return f"optional({self.element})"


Type: TypeAlias = "TensorType | OpenType | SequenceType | OptionalType"
"""The type of a value of a graph."""


def tensor_type(dtype: object, shape: Iterable[object], layout: Layout | None = None) -> TensorType:
    """A TensorType; dimensions may be ints, formulas, constants, or names of symbols: "n" is Var("n").

    Raises:
        GraphError: a text that is no name.
    """
    return TensorType(dt.dtype(dtype), tuple(_symbol(d) if isinstance(d, str) else as_dim(d) for d in shape), layout)


def _symbol(name: str) -> Var:
    if not name.isidentifier():
        raise GraphError(
            f"a dimension is called '{name}', which is no name",
            hint='a size is an int, a formula is made of symbols: Var("n") + 1',
        )
    return Var(name, dt.int64)


class Value:
    """A value of the graph; compared by identity."""

    __slots__ = ("_data", "_stored", "name", "producer", "type")

    def __init__(
        self, name: str, type: Type, producer: Node | None = None, constant: np.ndarray[Any, Any] | None = None
    ) -> None:
        self._data: np.ndarray[Any, Any] | None
        self._stored: np.ndarray[Any, Any] | None
        self.name, self.type, self.producer = name, type, producer
        self._data, self._stored = constant, None

    @property
    def constant(self) -> np.ndarray[Any, Any] | None:
        """Its numpy data (logical shape) if it is known."""
        data = self._data
        if data is None and self._stored is not None:
            layout = self.tensor.layout
            return (
                self._stored
                if layout is None
                else layout.unpack(self._stored, [d for d in self.shape if isinstance(d, int)])
            )
        return data

    @constant.setter
    def constant(self, data: np.ndarray[Any, Any] | None) -> None:
        self._data, self._stored = data, None

    def keep_stored(self, stored: np.ndarray[Any, Any]) -> None:
        """Lets go of the data of a constant, whose stored form this is: from now on the data is unpacked from it
        whenever it is asked for."""
        self._stored = stored
        self._data = None

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor's.

        Raises:
            GraphError: if it is a sequence, an optional, or of sizes that no symbols name.
        """
        if not isinstance(self.type, TensorType):
            raise GraphError(f"value '{self.name}' is a {self.type}, a tensor is needed")
        return self.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One application of an operator; compared by identity. `names` are the framework's names of what it came from."""

    __slots__ = ("inputs", "names", "op", "outputs")

    def __init__(
        self, op: Operator, inputs: Sequence[Value | None], outputs: Sequence[Value], names: Iterable[str] = ()
    ) -> None:
        self.op, self.inputs, self.outputs, self.names = op, tuple(inputs), tuple(outputs), frozenset(names)
        for value in self.outputs:
            value.producer = self

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def __repr__(self) -> str:
        return (
            f"{', '.join('%' + o.name for o in self.outputs)} ="
            f" {self.op}({', '.join('_' if i is None else '%' + i.name for i in self.inputs)})"
        )


@dataclass(frozen=True)
class SymbolSource:
    """Where a data symbol comes from: element `index` (flat) of the integer `value`."""

    value: Value
    index: int


@dataclass(eq=False)
class Graph:
    """See the module. Passes return a new Graph; nodes and values are not shared between graphs that differ."""

    name: str
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    symbols: dict[str, SymbolSource] = field(default_factory=dict)
    output_names: list[str] = field(default_factory=list)
    sources: tuple[Path, ...] = field(default=(), compare=False, repr=False)
    """The files that it was read from, absolute; nothing is written over them. Empty for what passes and programs
    make."""

    def __str__(self) -> str:
        from weft.graph.printer import print_graph

        return print_graph(self)

    def constants(self) -> list[Value]:
        """The constants used by nodes or outputs, in order of first use."""
        seen: dict[int, Value] = {}
        for value in itertools.chain(*(n.inputs for n in self.nodes), self.outputs):
            if value is not None and (value._data is not None or value._stored is not None):
                seen.setdefault(id(value), value)
        return list(seen.values())

    def users(self) -> dict[int, list[tuple[Node, int]]]:
        """id(value) → (node, operand position) of every use by a node."""
        result: dict[int, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for k, value in enumerate(node.inputs):
                if value is not None:
                    result.setdefault(id(value), []).append((node, k))
        return result

    def free_symbols(self) -> dict[str, Var]:
        """Every symbol that a type of an input, output or node output, or a data symbol's name, mentions."""
        result: dict[str, Var] = {}
        for value in itertools.chain(self.inputs, self.outputs, *(n.outputs for n in self.nodes)):
            if isinstance(value.type, TensorType):
                for d in value.type.shape:
                    if isinstance(d, Expr):
                        result.update(free_vars(d))
        return result

    def values(self) -> Iterator[Value]:
        """Inputs, constants and node outputs, in order."""
        yield from self.inputs
        yield from self.constants()
        for node in self.nodes:
            yield from node.outputs


def single(op: Operator, outputs: tuple[Value, ...]) -> Value:
    """The output of an operator that has one; several are returned as a tuple, as it was, with a DeprecationWarning."""
    if len(outputs) != 1:
        text = (
            f"{op.operator_name} has {len(outputs)} outputs: use add_all, which gives a tuple. add will refuse it"
            " in 0.3"
        )
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        return outputs  # type: ignore[return-value]  # deprecated: new code shall not count on a tuple
    return outputs[0]


class GraphBuilder:
    """Makes a Graph node by node; infers types; keeps names unique. Operators are applied with `add`.

    With `names`, every node added inside `with builder.named("conv1"):` remembers that framework name.
    """

    def __init__(self, name: str = "graph") -> None:
        self.graph = Graph(name)
        self._taken = _Taken()
        self._names: frozenset[str] = frozenset()

    def inner(self, name: str) -> GraphBuilder:
        """A builder of a sub-graph, in which no name stands for anything but here."""
        builder = GraphBuilder(name)
        builder._taken = self._taken
        return builder

    def unique(self, base: str) -> str:
        """A value name not yet taken, made of `base`."""
        return self._taken.take(base)

    def reserve(self, names: Iterable[str]) -> None:
        """Takes names as they are, so that `unique` gives others."""
        self._taken.reserve(names)

    def rename(self, value: Value, name: str) -> None:
        """Gives a value another name, if it is free; the old one may be taken again then."""
        if name not in self._taken:
            self._taken.free(value.name)
            value.name = self.unique(name)

    def named(self, *names: str) -> _Named:
        return _Named(self, frozenset(n for n in names if n))

    def input(self, name: str, type: Type) -> Value:
        value = Value(self.unique(name), type)
        self.graph.inputs.append(value)
        return value

    def constant(self, data: object, name: str = "c", dtype: object = None) -> Value:
        """A constant of numpy data (kept by reference: do not write to it)."""
        array = np.asarray(data) if dtype is None else np.asarray(data, dtype=dt.dtype(dtype).numpy)
        return Value(self.unique(name), TensorType(dt.dtype(array.dtype), array.shape), constant=array)

    def add(self, op: Operator, *inputs: Value | None, name: str | None = None) -> Value:
        """Applies `op`, which has one output; `add_all` is for several.

        Raises:
            GraphError: the operator's type rule refuses the inputs.
        """
        return single(op, self.add_all(op, *inputs, name=name))

    def add_all(self, op: Operator, *inputs: Value | None, name: str | None = None) -> tuple[Value, ...]:
        """Applies `op`; its outputs.

        Raises:
            GraphError: the operator's type rule refuses the inputs.
        """
        types = op.infer_checked(inputs)
        base = name or op.operator_name.lower()
        outputs = [Value(self.unique(base), t) for t in types]
        self.graph.nodes.append(Node(op, inputs, outputs, self._names))
        return tuple(outputs)

    def symbol(self, value: Value, index: int = 0, prefix: str | None = None) -> Expr:
        """The int64 symbol bound to element `index` of an integer `value`; a constant if the value is one."""
        if value.constant is not None:
            return Const(int(value.constant.reshape(-1)[index]), dt.int64)
        for name, source in self.graph.symbols.items():
            if source.value is value and source.index == index:
                return Var(name, dt.int64)
        name = self.unique(f"{prefix or value.name}.{index}")
        self.graph.symbols[name] = SymbolSource(value, index)
        return Var(name, dt.int64)

    def output(self, value: Value, name: str | None = None) -> None:
        self.graph.outputs.append(value)
        self.graph.output_names.append(name or value.name)

    def build(self) -> Graph:
        return self.graph


class _Taken:
    """Unique names: a stem as it is, then stem_1, stem_2, …, always the first that is free."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._first: dict[str, int] = {}  # of a stem: all numbers below are taken

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def reserve(self, names: Iterable[str]) -> None:
        self._names.update(names)

    def take(self, stem: str) -> str:
        name = stem
        if name in self._names:
            k = self._first.get(stem, 1)
            while (name := f"{stem}_{k}") in self._names:
                k += 1
            self._first[stem] = k + 1
        self._names.add(name)
        return name

    def free(self, name: str) -> None:
        self._names.discard(name)
        stem, _, number = name.rpartition("_")
        if number.isdecimal() and stem in self._first:
            self._first[stem] = max(1, min(self._first[stem], int(number)))


class _Named:
    def __init__(self, builder: GraphBuilder, names: frozenset[str]) -> None:
        self.builder, self.names = builder, names

    def __enter__(self) -> None:
        self.before = self.builder._names
        self.builder._names = self.names

    def __exit__(self, *exc: object) -> None:
        self.builder._names = self.before
