"""How fast a machine is: its clock, its memories, the costs of instructions, threads and launches. Data only.

A target fills in a `Rates`; schedule rules and passes read it off `Machine.rates` and have no such numbers themselves.
The defaults are those of a processor of servers with vectors of 256 bits or more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from weft.errors import TargetError, nearest, shown


@dataclass(frozen=True)
class MemoryRate:
    """How fast cores get at one level of memory: a cache, or main memory. Rates are of sequential addresses.

    Args:
        core_bytes_per_second: that one core reads, the others idle.
        cores_bytes_per_second: that all cores together read; inf: as many times as much as one.
        latency_seconds: of a read whose address depends on the read before.
        core_exchange_bytes_per_second: that one core moves which writes results there and reads them again; None: as it
            reads.
        cores_exchange_bytes_per_second: the same of all cores together; None: as they read.
    """

    core_bytes_per_second: float
    cores_bytes_per_second: float = math.inf
    latency_seconds: float = 0.0
    core_exchange_bytes_per_second: float | None = None
    cores_exchange_bytes_per_second: float | None = None

    def read(self, cores: int = 1) -> float:
        """Bytes a second that each of `cores` reads while all of these do."""
        return min(self.core_bytes_per_second, self.cores_bytes_per_second / cores)

    def exchange(self, cores: int = 1) -> float:
        """Bytes a second that each of `cores` moves while all of these write there and read again."""
        one, every = self.core_exchange_bytes_per_second, self.cores_exchange_bytes_per_second
        one = self.core_bytes_per_second if one is None else one
        return min(one, (self.cores_bytes_per_second if every is None else every) / cores)


@dataclass(frozen=True)
class GridRates:
    """What groups of threads cost on one core of a machine that runs grids.

    Args:
        shared_bytes_per_cycle: of different places that the threads of a warp read from shared memory.
        busy_threads: of a core, in any number of groups, that hide how long memory takes.
        step_cycles: of a group for a step of a sum beyond its work: two barriers, counters.
        ahead_step_cycles: the same where the next step's operands are brought meanwhile: one barrier.
        group_cycles: of a group beyond its steps: it starts, fills its first tile, and stores its results.
        matrix_step_cycles, matrix_ahead_step_cycles, matrix_group_cycles: the same of groups that multiply by
            instructions of whole warps.
        matrix_speedup: of such an instruction over the threads' own multiply-adds, where `Machine.flops_per_cycle` does
            not name it.
        bank_conflicts: how many times as long stores to shared memory take where those of neighbouring threads lie in
            few banks.
        looped_thread_cycles: of a thread for a step of a sum, where threads are iterations of a loop on a CPU.
        launch_seconds: from the end of one launch to where all cores are busy with the next.
    """

    shared_bytes_per_cycle: float = 128.0
    busy_threads: int = 256
    step_cycles: float = 60.0
    ahead_step_cycles: float = 35.0
    group_cycles: float = 1500.0
    matrix_step_cycles: float = 80.0
    matrix_ahead_step_cycles: float = 45.0
    matrix_group_cycles: float = 2500.0
    matrix_speedup: float = 8.0
    bank_conflicts: float = 8.0
    looped_thread_cycles: float = 30.0
    launch_seconds: float = 2e-6


GHZ = 1e9
CPU_HZ = 3 * GHZ
"""Of a CPU of which no other is known. Models count cycles: it matters where they meet what is given in seconds."""


PLAUSIBLE_SECONDS = 600.0
"""Greatest plausible estimate for one kernel or node in seconds: a greater one is probably in bytes, operations or
cycles."""


@dataclass(frozen=True)
class Rates:
    """Speed of a machine; rates are those of one core unless stated otherwise.

    Args:
        clock_hz: cycles a second of a busy core.
        first_cache, second_cache, third_cache, memory: levels of memory: those of `Machine.caches`, and main memory.
        multiply_add_latency_cycles: from a multiply-add to one that uses its result.
        multiply_adds_per_cycle: vectors of multiply-adds that start; None: from the target's table.
            `Machine.flops_per_cycle` follows from it.
        loads_per_cycle, stores_per_cycle: vectors that are read from the first cache, and written to it.
        broadcast_cycles: of a scalar read into all lanes; scalars of neighbouring rows are mostly in one bank of the
            cache.
        loop_step_cycles: overhead of one iteration of a sum: counter, addresses, cache latency that is not hidden.
        lane_sum_cycles: of one lane that is added to the others of its vector.
        transpose_cycles: of one element that is moved from a row to a column.
        new_vector_cycles: of the first use of a vector by a tile, in addition to each use.
        transform_store_cycles: of a vector that a transform of a Winograd convolution stores, its loads and arithmetic
            included.
        cache_unhidden, memory_unhidden: the part of the shorter of arithmetic and reading that does not overlap with
            the longer: for data that is read repeatedly, and for weights that were last read in the previous call.
        uneven: difference of the end times of cores with equal numbers of tasks, as a part of a task's time.
        relayout_bytes_per_second: bytes that are read and written when a value is stored in another layout.
        fork_seconds: until a parallel loop runs on all cores, if their threads are awake.
        join_seconds: from the end of the last thread's part to the next statement.
        wake_seconds: of waking a sleeping thread, caller and thread together.
        grid: rates of a machine that runs grids.
    """

    clock_hz: float = CPU_HZ
    first_cache: MemoryRate = MemoryRate(64 * CPU_HZ, latency_seconds=5 / CPU_HZ)
    second_cache: MemoryRate = MemoryRate(28 * CPU_HZ, latency_seconds=14 / CPU_HZ)
    third_cache: MemoryRate = MemoryRate(
        22 * CPU_HZ, latency_seconds=50 / CPU_HZ, core_exchange_bytes_per_second=8 * CPU_HZ
    )
    memory: MemoryRate = MemoryRate(5 * CPU_HZ, 12.5 * CPU_HZ, 90e-9, cores_exchange_bytes_per_second=20 * GHZ)
    multiply_add_latency_cycles: float = 4.0
    multiply_adds_per_cycle: float | None = None
    loads_per_cycle: float = 2.0
    stores_per_cycle: float = 1.0
    broadcast_cycles: float = 0.8
    loop_step_cycles: float = 0.5
    lane_sum_cycles: float = 1.0
    transpose_cycles: float = 0.7
    new_vector_cycles: float = 4.0
    transform_store_cycles: float = 1.5
    cache_unhidden: float = 0.1
    memory_unhidden: float = 0.35
    uneven: float = 0.05
    relayout_bytes_per_second: float = 8 * CPU_HZ
    fork_seconds: float = 12288 / CPU_HZ
    join_seconds: float = 4096 / CPU_HZ
    wake_seconds: float = 20e-6
    grid: GridRates = GridRates()

    @property
    def load_cycles(self) -> float:
        """Of a vector that is read from the first cache."""
        return 1 / self.loads_per_cycle

    def cycles(self, seconds: float) -> float:
        """Cycles in so many seconds, to a millionth, so that what a table gives in cycles comes back as it was."""
        return round(seconds * self.clock_hz, 6)

    def per_cycle(self, bytes_per_second: float) -> float:
        """Bytes a cycle of a rate in bytes a second."""
        return bytes_per_second / self.clock_hz

    @property
    def caches(self) -> tuple[MemoryRate, MemoryRate, MemoryRate]:
        """The first, second and third."""
        return self.first_cache, self.second_cache, self.third_cache


GENERIC = Rates()
"""Of a machine of which nothing else is known."""
_LEAST, _MOST = 1e-18, 1e18  # of a rate that is read: products and quotients of a few stay finite


def numbers(rates: Rates) -> dict[str, float]:
    """Every rate that is a number, by name; a level's as "memory.core_bytes_per_second"."""
    found: dict[str, float] = {}

    def add(value: Any, name: str) -> None:
        if is_dataclass(value):
            for f in fields(value):
                add(getattr(value, f.name), f"{name}.{f.name}" if name else f.name)
        elif value is not None and math.isfinite(value):
            found[name] = float(value)

    add(rates, "")
    return found


