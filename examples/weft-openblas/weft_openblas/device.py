"""The device `openblas`: the library that the package scipy-openblas32 carries, on the host's memory. Nothing is copied
to it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from weft_runtime.arrays import array_address
from weft_runtime.device import HostDevice, Slice
from weft_runtime.formulas import formula

PACKAGE = "scipy_openblas32"
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
"""Of cblas.h."""
LARGEST = 2**31 - 1
"""Of the library's integers."""
FLOPS = {
    "Nehalem": 8,
    "Sandybridge": 16,
    "Haswell": 32,
    "Zen": 32,
    "SkylakeX": 64,
    "Cooperlake": 64,
    "Sapphirerapids": 64,
}
"""Kernels that OpenBLAS chooses → FLOP in float32 that a core starts in a cycle; others count as 128-bit vectors with
multiply-add."""


def missing() -> str | None:
    """None if the library is here, else why not."""
    here = importlib.util.find_spec(PACKAGE) is not None
    return None if here else "the package that carries OpenBLAS is not installed: pip install scipy-openblas32"


@cache
def library() -> ctypes.CDLL:
    """The library, loaded once a process, its functions declared."""
    package = importlib.import_module(PACKAGE)
    lib = ctypes.CDLL(str(Path(package.get_lib_dir()) / package.get_library(fullname=True)))
    size, address = ctypes.c_int32, ctypes.c_void_p
    for letter, real in (("s", ctypes.c_float), ("d", ctypes.c_double)):
        gemm = getattr(lib, f"scipy_cblas_{letter}gemm")
        gemm.argtypes, gemm.restype = [size] * 6 + [real, address, size, address, size, real, address, size], None
    lib.scipy_openblas_get_corename.restype = ctypes.c_char_p
    return lib


def flops_per_cycle() -> int:
    """FLOP in float32 that a core starts in a cycle, by the kernels that the library has chosen for this machine."""
    return FLOPS.get(library().scipy_openblas_get_corename().decode(), 16)


class OpenBlasDevice(HostDevice):
    """The library, as plans call it."""

    def __init__(self) -> None:
        super().__init__("openblas")
        self.library, self.threads = library(), 0

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Kernel]:
        return {name: Kernel(**json.loads(image[at : image.index(b"\0", at)])) for name, at in entries.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        code: Kernel = module[kernel]
        if not code.args:  # a batch of none
            return
        if code.threads != self.threads:
            self.library.scipy_openblas_set_num_threads(code.threads)
            self.threads = code.threads
        gemm = getattr(self.library, f"scipy_cblas_{code.function}")
        at = [array_address(self.bytes(b)) for b in buffers]
        for (a, a_first), a_way, a_row, (b, b_first), b_way, b_row, (c, c_first), c_row, m, n, k in code.calls(
            tuple(dims)
        ):
            gemm(
                ROW_MAJOR,
                a_way,
                b_way,
                m,
                n,
                k,
                1.0,
                at[a] + a_first,
                a_row,
                at[b] + b_first,
                b_row,
                0.0,
                at[c] + c_first,
                c_row,
            )


class Kernel:
    """One kernel's code, as `Calls` in `target.py` writes it, its formulas ready."""

    def __init__(
        self,
        function: str,
        dims: list[str],
        loops: list[tuple[str, str]],
        args: list[tuple[int | None, str]],
        threads: int,
    ) -> None:
        self.function, self.dims, self.threads = function, dims, threads
        self.names, self.extents = [name for name, _ in loops], [formula(extent) for _, extent in loops]
        self.args = [(buffer, formula(text)) for buffer, text in args]
        self.width = 4 if function == "sgemm" else 8
        self.known: tuple[tuple[int, ...], list[Any]] | None = None

    def calls(self, dims: tuple[int, ...]) -> list[Any]:
        """The arguments of each call, matrices as a buffer's number and the place of their first element in bytes;
        computed where sizes change."""
        if self.known is None or self.known[0] != dims:
            sizes = dict(zip(self.dims, dims, strict=True))
            steps = product(*(range(int(extent(sizes))) for extent in self.extents))
            self.known = dims, [self._call({**sizes, **dict(zip(self.names, step, strict=True))}) for step in steps]
        return self.known[1]

    def _call(self, env: Mapping[str, int]) -> list[Any]:
        values = [int(value(env)) for _, value in self.args]
        for number in (1, 4):
            values[number] = TRANSPOSED if values[number] else PLAIN
        for number in (2, 5, 7):
            values[number] = max(1, values[number])  # an empty matrix has rows, too
        largest = max(v for v, (buffer, _) in zip(values, self.args, strict=True) if buffer is None)
        if largest > LARGEST:
            raise OverflowError(f"a size of {largest} is too large for OpenBLAS, which counts to {LARGEST}")
        return [
            v if buffer is None else (buffer, v * self.width) for v, (buffer, _) in zip(values, self.args, strict=True)
        ]
