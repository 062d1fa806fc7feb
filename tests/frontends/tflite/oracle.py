"""What LiteRT's reference kernels say of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft_tflite.engines import call

# Operators that the reference resolver lacks, or of which its kernel sums a window that is one element too short.
ONLY_BUILT_IN = (
    "CEIL", "ROUND", "ELU", "SEGMENT_SUM", "LOCAL_RESPONSE_NORMALIZATION",
)  # fmt: skip


@dataclass
class Run:
    """A function of inputs."""

    interpreter: Any

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        return call(self.interpreter, inputs)


def litert(model: bytes, builtin: bool = False) -> Run:
    """A function of inputs, by LiteRT's reference kernels, or those that it has built in."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if builtin else OpResolverType.BUILTIN_REF
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind)

    return Run(interpreter)


def answered(make: Callable[[int], bytes], builtin: bool = False) -> tuple[bytes, Any]:
    """A model of the first operator version that LiteRT has a kernel for, which says nothing else than its types, and
    the function of inputs."""
    for version in range(1, 8):
        model = make(version)
        try:
            run = litert(model, builtin)
            run.interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            failure = error
            continue
        return model, run
    raise failure
