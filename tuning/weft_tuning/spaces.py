"""The choices of one kernel as a space to search: which there are is known only while a rule makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.choices import Suggestions, Value
from weft.errors import WeftError
from weft.loop.nodes import Program
from weft.resolve import ResolvedTarget
from weft.scheduling.run_rules import Scheduled, run_recorded, run_rules
from weft_tuning.features import features

Pick: TypeAlias = "Callable[[str, Sequence[Any], Any], Any]"
"""(name of the choice, its options, its default) → one of the options."""


@dataclass(frozen=True)
class Candidate:
    """One way to schedule a kernel: all its choices by name, and `features` of the scheduled program."""

    choices: Mapping[str, Value]
    features: tuple[float, ...]

    @property
    def key(self) -> tuple[tuple[str, Value], ...]:
        return tuple(sorted(self.choices.items()))


class Space:
    """The choices of a kernel on a target.

    Args:
        naive: the kernel before scheduling.
    """

    def __init__(self, naive: Program, target: ResolvedTarget) -> None:
        self.naive, self.target = naive, target
        self.default = _candidate(run_rules(target.rules, naive, target.machine, target.intrinsics, target.exceeds))

    def pick(self, pick: Pick) -> Candidate:
        """The candidate whose choices `pick` makes, one after another.

        Raises:
            WeftError: a rule does not take the kernel with these.
        """
        target = self.target
        made = run_recorded(target.rules, self.naive, target.machine, target.intrinsics, target.exceeds, _Picking(pick))
        return _candidate(made)

    def follow(self, choices: Mapping[str, Value]) -> Candidate | None:
        """The candidate with these choices; None if they are none of this kernel."""
        try:
            found = self.pick(lambda name, options, default: choices.get(name, default))
        except WeftError:
            return None
        return found if dict(found.choices) == dict(choices) else None


class _Picking(Suggestions):
    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self._pick = pick

    def suggest(self, name: str, options: Sequence[Any], default: Any) -> Any:
        return self._pick(name, options, default)


def _candidate(made: Scheduled) -> Candidate:
    return Candidate({c.name: c.value for c in made.choices}, features(made.schedule.program))
