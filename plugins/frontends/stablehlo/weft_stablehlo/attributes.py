"""Attributes of MLIR as Python has them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir


def plain(attribute: Any) -> Any:
    """An attribute as numbers, texts, tuples and mappings; one of a dialect as it is."""
    if isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr)):
        return attribute.value
    if isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr, ir.DenseBoolArrayAttr)):
        return tuple(attribute)
    if isinstance(attribute, ir.DenseElementsAttr):
        return np.asarray(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(plain(a) for a in attribute)
    if isinstance(attribute, ir.DictAttr):
        return {a.name: plain(a.attr) for a in attribute}
    if isinstance(attribute, ir.UnitAttr):
        return True
    return attribute


_ENUM = re.compile(r"#\w+<\w+ (\w+)>")
_PLACE = re.compile(r'"([^"]*)"(?::(\d+))?')


def keyword(attribute: Any) -> str:
    """The word of an enumeration, e.g. LT of #stablehlo<comparison_direction LT>."""
    value = getattr(attribute, "value", None)
    if isinstance(value, str):
        return value
    found = _ENUM.search(str(attribute))
    return found.group(1) if found else str(attribute)


def place_of(location: Any) -> str:
    """Where the model's own code makes an operation, as far as MLIR's location says: a name, and a file with its line.
    Empty if it says nothing."""
    text = str(location)
    found = [(name, line) for name, line in _PLACE.findall(text)[:64] if name]
    name = next((n for n, line in found if not line and n != "-"), "")
    file = next((f"{n}:{line}" for n, line in found if line and n != "-"), "")
    return ", ".join(p for p in (name, file) if p)


__all__ = ["keyword", "place_of", "plain"]
