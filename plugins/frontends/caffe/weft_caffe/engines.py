"""OpenCV, whose module dnn reads Caffe's networks (up to version 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.hooks import EngineKind
from weft_caffe.plugin import CaffeOptions

Run = Callable[[Mapping[str, Any]], list[Any]]


def version() -> str | None:
    """The installed version of OpenCV, if it reads Caffe's networks."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    for package in ("opencv-python-headless", "opencv-python", "opencv-contrib-python"):
        try:
            found = installed(package)
        except PackageNotFoundError:
            continue
        return found if found.split(".", 1)[0] == "4" else None
    return None


def _open(path: str) -> Any:
    import cv2

    from weft_caffe.network import pair

    return cv2.dnn.readNetFromCaffe(*map(str, pair(Path(path), CaffeOptions())))


def open_opencv(path: str, threads: int) -> Run:
    """OpenCV's own backend on the CPU."""
    import cv2

    net = _open(path)
    cv2.setNumThreads(threads)
    outputs = list(net.getUnconnectedOutLayersNames())

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        for name, array in inputs.items():
            net.setInput(np.asarray(array), name)
        return [np.array(a) for a in net.forward(outputs)]

    return run


def opencv_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between layers. OpenCV names them after layers, Weft after blobs: those that a layer of the same name
    computes, and no other computes again."""
    from weft_caffe.network import network_of

    read = network_of(Path(path), CaffeOptions())
    tops = [top for layer in (read.layer or read.layers) for top in layer.top]
    net = _open(path)
    net.enableFusion(False)
    known = {name for name in net.getLayerNames() if tops.count(name) == 1}

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = [name for name in names if name in known]
        for name, array in inputs.items():
            net.setInput(np.asarray(array), name)
        return dict(zip(wanted, map(np.array, net.forward(wanted)), strict=True)) if wanted else {}

    return ask


ENGINES = [EngineKind("opencv", version, open_opencv, opencv_values, ("caffe",))]
