"""The choice of attention tiles (queries of a group, keys of a step, the part of each thread), by a model of a core's
cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from weft.dtypes import float32
from weft.machine import Machine
from weft.scheduling.access import UNKNOWN_EXTENT
from weft_gpu.schedules.threads import grid_of, shared_of_core, shared_of_group
from weft_gpu.schedules.tiles import (
    CPU_THREADS,
    SPARE_REGISTERS,
    Problem,
    Tile,
    memory_bytes,
    turns,
)

SOFTMAX_FLOPS = 40
"""Operations that each score takes beyond both products: exponential, maximum, sum, and its way through shared
memory."""
STEP_PHASES, STAGE_PHASES = 8, 2
"""Phases of a step, and for each part of the features that is staged at once: between two of them the threads of a
group wait for each other."""
CPU_ELEMENTS = 8
"""Scores, and elements of the result, that a thread has at most where threads are a loop on a CPU: what is unrolled for
more takes its compiler minutes."""
MOST_HELD = 192
"""Registers of a thread at most: what a compiler takes beyond these is its own."""
MOST_THREADS = 256
"""Threads of a group: more wait for each other longer."""


@dataclass(frozen=True)
class Attention:
    """Sizes: heads of all batches, queries and keys (None: a run says), features of keys and of values, bytes of an
    element of keys and of values."""

    batch: int
    queries: int | None
    keys: int | None
    size: int
    columns: int
    key_bytes: int
    value_bytes: int


@dataclass(frozen=True)
class AttentionTile:
    """`threads` (down, across) of a group, of which each has so many `rows` (queries) and `keys` of a tile of scores;
    `depth` features staged at once."""

    threads: tuple[int, int]
    rows: int
    keys: int
    depth: int

    def __str__(self) -> str:
        return f"{self.threads[0]}x{self.threads[1]} of {self.rows}x{self.keys} by {self.depth}"

    @property
    def queries_inside(self) -> int:
        return self.threads[0] * self.rows

    @property
    def keys_inside(self) -> int:
        return self.threads[1] * self.keys


def values_of(columns: int, across: int, lanes: int) -> int:
    """Columns of the result that one thread has: whole vectors of them, from one on."""
    each = -(-columns // across)
    return each if each <= lanes else -(-each // lanes) * lanes


def lanes_of(machine: Machine) -> int:
    return max(1, machine.lanes(float32))


def candidates(a: Attention, machine: Machine) -> list[AttentionTile]:
    """Tiles that the machine's limits allow, with no more queries and fewer keys than there are: two steps at least."""
    grid = grid_of(machine)
    shared = shared_of_group(machine)
    if grid.warp == 1:
        shared = min(shared or machine.caches[0], machine.caches[0])
    most = min(grid.threads, MOST_THREADS if grid.warp > 1 else CPU_THREADS)
    found = []
    for ty, tx, rows, keys in product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), (1, 2, 4, 8)):
        if ty * tx > most or tx > grid.threads_per_axis[0] or ty > grid.threads_per_axis[1]:
            continue
        if (a.queries is not None and ty * rows > a.queries) or (a.keys is not None and tx * keys >= a.keys):
            continue
        if registers(a, AttentionTile((ty, tx), rows, keys, 1), machine) * ty * tx > grid.registers:
            continue
        if grid.warp == 1 and rows > 1 and rows * max(keys, values_of(a.columns, tx, lanes_of(machine))) > CPU_ELEMENTS:
            continue
        for depth in sorted({a.size, *(d for d in (8, 16, 32, 64) if d < a.size)}):
            tile = AttentionTile((ty, tx), rows, keys, depth)
            if registers(a, tile, machine) <= MOST_HELD and (
                shared is None or shared_bytes(a, tile, machine) <= shared
            ):
                found.append(tile)
    return found


def registers(a: Attention, t: AttentionTile, machine: Machine) -> int:
    """Of 32 bits, that a thread takes: its part of the result, its scores and exponentials, and what it multiplies."""
    values = values_of(a.columns, t.threads[1], lanes_of(machine))
    return t.rows * (values + 2 * t.keys) + t.rows + max(values, t.keys) + SPARE_REGISTERS


def shared_bytes(a: Attention, t: AttentionTile, machine: Machine) -> int:
    """Of a group: its queries, keys and values of a step, exponentials, and what rows and threads hand each other of
    maxima and sums."""
    columns = t.threads[1] * values_of(a.columns, t.threads[1], lanes_of(machine))
    depth = -(-a.size // t.depth) * t.depth
    step = t.keys_inside * (t.depth * a.key_bytes + columns * a.value_bytes + 4 * t.queries_inside)
    return 4 * depth * t.queries_inside + step + 4 * t.queries_inside * (2 * t.threads[1] + 6)


def choose_tile(a: Attention, machine: Machine) -> AttentionTile:
    """The tile whose groups take the least time."""
    return min(candidates(a, machine), key=lambda t: (cycles(a, t, machine), str(t)))


def cycles(a: Attention, t: AttentionTile, machine: Machine) -> float:
    """Of the whole attention on the machine, by the model of `tiles.cycles`: both products, and what the softmax
    between them takes."""
    grid, costs, from_memory = grid_of(machine), machine.rates.grid, memory_bytes(machine)
    queries, keys = a.queries or UNKNOWN_EXTENT, a.keys or UNKNOWN_EXTENT
    values = values_of(a.columns, t.threads[1], lanes_of(machine))
    threads = t.threads[0] * t.threads[1]
    rows, inside = t.queries_inside, t.keys_inside
    depth = -(-a.size // t.depth) * t.depth
    phases = STEP_PHASES + STAGE_PHASES * depth // t.depth
    groups, steps = a.batch * -(-queries // rows), -(-keys // inside)
    work = float(rows * inside * (depth + t.threads[1] * values))
    softmax = rows * inside * SOFTMAX_FLOPS + rows * t.threads[1] * values * 2
    fetched = inside * (depth * a.key_bytes + a.columns * a.value_bytes)
    if grid.warp == 1:
        loads = (depth * (t.rows + t.keys) + inside * (t.rows + values)) * threads * machine.rates.load_cycles
        step = work + softmax / 2 + loads + fetched / from_memory + phases * threads * costs.looped_thread_cycles
        return groups * steps * step / min(groups, machine.cores)
    warps = -(-threads // grid.warp)
    scores = Problem(a.batch, queries, keys, a.size, 1, float32, (4, a.key_bytes))
    weighed = Problem(a.batch, queries, a.columns, keys, 1, float32, (4, a.value_bytes))
    tiles = Tile(t.threads, (t.rows, t.keys), t.depth), Tile(t.threads, (t.rows, values), inside)
    read = warps * (depth * turns(scores, tiles[0], machine) + inside * turns(weighed, tiles[1], machine))
    held = shared_bytes(a, t, machine)
    resident = max(
        1, min(grid.resident // (warps * grid.warp), grid.registers // (registers(a, t, machine) * warps * grid.warp))
    )
    size = shared_of_core(machine)
    if size:
        resident = max(1, min(resident, size // held))
    at_once = max(1, min(resident, -(-groups // machine.cores)))
    waiting = max(1.0, costs.busy_threads / (at_once * threads))
    arithmetic = (2 * work + softmax) / max(1, machine.flops(float32)) * warps * grid.warp / threads
    stored = (fetched + 8 * rows * inside) / costs.shared_bytes_per_cycle
    step = max(arithmetic, read + stored, fetched / from_memory) * math.sqrt(waiting)
    group = steps * (step + phases / 2 * costs.step_cycles / at_once) + costs.group_cycles / at_once
    return group * -(-groups // machine.cores)
