"""What tests of a plugin need: `registered(plugin, name)` for one that is not installed, `resolve_target(text)` for its
machine, rules and intrinsics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.plugins import BY_HAND, host
from weft.resolve import ResolvedTarget, resolve_target
from weft_runtime import device as devices

__all__ = ["ResolvedTarget", "register", "registered", "resolve_target", "unregister"]


@contextmanager
def registered(plugin: object, name: str) -> Iterator[None]:
    """Adds a module, or an object with hooks, to this process's plugins, and takes it back; devices are opened anew.

    with registered(sys.modules[__name__], "npu"):
        weft.compile(model, target="npu, llvm")

    Args:
        name: what an entry point would be called.

    Raises:
        PluginError: a hook of it is not as it should be.
    """
    register(plugin, name)
    try:
        yield
    finally:
        unregister(name)


def register(plugin: object, name: str) -> None:
    """Adds a plugin until `unregister(name)`, in place of one that has been added under this name; devices are opened
    anew.

    Raises:
        PluginError: a hook of it is not as it should be.
    """
    if any(p.name == name and p.distribution == BY_HAND for p in host().plugins):
        host().unregister(name)
    host().register(plugin, name)
    devices.close_devices()


def unregister(name: str) -> None:
    """Takes back what `register` added."""
    host().unregister(name)
    devices.close_devices()
