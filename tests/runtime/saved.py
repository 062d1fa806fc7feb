"""Models as a compiler saves them, with inputs and the results that it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("resnet18", "mlp", "lstm")


def save_models(folder: Path, *, size: int = 224, width: int = 64) -> None:
    """Writes NAME.weft, NAME.inputs.npz and NAME.results.npz of each model into a folder. Needs the compiler.

    Args:
        size: height and width of the pictures of resnet18.
        width: channels of its first stage.
    """
    import weft
    from weft_testing.models import lstm, mlp, picture, resnet18

    numbers = np.random.default_rng(0).standard_normal
    models: dict[str, tuple[Any, Any]] = {
        "resnet18": (resnet18(size=size, width=width), picture(size)),
        "mlp": (mlp(), numbers((3, 64)).astype(np.float32)),
        "lstm": (lstm(steps="steps"), numbers((5, 2, 12)).astype(np.float32)),
    }
    for name in NAMES:
        graph, x = models[name]
        executable = weft.compile(graph, "llvm")
        inputs = {graph.inputs[0].name: x}
        executable.save(folder / f"{name}.weft")
        np.savez(folder / f"{name}.inputs.npz", **inputs)
        np.savez(folder / f"{name}.results.npz", **executable.run(inputs))
