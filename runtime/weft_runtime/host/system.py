"""What the system gives."""

from __future__ import annotations

import os

import numpy as np

from weft_runtime.arrays import Array
from weft_runtime.host.registry import host_function


@host_function("Entropy")
def entropy() -> Array:
    """A key for random numbers, another one at every call."""
    return np.frombuffer(os.urandom(8), np.uint64).copy()
