"""A GPU to test with where there is none: the driver is played, kernels are texts that a shim runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cuda.fake import FakeApi

from weft_cuda import driver as drivers
from weft_cuda import nvrtc
from weft_cuda.driver import Driver
from weft_runtime import device as devices


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """The driver that everything of weft-cuda finds; kernels stay texts."""
    made = FakeApi()
    monkeypatch.setattr(drivers, "driver", lambda: Driver(made))
    monkeypatch.setattr("weft_cuda.device.driver", lambda: Driver(made))
    monkeypatch.setattr(nvrtc, "cubin", lambda source, arch, name, options=(): source.encode())
    monkeypatch.setattr(devices, "_open", {})
    yield made
