"""Schedule rules for every target whose `Machine.grid` is set: one for each pattern of blocks."""

from __future__ import annotations

from weft.scheduling.rule import Rule
from weft_gpu.schedules.attention import AttentionRule
from weft_gpu.schedules.contraction import ContractionRule
from weft_gpu.schedules.elementwise import ElementwiseRule
from weft_gpu.schedules.fallback import FallbackRule
from weft_gpu.schedules.recurrence import RecurrenceRule
from weft_gpu.schedules.reduction import ReductionRule
from weft_gpu.schedules.rowwise import RowwiseRule
from weft_gpu.schedules.window import WindowRule
from weft_gpu.schedules.winograd import WinogradRule

RULES: tuple[Rule, ...] = (
    AttentionRule(), ContractionRule(), ElementwiseRule(), RowwiseRule(), RecurrenceRule(), ReductionRule(),
    WindowRule(), WinogradRule(),
    FallbackRule(),
)  # fmt: skip
"""The cheapest offer wins; a target's plugin adds its own to them."""
