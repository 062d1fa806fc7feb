"""Queues of asynchronous instructions, and their interpretation. The plugin `weft-queues` places begins and waits.

@dma_load(t[0, 0], x[k, 0])           a scheduled Program: the copy is done
@begin_dma_load(t[0, 0], x[k, 0])     after `await_queues`: it is begun; its result is undefined, and its operands
                                      must not change, until
@await_dma(2)                         so much of the queue "dma" has ended that 2 at most have not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

BEGIN, AWAIT = "begin_", "await_"
AWAIT_QUEUES = "await_queues"
"""The loop pass that begins and awaits instructions of queues; the plugin `weft-queues` has it."""


@dataclass(frozen=True)
class Queue:
    """Asynchronous instructions, executed in order: each has ended before the next one of the queue ends. Every
    unit of a level and every task of a parallel loop has a queue of its own.

    Args:
        name: an identifier; the instruction `await_NAME` waits.
        by: the argument of a wait. "all": nothing, everything begun has ended after it, a fence. "count": how many may
            not have ended yet, the youngest. "token": the place where the begin, as its last argument, has stored a
            number of its own, its token: that instruction, and so those before it, have ended. A place where 0 stands
            and one whose instruction has ended already are not waited for.
    """

    name: str
    by: Literal["all", "count", "token"] = "count"

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.by not in ("all", "count", "token"):
            raise ValueError(
                f"a queue has a name that is an identifier, and is awaited by all, count or token, got {self.name!r}"
                f" and {self.by!r}"
            )

    @property
    def wait(self) -> str:
        """The instruction that waits."""
        return AWAIT + self.name


def begin(instruction: str) -> str:
    """The name of what begins an instruction of a queue."""
    return BEGIN + instruction


@dataclass(frozen=True)
class Begin:
    """The meaning of a begin, for `interpret`: `run` takes what the instruction takes and gives where its result goes,
    a function that computes it, and what an element reads as meanwhile."""

    queue: Queue
    run: Callable[..., tuple[Any, Callable[[], Any], Any]]
    addresses: bool = True


@dataclass(frozen=True)
class Await:
    """The meaning of a wait, for `interpret`."""

    queue: Queue
    addresses: bool = True


def clashes(queues: Sequence[Queue]) -> str | None:
    """What is wrong with several declarations of queues, as a sentence; None if nothing."""
    known: dict[str, Queue] = {}
    for q in queues:
        if known.setdefault(q.name, q) != q:
            return f"the queue '{q.name}' is awaited by {known[q.name].by} and by {q.by}"
    return None


Queues = Mapping[str, Queue]
"""Instruction → its queue."""
