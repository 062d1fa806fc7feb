"""CRC-32C (Castagnoli), of many bytes at once: lanes of bytes go through the table side by side, and are joined."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from weft.graph.operator import Array

_POLYNOMIAL = 0x82F63B78
_LANE = 1024
"""Bytes of a lane, where there are enough."""


@cache
def _table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@cache
def _shifts(zeros: int) -> Array:
    """What each of the four bytes of a register becomes when as many zero bytes go through it, a power of two."""
    if zeros == 1:
        table = _table()
        # A zero byte shifts the register; its lowest byte goes through the table.
        return np.stack([table, *(np.arange(256, dtype=np.uint32) << np.uint32(8 * k) for k in range(3))])
    half = _shifts(zeros // 2)
    return np.stack([_shifted(half[k], half) for k in range(4)])


def _shifted(registers: Array, shifts: Array) -> Array:
    result = shifts[0][registers & 0xFF]
    for k in range(1, 4):
        result = result ^ shifts[k][(registers >> np.uint32(8 * k)) & 0xFF]
    return np.asarray(result, np.uint32)


def _plain(register: int, data: bytes) -> int:
    table = _table().tolist()
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register


def crc32c(*parts: Any) -> int:
    """The checksum of bytes, one part after another."""
    register = 0xFFFFFFFF
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        while len(data) >= 2 * _LANE:
            lanes = 1 << ((len(data) // _LANE).bit_length() - 1)
            register = _wide(register, data[: lanes * _LANE].reshape(lanes, _LANE))
            data = data[lanes * _LANE :]
        register = _plain(register, data.tobytes())
    return register ^ 0xFFFFFFFF


def _wide(register: int, lanes: Array) -> int:
    """The register behind lanes of bytes, a power of two of them."""
    registers = np.zeros(len(lanes), np.uint32)
    registers[0] = register
    table, columns = _table(), np.ascontiguousarray(lanes.T)
    for column in columns:
        registers = (registers >> np.uint32(8)) ^ table[(registers ^ column) & 0xFF]
    zeros = lanes.shape[1]
    while len(registers) > 1:
        registers = _shifted(registers[::2], _shifts(zeros)) ^ registers[1::2]
        zeros *= 2
    return int(registers[0])


def unmasked(stored: int) -> int:
    """A checksum as TensorFlow and LevelDB store it, rotated and with a number added."""
    rotated = (stored - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


__all__ = ["crc32c", "unmasked"]
