"""What a converter sees of a node of an exported program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

import weft.dtypes as dt
import weft_ops as ops
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim
from weft_frontend.context import Context as Base
from weft_torch.sizes import size
from weft_torch.tensors import PARTS, dtype_of

if TYPE_CHECKING:
    from weft_torch.importer import ProgramImporter

Number = int | float | bool


class Context(Base):
    """A node with its arguments: `c.arguments` has them in the order of the schema, `c.argument(name)` one by name, and
    `c.fake(k)` what PyTorch knows of output k: its dtype and sizes."""

    importer: ProgramImporter

    def __init__(
        self,
        importer: ProgramImporter,
        node: torch.fx.Node,
        op_type: str,
        domain: str,
        names: list[str],
        arguments: Any,
        fakes: Any,
    ) -> None:
        value = node.meta.get("val")
        count = len(value) if isinstance(value, (list, tuple)) else 1
        super().__init__(importer, op_type, node.name, arguments, domain=domain, outputs=count)
        self.node, self.names, self.fakes = node, names, fakes

    @property
    def place(self) -> str:
        line = source_line(self.node)
        return f"node '{self.name}': {self.op_type}" + (f", from {line}" if line else "")

    @property
    def label(self) -> str:
        line = source_line(self.node)
        return f"'{self.name}' ({line})" if line else f"'{self.name}'"

    @property
    def arguments(self) -> list[Any]:
        """The arguments in the order of the schema, defaults included."""
        return self.operands

    def argument(self, name: str) -> Any:
        """An argument by its name in the schema."""
        return self.operands[self.names.index(name)]

    def fake(self, k: int = 0) -> Any:
        """What PyTorch says of output k: a tensor without data."""
        value = self.node.meta.get("val")
        return value[k] if isinstance(value, (list, tuple)) else value

    def result_dtype(self, k: int = 0) -> DType:
        """The dtype of output k; of complex numbers that of their parts."""
        return self.part_dtype(k)

    def part_dtype(self, k: int = 0) -> DType:
        dtype = self.fake(k).dtype
        return dtype_of(PARTS.get(dtype, dtype))

    def is_complex(self, k: int = 0) -> bool:
        """Whether output k is complex."""
        fake = self.fake(k)
        return isinstance(fake, torch.Tensor) and fake.dtype in PARTS

    def result_shape(self, k: int = 0) -> tuple[Dim, ...]:
        """The sizes of output k."""
        return self.importer.shape_of(self.fake(k))

    def promoted(self, *operands: int) -> DType:
        """The dtype to which PyTorch promotes these arguments, tensors and numbers."""
        given = [self.fakes[k] for k in operands]
        found = torch.result_type(given[0], given[1] if len(given) > 1 else given[0])
        return dtype_of(PARTS.get(found, found))

    def cast(self, x: Value, dtype: DType) -> Value:
        """PyTorch makes what is beyond the range of float8_e4m3fn its greatest number, infinity too; of the other
        floats of 8 bits infinity or NaN (headeronly/util/Float8_e4m3fn.h)."""
        if dtype != dt.float8_e4m3fn or x.dtype == dtype:
            return super().cast(x, dtype)
        return self(ops.Cast(dtype, saturate=True), x if x.dtype.is_float else super().cast(x, dt.float32))

    def to(self, x: Any, dtype: DType) -> Value:
        """An operand, a value or a number, in a dtype."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if isinstance(x, (bool, int, float)):
            return self.number(x, dtype)
        if not isinstance(x, (complex, str)) and x is not None:
            return self.cast(self.dim(x), dtype)
        raise self.unsupported(f"an operand {x!r}")

    def gradients(self, operator: Operator, inputs: Sequence[Value], gradient: Value) -> Sequence[Value | None]:
        """The gradients by its inputs of an operator that defines them, from that by its first result; None: that
        input has none. The operator itself is dropped where nothing else uses it."""
        results = self.builder.add_all(operator, *inputs)
        node = results[0].producer
        assert node is not None
        return operator.gradient(self.builder, node, (gradient, *(None for _ in results[1:])))

    def size(self, value: Any) -> Dim:
        return size(value, self.importer.symbols)

    def static(self, value: Any, what: str) -> int:
        """A number that must be known at import."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.unsupported(f"{what} known only at run time")
        return value

    def statics(self, values: Any, what: str) -> tuple[int, ...]:
        return tuple(self.static(v, what) for v in values)


def source_line(node: torch.fx.Node) -> str | None:
    """Where the model's own code makes a node: file, line, and the code."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    lines = [line.strip() for line in trace.strip().splitlines() if line.strip()]
    for k in reversed(range(len(lines))):
        if lines[k].startswith("File "):
            place = lines[k].split(", in ")[0].removeprefix("File ").replace(", line ", ":").replace('"', "")
            return f"{place}: {lines[k + 1]}" if k + 1 < len(lines) and not lines[k + 1].startswith("File ") else place
    return None


__all__ = ["Context", "Number", "source_line"]
