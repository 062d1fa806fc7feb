"""Measurement of the rates of this machine by kernels of one loop each, compiled by Weft.

Every time is the minimum of several runs, since other work can only increase it. A rate that differs greatly from the
assumed one is treated as a disturbed measurement and omitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

import weft
from weft.dtypes import float32
from weft.kernel import KernelSchedule
from weft.loop.parser import parse_program
from weft.rates import numbers
from weft_runtime.threads import available_threads

if TYPE_CHECKING:
    from weft.kernel import Kernel
    from weft.machine import Machine

RUNS = 5
"""Of each kernel; the fastest counts."""
PATIENCE = 0.5
"""Seconds after which a kernel is run no more, if it has been twice."""
STEPS = 1 << 20
"""Of a chain of instructions."""
VECTORS = 8
"""Chains of vectors side by side: so many hide an addition's latency."""
TRAFFIC = 64 << 20
"""Bytes that a run moves, by as many passes as that takes."""
MOST_BYTES = 128 << 20
"""Of one core's array in memory."""
FACTOR = 8.0
"""A rate so many times higher or lower than assumed is left out."""
TASK_STEPS = 1 << 16
"""Of a task of a parallel loop: some hundred microseconds."""


@dataclass(frozen=True)
class Rate:
    """One rate: its name in `weft.rates`, what was measured (None: nothing that is plausible) and what is assumed."""

    name: str
    measured: float | None
    assumed: float


@dataclass(frozen=True)
class Found:
    """What a probe found: every rate that it looked at, and all that the table has."""

    rates: tuple[Rate, ...]
    table: Mapping[str, float]

    def values(self) -> dict[str, float]:
        """What was measured, by name."""
        return {r.name: r.measured for r in self.rates if r.measured is not None}

    def all_numbers(self) -> dict[str, float]:
        """Every rate, those of the table where nothing was measured."""
        return {**self.table, **self.values()}


def run(threads: int | None = None) -> Found:
    """Measures; some seconds.

    Args:
        threads: of loops on all cores; None: the processors at hand.
    """
    probe = _Probe(threads or available_threads())
    table = numbers(probe.machine.rates)
    table["multiply_adds_per_cycle"] = probe.machine.flops(float32) / (2 * probe.lanes)
    found: dict[str, float] = {}
    for step in probe.steps():
        found.update(step(found))
    rates = []
    for name, value in found.items():
        assumed = table.get(name, value)
        fits = assumed / FACTOR <= value <= assumed * FACTOR
        rates.append(Rate(name, float(f"{value:.4g}") if fits else None, assumed))
    return Found(tuple(rates), table)


def report(found: Found) -> Iterator[str]:
    """The table of rates as text."""
    yield f"{'rate':44} {'measured':>12} {'assumed':>12}"
    for r in found.rates:
        measured = "implausible" if r.measured is None else f"{r.measured:.4g}"
        yield f"{r.name:44} {measured:>12} {r.assumed:12.4g}"


