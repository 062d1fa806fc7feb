"""Sizes that come often get executables of their own, compiled in the background."""

from __future__ import annotations

import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import InputError, WeftError
from weft.pipeline import compile as compile_model
from weft.records import Records
from weft_runtime.arrays import Array
from weft_runtime.executable import Executable

Shapes = tuple[tuple[int, ...], ...]


class AdaptiveWarning(UserWarning):
    """Sizes that came often could not be compiled for; the executable of open sizes goes on serving them."""


_all: weakref.WeakSet[AdaptiveExecutable] = weakref.WeakSet()


def _after_fork() -> None:
    for adaptive in list(_all):
        adaptive._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class AdaptiveExecutable:
    """Runs as the executable of open sizes does, which serves whatever sizes have none of their own (yet).

    Each executable of fixed sizes has weights of its own in memory. Calls may come from any number of threads.

    Attributes:
        open: the executable of open sizes, which can be saved.
    """

    def __init__(
        self,
        open_sizes: Executable,
        compile_for: Callable[[Mapping[str, Sequence[int]]], Executable],
        most: int,
        after: int,
    ) -> None:
        self.open = open_sizes
        self._compile_for, self._most, self._after = compile_for, most, after
        self._made: dict[Shapes, Executable] = {}
        self._adapts = most > 0 and any(
            isinstance(d, str) for info in open_sizes.inputs for d in getattr(info, "shape", ())
        )
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """At first, and in a forked child: the thread that compiles stays with the parent, and with it what was asked
        for and the locks it held."""
        self._calls: dict[Shapes, int] = {}
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[Shapes | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._asked, self._served = len(self._made), False

    @property
    def inputs(self) -> Sequence[Any]:
        """As those of `Executable`, sizes open."""
        return self.open.inputs

    @property
    def outputs(self) -> Sequence[Any]:
        """As those of `Executable`, sizes open."""
        return self.open.outputs

    @property
    def sizes(self) -> list[dict[str, tuple[int, ...]]]:
        """The sizes of inputs, by name, that have executables of their own now."""
        with self._lock:
            return [self._named(shapes) for shapes in self._made]

    def __call__(self, *args: Any) -> Any:
        """As that of `Executable`."""
        return self._for(args)(*args)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """As that of `Executable`."""
        values = [inputs.get(info.name) for info in self.inputs] if isinstance(inputs, Mapping) else []
        return self._for(values).run(inputs, out)

    def wait(self, seconds: float | None = None) -> bool:
        """Returns when nothing is being compiled, or after so many seconds; whether nothing is."""
        return self._idle.wait(seconds)

    def _for(self, values: Sequence[Any]) -> Executable:
        if not self._adapts:
            return self.open
        shapes = tuple(tuple(getattr(v, "shape", ())) for v in values)
        found = self._made.get(shapes)
        return found if found is not None else self._noticed(shapes)

    def _noticed(self, shapes: Shapes) -> Executable:
        """Counts a call; requests an executable after enough calls, if the limit allows one more."""
        with self._lock:
            if self._asked < self._most:
                # Sizes that come once each must not fill the memory: only so many are counted at a time.
                if len(self._calls) >= 64 * self._most and shapes not in self._calls:
                    self._calls.clear()
                count = self._calls[shapes] = self._calls.get(shapes, 0) + 1
                if count == self._after:
                    self._asked += 1
                    self._idle.clear()
                    self._wanted.put(shapes)
                    if not self._served:
                        self._served = True
                        threading.Thread(
                            target=_serve, args=(weakref.ref(self), self._wanted), name="weft-adaptive", daemon=True
                        ).start()
                        weakref.finalize(self, self._wanted.put, None)
        return self.open

    def _make(self, shapes: Shapes) -> None:
        try:
            made = self._compile_for(self._named(shapes))
            with self._lock:
                self._made[shapes] = made
        except WeftError as error:
            text = (
                f"'{self.open.manifest.name}' could not be compiled for {self._named(shapes)}, and runs with open"
                f" sizes: {error}"
            )
            warnings.warn(text, AdaptiveWarning, stacklevel=2)
        finally:
            if self._wanted.empty():
                self._idle.set()

    def _named(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        return {info.name: shape for info, shape in zip(self.inputs, shapes)}


def _serve(of: weakref.ref[AdaptiveExecutable], wanted: queue.SimpleQueue[Shapes | None]) -> None:
    # Holds the executable only while it works for it, so that one which nobody uses any more can go.
    while (shapes := wanted.get()) is not None:
        adaptive = of()
        if adaptive is None:
            return
        adaptive._make(shapes)
        del adaptive


def compile_adaptive(
    model: Any,
    target: str = "llvm",
    *,
    most: int = 2,
    after: int = 16,
    frontend: str | None = None,
    cache: bool = True,
    records: Records | str | os.PathLike[str] | None = None,
) -> AdaptiveExecutable:
    """Compiles a model with its sizes open, and later, in the background, for those that come often.

    Args:
        model, target, frontend, cache, records: as `compile` has them.
        most: executables of fixed sizes at a time. Each has weights of its own in memory.
        after: calls with the same sizes that make one worth while.

    Raises:
        InputError: `most` or `after` is not positive.
        WeftError: as `compile`.
    """
    if most < 1 or after < 1:
        raise InputError(
            f"compile_adaptive takes positive numbers, got most={most}, after={after}",
            hint="weft.compile makes one executable for all sizes",
        )

    def compile_for(shapes: Mapping[str, Sequence[int]]) -> Executable:
        return compile_model(model, target, input_shapes=shapes, frontend=frontend, cache=cache, records=records)

    return AdaptiveExecutable(
        compile_model(model, target, frontend=frontend, cache=cache, records=records), compile_for, most, after
    )
