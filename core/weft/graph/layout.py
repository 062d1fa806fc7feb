"""Layouts: index maps from a value's logical indices to its stored ones.

    Layout := step*            step := split(axis, factor) | permute(order)

`split(axis, factor)` replaces an axis by two, index // factor and index % factor; an extent that the factor does not
divide is padded up, and padding holds zeros. `permute(order)` lists, for each stored axis, the axis of before it.
NCHW16c is `split(1, 16) permute(0, 1, 3, 4, 2)`; groups of 20 channels, each in blocks of its own: `split(1, 20)
split(2, 16) permute(0, 1, 2, 4, 5, 3)`. Operators never see layouts: lowering composes their accesses with the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import GraphError
from weft.expr.nodes import Expr, ExprLike, ceildiv, lt, wrap
from weft.tensor.language import Dim, as_dim


@dataclass(frozen=True)
class Split:
    """Splits dimension `axis` into (⌈size / factor⌉, factor); elements beyond the size are zeros."""

    axis: int
    factor: int

    def __str__(self) -> str:
        return f"split({self.axis}, {self.factor})"


@dataclass(frozen=True)
class Permute:
    """Reorders dimensions: dimension i of the result is dimension `order[i]`."""

    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"permute({', '.join(map(str, self.order))})"


@dataclass(frozen=True)
class Layout:
    """See the module."""

    steps: tuple[Split | Permute, ...]

    def __str__(self) -> str:
        return " ".join(str(s) for s in self.steps)

    def blocks(self, rank: int) -> list[tuple[int, int]]:
        """Of values of `rank`: what stays together in memory, as (logical axis, elements of it that follow one another
        in a block); the innermost axis and 1 where no axis is split."""
        axes = list(range(rank))
        found = []
        for step in self.steps:
            if isinstance(step, Split):
                found.append((axes[step.axis], step.factor))
                axes.insert(step.axis, axes[step.axis])
            else:
                axes = [axes[k] for k in step.order]
        return found or [(axes[-1], 1) for _ in axes[:1]]

    def stored_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape in memory of a value of logical `shape`."""
        dims: list[Dim] = list(shape)
        for step in self.steps:
            if isinstance(step, Split):
                self._check(step.axis < len(dims), dims)
                d = dims[step.axis]
                outer = -(-d // step.factor) if isinstance(d, int) else as_dim(ceildiv(d, step.factor))
                dims[step.axis : step.axis + 1] = [outer, step.factor]
            else:
                self._check(sorted(step.order) == list(range(len(dims))), dims)
                dims = [dims[k] for k in step.order]
        return tuple(dims)

    def _check(self, ok: bool, dims: Sequence[Dim]) -> None:
        if not ok:
            raise GraphError(f"layout '{self}' does not fit a value of {len(dims)} dimensions")

    def map(self, indices: Sequence[ExprLike]) -> tuple[Expr, ...]:
        """Stored indices of the element with these logical indices."""
        out = [wrap(i) for i in indices]
        for step in self.steps:
            if isinstance(step, Split):
                i = out[step.axis]
                out[step.axis : step.axis + 1] = [i // step.factor, i % step.factor]
            else:
                out = [out[k] for k in step.order]
        return tuple(out)

    def unmap(self, stored: Sequence[ExprLike]) -> tuple[Expr, ...]:
        """Logical indices of the element at these stored indices; of padding they say nothing, see `joined`."""
        out = [wrap(i) for i in stored]
        for step in reversed(self.steps):
            if isinstance(step, Split):
                out[step.axis : step.axis + 2] = [out[step.axis] * step.factor + out[step.axis + 1]]
            else:
                out = _unpermuted(out, step)
        return tuple(out)

    def joined(
        self, stored: Sequence[ExprLike], shape: Sequence[Dim], name: Callable[[Expr, Dim], Expr] | None = None
    ) -> tuple[tuple[Expr, ...], list[Expr]]:
        """As `unmap`, and what holds of an element of a value of logical `shape` that is no padding.

        Args:
            name: given an index below the given extent that is padded and then joined with another one, gives what
                stands for it in what is returned.
        """
        shapes: list[tuple[Dim, ...]] = [tuple(shape)]
        for step in self.steps:
            shapes.append(Layout((step,)).stored_shape(shapes[-1]))
        out, inside = [wrap(i) for i in stored], []
        for k in reversed(range(len(self.steps))):
            step = self.steps[k]
            if isinstance(step, Permute):
                out = _unpermuted(out, step)
                continue
            index, extent = out[step.axis] * step.factor + out[step.axis + 1], shapes[k][step.axis]
            if not isinstance(extent, int) or extent % step.factor:
                inside.append(lt(index, extent))
                if name is not None and any(isinstance(s, Split) for s in self.steps[:k]):
                    index = name(index, extent)
            out[step.axis : step.axis + 2] = [index]
        return tuple(out), inside

    def pads(self, shape: Sequence[Dim]) -> bool:
        """Whether some stored element is padding (or may be, for a symbolic extent)."""
        dims: list[Dim] = list(shape)
        for step in self.steps:
            if isinstance(step, Split):
                d = dims[step.axis]
                if not isinstance(d, int) or d % step.factor:
                    return True
                dims[step.axis : step.axis + 1] = [d // step.factor, step.factor]
            else:
                dims = [dims[k] for k in step.order]
        return False

    def pack(
        self, data: np.ndarray[Any, Any], empty: Callable[[tuple[int, ...], Any], np.ndarray[Any, Any]] = np.empty
    ) -> np.ndarray[Any, Any]:
        """Logical data as stored: contiguous, padding zero. `empty` allocates it: weights are large, and are moved
        once."""
        stored = empty(tuple(d for d in self.stored_shape(data.shape) if isinstance(d, int)), data.dtype)
        _fill(stored, data, self.steps)
        return stored

    def unpack(self, stored: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Stored data as logical `shape`."""
        shapes: list[tuple[Dim, ...]] = [tuple(shape)]
        for step in self.steps:
            shapes.append(Layout((step,)).stored_shape(shapes[-1]))
        data = stored
        for step, before in zip(reversed(self.steps), reversed(shapes[:-1])):
            if isinstance(step, Split):
                data = data.reshape(*data.shape[: step.axis], -1, *data.shape[step.axis + 2 :])
                data = data[tuple(slice(0, n) for n in before)]
            else:
                data = data.transpose(np.argsort(step.order))
        return np.ascontiguousarray(data)


def _unpermuted(indices: Sequence[Expr], step: Permute) -> list[Expr]:
    before: list[Any] = [None] * len(step.order)
    for new, old in enumerate(step.order):
        before[old] = indices[new]
    return before


def _fill(stored: np.ndarray[Any, Any], data: np.ndarray[Any, Any], steps: Sequence[Split | Permute]) -> None:
    """Writes data, seen through `steps`, to `stored`."""
    for k, step in enumerate(steps):
        if isinstance(step, Permute):
            data = data.transpose(step.order)
            continue
        axis, factor = step.axis, step.factor
        blocks, rest = divmod(data.shape[axis], factor)
        rest_steps = steps[k + 1 :]
        if rest and all(isinstance(s, Permute) for s in rest_steps):
            # Undo what follows on the stored side: there the whole blocks, the last one and its padding are parts of
            # one array.
            for later in reversed(rest_steps):
                assert isinstance(later, Permute)
                stored = stored.transpose(np.argsort(later.order))
            before = (slice(None),) * axis
            whole, last = data[(*before, slice(0, blocks * factor))], data[(*before, slice(blocks * factor, None))]
            stored[(*before, slice(0, blocks))] = whole.reshape(
                *data.shape[:axis], blocks, factor, *data.shape[axis + 1 :]
            )
            stored[(*before, blocks, slice(0, rest))] = last
            stored[(*before, blocks, slice(rest, None))] = 0
            return
        if rest:
            data = np.pad(data, [(0, factor - rest) if a == axis else (0, 0) for a in range(data.ndim)])
        data = data.reshape(*data.shape[:axis], -(-data.shape[axis] // factor), factor, *data.shape[axis + 1 :])
    stored[...] = data


def blocked(rank: int, axis: int, factor: int) -> Layout:
    """`axis` split by `factor`, its inner part stored last: NCHW16c is blocked(4, 1, 16)."""
    order = [k for k in range(rank + 1) if k != axis + 1] + [axis + 1]
    return Layout((Split(axis, factor), Permute(tuple(order))))


def parse_layout(text: str) -> Layout:
    """The inverse of str(layout).

    Raises:
        GraphError: if the text is not a layout.
    """
    import re

    steps: list[Split | Permute] = []
    for word, args in re.findall(r"(\w+)\(([^)]*)\)", text):
        numbers = tuple(int(a) for a in args.split(",") if a.strip())
        if word == "split" and len(numbers) == 2:
            steps.append(Split(*numbers))
        elif word == "permute":
            steps.append(Permute(numbers))
        else:
            raise GraphError(f"'{word}({args})' is no layout step", hint="split(axis, factor) or permute(order…)")
    if str(Layout(tuple(steps))) != text.strip():
        raise GraphError(f"'{text}' is no layout")
    return Layout(tuple(steps))
