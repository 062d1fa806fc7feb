"""What functions that stand for instructions get when a program is interpreted, and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.dtypes import DType
from weft.expr import nodes as e
from weft.loop.nodes import Buffer


@dataclass(frozen=True)
class Address:
    """The argument of an intrinsic with `addresses = True` for a Load: `array` is the whole buffer, flat; `offset` the
    element."""

    buffer: Buffer
    array: np.ndarray[Any, Any]
    offset: int


@dataclass(frozen=True)
class OfAddresses:
    """The meaning of an intrinsic that receives addresses."""

    run: Callable[..., None]
    addresses: ClassVar[bool] = True

    def __call__(self, *args: Any) -> None:
        self.run(*args)


def sentinel(dtype: DType) -> Any:
    """What an element of `dtype` reads as before the first store: NaN if it has one."""
    scalar = dtype.scalar
    if scalar.kind in ("float", "complex"):
        return np.float64(np.nan).astype(scalar.numpy)
    if scalar.is_integer:
        return int(e.wrap_integer(-0x5A5A5A5A5A5A5A5B, scalar))
    return True if scalar.is_bool else None
