"""The code of a launch: a cubin, in front of it how much shared memory it wants at the launch, if any."""

from __future__ import annotations

import struct

from weft.errors import ExecutionError

_MAGIC = b"WSHM"
_HEAD = struct.Struct("<4sI")
MOST = 1 << 20
"""Bytes: no GPU has as much."""


def pack_code(cubin: bytes, shared: int) -> bytes:
    """`shared`: bytes; 0 for none."""
    return _HEAD.pack(_MAGIC, shared) + cubin if shared else cubin


def unpack_code(code: bytes, kernel: str) -> tuple[bytes, int]:
    """The cubin, and bytes of shared memory.

    Raises:
        ExecutionError: what is in front of the cubin makes no sense.
    """
    if not code.startswith(_MAGIC):
        return code, 0
    shared = _HEAD.unpack_from(code)[1] if len(code) >= _HEAD.size else 0
    if not 0 < shared < MOST:
        raise ExecutionError(
            f"the code of kernel '{kernel}' is damaged",
            why=f"it needs {shared} bytes of shared memory",
            hint="compile the model again",
        )
    return code[_HEAD.size :], shared
