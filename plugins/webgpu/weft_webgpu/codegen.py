"""Lowered Programs → texts in WGSL, which a device compiles when it loads them."""

from __future__ import annotations

from weft.loop.math_tables import ROUNDED_TWICE
from weft.machine import Machine
from weft_c_family import Dialect
from weft_gpu.codegen import GpuCodegen


class WebgpuCodegen(GpuCodegen):
    """A Codegen whose code is text. WGSL's `fma` need not be rounded once: formulas that are as good without do so."""

    def __init__(self, dialect: Dialect, machine: Machine | None = None) -> None:
        super().__init__(dialect, machine=machine)
        self.functions = self.functions | {ROUNDED_TWICE}
