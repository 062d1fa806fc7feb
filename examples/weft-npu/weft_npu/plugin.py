"""What the distribution weft-npu contributes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.hooks import hookimpl
from weft.runtime.device import Device, DeviceKind


def _open() -> Device:
    from weft_npu.device import Npu

    return Npu()


@hookimpl
def devices() -> Sequence[DeviceKind]:
    return [DeviceKind("npu", lambda: None, _open)]
