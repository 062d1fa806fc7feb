"""The cost model of register tiles: cycles of a contraction's inner loops from the machine's registers, ports and
caches.

A tile holds rows × columns vectors of accumulators; a step of the reduction loads `columns` vectors, broadcasts `rows`
scalars, and issues rows × columns multiply-adds. Its time is the longest of: issue of multiply-adds, loads, the latency
chain of one accumulator, and what the vectors take from the cache where they lie (the first row of tiles has them from
further away than the ones that follow). Rows that share sets of the first cache cost more, see `conflict_cycles`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, inf

from weft.dtypes import DType
from weft.machine import Machine

SHARED_REGISTERS, SPILLED = 3, 4
"""Operands that the compiler keeps for the next tap where taps overlap; those of a whole window that may go to the
stack."""
DOT_COLUMNS = (1, 2, 3, 4, 6, 8)
"""Columns of a tile of dot products."""
NEARLY_CHEAPEST = 1.05
"""Where rows are open, the smallest tile is taken that costs at most so many times as much as the cheapest."""
TYPICAL_ROWS = 28
"""Rows of a convolution by channel, on the average, where they are open: pixels of a picture's row inside a model."""
PARTLY = 1.3
"""Cost of a tile that asks for each of its rows whether it is there, of one that does not."""


@dataclass(frozen=True)
class Tile:
    """`rows` broadcast operands by `columns` vectors; the rows are taken in `parts` of equal length, each of which ends
    with a tile of its own."""

    rows: int
    columns: int
    parts: int = 1


@dataclass(frozen=True)
class Window:
    """Taps of an unrolled body that overlap with those of neighbouring rows of a tile: `step` elements from row to row,
    `taps` contiguous taps.

    `lanes`: the shared elements are vectors, as in a depthwise convolution, not scalars that are broadcast."""

    step: int
    taps: int
    lanes: bool = False

    def registers(self, rows: int, machine: Machine) -> int:
        """Registers of a tile of `rows` rows that fill with what several taps read, which the compiler reads once.

        Where it could take a broadcast from memory in the multiply-add it still keeps all of them, and writes those
        that find no register to the stack: vectors in place of scalars. A few do no harm.
        """
        if self.lanes:
            return 2 * SHARED_REGISTERS
        if broadcasts_from_memory(machine):
            return max(0, (rows - 1) * self.step + self.taps - SPILLED)
        return SHARED_REGISTERS


def broadcasts_from_memory(machine: Machine) -> bool:
    """Whether a multiply-add takes a scalar from memory into all lanes."""
    return machine.vector_bits >= 512


def step_cycles(tile: Tile, machine: Machine, dtype: DType, bytes_per_cycle: float | None = None) -> float:
    """Cycles of one reduction step of a full tile, its vectors coming at `bytes_per_cycle` (None: from the first
    cache)."""
    lanes = machine.lanes(dtype)
    fma_per_cycle = max(0.5, machine.flops(dtype) / (2 * lanes))
    accumulators = tile.rows * tile.columns
    streamed = 0.0 if bytes_per_cycle is None else tile.columns * machine.vector_bits / 8 / bytes_per_cycle
    rates = machine.rates
    loads = tile.columns * rates.load_cycles + tile.rows * rates.broadcast_cycles
    busy = max(accumulators / fma_per_cycle, loads, rates.multiply_add_latency_cycles, streamed)
    return busy + rates.cache_unhidden * min(busy, streamed)


