"""Boards as installed distributions: a folder on the path with metadata and a module, in which one thing may be
wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.plugins import host
from weft_runtime.device import close_devices

MODULE = '''"""The board, as a plugin that imports nothing before it is asked."""

from weft.hooks import hookimpl
{preamble}

@hookimpl
def targets():
    from tests.conform import broken

    return [broken.target("{defect}")]


@hookimpl
def {schedules}(target):
    from tests.conform import broken

    return broken.rules("{defect}", target) if {mine} else []


@hookimpl
def devices():
    from tests.conform import broken
    from weft_runtime.device import DeviceKind

    return [DeviceKind("board", lambda: None, lambda: broken.device("{defect}"))]

{more}
'''

MUTE = """
@hookimpl
def offload(graph, target):
    from tests.conform import broken

    return broken.mute(graph) if target.kind == "board" else None
"""

INTRINSIC = """
@hookimpl
def intrinsics(target):
    from tests.conform import broken

    return [broken.disagreeing()] if target.kind == "board" else []
"""

PRODUCT = INTRINSIC.replace("disagreeing", "product")

FORGETS_RELU = """
@hookimpl
def graph_passes(target):
    from tests.conform import broken
    from weft.passes.pipeline import GraphPass

    return [GraphPass("forget_relu", broken.forget_relu, after="simplify_algebra")] if target.kind == "board" else []
"""

BLOCKS = """
@hookimpl
def capabilities(target):
    from tests.conform import broken

    return broken.blocks_of_four() if target.kind == "board" else None
"""

PARTS = {
    "forgets_relu": {"more": FORGETS_RELU},
    "dirty_padding": {"more": BLOCKS},
    "clean_padding": {"more": BLOCKS},
    "misspelt_hook": {"schedules": "schedulez"},
    "slow_import": {
        "preamble": (
            "import time\n\nstarted = time.process_time()\nwhile time.process_time() - started < 0.6:\n    pass\n"
        )
    },
    "heavy_import": {"preamble": "import hypothesis\n"},
    "answers_for_others": {"mine": "True"},
    "mute": {"more": MUTE},
    "wrong_intrinsic": {"more": INTRINSIC},
    "tiled": {"more": PRODUCT},
    "idle_intrinsic": {"more": PRODUCT},
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """`install(defect)` installs a board with that defect and gives its distribution's name."""
    root = str(Path(__file__).parents[2])

    def make(defect: str, requires: str = "weft>=0.1") -> str:
        name = f"weft-board-{defect.replace('_', '-')}"
        module = name.replace("-", "_")
        parts = {
            "preamble": "",
            "schedules": "schedules",
            "mine": 'target.kind == "board"',
            "more": "",
            **PARTS.get(defect, {}),
        }
        (tmp_path / f"{module}.py").write_text(MODULE.format(defect=defect, **parts))
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
            + (f"Requires-Dist: {requires}\n" if requires else "")
        )
        (info / "entry_points.txt").write_text(f"[weft.plugins]\nboard = {module}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        if root not in sys.path:
            monkeypatch.syspath_prepend(root)
        host.cache_clear()
        return name

    opened = close_devices()
    yield make
    close_devices(opened)
    host.cache_clear()
