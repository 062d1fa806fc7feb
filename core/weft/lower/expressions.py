"""A group's operators as tensor expressions, in logical indices.

Every value of the group's body becomes a Tensor: inputs and constants are placeholders, constants of one element are
numbers, and other values are computed by the chosen algorithm of their operator. A claimed composite is decomposed
here; its parts are annotated with its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import LoweringError
from weft.expr.nodes import Const, Expr, const
from weft.graph.nodes import Graph, GraphBuilder, Node, Value
from weft.graph.operator import Algorithm, Elementwise
from weft.tensor import language as T
from weft.tensor.language import Dim, Tensor


@dataclass
class Stage:
    """The origin of a tensor: annotations of its block, and its graph value, if it is one."""

    op: str
    node: int
    algorithm: str = "direct"
    composite: str | None = None
    value: Value | None = None
    role: str = ""
    part_of: str = ""


@dataclass
class Expressions:
    """The tensor expressions of a group: `tensors` by id(value), `stages` by id(source)."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    stages: dict[int, Stage] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)  # id(tensor) → value
    scalars: dict[int, Const] = field(default_factory=dict)  # id(tensor) → its only element
    keep: list[Tensor] = field(default_factory=list)  # ids above stay valid while these live


def broadcast_read(tensor: Tensor, indices: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """Element of `tensor` that numpy broadcasting pairs with output `indices` of `shape`."""
    lead = len(indices) - tensor.rank
    picked = [const(0) if d == 1 and shape[lead + k] != 1 else indices[lead + k] for k, d in enumerate(tensor.shape)]
    return tensor[tuple(picked)] if picked else tensor[()]


def elementwise(op: Elementwise, tensors: Sequence[Tensor | None], shape: Sequence[Dim], name: str) -> Tensor:
    """The output tensor of an elementwise operator."""

    def element(*index: Expr) -> Expr:
        return op.formula_of([None if t is None else broadcast_read(t, index, shape) for t in tensors])

    result: Tensor = T.compute(shape, element, name=name)
    return result


def choose_algorithm(node: Node, overrides: Mapping[str, str]) -> Algorithm:
    """The algorithm of a node: the override for its operator class, else the first that applies.

    Raises:
        LoweringError: none applies; says why each does not.
    """
    algorithms = node.op.algorithms()
    wanted = overrides.get(node.op.operator_name)
    types = [None if v is None else v.type for v in node.inputs]
    reasons = []
    for name, algorithm in sorted(algorithms.items(), key=lambda item: item[0] != wanted):
        reason = node.op.applies(name, *types)
        if reason is None:
            return algorithm
        reasons.append(f"{name}: {reason}")
    raise LoweringError(
        f"no algorithm of {node.op.operator_name} applies", where=repr(node), why="; ".join(reasons) or "it has none"
    )


def group_expressions(body: Graph, algorithms: Mapping[str, str] | None = None) -> Expressions:
    """See the module.

    Raises:
        LoweringError: an operator is a loop program (those stand alone), or none of its algorithms applies.
    """
    overrides = algorithms or {}
    result = Expressions([], [])
    known: dict[int, Tensor] = {}

    def adopt(value: Value, tensor: Tensor) -> None:
        known[id(value)] = tensor
        result.keep.append(tensor)
        result.values.setdefault(id(tensor), value)

    def tensor_of(value: Value) -> Tensor:
        if id(value) not in known:
            if value.constant is None or value.constant.size != 1:
                raise LoweringError(
                    f"value '{value.name}' is neither an input nor computed in the group",
                    hint="constants of a group are its inputs",
                )
            tensor = T.placeholder(value.shape, value.dtype, value.name)
            adopt(value, tensor)
            result.scalars[id(tensor)] = Const(value.constant.reshape(-1)[0].item(), value.dtype)
        return known[id(value)]

    def lower_nodes(nodes: Sequence[Node], index: int | None, composite: str | None, part_of: str = "") -> None:
        for k, node in enumerate(nodes):
            number = k if index is None else index
            op_name = node.op.operator_name
            stem = op_name.lower()
            if isinstance(node.op, Elementwise):
                tensors = [None if v is None else tensor_of(v) for v in node.inputs]
                out = elementwise(node.op, tensors, node.output.shape, stem)
                result.stages[id(out.source)] = Stage(
                    op_name, number, "direct", composite, node.output, node.op.role, part_of
                )
                adopt(node.output, out)
                continue
            chosen = choose_algorithm(node, overrides)
            if chosen.form == "program":
                why = (
                    f"it is part of {composite}, which stands in one group"
                    if composite is not None
                    else "it shares a group with other operators"
                )
                hint = "run the pass 'decompose' before 'fuse', and claim no composite with such a part"
                raise LoweringError(
                    f"{op_name} is a loop program and needs a kernel of its own", where=repr(node), why=why, hint=hint
                )
            if chosen.form == "decompose":
                builder = GraphBuilder("part")
                inner = [None if v is None else _shadow(v) for v in node.inputs]
                for shadow, outer in zip(inner, node.inputs):
                    if shadow is not None and outer is not None and shadow.constant is None:
                        adopt(shadow, tensor_of(outer))
                parts = chosen.function(node.op, builder, *inner)
                lower_nodes(builder.graph.nodes, number, composite or op_name, part_of or node.op.role)
                for value, part in zip(node.outputs, parts if isinstance(parts, tuple) else (parts,)):
                    tensor = tensor_of(part)
                    known[id(value)] = tensor
                    result.values[id(tensor)] = value
                continue
            tensors_or_none = [None if v is None else tensor_of(v) for v in node.inputs]
            outs = chosen.function(node.op, *tensors_or_none)
            for value, tensor in zip(node.outputs, outs if isinstance(outs, tuple) else (outs,)):
                result.stages[id(tensor.source)] = Stage(
                    op_name, number, chosen.name, composite, value, node.op.role, part_of
                )
                for inner_stage in _inner_sources(tensor, known.values()):
                    result.stages.setdefault(
                        id(inner_stage.source),
                        Stage(op_name, number, chosen.name, composite, None, node.op.role, part_of),
                    )
                    result.keep.append(inner_stage)
                adopt(value, tensor)

    for value in body.inputs:
        tensor = T.placeholder(value.shape, value.dtype, value.name)
        adopt(value, tensor)
        result.inputs.append(tensor)
    lower_nodes(body.nodes, None, None)
    result.outputs = [tensor_of(v) for v in body.outputs]
    return result


def _shadow(value: Value) -> Value:
    return value if value.constant is not None else Value(value.name, value.type)


def _inner_sources(tensor: Tensor, stop: Iterable[Tensor]) -> list[Tensor]:
    """The tensors between `tensor` and those already known."""
    known = {id(t) for t in stop}
    found: dict[int, Tensor] = {}
    stack = list(_source_inputs(tensor))
    while stack:
        t = stack.pop()
        if id(t) in known or id(t) in found or isinstance(t.source, T.Placeholder):
            continue
        found[id(t)] = t
        stack.extend(_source_inputs(t))
    return list(found.values())


def _source_inputs(tensor: Tensor) -> tuple[Tensor, ...]:
    if isinstance(tensor.source, T.Scan):
        return (*tensor.source.init, *tensor.source.updates)
    return tensor.inputs
