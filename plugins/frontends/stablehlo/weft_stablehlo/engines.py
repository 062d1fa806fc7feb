"""XLA as a peer: see `ENGINES`."""

from __future__ import annotations

from weft.hooks import EngineKind

ENGINES: list[EngineKind] = []
