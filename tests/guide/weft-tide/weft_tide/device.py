"""The device `tide`: memory of its own, and a program that plays the chip.

Kernels are lowered loop programs: the scalar core interprets them, and what the arrays and the copying engine do is
computed by the meanings of their instructions. The program counts their cycles and refuses what the chip could not do:
operands that begin where staging memory and accumulators cannot be read. Tiles that a copy is still bringing read as
NaN, as `interpret` has it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from weft.errors import ExecutionError
from weft.expr.evaluate import evaluate
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.queues import Begin
from weft.scheduling.intrinsic import meanings
from weft_interpreter.interpret import interpret
from weft_runtime.arrays import Array, aligned_empty
from weft_runtime.device import Device, Memory, Slice

from weft_tide.instructions import ACCUMULATORS, ALIGN, INTRINSICS, STAGING, STEP

FILL = 24
"""Cycles before the first result of an array is there."""
BYTES_PER_CYCLE = 64
"""What the engine copies."""


class TideDevice(Device):
    """One chip. `cycles`: of the arrays and of the engine since it was opened; the two work at the same time."""

    align = ALIGN
    simulated = True

    def __init__(self, capacity: int = 1 << 28) -> None:
        super().__init__("tide")
        self._capacity, self._used = capacity, 0
        self.cycles = {"arrays": 0, "engine": 0}
        self._instructions = {name: self._played(name, meaning) for name, meaning in meanings(INTRINSICS).items()}

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return self._capacity - self._used

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, aligned_empty((size,), np.dtype(np.uint8), max(64, self.align)))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def write(self, target: Slice, data: Array) -> None:
        _bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        data.reshape(-1).view(np.uint8)[...] = _bytes(source)[: data.nbytes]

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Program]:
        texts = {name: image[at : image.index(b"\0", at)].decode() for name, at in entries.items()}
        return {name: parse_program(text) for name, text in texts.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        program: Program = module[kernel]
        sizes = {d.name: n for d, n in zip(program.dims, dims, strict=True)}
        arrays = []
        for buffer, piece in zip(program.params, buffers, strict=True):
            shape = [int(evaluate(d, sizes)) for d in buffer.shape]
            count = int(np.prod(shape))
            arrays.append(_bytes(piece).view(buffer.dtype.numpy)[:count].reshape(shape))
        results = interpret(program, arrays[: len(program.inputs)], sizes, intrinsics=self._instructions)
        for array, result in zip(arrays[len(program.inputs) :], results.values(), strict=True):
            array[...] = result

    def synchronize(self) -> None:
        pass

    def _played(self, name: str, meaning: Any) -> Any:
        """The meaning of an instruction, with its cycles counted and its operands' places checked."""
        if isinstance(meaning, Begin):
            return dataclasses.replace(meaning, run=self._watched(name, meaning.run))
        if not getattr(meaning, "addresses", False) or "await" in name:
            return meaning
        watched = self._watched(name, meaning)
        watched.addresses = True  # type: ignore[attr-defined]
        return watched

    def _watched(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def play(*args: Any) -> Any:
            places = [a for a in args if hasattr(a, "offset")]
            lengths = [int(a) for a in args if not hasattr(a, "offset")]
            if "load" not in name:
                for place in places:
                    _require_line(name, place)
            self._count(name, lengths)
            return run(*args)

        return play

    def _count(self, name: str, lengths: Sequence[int]) -> None:
        if "load" in name:
            elements = lengths[-1] * (lengths[-2] if "panel" not in name else 256)
            size = {"f32": 4, "bf16": 2, "i8": 1}[name.rpartition("_")[2]]
            self.cycles["engine"] += -(-elements * size // BYTES_PER_CYCLE)
        elif not name.endswith("_zero"):  # the accumulators start at 0 with the first terms
            terms = lengths[-1] * (STEP if "panel" in name else 1)
            self.cycles["arrays"] += FILL + -(-terms // STEP) * (1 if "i8" in name else 2 if "bf16" in name else 4)


def _require_line(name: str, place: Any) -> None:
    """Raises ExecutionError: an operand begins where the chip cannot read it."""
    at = place.offset * place.array.itemsize
    if place.buffer.scope not in (STAGING, ACCUMULATORS) or place.buffer.align % ALIGN or at % ALIGN:
        where = f"byte {at} of '{place.buffer.name}' in {place.buffer.scope}, which is aligned to {place.buffer.align}"
        raise ExecutionError(f"instruction '{name}' reads lines of {ALIGN} bytes", why=where)


def _bytes(piece: Slice) -> Array:
    memory: Array = piece.memory.handle
    return memory[piece.offset : piece.offset + piece.bytes]
