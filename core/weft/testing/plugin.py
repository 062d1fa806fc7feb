"""What tests of a plugin need: `registered(plugin, name)` for one that is not installed, `resolve_target(text)` for its machine, rules and intrinsics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.pipeline import ResolvedTarget, resolve_target
from weft.plugins import host
from weft.runtime import device as devices

__all__ = ["ResolvedTarget", "registered", "resolve_target"]


@contextmanager
def registered(plugin: object, name: str) -> Iterator[None]:
    """Adds a module, or an object with hooks, to this process's plugins, and takes it back; its devices are opened anew meanwhile.

    with registered(sys.modules[__name__], "npu"):
        weft.compile(model, target="npu, llvm")

    Args:
        name: what an entry point would be called.

    Raises:
        PluginError: a hook of it is not as it should be.
    """
    host().register(plugin, name)
    opened = devices.close_devices()
    try:
        yield
    finally:
        host().unregister(name)
        devices.close_devices(opened)
