"""Weft's Darknet plugin: the frontend for `.cfg` files and their `.weights`. Imports in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.hooks import Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


def load(source: Any, options: Mapping[str, Any]) -> Graph:
    """The graph of a network: the path of a .cfg, or its bytes. Option `weights`: a path or bytes; by default the .weights beside the .cfg.

    Raises FrontendError for a file that cannot be read, is ill-formed or does not belong to the other, UnsupportedError for all that is not supported.
    """
    from weft_darknet.network import load_network

    return load_network(source, options)


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("darknet", (".cfg",), lambda head: b"[net" in head, lambda model: False, load, lambda path: [path.with_suffix(".weights")])]
