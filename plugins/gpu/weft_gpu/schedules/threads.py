"""Distribution of iterations to groups and threads: the number of threads of a group, the iterations of a thread, and
the binding of loops."""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.expr.nodes import free_vars
from weft.loop.nodes import Allocate, For, Let, LoopKind, Seq, Stmt, int_const
from weft.machine import Grid, Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule

GROUP = 256
"""Threads of a group that have nothing to say to each other."""
FEW = 16
"""Threads of the smallest groups, where no warp is wider: a group costs more than a thread."""
MOST_EACH = 4
"""Independent elements of one thread: enough to have several loads under way."""
EACH = (1, 2, MOST_EACH, 8)
"""Options of `each`, the elements of one thread."""
WAVES = 2
"""Times that all threads a machine keeps at once should be busy before one thread takes several elements."""


def grid_of(machine: Machine) -> Grid:
    """What the machine allows; these rules are for machines of groups of threads only."""
    assert machine.grid is not None
    return machine.grid


def shared_of_core(machine: Machine) -> int | None:
    """Bytes of shared memory that a core has for all its groups; None: no limit is known."""
    size, grid = machine.scopes["shared"].size if "shared" in machine.scopes else None, machine.grid
    if grid is not None and grid.shared is not None:
        return grid.shared
    return None if size is None else 2 * size


def shared_of_group(machine: Machine) -> int | None:
    """Bytes of it that a group takes where a core should have two groups, one to compute while the other waits; None:
    no limit is known."""
    core = shared_of_core(machine)
    return None if core is None else min(core // 2, machine.scopes["shared"].size or core)


def most_threads(machine: Machine, wanted: int = GROUP) -> int:
    """Threads along x of a group: as many as wanted, if there may be."""
    grid = grid_of(machine)
    return max(1, min(wanted, grid.threads, grid.threads_per_axis[0]))


def threads_for(machine: Machine, n: int | None, wanted: int = GROUP) -> int:
    """Threads of the groups that share `n` iterations (None: as many as a run says): fewer where that gives more cores
    a group, in whole warps."""
    most = most_threads(machine, wanted)
    least = max(grid_of(machine).warp, FEW)
    if n is None:
        return most
    if n <= least:
        return max(1, min(n, most))
    while most > least and most % 2 == 0 and -(-n // most) < 2 * machine.cores:
        most //= 2
    return min(most, n)


def choose_threads(s: Schedule, choice: str, default: int, most: int) -> int:
    """Threads that share something, a choice: powers of two up to `most`, and what is there without a record."""
    options = {1 << k for k in range(most.bit_length())}
    return s.choose(choice, sorted({default, *options}), default)


def each(machine: Machine, n: int | None, threads: int) -> int:
    """Iterations that one thread takes where there are so many that all threads of the machine have enough."""
    if n is None:
        return MOST_EACH // 2
    k = 1
    while k < MOST_EACH and n // (2 * k) >= WAVES * machine.cores * grid_of(machine).resident:
        k *= 2
    return k


def _independent(s: Schedule, name: str, loops: list[str], refusal: str) -> str | None:
    """Loops of a block, one directly inside the other, as one whose iterations are independent; None if they are not,
    which is noted on the block."""
    if not loops:
        return None
    trial = Schedule(s.program, s.machine)
    try:
        trial.parallel(loops[0] if len(loops) == 1 else trial.fuse(*loops))
    except ScheduleError as error:
        s.annotate(name, refusal, error.why or error.what)
        return None
    flat = loops[0] if len(loops) == 1 else s.fuse(*loops)
    s.parallel(flat)
    return flat


def spread(
    s: Schedule, name: str, loops: list[str], machine: Machine, wanted: int = GROUP, several: bool = True
) -> bool:
    """Gives the outermost loops of a block, one directly inside the other, to groups and threads; False if they are not
    independent.

    Args:
        wanted: threads of a group.
        several: a thread may take several iterations, which are unrolled.

    Choices: `BLOCK.threads` of a group, and `BLOCK.each`, the iterations of a thread if it may take several.
    """
    flat = _independent(s, name, loops, "spread_declined")
    if flat is None:
        return False
    n = int_const(s.loop(flat).extent)
    threads = choose_threads(s, f"{name}.threads", threads_for(machine, n, wanted), most_threads(machine))
    k = s.choose(f"{name}.each", EACH, each(machine, n, threads)) if several else 1
    if k > 1:
        group, own, thread = s.split(flat, [None, k, threads])
        s.reorder(group, thread, own)
        s.serial(own)
        s.unroll(own)
    else:
        group, thread = s.split(flat, [None, threads])
    s.bind(group, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    return True


def share(s: Schedule, name: str, loops: list[str], threads: int, axis: LoopKind = "threadIdx.x") -> bool:
    """Gives loops of a block, which lie inside a group, to the group's threads, in turns; False if they are not
    independent.

    Neighbouring threads take neighbouring iterations.
    """
    flat = _independent(s, name, loops, "share_declined")
    if flat is None:
        return False
    n = int_const(s.loop(flat).extent)
    if n is None or n > threads:
        turns, thread = s.split(flat, [None, threads])
        inside = [f.var.name for f in nest_of(s.loop(turns).body)[1:]]
        inner = [x for x in inside if s.loop(x).kind.startswith("threadIdx")]
        s.reorder(thread, *inner, turns)
        s.serial(turns)
    else:
        thread = flat
    s.bind(thread, axis)
    return True


def share_both(s: Schedule, name: str, loops: list[str], along: int, beside: int) -> bool:
    """As `share`, by groups of `along` threads along x and `beside` along y."""
    flat = _independent(s, name, loops, "share_declined")
    if flat is None:
        return False
    turns, y, x = s.split(flat, [None, beside, along])
    s.reorder(y, x, turns)
    s.serial(turns)
    s.bind(y, "threadIdx.y")
    s.bind(x, "threadIdx.x")
    return True


def spatial_loops(s: Schedule, name: str) -> list[str]:
    """The outermost loops of a block's own nest that drive spatial iterators alone, those of scans left out."""
    block, loops = s.block(name), s.loops(name)
    kinds: dict[str, set[str]] = {}
    for i, b in zip(block.iters, block.bindings):
        for v in free_vars(b):
            kinds.setdefault(v, set()).add(i.kind)
    found: list[str] = []
    for x in loops:
        if kinds.get(x) != {"spatial"}:
            break
        found.append(x)
    return found


def sequential(s: Schedule) -> set[str]:
    """Loops whose iterations come one after another: those of scans."""
    return {
        v
        for b in access.blocks_of(s.program)
        for i, x in zip(b.iters, b.bindings)
        if i.kind == "scan"
        for v in free_vars(x)
    }


def top_statements(stmt: Stmt) -> list[Stmt]:
    """What stands one after another under nothing but allocations and definitions: the launches of a Program."""
    if isinstance(stmt, Seq):
        return [x for c in stmt.stmts for x in top_statements(c)]
    if isinstance(stmt, (Allocate, Let)):
        return top_statements(stmt.body)
    return [stmt]


def nest_of(stmt: Stmt) -> list[For]:
    """The loops directly inside one another, from the statement inwards."""
    found: list[For] = []
    while isinstance(stmt, For):
        found.append(stmt)
        stmt = stmt.body
    return found
