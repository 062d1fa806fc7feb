"""Packages and modules that have another name now: the old name gives the same modules, with a DeprecationWarning, for
one version."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "weft.codegen.c_family": "weft_c_family",
        "weft.codegen.launches": "weft_gpu.launches",
        "weft.loop.boxes": "weft_gpu.bulk_copies",
        "weft.loop.interpret": "weft_interpreter.interpret",
        "weft.loop.passes.await_queues": "weft_queues.await_queues",
        "weft.loop.passes.copy_async": "weft_gpu.passes.copy_async",
        "weft.loop.passes.copy_boxes": "weft_gpu.passes.bulk_copies",
        "weft.ops": "weft_ops",
        "weft.public": "weft_testing.public",
        "weft.runtime": "weft_runtime",
        "weft.scheduling.attention": "weft_ops.scheduling.attention",
        "weft.scheduling.winograd": "weft_ops.scheduling.winograd",
        "weft.testing": "weft_testing",
    }
)
"""Old name → new name."""
ELSEWHERE: Mapping[str, str] = MappingProxyType({"weft.ops.control": "weft.graph.control"})
"""Modules of these packages that went another way."""


def renamed(old: str, names: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """Makes `old.X` the module `new.X`, one object, for every X. Gives the `__getattr__` of the package or module
    `old`.

    Args:
        names: what of it has another name in the new one, too.
    """
    new = RENAMED[old]
    if not any(isinstance(f, _Renamed) and f.old == old for f in sys.meta_path):
        sys.meta_path.insert(0, _Renamed(old, new))

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{old}' has no attribute '{name}'")
        now = names.get(name, name)
        value = getattr(importlib.import_module(new), now)
        _warn(f"{old}.{name}", f"{new}.{now}")
        return value

    return attribute


class _Renamed(MetaPathFinder, Loader):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self.old + "."):
            return None
        now = self._now(fullname)
        try:
            importlib.import_module(now)
        except ModuleNotFoundError as error:
            if error.name == self.new:
                distribution = self.new.replace("_", "-")
                said = f"'{fullname}' is '{now}' of the distribution {distribution} now: pip install {distribution}"
                raise ModuleNotFoundError(said, name=fullname) from error
            if error.name is None or not f"{now}.".startswith(f"{error.name}."):
                raise  # what the module itself imports
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _warn(spec.name, self._now(spec.name))
        module = importlib.import_module(self._now(spec.name))
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the old name's spec into the module, which has been executed under its own.
        name = module.__spec__.name if module.__spec__ is not None else ""
        module.__spec__ = self._specs.pop(name)

    def _now(self, name: str) -> str:
        return ELSEWHERE.get(name) or self.new + name.removeprefix(self.old)


def _warn(old: str, new: str) -> None:
    text = f"'{old}' has another name now: '{new}'. The old one goes with version 0.3"
    warnings.warn(text, DeprecationWarning, stacklevel=3)  # the import system's own frames do not count
