"""The one worker pool of this process: where its state lies, how many threads a run gets, what fork does to it.

The pool's code is part of the runtime's own native code (`weft_runtime.support`). It is never unmapped, since a worker
may be spinning inside it at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from dataclasses import dataclass

from weft_runtime import settings
from weft_runtime.abi import POOL_BYTES, POOL_SPIN, Context
from weft_runtime.loader import address_of, imports_table
from weft_runtime.support import support

SPIN_SECONDS = 50e-6
_MADV_WIPEONFORK = 18


def available_threads() -> int:
    """CPUs that this process may use: its affinity, cut by the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, quota) if quota else count)


def _cgroup_quota(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int | None:
    """CPUs granted by the control groups above this process (v2, then v1), rounded up; None without a limit."""
    best: float | None = None
    try:
        with open(groups) as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", "", ""])[:3]
        base = root if controllers == "" else os.path.join(root, "cpu") if "cpu" in controllers.split(",") else None
        if base is None:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts) + 1):
            place = os.path.join(base, *parts[:depth])
            limit = _read_limit(place)
            if limit is not None:
                best = limit if best is None else min(best, limit)
    return None if best is None else max(1, int(-(-best // 1)))


def _read_limit(place: str) -> float | None:
    try:
        with open(os.path.join(place, "cpu.max")) as file:
            quota, period = file.read().split()[:2]
    except (OSError, ValueError):
        try:
            with open(os.path.join(place, "cpu.cfs_quota_us")) as file:
                quota = file.read().strip()
            with open(os.path.join(place, "cpu.cfs_period_us")) as file:
                period = file.read().strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except ValueError:  # "max"
        return None


@dataclass(frozen=True)
class Pool:
    """What goes into a context: addresses of the state and of `parallel_for`."""

    state: int
    parallel_for: int


_lock = threading.Lock()
_pool: Pool | None = None
_spin_ticks = 0
_memory: mmap.mmap | None = None


def process_pool() -> Pool:
    """The pool of this process. Workers start when a parallel loop first needs them.

    Raises:
        ExecutionError: the runtime has no native code for this machine.
    """
    global _pool, _memory, _spin_ticks
    with _lock:
        if _pool is None:
            code = support()
            memory = mmap.mmap(-1, POOL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # A child of fork() has no workers: the kernel gives it zeros even where Python's own hook does not run.
            with contextlib.suppress(OSError, AttributeError, ValueError):
                memory.madvise(_MADV_WIPEONFORK)
            _spin_ticks = _calibrate(code.address("ticks"))
            _memory = memory
            _write_spin()
            _pool = Pool(address_of(memory), code.address("parallel_for"))
        return _pool


def _calibrate(ticks: int) -> int:
    """Counter ticks in SPIN_SECONDS, measured in a fifth of a millisecond."""
    read = ctypes.CFUNCTYPE(ctypes.c_int64)(ticks)
    began, first = time.perf_counter_ns(), read()
    while time.perf_counter_ns() - began < 200_000:
        pass
    last, ended = read(), time.perf_counter_ns()
    return max(1, int((last - first) / (ended - began) * 1e9 * SPIN_SECONDS))


def _write_spin() -> None:
    assert _memory is not None
    _memory[POOL_SPIN : POOL_SPIN + 8] = _spin_ticks.to_bytes(8, "little")


def _reset() -> None:
    """In the child after fork: no workers, nothing running."""
    global _lock
    _lock = threading.Lock()
    if _memory is not None:
        _memory[:] = bytes(POOL_BYTES)
        _write_spin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def start(threads: int) -> int:
    """Starts the workers that `threads` threads need now rather than at the first parallel loop; how many threads there
    are then."""
    context = Context(imports=ctypes.addressof(imports_table()), pool=process_pool().state, threads=threads)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(support().address("start"))
    return int(function(ctypes.addressof(context), threads)) + 1


def default_threads() -> int:
    """WEFT_THREADS, or as many as the process may use."""
    return settings.THREADS.get() or available_threads()
