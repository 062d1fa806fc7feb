"""What weft-queues contributes: for each target whose intrinsics have queues, the loop pass that awaits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.loop.pipeline import LoopPass
    from weft.scheduling.intrinsic import Intrinsic


@hookimpl
def loop_passes(intrinsics: Sequence[Intrinsic]) -> Sequence[LoopPass]:
    from weft.loop.queues import AWAIT_QUEUES
    from weft.scheduling.intrinsic import queued

    queues = queued(intrinsics)
    if not queues:
        return []
    from weft.loop.pipeline import LoopPass
    from weft_queues.await_queues import await_queues

    holds = "instructions of queues have ended before an access that depends on them"
    return [LoopPass(AWAIT_QUEUES, lambda program: await_queues(program, queues), "partition_loops", holds)]
