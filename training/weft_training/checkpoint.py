"""Checkpoints: parameters, the optimiser's state and the number of steps, as one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.errors import ArchiveError
from weft.graph.operator import Array
from weft_runtime.files import replacing

KEY, VERSION = "weft-training", 1
"""The one entry of the file's metadata (several would have any order), and the version of what stands in it."""


def save(path: str | os.PathLike[str], arrays: Mapping[str, Array], steps: int) -> None:
    """Writes arrays and the number of steps to a file, which is there whole or not at all, and on the disk before this
    returns. The same arrays give the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors.numpy import save as packed

    data = packed(
        {n: np.asarray(a, order="C") for n, a in arrays.items()},
        {KEY: json.dumps({"version": VERSION, "steps": steps})},
    )
    with replacing(Path(path), durable=True) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Array], int]:
    """The arrays of a file and the number of steps.

    Raises:
        OSError: it cannot be read.
        ArchiveError: it is no such file, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint '{path}'")
    try:
        with safe_open(str(path), framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY, "")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except SafetensorError as error:
        raise ArchiveError(f"'{path}' is no checkpoint, or damaged", why=str(error)) from None
    try:
        facts = json.loads(text)
        version, steps = facts["version"], facts["steps"]
    except (ValueError, TypeError, KeyError):
        version = steps = None
    if version != VERSION or not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ArchiveError(
            f"'{path}' is no checkpoint of a training",
            why=f"its metadata has no entry '{KEY}' of version {VERSION} with a number of steps",
        )
    return arrays, steps
