"""How operators of TensorFlow are converted; importing registers them."""

from weft_tensorflow.converters import (
    arrays,
    control,
    elementwise,
    frames,
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
    "arrays",
    "control",
    "elementwise",
    "frames",
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
