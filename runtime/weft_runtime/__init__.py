"""Running compiled models. Nothing of the compiler is imported: a saved model runs where only this package and numpy
are installed.

import weft_runtime
exe = weft_runtime.load("model.weft")
out = exe.run({"x": x})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from weft_runtime.errors import WeftError as WeftError
    from weft_runtime.executable import Executable as Executable
    from weft_runtime.executable import NativeCode as NativeCode
    from weft_runtime.plan import ConstantInfo as ConstantInfo
    from weft_runtime.plan import Manifest as Manifest
    from weft_runtime.plan import Native as Native
    from weft_runtime.plan import SectionInfo as SectionInfo
    from weft_runtime.plan import TensorInfo as TensorInfo

    load = Executable.load

# Resolved at first use, so that `import weft_runtime` takes no time that a program does not need.
_PUBLIC = {
    "ConstantInfo": "weft_runtime.plan",
    "Executable": "weft_runtime.executable",
    "Manifest": "weft_runtime.plan",
    "Native": "weft_runtime.plan",
    "NativeCode": "weft_runtime.executable",
    "SectionInfo": "weft_runtime.plan",
    "TensorInfo": "weft_runtime.plan",
    "WeftError": "weft_runtime.errors",
}

__all__ = [
    "ConstantInfo", "Executable", "Manifest", "Native", "NativeCode", "SectionInfo", "TensorInfo", "WeftError", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("weft-runtime")
    if name == "load":
        from weft_runtime.executable import Executable

        return Executable.load
    if name not in _PUBLIC:
        raise AttributeError(f"module 'weft_runtime' has no attribute '{name}'")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
