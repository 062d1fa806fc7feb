"""What `weft` has of the distribution weft-training: gradients of graphs, and training."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

NAMES = ("grad", "vjp", "jvp", "compile_training", "plan_training", "Trainer", "SGD", "AdamW", "Adagrad")
PHASES = ("forward", "again", "backward", "update")
"""The parts of a training step, in order of their beginning; "again": what the backward pass computes of the forward
pass once more."""


def phase_name(phase: str) -> str:
    """The name that nodes of a part have beside those of the framework, where a step is shown."""
    return f"({phase})"


def phases_of(names: Iterable[str]) -> tuple[str, ...]:
    """The parts of a training step that names of a node or kernel say it belongs to."""
    found = set(names)
    return tuple(p for p in PHASES if phase_name(p) in found)


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
