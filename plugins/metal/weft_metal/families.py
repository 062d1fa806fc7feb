"""Families of Apple's GPUs as data: what one core of each has, and which of Metal's features.

Sources: Apple, "Metal Feature Set Tables"; cores' own numbers (multiply-adds, registers, caches) from the measurements
of Ph. Turner, "metal-benchmarks".
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import TargetError
from weft.machine import Grid, Transfer

DIMS = 30
"""The last entry of the table of buffers that a kernel has: it holds the dims of the launch, as int64. Those before are
for its buffers."""
SIMD = 32
"""Threads of a SIMD group."""


@dataclass(frozen=True)
class Family:
    """One family, or all that a Mac's GPU has at least.

    Args:
        name: as the tables have it, small.
        constant: MTLGPUFamily's number.
        chips: in which it is.
        cores: of its common product, where the GPU that will run the code is not here to be asked: Metal does not tell.
        megahertz: of its clock.
        shared: bytes of threadgroup memory of a threadgroup.
        resident: threads of one core at once.
        registers: of 32 bits, of one core.
        l1, l2: bytes of caches.
        fp32: multiply-adds of float32 a cycle of one core.
        features: words that intrinsics and rules may ask for.
    """

    name: str
    constant: int
    chips: str
    cores: int
    megahertz: int
    shared: int
    resident: int
    registers: int
    l1: int
    l2: int
    fp32: int
    features: frozenset[str]

    @property
    def grid(self) -> Grid:
        """What a launch may ask for: sizes of grids are 32-bit."""
        return Grid(1024, (1024, 1024, 1024), (2**31 - 1, 2**31 - 1, 2**31 - 1), SIMD, self.registers, self.resident)

    @property
    def transfer(self) -> Transfer:
        """To the host's memory, which but for "mac2" is the GPU's own: a copy takes the wait until the GPU is done."""
        return Transfer(latency=100e-6, bandwidth=12e9 if self.name == "mac2" else 50e9)


_K = 1 << 10
_COMMON = frozenset({"shuffle", "float16", "int64"})
_APPLE = _COMMON | {"simdgroup_matrix", "bfloat"}

FAMILIES: tuple[Family, ...] = (
    #      name     constant chips             cores MHz shared   threads registers L1     L2         fma
    Family("mac2", 2002, "Macs since 2017", 16, 1200, 32 * _K, 1024, 65536, 16 * _K, 4096 * _K, 64, _COMMON),
    Family("apple7", 1007, "A14, M1", 8, 1278, 32 * _K, 3072, 53248, 8 * _K, 768 * _K, 128, _APPLE),
    Family("apple8", 1008, "A15, A16, M2", 10, 1398, 32 * _K, 3072, 53248, 8 * _K, 1024 * _K, 128, _APPLE),
    Family("apple9", 1009, "A17, M3, M4", 10, 1380, 32 * _K, 3072, 53248, 16 * _K, 4096 * _K, 128, _APPLE),
)
DEFAULT = "apple7"
"""What code is for where no GPU is here and none is named: whatever Apple has sold since 2020 runs it."""


def family(name: str, where: str | None = None) -> Family:
    """The family of a name.

    Raises:
        TargetError: there is none.
    """
    for f in FAMILIES:
        if f.name == name:
            return f
    listed = ", ".join(f"{f.name} ({f.chips})" for f in FAMILIES)
    raise TargetError(f"'{name}' is no GPU family that Weft supports", where=where, hint=f"-family is one of {listed}")
