"""Schedule rules and their selection by offers in seconds."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any

from weft.errors import PluginError, ScheduleError, ScheduleWarning
from weft.loop.nodes import Program
from weft.rates import PLAUSIBLE_SECONDS
from weft.scheduling import costs
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Offer:
    """A rule can schedule the Program.

    Args:
        cost: its estimate in seconds (`weft.scheduling.costs` helps to make one).
        note: for people.
        candidate: a schedule of the Program that `offer` has begun or finished; `apply` continues it
            (`Schedule.resume`).
    """

    cost: float
    note: str = ""
    candidate: Schedule | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Decline:
    """A rule does not schedule the Program; `code` is for programs, `reason` for people."""

    code: str
    reason: str


class Rule(ABC):
    """One way to schedule some Programs for a target.

    The cheapest offer wins, of rules that are used by default. `priority` decides between offers of the same cost only,
    the highest first. A rule with `by_default = False` is used where a record, or a tuner, chooses it.
    """

    name: str
    priority: int = 0
    by_default: bool = True

    @abstractmethod
    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        """Whether the rule takes the Program, and at what cost. With an argument `intrinsics=None` it gets the target's
        by name."""

    @abstractmethod
    def apply(self, schedule: Schedule) -> None:
        """Schedules the Program. With an argument `offer=None` it gets its own offer, whose candidate it may continue;
        None: it has made none."""


@cache
def _wants(kind: type[Rule], method: str, argument: str) -> bool:
    return argument in signature(getattr(kind, method)).parameters


def apply_rule(rule: Rule, schedule: Schedule, offer: Offer | None = None) -> None:
    """Schedules a Program by a rule that has offered to.

    Raises:
        ScheduleError: a step may not act.
    """
    more = {"offer": offer} if _wants(type(rule), "apply", "offer") else {}
    rule.apply(schedule, **more)


def _warn_if_no_time(rule: Rule, cost: float, program: Program, machine: Any) -> None:
    """Says of a rule that its costs are no seconds: so many, and far more than element by element takes."""
    if cost <= PLAUSIBLE_SECONDS or cost <= 1000 * costs.seconds(
        program, machine, lambda b: costs.one_by_one(b, machine)
    ):
        return
    what = f"rule '{rule.name}' offers costs that are no seconds (more than {PLAUSIBLE_SECONDS:g} for one kernel)"
    warnings.warn(
        ScheduleWarning(f"{what}, and may never be chosen: estimate times by weft.scheduling.costs"), stacklevel=3
    )


def offers_of(
    rules: Sequence[Rule], program: Program, machine: Any, intrinsics: Mapping[str, Intrinsic] | None = None
) -> tuple[list[tuple[Rule, Offer]], list[tuple[str, Decline]]]:
    """The rules that take the Program with their offers, the cheapest first (ties: the highest priority, then by name),
    then those that only a record chooses, and what others declined with.

    Args:
        intrinsics: the target's, by name, for rules with this parameter.

    Raises:
        PluginError: an offer's cost is no number of seconds.
    """
    declines: list[tuple[str, Decline]] = []
    offers: list[tuple[Rule, Offer]] = []
    for rule in sorted(rules, key=lambda r: (-r.priority, r.name)):
        more = {"intrinsics": intrinsics or {}} if _wants(type(rule), "offer", "intrinsics") else {}
        answer = rule.offer(program, machine, **more)
        if isinstance(answer, Decline):
            declines.append((rule.name, answer))
        elif not answer.cost >= 0:  # true of nan too
            raise PluginError(
                f"rule '{rule.name}' offers program '{program.name}' at {answer.cost} seconds",
                why="offers are compared by their costs, which are times",
                hint="estimate it: weft.scheduling.costs",
            )
        else:
            _warn_if_no_time(rule, answer.cost, program, machine)
            offers.append((rule, answer))
    return sorted(offers, key=lambda o: (not o[0].by_default, o[1].cost)), declines


def first_of(
    offers: Sequence[tuple[Rule, Offer]], program: Program, declines: Sequence[tuple[str, Decline]]
) -> tuple[Rule, Offer]:
    """The first of `offers_of`, which is used without a record.

    Raises:
        ScheduleError: there is none; lists why each rule does not take the Program.
    """
    if not offers or not offers[0][0].by_default:
        kept = [(rule.name, Decline("not_chosen", "only a record chooses it")) for rule, _ in offers]
        raise no_rule(program, declines or kept)  # whoever has other rules asks why those do not take it
    return offers[0]


def select_rule(
    rules: Sequence[Rule], program: Program, machine: Any, intrinsics: Mapping[str, Intrinsic] | None = None
) -> tuple[Rule, list[tuple[str, Decline]]]:
    """The rule with the cheapest offer, and what others declined with: see `offers_of`.

    Raises:
        PluginError: an offer's cost is no number of seconds.
        ScheduleError: no rule takes the Program; lists why each does not.
    """
    offers, declines = offers_of(rules, program, machine, intrinsics)
    return first_of(offers, program, declines)[0], declines


def no_rule(program: Program, declines: Sequence[tuple[str, Decline]]) -> ScheduleError:
    """That no rule takes a Program, with why each does not."""
    ops = dict.fromkeys(str(b.annotation("op")) for b in _blocks(program) if b.annotation("op") is not None)
    return ScheduleError(
        f"no schedule rule takes program '{program.name}'",
        where=("operators: " + ", ".join(ops)) if ops else None,
        why="; ".join(f"{name}: {d.reason} [{d.code}]" for name, d in declines) or "there are no rules",
        hint="a target's last rule should take everything",
    )


def _blocks(program: Program) -> list[Any]:
    from weft.scheduling.tree import blocks_in

    return blocks_in(program.body)
