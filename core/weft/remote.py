"""Other machines: the names of `weft_remote`, which the distribution weft-remote brings."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'weft.remote' has no attribute '{name}'")
    try:
        found = importlib.import_module("weft_remote")
    except ModuleNotFoundError as error:
        if error.name != "weft_remote":
            raise
        from weft.errors import PluginError

        raise PluginError("programs run on this machine only", hint="pip install weft-remote") from None
    return getattr(found, name)
