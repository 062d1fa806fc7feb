"""The board, installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.mixed import board as plugin

from weft.plugins import host
from weft_runtime import device as devices


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With no device open, and nothing launched yet."""
    monkeypatch.setattr(devices, "_open", {})
    host().register(sys.modules[plugin.__name__], "board")
    plugin.launched.clear()
    yield
    host().unregister("board")
