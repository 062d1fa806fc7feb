"""The example library is no part of the workspace: its folder is put on the path, and the plugin is registered by
hand."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needs import require

FOLDER = Path(__file__).parents[2] / "examples" / "weft-openblas"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


@pytest.fixture
def openblas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin in use, and a device of its own."""
    require("scipy_openblas32")
    from weft_openblas import plugin

    from weft.plugins import host
    from weft_runtime import device as devices

    monkeypatch.setattr(devices, "_open", {})
    host().register(plugin, "openblas")
    yield
    host().unregister("openblas")
