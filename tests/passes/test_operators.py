"""Every operator's samples as graphs of one node: they print, parse back, and keep their meaning through all passes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import reparsed
from tests.passes.library import run_passes

from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, TensorType
from weft.graph.operator import Operator
from weft.passes.capabilities import Capabilities
from weft.passes.plan_memory import plan_memory
from weft_ops import ALL_OPERATORS


@pytest.mark.parametrize("operator", ALL_OPERATORS, ids=lambda op: op.__name__)
def test_samples(operator: type[Operator]) -> None:
    for sample in list(operator.samples())[:3]:
        if any(x is not None and not isinstance(x, np.ndarray | np.generic) for x in sample.inputs):
            continue
        for constant in (False, True):
            b = GraphBuilder("one")
            arrays, inputs = [], []
            for k, x in enumerate(sample.inputs):
                if x is None or (constant and k):
                    inputs.append(None if x is None else b.constant(x))
                else:
                    inputs.append(b.input(f"x{k}", TensorType(dt.dtype(x.dtype), x.shape)))
                    arrays.append(x)
            outputs = b.add_all(sample.op, *inputs)
            for o in outputs:
                b.output(o)
            graph = b.build()
            expected = evaluate(reparsed(graph), arrays)
            for claims in (Capabilities(channel_block=2, panel=2), Capabilities(claims=frozenset())):
                final = reparsed(run_passes(graph, claims))
                plan_memory(final)
                for value, got, want in zip(graph.outputs, evaluate(final, arrays), expected):
                    if not isinstance(value.type, TensorType):
                        continue
                    assert got.dtype == want.dtype and got.shape == want.shape
                    if want.dtype == object or value.type.dtype.kind in ("bool", "int", "uint", "string"):
                        np.testing.assert_array_equal(got, want)
                    else:
                        a, e = (
                            np.asarray(v).astype(np.complex128 if value.type.dtype.kind == "complex" else np.float64)
                            for v in (got, want)
                        )
                        ulp = 2.0**-7 if value.type.dtype.bits <= 16 else 1e-4
                        finite = np.abs(e[np.isfinite(e)])
                        np.testing.assert_allclose(a, e, rtol=ulp, atol=ulp * (1 + float(finite.max(initial=0))))
