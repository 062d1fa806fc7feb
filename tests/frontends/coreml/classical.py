"""Classical models, written with the frontend's own description of the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tests.frontends.coreml.models import fill

import weft
from weft.graph.evaluate import evaluate
from weft_coreml.schema import schema

ARRAY = {"float32": 65568, "float64": 65600, "int32": 131104}
SCALARS = {"double": "doubleType", "int64": "int64Type", "string": "stringType", "dictionary": "dictionaryType"}


def describe(feature: Any, kind: Any) -> None:
    """`kind`: double, int64, string or dictionary, or (element type, shape)."""
    if isinstance(kind, str):
        getattr(feature.type, SCALARS[kind]).SetInParent()
        return
    array = feature.type.multiArrayType
    array.dataType = ARRAY[kind[0]]
    array.shape.extend(kind[1])


def model(kind: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """A model of a kind. Of a classifier or regressor the first output is what it predicts, a dictionary the
    probabilities."""
    made = schema()["Model"](specificationVersion=4)
    for name, given in inputs.items():
        describe(made.description.input.add(name=name), given)
    for k, (name, given) in enumerate(outputs.items()):
        describe(made.description.output.add(name=name), given)
        if given == "dictionary":
            made.description.predictedProbabilitiesName = name
        elif k == 0:
            made.description.predictedFeatureName = name
    getattr(made, kind).SetInParent()
    fill(getattr(made, kind), parameters)
    return made


def pipeline(kind: str, models: Sequence[Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Models one after another."""
    made = model(kind, {}, inputs, outputs)
    inner = getattr(made, kind)
    (inner if kind == "pipeline" else inner.pipeline).models.extend(models)
    return made


def found(made: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What Weft computes, by name."""
    graph = weft.load(made.SerializeToString(), frontend="coreml")
    return dict(zip(graph.output_names, evaluate(graph, given)))


def tree_nodes(tree: Any, number: int, value: Any) -> list[dict[str, Any]]:
    """The nodes of a scikit-learn tree; `value`: of a leaf its evaluations."""
    nodes: list[dict[str, Any]] = []
    for k in range(tree.node_count):
        node: dict[str, Any] = {"treeId": number, "nodeId": k}
        if tree.children_left[k] < 0:
            pairs = [{"evaluationIndex": i, "evaluationValue": float(v)} for i, v in enumerate(value(tree.value[k]))]
            node |= {"nodeBehavior": 6, "evaluationInfo": pairs}
        else:
            node |= {"nodeBehavior": 0, "branchFeatureIndex": int(tree.feature[k]),
                     "branchFeatureValue": float(tree.threshold[k]), "trueChildNodeId": int(tree.children_left[k]),
                     "falseChildNodeId": int(tree.children_right[k])}  # fmt: skip
        nodes.append(node)
    return nodes


def rows(seed: int, count: int = 60, features: int = 4) -> Any:
    return np.random.default_rng(seed).standard_normal((count, features)).astype(np.float32).astype(np.float64)
