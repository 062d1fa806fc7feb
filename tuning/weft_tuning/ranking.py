"""A learned cost model: which of several candidates is likely to be the fastest.

Gradient-boosted trees on features of scheduled programs, as in AutoTVM (Chen et al., NeurIPS 2018) and Ansor (Zheng et
al., OSDI 2020). They learn the logarithm of a candidate's time over the default's, of all kernels together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST = 32
"""Measurements from which a model is made."""
MOST = 20_000
"""The latest measurements that it is made of."""
TREES = 80


class Ranking:
    """Learns from measured candidates, and orders others."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._rows: list[tuple[float, ...]] = []
        self._values: list[float] = []
        self._model: object | None = None
        self._known = 0

    def learn(self, default: Sequence[float], features: Sequence[float], value: float) -> None:
        """One measurement: `value` is the logarithm of the time of a candidate with these features over the time of the
        default."""
        self._rows.append(_row(default, features))
        self._values.append(value)

    def predict(self, default: Sequence[float], candidates: Sequence[Sequence[float]]) -> list[float] | None:
        """Expected logarithms of time over the default's; None as long as too little is known."""
        if len(self._rows) < LEAST:
            return None
        if self._model is None or len(self._rows) >= self._known * 1.2:
            self._model, self._known = self._fit(), len(self._rows)
        rows = np.array([_row(default, features) for features in candidates])
        return [float(v) for v in self._model.predict(rows)]  # type: ignore[attr-defined]

    def _fit(self) -> object:
        import lightgbm

        rows, values = np.array(self._rows[-MOST:]), np.array(self._values[-MOST:])
        settings = {
            "objective": "l1",
            "num_leaves": 15,
            "min_data_in_leaf": 4,
            "learning_rate": 0.1,
            "verbosity": -1,
            "num_threads": 1,
            "seed": self.seed,
            "deterministic": True,
        }
        return lightgbm.train(settings, lightgbm.Dataset(rows, values), num_boost_round=TREES)


def _row(default: Sequence[float], features: Sequence[float]) -> tuple[float, ...]:
    return (*features, *(f - d for f, d in zip(features, default, strict=True)))
