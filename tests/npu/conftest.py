"""The example accelerator is no part of the workspace: its folder is put on the path, and the plugin is registered by
hand."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "weft-npu"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin in use, and a device of its own."""
    from weft_npu import plugin

    from weft.plugins import host
    from weft_runtime import device as devices

    monkeypatch.setattr(devices, "_open", {})
    host().register(plugin, "npu")
    yield
    host().unregister("npu")
