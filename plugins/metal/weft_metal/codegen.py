"""Lowered Programs → Metal's texts, which a Mac compiles when it loads them."""

from __future__ import annotations

from dataclasses import replace

from weft.machine import Machine
from weft_c_family import Dialect, Emitter
from weft_gpu.codegen import GpuCodegen
from weft_gpu.launches import Part
from weft_metal.families import DIMS


def by_table(dialect: Dialect, buffers: int) -> Dialect:
    """The language of a kernel with more buffers than Metal binds: it gets a table of their addresses (an argument
    buffer)."""
    return replace(
        dialect,
        header=(*dialect.header, f"struct weft_table {{ device uchar *at[{buffers}]; }};"),
        buffer="",
        buffer_entry="device {const}{type} *const {name} = (device {const}{type} *)weft_buffers.at[{index}];",
        more_parameters=("constant weft_table &weft_buffers [[buffer(0)]]", *dialect.more_parameters),
        reserved=dialect.reserved | {"weft_table", "weft_buffers"},
    )


class MetalCodegen(GpuCodegen):
    """A Codegen whose code is text."""

    def __init__(self, dialect: Dialect, machine: Machine | None = None) -> None:
        super().__init__(dialect, machine=machine)

    def emitter_of(self, part: Part) -> Emitter:
        """Tables for launches of many buffers."""
        return self.emitter if len(part.buffers) <= DIMS else Emitter(by_table(self.dialect, len(part.buffers)))
