"""Weft: an open deep-learning compiler.

import weft
exe = weft.compile("model.onnx", target="llvm")
out = exe.run({"x": x})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft import forks as _forks  # noqa: F401 - forks wait for imports from now on

if TYPE_CHECKING:
    __version__: str
    from weft.adaptive import compile_adaptive as compile_adaptive
    from weft.errors import WeftError as WeftError
    from weft.exporting import export as export
    from weft.kernel import build as build
    from weft.kernel import schedule as schedule
    from weft.loading import load as load
    from weft.pipeline import compile as compile
    from weft.tensor.language import compute as compute
    from weft.tensor.language import placeholder as placeholder
    from weft.tensor.language import reduce as reduce
    from weft.tensor.language import reduce_axis as reduce_axis
    from weft.tensor.language import scan as scan
    from weft.tensor.language import sum as sum
    from weft.tensor.language import var as var
    from weft.tuning import tune as tune
    from weft_runtime.executable import Executable as Executable

# Resolved at first use: running a saved executable must not import the compiler.
_PUBLIC = {
    "WeftError": "weft.errors",
    "Executable": "weft_runtime.executable",
    "load": "weft.loading",
    "compile": "weft.pipeline",
    "compile_adaptive": "weft.adaptive",
    "export": "weft.exporting",
    "schedule": "weft.kernel",
    "build": "weft.kernel",
    "compute": "weft.tensor.language",
    "placeholder": "weft.tensor.language",
    "reduce": "weft.tensor.language",
    "reduce_axis": "weft.tensor.language",
    "scan": "weft.tensor.language",
    "sum": "weft.tensor.language",
    "var": "weft.tensor.language",
    "call": "weft.expr.functions",
    "select": "weft.expr.nodes",
    "maximum": "weft.expr.nodes",
    "minimum": "weft.expr.nodes",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("weft-core")
    if name == "remote":
        return importlib.import_module("weft.remote")
    if name == "tune":
        return importlib.import_module("weft.tuning").tune
    if name in ("grad", "vjp", "jvp", "compile_training", "Trainer", "SGD", "AdamW", "Adagrad"):
        return getattr(importlib.import_module("weft.training"), name)
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
