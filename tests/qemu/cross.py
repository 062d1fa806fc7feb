"""Compilation for other architectures up to the linked image, on any machine."""

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
from weft.resolve import ResolvedTarget, resolve_target
from weft_runtime.executable import NativeCode

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"

Array = np.ndarray[Any, Any]
_ROOM = 16 << 20


@dataclass(frozen=True)
class Linked:
    """What would become an executable."""

    sections: Mapping[str, NativeCode]
    assembly: Assembly
    constants: list[Array]

    def run(self, inputs: list[Array], outputs: list[Array], cpu: str = "cortex-a72") -> runner.Answer:
        """On inputs, under qemu; `outputs` tell dtypes and shapes, `cpu` is qemu's name for what it has."""
        code = self.sections["main"]
        size = self.assembly.spec.arena_bytes
        # Sizes known only at run time get room enough for any sample.
        arena = max(64, _ROOM if free_vars(size) else int(evaluate(size, {})))
        entry = code.entries["run"]
        return runner.run(code.architecture, code.image, entry, self.constants, inputs, outputs, arena, cpu)


@cache
def resolved(target: str = TARGET) -> ResolvedTarget:
    return resolve_target(target)


def compile_cross(graph: Graph, target: str = TARGET) -> tuple[Linked, Compilation]:
    """A compilation that ends before the image would be mapped into this process."""
    compilation = Compilation(resolved(target), cache=False)
    segment = compilation.segment(graph)
    return Linked(segment.sections, segment.assembly, list(segment.constants.values())), compilation
