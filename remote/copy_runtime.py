"""Adds the JavaScript runtime to what is built: a page of `weft.remote` runs models by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CopyRuntime(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        runtime = Path(self.root).parent / "bindings" / "javascript"
        if version == "editable" or not runtime.is_dir():  # a source distribution has the files already
            return
        for name in ("weft.js", "worker.js", "webgpu.js"):
            build_data["force_include"][str(runtime / name)] = f"weft_remote/page/{name}"
