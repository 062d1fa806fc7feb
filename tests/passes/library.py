"""The graph passes of the core together with those of the operator library, for tests that run them without a
target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.nodes import Graph
from weft.passes import pipeline
from weft.passes.capabilities import Capabilities
from weft.passes.pipeline import CORE, GraphPass
from weft_ops.passes.order import PASSES

SHARED = frozenset(p.name for p in (*CORE, *PASSES) if p.shared)


def run_passes(
    graph: Graph,
    capabilities: Capabilities | None = None,
    extra: Sequence[GraphPass] = (),
    *arguments: Any,
    **named: Any,
) -> Graph:
    """`weft.passes.pipeline.run_passes` with the library's passes."""
    return pipeline.run_passes(graph, capabilities, [*PASSES, *extra], *arguments, **named)


def stage_names() -> list[str]:
    """The names of both in order."""
    return pipeline.pass_names(PASSES)
