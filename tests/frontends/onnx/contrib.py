"""Models of one operator of ONNX Runtime's own domains, compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper
from tests.frontends.onnx.models import info, model
from tests.needs import require

import weft
from weft_onnx.tensors import DTYPES

MICROSOFT = "com.microsoft"
CODES = {d.name: code for code, d in DTYPES.items()}


def contrib_model(
    op: str, inputs: Sequence[Any], outputs: int = 1, constants: Sequence[int] = (), domain: str = MICROSOFT,
    dims: Mapping[int, Sequence[int | str]] | None = None, asked: Sequence[int] | None = None, **attributes: Any,
) -> Any:  # fmt: skip
    """One node; absent inputs are None; those of `constants` are initialisers, of the others `dims` may leave sizes
    open."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    asked = list(range(outputs)) if asked is None else list(asked)
    results = [f"y{k}" if k in asked else "" for k in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, name="n", **attributes)
    infos, stored = [], []
    for k, (name, x) in enumerate(zip(names, inputs)):
        if x is None:
            continue
        if k in constants:
            from onnx import numpy_helper

            stored.append(numpy_helper.from_array(x, name))
        else:
            shape = (dims or {}).get(k, x.shape)
            infos.append(info(name, list(shape), CODES[str(x.dtype)]))
    domains = [helper.make_opsetid(MICROSOFT, 1)]
    outs = [ValueInfoProto(name=r) for r in results if r]  # whose types ONNX Runtime infers
    return model([node], infos, outs, stored, opset=17, domains=domains)


def feed(inputs: Sequence[Any], constants: Sequence[int] = ()) -> dict[str, Any]:
    return {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}


def onnxruntime_results(proto: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime computes without any optimisation. Types of outputs are what it infers."""
    require("onnxruntime")
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def same_as_onnxruntime(
    op: str, inputs: Sequence[Any], *, tolerance: float = 2e-5, further: Sequence[Sequence[Any]] = (), **options: Any
) -> list[Any]:
    """Compares all outputs, for these inputs and `further` ones of other sizes."""
    constants = options.get("constants", ())
    proto = contrib_model(op, inputs, **options)
    executable = weft.compile(proto)
    results: list[Any] = []
    for arrays in (inputs, *further):
        fed = feed(arrays, constants)
        wanted = onnxruntime_results(proto, fed)
        found = executable.run(fed)
        results = [found[o.name] for o in proto.graph.output]
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            if want.dtype.kind in "iu":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return results
