"""TensorFlow as a peer, on the CPU."""

from __future__ import annotations

from weft.hooks import EngineKind

ENGINES: list[EngineKind] = []
