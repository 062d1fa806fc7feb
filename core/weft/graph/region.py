"""The operator of a region: a sub-graph that one target computes between copies."""

from __future__ import annotations

from dataclasses import dataclass

from weft.graph.group import Group


@dataclass(frozen=True)
class Region(Group):
    """`body` applied to the inputs, by the target of this kind."""

    target: str = ""
