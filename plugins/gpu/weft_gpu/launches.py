"""Division of a lowered Program into launches of grids: a Program for each, its grid, and its buffers and dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.grids import BLOCK_AXES, THREAD_AXES
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    stmt_children,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
)
from weft.loop.passes.copies import is_empty
from weft.loop.printer import excerpt
from weft_gpu.grids import launches, map_groups, written_in
from weft_gpu.passes.narrow_indices import narrow_indices


@dataclass(frozen=True)
class Part:
    """One launch of a kernel.

    Args:
        program: what the launch does, complete in itself, with indices of 32 bits where they suffice: its inputs are
            the buffers that it only reads, scratch included.
        grid: groups along x, y and z, formulas over the kernel's dims; 0 where conditions on them keep the launch from
            doing anything.
        group: threads of a group along x, y and z.
        buffers: which of the kernel's buffers (inputs, outputs, scratch) the program's are, inputs before outputs.
        dims: which of the kernel's dims the program's are.
    """

    program: Program
    grid: tuple[Expr, Expr, Expr]
    group: tuple[int, int, int]
    buffers: tuple[int, ...]
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Launches:
    """A kernel in its launches. `scratch`: bytes of each buffer behind the outputs, formulas over the kernel's dims."""

    parts: tuple[Part, ...]
    scratch: tuple[Expr, ...]


def cut(program: Program) -> Launches:
    """The launches of a lowered Program, in order. A launch without loops over groups is one group, one without loops
    over threads one thread.

    Raises:
        LoopError: loops over groups stand in a loop of another kind.
        CodegenError: a size is not known before the kernel starts, groups or threads would each need a global buffer of
            their own, or threads are not joined to one nest for each group.
    """
    map_groups(program, lambda group: _joined(program, group))
    scratch = _scratch(program)
    bare = program.with_body(
        transform_stmts(
            program.body, lambda s: s.body if isinstance(s, Allocate) and s.buffer.name in scratch else None
        )
    )
    buffers = {b.name: b for b in (*program.params, *(b for b, _ in scratch.values()))}
    sizes = tuple(ex.mul(ex.floordiv(ex.add(size, 63), 64), 64) for _, size in scratch.values())
    stmts = [(s, around) for s, around in launches(bare) if not is_empty(s)]
    parts = [
        _part(program, s, around, buffers, f"_{k}" if len(stmts) > 1 else "") for k, (s, around) in enumerate(stmts)
    ]
    return Launches(tuple(p for p in parts if p is not None), sizes)


def _joined(program: Program, group: Stmt) -> Stmt:
    """The group, whose threads all run all of it.

    Raises:
        CodegenError: it has several loops over threads, or does something outside of them.
    """
    loops = sum(isinstance(s, For) and s.kind in THREAD_AXES for s in walk_stmts(group))
    kinds = {s.kind for s in walk_stmts(group) if isinstance(s, For) and s.kind in THREAD_AXES}

    def apart(stmt: Stmt, entered: int) -> bool:
        if isinstance(stmt, (Store, AtomicUpdate, Evaluate)):
            return entered < loops
        inside = entered + (isinstance(stmt, For) and stmt.kind in THREAD_AXES)
        return any(apart(s, inside) for s in stmt_children(stmt))

    if loops > len(kinds) or (loops and apart(group, 0)):
        raise CodegenError(
            f"the threads of a group of kernel '{program.name}' are not joined to one nest of loops",
            where=excerpt(program, at=group),
            why="what one loop over threads writes and another reads needs a barrier between them",
            hint="the plugin of the target gives `weft_gpu.passes.grid_passes` for the hook `loop_passes`",
        )
    return group


