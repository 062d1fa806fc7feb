"""Schedules a Program by the rules of a target: by the cheapest that succeeds, or by the one that a record names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.choices import Choice, Suggestions, decide, require_made
from weft.errors import ChoiceError, ScheduleError
from weft.loop.nodes import Program
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.rule import Decline, Offer, Rule, apply_rule, first_of, no_rule, offers_of
from weft.scheduling.schedule import Schedule

Exceeds: TypeAlias = "Callable[[Program], str | None]"
"""Where a scheduled Program exceeds the target's limits, as the end of a sentence; None if it does not."""
RULE = "rule"
"""The choice of the rule itself, among those that offer; the rule's own choices follow it."""


@dataclass(frozen=True)
class Scheduled:
    """A Program as a rule has scheduled it.

    Args:
        choices: the rule, then those that it made.
        declines: (rule, code and reason), of rules that declined or failed.
        failed: the errors of rules that made an offer and then failed, as sentences.
    """

    rule: Rule
    schedule: Schedule
    choices: tuple[Choice, ...]
    declines: tuple[tuple[str, str], ...] = ()
    failed: tuple[str, ...] = ()


def run_rules(
    rules: Sequence[Rule], program: Program, machine: Any, intrinsics: Mapping[str, Intrinsic], exceeds: Exceeds
) -> Scheduled:
    """Schedules a Program by the cheapest rule.

    If a rule fails, or its program exceeds the machine's limits, the next rule is used.

    Raises:
        ScheduleError: no rule takes it, or all that do fail; lists why.
    """
    left = list(rules)
    declines: list[tuple[str, str]] = []
    failed: list[str] = []
    while True:
        offers, declined = offers_of(left, program, machine, intrinsics)
        try:
            rule, offer = first_of(offers, program, declined)
        except ScheduleError as error:
            if failed:
                error.why = "; ".join([*failed, *([error.why] if declined and error.why else [])])
                error.hint = None  # there are rules
            raise
        declines += [d for d in _texts(declined) if d not in declines]
        schedule = Schedule(program, machine, intrinsics=intrinsics)
        try:
            _apply(rule, schedule, offer, exceeds)
        except ScheduleError as error:
            # A rule that offered and then met a step that may not act leaves the program to the next.
            text = f"failed: {error.what}" + (f" ({error.why})" if error.why else "")
            declines.append((rule.name, text))
            failed.append(f"{rule.name}: {text}")
            left.remove(rule)
            continue
        chosen = Choice(RULE, tuple(r.name for r, _ in offers), rule.name, rule.name)
        return Scheduled(rule, schedule, (chosen, *schedule.choices), tuple(declines), tuple(failed))


def run_recorded(
    rules: Sequence[Rule],
    program: Program,
    machine: Any,
    intrinsics: Mapping[str, Intrinsic],
    exceeds: Exceeds,
    recorded: Mapping[str, Any],
) -> Scheduled:
    """Schedules a Program with recorded choices, or with a tuner's `Suggestions`.

    Raises:
        ChoiceError: why they cannot be followed: a rule that is not there or declines, a choice that the rule has not,
            a value that it cannot have, or steps that may not act with it.
    """
    offers, declined = offers_of(rules, program, machine, intrinsics)
    wanted = recorded.get(RULE)
    reason = next((f"it declines: {d.reason} [{d.code}]" for name, d in declined if name == wanted), None)
    if reason is not None:
        raise ChoiceError(f"choice '{RULE}' cannot be {wanted!r}", why=reason)
    if not offers:
        raise ChoiceError(no_rule(program, declined).what)
    by_name: dict[str, tuple[Rule, Offer]] = {}
    for r, o in offers:
        by_name.setdefault(r.name, (r, o))  # the cheapest of a name, as without a record
    chosen = decide(RULE, list(by_name), offers[0][0].name, recorded)
    rule, offer = by_name[chosen.value]
    own = recorded if isinstance(recorded, Suggestions) else {n: v for n, v in recorded.items() if n != RULE}
    schedule = Schedule(program, machine, own, intrinsics=intrinsics)
    try:
        _apply(rule, schedule, offer, exceeds)
    except ChoiceError:
        raise
    except ScheduleError as error:
        raise ChoiceError(
            f"rule '{rule.name}' fails with these choices", why=error.what + (f" ({error.why})" if error.why else "")
        ) from error
    if not isinstance(own, Suggestions):
        require_made(own, [c.name for c in schedule.choices], f"rule '{rule.name}'")
    return Scheduled(rule, schedule, (chosen, *schedule.choices), tuple(_texts(declined)))


def _apply(rule: Rule, schedule: Schedule, offer: Offer, exceeds: Exceeds) -> None:
    apply_rule(rule, schedule, offer)
    wrong = exceeds(schedule.program)
    if wrong is not None:
        raise ScheduleError(f"it {wrong}")


def _texts(declined: Sequence[tuple[str, Decline]]) -> list[tuple[str, str]]:
    return [(name, f"{d.code}: {d.reason}") for name, d in declined]
