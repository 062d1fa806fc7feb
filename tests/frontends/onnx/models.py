"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph


def info(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, data: Any, dtype: Any = None) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(data, dtype), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = 20,
    **options: Any,
) -> onnx.ModelProto:
    outs = [info(o, None, TensorProto.UNDEFINED) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(list(nodes), "test", list(inputs), outs, list(constants))
    imports = [helper.make_opsetid("", opset), *options.pop("domains", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **options)


def load(*args: Any, **kwargs: Any) -> Graph:
    return weft.load(model(*args, **kwargs))


def run(graph: Graph, *arrays: Any) -> Any:
    return evaluate(graph, list(arrays))[0]


def operators(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]
