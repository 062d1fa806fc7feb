"""The plan for the C runtime. tests/libweft runs it."""

from __future__ import annotations

import struct

from weft_runtime.plan import HostCall, Manifest, TensorInfo
from weft_runtime.plan_words import plan_words

SYMBOLS, FORMULAS = 40, 152
"""Where their numbers are in the head (libweft/src/core.h): of symbols, and the list of formulas."""


def _with_size(size: str) -> bytes:
    x, y = TensorInfo("x", "int64", (size,)), TensorInfo("y", "int64", (size,))
    return plan_words(Manifest("m", "host", "any", (), (x,), (y,), (HostCall("WithSizes", ("x",), ("y",)),)), {})


def test_symbols_of_sizes_that_are_left_open() -> None:
    """A formula that is too long is left out, and so are its symbols: a reader refuses more than formulas can name."""
    kept, left = _with_size("a + b"), _with_size(" + ".join(f"name{k}" for k in range(3000)))
    assert struct.unpack_from("<i", kept, SYMBOLS) == (2,) and struct.unpack_from("<I", kept, FORMULAS + 4) == (1,)
    assert struct.unpack_from("<i", left, SYMBOLS) == (0,) and struct.unpack_from("<I", left, FORMULAS + 4) == (0,)