def conflict_cycles(rows: int, apart: int | None, machine: Machine) -> float:
    """Cycles of a step in which broadcasts come from the second cache, since rows `apart` bytes from each other share
    sets of the first.

    A line holds the next steps' scalars too, so it should stay; where more rows than a set has ways want the same set,
    it does not. One way is left to the vectors that stream through. Rows that are a multiple of the bytes of one way
    apart (4096 on most) all want the same.
    """
    if apart is None or rows < 2:
        return 0.0
    way = machine.caches[0] // max(1, machine.ways) // machine.cache_line * machine.cache_line
    if not way:
        return 0.0
    sets = way // gcd(way, max(apart, machine.cache_line))
    crowd = -(-rows // sets)
    if crowd < max(2, machine.ways):
        return 0.0
    from_second = machine.rates.per_cycle(machine.rates.second_cache.read())
    return (crowd - machine.ways + 1) * min(sets, rows) * machine.cache_line / from_second


def held(tile: Tile, machine: Machine) -> int:
    """Registers beside the accumulators: the fewer operands are held, the others come one after another (or from memory
    in the multiply-add).

    One is always left: with none, the compiler spills accumulators as soon as an epilogue has constants of its own.
    """
    if tile.rows == 1:
        return 2
    if rows_inside(tile):
        return tile.rows + 1
    return tile.columns + 1


def rows_inside(tile: Tile) -> bool:
    """Whether the tile is computed column after column, its rows' broadcasts held: where rows are fewer than
    columns."""
    return 1 < tile.rows < tile.columns


def fits(tile: Tile, machine: Machine, spare: int = 0) -> bool:
    """Whether accumulators and operands stay in registers, `spare` of which hold something else. A single row uses each
    vector once, so it stays in memory."""
    return tile.rows * tile.columns + held(tile, machine) + spare <= machine.vector_registers


def cache_rate(size: float, machine: Machine) -> float | None:
    """Bytes per cycle at which `size` bytes that are read again and again come; None from the first cache, which the
    loads' ports count already."""
    if size <= machine.caches[0] * 0.75:
        return None
    for level in (1, 2):
        if size <= machine.caches[level] * 0.75:
            return machine.rates.per_cycle(machine.rates.caches[level].read())
    return machine.rates.per_cycle(machine.rates.memory.read())


def choose_tile(
    rows: int | None,
    columns: Iterable[int],
    vectors: int,
    machine: Machine,
    dtype: DType,
    depth: int | None = None,
    spare: int = 0,
    window: Window | None = None,
    taps: bool = False,
    most_parts: int = 1,
    apart: int | None = None,
) -> tuple[float, Tile]:
    """Cycles of one step of the reduction for all rows and columns, and the cheapest tile.

    Args:
        rows: extent of the row loop. None: symbolic, so that the last tile asks for each row whether it is there, which
            the cost of whole tiles does not show: of nearly equal tiles the smallest, whose code is short as well. Of
            rows that share vectors (see `window`), which are read once however high tiles are, the tile that takes
            least time for up to twice `TYPICAL_ROWS`.
        columns: candidates for vectors per tile.
        vectors: extent of the column loop in vectors; a tail tile is as dear as its own shape.
        spare: registers that hold something else.
        window: taps that share elements with neighbouring rows.
        taps: the body holds several steps, among which the compiler holds a vector more where vectors come one after
            another.
        depth: steps of the reduction; None: the vectors are taken to come from the first cache.
        most_parts: into how many parts the rows may be cut, so that no last tile is too low to keep the multipliers
            busy.
        apart: bytes from one row's scalar to the next row's; None: rows do not share sets of the first cache.
    """
    found: list[tuple[float, int, int, Tile]] = []
    columns = list(columns)
    shared = rows is None and window is not None and window.lanes
    vector_bytes = machine.vector_bits // 8
    # Each column of tiles has its vectors once from where all of them lie; rows of tiles that follow have them from
    # where one column stays.
    first = None if depth is None else cache_rate(depth * vectors * vector_bytes, machine)
    for c in columns:
        again = None if depth is None else cache_rate(depth * c * vector_bytes, machine)
        for r in range(1, machine.vector_registers):
            tile = Tile(r, c)
            beside = spare + (0 if window is None else window.registers(r, machine)) + (taps and rows_inside(tile))
            if not fits(tile, machine, 0 if r * c == 1 else beside) or (rows is not None and r > rows):
                continue
            for parts in range(1, most_parts + 1):
                if rows is not None and (rows % parts or (parts > 1 and rows // parts < r)):
                    continue
                height = None if rows is None else rows // parts
                total = tiles_cycles(height, tile, vectors, parts, machine, dtype, first, again, apart)
                total *= r * tiles_per_row(r) if shared else 1.0
                # Of tiles that cost the same those whose last one is highest: a low one has little to do while it waits
                # for its vectors.
                last = r if rows is None else (rows // parts) % r or r
                found.append((round(total, 6), -last * c, -r * c, Tile(r, c, parts)))
    if not found:  # so few registers that nothing fits: what spills least
        return inf, Tile(1, min(columns))
    cycles, _, _, tile = min(found, key=lambda f: f[:3])
    if rows is None and not shared:
        near = [(-size, total, tile) for total, _, size, tile in found if total <= NEARLY_CHEAPEST * cycles]
        _, cycles, tile = min(near, key=lambda n: n[:2])
    return cycles, tile


def tiles_cycles(
    rows: int | None,
    tile: Tile,
    vectors: int,
    parts: int,
    machine: Machine,
    dtype: DType,
    first: float | None,
    again: float | None,
    apart: int | None,
) -> float:
    """Cycles of a reduction step of all tiles, `parts` times `rows` rows (None: of one row); see choose_tile."""
    total = 0.0
    for count, columns in (
        (vectors // tile.columns, tile.columns),
        (1 if vectors % tile.columns else 0, vectors % tile.columns),
    ):
        if not count:
            continue
        full = Tile(tile.rows, columns)
        beside = machine.rates.loop_step_cycles + conflict_cycles(tile.rows, apart, machine)
        if rows is None:
            total += count * (step_cycles(full, machine, dtype, again) + beside) / tile.rows
            continue
        repeated = step_cycles(full, machine, dtype, again) + beside
        total += count * (
            step_cycles(full, machine, dtype, first) + beside + (parts * (rows // tile.rows) - 1) * repeated
        )
        if rest := rows % tile.rows:
            last = step_cycles(Tile(rest, columns), machine, dtype, again) + machine.rates.loop_step_cycles
            total += count * parts * (last + conflict_cycles(rest, apart, machine))
    return total


def tiles_per_row(height: int) -> float:
    """Tiles of so many rows that a number of rows up to twice `TYPICAL_ROWS` takes, of one row: the last one, which is
    not known to be whole, counts `PARTLY`."""
    most = 2 * TYPICAL_ROWS
    tiles = sum((n - 1) // height + PARTLY for n in range(1, most + 1))
    return tiles / (most * (most + 1) / 2)


def choose_dot_tile(rows: int, columns: int, depth: int, machine: Machine, dtype: DType) -> tuple[float, Tile]:
    """Cycles and the cheapest tile of rows × columns dot products of `depth` elements, lanes being partial sums: both
    operands are read in vectors.

    All rows are read again for every column of tiles, a tile's columns for every row of tiles; of tiles that cost the
    same the highest. Adding up the lanes is left out.
    """
    lanes, size, rates = machine.lanes(dtype), machine.vector_bits // 8, machine.rates
    fma_per_cycle = max(0.5, machine.flops(dtype) / (2 * lanes))
    row_bytes = dtype.bytes * depth
    rows_rate = cache_rate(row_bytes * rows, machine)

    def step(r: int, c: int) -> float:
        columns_rate = cache_rate(row_bytes * c, machine)
        streamed = sum(n * size / rate for n, rate in ((r, rows_rate), (c, columns_rate)) if rate is not None)
        busy = max(r * c / fma_per_cycle, (r + c) * rates.load_cycles, rates.multiply_add_latency_cycles, streamed)
        return busy + rates.cache_unhidden * min(busy, streamed) + rates.loop_step_cycles

    best: tuple[float, int, Tile] | None = None
    for c in DOT_COLUMNS:
        for r in range(1, min(rows, machine.vector_registers) + 1):
            if c > columns or r * c + (min(r, c) if r * c > 1 else 0) + 1 > machine.vector_registers:
                continue
            heights = (rows // r) * step(r, c) + (step(rows % r, c) if rows % r else 0.0)
            key = (round(depth / lanes * columns / c * heights, 3), -r, Tile(r, c))
            best = key if best is None or key[:2] < best[:2] else best
    assert best is not None
    return best[0], best[2]
