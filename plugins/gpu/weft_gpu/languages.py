"""Rules for a target whose language lacks features: they decline Programs that need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature

from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.rule import Decline, Offer, Rule, apply_rule
from weft.scheduling.schedule import Schedule
from weft_c_family import Dialect, Emitter
from weft_gpu.schedules import RULES


class InLanguage(Rule):
    """A rule that declines a program with values or atomic updates that its language does not have."""

    def __init__(self, rule: Rule, dialect: Dialect) -> None:
        self.name = rule.name
        self.priority = rule.priority
        self.rule, self.emitter = rule, Emitter(dialect)
        self._asks = "intrinsics" in signature(rule.offer).parameters

    def offer(
        self, program: Program, machine: Machine, intrinsics: Mapping[str, Intrinsic] | None = None
    ) -> Offer | Decline:
        lacks = [line for line in self.emitter.check(program) if line.startswith(("dtype ", "atomic "))]
        if lacks:
            return Decline(
                "language", f"{self.emitter.dialect.name} has no {', '.join(x.removeprefix('dtype ') for x in lacks)}"
            )
        more = {"intrinsics": intrinsics} if self._asks else {}
        return self.rule.offer(program, machine, **more)

    def apply(self, schedule: Schedule, offer: Offer | None = None) -> None:
        apply_rule(self.rule, schedule, offer)


def rules_in(dialect: Dialect, rules: Sequence[Rule] = RULES) -> tuple[Rule, ...]:
    """The rules for a target whose kernels are written in `dialect`."""
    return tuple(InLanguage(rule, dialect) for rule in rules)
