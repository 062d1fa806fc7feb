"""Schedule rules: who schedules a Program, chosen by offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, ClassVar

from weft.errors import ScheduleError
from weft.loop.nodes import Program
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Offer:
    """A rule can schedule the Program; `cost` is its estimate in seconds, or any one unit that rules of one target share."""

    cost: float
    note: str = ""


@dataclass(frozen=True)
class Decline:
    """A rule cannot; `code` is for machines, `reason` for people."""

    code: str
    reason: str


class Rule(ABC):
    """One way to schedule some Programs for a target."""

    name: ClassVar[str]
    priority: ClassVar[int] = 0

    @abstractmethod
    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        """Whether the rule takes the Program, and at what cost. With an argument `intrinsics=None` it gets the target's by name."""

    @abstractmethod
    def apply(self, schedule: Schedule) -> None:
        """Schedules the Program."""


@cache
def _wants_intrinsics(kind: type[Rule]) -> bool:
    return "intrinsics" in signature(kind.offer).parameters


def select_rule(
    rules: Sequence[Rule], program: Program, machine: Any, intrinsics: Mapping[str, Intrinsic] | None = None
) -> tuple[Rule, list[tuple[str, Decline]]]:
    """The cheapest offer of the highest priority (ties: by name), and what the others of that or higher priority declined with.

    Args:
        intrinsics: the target's, by name, for rules that want to know them.

    Raises:
        ScheduleError: no rule takes the Program; lists why each does not.
    """
    declines: list[tuple[str, Decline]] = []
    ordered = sorted(rules, key=lambda r: (-r.priority, r.name))
    for priority in dict.fromkeys(r.priority for r in ordered):
        offers: list[tuple[float, str, Rule]] = []
        for rule in (r for r in ordered if r.priority == priority):
            more = {"intrinsics": intrinsics or {}} if _wants_intrinsics(type(rule)) else {}
            answer = rule.offer(program, machine, **more)
            if isinstance(answer, Decline):
                declines.append((rule.name, answer))
            else:
                offers.append((answer.cost, rule.name, rule))
        if offers:
            return min(offers, key=lambda o: o[:2])[2], declines
    ops = dict.fromkeys(str(b.annotation("op")) for b in _blocks(program) if b.annotation("op") is not None)
    raise ScheduleError(
        f"no schedule rule takes program '{program.name}'",
        where=("operators: " + ", ".join(ops)) if ops else None,
        why="; ".join(f"{name}: {d.reason} [{d.code}]" for name, d in declines) or "there are no rules",
        hint="a target's last rule should take everything",
    )


def _blocks(program: Program) -> list[Any]:
    from weft.scheduling.tree import blocks_in

    return blocks_in(program.body)
