"""The one schedule rule of the target: programs stay as they are."""

from __future__ import annotations

from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule


class AsItIs(Rule):
    """Every loop stays as the operator's definition has it: what the C compiler makes of it is its own affair."""

    name = "as_it_is"

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        pass


RULES: tuple[Rule, ...] = (AsItIs(),)
