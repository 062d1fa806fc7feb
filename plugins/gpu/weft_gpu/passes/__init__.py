"""The loop passes of targets that run grids, with their positions among those of the core."""

from __future__ import annotations

from collections.abc import Container

from weft.loop.pipeline import LoopPass
from weft_gpu.passes.copy_async import copy_async
from weft_gpu.passes.join_threads import join_threads
from weft_gpu.passes.private_buffers import private_buffers
from weft_gpu.passes.remove_barriers import remove_barriers

ASYNCHRONOUS = "cp.async"
"""The feature of machines whose threads copy from global to shared memory without waiting (`weft_gpu.machines`)."""


def grid_passes(features: Container[str] = ()) -> list[LoopPass]:
    """What a target that runs grids gives for the hook `loop_passes`.

    Args:
        features: of the machine. With "cp.async" copies to shared memory are asynchronous.
    """
    passes = [
        LoopPass(
            "private_buffers",
            private_buffers,
            "partition_loops",
            "what threads have parts of has the thread first in its indices",
        ),
        LoopPass(
            "join_threads",
            join_threads,
            "private_buffers",
            "one nest of thread loops around each group, a barrier behind every phase",
        ),
        LoopPass(
            "remove_barriers", remove_barriers, "join_threads", "a barrier stands only where threads meet at an element"
        ),
    ]
    if ASYNCHRONOUS in features:
        passes.append(
            LoopPass(
                "copy_async",
                copy_async,
                "remove_barriers",
                "copies to shared memory are begun, and awaited at barriers",
            )
        )
    return passes
