"""What weft-c contributes. Imports nothing heavy: a plugin module loads in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.scheduling.rule import Rule
    from weft.target import Target, TargetKind


@hookimpl
def targets() -> Sequence[TargetKind]:
    from weft_c.target import CTarget

    return [CTarget()]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    if target.kind != "c":
        return []
    from weft_c.schedules import RULES

    return RULES
