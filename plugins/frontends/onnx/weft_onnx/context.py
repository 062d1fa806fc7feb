"""What a converter sees of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from weft.dtypes import DType
from weft.graph.operator import Array
from weft_frontend.context import Context as GraphContext
from weft_frontend.operands import Scope, Unsupported
from weft_onnx.registry import find, reaches
from weft_onnx.tensors import dtype_of

if TYPE_CHECKING:
    from typing import Any

    from weft_onnx.importer import Importer

Word = TypeVar("Word", bound=str)
OLDEST, NEWEST = 7, onnx.defs.onnx_opset_version()


def place(node: NodeProto, name: str) -> str:
    """A node, as errors show it."""
    return f"node '{name}': {node.op_type}({', '.join(node.input)}) → {', '.join(node.output)}"


class Context(GraphContext):
    """What a converter sees of its node: with operands, what the format says of it."""

    importer: Importer

    def __init__(
        self, importer: Importer, node: NodeProto, domain: str, name: str, operands: list[Any], scope: Scope,
        versions: Mapping[str, int], attributes: Mapping[str, AttributeProto], depth: int,
    ) -> None:  # fmt: skip
        super().__init__(
            importer, node.op_type, name, operands,
            domain=domain, version=versions.get(domain, 1), outputs=len(node.output),
        )  # fmt: skip
        self.node, self.scope, self.versions = node, scope, versions
        self.outer_attributes, self.depth = attributes, depth
        self.attributes = {a.name: a for a in node.attribute}
        try:
            self.schema = onnx.defs.get_schema(self.op_type, self.version, domain)
        except Exception:  # noqa: BLE001 - onnx's own class of error, which is not public
            self.schema = None

    @property
    def is_newer(self) -> bool:
        """Whether the operator is of a newer operator set than ONNX has here."""
        return not self.domain and self.version > NEWEST

    @property
    def place(self) -> str:
        return place(self.node, self.name)

    def operand_name(self, k: int) -> str:
        return str(self.node.input[k])

    # -- errors
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
