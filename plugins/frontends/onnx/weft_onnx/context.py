"""What a converter sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft.expr.nodes import Expr, wrap
from weft.graph.identity import Require
from weft.graph.nodes import OpenType, TensorType, Value
from weft.graph.operator import Elementwise, Operator
from weft.tensor.language import Dim, as_dim
from weft_onnx.contents import Content
from weft_onnx.registry import find, reaches
from weft_onnx.tensors import dtype_of
from weft_ops import (
    BroadcastTo,
    Dims,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    Maximum,
    Minimum,
    Negative,
    OneElement,
    Where,
)
from weft_ops.composing import Composer
from weft_ops.shapes import dim_expr, dim_select, equals, product, same
from weft_runtime.abi import LARGEST

if TYPE_CHECKING:
    from weft_onnx.importer import Importer

Array = np.ndarray[Any, Any]
Word = TypeVar("Word", bound=str)
OLDEST, NEWEST = 7, onnx.defs.onnx_opset_version()
# Numbers that are made at import of attributes and sizes alone, in all: a file of a hundred bytes may ask for any
# number of them.
MADE = 1 << 24


class Absent:
    """Stands for an empty optional, or an output that was not made."""


class Elements(list[Any]):
    """A sequence whose elements are known at import; of no elements, their dtype."""

    def __init__(self, elements: Iterable[Any] = (), dtype: DType = dt.float32) -> None:
        super().__init__(elements)
        self.dtype = dtype


@dataclass
class Scope:
    """Names that nodes may use: of a graph, inside those of the graph around it. Functions start one of their own."""

    values: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    prefix: str = ""
    capture: Callable[[Any], Any] | None = None
    """Of a body that is a graph of its own: what stands there for an operand of the graph around."""

    def find(self, name: str) -> Any:
        if name in self.values or self.outer is None:
            return self.values.get(name)
        found = self.outer.find(name)
        return found if found is None or self.capture is None else self.capture(found)


class Unsupported(Exception):
    """One thing that is not supported; collected."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Context(Composer):
    """What a converter sees of its node: operands, attributes, and (as a Composer) the building of nodes."""

    def __init__(
        self, importer: Importer, node: NodeProto, domain: str, name: str, operands: list[Any], scope: Scope,
        versions: Mapping[str, int], attributes: Mapping[str, AttributeProto], depth: int,
    ) -> None:  # fmt: skip
        super().__init__(importer.builder)
        self.importer, self.node, self.domain, self.name, self.operands, self.scope = (
            importer,
            node,
            domain,
            name,
            operands,
            scope,
        )
        self.versions, self.outer_attributes, self.depth = versions, attributes, depth
        self.op_type = node.op_type
        self.version = versions.get(domain, 1)
        self.attributes = {a.name: a for a in node.attribute}
        try:
            self.schema = onnx.defs.get_schema(self.op_type, self.version, domain)
        except Exception:  # noqa: BLE001 - onnx's own class of error, which is not public
            self.schema = None

    def all(self, op: Operator, *inputs: Any) -> tuple[Value, ...]:
        """The outputs of `op`; small results of constants are constants."""
        if isinstance(op, Elementwise) and len(inputs) > 1:
            inputs = tuple(self.aligned(inputs))
        results = super().all(op, *inputs)
        return (self.importer.refined(results[0]),) if len(results) == 1 else results

    def aligned(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Operands of an elementwise operator, so that they certainly broadcast: where it shows only at run time
        whether a dimension is 1 or that of the others, it is broadcast explicitly."""
        rank = max((v.type.rank for v in inputs if isinstance(v, Value) and isinstance(v.type, TensorType)), default=0)
        if rank:
            inputs = [
                self.builder.add(OneElement(rank), v) if isinstance(v, Value) and isinstance(v.type, OpenType) else v
                for v in inputs
            ]
        values = [v for v in inputs if isinstance(v, Value)]
        if all(v.tensor.is_static for v in values) or all(v.shape == values[0].shape for v in values):
            return inputs
        rank = max(len(v.shape) for v in values)
        target: list[Dim] = [1] * rank
        open_: set[int] = set()
        for k in range(rank):
            for v in values:
                at = k - rank + len(v.shape)
                d = v.shape[at] if at >= 0 else 1
                if d == 1 or target[k] == d:
                    continue
                if target[k] == 1:
                    target[k] = d
                elif same(target[k], d) is None:
                    open_.add(k)
                    if isinstance(d, int) or isinstance(target[k], int):
                        target[k] = d if isinstance(d, int) else target[k]
                    else:
                        target[k] = dim_select(equals(target[k], 1), d, target[k])
        result: list[Any] = []
        for v in inputs:
            if isinstance(v, Value):
                first = rank - len(v.shape)
                wanted = tuple(
                    target[k + first] if k + first in open_ and isinstance(d, Expr) else 1
                    for k, d in enumerate(v.shape)
                )
                v = v if all(d == 1 for d in wanted) else self.builder.add(BroadcastTo(wanted), v)
            result.append(v)
        return result

    # -- errors
    def unsupported(self, reason: str) -> Exception:
        """What to raise for what cannot be converted: `raise c.unsupported("auto_pad with symbolic sizes")`."""
        return Unsupported(f"{self.op_type}: {reason}")

    def error(self, what: str, why: str | None = None) -> FrontendError:
        return FrontendError(f"{self.op_type}: {what}", why=why)

    def affordable(self, count: int, what: str) -> None:
        """Before `count` numbers are made of attributes and sizes alone.

        Raises:
            FrontendError: with those that the model's other nodes asked for there are more than `MADE`.
        """
        self.importer.made += count
        if self.importer.made > MADE:
            others = self.importer.made - count
            raise self.error(
                f"{what} would be {count} numbers, at most {MADE} are made of so little",
                f"other nodes have {others}" if others else None,
            )

    def check_known(self) -> None:
        """Arity and attribute types, against ONNX's schema."""
        if self.schema is None:
            if (
                self.domain == ""
                and self.op_type
                and not find("", self.op_type, self.version)
                and not self.importer.functions
            ):
                raise Unsupported(f"operator {self.op_type} of operator set {self.version}, which ONNX does not have")
            return
        if self.domain == "" and self.version < OLDEST:
            self.check_old()
        n = len(self.node.input)
        if not self.schema.min_input <= n <= self.schema.max_input:
            raise self.error(f"takes {_span(self.schema.min_input, self.schema.max_input)} input(s), got {n}")
        if len(self.node.output) > self.schema.max_output:
            raise self.error(
                f"gives {_span(self.schema.min_output, self.schema.max_output)} output(s), got {len(self.node.output)}"
            )
        for a in self.node.attribute:
            wanted = self.schema.attributes.get(a.name)
            if wanted is None:
                raise self.error(f"has no attribute '{a.name}' in version {self.version}")
            if not a.ref_attr_name and a.type and int(a.type) != wanted.type.value:
                raise self.error(
                    f"attribute '{a.name}' is a {_attribute_type(a.type)}, expected"
                    f" {_attribute_type(wanted.type.value)}"
                )
        for key, wanted in self.schema.attributes.items():
            if wanted.required and self.attribute(key) is None:
                raise self.error(f"attribute '{key}' is missing")

    def check_old(self) -> None:
        """Operator sets before the oldest are read as far as an operator has not changed since, or has a converter of
        its own (`converters/old.py`)."""
        assert self.schema is not None
        if 0 < reaches(self.domain, self.op_type, self.version) < OLDEST:
            return
        try:
            later = onnx.defs.get_schema(self.op_type, OLDEST).since_version
        except Exception:  # noqa: BLE001 - onnx's own class of error, which is not public
            later = None
        if self.schema.since_version != later:
            raise Unsupported(f"operator {self.op_type} of operator set {self.version} (before {OLDEST})")

    # -- attributes
    def attribute(self, name: str) -> AttributeProto | None:
        found = self.attributes.get(name)
        if found is not None and found.ref_attr_name:
            found = self.outer_attributes.get(found.ref_attr_name)
        return found

    def resolved_node(self) -> NodeProto:
        """The node with references to a function's attributes replaced by their values."""
        node = NodeProto()
        node.CopyFrom(self.node)
        del node.attribute[:]
        for key in self.attributes:
            value = self.attribute(key)
            if value is not None:
                node.attribute.add().CopyFrom(value)
                node.attribute[-1].name = key
        return node

    def has(self, name: str) -> bool:
        return self.attribute(name) is not None

    def integer(self, name: str, default: int = 0) -> int:
        a = self.attribute(name)
        return default if a is None else int(a.i)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, default))

    def real(self, name: str, default: float = 0.0) -> float:
        a = self.attribute(name)
        # float32 attributes in their shortest decimal form: 0.01, not 0.009999999776482582.
        return default if a is None else float(str(np.float32(a.f)))

    def integers(self, name: str) -> tuple[int, ...] | None:
        a = self.attribute(name)
        return None if a is None else tuple(int(i) for i in a.ints)

    def reals(self, name: str) -> tuple[float, ...] | None:
        a = self.attribute(name)
        return None if a is None else tuple(float(str(np.float32(f))) for f in a.floats)

    def string(self, name: str, default: str = "") -> str:
        a = self.attribute(name)
        return default if a is None else self._text(name, a.s)

    def choice(self, name: str, default: Word, known: Sequence[Word]) -> Word:
        """A string attribute that is one of `known`. Raises FrontendError for another one."""
        given = self.string(name, default)
        for word in known:
            if word == given:
                return word
        raise self.error(f"attribute '{name}' is '{given}', expected one of {', '.join(known)}")

    def _text(self, name: str, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"attribute '{name}' is {data[:40]!r}, which is not UTF-8", str(error)) from None

    def strings(self, name: str) -> tuple[str, ...] | None:
        a = self.attribute(name)
        return None if a is None else tuple(self._text(name, s) for s in a.strings)

    def tensor(self, name: str) -> Array | None:
        a = self.attribute(name)
        return None if a is None else self.importer.array(a.t)

    def graph(self, name: str) -> GraphProto | None:
        a = self.attribute(name)
        return None if a is None else a.g

    def dtype(self, name: str, default: DType) -> DType:
        a = self.attribute(name)
        return default if a is None else dtype_of(a.i, f"attribute '{name}'")

    # -- what data has to be
    def within(
        self, x: Value, low: Dim | None, high: Dim | None, what: str, of: str = "", part: Value | None = None
    ) -> Value:
        """`x`, all elements of which (or of its `part`) lie in low … high: see `Composer.within`."""
        return super().within(x, low, high, what, of or self.op_type, part)

    def nonzero(self, x: Value, what: str, of: str = "") -> Value:
        return super().nonzero(x, what, of or self.op_type)

    def sized(self, x: Value, got: Dim, wanted: Dim, what: str) -> Value:
        """`x`, provided that these sizes are equal; `what` says what is wrong, with {0} and {1} for them."""
        if same(got, wanted) is True:
            return x
        return self.required(x, Require(got, wanted, wanted, what, (got, wanted), self.op_type))

    def indices(self, x: Value, size: Dim, part: Value | None = None) -> Value:
        """`x`, whose elements (or those of its `part`) are indices into an axis of `size`, the negative ones from the
        end."""
        return self.within(
            x,
            0 if x.dtype.kind == "uint" else as_dim(wrap(0, dt.int64) - size),
            as_dim(wrap(size, dt.int64) - 1),
            "index",
            part=part,
        )

    # -- operands
    @property
    def count(self) -> int:
        return len(self.operands)

    def given(self, k: int) -> bool:
        """Whether operand k is there."""
        return k < len(self.operands) and not isinstance(self.operands[k], Absent)

    def optional(self, k: int) -> Value | None:
        if not self.given(k):
            return None
        return self.importer.as_value(self.operands[k], self.node.input[k])

    def value(self, k: int) -> Value:
        """Operand k as a graph value."""
        found = self.optional(k)
        if found is None:
            raise self.error(f"input {k} is missing")
        return found

    def values(self) -> list[Value]:
        return [self.value(k) for k in range(len(self.operands)) if self.given(k)]

    def shape(self, k: int) -> tuple[Dim, ...]:
        operand = self.operands[k]
        return operand.shape if isinstance(operand, (Content, Value)) else self.value(k).shape

    def operand_dtype(self, k: int) -> DType:
        operand = self.operands[k] if isinstance(self.operands[k], Content) else self.value(k)
        return (
            operand.type.dtype if isinstance(operand, Value) and isinstance(operand.type, OpenType) else operand.dtype
        )

    def all_contents(self) -> bool:
        return all(isinstance(o, Absent) or self.importer.known(o) is not None for o in self.operands)

    def content(self, k: int) -> Content:
        """The content of operand k, which is known."""
        found = self.importer.known(self.operands[k])
        assert found is not None
        return found

    def known(self, k: int) -> Content | None:
        return self.importer.known(self.operands[k]) if self.given(k) else None

    def dims(self, k: int, what: str) -> tuple[Dim, ...] | None:
        """The integers of operand k, as numbers and formulas, read at run time if need be; None if it is absent."""
        if not self.given(k):
            return None
        found = self.importer.demanded(self.operands[k])
        if found is None:
            raise self.unsupported(f"{what} of unknown length or dtype, known only at run time")
        return tuple(as_dim(x) for x in found.dims())

    def signed(self, k: int, what: str, clamped: bool = False) -> tuple[Dim, ...] | None:
        """As `dims`, for integers that may be negative: those read at run time come as differences of two sizes, so
        that a symbol always is a size.

        Args:
            clamped: one beyond all sizes means the same as the largest; else a run that has one ends.
        """
        if not self.given(k) or self.importer.known(self.operands[k]) is not None:
            return self.dims(k, what)
        x = self.value(k)
        if not x.dtype.is_integer:
            raise self.unsupported(f"{what} as {x.dtype}, known only at run time")
        if x.dtype.kind == "uint":
            return self.dims(k, what)
        x = self.cast(x, dt.int64)
        x = self.clamped(x, -LARGEST, LARGEST) if clamped else self.within(x, -LARGEST, LARGEST, what)
        return self.differences(x, what)

    def differences(self, x: Value, what: str) -> tuple[Dim, ...]:
        """The elements of an int64 value within ±LARGEST as differences of two sizes."""
        above, below = self(Maximum(), x, 0), self(Maximum(), self(Negative(), x), 0)
        return tuple(as_dim(wrap(a, dt.int64) - b) for a, b in zip(self.sizes(above, what), self.sizes(below, what)))

    def clamped(self, x: Value, low: int, high: int) -> Value:
        """`x`, what lies beyond `low` … `high` moved to the nearer of them."""
        return self(Minimum(), self(Maximum(), x, low), high)

    def runtime_axes(self, k: int, rank: int) -> tuple[Dim, ...] | None:
        """The axes of operand k, counted from the front where they are known only at run time; then they are checked
        there, and that no two are the same."""
        if not self.given(k) or self.importer.known(self.operands[k]) is not None:
            return self.dims(k, "axes")
        return self.sizes(self.different(self.axes(self.value(k), rank)), "axes")

    def axes(self, x: Value, rank: int) -> Value:
        """Axes of `rank` dimensions, counted from the front."""
        count = product(x.shape)
        if isinstance(count, int) and count > rank:
            raise self.error(f"axes: {count} of them, the operand has {rank} dimension(s)")
        x = self.within(self.cast(x, dt.int64), -rank, rank - 1, "axis")
        return self(Where(), self(Less(), x, 0), self.add(x, rank), x)

    def different(self, x: Value) -> Value:
        """`x`, axes of which no two may be the same."""
        found = self.sizes(x, "axes")
        pairs = [dim_select(equals(a, b), 1, 0) for k, a in enumerate(found) for b in found[:k]]
        if not pairs:
            return x
        twice = as_dim(sum(map(dim_expr, pairs), start=wrap(0, dt.int64)))
        return self.required(
            x, Require(twice, None, 0, "axes: {0} pair(s) of them are the same", (twice,), self.op_type)
        )

    def whole(self, x: Value, most: int = LARGEST) -> Value:
        """Floats as int64, towards zero; -1, which is no size, for what is negative, above `most` or no number."""
        if x.dtype.is_integer:
            return self.cast(x, dt.int64)
        x = self.cast(x, dt.float64)  # which has `most`
        inside = self(LogicalAnd(), self(GreaterEqual(), x, 0.0), self(LessEqual(), x, float(most)))
        return self.cast(self(Where(), inside, x, -1.0), dt.int64)

    def sizes(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of an integer value, none of them negative, as dimensions."""
        found = self.importer.demanded(value)
        if found is None:
            raise self.unsupported(f"{what} of unknown length or dtype, known only at run time")
        return tuple(as_dim(x) for x in found.dims())

    def vector(self, dims: Sequence[Dim]) -> Value:
        """Dimensions as data, int64."""
        if all(isinstance(d, int) for d in dims):
            return self.builder.constant(np.array(dims, np.int64))
        return self(Dims(tuple(dims)))

    def numbers(self, k: int, what: str) -> tuple[int, ...] | None:
        """The integers of operand k, which must be known at import; None if it is absent."""
        dims = self.dims(k, what)
        if dims is None:
            return None
        found = tuple(d for d in dims if isinstance(d, int))
        if len(found) < len(dims):
            raise self.unsupported(f"{what} known only at run time")
        return found

    def constant(self, k: int) -> Array | None:
        """The data of operand k if it is constant."""
        if not self.given(k):
            return None
        operand = self.operands[k]
        if isinstance(operand, Content):
            return operand.array() if operand.is_constant else None
        return operand.constant if isinstance(operand, Value) else None

    def declared_shape(self, k: int = 0) -> tuple[int, ...] | None:
        """The shape that the model declares for output k, if every dimension is a number."""
        if k >= len(self.node.output) or self.scope.prefix:
            return None
        type = self.importer.declared.get(self.node.output[k])
        if type is None or type.WhichOneof("value") != "tensor_type" or not type.tensor_type.HasField("shape"):
            return None
        dims = type.tensor_type.shape.dim
        return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"at least {low}" if high > 1_000_000 else f"{low} … {high}"


def _attribute_type(value: int) -> str:
    return str(AttributeProto.AttributeType.Name(value)).lower()
