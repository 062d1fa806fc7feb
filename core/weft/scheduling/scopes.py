"""Whether what a Program allocates fits into the machine's memories."""

from __future__ import annotations

from weft.expr.simplify import simplify
from weft.loop.nodes import Allocate, Program, Stmt, int_const, stmt_children
from weft.machine import Machine, Scope


def overflow(program: Program, machine: Machine) -> str | None:
    """The first memory that a Program needs more of, at one time, than the machine has, as the end of a sentence; None if there is none.

    Registers are not counted: a code generator spills them. Nor are buffers whose size only a run knows.
    """
    limits = {name: scope for name, scope in machine.scopes.items() if scope.size is not None and name != "register"}
    for name, size in sorted(_peak(program.body, limits).items()):
        most = limits[name].size
        if most is not None and size > most:
            return f"wants {size} bytes of scope '{name}', there are {most}"
    return None


def _peak(s: Stmt, limits: dict[str, Scope]) -> dict[str, int]:
    """Bytes of each memory that a statement needs at once: of those side by side the most, those around added."""
    found: dict[str, int] = {}
    for c in stmt_children(s):
        for name, size in _peak(c, limits).items():
            found[name] = max(found.get(name, 0), size)
    if isinstance(s, Allocate) and s.buffer.scope in limits:
        size = s.buffer.dtype.bytes
        for d in s.buffer.shape:
            size *= int_const(simplify(d)) or 0
        align = limits[s.buffer.scope].align
        found[s.buffer.scope] = found.get(s.buffer.scope, 0) + -(-size // align) * align
    return found
