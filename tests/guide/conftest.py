"""The readers' targets are no part of the workspace: their folders are put on the path, and the plugins are registered
by hand."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = {name: Path(__file__).parent / f"weft-{name}" for name in ("wave", "tide")}
for folder in FOLDERS.values():
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: each has a folder `tests` too

collect_ignore = [f"weft-{name}" for name in FOLDERS]  # their own tests want them installed: tests/wheels runs them


def in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin in use, and a device of its own."""
    from weft.plugins import host
    from weft_runtime import device as devices

    monkeypatch.setattr(devices, "_open", {})
    host().register(importlib.import_module(f"weft_{name}.plugin"), name)
    yield
    host().unregister(name)


@pytest.fixture
def wave(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from in_use("wave", monkeypatch)


@pytest.fixture
def tide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from in_use("tide", monkeypatch)
