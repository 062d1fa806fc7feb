"""A TFLite model → Graph, one operator at a time; converters/ says how each is converted.

Values have the layout of the file: channels last. Converters of operators whose channels are axis 1 put transpositions
around them, which the compiler cancels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_frontend.context import Context as GraphContext
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent, Poisoned, poisoned
from weft_tflite.context import Complex, Context
from weft_tflite.model_file import Model, Signature, SubGraph, TensorInfo
from weft_tflite.refusals import REASONS
from weft_tflite.registry import COMPLEX, CUSTOM, MOVES, QUANTIZED, REGISTRY
from weft_tflite.state import States
from weft_tflite.tensors import dtype_of, to_array

SILENT = frozenset({"ASSIGN_VARIABLE", "CALL_ONCE", "CUSTOM", "HASHTABLE_IMPORT"})
"""Operators that may have no result."""
MOST_DEPTH = 32
"""Sub-graphs inside of sub-graphs."""


def import_model(
    model: Model,
    signature: str | None = None,
    dims: Mapping[str, int] | None = None,
    state: str | None = None,
    kernels: str = "litert",
) -> Graph:
    """The graph of a model.

    Args:
        signature: the key of the signature that is read; None: the model has one or none.
        dims: sizes of axes that the model leaves open, by the names of their symbols.
        state: what becomes of variables that a call changes: see `weft_tflite.state`.
        kernels: "litert" or "micro": whose results quantised operators have.

    Raises:
        FrontendError: an ill-formed model, or a signature or axis that it has not.
        UnsupportedError: everything unsupported, at once.
    """
    return Importer(model, dims or {}, state, kernels).run(chosen(model, signature))


def chosen(model: Model, key: str | None) -> Signature:
    """The signature that is read; one made of the names of tensors if the model has none.

    Raises:
        FrontendError: there is none of this key, or it takes one to choose among several.
    """
    known = [s.key for s in model.signatures]
    if key is None and len(known) > 1:
        raise FrontendError(
            f"the model has {len(known)} signatures: {', '.join(repr(k) for k in known[:20])}",
            hint="choose one: signature=…",
        )
    if key is None and known:
        return model.signatures[0]
    for signature in model.signatures:
        if signature.key == key:
            return signature
    if key is not None:
        close = nearest(key, known)
        raise FrontendError(
            f"the model has no signature '{key}'",
            hint=f"did you mean '{close}'?" if close else f"its signatures: {', '.join(known) or 'none'}",
        )
    graph = model.graphs[0]
    inputs = {graph.tensors[i].name or f"input_{k}": i for k, i in enumerate(graph.inputs)}
    outputs = {graph.tensors[i].name or f"output_{k}": i for k, i in enumerate(graph.outputs)}
    if len(inputs) < len(graph.inputs):
        inputs = {f"input_{k}": i for k, i in enumerate(graph.inputs)}
    if len(outputs) < len(graph.outputs):
        outputs = {f"output_{k}": i for k, i in enumerate(graph.outputs)}
    return Signature("", inputs, outputs, 0)


class Importer(GraphImporter):
    """The state of one import."""

    title = "TFLite"
    hint = "convert the model without; a plugin can convert it (hook `converters`)"

    def __init__(
        self, model: Model, dims: Mapping[str, int], state: str | None = None, kernels: str = "litert"
    ) -> None:
        super().__init__(
            re.sub(r"\W+", "_", model.name) or "graph", "tflite", REGISTRY, sum(len(g.operators) for g in model.graphs)
        )
        self.kernels = kernels
        self.model, self.sizes, self.open = model, dims, set[str]()
        self.depth = 0
        self.states = States(self, model, state)
        self._constants: dict[tuple[int, int], tuple[Any, Value]] = {}

    def run(self, signature: Signature) -> Graph:
        graph = self.model.graphs[signature.graph]
        missing = set(graph.inputs) - set(signature.inputs.values())
        if missing or set(signature.inputs.values()) - set(graph.inputs):
            raise FrontendError(
                f"signature '{signature.key}' does not name the inputs of its sub-graph",
                why=f"it names {sorted(signature.inputs.values())[:20]}, the inputs are {sorted(graph.inputs)[:20]}",
            )
        values: dict[int, Any] = {}
        for name, index in signature.inputs.items():
            values[index] = self.builder.input(name, self.input_type(graph.tensors[index], name))
        self.check_sizes()
        self.nodes(graph, values, "")
        if self.unsupported:
            raise self.everything_unsupported()
        for name, index in signature.outputs.items():
            operand = self.operand(graph, index, values)
            if isinstance(operand, Absent):
                raise FrontendError(f"output '{name}' is computed by no operator")
            if isinstance(operand, Complex):
                raise UnsupportedError(
                    f"output '{name}' has complex numbers", hint="end the model with their real and imaginary parts"
                )
            value = shaped(self.builder, self.as_value(operand, name), len(graph.tensors[index].declared))
            self.builder.output(value, name)
        for name, value in self.states.results():
            self.builder.output(value, name)
        return self.built()

    # -- inputs
    def input_type(self, info: TensorInfo, name: str) -> TensorType:
        stem = re.sub(r"\W+", "_", name).strip("_") or "input"
        stem = f"n{stem}" if stem[:1].isdigit() else stem
        assert info.shape is not None
        shape = tuple(d if d >= 0 else self.dimension(f"{stem}_{k}") for k, d in enumerate(info.shape))
        return TensorType(dtype_of(info), shape)

    def dimension(self, name: str) -> Dim:
        self.open.add(name)
        return self.sizes[name] if name in self.sizes else Var(self.builder.unique(name), dt.int64)

    def check_sizes(self) -> None:
        for name in self.sizes:
            if name not in self.open:
                close = nearest(name, self.open)
                raise FrontendError(
                    f"dims gives '{name}', which is no open dimension of the model's inputs",
                    hint=f"did you mean '{close}'?"
                    if close
                    else f"its open dimensions: {', '.join(sorted(self.open)) or 'none'}",
                )

    # -- operators
    def nodes(self, graph: SubGraph, values: dict[int, Any], where: str) -> None:
        """Imports the operators of a sub-graph, in the order of the file; `values` are by index of the tensor."""
        for k, op in enumerate(graph.operators):
            label = graph.tensors[op.outputs[0]].name if op.outputs else ""
            name = where + (label or f"{op.name}_{k}")
            if not op.outputs and op.name not in SILENT:
                raise FrontendError(f"{op.name} has no result", where=f"node '{name}': {op.name}")
            operands = [Absent() if i < 0 else self.operand(graph, i, values) for i in op.inputs]
            for i, operand in zip(op.inputs, operands):
                if i >= 0 and isinstance(operand, Absent) and not graph.tensors[i].variable:
                    raise FrontendError(
                        f"{op.name} takes tensor {i} ('{graph.tensors[i].name}'), which no operator before it computes",
                        where=f"node '{name}': {op.name}",
                    )
            context = Context(self, graph, op, name, operands)
            for index in op.outputs:
                if index in values or graph.tensors[index].data is not None:
                    raise FrontendError(f"tensor {index} ('{graph.tensors[index].name}') is computed twice")
            for index, result in zip(op.outputs, self.node(context)):
                given = graph.tensors[index].name
                if isinstance(result, Value) and given and result.producer in self.builder.graph.nodes[-1:]:
                    self.builder.rename(result, where + given)
                values[index] = Absent() if result is None else result

    def operand(self, graph: SubGraph, index: int, values: dict[int, Any]) -> Any:
        """What stands for a tensor: a value, a content, a constant; `Absent` where nothing computes it."""
        if index in values:
            return values[index]
        info = graph.tensors[index]
        if info.data is None and (info.variable or 0 not in info.declared):
            return Absent()
        key = (id(self.level), id(info))
        if key not in self._constants:
            data = to_array(info) if info.data is not None else _nothing(info)
            self._constants[key] = self.level, self.builder.constant(data, info.name or "c")
        return self._constants[key][1]

    def convert(self, c: GraphContext) -> Sequence[Any]:
        # What is refused is said of every operator, also behind another one.
        reason = REASONS.get(c.op_type)
        if reason is not None and self.others.find(c.domain, c.op_type, c.version, True) is None:
            raise c.unsupported(reason)
        return super().convert(c)

    def own(self, c: GraphContext) -> Any:
        found = super().own(c)
        if found is None and c.domain == QUANTIZED and c.op_type in MOVES:
            assert isinstance(c, Context)
            if not c.same_scales():
                raise c.unsupported("quantised tensors of different scales")
            return self.registry.find("", c.op_type, c.version)
        return found

    def unknown(self, c: GraphContext) -> str:
        assert isinstance(c, Context)
        if c.domain == COMPLEX:
            return f"operator {c.op_type} of complex numbers"
        if c.domain == CUSTOM:
            return f"custom operator {c.op_type}"
        if c.domain == QUANTIZED:
            kinds = [i.type.lower() for k in range(len(c.op.inputs)) if (i := c.input(k)) is not None]
            return f"operator {c.op_type} of quantised {', '.join(dict.fromkeys(kinds))}"
        return f"operator {c.op_type}"

    # -- sub-graphs
    def put(self, number: int, c: Context, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a sub-graph whose operators are put here."""
        graph = self.graph(number, c, len(operands))
        values = dict(zip(graph.inputs, operands))
        self.depth += 1
        try:
            self.nodes(graph, values, f"{c.name}/")
        finally:
            self.depth -= 1
        found = [self.operand(graph, index, values) for index in graph.outputs]
        if any(map(poisoned, found)):
            raise Poisoned
        if any(isinstance(o, Absent) for o in found):
            raise c.error(f"an output of sub-graph '{graph.name}' is computed by no operator")
        return found

    def body(self, number: int, c: Context, given: Sequence[Any], counted: bool = False) -> Body:
        """A sub-graph as a graph of its own; its inputs are of the given types."""
        graph = self.graph(number, c, len(given))
        names = [graph.tensors[i].name or f"input_{k}" for k, i in enumerate(graph.inputs)]

        def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            found = self.put(number, c, operands)
            return [(graph.tensors[i].name or "output", self.as_value(o)) for i, o in zip(graph.outputs, found)]

        return build_body(self, graph.name, list(zip(names, given)), make, counted)

    def graph(self, number: int, c: Context, operands: int) -> SubGraph:
        """A sub-graph that an operator names.

        Raises:
            FrontendError: there is none, it takes another number of operands, or sub-graphs name each other.
        """
        if not 0 <= number < len(self.model.graphs):
            raise c.error(f"names sub-graph {number} of {len(self.model.graphs)}")
        graph = self.model.graphs[number]
        if len(graph.inputs) != operands:
            raise c.error(f"sub-graph '{graph.name}' takes {len(graph.inputs)} input(s), gets {operands}")
        if self.depth >= MOST_DEPTH:
            raise UnsupportedError(f"sub-graphs are more than {MOST_DEPTH} inside of each other", where=c.place)
        return graph


def _nothing(info: TensorInfo) -> Any:
    import numpy as np

    return np.zeros(info.declared, dtype_of(info).numpy)


__all__ = ["Importer", "chosen", "import_model"]
