"""Tests of OpenCL run on a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needs import require

from weft_opencl import devices
from weft_opencl.device import OpenclDevice
from weft_opencl.devices import Found
from weft_runtime.cache import Cache


@pytest.fixture(scope="session", autouse=True)
def here() -> Found:
    """The device that tests run on."""
    require("opencl")
    return devices.found()[0]


@pytest.fixture
def device(here: Found, tmp_path: Path) -> Iterator[OpenclDevice]:
    """One that is opened for a test alone, with a cache of its own."""
    opened = OpenclDevice("opencl", here, Cache("opencl", tmp_path))
    yield opened
    opened.synchronize()
