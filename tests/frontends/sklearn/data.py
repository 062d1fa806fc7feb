"""Data that trees are trained on, and rows that find every edge of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

COLUMNS, CATEGORICAL = 6, 4
"""Features of a row; from this one on they are categories."""


def training(seed: int = 0, rows: int = 300, missing: float = 0.1, zeros: float = 0.0) -> tuple[Any, Any]:
    """Features [rows, COLUMNS] and numbers that depend on them. The last features are integers from 0 to 39."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, COLUMNS)).astype(np.float32)
    x[:, CATEGORICAL:] = random.integers(0, 40, (rows, COLUMNS - CATEGORICAL))
    y = x[:, 0] * x[:, 1] + x[:, 2] + (x[:, 4] % 3 == 1) + (x[:, 5] % 5 == 2) + 0.2 * random.standard_normal(rows)
    x[:, :CATEGORICAL][random.random((rows, CATEGORICAL)) < zeros] = 0
    x[:, :CATEGORICAL][random.random((rows, CATEGORICAL)) < missing] = np.nan
    return x, y


def classes(y: Any, count: int) -> Any:
    return np.digitize(y, np.quantile(y, np.linspace(0, 1, count + 1)[1:-1]))


def rows(seed: int = 1, count: int = 70, missing: bool = True, thresholds: Any = ()) -> Any:
    """Rows with what is missing, infinite, tiny, of unknown and of negative categories, and with the very numbers that
    nodes compare with."""
    x, _ = training(seed, count, 0.2 if missing else 0.0, 0.1)
    random = np.random.default_rng(seed)
    for at, odd in enumerate((np.inf, -np.inf, 0.0, -0.0, 1e-36, -1e-36, 1e30)):
        x[at, : CATEGORICAL // 2] = odd
    x[7:12, CATEGORICAL:] = np.array([-1, 77, 1000, 3, 39])[:, None]
    x[12:14, CATEGORICAL:] = np.array([-0.5, 2.5])[:, None]
    if missing:
        x[14, :] = np.nan
    if len(thresholds):
        x[15:, :CATEGORICAL] = random.choice(np.asarray(thresholds, np.float32), (count - 15, CATEGORICAL))
    return x
