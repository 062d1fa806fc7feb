"""Checkpoints: parameters, the optimiser's state and the number of steps, as one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.errors import ArchiveError
from weft.graph.operator import Array
from weft_runtime.files import replacing

FORMAT = "weft-training 1"


def save(path: str | os.PathLike[str], arrays: Mapping[str, Array], facts: Mapping[str, str]) -> None:
    """Writes arrays and facts to a file, which is there whole or not at all, and on the disk before this returns.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors.numpy import save as packed

    data = packed({n: np.ascontiguousarray(a) for n, a in arrays.items()}, {"format": FORMAT, **facts})
    with replacing(Path(path), durable=True) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and facts of a file.

    Raises:
        OSError: it cannot be read.
        ArchiveError: it is no such file, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint '{path}'")
    try:
        with safe_open(str(path), framework="numpy") as file:
            facts = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except SafetensorError as error:
        raise ArchiveError(f"'{path}' is no checkpoint, or damaged", why=str(error)) from None
    if facts.pop("format", None) != FORMAT:
        raise ArchiveError(f"'{path}' is no checkpoint of a training", why=f"its format is not '{FORMAT}'")
    return arrays, facts
