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
    """Leaves operators of a variable and a symbolic tensor to the tensor, which records them: `scale * x`. Variables
    take the tensor for an array. Functions with a gradient of their own are called as they are. One model is traced at
    a time."""
    kind, ops = keras.Variable, keras.src.ops
    names = [f"__{n}__" for n in (*_OPERATORS, *_COMPARISONS)]
    with _TRACING:
        gradient = ops.custom_gradient
        before = {name: kind.__dict__.get(name) for name in names}
        try:
            for name in names:
                setattr(kind, name, _left(getattr(kind, name), keras.KerasTensor))
            ops.custom_gradient = lambda function: lambda *args, **kwargs: function(*args, **kwargs)[0]
            yield
        finally:
            ops.custom_gradient = gradient
            for name, function in before.items():
                if function is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, function)


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
