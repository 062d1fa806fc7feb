"""Tests of WebGPU run on an adapter, by the package wgpu."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.needs import require

from weft_webgpu.adapter import adapter
from weft_webgpu.device import WebgpuDevice


@pytest.fixture(scope="session", autouse=True)
def here() -> None:
    require("webgpu")


@pytest.fixture(scope="session")
def device(here: None) -> Iterator[WebgpuDevice]:
    opened = WebgpuDevice("webgpu", adapter())
    yield opened
    opened.synchronize()
