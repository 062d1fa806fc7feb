"""What a schedule may know of a machine: widths, registers, caches, how fast it is. Data only; a target fills it in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from weft.dtypes import DType
from weft.rates import GENERIC, Rates

GLOBAL_ALIGN = 64
"""Default alignment of values in bytes."""


@dataclass(frozen=True)
class Scope:
    """A memory scope: `size` in bytes (None unbounded), `align` in bytes, `shared_by` the units that share it ("all",
    "block", "thread", or the name of a level, each unit of which has a memory of that size).

    `align`, a power of two, is the alignment that the code generator provides for buffers of the scope that require it
    (`Buffer.align`). For scope "global" it is the alignment of all values in the device's memory: inputs, outputs,
    constants, intermediate values, and scratch.
    """

    name: str
    size: int | None = None
    align: int = 64
    shared_by: str = "thread"


@dataclass(frozen=True)
class Level:
    """Units of one kind that work at the same time, such as the matrix arrays of a chip: loops are bound to them
    (`bind(loop, "unit.NAME")`).

    Args:
        name: as in `unit.NAME`.
        units: how many there are; a loop has so many iterations at most.
    """

    name: str
    units: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.units < 1:
            raise ValueError(
                f"a level has a name that is an identifier and 1 unit or more, got {self.name!r} with {self.units}"
            )


@dataclass(frozen=True)
class Transfer:
    """The time of a copy between a device's memory and the host's: `latency`, seconds before the first byte;
    `bandwidth`, bytes a second after it."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def seconds(self, size: float) -> float:
        """Of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Grid:
    """Limits of a machine that runs grids of groups of threads; axes in the order x, y, z.

    Args:
        threads: of one group at most.
        threads_per_axis: extents of a group at most.
        groups_per_axis: extents of a grid at most.
        warp: threads that run in step, and can exchange values if `Machine.features` contains "shuffle"; 1 if none do.
        registers: registers of 32 bits of one group, of all its threads together.
        resident: threads that one core runs at the same time, in one group or several.
        shared: bytes of shared memory of one core, for all its groups; None: for two as large as there may be.
    """

    threads: int = 1024
    threads_per_axis: tuple[int, int, int] = (1024, 1024, 64)
    groups_per_axis: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    warp: int = 32
    registers: int = 65536
    resident: int = 2048
    shared: int | None = None


@dataclass(frozen=True)
class Machine:
    """The description of a processor for schedules.

    Args:
        kind: the kind of target.
        vector_bits: width of a vector register; on a machine with a grid, what one thread moves at a time.
        vector_registers: number of vector registers.
        fma: whether a multiply-add is one instruction.
        masked: whether masked vector loads and stores cost about as much as plain ones.
        caches: bytes of the caches L1, L2 and L3.
        cores: number of cores; on a machine with a grid, a core runs groups of threads.
        flops_per_cycle: name of a dtype or tensor intrinsic → multiplications and additions that one core starts per
            cycle, of one unit of each level.
        features: words of the target for its capabilities, which intrinsics require.
        scopes: name → memory scope.
        cache_line: bytes of a cache line.
        ways: number of lines in a set of L1.
        grid: limits of grids; None: kernels are no grids.
        levels: name → units of one core that work at the same time.
        rates: clock, and costs of memories, instructions, threads and launches.
        transfer: time of copies between its memory and the host's.
    """

    kind: str
    vector_bits: int
    vector_registers: int
    fma: bool = False
    masked: bool = False
    caches: tuple[int, int, int] = (32 << 10, 512 << 10, 8 << 20)
    cores: int = 1
    flops_per_cycle: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    cache_line: int = 64
    ways: int = 8
    grid: Grid | None = None
    levels: Mapping[str, Level] = field(default_factory=dict)
    rates: Rates = GENERIC
    transfer: Transfer = Transfer()

    def __post_init__(self) -> None:
        # A Machine is shared by every schedule of a compilation: the tables must not change under one of them.
        object.__setattr__(self, "flops_per_cycle", MappingProxyType(dict(self.flops_per_cycle)))
        object.__setattr__(self, "scopes", MappingProxyType(dict(self.scopes)))
        object.__setattr__(self, "levels", MappingProxyType(dict(self.levels)))

    def __hash__(self) -> int:
        vectors = self.vector_bits, self.vector_registers, self.fma, self.masked
        return hash((self.kind, vectors, self.caches, self.cores, self.features, self.ways, self.grid, self.rates))

    def __reduce__(self) -> tuple[object, ...]:
        return (
            Machine,
            (
                self.kind, self.vector_bits, self.vector_registers, self.fma, self.masked, self.caches, self.cores,
                dict(self.flops_per_cycle), self.features, dict(self.scopes), self.cache_line, self.ways, self.grid,
                dict(self.levels),
                self.rates, self.transfer,
            ),
        )  # fmt: skip

    def alignment(self, scope: str = "global") -> int:
        """The greatest alignment in bytes that buffers of a scope may require: that of the scope, and at least 64."""
        return max(GLOBAL_ALIGN, self.scopes[scope].align) if scope in self.scopes else GLOBAL_ALIGN

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register; at least 1."""
        return max(1, self.vector_bits // (8 * dtype.scalar.bytes))

    @property
    def units(self) -> int:
        """Units of all levels of one core together."""
        return math.prod(level.units for level in self.levels.values())

    def flops(self, dtype: DType) -> int:
        """FLOP per cycle of one core on `dtype`; types without an entry count as one vector-wide operation per
        cycle."""
        return self.flops_per_cycle.get(dtype.scalar.name, self.lanes(dtype))

    def bytes_per_flop(self, dtype: DType) -> float:
        """Bytes that one core stores in another order in the time of one FLOP on `dtype`."""
        return self.rates.relayout_bytes_per_second / (self.flops(dtype) * self.rates.clock_hz)
