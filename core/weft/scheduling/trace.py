"""Traces of schedules as data: steps that can be replayed on the naive Program, with the same result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.errors import ScheduleError, nearest
from weft.loop.nodes import Program
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.primitives import PRIMITIVES, apply_primitive, current_name

CHOOSE = "choose"


@dataclass(frozen=True)
class Step:
    """One primitive, or one choice (`do` is "choose", the arguments are its name and candidates, `default` is the value
    without a record, the result is the value)."""

    do: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: Any = None

    def __str__(self) -> str:
        call = ", ".join([*(repr(a) for a in self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())])
        return f"{self.do}({call})" + (f" → {self.result!r}" if self.result is not None else "")


@dataclass
class Trace:
    """Steps in order."""

    steps: list[Step] = field(default_factory=list)

    def add(self, do: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.steps.append(Step(do, _plain(args), {k: _plain(v) for k, v in kwargs.items()}, _plain(result)))

    @property
    def choices(self) -> dict[str, Any]:
        """Name → value of every choice."""
        return {s.args[0]: s.result for s in self.steps if s.do == CHOOSE}

    def to_json(self) -> str:
        return json.dumps(
            [
                {"do": s.do, "args": s.args, **({"kwargs": s.kwargs} if s.kwargs else {}), "result": s.result}
                for s in self.steps
            ]
        )

    @staticmethod
    def from_json(text: str) -> Trace:
        """Reads `to_json`.

        Raises:
            ScheduleError: the text is no trace.
        """
        try:
            read = [(str(s["do"]), tuple(s["args"]), s.get("kwargs", {}), s.get("result")) for s in json.loads(text)]
            return Trace(
                [
                    Step(do, _plain(args), {k: _plain(v) for k, v in kwargs.items()}, _plain(result))
                    for do, args, kwargs, result in read
                ]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScheduleError("the text is no schedule trace", where=text[:200], why=str(error)) from error

    def __iter__(self) -> Any:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return "\n".join(str(s) for s in self.steps)


def replay(program: Program, trace: Trace, intrinsics: Mapping[str, Intrinsic] | None = None) -> Program:
    """The Program after every step of the trace; choices are in the arguments already, intrinsics are there by name.

    Raises:
        ScheduleError: a step is unknown, may not act here, or gives other names than it did.
    """
    for k, s in enumerate(trace.steps):
        if s.do == CHOOSE:
            continue
        primitive = current_name(s.do)
        if primitive not in PRIMITIVES:
            close = nearest(s.do, PRIMITIVES)
            raise ScheduleError(
                f"step {k} of the trace, '{s.do}', is no primitive", hint=f"did you mean '{close}'?" if close else None
            )
        program, result = apply_primitive(program, primitive, s.args, s.kwargs, intrinsics or {})
        if _plain(result) != s.result:
            why = f"it gave {s.result!r} when recorded"
            raise ScheduleError(
                f"step {k} of the trace gives {_plain(result)!r}",
                where=str(s),
                why=why,
                hint="the trace is of another program",
            )
    return program


def _plain(value: Any) -> Any:
    """The value as a trace keeps it, the same before and after JSON: lists are tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return value
