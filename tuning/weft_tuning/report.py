"""What a tuner says while it works and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.choices import Value


@dataclass(frozen=True)
class State:
    """How far a tuner is.

    Attributes:
        expected: time of a run over that with the defaults, with the best so far.
        possible: the same, if every kernel reached its limit; None if limits are not known.
        active: kernels for which there are candidates left to try.
    """

    elapsed: float
    seconds: float | None
    trials: int
    most: int | None
    failures: int
    expected: float
    possible: float | None
    active: int
    subjects: int


@dataclass(frozen=True)
class Row:
    """A kernel in the report; seconds are of all its calls in a run."""

    key: str
    name: str
    share: float
    seconds: float
    tuned_seconds: float
    trials: int
    failures: int
    changed: Mapping[str, Value]
    limit: float | None


@dataclass(frozen=True)
class Report:
    """What tuning has found.

    Attributes:
        ratio: time of a run with the records over that with the defaults, measured at the end; 1 without records.
        seconds: of a run with the defaults.
        unsteady: measurements that were left out because the machine was under load.
        why: why it ended.
        graph: choices of graph passes that are recorded, and `graph_ratio` what they make of a run's time.
    """

    name: str
    rows: tuple[Row, ...]
    trials: int
    failures: int
    ratio: float
    seconds: float
    elapsed: float
    unsteady: int
    why: str
    failed: Mapping[str, int]
    graph: Mapping[str, Value] = field(default_factory=dict)
    graph_ratio: float = 1.0
