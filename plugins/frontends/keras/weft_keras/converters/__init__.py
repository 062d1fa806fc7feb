"""The converters: of operations of keras.ops, and of the layers that are not entered."""

from __future__ import annotations

from weft_keras.converters import attention, elementwise, images, layers, movement, network, recurrent, reduction

__all__ = ["attention", "elementwise", "images", "layers", "movement", "network", "recurrent", "reduction"]
