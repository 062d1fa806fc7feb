"""Whether a Program fits the machine: what it allocates its memories, its groups of threads what the machine launches."""

from __future__ import annotations

from weft.errors import LoopError
from weft.expr.simplify import simplify
from weft.loop.grids import BLOCK_AXES, THREAD_AXES, has_threads, is_shuffle, launches
from weft.loop.nodes import Allocate, For, Let, Program, Stmt, int_const, stmt_children, walk_stmts
from weft.loop.passes.join_threads import join_threads
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.private_buffers import private_buffers
from weft.loop.passes.simplify import simplify as simplify_program
from weft.loop.passes.start_empty_reductions import start_empty_reductions
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


def exceeds_grid(program: Program, machine: Machine) -> str | None:
    """What a scheduled Program wants beyond the grids that the machine launches, as the end of a sentence; None if there is nothing, or it runs no grids.

    Counts the threads of a group, its extents, extents of grids that are constant, and what a group allocates in scope `shared` all together. Registers are
    not counted: a code generator spills them. Values are handed over within a warp, where threads do that. What `join_threads` refuses is wanted beyond any
    grid.
    """
    limits = machine.grid
    if limits is None:
        return None
    try:
        if has_threads(program.body):
            program = join_threads(private_buffers(simplify_program(lower_blocks(start_empty_reductions(program)))))
        for launch, around in launches(program):
            wrong = _launch(launch, around, machine)
            if wrong is not None:
                return wrong
    except LoopError as error:
        return f"cannot be launched as grids: {error.what}" + (f", {error.why}" if error.why else "")
    return None


def _launch(launch: Stmt, around: tuple[Stmt, ...], machine: Machine) -> str | None:
    limits = machine.grid
    assert limits is not None
    bits = [int(s.value.args[1].value) for s in walk_stmts(launch) if isinstance(s, Let) and is_shuffle(s)]  # type: ignore[attr-defined]
    if max(bits, default=0) >= limits.warp:
        return f"wants values of threads {max(bits)} away, a warp has {limits.warp}"
    if bits and "shuffle" not in machine.features:
        return "wants values of other threads, which they do not hand over"
    threads = 1
    for loop in [s for s in walk_stmts(launch) if isinstance(s, For) and s.kind in (*BLOCK_AXES, *THREAD_AXES)]:
        n, axis = int_const(simplify(loop.extent)), loop.kind[-1]
        if loop.kind in THREAD_AXES:
            if n is None:
                return f"wants {loop.extent} threads along {axis}, which is no constant"
            threads *= n
            most, what = limits.threads_per_axis["xyz".index(axis)], "threads"
        else:
            most, what = limits.groups_per_axis["xyz".index(axis)], "groups"
        if n is not None and n > most:
            return f"wants {n} {what} along {axis}, there are {most} at most"
    if threads > limits.threads:
        return f"wants {threads} threads in a group, there are {limits.threads} at most"
    scope = machine.scopes.get("shared")
    size = 0
    for s in (*around, *walk_stmts(launch)):
        if isinstance(s, Allocate) and s.buffer.scope == "shared":
            count = s.buffer.dtype.bytes
            for d in s.buffer.shape:
                n = int_const(simplify(d))
                if n is None:
                    return f"wants buffer '{s.buffer.name}' in scope 'shared', of a size that is no constant"
                count *= n
            align = scope.align if scope is not None else 1
            size += -(-count // align) * align
    if scope is not None and scope.size is not None and size > scope.size:
        return f"wants {size} bytes of scope 'shared' in a group, there are {scope.size}"
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
