"""Named choices: decisions of rules and passes that a record or a tuner can replace.

A choice has a name, which is unique within its kernel or graph, options, and a default, which comes from a cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from weft.errors import ChoiceError, PluginError, nearest

Value: TypeAlias = bool | int | str
"""What a choice can be."""
T = TypeVar("T")
SHOWN = 12
"""Most options that a message lists."""


@dataclass(frozen=True)
class Choice:
    """A decision that was made: `value` is one of `options`; without a record it is `default`."""

    name: str
    options: tuple[Any, ...]
    default: Any
    value: Any
    recorded: bool = False
    """Whether a record, or a tuner, gave the value."""

    def __str__(self) -> str:
        return f"{self.name} = {self.value}" + (f" (recorded; default {self.default})" if self.recorded else "")


class Suggestions(dict[str, Any]):
    """Values of choices that a search gives while they are made, in place of recorded ones: empty before, and
    afterwards those that were made, by name."""

    def suggest(self, name: str, options: Sequence[Any], default: Any) -> Any:
        """One of `options`, none of which the choice's predicate refuses."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return True


def decide(
    name: str,
    options: Sequence[T],
    default: T,
    recorded: Mapping[str, Any],
    made: Collection[str] = (),
    refuse: Callable[[T], str | None] | None = None,
    where: str | None = None,
    hint: str = "make one of them under `Schedule.choices_of(part)`",
) -> Choice:
    """Makes a choice: the recorded value, else the default.

    Args:
        recorded: values by name of the choice, or Suggestions.
        made: names of the choices that the kernel, or graph, has made already.
        refuse: the predicate: why a value among the options cannot be chosen here; None if it can.
        where: the kernel or graph, for messages.
        hint: of the error about a second choice of this name.

    Raises:
        PluginError: a choice of this name has been made already.
        ChoiceError: the value is no option, or the predicate refuses it.
    """
    if name in made:
        why = "names of choices are unique within a kernel, and within a graph: a record could not distinguish two"
        raise PluginError(
            f"the choice '{name}' is made twice",
            where=where,
            why=why,
            hint=hint,
        )
    if isinstance(recorded, Suggestions):
        allowed = [o for o in options if refuse is None or refuse(o) is None]
        recorded[name] = recorded.suggest(name, allowed, default) if allowed else default
    value = recorded.get(name, default)
    if not any(o == value and isinstance(o, bool) == isinstance(value, bool) for o in options):
        raise ChoiceError(f"choice '{name}' cannot be {value!r}", where=where, why=f"the options are {listed(options)}")
    reason = refuse(value) if refuse is not None else None
    if reason is not None:
        raise ChoiceError(f"choice '{name}' cannot be {value!r}", where=where, why=reason)
    return Choice(name, tuple(options), default, value, name in recorded)


class Choices:
    """The choices of one graph, made one after another by its passes.

    Args:
        recorded: values by name of the choice, or Suggestions.
        where: the graph, for messages.
    """

    def __init__(self, recorded: Mapping[str, Any] | None = None, where: str | None = None) -> None:
        self.recorded = recorded if isinstance(recorded, Suggestions) else dict(recorded or {})
        self.where = where
        self.made: dict[str, Choice] = {}

    def choose(self, name: str, options: Sequence[T], default: T, refuse: Callable[[T], str | None] | None = None) -> T:
        """Makes a choice; as `weft.scheduling.schedule.Schedule.choose`.

        Raises:
            ChoiceError: the value is no option, or the predicate refuses it.
            PluginError: the graph has a choice of this name already.
        """
        return self._make(name, name, options, default, refuse)

    def of_pass(self, name: str) -> Choices:
        """The choices that one pass makes, which are among these as well.

        Where an earlier pass has made a choice of the same name, the pass's own name precedes it: "again.layout.%y".
        """
        return _OfPass(self, name)

    def _make(
        self, name: str, full: str, options: Sequence[T], default: T, refuse: Callable[[T], str | None] | None
    ) -> T:
        hint = "name each by what it decides, for example by the node's first output"
        self.made[name] = made = decide(full, options, default, self.recorded, self.made, refuse, self.where, hint)
        value: T = made.value
        return value


class _OfPass(Choices):
    """`Choices.of_pass`; `made` has the pass's own only, by the names that it gives them."""

    def __init__(self, whole: Choices, of: str) -> None:
        super().__init__(whole.recorded, whole.where)
        self.whole, self.of = whole, of

    def choose(self, name: str, options: Sequence[T], default: T, refuse: Callable[[T], str | None] | None = None) -> T:
        full = name
        while name not in self.made and full in self.whole.made:
            full = f"{self.of}.{full}"
        value = self._make(name, full, options, default, refuse)
        self.whole.made[full] = self.made[name]
        return value


def require_made(recorded: Collection[str], made: Collection[str], who: str) -> None:
    """That every recorded choice was made.

    Raises:
        ChoiceError: one was not; `who` makes the choices, for the message.
    """
    for name in recorded:
        if name not in made:
            close = nearest(name, made)
            hint = f"did you mean '{close}'?" if close else f"its choices are {', '.join(made) or 'none'}"
            raise ChoiceError(f"{who} has no choice '{name}' here", hint=hint)


def listed(options: Sequence[object]) -> str:
    """Options in a sentence, the first ones of many."""
    more = f" and {len(options) - SHOWN} more" if len(options) > SHOWN else ""
    return ", ".join(map(repr, options[:SHOWN])) + more
