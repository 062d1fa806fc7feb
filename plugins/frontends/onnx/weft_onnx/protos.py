"""Questions about the messages of a model: names, types, sub-graphs, nodes that cannot be ordered."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx
from onnx import FunctionProto, GraphProto, NodeProto, TypeProto

from weft.dtypes import DType
from weft.errors import FrontendError, from_signal
from weft.graph.nodes import OptionalType, SequenceType, TensorType, Type
from weft_frontend.operands import Scope

TRAINING = "ai.onnx.preview.training"


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


def identifier(name: str) -> str:
    text = re.sub(r"\W+", "_", name).strip("_")
    return f"n{text}" if text[:1].isdigit() else text


def enumerator(dtype: DType) -> int:
    from weft_onnx.tensors import DTYPES

    return next(k for k, v in DTYPES.items() if v == dtype)


def type_proto(type: Type) -> TypeProto:
    if isinstance(type, SequenceType):
        return onnx.helper.make_sequence_type_proto(type_proto(type.element))
    if isinstance(type, OptionalType):
        return onnx.helper.make_optional_type_proto(type_proto(type.element))
    shape = (
        [d if isinstance(d, int) else None for d in type.shape]
        if isinstance(type, TensorType)
        else None
        if type.rank is None
        else [None] * type.rank
    )
    return onnx.helper.make_tensor_type_proto(enumerator(type.dtype), shape)


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The sub-graphs of a node."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]


def count_nodes(graph: GraphProto | FunctionProto) -> int:
    """The nodes of a graph and of the graphs within it."""
    return sum(1 + sum(map(count_nodes, graphs_of(n))) for n in graph.node)


def differentiated(node: NodeProto, *attributes: str) -> set[str]:
    """What a Gradient names in its attributes; nothing of another node."""
    if node.op_type != "Gradient" or node.domain != TRAINING:
        return set()
    given = [a for a in node.attribute if a.name in attributes]
    return {name.decode() for a in given for name in (*a.strings, *([a.s] if a.s else []))}


def independent(graph: GraphProto) -> set[str]:
    """Names of tensors by which some Gradient differentiates, in this graph and those within it."""
    return {
        name
        for node in graph.node
        for found in (differentiated(node, "xs"), *map(independent, graphs_of(node)))
        for name in found
    }


def captured(node: NodeProto) -> set[str]:
    """Names that a node uses beside its operands: those that its sub-graphs do not define, and a Gradient's own."""
    found = differentiated(node, "xs", "zs", "y")
    for graph in graphs_of(node):
        own = {i.name for i in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
        for inner in graph.node:
            found |= {i for i in (*inner.input, *captured(inner)) if i and i not in own}
        found |= {o.name for o in graph.output if o.name not in own}
    return found


def stuck(left: Sequence[tuple[int, NodeProto]], scope: Scope) -> FrontendError:
    made = {o: (k, n) for k, n in left for o in n.output}
    for k, node in left:
        for name in (*node.input, *captured(node)):
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
        index, node = next(made[i] for i in (*node.input, *captured(node)) if i in made)
    start = next(k for k, (_, n) in enumerate(path) if n is node)
    cycle = [f"'{n.name or f'{n.op_type}_{k}'}' ({n.op_type})" for k, n in path[start:]]
    return FrontendError(f"the graph has a cycle of {len(cycle)} node(s)", where=" ← ".join([*cycle, cycle[0]]))
