"""Cost estimates of offers, in seconds: the greater of the time of a Program's operations, by a simple model of the
machine, and of its memory traffic.

Rules differ in how many uses of an operand are loads. An operation takes the machine's arithmetic alone if operands
stay in registers (`in_registers`), one load in addition if each step reads a vector (`streamed`), and its whole latency
if elements are computed one after another (`one_by_one`). All three give the same time to a Program that is limited by
memory; then the priorities of rules decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from weft.dtypes import DType, float32
from weft.loop.nodes import Block, Buffer, Program, int_const
from weft.machine import Machine
from weft.scheduling import access


def seconds(program: Program, machine: Machine, cycles: Callable[[Block], float]) -> float:
    """Estimated seconds of a Program on all cores of a machine; symbolic sizes are assumed.

    Args:
        cycles: of one step of a block on one core.
    """
    work = sum(access.block_work(b) * cycles(b) for b in access.blocks_of(program))
    moved = sum(_bytes(b) for b in (*program.inputs, *program.outputs))
    rates, cores = machine.rates, machine.cores
    return max(work / (rates.clock_hz * cores), moved / (rates.memory.read(cores) * cores))


def of_blocks(program: Program, machine: Machine, loads: float = 1.0, tiled: Iterable[str] = ()) -> float:
    """`seconds` of a Program whose blocks read `loads` vectors in each step, but for those by name that are `tiled`."""
    names = frozenset(tiled)
    return seconds(
        program, machine, lambda b: in_registers(b, machine) if b.name in names else streamed(b, machine, loads)
    )


def in_registers(block: Block, machine: Machine) -> float:
    """Cycles of one step of a block whose operands stay in registers: of its arithmetic, a multiplication and an
    addition."""
    return 2 / machine.flops(_dtype(block))


def streamed(block: Block, machine: Machine, loads: float = 1.0) -> float:
    """Cycles of one step of a block that reads so many vectors in each."""
    return in_registers(block, machine) + loads * machine.rates.load_cycles / machine.lanes(_dtype(block))


def one_by_one(block: Block, machine: Machine) -> float:
    """Cycles of one step of a block whose elements are read and computed one after another."""
    rates = machine.rates
    return in_registers(block, machine) + rates.multiply_add_latency_cycles + 2 * rates.load_cycles


def _dtype(block: Block) -> DType:
    store = next(access.stores(block), None)
    return float32 if store is None else store.buffer.dtype


def _bytes(buffer: Buffer) -> int:
    return buffer.dtype.bytes * prod(access.UNKNOWN_EXTENT if (n := int_const(d)) is None else n for d in buffer.shape)


__all__ = ["in_registers", "of_blocks", "one_by_one", "seconds", "streamed"]
