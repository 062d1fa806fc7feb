"""How long a tuner goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from weft.errors import InputError


@dataclass(frozen=True)
class Budget:
    """Seconds that a tuner takes, and candidates that it measures; None: no limit.

    Raises:
        InputError: one is no positive number.
    """

    seconds: float | None = None
    trials: int | None = None

    def __post_init__(self) -> None:
        for name, value, kind in (("seconds", self.seconds, Real), ("trials", self.trials, Integral)):
            number = isinstance(value, kind) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < math.inf):
                whole = "a whole number" if kind is Integral else "a number"
                raise InputError(
                    f"'{name}' is {value!r}", why=f"it is {whole} above 0", hint="without it there is no such limit"
                )

    @property
    def most(self) -> float:
        """Candidates at most."""
        return math.inf if self.trials is None else self.trials

    def spent(self, seconds: float, trials: int, part: float = 1.0) -> str | None:
        """Why the tuner ends after so many seconds and trials, if it has a part of the budget; None: it goes on."""
        if trials >= part * self.most:
            return "all trials are made"
        if self.seconds is not None and seconds > part * self.seconds:
            return "the time is over"
        return None
