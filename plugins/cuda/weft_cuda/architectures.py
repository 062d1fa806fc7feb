"""NVIDIA's compute capabilities as data: what one multiprocessor of each has.

Source: CUDA Programming Guide, "Compute Capabilities" (technical specifications per compute capability; throughput of
native arithmetic instructions).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.machine import Transfer

LINK = Transfer(latency=8e-6, bandwidth=20e9)
"""To the host's memory: PCI Express 4.0 with 16 lanes."""
WARP = 32
STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may declare with a constant size; more must be asked for at the launch."""

BARRIER = 128
"""Bytes of it that a kernel which copies boxes of tensors takes for what it awaits them at, with what is lost to
alignment."""

GROUP_RESERVED = 1 << 10
"""Bytes of it that the system takes for each group, from compute capability 8.0 on."""


@dataclass(frozen=True)
class Architecture:
    """One compute capability.

    Args:
        number: 10·major + minor, as in sm_90.
        processors: multiprocessors of its common full-size product; a GPU that is here says its own.
        resident: threads of one multiprocessor at once.
        shared: bytes of shared memory of one multiprocessor.
        group_shared: bytes of it that one group may have.
        l2: bytes of the product's second cache.
        fp32, fp64: multiply-adds of CUDA cores a cycle.
        tensor16: multiply-adds of tensor cores a cycle on float16 that add to float32.
        features: words that intrinsics and rules may ask for.
    """

    number: int
    processors: int
    resident: int
    shared: int
    group_shared: int
    l2: int
    fp32: int
    fp64: int
    tensor16: int
    features: frozenset[str]

    @property
    def name(self) -> str:
        return f"sm_{self.number}"


_TURING = frozenset({"shuffle", "fp64", "int64"})
_AMPERE = _TURING | {"mma", "cp.async"}
_ADA = _AMPERE | {"mma.fp8"}
_HOPPER = _ADA | {"cluster"}
# Later GPUs copy boxes, too; some drivers make sporadic illegal accesses there, for tensors with gaps in small
# allocations (release notes of 595.71).
_K = 1 << 10

ARCHITECTURES: tuple[Architecture, ...] = (
    #            sm   SMs  threads shared   per group  L2            fp32 fp64 tensor
    Architecture(75, 40, 1024, 64 * _K, 64 * _K, 4096 * _K, 64, 2, 512, _TURING),  # T4
    Architecture(80, 108, 2048, 164 * _K, 163 * _K, 40960 * _K, 64, 32, 1024, _AMPERE),  # A100
    Architecture(86, 84, 1536, 100 * _K, 99 * _K, 6144 * _K, 128, 2, 512, _AMPERE),  # A40
    Architecture(87, 16, 1536, 164 * _K, 163 * _K, 4096 * _K, 128, 2, 1024, _AMPERE),  # Orin
    Architecture(89, 128, 1536, 100 * _K, 99 * _K, 73728 * _K, 128, 2, 512, _ADA),  # RTX 4090
    Architecture(90, 132, 2048, 228 * _K, 227 * _K, 51200 * _K, 128, 64, 2048, _HOPPER | {"wgmma", "tma"}),  # H100
    Architecture(100, 148, 2048, 228 * _K, 227 * _K, 129024 * _K, 128, 64, 4096, _HOPPER),  # B200
    Architecture(103, 148, 2048, 228 * _K, 227 * _K, 129024 * _K, 128, 2, 4096, _HOPPER),  # B300
    Architecture(110, 20, 1536, 228 * _K, 227 * _K, 32768 * _K, 128, 2, 2048, _HOPPER),  # Thor
    Architecture(120, 170, 1536, 100 * _K, 99 * _K, 98304 * _K, 128, 2, 512, _HOPPER),  # RTX 5090
    Architecture(121, 48, 1536, 100 * _K, 99 * _K, 24576 * _K, 128, 2, 512, _HOPPER),  # GB10
)


def native(number: int) -> str:
    """What code for GPUs of this compute capability alone is made for: with all of their instructions."""
    return f"sm_{number}{'a' if any(a.number == number and 'wgmma' in a.features for a in ARCHITECTURES) else ''}"


def architecture(number: int) -> Architecture:
    """Of a compute capability; one that is not listed has what the next lower one has.

    Raises:
        ValueError: it is older than all of them.
    """
    found = [a for a in ARCHITECTURES if a.number <= number]
    if not found:
        raise ValueError(f"sm_{number} is older than {ARCHITECTURES[0].name}, the oldest that Weft supports")
    return found[-1]
