from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.metal.fake import FakeMetal, Gpu

from weft_metal import driver
from weft_runtime import device as devices


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """A Mac's GPU; with a parameter, what it is like (see `Gpu`)."""
    found = Gpu(**getattr(request, "param", {}))
    module = FakeMetal(found)
    monkeypatch.setattr(driver, "metal", lambda: module)
    before = devices.close_devices()
    yield found
    devices.close_devices(before)
