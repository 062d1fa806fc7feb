"""How operators of programs and layers of networks are read: importing this package registers all converters."""

from weft_coreml.converters import (  # noqa: F401
    attention,
    compression,
    contraction,
    control,
    detection,
    elementwise,
    indexing,
    layers,
    layers_indices,
    layers_weights,
    lists,
    movement,
    normalization,
    pooling,
    random,
    recurrent,
    reduction,
    resizing,
    shapes,
)
