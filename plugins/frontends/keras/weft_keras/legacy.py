"""Settings that Keras 2 wrote into files and Keras 3 refuses to read, although they change nothing."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANY = object()
_GROUPS = {"groups": 1}
_KERNEL = dict.fromkeys(("kernel_initializer", "kernel_regularizer", "kernel_constraint"), ANY)
_TIME = {"time_major": False}
NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "DepthwiseConv1D": _GROUPS, "DepthwiseConv2D": _GROUPS,
    "Conv1DTranspose": _GROUPS, "Conv2DTranspose": _GROUPS, "Conv3DTranspose": _GROUPS,
    "SeparableConv1D": _GROUPS | _KERNEL, "SeparableConv2D": _GROUPS | _KERNEL,
    "LSTM": _TIME, "GRU": _TIME, "SimpleRNN": _TIME, "RNN": _TIME,
}  # fmt: skip
"""By class: settings, and the value with which they change nothing. Separable convolutions have no `kernel`."""


def modern(config: Any) -> tuple[Any, bool]:
    """A configuration without such settings, and whether it had any."""
    if isinstance(config, list):
        parts = [modern(value) for value in config]
        return [value for value, _ in parts], any(changed for _, changed in parts)
    if not isinstance(config, dict):
        return config, False
    result, found = {}, False
    for key, value in config.items():
        result[key], changed = modern(value)
        found = found or changed
    settings = result.get("config")
    neutral = NEUTRAL.get(str(result.get("class_name")), {})
    if isinstance(settings, dict):
        kept = {k: v for k, v in settings.items() if k not in neutral or not _same(v, neutral[k])}
        result["config"], found = kept, found or len(kept) < len(settings)
    return result, found


def _same(value: Any, neutral: Any) -> bool:
    return neutral is ANY or (type(value) is type(neutral) and value == neutral)


def write_archive(source: Path, config: Any, path: Path) -> None:
    """A copy of an archive with another configuration."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            if info.filename == "config.json":
                new.writestr("config.json", json.dumps(config))
                continue
            with old.open(info) as reader, new.open(info.filename, "w", force_zip64=True) as writer:
                shutil.copyfileobj(reader, writer)


def write_hdf5(source: Path, config: Any, path: Path) -> None:
    """A copy of an HDF5 file with another configuration."""
    import h5py

    shutil.copyfile(source, path)
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = json.dumps(config)
