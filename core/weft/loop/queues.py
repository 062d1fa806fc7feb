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


class Pending:
    """Instructions that have been begun and not awaited; their results read as undefined until then."""

    def __init__(self) -> None:
        self.entries: dict[tuple[tuple[int, ...], str], list[tuple[int, Any, Any]]] = {}
        self.begun = 0

    def later(self, executor: tuple[int, ...], queue: str, place: Any, values: Callable[[], Any], nothing: Any) -> int:
        """Something begins that ends by writing `values()` to the view `place`, which reads as `nothing` until then;
        its number, from 1 on.

        Operands are read at once, or as late as can be, in turns: who writes them meanwhile is seen.
        """
        self.begun += 1
        kept = values() if self.begun % 2 else values
        self.entries.setdefault((executor, queue), []).append((self.begun, place, kept))
        place[...] = nothing
        return self.begun

    def wait(self, executor: tuple[int, ...], queue: str, left: int = 0, token: int | None = None) -> None:
        """Until no more than `left` have not ended, or until that of `token` has."""
        entries = self.entries.get((executor, queue), [])
        count = max(0, len(entries) - left) if token is None else sum(number <= token for number, *_ in entries)
        for _, place, values in entries[:count]:
            place[...] = values() if callable(values) else values
        del entries[:count]

    def begin(self, executor: tuple[int, ...], meaning: Begin, *args: Any) -> None:
        """A begin runs, with its arguments."""
        *given, token = args if meaning.queue.by == "token" else (*args, None)
        number = self.later(executor, meaning.queue.name, *meaning.run(*given))
        if token is not None:
            token.array[token.offset] = number

    def awaited(self, executor: tuple[int, ...], meaning: Await, *args: Any) -> None:
        """A wait runs, with its arguments."""
        if meaning.queue.by == "token":
            self.wait(executor, meaning.queue.name, token=int(args[0].array[args[0].offset]))
        else:
            self.wait(executor, meaning.queue.name, left=int(args[0]) if meaning.queue.by == "count" else 0)


def clashes(queues: Sequence[Queue]) -> str | None:
    """What is wrong with several declarations of queues, as a sentence; None if nothing."""
    known: dict[str, Queue] = {}
    for q in queues:
        if known.setdefault(q.name, q) != q:
            return f"the queue '{q.name}' is awaited by {known[q.name].by} and by {q.by}"
    return None


Queues = Mapping[str, Queue]
"""Instruction → its queue."""
