"""Schedule rules of the target `llvm`: one for each pattern of blocks."""

from __future__ import annotations

from weft.scheduling.rule import Rule
from weft_llvm.schedules.attention import AttentionRule
from weft_llvm.schedules.contraction import ContractionRule
from weft_llvm.schedules.dots import DotRule
from weft_llvm.schedules.elementwise import ElementwiseRule
from weft_llvm.schedules.fallback import FallbackRule
from weft_llvm.schedules.recurrence import RecurrenceRule
from weft_llvm.schedules.reduction import ReductionRule
from weft_llvm.schedules.rowwise import RowwiseRule
from weft_llvm.schedules.winograd import WinogradRule


def rules() -> list[Rule]:
    """Every rule of the target; the cheapest offer wins."""
    return [
        AttentionRule(),
        WinogradRule(),
        DotRule(),
        ContractionRule(),
        RowwiseRule(),
        RecurrenceRule(),
        ReductionRule(),
        ElementwiseRule(),
        FallbackRule(),
    ]
