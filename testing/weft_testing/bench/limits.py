"""What the processor can do at most, measured by generated code: arithmetic in registers, and moving memory.

The two axes of the roofline model (Williams, Waterman and Patterson, 2009). Bandwidth depends on where the data lie, so
it is measured for sets of several sizes, from one that the first cache holds to one that none does.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import TargetError

if TYPE_CHECKING:
    from weft.kernel import Kernel
    from weft.resolve import ResolvedTarget

SECONDS = 0.15
"""How long each kernel is repeated; the fastest run counts."""
ROUNDS = 200_000
"""Steps of the arithmetic kernel in a call: long enough that the call itself does not show."""
TOUCHED = 32 << 20
"""Bytes that a call of a streaming kernel moves at least, for the same reason."""


@dataclass(frozen=True)
class Limits:
    """Of `threads` threads together.

    Attributes:
        flops: float32 operations a second, a multiply-add being two.
        bandwidths: (bytes of a set, bytes a second when it is moved again and again: read, or half of it read and
            written to the other half, whichever is faster), by size.
    """

    threads: int
    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def bandwidth(self, size: float) -> float:
        """Bytes a second when a set of `size` bytes is moved: between the measured sizes on a straight line over their
        logarithm."""
        import numpy as np

        sizes, rates = zip(*self.bandwidths)
        return float(np.interp(math.log(max(1.0, size)), np.log(sizes), rates))

    @property
    def memory(self) -> float:
        """Bytes a second from beyond all caches."""
        return self.bandwidths[-1][1]

    def seconds(self, flop: float, constants: float, others: float, all_constants: float) -> float:
        """The least time of a kernel.

        Args:
            flop: floating-point operations.
            constants: bytes of constants it reads; they are where a set of `all_constants` bytes is, as a run reads
                every constant once.
            others: bytes of the other values it reads and writes, which are taken to be as near as that many bytes can
                be.
        """
        moving = constants / self.bandwidth(all_constants) + others / self.bandwidth(others)
        return max(flop / self.flops, moving)


def measure_limits(target: ResolvedTarget, threads: int) -> Limits:
    """Takes about two seconds.

    Raises:
        TargetError: the target's code does not run on this machine.
    """
    from weft.dtypes import float32

    machine = target.machine
    lanes = machine.lanes(float32)
    accumulators = max(4, machine.vector_registers - 4)
    arithmetic = build(target, arithmetic_program(threads, accumulators, lanes, ROUNDS))
    flops = 2.0 * threads * accumulators * lanes * ROUNDS / fastest(arithmetic, (accumulators + 2, lanes), threads)
    rates = []
    for size in sizes(machine.caches):
        step = threads * accumulators * lanes * 4
        steps = max(2, size // step)
        moved = steps * step
        repeats = max(1, -(-TOUCHED // moved))
        seconds = fastest(
            build(target, read_program(threads, accumulators, lanes, steps, repeats)),
            (threads, steps, accumulators, lanes),
            threads,
        )
        half = steps // 2
        seconds = min(
            seconds,
            fastest(
                build(target, write_program(threads, accumulators, lanes, half, repeats)),
                (threads, half, accumulators, lanes),
                threads,
            ),
        )
        rates.append((moved, moved * repeats / seconds))
    return Limits(threads, flops, tuple(rates))


def sizes(caches: tuple[int, int, int]) -> list[int]:
    """Half of each cache and four times the last: sets that lie in each level, and one that lies in none."""
    return sorted({*(c // 2 for c in caches), min(4 * caches[-1], 256 << 20)})


def arithmetic_program(threads: int, accumulators: int, lanes: int, rounds: int) -> str:
    """Independent chains of multiply-adds, one per register. Every chain starts from another value, or LLVM would see
    that all are one."""
    return f"""
program arithmetic(x: float32[{accumulators + 2}, {lanes}]) -> (y: float32[{threads}, {accumulators}, {lanes}]) {{
  for t in {threads} parallel {{
    allocate acc: float32[{accumulators}, {lanes}] in register
    for a in {accumulators} unrolled {{ for l in {lanes} vectorized {{ acc[a, l] = x[a, l] }} }}
    for r in {rounds} {{
      for a1 in {accumulators} unrolled {{
        for l1 in {lanes} vectorized {{ acc[a1, l1] = acc[a1, l1]*x[{accumulators}, l1] + x[{accumulators + 1}, l1] }}
      }}
    }}
    for a2 in {accumulators} unrolled {{ for l2 in {lanes} vectorized {{ y[t, a2, l2] = acc[a2, l2] }} }}
  }}
}}
"""


def read_program(threads: int, accumulators: int, lanes: int, steps: int, repeats: int) -> str:
    """Sums of everything, `repeats` times; as many sums as there are registers, so that additions never wait for each
    other."""
    return f"""
program read(x: float32[{threads}, {steps}, {accumulators}, {lanes}]) -> (y: float32[{threads}, {accumulators}, {lanes}]) {{
  for t in {threads} parallel {{
    allocate acc: float32[{accumulators}, {lanes}] in register
    for a in {accumulators} unrolled {{ for l in {lanes} vectorized {{ acc[a, l] = 0.0f32 }} }}
    for r in {repeats} {{
      for s in {steps} {{
        for a1 in {accumulators} unrolled {{ for l1 in {lanes} vectorized {{ acc[a1, l1] = acc[a1, l1] + x[t, s, a1, l1] }} }}
      }}
    }}
    for a2 in {accumulators} unrolled {{ for l2 in {lanes} vectorized {{ y[t, a2, l2] = acc[a2, l2] }} }}
  }}
}}
"""  # noqa: E501


def write_program(threads: int, accumulators: int, lanes: int, steps: int, repeats: int) -> str:
    """Everything plus one, written elsewhere, `repeats` times."""
    return f"""
program write(x: float32[{threads}, {steps}, {accumulators}, {lanes}]) -> (y: float32[{threads}, {steps}, {accumulators}, {lanes}]) {{
  for t in {threads} parallel {{
    for r in {repeats} {{
      for s in {steps} {{
        for a in {accumulators} unrolled {{ for l in {lanes} vectorized {{ y[t, s, a, l] = x[t, s, a, l] + 1.0f32 }} }}
      }}
    }}
  }}
}}
"""  # noqa: E501


def build(target: ResolvedTarget, program: str) -> Kernel:
    from weft.kernel import KernelSchedule
    from weft.kernel import build as build_kernel
    from weft.loop.parser import parse_program

    return build_kernel(KernelSchedule(parse_program(program), target))


def fastest(kernel: Kernel, shape: tuple[int, ...], threads: int) -> float:
    """Seconds of the fastest of many calls."""
    import numpy as np

    executable = kernel.executable
    if executable.foreign:
        raise TargetError(
            "the limits of this target cannot be measured here",
            where=executable.manifest.target,
            why="its code does not run on this machine",
        )
    executable.threads = threads if executable.threads else 0
    # Tiny and not zero: nothing overflows in many rounds, and no operand is one that a processor takes longer for.
    x = np.full(shape, 1e-3, np.float32)
    out = kernel(x)
    best, ends = math.inf, time.perf_counter() + SECONDS
    calls = 0
    while calls < 3 or time.perf_counter() < ends:
        began = time.perf_counter()
        kernel(x, out=out)
        best = min(best, time.perf_counter() - began)
        calls += 1
    return best
