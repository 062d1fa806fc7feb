"""Checks that a Program fits the machine: allocations the memories, bound loops the units. Targets check grids."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import nearest
from weft.expr.nodes import walk
from weft.expr.simplify import simplify
from weft.loop.grids import FRAGMENT
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    For,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    level_of,
    stmt_children,
    stmt_exprs,
    walk_stmts,
)
from weft.machine import Machine, Scope

EVERYWHERE = ("global", "local", "register")
"""Scopes that a machine need not declare."""


def exceeds(program: Program, machine: Machine) -> str | None:
    """All limits of the machine that a scheduled Program exceeds, as the end of a sentence; None if there is none:
    memories that it has not got, that are aligned to less (`misaligned`) or too small (`overflow`), units of levels
    (`exceeds_levels`)."""
    asked = (unknown_scopes, misaligned, overflow, exceeds_levels)
    found = [w for ask in asked if (w := ask(program, machine))]
    return "; ".join(found) or None


def unknown_scope(scope: str, machine: Machine) -> str | None:
    """That the machine has no such memory, with those that it has, as the end of a sentence; None if it has, or
    declares none."""
    if not machine.scopes or scope in machine.scopes or scope in EVERYWHERE or scope.startswith(FRAGMENT):
        return None
    known = [n for n in EVERYWHERE if n not in machine.scopes] + list(machine.scopes)
    close = nearest(scope, known)
    return f"needs scope '{scope}', which the machine does not have; its scopes are {', '.join(sorted(known))}" + (
        f" (did you mean '{close}'?)" if close else ""
    )


def unknown_scopes(program: Program, machine: Machine) -> str | None:
    """Every scope of a Program that the machine does not have, as the end of a sentence; None if there is none."""
    used = dict.fromkeys(s.buffer.scope for s in walk_stmts(program.body) if isinstance(s, Allocate))
    return "; ".join(w for scope in used if (w := unknown_scope(scope, machine)) is not None) or None


def misaligned(program: Program, machine: Machine) -> str | None:
    """Every buffer whose required alignment its memory does not provide, as the end of a sentence; None if there is
    none. Registers have no address.
    """
    buffers = [*program.params, *(s.buffer for s in walk_stmts(program.body) if isinstance(s, Allocate))]
    wrong = [b for b in buffers if b.scope != "register" and b.align > machine.alignment(b.scope)]
    texts = [
        f"'{b.name}' aligned to {b.align} bytes, scope '{b.scope}' is aligned to {machine.alignment(b.scope)}"
        for b in wrong
    ]
    return "needs " + " and ".join(texts) if texts else None


def overflow(program: Program, machine: Machine) -> str | None:
    """Every memory of which a Program needs more at one time than the machine has, as the end of a sentence; None if
    there is none.

    Sizes are rounded up to the alignment of buffers: that of their memory (`Scope.align`) and their own
    (`Buffer.align`). A memory that each unit of a level has of its own is counted for one unit, any other for all units
    of the loops around. Registers are not counted: a code generator spills them. Nor are buffers whose size only a run
    knows, nor what groups of threads share, which their target counts (`TargetKind.exceeds`).
    """
    limits = {
        name: scope
        for name, scope in machine.scopes.items()
        if scope.size is not None and name != "register" and (machine.grid is None or name != "shared")
    }
    peak = sorted(_peak(program.body, limits).items())
    found = [
        f"{size} bytes of scope '{name}', there are {most}"
        for name, size in peak
        if (most := limits[name].size) is not None and size > most
    ]
    return "needs " + " and ".join(found) if found else None


def exceeds_levels(program: Program, machine: Machine) -> str | None:
    """Where a scheduled Program exceeds the machine's levels, as the end of a sentence; None if it does not.

    Levels that are none, more iterations than units, and buffers in a memory of which each unit has its own that are
    used on the units but allocated outside.
    """
    found: list[str] = []

    def visit(s: Stmt, level: frozenset[str], outside: Mapping[str, Scope]) -> None:
        if isinstance(s, For) and (name := level_of(s.kind)) is not None:
            units, extent = machine.levels.get(name), int_const(simplify(s.extent))
            if units is None:
                found.append(
                    f"needs level '{name}' for loop '{s.var.name}', the machine has"
                    f" {', '.join(machine.levels) or 'none'}"
                )
            elif extent is None or extent > units.units:
                found.append(f"needs {s.extent} units of '{name}' for loop '{s.var.name}', there are {units.units}")
            level |= {name}
        if isinstance(s, Allocate):
            scope = machine.scopes.get(s.buffer.scope)
            if scope is not None and scope.shared_by in machine.levels and scope.shared_by not in level:
                outside = {**outside, s.buffer.name: scope}
        for name, scope in outside.items():
            if scope.shared_by in level and name in _touched(s):
                text = (
                    f"needs buffer '{name}' on every unit of '{scope.shared_by}', each of which has its own scope"
                    f" '{scope.name}': allocate it in the loop"
                )
                if text not in found:
                    found.append(text)
        for c in stmt_children(s):
            visit(c, level, outside)

    visit(program.body, frozenset(), {})
    return "; ".join(found) or None


def _touched(s: Stmt) -> set[str]:
    """Names of the buffers that a statement itself reads or writes, not those in it."""
    found = {n.buffer.name for e in stmt_exprs(s) for n in walk(e) if isinstance(n, Load)}
    return found | ({s.buffer.name} if isinstance(s, (Store, AtomicUpdate)) else set())


def _peak(s: Stmt, limits: Mapping[str, Scope]) -> dict[str, int]:
    """Bytes of each memory that a statement needs at once: of those side by side the most, those around added, on units
    of a level all together unless each has a memory of its own."""
    found: dict[str, int] = {}
    for c in stmt_children(s):
        for name, size in _peak(c, limits).items():
            found[name] = max(found.get(name, 0), size)
    if isinstance(s, For) and (level := level_of(s.kind)) is not None:
        units = int_const(simplify(s.extent)) or 1
        found = {name: size if limits[name].shared_by == level else size * units for name, size in found.items()}
    if isinstance(s, Allocate) and s.buffer.scope in limits:
        size = s.buffer.dtype.bytes
        for d in s.buffer.shape:
            size *= int_const(simplify(d)) or 0
        align = max(limits[s.buffer.scope].align, s.buffer.align)  # where a code generator places it
        found[s.buffer.scope] = found.get(s.buffer.scope, 0) + -(-size // align) * align
    return found
