"""`weft.tune`, which the distribution weft-tuning brings."""

from __future__ import annotations

import importlib
from typing import Any


def tune(what: Any, target: str = "llvm", **options: Any) -> Any:
    """Measures other choices for the kernels of a model, or for a formula, and records what is faster: compilations,
    and `weft.schedule(...).auto()`, follow the records.

    Args:
        what: a model, as `weft.compile` takes it; or what `weft.compute` returned, or a list of that; or a naive
            Program.
        options: those of `weft_tuning.tune`, such as seconds=600.

    Returns:
        A `weft_tuning.report.Report`.

    Raises:
        PluginError: weft-tuning is not installed.
    """
    try:
        found = importlib.import_module("weft_tuning")
    except ModuleNotFoundError as error:
        if error.name != "weft_tuning":
            raise
        from weft.errors import PluginError

        raise PluginError("nothing is tuned without the tuner", hint='pip install "weft-tuning[search]"') from None
    return found.tune(what, target, **options)
