"""After every test of remote runs: nothing that it started is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.agents import left_running


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Stores of simulated boards are in `tmp_path`, and so in the command lines of agents and their jobs."""
    yield
    assert left_running(tmp_path) == []
