"""Compilation for aarch64 up to the linked image, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tests.qemu import runner

from weft.assemble import Assembly
from weft.compilation import Compilation
from weft.expr.evaluate import evaluate
from weft.expr.nodes import free_vars
from weft.graph.nodes import Graph
from weft.pipeline import ResolvedTarget, resolve_target
from weft.runtime.executable import NativeCode
from weft.weights import Weights

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"

Array = np.ndarray[Any, Any]
_ROOM = 16 << 20


@dataclass(frozen=True)
class Linked:
    """What would become an executable."""

    sections: Mapping[str, NativeCode]
    assembly: Assembly
    constants: list[Array]

    def run(self, inputs: list[Array], outputs: list[Array]) -> runner.Answer:
        """On inputs, under qemu; `outputs` tell dtypes and shapes."""
        code = self.sections["main"]
        size = self.assembly.spec.arena_bytes
        # Sizes that only the run knows get room enough for any sample.
        arena = _ROOM if free_vars(size) else int(evaluate(size, {}))
        return runner.run(code.image, code.entries["run"], self.constants, inputs, outputs, max(64, arena))


class Cross(Compilation):
    """A Compilation that ends before the image would be mapped into this process."""

    def link(self, graph: Graph, assembly: Assembly, weights: Weights) -> Any:
        objects = {name: self.kernels[name].code for name in assembly.spec.kernels()}
        return Linked(self.target.kind.link(self.target.target, assembly.spec, objects), assembly, [weights[v] for v in assembly.constants])  # type: ignore[arg-type]


@cache
def resolved(target: str = TARGET) -> ResolvedTarget:
    return resolve_target(target)


def compile_cross(graph: Graph, target: str = TARGET) -> tuple[Linked, Cross]:
    compilation = Cross(resolved(target), cache=False)
    linked: Any = compilation.run(graph)
    return linked, compilation
