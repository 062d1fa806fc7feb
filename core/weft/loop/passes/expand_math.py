"""Every Call names a function that the target has; the others become formulas over its arithmetic."""

from __future__ import annotations

from weft.loop.nodes import Program


def expand_math(program: Program, functions: frozenset[str]) -> Program:
    return program
