"""Machines of groups of threads, from the limits that a device reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.machine import Grid, Machine, Scope, Transfer
from weft.rates import GridRates, MemoryRate, Rates

SHARED_ALIGN = 16
"""Bytes: what a thread moves at once begins at a multiple of it."""
TYPICAL_GROUP = 256
"""Threads of a group by which the registers of one thread are counted."""
CLOCK_HZ = 1.5e9
"""Of a GPU of which no other is known. Models count cycles: it tells how they compare with what is given in seconds."""


def grid_machine(
    kind: str,
    *,
    cores: int,
    shared: int,
    threads: int = 1024,
    threads_per_axis: tuple[int, int, int] = (1024, 1024, 64),
    groups_per_axis: tuple[int, int, int] = (2**31 - 1, 65535, 65535),
    warp: int = 32,
    registers: int = 65536,
    resident: int = 2048,
    core_shared: int | None = None,
    vector_bits: int = 128,
    caches: tuple[int, int, int] | None = None,
    cache_line: int = 128,
    flops_per_cycle: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
    clock_hz: float = CLOCK_HZ,
    transfer: Transfer | None = None,
) -> Machine:
    """The machine of a target that runs grids.

    Args:
        kind: the target's name.
        cores: units that run groups (multiprocessors, compute units).
        shared: bytes of shared memory that one group may have.
        threads, threads_per_axis, groups_per_axis, warp, registers, resident: as `weft.machine.Grid` has them;
            core_shared is its `shared`.
        vector_bits: what one thread loads or stores at once.
        caches: bytes of the first, second and third; by default the first is as large as `shared`, the second 4 MiB,
            and so is the third.
        flops_per_cycle: dtype's name → multiplications plus additions that one core starts per cycle.
        features: the target's words for what it can do; "shuffle": threads of a warp hand each other values;
            "cp.async": they copy from global to shared memory without waiting for it; "tma": the machine copies boxes
            of tensors there by itself.
        clock_hz: cycles a second of a core.
        transfer: what copies between the device's memory and the host's take; by default nothing.
    """
    limits = Grid(
        threads, threads_per_axis, groups_per_axis, max(1, warp), registers, max(resident, threads), core_shared
    )
    scopes = {
        "shared": Scope("shared", shared, SHARED_ALIGN, "block"),
        "local": Scope("local", None, SHARED_ALIGN, "thread"),
        "register": Scope("register", None, SHARED_ALIGN, "thread"),
    }
    return Machine(
        kind=kind,
        vector_bits=vector_bits,
        vector_registers=max(16, min(255, registers // TYPICAL_GROUP)),
        fma=True,
        masked=False,
        caches=caches or (shared, max(shared, 4 << 20), max(shared, 4 << 20)),
        cores=max(1, cores),
        flops_per_cycle=dict(flops_per_cycle or {}),
        features=frozenset(features),
        scopes=scopes,
        cache_line=cache_line,
        grid=limits,
        rates=grid_rates(max(1, cores), clock_hz),
        transfer=transfer or Transfer(),
    )


def grid_rates(cores: int, clock_hz: float = CLOCK_HZ) -> Rates:
    """What GPUs do in a cycle, by a clock of `clock_hz`.

    One core gets, while all ask, 12 bytes from memory, as it does on an A100 and an H100, and 32 from the second cache.
    A launch takes 3,000 cycles, about two microseconds.
    """

    def level(bytes_per_cycle: float) -> MemoryRate:
        return MemoryRate(bytes_per_cycle * clock_hz, bytes_per_cycle * clock_hz * cores)

    return Rates(
        clock_hz=clock_hz, first_cache=level(128), second_cache=level(32), third_cache=level(32), memory=level(12),
        relayout_bytes_per_second=12 * clock_hz, grid=GridRates(launch_seconds=3000 / clock_hz),
    )  # fmt: skip
