"""ModelProto → Graph, one ONNX operator at a time; converters/ says how each is converted.

Values are graph values, or contents: integers known as formulas (contents.py), which become nodes only where an
operator needs them as data. An operator without a converter is expanded through its function: the model's own, or the
body that ONNX's schema defines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, OpenType, OptionalType, SequenceType, TensorType, Type, Value
from weft.graph.operator import Array
from weft.tensor.language import Dim
from weft_frontend.bodies import Level, shaped
from weft_frontend.cases import fork_of, in_cases
from weft_frontend.contents import Content
from weft_frontend.context import Context as GraphContext
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent, Elements, Poisoned, Scope, poisoned
from weft_onnx import names
from weft_onnx.context import NEWEST as NEWEST
from weft_onnx.context import Context as Context
from weft_onnx.context import place
from weft_onnx.model_file import Model
from weft_onnx.protos import captured, enumerator, identifier, independent, stuck, type_proto
from weft_onnx.protos import count_nodes as count_nodes
from weft_onnx.protos import graphs_of as graphs_of
from weft_onnx.protos import invalid as invalid
from weft_onnx.registry import REGISTRY
from weft_onnx.tensors import dtype_of, to_array
from weft_ops import Identity, OptionalEmpty, StringConstant

MAX_DEPTH = 64
# ONNX's operators of which two with the same operands differ.
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


Attributes: TypeAlias = Mapping[str, AttributeProto]
NO_ATTRIBUTES: Attributes = MappingProxyType({})


def import_model(model: Model, dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of a model; `dims` are sizes of dimensions that it leaves open, by name.

    Raises:
        FrontendError: an ill-formed model, or a size of a dimension that it has not.
        UnsupportedError: everything unsupported, at once.
    """
    repeated = names.repeated(model.proto.graph)
    apart = repeated - set(dims or {})
    while apart:
        importer = Importer(model, dims or {}, apart)
        try:
            graph = importer.run()
        except names.Together as found:
            apart = apart - found.names
        except FrontendError:  # perhaps since sizes are not known to be equal
            break
        else:
            names.warn_of(importer.apart, importer.names)
            return graph
    return Importer(model, dims or {}).run()


