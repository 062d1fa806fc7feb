"""What a Cortex-M with the DSP extension costs: one instruction starts in a cycle, memory is on the chip.

Rates are those of a Cortex-M4 at 100 MHz; source: Arm Cortex-M4 Processor Technical Reference Manual, instruction set
summary. A register of 32 bits is a vector of two elements of 16 bits or four of 8; of sixteen registers three are the
stack pointer, the return address and the program counter.
"""

from __future__ import annotations

from weft.rates import MemoryRate, Rates

_ON_CHIP = MemoryRate(core_bytes_per_second=400e6, cores_bytes_per_second=400e6)

RATES = Rates(
    clock_hz=100e6,
    first_cache=_ON_CHIP,
    second_cache=_ON_CHIP,
    third_cache=_ON_CHIP,
    memory=_ON_CHIP,
    multiply_add_latency_cycles=1,
    multiply_adds_per_cycle=1,
    loads_per_cycle=1,
    stores_per_cycle=1,
)
"""Rates of a Cortex-M4."""
