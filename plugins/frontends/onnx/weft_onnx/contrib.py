"""Operators of ONNX Runtime's own domains, which have no schema in ONNX: what their converters accept is said here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft_onnx.context import Context
from weft_onnx.registry import onnx_op

DOMAIN = "com.microsoft"


def contrib_op(
    *names: str, attributes: str = "", outputs: tuple[int, ...] = (0,), domain: str = DOMAIN
) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    """Registers a converter. A node with an attribute that is not among `attributes`, or that is asked for an output
    that is not among `outputs`, is unsupported."""
    known = attributes.split()

    def register(function: Callable[[Context], Any]) -> Callable[[Context], Any]:
        @onnx_op(*names, domain=domain)
        def checked(c: Context) -> Any:
            for name in c.attributes:
                if name not in known:
                    raise c.unsupported(f"attribute '{name}'")
            for k, name in enumerate(c.node.output):
                if name and k not in outputs:
                    raise c.unsupported(f"output {k}, '{name}'")
            return function(c)

        return function

    return register


def fixed(c: Context, name: str, default: int = 0) -> None:
    """An integer attribute that has no other value than its default.

    Raises:
        Unsupported: it has.
    """
    value = c.integer(name, default)
    if value != default:
        raise c.unsupported(f"attribute '{name}' = {value}")
