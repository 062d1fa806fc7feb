"""Forks take place while no other thread imports a module or holds a lock that a child needs.

A forked child inherits locks without the threads that would release them, and waits for them for ever. Python locks each module while it is imported, and
Weft imports much when it is first used; locks of libraries are named with `hold`.
"""

from __future__ import annotations

import _imp

# These hold locks of their own while a process forks. What is registered last is called first: a fork waits before it takes their locks, which the threads
# that it waits for may need.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
from functools import cached_property as _cached_property
from typing import TYPE_CHECKING, Any

MOST_SECONDS = 60.0
"""A fork waits no longer for imports: one of them may wait for something that the thread holds that forks."""
MOST_SECONDS_WITHIN = 1.0
"""The same for a thread that is importing itself, which others are likely to wait for."""
_locks: list[Any] = []
_held: list[Any] = []  # by the fork that takes place


def hold(lock: Any) -> None:
    """From now on a fork waits until no other thread holds `lock`, which is free in the child.

    Args:
        lock: a context manager that one thread may enter several times.
    """
    _locks.append(lock)


if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = _cached_property
else:

    class cached_property(_cached_property):
        """As Python's from 3.12 on: before, all instances share a lock while one of them computes, which a forked child may find held."""

        def __get__(self, instance, owner=None):  # type: ignore[no-untyped-def]
            if instance is None:
                return self
            values = instance.__dict__
            if self.attrname not in values:
                values[self.attrname] = self.func(instance)
            return values[self.attrname]


def _before() -> None:
    end = time.monotonic() + (MOST_SECONDS_WITHIN if threading.get_ident() in _importing() else MOST_SECONDS)
    while True:
        _imp.acquire_lock()  # nobody begins an import meanwhile
        if not _importing() - {threading.get_ident()} or time.monotonic() > end:
            break
        _imp.release_lock()
        time.sleep(0.001)
    for lock in list(_locks):  # those named later are released later, too
        lock.__enter__()
        _held.append(lock)


def _after() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)
    _imp.release_lock()


def _importing() -> set[int]:
    """The threads that hold a module's lock; Python tells it nowhere but in its own table."""
    table = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    locks = [reference() for reference in list(table.values())]
    return {owner for lock in locks if (owner := getattr(lock, "owner", None)) is not None}  # one without an owner is free in the child as well


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