class _Probe:
    """Kernels for this machine by its table."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        x = weft.placeholder((1,), name="x")
        nothing = weft.schedule(weft.compute((1,), lambda i: x[i]), target=f"llvm -machine=table -threads={threads}")
        self.target = nothing.target
        self.machine: Machine = self.target.machine
        self.lanes = self.machine.lanes(float32)

    def steps(self) -> list[Callable[[Mapping[str, float]], dict[str, float]]]:
        """What is measured, in order; each gets what those before found."""
        return [self.clock, self.arithmetic, self.first_cache, self.caches, self.memory, self.latencies, self.threading]

    def build(self, text: str) -> Kernel:
        return weft.build(KernelSchedule(parse_program(text), self.target))

    def seconds(self, text: str, *inputs: np.ndarray) -> float:
        """The least time of a kernel."""
        kernel = self.build(text)
        out = tuple(np.empty([int(d) for d in o.shape], o.dtype) for o in kernel.executable.outputs)
        least = float("inf")
        begun = time.perf_counter()
        for run in range(RUNS + 1):  # the first run brings code and pages
            started = time.perf_counter()
            kernel(*inputs, out=out[0])
            least = min(least, time.perf_counter() - started)
            if run > 0 and time.perf_counter() - begun > PATIENCE:
                break
        return least

    # -- what is measured
    def clock(self, found: Mapping[str, float]) -> dict[str, float]:
        """An exclusive or and an addition, each of which waits for the one before, take a cycle each."""
        text = f"""program clock(x: int64[2]) -> (y: int64[1]) {{
          allocate a: int64[1] in register {{
            a[0] = x[0]
            for i in {STEPS} {{ a[0] = (a[0] ^ x[1]) + i }}
            y[0] = a[0]
          }} }}"""
        return {"clock_hz": 2 * STEPS / self.seconds(text, np.array([3, 0x5555555], np.int64))}

    def arithmetic(self, found: Mapping[str, float]) -> dict[str, float]:
        """One chain of multiply-adds, and twelve chains of vectors of them."""
        clock, lanes, chains = found["clock_hz"], self.lanes, 12
        x = np.full(2 * lanes, 0.5, np.float32)
        one = f"""program chain(x: float32[{2 * lanes}]) -> (y: float32[1]) {{
          allocate a: float32[1] in register {{
            a[0] = 0.0f32
            for i in {STEPS} {{ a[0] = a[0]*x[0] + x[1] }}
            y[0] = a[0]
          }} }}"""
        many = f"""program chains(x: float32[{2 * lanes}]) -> (y: float32[{chains * lanes}]) {{
          allocate a: float32[{chains * lanes}] in register {{
            for j0 in {chains} unrolled {{ for l0 in {lanes} vectorized {{ a[j0*{lanes} + l0] = 0.0f32 }} }}
            for i in {STEPS // 4} {{ for j in {chains} unrolled {{ for l in {lanes} vectorized {{
              a[j*{lanes} + l] = a[j*{lanes} + l]*x[l] + x[{lanes} + l]
            }} }} }}
            for j1 in {chains} unrolled {{ for l1 in {lanes} vectorized {{ y[j1*{lanes} + l1] = a[j1*{lanes} + l1] }} }}
          }} }}"""
        latency = self.seconds(one, x) * clock / STEPS
        throughput = chains * (STEPS // 4) / (self.seconds(many, x) * clock)
        return {
            "multiply_add_latency_cycles": max(1.0, float(round(latency))),
            "multiply_adds_per_cycle": max(0.5, round(2 * throughput) / 2),
        }

    def first_cache(self, found: Mapping[str, float]) -> dict[str, float]:
        """Reads and stores of half of the first cache."""
        size = self.size(self.machine.caches[0] // 2)
        vector, clock = 4 * self.lanes, found["clock_hz"]
        read, stored = self.read(size, 1), self.store(size)
        return {
            "first_cache.core_bytes_per_second": read,
            "loads_per_cycle": max(0.5, round(2 * read / vector / clock) / 2),
            "stores_per_cycle": max(0.5, round(2 * stored / vector / clock) / 2),
        }

    def caches(self, found: Mapping[str, float]) -> dict[str, float]:
        """Reads of what fits into a cache and into none before it; of the third also what is written and read again."""
        l1, l2, l3 = self.machine.caches
        rates = {"second_cache.core_bytes_per_second": self.read(self.size(max(2 * l1, l2 // 2)), 1)}
        if l3 > 2 * l2:
            size = self.size(min(2 * l2, l3 // 2))
            rates["third_cache.core_bytes_per_second"] = self.read(size, 1)
            rates["third_cache.core_exchange_bytes_per_second"] = self.exchange(size, 1)
        return rates

    def memory(self, found: Mapping[str, float]) -> dict[str, float]:
        """Reads by one core and by all, and what all write and read again."""
        size = self.size(min(MOST_BYTES, 2 * self.machine.caches[2]))
        rates = {"memory.core_bytes_per_second": self.read(size, 1)}
        each = self.size(min(MOST_BYTES, 4 * self.machine.caches[2]) // self.threads)
        rates["memory.cores_bytes_per_second"] = self.read(each, self.threads)
        rates["memory.cores_exchange_bytes_per_second"] = self.exchange(each, self.threads)
        return rates

    def latencies(self, found: Mapping[str, float]) -> dict[str, float]:
        """Reads whose addresses the read before gave, by lines in random order."""
        l1, l2, l3 = self.machine.caches
        sizes = {"first_cache": l1 // 2, "second_cache": max(2 * l1, l2 // 2), "memory": min(MOST_BYTES, 2 * l3)}
        if l3 > 2 * l2:
            sizes["third_cache"] = min(2 * l2, l3 // 2)
        return {f"{level}.latency_seconds": self.chase(size) for level, size in sorted(sizes.items())}

    def threading(self, found: Mapping[str, float]) -> dict[str, float]:
        """A parallel loop of one task for each core beside one task alone; then the same when the threads sleep."""
        if self.threads == 1:
            return {}

        def tasks(count: int) -> str:
            return f"""program tasks(x: float32[2]) -> (y: float32[{count}]) {{
              for t in {count} parallel {{ allocate a: float32[1] in register {{
                a[0] = 0.0f32
                for i in {TASK_STEPS} {{ a[0] = a[0]*x[0] + x[1] }}
                y[t] = a[0]
              }} }} }}"""

        x = np.full(2, 0.5, np.float32)
        alone, together = self.seconds(tasks(1), x), self.seconds(tasks(self.threads), x)
        table = self.machine.rates
        both = max(together - alone, 0.0)
        share = table.fork_seconds / (table.fork_seconds + table.join_seconds)  # how it divides is not measured
        kernel, slept = self.build(tasks(self.threads)), float("inf")
        for _ in range(RUNS):
            time.sleep(0.02)
            started = time.perf_counter()
            kernel(x)
            slept = min(slept, time.perf_counter() - started)
        return {
            "fork_seconds": both * share,
            "join_seconds": both * (1 - share),
            "wake_seconds": max(slept - together, 0.0),
        }

    # -- kernels
    def size(self, size: int) -> int:
        """Elements of float32 in so many bytes, whole steps of a kernel."""
        step = VECTORS * self.lanes
        return max(1, size // 4 // step) * step

    def read(self, elements: int, threads: int) -> float:
        """Bytes a second that `threads` together read, each from an array of its own."""
        v, n = self.lanes, VECTORS * self.lanes
        passes = max(1, TRAFFIC // (4 * elements * threads))
        text = f"""program read(x: float32[{threads}, {elements}]) -> (y: float32[{threads}, {n}]) {{
          for t in {threads} parallel {{ allocate a: float32[{n}] in register {{
            for j0 in {VECTORS} unrolled {{ for l0 in {v} vectorized {{ a[j0*{v} + l0] = 0.0f32 }} }}
            for r in {passes} {{ for i in {elements // n} {{ for j in {VECTORS} unrolled {{ for l in {v} vectorized {{
              a[j*{v} + l] = a[j*{v} + l] + x[t, i*{n} + j*{v} + l]
            }} }} }} }}
            for j1 in {VECTORS} unrolled {{ for l1 in {v} vectorized {{ y[t, j1*{v} + l1] = a[j1*{v} + l1] }} }}
          }} }} }}"""
        return 4 * prod((elements, threads, passes)) / self.seconds(text, np.ones((threads, elements), np.float32))

    def store(self, elements: int) -> float:
        """Bytes a second that one core writes."""
        passes = max(1, TRAFFIC // (4 * elements))
        text = f"""program store(x: float32[{self.lanes}]) -> (y: float32[{elements}]) {{
          for r in {passes} {{ for i in {elements // self.lanes} {{ for l in {self.lanes} vectorized {{
            y[i*{self.lanes} + l] = x[l] + float32(r)
          }} }} }} }}"""
        return 4 * elements * passes / self.seconds(text, np.ones(self.lanes, np.float32))

    def exchange(self, elements: int, threads: int) -> float:
        """Bytes a second that `threads` together move which read and write an array, each its own, again and again."""
        v = self.lanes
        passes = max(2, TRAFFIC // (8 * elements * threads))
        text = f"""program exchange(x: float32[2]) -> (y: float32[{threads}, {elements}]) {{
          for t in {threads} parallel {{
            for i0 in {elements // v} {{ for l0 in {v} vectorized {{ y[t, i0*{v} + l0] = 0.0f32 }} }}
            for r in {passes} {{ for i in {elements // v} {{ for l in {v} vectorized {{
              y[t, i*{v} + l] = y[t, i*{v} + l]*x[0] + x[1]
            }} }} }}
          }} }}"""
        # The first values are written as well, and brought for it.
        return 8 * elements * threads * (passes + 1) / self.seconds(text, np.full(2, 0.5, np.float32))

    def chase(self, size: int) -> float:
        """Seconds of a read that waits for the one before, of lines in random order."""
        line = self.machine.cache_line // 8
        lines = max(2, size // self.machine.cache_line)
        order = np.random.default_rng(0).permutation(lines).astype(np.int64)
        places = np.zeros(lines * line, np.int64)
        places[order * line] = np.roll(order, -1) * line
        steps = 1 << 16
        text = f"""program chase(p: int64[{lines * line}]) -> (y: int64[1]) {{
          allocate a: int64[1] in register {{
            a[0] = 0
            for i in {steps} {{ a[0] = p[a[0]] }}
            y[0] = a[0]
          }} }}"""
        return self.seconds(text, places) / steps
