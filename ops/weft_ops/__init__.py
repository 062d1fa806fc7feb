"""The operator library: every operator by its name, found at first use. `weft_ops.library` lists them.

The operators that the core itself defines are here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_ops.library import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # The plugin `weft_ops.plugin` is imported by every command: it must not bring the operators along.
    import importlib
    import importlib.util

    missing = AttributeError(f"module 'weft_ops' has no attribute '{name}'")
    if name.startswith("__"):
        raise missing
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    library = importlib.import_module("weft_ops.library")
    if not hasattr(library, name):
        raise missing
    globals()[name] = getattr(library, name)
    return globals()[name]
