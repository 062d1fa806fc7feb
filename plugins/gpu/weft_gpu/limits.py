"""Checks that a scheduled Program fits the grids of a machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.errors import LoopError
from weft.expr.simplify import simplify
from weft.loop.grids import BLOCK_AXES, THREAD_AXES, is_shuffle
from weft.loop.nodes import Allocate, For, IntrinsicCall, Let, Program, Stmt, int_const, walk_stmts
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.simplify import simplify as simplify_program
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft.machine import Machine
from weft_gpu.grids import has_threads, launches
from weft_gpu.passes.join_threads import join_threads
from weft_gpu.passes.private_buffers import private_buffers


def exceeds_grid(program: Program, machine: Machine) -> str | None:
    """Where a scheduled Program exceeds the limits of the machine's grids, as the end of a sentence; None if there is
    nothing, or it runs no grids.

    Counts the threads of a group, its extents, extents of grids that are constant, and what a group allocates in scope
    `shared` all together. Registers are not counted: a code generator spills them. Values are handed over within a
    warp, where threads do that. What `join_threads` refuses is wanted beyond any grid.
    """
    if machine.grid is None:
        return None
    try:
        if has_threads(program.body):
            program = join_threads(private_buffers(simplify_program(lower_blocks(start_empty_reductions(program)))))
        found = dict.fromkeys(
            wrong for launch, around in launches(program) for wrong in _launch(launch, around, machine)
        )
    except LoopError as error:
        return f"cannot be launched as grids: {error.what}" + (f", {error.why}" if error.why else "")
    return "; ".join(found) or None


def _launch(launch: Stmt, around: tuple[Stmt, ...], machine: Machine) -> Iterator[str]:
    limits = machine.grid
    assert limits is not None
    shuffles = [s.value for s in walk_stmts(launch) if isinstance(s, Let) and is_shuffle(s)]
    bits = [n for x in shuffles if isinstance(x, IntrinsicCall) and (n := int_const(x.args[1])) is not None]
    if max(bits, default=0) >= limits.warp:
        yield f"needs values of threads {max(bits)} away, a warp has {limits.warp}"
    if bits and "shuffle" not in machine.features:
        yield "needs values of other threads, which they do not hand over"
    threads = 1
    for loop in [s for s in walk_stmts(launch) if isinstance(s, For) and s.kind in (*BLOCK_AXES, *THREAD_AXES)]:
        n, axis = int_const(simplify(loop.extent)), loop.kind[-1]
        if loop.kind in THREAD_AXES:
            if n is None:
                yield f"needs {loop.extent} threads along {axis}, which is no constant"
            threads *= n or 1
            most, what = limits.threads_per_axis["xyz".index(axis)], "threads"
        else:
            most, what = limits.groups_per_axis["xyz".index(axis)], "groups"
        if n is not None and n > most:
            yield f"needs {n} {what} along {axis}, there are {most} at most"
    if threads > limits.threads:
        yield f"needs {threads} threads in a group, there are {limits.threads} at most"
    scope = machine.scopes.get("shared")
    size = 0
    for s in (*around, *walk_stmts(launch)):
        if isinstance(s, Allocate) and s.buffer.scope == "shared":
            counts = [int_const(simplify(d)) for d in s.buffer.shape]
            if None in counts:
                yield f"needs buffer '{s.buffer.name}' in scope 'shared', of a size that is no constant"
            align = scope.align if scope is not None else 1
            size += -(-math.prod(n or 0 for n in counts) * s.buffer.dtype.bytes // align) * align
    if scope is not None and scope.size is not None and size > scope.size:
        yield f"needs {size} bytes of scope 'shared' in a group, there are {scope.size}"
