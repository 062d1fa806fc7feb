"""Numbers as the text of a network has them."""

from __future__ import annotations

import numpy as np


def decimal(value: float) -> float:
    """A float32 in its shortest decimal form: 1e-5, not 9.99999974737875e-06."""
    return float(str(np.float32(value)))
