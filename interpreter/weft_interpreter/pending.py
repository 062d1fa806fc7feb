"""Instructions of queues while a program is interpreted: what has begun, and what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.loop.queues import Await, Begin


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
