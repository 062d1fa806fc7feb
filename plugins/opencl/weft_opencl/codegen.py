"""Lowered Programs → OpenCL C, which a device's driver compiles when it loads it."""

from __future__ import annotations

from dataclasses import replace

from weft.machine import Machine
from weft_c_family import Dialect, Emitted, Emitter
from weft_gpu.codegen import GpuCodegen
from weft_gpu.launches import Part
from weft_opencl.barriers import begin_with_barriers
from weft_opencl.dialect import by_table

_BUFFER, _DIM = 16, 8
"""Bytes of arguments: a pointer and an offset, and a size."""


class OpenclCodegen(GpuCodegen):
    """A Codegen whose code is text.

    Args:
        arguments: bytes of arguments that the device takes at most.
    """

    def __init__(self, dialect: Dialect, arguments: int, machine: Machine | None = None) -> None:
        super().__init__(dialect, machine=machine)
        self.arguments = arguments

    def emitter_of(self, part: Part) -> Emitter:
        """Tables for launches of many buffers."""
        fits = _BUFFER * len(part.buffers) + _DIM * len(part.dims) <= self.arguments
        return self.emitter if fits else Emitter(by_table(self.dialect, len(part.buffers)))

    def _emitted(self, part: Part) -> Emitted:
        return super()._emitted(replace(part, program=begin_with_barriers(part.program)))