def _part(
    program: Program, stmt: Stmt, around: tuple[Stmt, ...], buffers: Mapping[str, Buffer], suffix: str
) -> Part | None:
    lets: dict[str, Expr] = {}
    runs: list[Expr] = []  # conditions that are known before the launch
    for s in around:
        if isinstance(s, Let):
            lets[s.var.name] = ex.substitute(s.value, lets)
        elif isinstance(s, If):
            cond = ex.substitute(s.cond, lets)
            if _known(cond, program):
                runs.append(cond if not is_empty(s.then) else ex.not_(cond))
    known = {d.name: Range(0, None) for d in program.dims}
    grid: dict[str, Expr] = {}
    group: dict[str, int] = {}

    def size(s: Stmt) -> Stmt | None:
        """Extents over groups in terms of dims; notes what is launched."""
        if not isinstance(s, For) or s.kind not in (*BLOCK_AXES, *THREAD_AXES):
            return None
        if s.kind in THREAD_AXES:
            n = int_const(simplify(ex.substitute(s.extent, lets)))
            if n is None:
                hint = "split it by a number of threads"
                raise _unknown(
                    program,
                    s,
                    f"the extent of loop '{s.var.name}' over threads is no constant",
                    f"it is {s.extent}",
                    hint,
                )
            group[s.kind] = max(group.get(s.kind, 0), n)
            return None
        extent = simplify(ex.substitute(s.extent, lets), known)
        if not _known(extent, program):
            why = f"it is {s.extent}, which is no formula of the kernel's dims alone"
            raise _unknown(
                program,
                s,
                f"the extent of loop '{s.var.name}' is not known before kernel '{program.name}' starts",
                why,
                "launch the upper bound",
            )
        before = grid.get(s.kind)
        grid[s.kind] = extent if before is None or before == extent else ex.maximum(before, extent)
        return replace(s, extent=extent)

    for s in walk_stmts(stmt):
        if isinstance(s, Let):
            lets[s.var.name] = ex.substitute(s.value, lets)
    body = transform_stmts(stmt, size)
    for s in reversed(around):
        if isinstance(s, Let) and s.var.name in _variables(body):
            body = replace(s, body=body)
        elif isinstance(s, If) and not _known(ex.substitute(s.cond, lets), program):
            body = replace(s, then=body) if not is_empty(s.then) else replace(s, orelse=body)
    touched, written = _touched(body)
    if not written & buffers.keys():
        return None
    asked = {
        n.buffer.name
        for s in around
        if isinstance(s, (Let, If))
        for e in stmt_exprs(s)
        for n in ex.walk(e)
        if isinstance(n, Load)
    }
    if asked & touched and asked & _touched(program.body)[1]:
        name = sorted(asked & _touched(program.body)[1])[0]
        why = f"'{name}' is read around launches and written by one"
        raise _unknown(
            program, around[0], f"launches of kernel '{program.name}' depend on data", why, "read it inside the launch"
        )
    # What a launch only reads is its input, also where another launch has written it.
    order = (
        [k for k, b in enumerate(buffers) if b in touched and b not in written],
        [k for k, b in enumerate(buffers) if b in written],
    )
    names = list(buffers)
    params = tuple(tuple(buffers[names[k]] for k in ks) for ks in order)
    used = _variables(body) | {v for b in (*params[0], *params[1]) for d in b.shape for v in ex.free_vars(d)}
    dims = tuple(k for k, d in enumerate(program.dims) if d.name in used)
    places = [{b.name: k for k, b in enumerate(side)} for side in params]
    aliases = tuple(
        (places[1][program.outputs[o].name], places[0][program.inputs[i].name])
        for o, i in program.aliases
        if program.outputs[o].name in places[1] and program.inputs[i].name in places[0]
    )
    one = narrow_indices(
        Program(program.name + suffix, params[0], params[1], tuple(program.dims[k] for k in dims), body, aliases)
    )
    extents = [grid.get(axis, int64(1)) for axis in BLOCK_AXES]
    if runs:
        extents[0] = ex.select(ex.all_of(runs), extents[0], int64(0))
    x, y, z = (group.get(axis, 1) for axis in THREAD_AXES)
    return Part(one, (extents[0], extents[1], extents[2]), (x, y, z), (*order[0], *order[1]), dims)


def _known(e: Expr, program: Program) -> bool:
    """Whether a formula is known before the kernel starts."""
    return ex.free_vars(e).keys() <= {d.name for d in program.dims} and not ex.has(e, (Load, IntrinsicCall))


def _scratch(program: Program) -> dict[str, tuple[Buffer, Expr]]:
    """The global buffers that the program allocates, with their sizes in bytes."""
    found: dict[str, tuple[Buffer, Expr]] = {}

    def visit(s: Stmt, lets: Mapping[str, Expr], around: For | None) -> None:
        if isinstance(s, Allocate) and s.buffer.scope == "global":
            b = s.buffer
            if around is not None:
                raise _unknown(
                    program, s,
                    f"buffer '{b.name}' of scope global is allocated in loop '{around.var.name}', {around.kind}",
                    "each iteration would need its own",
                    "allocate it outside with the loop among its dimensions, or in scope shared or register",
                )  # fmt: skip
            size: Expr = int64(b.dtype.scalar.bytes)
            for d in b.shape:
                size = ex.mul(size, d)
            size = ex.substitute(size, lets)
            if not _known(size, program):
                what = f"the size of buffer '{b.name}' is not known before kernel '{program.name}' starts"
                raise _unknown(program, s, what, f"it is {size} bytes", "allocate the upper bound")
            found[b.name] = (b, size)
        if isinstance(s, Let):
            lets = {**lets, s.var.name: ex.substitute(s.value, lets)}
        if isinstance(s, For) and s.kind in (*BLOCK_AXES, *THREAD_AXES):
            around = s
        for c in stmt_children(s):
            visit(c, lets, around)

    visit(program.body, {}, None)
    return found


def _variables(stmt: Stmt) -> set[str]:
    return {v for s in walk_stmts(stmt) for e in stmt_exprs(s) for v in ex.free_vars(e)}


def _touched(stmt: Stmt) -> tuple[set[str], set[str]]:
    """Buffers that are touched, and those that may be written."""
    written = written_in(stmt)
    return {
        n.buffer.name for s in walk_stmts(stmt) for e in stmt_exprs(s) for n in ex.walk(e) if isinstance(n, Load)
    } | written, written


def _unknown(program: Program, s: Stmt, what: str, why: str, hint: str) -> CodegenError:
    return CodegenError(what, where=excerpt(program, at=s), why=why, hint=hint)
