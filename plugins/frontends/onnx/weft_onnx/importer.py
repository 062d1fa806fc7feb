"""ModelProto → Graph, one ONNX operator at a time; converters/ says how each is converted.

Values are graph values, or contents: integers known as formulas (contents.py), which become nodes only where an
operator needs them as data. An operator without a converter is expanded through its function: the model's own, or the
body that ONNX's schema defines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

from weft import dtypes as dt
from weft.converters import Converters
from weft.dtypes import DType
from weft.errors import FrontendError, UnsupportedError, WeftError, from_signal, nearest
from weft.expr.nodes import Expr, Var, free_vars, maximum, ne, select, size_of, wrap
from weft.expr.ranges import Range, range_of
from weft.graph.identity import Require
from weft.graph.nodes import Graph, GraphBuilder, OpenType, OptionalType, SequenceType, TensorType, Type, Value
from weft.graph.operator import Elementwise, Operator
from weft.graph.rewrite import attribute_symbols, drop_dead
from weft.passes.fold_constants import work_of
from weft.tensor.language import Dim, as_dim
from weft_onnx import contents as ct
from weft_onnx.bodies import Level, Poison, Poisoned, poisoned, shaped
from weft_onnx.contents import LIMIT, Content
from weft_onnx.model_file import Model
from weft_onnx.registry import find, find_formula, reaches
from weft_onnx.tensors import dtype_of, to_array
from weft_ops import (
    BroadcastTo,
    Cast,
    Dims,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    Maximum,
    Minimum,
    Negative,
    OneElement,
    OptionalEmpty,
    Reshape,
    SequenceConstruct,
    SequenceEmpty,
    StringConstant,
    Where,
)
from weft_ops.composing import Composer
from weft_ops.shapes import dim_expr, dim_select, equals, product, same, static
from weft_runtime.abi import LARGEST

Array = np.ndarray[Any, Any]
Word = TypeVar("Word", bound=str)
OLDEST, NEWEST = 7, onnx.defs.onnx_opset_version()
# A result that is constant and this small is computed at once: shapes that go through floats stay known.
FOLDED = 1024
# What that may take in all, as `work_of` counts it: some seconds. A loop that is written out may do it thousands of
# times.
FOLDED_WORK = 1 << 34
# Numbers that are made at import of attributes and sizes alone, in all: a file of a hundred bytes may ask for any
# number of them.
MADE = 1 << 24
MAX_DEPTH = 64
# Nodes that functions, branches and loops may come to when they are written out: so many, or so many times those in the
# file.
WRITTEN, WRITTEN_PER_NODE = 20_000, 100
# Parts of the formula of a size beyond which it gets a symbol of its own, whose value a kernel computes: formulas of
# formulas would double with each step.
LONGEST = 40
# ONNX's operators of which two with the same operands differ.
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


class Absent:
    """Stands for an empty optional, or an output that was not made."""


class Elements(list[Any]):
    """A sequence whose elements are known at import; of no elements, their dtype."""

    def __init__(self, elements: Iterable[Any] = (), dtype: DType = dt.float32) -> None:
        super().__init__(elements)
        self.dtype = dtype


Attributes: TypeAlias = Mapping[str, AttributeProto]
NO_ATTRIBUTES: Attributes = MappingProxyType({})
Operand: TypeAlias = "Value | Content | Poison | Absent | list[Any]"


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


def import_model(model: Model, dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of a model; `dims` are sizes of dimensions that it leaves open, by name.

    Raises:
        FrontendError: an ill-formed model, or a size of a dimension that it has not.
        UnsupportedError: everything unsupported, at once.
    """
    return Importer(model, dims or {}).run()


