"""What a converter sees of its node: operands as values and as shapes, requirements on data, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError, UnsupportedError
from weft.expr.nodes import Expr, wrap
from weft.graph.identity import Require
from weft.graph.nodes import OpenType, TensorType, Value
from weft.graph.operator import Array, Elementwise, Operator
from weft.tensor.language import Dim, as_dim
from weft_frontend.contents import Content
from weft_frontend.operands import Absent, Unsupported
from weft_ops import (
    BroadcastTo,
    Detach,
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
    from weft_frontend.importer import GraphImporter


class Context(Composer):
    """What a converter sees of its node: operands and, as a Composer, the building of nodes. A frontend derives its own
    class, with the attributes of its format.

    Args:
        importer: of the model that is read.
        op_type: the operator's name in the model.
        name: the node's, as errors show it.
        operands: values, contents, elements, `Absent` or `Poison`.
        domain, version: of the operator, where the format has them.
        outputs: how many the node has.
    """

    def __init__(
        self,
        importer: GraphImporter,
        op_type: str,
        name: str,
        operands: Sequence[Any],
        *,
        domain: str = "",
        version: int = 1,
        outputs: int = 1,
    ) -> None:
        super().__init__(importer.builder)
        self.importer, self.op_type, self.name, self.operands = importer, op_type, name, list(operands)
        self.domain, self.version, self.outputs = domain, version, outputs

    @property
    def place(self) -> str:
        """The node, as errors show it."""
        return f"node '{self.name}': {self.op_type}"

    @property
    def label(self) -> str:
        """The node, as the list of everything that is not supported shows it."""
        return f"'{self.name}'"

    def operand_name(self, k: int) -> str:
        """The name of operand k in the model, for the value that is made of its content."""
        return "shape"

    def all(self, op: Operator, *inputs: Any) -> tuple[Value, ...]:
        """The outputs of `op`; small results of constants are constants.

        Raises:
            UnsupportedError: the model comes to too many operators.
        """
        self.importer.composed += 1
        if self.importer.composed > self.importer.most_composed:
            raise UnsupportedError(
                f"the model comes to more than {self.importer.most_composed:,} operators",
                where=self.place,
                why="an attribute or a size makes the node many",
            )
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
        if self.importer.made > self.importer.most_made:
            others = self.importer.made - count
            raise self.error(
                f"{what} would be {count} numbers, at most {self.importer.most_made} are made of so little",
                f"other nodes have {others}" if others else None,
            )

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
        return self.importer.as_value(self.operands[k], self.operand_name(k))

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

    def detached(self, x: Any) -> Any:
        """`x`, through which no gradient passes. Constants and what is no tensor of floats stay as they are."""
        floats = isinstance(x, Value) and isinstance(x.type, TensorType) and x.dtype.is_float and x.constant is None
        return self(Detach(), x) if floats else x

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


__all__ = ["Context"]
