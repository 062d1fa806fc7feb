"""The choice of product tiles (of a group, of a thread, and of the sum), by a model of a core's cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from weft.dtypes import DType
from weft.machine import Machine
from weft_gpu.schedules.threads import grid_of, shared_of_core, shared_of_group

SPARE_REGISTERS = 32
"""Registers of a thread that addresses, counters and what is on its way from memory take."""
MOST_REGISTERS = 255
"""Registers that one thread can name."""
AHEAD_THREADS = 2
"""As many threads for one hide how long memory takes where operands are brought a step ahead."""
LEAST_STEPS = 3
"""Steps of a sum from which on it is worth bringing operands ahead."""
CPU_THREADS = 64
"""Threads of a group at most where they are no more than iterations of a loop on a CPU."""


@dataclass(frozen=True)
class Tile:
    """A tile: `threads` (rows, columns) of a group, of which each has `each` (rows, columns) elements; `depth` terms of
    the sum at a time. `ahead`: their operands are brought into shared memory, which has room for two steps, while the
    step before is computed."""

    threads: tuple[int, int]
    each: tuple[int, int]
    depth: int
    ahead: bool = False

    def __str__(self) -> str:
        return (
            f"{self.threads[0]}x{self.threads[1]} of {self.each[0]}x{self.each[1]} by"
            f" {self.depth}{' ahead' if self.ahead else ''}"
        )

    @property
    def rows(self) -> int:
        return self.threads[0] * self.each[0]

    @property
    def columns(self) -> int:
        return self.threads[1] * self.each[1]


@dataclass(frozen=True)
class Problem:
    """A product as tiles see it: extents (symbolic ones guessed), how the sum is cut, and what the operands are."""

    batch: int
    rows: int
    columns: int
    terms: int
    depth_unit: int
    """The depth of a tile is a multiple of it: taps of a window that stay together."""
    dtype: DType
    staged: tuple[int, int]
    """Bytes of one element of each operand as it is staged: rows', columns'."""
    turned: tuple[bool, bool] = (False, False)
    """Whether it is contiguous along the sum, so that copies turn it round: what neighbouring threads store lies in one
    bank."""


@lru_cache(maxsize=1024)
def choose_tile(p: Problem, machine: Machine) -> Tile:
    """The tile whose groups take the least time, of those that fit."""
    return min(candidates(p, machine), key=lambda t: (cycles(p, t, machine), t.threads[0] * t.threads[1], t.each))


def candidates(p: Problem, machine: Machine) -> list[Tile]:
    """Tiles that the machine's limits allow and that do not reach far beyond the product's ends; at least one."""
    grid = grid_of(machine)
    shared = shared_of_group(machine)
    lanes = max(1, machine.lanes(p.dtype))
    if grid.warp == 1:
        shared = min(shared or machine.caches[0], machine.caches[0])
    sizes = sorted({1, 2, 4, 8, *([lanes] if lanes <= 8 else [])})
    found = []
    for ty, tx, rows, columns in product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), sizes, sizes):
        threads = ty * tx
        if (
            threads > grid.threads
            or tx > grid.threads_per_axis[0]
            or ty > grid.threads_per_axis[1]
            or threads > (512 if grid.warp > 1 else CPU_THREADS)
        ):
            continue
        if ty * rows >= 2 * max(1, p.rows) or tx * columns >= 2 * max(1, p.columns):
            continue
        if (
            registers(rows, columns, p.dtype) * threads > grid.registers
            or registers(rows, columns, p.dtype) > MOST_REGISTERS
        ):
            continue
        for depth in depths(p, machine):
            several = grid.warp > 1 and p.terms >= LEAST_STEPS * depth
            for tile in (
                Tile((ty, tx), (rows, columns), depth, ahead) for ahead in ((False, True) if several else (False,))
            ):
                if shared is None or room(p, tile) <= shared:
                    found.append(tile)
    return found or [Tile((1, 1), (1, 1), 1)]


def registers(rows: int, columns: int, dtype: DType) -> int:
    """Of 32 bits, that a thread takes for its results and operands."""
    return (rows * columns + rows + columns) * max(1, dtype.scalar.bytes // 4) + SPARE_REGISTERS


def depths(p: Problem, machine: Machine) -> list[int]:
    """How many terms of the sum may be staged at once."""
    wanted = (8, 16, 32) if grid_of(machine).warp > 1 else (16, 32, 64, 128)
    return sorted({max(1, min(w, p.terms) // p.depth_unit) * p.depth_unit for w in wanted})


def padding(machine: Machine, dtype: DType) -> int:
    """Elements between the rows of a staged operand that keep threads, which write along its columns, from one bank."""
    return machine.lanes(dtype) if grid_of(machine).warp > 1 else 0


def shared_bytes(p: Problem, t: Tile) -> int:
    """Of both staged tiles."""
    return t.depth * (t.rows * p.staged[0] + t.columns * p.staged[1])


def room(p: Problem, t: Tile) -> int:
    """Bytes of shared memory that a group takes."""
    return shared_bytes(p, t) * (2 if t.ahead else 1)


def memory_bytes(machine: Machine) -> float:
    """Bytes that one core gets from far memory in a cycle, while all cores ask."""
    return machine.rates.per_cycle(machine.rates.memory.read(machine.cores))


def turns(p: Problem, t: Tile, machine: Machine) -> int:
    """Cycles in which a warp reads what its threads need of both operands for one term: each of their vectors takes
    one, or as many as its bytes."""
    across = min(t.threads[1], grid_of(machine).warp)
    down = max(1, min(t.threads[0], grid_of(machine).warp // across))
    total, at_once = 0, int(machine.rates.grid.shared_bytes_per_cycle)
    for each, apart, size in ((t.each[0], down, p.staged[0]), (t.each[1], across, p.staged[1])):
        vector = min(each, max(1, machine.vector_bits // 8 // size))
        total += -(-each // vector) * max(1, -(-apart * vector * size // at_once))
    return total


def stores(p: Problem, t: Tile, machine: Machine) -> float:
    """Cycles in which the threads of a group store one step's operands into shared memory."""
    total = 0.0
    for extent, size, turned in zip((t.rows, t.columns), p.staged, p.turned):
        lanes = max(1, machine.vector_bits // 8 // size)
        conflicts = max(1, min(grid_of(machine).warp, t.depth // lanes)) if turned else 1
        total += t.depth * extent * size / machine.rates.grid.shared_bytes_per_cycle * conflicts
    return total


def cycles(p: Problem, t: Tile, machine: Machine) -> float:
    """Of the whole product on the machine.

    A core is busy with the groups that it has at once; what bounds it is arithmetic, shared memory or far memory,
    whichever is slowest. Where fewer threads are there than hide how long memory takes, it waits.
    """
    grid, costs, from_memory = grid_of(machine), machine.rates.grid, memory_bytes(machine)
    groups = p.batch * -(-p.rows // t.rows) * -(-p.columns // t.columns)
    threads = t.threads[0] * t.threads[1]
    steps = -(-p.terms // t.depth)
    work = float(steps * t.depth * t.rows * t.columns)
    arithmetic = 2 * work / max(1, machine.flops(p.dtype))
    fetched = steps * shared_bytes(p, t)
    if grid.warp == 1:
        # What threads share lies in the first cache; a group is one core's loop, and nobody waits for memory but the
        # core itself.
        loads = steps * t.depth * threads * (t.each[0] + t.each[1]) * machine.rates.load_cycles
        group = work + loads + fetched / from_memory + steps * threads * costs.looped_thread_cycles
        return group * max(1.0, groups / machine.cores)
    warps = -(-threads // grid.warp)
    idle = warps * grid.warp / threads
    read = steps * (t.depth * warps * turns(p, t, machine) + stores(p, t, machine))
    resident = max(
        1,
        min(grid.resident // (warps * grid.warp), grid.registers // (registers(*t.each, p.dtype) * warps * grid.warp)),
    )
    shared = shared_of_core(machine)
    if shared:
        resident = max(1, min(resident, shared // max(1, room(p, t))))
    at_once = max(1, min(resident, -(-groups // machine.cores)))
    waiting = max(1.0, costs.busy_threads / (at_once * threads * (AHEAD_THREADS if t.ahead else 1)))
    bound = max(arithmetic * idle, read, fetched / from_memory)
    step = costs.ahead_step_cycles if t.ahead else costs.step_cycles
    group = bound * math.sqrt(waiting) + (steps * step + costs.group_cycles) / at_once
    return group * -(-groups // machine.cores)
