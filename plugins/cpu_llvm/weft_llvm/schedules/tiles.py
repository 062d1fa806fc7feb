"""The cost model of register tiles: cycles of a contraction's inner loops from the machine's registers, ports and caches.

A tile holds rows × columns vectors of accumulators; a step of the reduction loads `columns` vectors, broadcasts `rows` scalars, and issues
rows × columns multiply-adds. Its time is the longest of: issue of multiply-adds, loads, the latency chain of one accumulator, and
what the vectors take from the cache where they lie (the first row of tiles has them from further away than the ones that follow).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.dtypes import DType
from weft.machine import Machine

FMA_LATENCY = 4
LOAD_CYCLES, BROADCAST_CYCLES = 0.5, 0.8
"""Of a vector, and of a scalar into all lanes: those of neighbouring rows mostly want the same bank of the first cache."""
STEP_OVERHEAD = 0.5
"""Cycles of a reduction step beside the arithmetic: counting, addresses, what the caches do not hide."""
CACHE_BYTES_PER_CYCLE = (64.0, 28.0, 22.0)
"""What one core takes from the first, second and third cache."""
MEMORY_BYTES_PER_CYCLE = 6.0
UNHIDDEN = 0.1
"""The part of the time in which vectors come from a cache beyond the first that adds to the rest."""


@dataclass(frozen=True)
class Tile:
    """`rows` broadcast operands by `columns` vectors; the rows are taken in `parts` of equal length, each of which ends with a tile of its own."""

    rows: int
    columns: int
    parts: int = 1


def step_cycles(tile: Tile, machine: Machine, dtype: DType, bytes_per_cycle: float | None = None) -> float:
    """Cycles of one reduction step of a full tile, its vectors coming at `bytes_per_cycle` (None: from the first cache)."""
    lanes = machine.lanes(dtype)
    fma_per_cycle = max(0.5, machine.flops(dtype) / (2 * lanes))
    accumulators = tile.rows * tile.columns
    streamed = 0.0 if bytes_per_cycle is None else tile.columns * machine.vector_bits / 8 / bytes_per_cycle
    busy = max(accumulators / fma_per_cycle, tile.columns * LOAD_CYCLES + tile.rows * BROADCAST_CYCLES, float(FMA_LATENCY), streamed)
    return busy + UNHIDDEN * min(busy, streamed)


def held(tile: Tile, machine: Machine) -> int:
    """Registers beside the accumulators: the fewer operands are held, the others come one after another (or from memory in the multiply-add)."""
    broadcast_from_memory = machine.vector_bits >= 512
    if tile.rows == 1:
        return 1 if broadcast_from_memory else 2
    if rows_inside(tile):
        return tile.rows + 1
    return tile.columns + (0 if broadcast_from_memory else 1)


def rows_inside(tile: Tile) -> bool:
    """Whether the tile is computed column after column, its rows' broadcasts held: where rows are fewer than columns."""
    return 1 < tile.rows < tile.columns


def fits(tile: Tile, machine: Machine, spare: int = 0) -> bool:
    """Whether accumulators and operands stay in registers, `spare` of which hold something else. A single row uses each vector once, so it stays in memory."""
    return tile.rows * tile.columns + held(tile, machine) + spare <= machine.vector_registers


def cache_rate(size: float, machine: Machine) -> float | None:
    """Bytes per cycle at which `size` bytes that are read again and again come; None from the first cache, which the loads' ports count already."""
    if size <= machine.caches[0] * 0.75:
        return None
    for level in (1, 2):
        if size <= machine.caches[level] * 0.75:
            return CACHE_BYTES_PER_CYCLE[level]
    return MEMORY_BYTES_PER_CYCLE


def choose_tile(
    rows: int | None,
    columns: Iterable[int],
    vectors: int,
    machine: Machine,
    dtype: DType,
    step_overhead: float = STEP_OVERHEAD,
    depth: int | None = None,
    spare: int = 0,
    taps: bool = False,
    whole: bool = False,
    most_parts: int = 1,
) -> Tile:
    """The cheapest tile.

    Args:
        rows: extent of the row loop (None: symbolic, tails do not matter).
        columns: candidates for vectors per tile.
        vectors: extent of the column loop in vectors; a tail tile is as dear as its own shape.
        step_overhead: cycles of each reduction step beside the arithmetic (address computation, loop).
        spare: registers that hold something else.
        taps: the body holds several steps, among which the compiler holds a vector more where vectors come one after another.
        depth: steps of the reduction; None: the vectors are taken to come from the first cache.
        whole: tiles must divide the rows, behind which others go on.
        most_parts: into how many parts the rows may be cut, so that no last tile is too low to keep the multipliers busy.
    """
    best: tuple[float, int, Tile] | None = None
    vector_bytes = machine.vector_bits // 8
    # Each column of tiles has its vectors once from where all of them lie; rows of tiles that follow have them from where one column stays.
    first = None if depth is None else cache_rate(depth * vectors * vector_bytes, machine)
    for c in columns:
        again = None if depth is None else cache_rate(depth * c * vector_bytes, machine)
        for r in range(1, machine.vector_registers):
            tile = Tile(r, c)
            if not fits(tile, machine, 0 if r * c == 1 else spare + (taps and rows_inside(tile))) or (rows is not None and (r > rows or (whole and rows % r))):
                continue
            for parts in range(1, most_parts + 1):
                if rows is not None and (rows % parts or (parts > 1 and rows // parts < r)):
                    continue
                total = tiles_cycles(None if rows is None else rows // parts, tile, vectors, parts, machine, dtype, first, again, step_overhead)
                key = (total, -r * c, Tile(r, c, parts))
                if best is None or key[:2] < best[:2]:
                    best = key
    assert best is not None
    return best[2]


def tiles_cycles(
    rows: int | None, tile: Tile, vectors: int, parts: int, machine: Machine, dtype: DType, first: float | None, again: float | None, overhead: float
) -> float:
    """Cycles of a reduction step of all tiles, `parts` times `rows` rows (None: of one row); see choose_tile."""
    total = 0.0
    for count, columns in ((vectors // tile.columns, tile.columns), (1 if vectors % tile.columns else 0, vectors % tile.columns)):
        if not count:
            continue
        full = Tile(tile.rows, columns)
        if rows is None:
            total += count * (step_cycles(full, machine, dtype, again) + overhead) / tile.rows
            continue
        repeated = step_cycles(full, machine, dtype, again) + overhead
        total += count * (step_cycles(full, machine, dtype, first) + overhead + (parts * (rows // tile.rows) - 1) * repeated)
        if rows % tile.rows:
            total += count * parts * (step_cycles(Tile(rows % tile.rows, columns), machine, dtype, again) + overhead)
    return total
