"""Control flow whose course is known at import."""

from __future__ import annotations

from typing import Any

from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("If")
def if_(c: Context) -> Any:
    condition = c.constant(0)
    if condition is None:
        raise c.unsupported("a condition known only at run time")
    branch = c.graph("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
    assert branch is not None
    return c.importer.subgraph(branch, c)
