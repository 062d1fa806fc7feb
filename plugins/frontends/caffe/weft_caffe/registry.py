"""Which function converts which layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_frontend.registry import Registry

if TYPE_CHECKING:
    from weft_caffe.network import Layer

REGISTRY: Registry[Layer] = Registry("weft_caffe.layers")
layer = REGISTRY.op
