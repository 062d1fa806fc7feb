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
    maker = _Maker(algorithms or {})
    for value in body.inputs:
        tensor = T.placeholder(value.shape, value.dtype, value.name)
        maker.adopt(value, tensor)
        maker.result.inputs.append(tensor)
    maker.nodes(body.nodes)
    maker.result.outputs = [maker.tensor_of(v) for v in body.outputs]
    return maker.result


@dataclass(frozen=True)
class _Whole:
    """The operator of the group whose parts are lowered: its number, its class, its role."""

    number: int
    composite: str
    part_of: str


class _Maker:
    """Makes the expressions of a group, node by node. `overrides`: operator class → algorithm."""

    def __init__(self, overrides: Mapping[str, str]) -> None:
        self.overrides = overrides
        self.result = Expressions([], [])
        self.known: dict[int, Tensor] = {}

    def adopt(self, value: Value, tensor: Tensor) -> None:
        self.known[id(value)] = tensor
        self.result.keep.append(tensor)
        self.result.values.setdefault(id(tensor), value)

    def tensor_of(self, value: Value) -> Tensor:
        if id(value) not in self.known:
            if value.constant is None or value.constant.size != 1:
                raise LoweringError(
                    f"value '{value.name}' is neither an input nor computed in the group",
                    hint="constants of a group are its inputs",
                )
            tensor = T.placeholder(value.shape, value.dtype, value.name)
            self.adopt(value, tensor)
            self.result.scalars[id(tensor)] = Const(value.constant.reshape(-1)[0].item(), value.dtype)
        return self.known[id(value)]

    def nodes(self, nodes: Sequence[Node], whole: _Whole | None = None) -> None:
        for k, node in enumerate(nodes):
            number = k if whole is None else whole.number
            if isinstance(node.op, Elementwise):
                tensors = [None if v is None else self.tensor_of(v) for v in node.inputs]
                out = elementwise(node.op, tensors, node.output.shape, node.op.operator_name.lower())
                self.result.stages[id(out.source)] = self.stage(node, number, "direct", whole, node.output)
                self.adopt(node.output, out)
                continue
            chosen = choose_algorithm(node, self.overrides)
            if chosen.form == "program":
                raise self._program(node, whole)
            if chosen.form == "decompose":
                self.parts(node, chosen, number, whole)
            else:
                self.direct(node, chosen, number, whole)

    def parts(self, node: Node, chosen: Algorithm, number: int, whole: _Whole | None) -> None:
        """A node by simpler operators."""
        builder = GraphBuilder("part")
        inner = [None if v is None else _shadow(v) for v in node.inputs]
        for shadow, outer in zip(inner, node.inputs):
            if shadow is not None and outer is not None and shadow.constant is None:
                self.adopt(shadow, self.tensor_of(outer))
        parts = chosen.function(node.op, builder, *inner)
        composite = whole.composite if whole is not None else node.op.operator_name
        part_of = (whole.part_of if whole is not None else "") or node.op.role
        self.nodes(builder.graph.nodes, _Whole(number, composite, part_of))
        for value, part in zip(node.outputs, parts if isinstance(parts, tuple) else (parts,)):
            tensor = self.tensor_of(part)
            self.known[id(value)] = tensor
            self.result.values[id(tensor)] = value

    def direct(self, node: Node, chosen: Algorithm, number: int, whole: _Whole | None) -> None:
        """A node by tensors."""
        outs = chosen.function(node.op, *(None if v is None else self.tensor_of(v) for v in node.inputs))
        for value, tensor in zip(node.outputs, outs if isinstance(outs, tuple) else (outs,)):
            self.result.stages[id(tensor.source)] = self.stage(node, number, chosen.name, whole, value)
            for inner in _inner_sources(tensor, self.known.values()):
                self.result.stages.setdefault(id(inner.source), self.stage(node, number, chosen.name, whole, None))
                self.result.keep.append(inner)
            self.adopt(value, tensor)

    @staticmethod
    def stage(node: Node, number: int, algorithm: str, whole: _Whole | None, value: Value | None) -> Stage:
        composite, part_of = (None, "") if whole is None else (whole.composite, whole.part_of)
        return Stage(node.op.operator_name, number, algorithm, composite, value, node.op.role, part_of)

    @staticmethod
    def _program(node: Node, whole: _Whole | None) -> LoweringError:
        why = (
            f"it is part of {whole.composite}, which stands in one group"
            if whole is not None
            else "it shares a group with other operators"
        )
        return LoweringError(
            f"{node.op.operator_name} is a loop program and needs a kernel of its own",
            where=repr(node),
            why=why,
            hint="run the pass 'decompose' before 'fuse', and claim no composite with such a part",
        )


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
