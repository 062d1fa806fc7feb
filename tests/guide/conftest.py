"""The reader's target is no part of the workspace: its folder is put on the path, and the plugin is registered by hand."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "weft-wave"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))  # last: it has a folder `tests` too

collect_ignore = ["weft-wave"]  # its own tests want it installed: tests/wheels runs them


@pytest.fixture
def wave(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin in use, and a device of its own."""
    from weft_wave import plugin

    from weft.plugins import host
    from weft.runtime import device as devices

    monkeypatch.setattr(devices, "_open", {})
    host().register(plugin, "wave")
    yield
    host().unregister("wave")
