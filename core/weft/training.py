"""What `weft` has of the distribution weft-training: gradients of graphs, and training."""

from __future__ import annotations

import importlib
from typing import Any

NAMES = ("grad", "vjp", "jvp", "compile_training", "Trainer", "SGD", "AdamW", "Adagrad")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'weft.training' has no attribute '{name}'")
    try:
        found = importlib.import_module("weft_training")
    except ModuleNotFoundError as error:
        if error.name != "weft_training":
            raise
        from weft.errors import PluginError

        raise PluginError(f"weft.{name} is in another package", hint="pip install weft-training") from None
    return getattr(found, name)
