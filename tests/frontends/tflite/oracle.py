"""What LiteRT's reference kernels say of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_tflite.engines import call

# Operators that the reference resolver lacks, or of which its kernel sums a window that is one element too short.
ONLY_BUILT_IN = (
    "CEIL", "ROUND", "ELU", "SEGMENT_SUM", "LOCAL_RESPONSE_NORMALIZATION",
)  # fmt: skip


def litert(model: bytes, builtin: bool = False) -> Any:
    """A function of inputs, by LiteRT's reference kernels, or those that it has built in."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if builtin else OpResolverType.BUILTIN_REF
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind)

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        return call(interpreter, inputs)

    return run
