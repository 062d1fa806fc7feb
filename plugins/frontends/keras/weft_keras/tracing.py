"""What Keras does not record by itself, while layers are called on symbolic tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TRACING = threading.RLock()
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@contextmanager
def symbolic_operators(keras: Any) -> Iterator[None]:
    """While a layer is called: what it does with symbolic tensors is recorded, or fails.

    Operators of a variable and a symbolic tensor are left to the tensor: `scale * x`; variables take it for an array.
    `x == 0` is an operation, not whether they are one object. Functions with a gradient of their own are called as they
    are. Variables are not written. One layer is called at a time.
    """
    variable, symbolic, ops = keras.Variable, keras.KerasTensor, keras.src.ops
    names = [f"__{n}__" for n in (*_OPERATORS, *_COMPARISONS)]
    with _TRACING:
        changes: list[tuple[Any, str, Any]] = [(variable, n, _left(getattr(variable, n), symbolic)) for n in names]
        changes += [(variable, "assign", _refused), (symbolic, "__eq__", _equal(keras.ops))]
        changes += [(ops, "custom_gradient", _plain)]
        before = [(owner, name, vars(owner).get(name)) for owner, name, _ in changes]
        try:
            for owner, name, function in changes:
                setattr(owner, name, function)
            yield
        finally:
            for owner, name, function in before:
                if function is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, function)


def _refused(variable: Any, *_: Any, **__: Any) -> None:
    raise TypeError(f"it assigns to the variable '{variable.path}'")


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives its result and a gradient, without the gradient."""
    return lambda *args, **kwargs: function(*args, **kwargs)[0]


def _equal(ops: Any) -> Callable[[Any, Any], Any]:
    return lambda self, other: NotImplemented if other is None or isinstance(other, str) else ops.equal(self, other)


def _left(function: Callable[[Any, Any], Any], symbolic: type) -> Callable[[Any, Any], Any]:
    return lambda self, other: NotImplemented if isinstance(other, symbolic) else function(self, other)


class SymbolicBackend:
    """keras.ops in place of a backend, which layers of images compute with."""

    def __init__(self, keras: Any, given: Any) -> None:
        ops = keras.ops
        self.numpy = self.core = ops
        self.nn, self.image, self.linalg = ops.nn, ops.image, ops.linalg
        self._ops, self._given = ops, given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name) if hasattr(self._ops, name) else getattr(self._given, name)


@contextmanager
def symbolic_backend(keras: Any, layer: Any) -> Iterator[None]:
    """Lets a layer that computes with a backend of its own compute with keras.ops; and draws no random numbers for
    images, which only training uses: a layer that uses them otherwise fails."""
    given = vars(layer).get("backend")
    if given is None:
        yield
        return
    draws = hasattr(layer, "get_random_transformation")
    before = dict(vars(layer))
    vars(layer)["backend"] = SymbolicBackend(keras, given)
    if draws:
        vars(layer)["get_random_transformation"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        vars(layer)["backend"] = given
        if draws and "get_random_transformation" not in before:
            del vars(layer)["get_random_transformation"]
