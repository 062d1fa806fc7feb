"""Schedules: rewrites of loop programs that keep their meaning.

s = Schedule(program)
s.split("i", [None, 16])
s.trace                     the steps as data; `replay(program, trace)` repeats them
"""

from weft.scheduling.intrinsic import Call, Intrinsic, Operand, OperandView, meanings
from weft.scheduling.rule import Decline, Offer, Rule, select_rule
from weft.scheduling.schedule import Attempt, Checkpoint, Schedule
from weft.scheduling.trace import Step, Trace, replay

__all__ = [
    "Attempt", "Call", "Checkpoint", "Decline", "Intrinsic", "Offer", "Operand", "OperandView", "Rule", "Schedule",
    "Step", "Trace", "meanings", "replay",
    "select_rule",
]  # fmt: skip
