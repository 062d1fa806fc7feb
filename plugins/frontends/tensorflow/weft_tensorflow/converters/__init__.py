"""How operators of TensorFlow are converted; importing registers them."""

from weft_tensorflow.converters import (
    control,
    elementwise,
    indexing,
    lists,
    movement,
    network,
    quantization,
    random,
    reduction,
    resizing,
    selection,
    shapes,
    signal,
    state,
)

__all__ = [
    "control",
    "elementwise",
    "indexing",
    "lists",
    "movement",
    "network",
    "quantization",
    "random",
    "reduction",
    "resizing",
    "selection",
    "shapes",
    "signal",
    "state",
]