def with_numbers(rates: Rates, values: Mapping[str, Any], where: str | None = None) -> Rates:
    """`rates` with others by name, as `numbers` gives them.

    Raises:
        TargetError: there is no such rate, or a value is no number above 0.
    """
    for name, value in values.items():
        rates = _with(rates, name.split("."), value, name, where)
    return rates


def _with(rates: Any, path: list[str], value: Any, name: str, where: str | None) -> Any:
    known = [f.name for f in fields(rates)]
    now = getattr(rates, path[0], None)
    if path[0] not in known or is_dataclass(now) != (len(path) > 1):
        close = nearest(name, [*numbers(GENERIC), *_OPEN])
        hint = f"did you mean '{close}'?" if close else "weft probe --output FILE writes a file with all rates"
        raise TargetError(f"there is no rate '{name}'", where=where, hint=hint)
    if len(path) > 1:
        return replace(rates, **{path[0]: _with(now, path[1:], value, name, where)})
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and _LEAST <= value <= _MOST
    if not number or (isinstance(now, int) and value < 1):
        least = "1" if isinstance(now, int) else f"{_LEAST:g}"
        why = f"a rate is a number above 0, from {least} to {_MOST:g}"
        raise TargetError(f"rate '{name}' is {shown(repr(value), 80)}", where=where, why=why)
    return replace(rates, **{path[0]: type(now)(value) if now is not None else float(value)})


def read_numbers(text: str, where: str | None = None) -> dict[str, float]:
    """Rates by name of a JSON text: `{"clock_hz": 3.5e9, "memory.core_bytes_per_second": 12e9}`.

    Raises:
        TargetError: it is no such text; what `with_numbers` raises.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TargetError("rates of a machine do not parse", where=where, why=str(error), hint=_FORM) from None
    if not isinstance(found, dict):
        got = f"got {type(found).__name__}"
        raise TargetError("rates of a machine are a JSON object", where=where, why=got, hint=_FORM)
    with_numbers(GENERIC, found, where)
    return found


_FORM = 'write {"clock_hz": 3.5e9, "memory.core_bytes_per_second": 12e9}: names and units are those of weft.rates.Rates'
_LEVELS = ("first_cache", "second_cache", "third_cache", "memory")
# Of these the table says nothing, or no limit.
_OPEN = (
    "multiply_adds_per_cycle",
    *(f"{level}.{f.name}" for level in _LEVELS for f in fields(MemoryRate)),
)

__all__ = ["CPU_HZ", "GENERIC", "GridRates", "MemoryRate", "Rates", "numbers", "read_numbers", "with_numbers"]
