"""Maps a flat position-independent code image into this process: write first, execute after, never both."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping
from functools import cache

from weft_runtime.abi import IMPORTS
from weft_runtime.errors import ExecutionError


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mprotect.restype = ctypes.c_int
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    return libc


@cache
def imports_table() -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of `abi.IMPORTS` in order, NULL for those that this system lacks. Lives as long as the process."""
    table = (ctypes.c_void_p * len(IMPORTS))()
    for i, name in enumerate(IMPORTS):
        try:
            table[i] = ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value
        except AttributeError:
            table[i] = None
    return table


def free(address: int | None) -> None:
    """Gives back memory that native code has reserved."""
    if address:
        _libc().free(address)


def address_of(buffer: bytearray | mmap.mmap) -> int:
    """The address of a writable buffer (an mmap, a bytearray)."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _flush_instructions(address: int, size: int) -> None:
    # x86 keeps its instruction cache coherent. Elsewhere the code just written must be made visible to instruction
    # fetch; Linux on aarch64 also does so itself when a page first becomes executable, so a missing libgcc is no error.
    if sys.platform == "darwin":
        _libc().sys_icache_invalidate(ctypes.c_void_p(address), ctypes.c_size_t(size))
        return
    import platform

    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return
    try:
        flush = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError):
        return
    flush(ctypes.c_void_p(address), ctypes.c_void_p(address + size))


class Code:
    """A mapped image. It stays mapped as long as this object lives: whoever calls into it holds it."""

    def __init__(self, image: bytes, entries: Mapping[str, int]) -> None:
        size = max(1, len(image))
        self._map = mmap.mmap(
            -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._map[: len(image)] = image
        self.base = address_of(self._map)
        rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if _libc().mprotect(self.base, rounded, mmap.PROT_READ | mmap.PROT_EXEC):
            import os

            raise ExecutionError(
                "compiled code cannot be made executable",
                why=os.strerror(ctypes.get_errno()),
                hint=(
                    "the system forbids new executable memory (SELinux execmem, PaX, a hardened runtime): allow it for"
                    " this process"
                ),
            )
        _flush_instructions(self.base, size)
        self._entries = dict(entries)

    def address(self, entry: str) -> int:
        """Where `entry` lies.

        Raises:
            ExecutionError: if the image has no such entry.
        """
        offset = self._entries.get(entry)
        if offset is None or not 0 <= offset < len(self._map):
            raise ExecutionError(
                f"the code has no entry '{entry}'", hint="entries: " + (", ".join(sorted(self._entries)) or "none")
            )
        return self.base + offset
