"""Forks take place while no other thread imports a module or holds a lock that a child needs.

A forked child inherits locks without the threads that would release them, and waits for them for ever. Python locks
each module while it is imported, and Weft imports much when it is first used; locks of libraries are named with `hold`.
"""

from __future__ import annotations

import _imp
import atexit

# These hold locks of their own while a process forks. What is registered last is called first: a fork waits before it
# takes their locks, which the threads that it waits for may need.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from functools import cached_property as _cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

MOST_SECONDS = 60.0
"""A fork waits no longer for named locks and for imports of modules that Weft needs: what holds one may wait for the
thread that forks."""
MOST_SECONDS_ELSE = 1.0
"""The same for other imports, which may be a program that runs while it is imported; and for all that a thread waits
for which is importing itself."""
TRY_SECONDS = 0.005
"""So long a fork waits for a lock at a time. It holds the lock of imports meanwhile, which the thread that it waits for
may need. Not to wait at all would miss a lock that its thread takes again at once."""

_needed = {"weft", "weft_runtime", "ml_dtypes", "numpy"}
_locks: list[Any] = []
_held: list[Callable[[], object]] = []  # how the fork that takes place gives back what it holds
_waited_for: WeakSet[Any] = WeakSet()  # in vain, locks of modules: no later fork waits for them


def hold(lock: Any) -> None:
    """From now on a fork waits until no other thread holds `lock`, which is free in the child.

    Args:
        lock: a `threading.RLock`, or something else with its `acquire` and `release`.

    Raises:
        TypeError: it has none.
    """
    if not callable(getattr(lock, "acquire", None)) or not callable(getattr(lock, "release", None)):
        raise TypeError(f"a lock has the methods 'acquire' and 'release', got {lock!r}")
    _locks.append(lock)


def per_process(make: Callable[[], T]) -> Callable[[], T]:
    """`make` called once, and once more in a forked child: of what has threads, which stay with the parent."""
    made = cache(make)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made.cache_clear)
    return made


def need(package: str) -> None:
    """From now on a fork waits for imports of this package as for those of Weft: a plugin says so of what it is built
    on."""
    _needed.add(package)


if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = _cached_property
else:

    class cached_property(_cached_property):
        """As Python's from 3.12 on: before, all instances share a lock while one of them computes, which a forked child
        may find held."""

        def __get__(self, instance: object, owner: type | None = None) -> object:
            if instance is None:
                return self
            values = instance.__dict__
            if self.attrname not in values:
                values[self.attrname] = self.func(instance)
            return values[self.attrname]


def of_this_process(function: Callable[..., object]) -> Callable[..., None]:
    """`function` for `atexit` and `weakref.finalize`: it does nothing in a child that is forked from now on, which
    would end what is its parent's."""
    process = os.getpid()

    def call(*args: Any, **named: Any) -> None:
        if os.getpid() == process:
            function(*args, **named)

    return call


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder that goes at the end, or with the process that made it; that of `tempfile.TemporaryDirectory` goes with
    a child that is forked meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    remove = of_this_process(partial(shutil.rmtree, folder, ignore_errors=True))
    atexit.register(remove)
    try:
        yield folder
    finally:
        atexit.unregister(remove)
        remove()


def _before() -> None:
    began = time.monotonic()
    within = any(lock.owner == threading.get_ident() for lock in _module_locks().values())
    most = MOST_SECONDS_ELSE if within else MOST_SECONDS
    while min(most, seconds := _take()) > time.monotonic() - began:
        _release()
        time.sleep(0.001)
    if seconds:
        _waited_for.update(_imports().values())
    if seconds == MOST_SECONDS:
        why = f"another thread imports what Weft needs, or is within a library that it uses, for more than {most:g} s"
        warnings.warn(
            f"a child is forked that may wait for ever when it uses Weft: {why}", RuntimeWarning, stacklevel=2
        )


def _take() -> float:
    """Takes the lock of imports, so that nobody begins one, and the named locks that are free; for how many seconds a
    fork waits for what is not."""
    _imp.acquire_lock()
    _held.append(_imp.release_lock)
    imports = _imports()
    seconds = MOST_SECONDS if any(map(_is_needed, imports)) else MOST_SECONDS_ELSE if imports else 0.0
    for lock in list(_locks):
        if lock.acquire(timeout=TRY_SECONDS):
            _held.append(lock.release)
        else:
            seconds = MOST_SECONDS
    return seconds


def _release() -> None:
    while _held:
        _held.pop()()


def _is_needed(module: str) -> bool:
    # Weft's own distributions have packages weft_NAME, whether they are plugins or what plugins are built on.
    return module.startswith("weft_") or any(
        module == package or module.startswith(package + ".") for package in _needed
    )


def _imports() -> dict[str, Any]:
    """The modules that other threads import, with their locks; without those that a fork has waited for in vain."""
    free = (None, threading.get_ident())  # a lock without an owner is free in the child as well
    return {name: lock for name, lock in _module_locks().items() if lock.owner not in free and lock not in _waited_for}


def _module_locks() -> dict[str, Any]:
    """Python tells nowhere which modules are being imported but in its own table."""
    table = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    locks = {name: reference() for name, reference in list(table.items())}
    return {name: lock for name, lock in locks.items() if hasattr(lock, "owner")}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_release)
