"""The watched device gives what the device in it promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from weft_runtime.device import HostDevice, Slice
from weft_testing.conform.watched import Watched


@pytest.mark.parametrize("align", (1, 256, 4096))
def test_memory_of_a_watched_device_begins_where_the_device_promises(align: int) -> None:
    class Aligned(HostDevice):
        """Memory at multiples of `align`."""

        def load(self, image: bytes, entries: Mapping[str, int]) -> Any:
            raise NotImplementedError

        def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
            raise NotImplementedError

    device = Aligned("aligned")
    device.align = align
    watched = Watched(device)
    assert watched.align == align
    memory = watched.reserve(100)
    place = watched._inner(Slice(memory, 0, 100))
    assert device.bytes(place).ctypes.data % align == 0
    assert place.offset % (2 * max(64, align)) != 0, (
        "of no higher power of two: a kernel that takes more would not be seen"
    )
    data = np.empty(100, np.uint8)
    watched.read(Slice(memory, 0, 100), data)
    assert (data == 0xFF).all()
