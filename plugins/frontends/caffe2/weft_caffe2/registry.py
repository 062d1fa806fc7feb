"""Which function converts which operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_frontend.registry import Registry

if TYPE_CHECKING:
    from weft_caffe2.network import Node

REGISTRY: Registry[Node] = Registry("weft_caffe2.converters")
op = REGISTRY.op
