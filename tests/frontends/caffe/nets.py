"""Small networks with weights, and what OpenCV says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft_caffe.schema import schema

Arrays = Sequence[Any]


def blob(array: Any, old: bool = False) -> Any:
    """An array as a blob; `old`: with four sizes."""
    array = np.asarray(array, np.float32)
    message = schema()["Blob"](data=[array.tobytes()])
    if old:
        sizes = (1,) * (4 - array.ndim) + array.shape
        message.num, message.channels, message.height, message.width = sizes
    else:
        message.shape.dim.extend(array.shape)
    return message


def weights(layers: Mapping[str, Arrays], old: bool = False) -> bytes:
    """A .caffemodel with the blobs of layers."""
    net = schema()["Net"](name="weights")
    for name, arrays in layers.items():
        layer = (net.layers if old else net.layer).add(name=name)
        layer.blobs.extend(blob(a, old) for a in arrays)
    return bytes(net.SerializeToString())


@dataclass(frozen=True)
class Net:
    """A network of one layer, or of several, behind inputs of the given shapes."""

    layers: str
    inputs: Mapping[str, tuple[int, ...]]
    blobs: Mapping[str, Arrays]

    @property
    def text(self) -> str:
        given = ""
        for name, shape in self.inputs.items():
            sizes = " ".join(f"dim: {d}" for d in shape)
            given += f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {sizes} }} }} }}\n'
        return f'name: "net"\n{given}{self.layers}\n'

    def save(self, folder: Path) -> Path:
        path = folder / "net.prototxt"
        path.write_text(self.text)
        if self.blobs:
            path.with_suffix(".caffemodel").write_bytes(weights(self.blobs))
        return path


def one(
    kind: str,
    parameters: str = "",
    blobs: Arrays = (),
    x: tuple[int, ...] = (2, 4, 7, 6),
    tops: int = 1,
    more: Any = (),
) -> Net:
    """One layer `y` on `x`, and further inputs of the shapes `more`."""
    inputs = {"x": x, **{f"x{k}": tuple(s) for k, s in enumerate(more, 1)}}
    names = " ".join(f'bottom: "{n}"' for n in inputs) + " " + " ".join(f'top: "y{k or ""}"' for k in range(tops))
    return Net(f'layer {{ name: "y" type: "{kind}" {names} {parameters} }}', inputs, {"y": blobs} if blobs else {})


def opencv(path: Path, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
    """The outputs of a network by OpenCV's reader of Caffe models."""
    import cv2

    model = path.with_suffix(".caffemodel")
    net = cv2.dnn.readNetFromCaffe(str(path), *([str(model)] if model.exists() else []))
    for name, array in inputs.items():
        net.setInput(array, name)
    return [np.array(a) for a in net.forward(list(outputs))]
