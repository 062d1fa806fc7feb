"""The numpy meaning of tensor expressions: slow, exact in dtype, reductions one element after another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from weft.errors import TensorError
from weft.expr.evaluate import evaluate as evaluate_expr
from weft.expr.nodes import Expr, Var
from weft.tensor.language import Compute, Dim, Placeholder, Read, Reduce, Scan, Tensor, depends_on

Array = np.ndarray[Any, Any]


@overload
def evaluate(tensors: Tensor, arrays: Mapping[Tensor, Array], dims: Mapping[str, int] | None = None) -> Array: ...
@overload
def evaluate(
    tensors: Sequence[Tensor], arrays: Mapping[Tensor, Array], dims: Mapping[str, int] | None = None
) -> tuple[Array, ...]: ...
def evaluate(
    tensors: Tensor | Sequence[Tensor], arrays: Mapping[Tensor, Array], dims: Mapping[str, int] | None = None
) -> Array | tuple[Array, ...]:
    """The arrays of `tensors`.

    Args:
        arrays: the data of every placeholder, of its dtype and shape.
        dims: the symbols in shapes and formulas.

    Raises:
        TensorError: a placeholder without data or with data of another dtype or shape; an element read outside its
            tensor.
    """
    run = _Evaluation(dict(arrays), dict(dims or {}))
    if isinstance(tensors, Tensor):
        return run.array(tensors)
    return tuple(run.array(t) for t in tensors)


class _Evaluation:
    def __init__(self, arrays: Mapping[Tensor, Array], env: Mapping[str, Any]) -> None:
        self.env = env
        self.done: dict[int, Array] = {}
        self.alive: list[Tensor] = []  # ids in `done` stay theirs
        for tensor, data in arrays.items():
            shape = self.shape(tensor.shape)
            if data.shape != shape or data.dtype != tensor.dtype.numpy:
                raise TensorError(
                    f"tensor '{tensor.name}': expected {tensor.dtype}{list(shape)}, got {data.dtype}{list(data.shape)}"
                )
            self.keep(tensor, data)

    def keep(self, tensor: Tensor, data: Array) -> None:
        self.done[id(tensor)] = data
        self.alive.append(tensor)

    def shape(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else int(evaluate_expr(d, self.env)) for d in dims)

    def array(self, tensor: Tensor) -> Array:
        if id(tensor) not in self.done:
            source = tensor.source
            if isinstance(source, Placeholder):
                raise TensorError(f"the placeholder '{tensor.name}' has no data")
            self.keep(
                tensor, self.compute(tensor, source) if isinstance(source, Compute) else self.scan(tensor, source)
            )
        return self.done[id(tensor)]

    def load(self, node: Any, indices: Sequence[Any]) -> Any:
        assert isinstance(node, Read)
        data = self.array(node.tensor)
        for axis, (i, n) in enumerate(zip(indices, data.shape)):
            if np.size(i) and (np.min(i) < 0 or np.max(i) >= n):
                raise TensorError(
                    f"'{node}' reads outside '{node.tensor.name}'",
                    why=f"index {axis} takes {np.min(i)} … {np.max(i)}, the extent is {n}",
                )
        return data[tuple(indices)]

    def formula(self, expr: Expr, env: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
        value = evaluate_expr(expr, {**self.env, **env}, self.load)
        return np.broadcast_to(np.asarray(value, expr.dtype.numpy), shape)

    def compute(self, tensor: Tensor, source: Compute) -> Array:
        shape = self.shape(source.shape)
        body = source.bodies[tensor.output]
        reduce = body if isinstance(body, Reduce) else None
        extents = self.shape([a.extent for a in reduce.axes]) if reduce is not None else ()
        names = [v.name for v in source.axes] + ([a.var.name for a in reduce.axes] if reduce is not None else [])
        if len(set(names)) != len(names):
            raise TensorError(f"compute '{tensor.name}' names an axis twice: {names}")
        if 0 in shape:
            return np.zeros(shape, tensor.dtype.numpy)
        env = dict(zip(names, np.indices((*shape, *extents), sparse=True)))
        if reduce is None:
            return self.formula(body, env, shape).copy()
        outer = dict(zip(names, np.indices(shape, sparse=True)))
        total = tuple(self.formula(start, outer, shape) for start in reduce.init)
        if 0 not in extents:
            values = [self.formula(v, env, (*shape, *extents)) for v in reduce.values]
            left = tuple(Var(f"left{q}", v.dtype) for q, v in enumerate(reduce.values))
            right = tuple(Var(f"right{q}", v.dtype) for q, v in enumerate(reduce.values))
            combined = reduce.reducer.combine(left, right)
            for step in itertools.product(*(range(n) for n in extents)):
                given = {v.name: t for v, t in zip(left, total)} | {
                    v.name: x[_last(step)] for v, x in zip(right, values)
                }
                total = tuple(np.asarray(evaluate_expr(c, given)) for c in combined)
        return np.array(np.broadcast_to(total[reduce.index], shape))

    def scan(self, tensor: Tensor, source: Scan) -> Array:
        (length,) = self.shape([source.length])
        states = [self.array(t) for t in source.init]
        history: list[list[Array]] = [[] for _ in states]
        steps = range(length)
        for t in reversed(steps) if source.reverse else steps:
            inner = _Step(self, dict(zip(source.states, states)), source, t)
            states = [inner.array(u) for u in source.updates]
            for past, now in zip(history, states):
                past.append(now)
        if source.last:
            return states[tensor.output]
        past = history[tensor.output]
        if not past:
            return np.zeros((0, *states[tensor.output].shape), tensor.dtype.numpy)
        return np.stack(past[::-1] if source.reverse else past)


def _last(step: tuple[int, ...]) -> Any:
    """The index of one place along the trailing axes."""
    return (..., *step)


class _Step(_Evaluation):
    """One step of a scan: what does not depend on it is the outer evaluation's."""

    def __init__(self, outer: _Evaluation, states: Mapping[Tensor, Array], source: Scan, t: int) -> None:
        self.outer, self.source = outer, source
        super().__init__(states, {**outer.env, source.step.name: np.int64(t)})

    def array(self, tensor: Tensor) -> Array:
        if id(tensor) not in self.done and not depends_on(tensor, self.source.states, self.source.step):
            return self.outer.array(tensor)
        return super().array(tensor)
