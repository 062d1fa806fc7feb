"""Which method builds the layer of which section."""

from __future__ import annotations

from collections.abc import Callable

from weft.graph.nodes import Value
from weft_darknet.layers import Kinds
from weft_darknet.recurrent import Recurrent

_ALIASES = {
    "conv": "convolutional", "conn": "connected", "dropout": "activation", "empty": "activation", "cost": "activation",
    "network": "net",
    "max": "maxpool", "local_avgpool": "maxpool", "local_avg": "maxpool", "avg": "avgpool", "soft": "softmax",
    "reorg3d": "reorg", "sam": "scale_channels",
}  # fmt: skip
RECURRENT = tuple(name for name in vars(Recurrent) if not name.startswith("_"))
METHODS: dict[str, Callable[..., Value]] = {
    name: method for name, method in (vars(Kinds) | vars(Recurrent)).items() if not name.startswith("_")
}
LAYERS = METHODS | {alias: METHODS[name] for alias, name in _ALIASES.items()}
