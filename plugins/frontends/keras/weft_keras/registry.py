"""Which function converts which layer or operation of keras.ops.

Layers that have no entry are called on symbolic tensors, and the operations that they are made of are converted: only
those are here that Weft has whole, or whose `call` uses something other than keras.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft_frontend.registry import Registry

if TYPE_CHECKING:
    from weft_keras.call import Call

REGISTRY: Registry[Call] = Registry("weft_keras.converters")
Converter = Callable[["Call"], Any]


def operation(*names: str) -> Callable[[Converter], Converter]:
    """Registers a converter for classes of keras.ops."""
    return REGISTRY.op(*names, domain="ops")


def layer(*names: str, refuses: bool = False) -> Callable[[Converter], Converter]:
    """Registers a converter for classes of keras.layers; `refuses`: of those that cannot be read."""
    return REGISTRY.op(*names, domain="layers", refuses=refuses)