class Importer:
    """The state of one import."""

    def __init__(self, model: Model, dims: Mapping[str, int]) -> None:
        self.model, self.dims = model, dims
        self.proto = model.proto
        self.level = Level(GraphBuilder(_identifier(self.proto.graph.name) or "graph"))
        self.others = Converters("onnx", (_Unsupported, Poisoned), check=_wrong_result, domains={"ai.onnx": ""})
        self.versions = self._opsets(self.proto.opset_import)
        self._outer_tensors: list[dict[int, tuple[Content, Value]]] = []
        self.functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in self.proto.functions}
        self.unsupported: dict[str, list[str]] = {}
        self.declared: dict[str, TypeProto] = {}
        # By the ids of values, which are kept: an id is another's when its value has gone.
        self._contents: dict[int, tuple[Value, Content | None]] = {}
        self._tensors: dict[int, tuple[Content, Value]] = {}
        self._symbols: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._calls: dict[tuple[Any, ...], tuple[Any, Sequence[Any]]] = {}
        self._pure: dict[int, bool] = {}
        self._read: dict[int, tuple[onnx.TensorProto, Array]] = {}
        self._shortened: list[dict[Expr, Expr]] = [{}]
        self.shortened = 0
        self.written = self.made = self.folding = 0
        self.most_written = max(
            WRITTEN,
            WRITTEN_PER_NODE * (count_nodes(self.proto.graph) + sum(count_nodes(f) for f in self.proto.functions)),
        )

    @property
    def builder(self) -> GraphBuilder:
        return self.level.builder

    # -- bodies that are graphs of their own
    def enter(self, name: str) -> Level:
        """What is built from here on is a graph of its own, until `leave`."""
        self.level = Level(self.builder.inner(name), self.level)
        self._outer_tensors.append(self._tensors)
        self._tensors = {}
        self._shortened.append({})
        return self.level

    def leave(self) -> None:
        assert self.level.outer is not None
        self.level = self.level.outer
        self._tensors = self._outer_tensors.pop()
        self._shortened.pop()

    def scope(self, c: Context, level: Level) -> Scope:
        """The scope of a body of a node."""
        return Scope(
            outer=c.scope,
            prefix=f"{c.scope.prefix}{c.node.name or c.op_type}/",
            capture=lambda operand: level.capture(self, operand),
        )

    def remember(self, value: Value, content: Content | None) -> None:
        """What a value holds, as far as it is known."""
        self._contents[id(value)] = value, content

    def _opsets(self, imports: Sequence[Any], where: str = "the model") -> dict[str, int]:
        versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in imports}
        version = versions.get("")
        newest = max(NEWEST, self.others.newest(""))
        if version is not None and version > newest:
            hint = "a newer `onnx` package may support it, or a plugin with converters for it (hook `converters`)"
            raise UnsupportedError(f"{where} uses operator set {version}, the newest known is {newest}", hint=hint)
        return versions

    # -- the graph
    def run(self) -> Graph:
        graph = self.proto.graph
        scope = Scope()
        self.declare(graph)
        self.initialize(graph, scope, self.model.mapped)
        for info in graph.input:
            if info.name not in scope.values:
                scope.values[info.name] = self.input(info)
        for info in graph.input:
            value = scope.values[info.name]
            if isinstance(value.type, OpenType):
                value.type = self.sizes(info)
        self.check_dims()
        self.nodes(graph.node, scope, self.versions, "")
        if self.unsupported:
            raise self.everything_unsupported()
        for info in graph.output:
            operand = scope.find(info.name)
            if operand is None:
                raise FrontendError(f"output '{info.name}' is computed by no node", where=f"graph '{graph.name}'")
            tensor = info.type.tensor_type
            value = shaped(
                self.builder,
                self.run_time(operand, info.type, info.name),
                len(tensor.shape.dim) if tensor.HasField("shape") else None,
            )
            declared = info.type.tensor_type.elem_type if isinstance(value.type, TensorType) else 0
            # Sizes are often wrong in models that run everywhere; an element type is a promise to the caller.
            if declared and dtype_of(declared, f"output '{info.name}'") != value.dtype:
                raise FrontendError(
                    f"output '{info.name}' is declared as {dtype_of(declared, info.name)} and computed as"
                    f" {value.dtype}",
                    where=f"graph '{graph.name}'",
                )
            self.builder.output(value, info.name)
        result = self.builder.build()
        drop_dead(result)
        return result

    def declare(self, graph: GraphProto) -> None:
        for info in (*graph.value_info, *graph.output):
            self.declared.setdefault(info.name, info.type)

    def initialize(self, graph: GraphProto, scope: Scope, mapped: Mapping[str, memoryview]) -> None:
        for tensor in graph.initializer:
            if tensor.name in scope.values:
                raise FrontendError(f"two initialisers are named '{tensor.name}'", where=f"graph '{graph.name}'")
            array = to_array(tensor, mapped.get(tensor.name), self.model.folder)
            scope.values[tensor.name] = self.constant(array, tensor.name)
        if graph.sparse_initializer:
            names = ", ".join(f"'{t.values.name}'" for t in graph.sparse_initializer)
            raise UnsupportedError(f"sparse initialisers are not supported: {names}", hint="store them dense")

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The data of a node's tensor, read once: nodes of a function are gone through at each of its calls."""
        if id(tensor) not in self._read:
            self._read[id(tensor)] = tensor, to_array(tensor, folder=self.model.folder)
        return self._read[id(tensor)][1]

    def constant(self, array: Array, name: str) -> Value:
        """A constant; of strings, a node."""
        if array.dtype == object:
            return self.builder.add(StringConstant(tuple(array.reshape(-1).tolist()), array.shape), name=name)
        return self.builder.constant(array, name)

    def input(self, info: onnx.ValueInfoProto) -> Value:
        """An input, as yet without sizes: their symbols give way to the names of all inputs."""
        kind = info.type.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type", "tensor_type"):
            raise UnsupportedError(
                f"input '{info.name}' is a {(kind or 'value of no type').removesuffix('_type')}, which is not supported"
            )
        if kind == "tensor_type" and not info.type.tensor_type.HasField("shape"):
            raise UnsupportedError(
                f"input '{info.name}' has no shape", hint="export the model with the rank of every input"
            )
        return self.builder.input(info.name, self.type(info.type, f"input '{info.name}'"))

    def sizes(self, info: onnx.ValueInfoProto) -> TensorType:
        """The type of a tensor that is an input."""
        tensor = info.type.tensor_type
        shape = tuple(self.dimension(d, info.name, k) for k, d in enumerate(tensor.shape.dim))
        return TensorType(dtype_of(tensor.elem_type, f"input '{info.name}'"), shape)

    def type(self, proto: TypeProto, what: str) -> Type:
        """A type as the model declares it, without sizes, which are often wrong.

        Raises:
            UnsupportedError: it is none of tensors, sequences and optionals.
        """
        kind = proto.WhichOneof("value")
        if kind == "sequence_type":
            return SequenceType(self.type(proto.sequence_type.elem_type, what))
        if kind == "optional_type":
            return OptionalType(self.type(proto.optional_type.elem_type, what))
        if kind != "tensor_type":
            raise UnsupportedError(
                f"{what} is or holds a {(kind or 'value of no type').removesuffix('_type')}, which is not supported"
            )
        tensor = proto.tensor_type
        return OpenType(dtype_of(tensor.elem_type, what), len(tensor.shape.dim) if tensor.HasField("shape") else None)

    def dimension(self, d: Any, name: str, axis: int) -> Dim:
        if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0:
            return int(d.dim_value)
        wanted = d.dim_param
        # Its name is that in the model, or that which the graph shows.
        names = [n for n in (wanted, _identifier(wanted) or f"{_identifier(name)}_{axis}") if n]
        self._open.setdefault(names[0], set()).update(names)
        given = next((n for n in names if n in self.dims), None)
        if given is not None:
            return self.dims[given]
        if wanted and wanted in self._symbols:
            return Var(self._symbols[wanted], dt.int64)
        symbol = self.builder.unique(names[-1])
        if wanted:
            self._symbols[wanted] = symbol
        return Var(symbol, dt.int64)

    def check_dims(self) -> None:
        known = set[str]().union(*self._open.values())
        for name in self.dims:
            if name not in known:
                close = nearest(name, known)
                hint = (
                    f"did you mean '{close}'?"
                    if close
                    else "its open dimensions: " + (", ".join(sorted(self._open)) or "none")
                )
                raise FrontendError(f"dims gives '{name}', which is no open dimension of the model's inputs", hint=hint)

    def everything_unsupported(self) -> UnsupportedError:
        lines = []
        for what, names in sorted(self.unsupported.items()):
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            lines.append(f"{what}: {shown}")
        what = "one thing" if len(lines) == 1 else f"{len(lines)} things"
        hint = (
            "export it without; a function of the model (FunctionProto) can define an operator by others, a plugin can"
            " convert it (hook `converters`)"
        )
        return UnsupportedError(
            f"the model uses {what} that the ONNX frontend does not support", where="\n".join(lines), hint=hint
        )

    # -- nodes
    def nodes(
        self,
        nodes: Sequence[NodeProto],
        scope: Scope,
        versions: Mapping[str, int],
        where: str,
        attributes: Attributes = NO_ATTRIBUTES,
        depth: int = 0,
    ) -> None:
        """Imports nodes, whose order must be topological; if it is not, they are sorted or the cycle is named."""
        waiting = list(enumerate(nodes))
        while waiting:
            left = []
            for index, node in waiting:
                if all(not name or scope.find(name) is not None for name in (*node.input, *_captured(node))):
                    self.node(node, index, scope, versions, where, attributes, depth)
                else:
                    left.append((index, node))
            if len(left) == len(waiting):
                raise _stuck(left, scope)
            waiting = left

    def node(
        self,
        node: NodeProto,
        index: int,
        scope: Scope,
        versions: Mapping[str, int],
        where: str,
        attributes: Attributes,
        depth: int,
    ) -> None:
        name = (where + "/" if where else "") + (node.name or f"{node.op_type}_{index}")
        domain = "" if node.domain == "ai.onnx" else node.domain
        operands = [Absent() if not n else scope.find(n) for n in node.input]
        context = Context(self, node, domain, name, operands, scope, versions, attributes, depth)
        place = f"node '{name}': {node.op_type}({', '.join(node.input)}) → {', '.join(node.output)}"
        self.written += 1
        if self.written > self.most_written:
            raise UnsupportedError(
                f"the model comes to more than {self.most_written:,} nodes",
                where=place,
                why="functions, branches and loops that are written out multiply",
                hint="call a function less often inside of others, or export the model without functions",
            )
        try:
            with self.builder.named(name):
                results = self.convert(context)
        except Poisoned:
            results = [Poison()] * len(node.output)
        except _Unsupported as error:
            self.unsupported.setdefault(error.reason, []).append(f"'{name}'")
            results = [Poison()] * len(node.output)
        except UnsupportedError:
            raise
        except FrontendError as error:
            if error.where and error.where.startswith("node '"):
                raise
            raise FrontendError(error.what, where=place, why=error.why, hint=error.hint) from error
        except WeftError as error:
            raise FrontendError(
                f"{node.op_type} cannot be applied: {error.what}", where=place, why=error.why, hint=error.hint
            ) from error
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = invalid(self.proto)
            hint = (
                None
                if why is not None
                else (
                    "ONNX's checker has nothing to say against the model: if it is valid, this is a defect of weft-onnx"
                )
            )
            raise FrontendError(
                f"{node.op_type} cannot be applied",
                where=place,
                why=why or f"{type(error).__name__}: {error}",
                hint=hint,
            ) from error
        for output, result in zip(node.output, results):
            if not output:
                continue
            if output in scope.values:
                raise FrontendError(f"value '{output}' is computed twice", where=place)
            if (
                isinstance(result, Value)
                and result.producer is not None
                and result.producer in self.builder.graph.nodes[-1:]
            ):
                self.builder.rename(result, scope.prefix + output)
            scope.values[output] = result if result is not None else Absent()

    def may_write(self, body: GraphProto, times: int) -> bool:
        """Whether a body may be written out so many times."""
        return self.written + times * count_nodes(body) <= self.most_written

    def convert(self, c: Context) -> Sequence[Any]:
        # Of a newer operator set than ONNX has here nothing is known but what plugins say.
        known = bool(c.domain) or c.version <= NEWEST
        converter = find(c.domain, c.op_type, c.version) if known else None
        given = self.others.find(c.domain, c.op_type, c.version, converter is not None)
        if given is None:
            c.check_known()
        spoilt = any(map(poisoned, c.operands))
        function = self.functions.get((c.node.domain, c.op_type, getattr(c.node, "overload", "")))
        if function is not None:
            return self.call(function, c)
        if given is not None:
            return [Poison()] * len(c.node.output) if spoilt else [self.refined(r) for r in _sequence(given(c))]
        if converter is None:
            body = None if spoilt or not known else self.schema_body(c)
            if body is not None:
                return self.call(body, c)
            expands = c.schema is not None and (c.schema.has_function or c.schema.has_context_dependent_function)
            if not spoilt or not expands:
                raise _Unsupported(
                    f"operator {c.domain + '.' if c.domain else ''}{c.op_type} of operator set {c.version}"
                )
        if spoilt:
            return [Poison()] * len(c.node.output)
        assert converter is not None
        formula = find_formula(c.domain, c.op_type)
        if formula is not None and c.all_contents():
            result = formula(c)
            # What leaves its dtype's range wraps around, which numbers here do not: operators do.
            if result is not None and all(r.fits for r in _sequence(result) if isinstance(r, ct.Content)):
                return [self.short_content(r) if isinstance(r, Content) else r for r in _sequence(result)]
        return [self.refined(r) if isinstance(r, Value) else r for r in _sequence(converter(c))]

    def refined(self, result: Value) -> Value:
        return self.short_value(self.folded(result))

    # -- long formulas
    def short_content(self, content: Content) -> Content:
        """The content with symbols in place of formulas that are longer than `LONGEST`."""
        elements = content.dims()
        long = [x for x in elements if isinstance(x, Expr) and size_of(x) > LONGEST]
        if not long:
            return content
        short = self._short(long)
        return ct.content(
            content.dtype, [short.get(x, x) if isinstance(x, Expr) else x for x in elements], content.shape
        )

    def short_value(self, value: Value) -> Value:
        """The value with symbols in place of sizes that are longer formulas than `LONGEST`; a view of it."""
        if not isinstance(value.type, TensorType):
            return value
        long = [d for d in value.shape if isinstance(d, Expr) and size_of(d) > LONGEST]
        if not long or value.dtype.kind == "string":
            return value
        short = self._short(long)
        shape = tuple(as_dim(short.get(d, d)) if isinstance(d, Expr) else d for d in value.shape)
        return self.builder.add(Reshape(shape), value, name=value.name)

    def _short(self, formulas: Sequence[Expr]) -> dict[Expr, Expr]:
        """By formula what stands for it: a symbol, which is a size, or the difference of two where it may be negative;
        of a condition, whether it is not 0."""
        known = self._shortened[-1]
        for e in dict.fromkeys(formulas):
            if e in known:
                continue
            number = select(e, 1, 0) if e.dtype.is_bool else e
            positive = range_of(number, {name: Range(0, None) for name in free_vars(number)}).within(0, None)
            parts = [number] if positive else [maximum(number, 0), maximum(0 - number, 0)]
            value = self.builder.add(Dims(tuple(as_dim(p) for p in parts)), name="size")
            symbols = [self.builder.symbol(value, k) for k in range(len(parts))]
            found = symbols[0] if positive else symbols[0] - symbols[1]
            known[e] = ne(found, 0) if e.dtype.is_bool else found
            self.shortened += 1
        return known

    def folded(self, value: Value) -> Value:
        """A small value of constants as a constant; what is dequantised stays so, which passes make integers of."""
        node = value.producer
        if node is None or not isinstance(value.type, TensorType) or not value.type.is_static or len(node.outputs) != 1:
            return value
        if node.op.folds_late or not node.op.deterministic:
            return value
        arrays = [None if i is None else i.constant for i in node.inputs]
        if (
            math.prod(static(value.type.shape)) > FOLDED
            or not arrays
            or any(i is not None and a is None for i, a in zip(node.inputs, arrays))
        ):
            return value
        if sum(a.size for a in arrays if a is not None) > 4 * FOLDED or attribute_symbols(node.op):
            return value
        work = work_of(node.op, node.inputs, node.outputs)
        if work is None or self.folding + work > FOLDED_WORK:
            return value
        self.folding += work
        try:
            with np.errstate(all="ignore"):
                array = np.asarray(node.op.reference(*arrays))
        except (ArithmeticError, ValueError, IndexError):
            return value  # it fails at run time as well
        return self.builder.constant(array, value.name)

    # -- functions
    def schema_body(self, c: Context) -> FunctionProto | None:
        schema = c.schema
        if schema is None:
            return None
        if schema.has_context_dependent_function:
            types = [t for o in c.operands if (t := self.type_of(o)) is not None]
            if len(types) < len(c.operands):
                return None
            node = c.resolved_node()
            version = max((v for v in schema.context_dependent_function_opset_versions if v <= c.version), default=None)
            if version is None:
                return None
            text = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        elif schema.has_function:
            version = max((v for v in schema.function_opset_versions if v <= c.version), default=None)
            if version is None:
                return None
            text = schema.get_function_with_opset_version(version)
        else:
            return None
        body = FunctionProto()
        body.ParseFromString(text)
        return body if body.node else None

    def type_of(self, operand: Any) -> TypeProto | None:
        if isinstance(operand, Absent):
            return TypeProto()
        if isinstance(operand, Content):
            return onnx.helper.make_tensor_type_proto(_enumerator(operand.dtype), operand.shape)
        if isinstance(operand, Elements):
            element = (
                self.type_of(operand[0])
                if operand
                else onnx.helper.make_tensor_type_proto(_enumerator(operand.dtype), None)
            )
            return None if element is None else onnx.helper.make_sequence_type_proto(element)
        return _proto(operand.type) if isinstance(operand, Value) else None

    def call(self, function: FunctionProto, c: Context) -> Sequence[Any]:
        """A function's nodes in place of the node that calls it."""
        if c.depth > MAX_DEPTH:
            raise FrontendError(f"function '{function.name}' calls itself")
        key = self._call_key(function, c)
        if key in self._calls:
            return self._calls[key][1]
        scope = Scope(prefix=f"{c.scope.prefix}{c.node.name or c.op_type}/")
        for k, name in enumerate(function.input):
            scope.values[name] = c.operands[k] if k < len(c.operands) else Absent()
        versions = {**c.versions, **self._opsets(function.opset_import, f"function '{function.name}'")}
        given = {a.name: c.attribute(a.name) for a in c.node.attribute}
        attributes = {k: v for k, v in given.items() if v is not None}
        for a in function.attribute_proto:
            attributes.setdefault(a.name, a)
        if c.schema is not None:
            for key, a in c.schema.attributes.items():
                if key not in attributes and a.default_value.name:
                    attributes[key] = a.default_value
        self.nodes(function.node, scope, versions, c.name, attributes, c.depth + 1)
        results = [scope.values.get(n, Absent()) for n in function.output]
        if key is not None:
            self._calls[key] = (self.level, function, c.operands), results
        return results

    def _call_key(self, function: FunctionProto, c: Context) -> tuple[Any, ...] | None:
        """What makes two calls of a function the same; None if two calls differ anyway."""
        if not self.is_pure(function):
            return None
        # By the names of the call: what an attribute refers to has the name that it has in the caller, or is absent
        # there.
        given = tuple(
            (name, None if (a := c.attribute(name)) is None else a.SerializeToString()) for name in sorted(c.attributes)
        )
        operands = tuple(None if isinstance(o, Absent) else id(o) for o in c.operands)
        return id(self.level), id(function), tuple(sorted(c.versions.items())), given, operands

    def is_pure(self, function: FunctionProto) -> bool:
        """Whether a function gives the same for the same operands: nothing in it is random."""
        found = self._pure.get(id(function))
        if found is None:
            self._pure[id(function)] = True  # of one that calls itself, which is an error of its own
            found = self._pure[id(function)] = all(map(self._pure_node, function.node))
        return found

    def _pure_node(self, node: NodeProto) -> bool:
        called = self.functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if node.op_type in RANDOM or (called is not None and not self.is_pure(called)):
            return False
        return all(self._pure_node(n) for g in graphs_of(node) for n in g.node)

    def subgraph(self, graph: GraphProto, c: Context, inputs: Sequence[Any] = ()) -> list[Any]:
        """The outputs of a sub-graph, its nodes put here, over `inputs`."""
        scope = Scope(outer=c.scope, prefix=f"{c.scope.prefix}{c.node.name or c.op_type}/")
        if len(inputs) != len(graph.input):
            raise FrontendError(f"the sub-graph '{graph.name}' takes {len(graph.input)} input(s), gets {len(inputs)}")
        self.initialize(graph, scope, {})
        for info, operand in zip(graph.input, inputs):
            scope.values[info.name] = operand
        self.nodes(graph.node, scope, c.versions, c.name, c.outer_attributes, c.depth + 1)
        results = []
        for info in graph.output:
            operand = scope.find(info.name)
            if operand is None:
                raise FrontendError(f"output '{info.name}' of sub-graph '{graph.name}' is computed by no node")
            results.append(operand)
        return results

    # -- operands
    def as_value(self, operand: Any, name: str = "shape") -> Value:
        """An operand as a graph value; a content becomes one node per formula, or a constant; elements become a
        sequence."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, Elements):
            made = SequenceConstruct() if operand else SequenceEmpty(operand.dtype)
            return self.builder.add(made, *map(self.as_value, operand))
        assert isinstance(operand, Content)
        kept = self._tensors.get(id(operand))
        if kept is None:
            kept = self._tensors[id(operand)] = (operand, self._tensor(operand, name))
            self.remember(kept[1], operand)
        return kept[1]

    def run_time(self, operand: Any, declared: TypeProto, name: str) -> Value:
        """As `as_value`, for what leaves the graph: an optional that holds nothing, too.

        Raises:
            UnsupportedError: there is nothing, and the model does not say of which type.
        """
        if not isinstance(operand, Absent):
            return self.as_value(operand, name)
        if declared.WhichOneof("value") != "optional_type":
            raise UnsupportedError(f"output '{name}' is absent")
        type_ = self.type(declared.optional_type.elem_type, f"output '{name}'")
        sequence = isinstance(type_, SequenceType)
        element = type_.element if isinstance(type_, SequenceType) else type_
        assert isinstance(element, OpenType)
        return self.builder.add(OptionalEmpty(element.dtype, sequence), name=name)

    def _tensor(self, content: Content, name: str) -> Value:
        b = self.builder
        if content.is_constant:
            return b.constant(content.array(), name)
        if content.dtype.is_bool:
            ints = ct.content(dt.int64, [ct.choose(x, 1, 0) for x in content.dims()], content.shape)
            return b.add(Cast(dt.bool_), self._tensor(ints, name))
        value: Value = b.add(Dims(tuple(content.dims()), content.dtype), name=name)
        return value if len(content.shape) == 1 else b.add(Reshape(content.shape), value)

    def known(self, operand: Any) -> Content | None:
        """The content of an operand if it is known without reading data at run time."""
        if isinstance(operand, Content):
            return operand
        if not isinstance(operand, Value):
            return None
        if id(operand) not in self._contents:
            self.remember(operand, None if operand.constant is None else ct.of_array(operand.constant))
        return self._contents[id(operand)][1]

    def demanded(self, operand: Any) -> Content | None:
        """The content of an operand, read at run time if need be; None if that is not possible."""
        found = self.known(operand)
        if found is not None or not isinstance(operand, Value):
            return found
        if not isinstance(operand.type, TensorType):
            return None
        type = operand.type
        if not type.is_static or not type.dtype.is_integer:
            return None
        count = math.prod(static(type.shape))
        if count > LIMIT:
            return None
        return ct.content(dt.int64, [self.builder.symbol(operand, k) for k in range(count)], static(type.shape))


class _Unsupported(Exception):
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
        return _Unsupported(f"{self.op_type}: {reason}")

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
                raise _Unsupported(f"operator {self.op_type} of operator set {self.version}, which ONNX does not have")
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
            raise _Unsupported(f"operator {self.op_type} of operator set {self.version} (before {OLDEST})")

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


# -- names ------------------------------------------------------------------------------------------------------------


def invalid(proto: onnx.ModelProto) -> str | None:
    """What is wrong with a model as ONNX's own checks see it, shape inference included; None if nothing is. Asked where
    a converter stumbles."""
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # onnx's own classes of errors, which differ by version
        if from_signal(error):
            raise
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def _identifier(name: str) -> str:
    text = re.sub(r"\W+", "_", name).strip("_")
    return f"n{text}" if text[:1].isdigit() else text


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"at least {low}" if high > 1_000_000 else f"{low} … {high}"


def _attribute_type(value: int) -> str:
    return str(AttributeProto.AttributeType.Name(value)).lower()


def _enumerator(dtype: DType) -> int:
    from weft_onnx.tensors import DTYPES

    return next(k for k, v in DTYPES.items() if v == dtype)


def _proto(type: Type) -> TypeProto:
    if isinstance(type, SequenceType):
        return onnx.helper.make_sequence_type_proto(_proto(type.element))
    if isinstance(type, OptionalType):
        return onnx.helper.make_optional_type_proto(_proto(type.element))
    shape = (
        [d if isinstance(d, int) else None for d in type.shape]
        if isinstance(type, TensorType)
        else None
        if type.rank is None
        else [None] * type.rank
    )
    return onnx.helper.make_tensor_type_proto(_enumerator(type.dtype), shape)


def _wrong_result(c: Context, result: Any) -> str | None:
    """What is wrong with the result of a plugin's converter; None: nothing."""
    results = _sequence(result)
    for one in results:
        if one is not None and not isinstance(one, (Value, Content)):
            return (
                f"its converter returned {one!r:.80}; expected a Value for each output, or None for one that it does"
                " not make"
            )
    made, wanted = sum(r is not None for r in results), len(c.node.output)
    if len(results) > wanted:
        return f"its converter returned {len(results)} results, the node has {wanted} output(s)"
    return None if made else "its converter returned no result"