class Importer(GraphImporter):
    """The state of one import."""

    title = "ONNX"
    hint = (
        "export it without; a function of the model (FunctionProto) can define an operator by others, a plugin can"
        " convert it (hook `converters`)"
    )
    defect = "ONNX's checker has nothing to say against the model: if it is valid, this is a defect of weft-onnx"

    def __init__(self, model: Model, dims: Mapping[str, int], apart: Set[str] = frozenset()) -> None:
        self.model, self.dims, self.apart = model, dims, apart
        self.names: dict[str, str] = {}  # of symbols that are sizes of their own, the names of their axes
        self.proto = model.proto
        nodes = count_nodes(self.proto.graph) + sum(count_nodes(f) for f in self.proto.functions)
        super().__init__(identifier(self.proto.graph.name) or "graph", "onnx", REGISTRY, nodes, {"ai.onnx": ""})
        self.versions = self._opsets(self.proto.opset_import)
        self.independent = independent(self.proto.graph)
        self.functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in self.proto.functions}
        self.declared: dict[str, TypeProto] = {}
        self._symbols: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._calls: dict[tuple[Any, ...], tuple[Any, Sequence[Any]]] = {}
        self._pure: dict[int, bool] = {}
        self._read: dict[int, tuple[onnx.TensorProto, Array]] = {}

    # -- bodies that are graphs of their own
    def scope(self, c: Context, level: Level) -> Scope:
        """The scope of a body of a node."""
        return Scope(
            outer=c.scope,
            prefix=f"{c.scope.prefix}{c.node.name or c.op_type}/",
            capture=lambda operand: level.capture(self, operand),
        )

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
            self.builder.output(self.required(value), info.name)
        return self.built()

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
        """A constant; of strings, or by which a Gradient differentiates, a node: what is computed of it is not known
        at import then."""
        if array.dtype == object:
            return self.builder.add(StringConstant(tuple(array.reshape(-1).tolist()), array.shape), name=name)
        value = self.builder.constant(array, name)
        return self.builder.add(Identity(), value, name=name) if name in self.independent else value

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
        known = [n for n in (wanted, identifier(wanted) or f"{identifier(name)}_{axis}") if n]
        self._open.setdefault(known[0], set()).update(known)
        given = next((n for n in known if n in self.dims), None)
        if given is not None:
            return self.dims[given]
        if wanted in self._symbols and wanted not in self.apart:
            return Var(self._symbols[wanted], dt.int64)
        symbol = self.builder.unique(known[-1])
        if wanted in self.apart:
            self.names[symbol] = wanted
        elif names.is_name(wanted):
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
                if all(not name or scope.find(name) is not None for name in (*node.input, *captured(node))):
                    self.add(node, index, scope, versions, where, attributes, depth)
                else:
                    left.append((index, node))
            if len(left) == len(waiting):
                raise stuck(left, scope)
            waiting = left

    def add(
        self,
        node: NodeProto,
        index: int,
        scope: Scope,
        versions: Mapping[str, int],
        where: str,
        attributes: Attributes,
        depth: int,
    ) -> None:
        """Imports a node; its outputs get their names in `scope`."""
        name = (where + "/" if where else "") + (node.name or f"{node.op_type}_{index}")
        results = self.results(node, name, scope, versions, attributes, depth)
        for output, result in zip(node.output, results):
            if not output:
                continue
            if output in scope.values:
                raise FrontendError(f"value '{output}' is computed twice", where=place(node, name))
            if (
                isinstance(result, Value)
                and result.producer is not None
                and result.producer in self.builder.graph.nodes[-1:]
            ):
                self.builder.rename(result, scope.prefix + output)
            scope.values[output] = result if result is not None else Absent()

    def results(
        self,
        node: NodeProto,
        name: str,
        scope: Scope,
        versions: Mapping[str, int],
        attributes: Attributes,
        depth: int,
    ) -> Sequence[Any]:
        """What a node gives, in each case that what it uses has."""
        fork = fork_of(scope, (*node.input, *captured(node)))
        if fork is not None:
            rest = versions, attributes, depth
            return in_cases(self, fork, scope, lambda _, inner: self.results(node, name, inner, *rest))
        domain = "" if node.domain == "ai.onnx" else node.domain
        operands = [Absent() if not n else scope.find(n) for n in node.input]
        return self.node(Context(self, node, domain, name, operands, scope, versions, attributes, depth))

    def node(self, c: GraphContext) -> Sequence[Any]:
        before = len(self.builder.graph.nodes)
        results = super().node(c)
        if self.names:
            together = names.needed(self.builder.graph.nodes[before:], self.names)
            if together:
                raise names.Together(together)
        return results

    def invalid(self) -> str | None:
        return invalid(self.proto)

    def may_write(self, body: GraphProto, times: int) -> bool:
        """Whether a body may be written out so many times."""
        return self.written + times * count_nodes(body) <= self.most_written

    def convert(self, c: GraphContext) -> Sequence[Any]:
        assert isinstance(c, Context)
        converter = self.own(c)
        given = self.others.find(c.domain, c.op_type, c.version, converter is not None)
        if given is None:
            c.check_known()
        function = self.functions.get((c.node.domain, c.op_type, getattr(c.node, "overload", "")))
        if function is not None:
            return self.call(function, c)
        if given is None and converter is None:
            spoilt = any(map(poisoned, c.operands))
            body = None if spoilt or c.is_newer else self.schema_body(c)
            if body is not None:
                return self.call(body, c)
            expands = c.schema is not None and (c.schema.has_function or c.schema.has_context_dependent_function)
            if spoilt and expands:
                raise Poisoned
        return super().convert(c)

    def own(self, c: GraphContext) -> Any:
        # Of a newer operator set than ONNX has here nothing is known but what plugins say.
        return None if isinstance(c, Context) and c.is_newer else super().own(c)

    def unknown(self, c: GraphContext) -> str:
        return f"{super().unknown(c)} of operator set {c.version}"

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
            return onnx.helper.make_tensor_type_proto(enumerator(operand.dtype), operand.shape)
        if isinstance(operand, Elements):
            element = (
                self.type_of(operand[0])
                if operand
                else onnx.helper.make_tensor_type_proto(enumerator(operand.dtype), None)
            )
            return None if element is None else onnx.helper.make_sequence_type_proto(element)
        return type_proto(operand.type) if isinstance(operand, Value) else None

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
