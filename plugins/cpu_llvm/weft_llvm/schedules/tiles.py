"""The cost model of register tiles: cycles of a contraction's inner loops from the machine's registers and ports.

A tile holds rows × columns vectors of accumulators; a step of the reduction loads `columns` vectors, broadcasts `rows` scalars, and issues
rows × columns multiply-adds. Its time is the longest of: issue of multiply-adds, loads, and the latency chain of one accumulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.dtypes import DType
from weft.machine import Machine

FMA_LATENCY = 4
LOADS_PER_CYCLE = 2.0
STEP_OVERHEAD = 0.5
"""Cycles of a reduction step beside the arithmetic: counting, addresses, what the caches do not hide."""


@dataclass(frozen=True)
class Tile:
    """`rows` broadcast operands by `columns` vectors."""

    rows: int
    columns: int


def step_cycles(tile: Tile, machine: Machine, dtype: DType) -> float:
    """Cycles of one reduction step of a full tile."""
    lanes = machine.lanes(dtype)
    fma_per_cycle = max(0.5, machine.flops(dtype) / (2 * lanes))
    accumulators = tile.rows * tile.columns
    return max(accumulators / fma_per_cycle, (tile.rows + tile.columns) / LOADS_PER_CYCLE, float(FMA_LATENCY))


def fits(tile: Tile, machine: Machine) -> bool:
    """Whether accumulators, one row of operands and a broadcast stay in registers (AVX-512 broadcasts from memory in the multiply-add).

    A single row uses each vector once, so it stays in memory.
    """
    spare = (tile.columns if tile.rows > 1 else 1) + (0 if machine.vector_bits >= 512 else 1)
    return tile.rows * tile.columns + spare <= machine.vector_registers


def choose_tile(rows: int | None, columns: Iterable[int], vectors: int, machine: Machine, dtype: DType, step_overhead: float = STEP_OVERHEAD) -> Tile:
    """The cheapest tile.

    Args:
        rows: extent of the row loop (None: symbolic, tails do not matter).
        columns: candidates for vectors per tile.
        vectors: extent of the column loop in vectors; a tail tile is as dear as its own shape.
        step_overhead: cycles of each reduction step beside the arithmetic (address computation, loop).
    """
    best: tuple[float, int, Tile] | None = None
    for c in columns:
        for r in range(1, machine.vector_registers):
            tile = Tile(r, c)
            if not fits(tile, machine) or (rows is not None and r > rows):
                continue
            total = 0.0
            for count_c, c_part in ((vectors // c, c), (1 if vectors % c else 0, vectors % c)):
                if not count_c:
                    continue
                if rows is None:
                    total += count_c * (step_cycles(Tile(r, c_part), machine, dtype) + step_overhead) / r
                    continue
                total += count_c * (rows // r) * (step_cycles(Tile(r, c_part), machine, dtype) + step_overhead)
                if rows % r:
                    total += count_c * (step_cycles(Tile(rows % r, c_part), machine, dtype) + step_overhead)
            key = (total, -r * c, tile)
            if best is None or key[:2] < best[:2]:
                best = key
    assert best is not None
    return best[2]