def _sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The sub-graphs of a node."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]


def count_nodes(graph: GraphProto | FunctionProto) -> int:
    """The nodes of a graph and of the graphs within it."""
    return sum(1 + sum(map(count_nodes, graphs_of(n))) for n in graph.node)


def _captured(node: NodeProto) -> set[str]:
    """Names that a node's sub-graphs use but do not define."""
    found: set[str] = set()
    for graph in graphs_of(node):
        own = {i.name for i in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
        for inner in graph.node:
            found |= {i for i in (*inner.input, *_captured(inner)) if i and i not in own}
        found |= {o.name for o in graph.output if o.name not in own}
    return found


def _stuck(left: Sequence[tuple[int, NodeProto]], scope: Scope) -> FrontendError:
    made = {o: (k, n) for k, n in left for o in n.output}
    for k, node in left:
        for name in (*node.input, *_captured(node)):
            if name and name not in made and scope.find(name) is None:
                return FrontendError(
                    f"'{name}' is used and computed by no node",
                    where=f"node '{node.name or f'{node.op_type}_{k}'}' ({node.op_type})",
                )
    # Every node waits for another of them: follow what they wait for until one comes again.
    index, node = left[0]
    path: list[tuple[int, NodeProto]] = []
    while all(n is not node for _, n in path):
        path.append((index, node))
        index, node = next(made[i] for i in (*node.input, *_captured(node)) if i in made)
    start = next(k for k, (_, n) in enumerate(path) if n is node)
    cycle = [f"'{n.name or f'{n.op_type}_{k}'}' ({n.op_type})" for k, n in path[start:]]
    return FrontendError(f"the graph has a cycle of {len(cycle)} node(s)", where=" ← ".join([*cycle, cycle[0]]))
