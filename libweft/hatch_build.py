"""Compiles the C runtime for every architecture while a wheel is made."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent


class BuildHook(BuildHookInterface[Any]):
    """Adds libweft.so and weft-run of each architecture, weft.h, and the sources to the wheel. The variable
    WEFT_LIBWEFT_ARCHITECTURES names those that are wanted, with spaces between them; all of them without it. An
    editable installation has what `python -m libweft.build` writes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("libweft_build", HERE / "build.py")
        assert spec is not None and spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        added = build_data["force_include"]
        folder = Path(self.directory) / ".prebuilt"
        for arch in os.environ.get("WEFT_LIBWEFT_ARCHITECTURES", "").split() or build.ARCHITECTURES:
            for made in (build.library(folder, arch), build.program(folder, arch)):
                added[str(made)] = f"weft_libweft/prebuilt/{arch}/{made.name}"
        for part in ("include", "src", "run"):
            added[str(HERE / part)] = f"weft_libweft/{part}"
        added[str(build.ABI)] = "weft_libweft/src/weft_abi.h"
