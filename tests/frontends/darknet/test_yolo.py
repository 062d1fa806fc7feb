"""Networks in the shape of YOLO v3 tiny and v4 tiny, compiled from Darknet's files and from the same network in ONNX:
the results agree."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends.darknet.reference import Layer, cfg

import weft
from weft.cli.main import main

SIZE = (3, 64, 96)
CLASSES = 4


class Twin:
    """One network written twice: sections and weights for Darknet, nodes and initialisers for ONNX. Layers count from 0
    in both."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.layers: list[Layer] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.floats: list[np.ndarray[Any, Any]] = []
        self.outputs: list[str] = []
        self.channels: list[int] = []
        self.at = "x"

    def draw(self, lo: float, hi: float, *shape: int) -> np.ndarray[Any, Any]:
        self.floats.append(self.rng.uniform(lo, hi, shape).astype(np.float32))
        return self.floats[-1]

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def done(self, kind: str, options: dict[str, Any], value: str, channels: int) -> int:
        self.layers.append((kind, options))
        self.at = value
        self.outputs.append(value)
        self.channels.append(channels)
        return len(self.layers) - 1

    def conv(self, filters: int, size: int, stride: int = 1, activation: str = "leaky", norm: bool = True) -> int:
        channels = self.channels[-1] if self.channels else SIZE[0]
        bias = self.draw(-0.3, 0.3, filters)
        scale, mean, variance = (
            (self.draw(*r, filters) for r in ((0.8, 1.2), (-0.2, 0.2), (0.5, 1.5))) if norm else (None, None, None)
        )
        bound = (6 / (channels * size * size)) ** 0.5
        weights = self.constant(self.draw(-bound, bound, filters, channels, size, size))
        shape = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4}
        options: dict[str, Any] = {
            "filters": filters,
            "size": size,
            "stride": stride,
            "pad": 1,
            "activation": activation,
        }
        if norm:
            options = {"batch_normalize": 1, **options}
            vectors = [self.constant(v) for v in (scale, bias, mean, variance)]
            y = self.node("BatchNormalization", self.node("Conv", self.at, weights, **shape), *vectors, epsilon=1e-5)
        else:
            y = self.node("Conv", self.at, weights, self.constant(bias), **shape)
        if activation == "leaky":
            y = self.node("LeakyRelu", y, alpha=0.1)
        elif activation == "mish":
            y = self.node("Mul", y, self.node("Tanh", self.node("Softplus", y)))
        return self.done("convolutional", options, y, filters)

    def maxpool(self, size: int, stride: int) -> int:
        after = [(size - 1) // 2 + (size - 1) % 2 if stride == 1 else 0] * 2
        before = [(size - 1) // 2 if stride == 1 else 0] * 2
        y = self.node("MaxPool", self.at, kernel_shape=[size] * 2, strides=[stride] * 2, pads=before + after)
        return self.done("maxpool", {"size": size, "stride": stride}, y, self.channels[-1])

    def route(self, *layers: int, half: bool = False) -> int:
        """`half`: of one layer, the second of two groups."""
        count = sum(self.channels[k] for k in layers)
        options: dict[str, Any] = {"layers": [k - len(self.layers) if k > 2 else k for k in layers]}
        y = (
            self.node("Concat", *(self.outputs[k] for k in layers), axis=1)
            if len(layers) > 1
            else self.outputs[layers[0]]
        )
        if half:
            options.update(groups=2, group_id=1)
            y = self.node("Slice", y, *(self.constant([n], np.int64) for n in (count // 2, count, 1)))
        return self.done("route", options, y, count // 2 if half else count)

    def shortcut(self, layer: int) -> int:
        return self.done(
            "shortcut",
            {"from": [layer - len(self.layers)]},
            self.node("Add", self.at, self.outputs[layer]),
            self.channels[-1],
        )

    def upsample(self) -> int:
        scales = self.constant([1, 1, 2, 2])
        y = self.node(
            "Resize",
            self.at,
            "",
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return self.done("upsample", {"stride": 2}, y, self.channels[-1])

    def yolo(self, mask: list[int], scale: float = 1.0) -> int:
        parts = []
        for k in range(len(mask)):
            for lo, hi, logistic in ((0, 2, True), (2, 4, False), (4, 5 + CLASSES, True)):
                first = k * (5 + CLASSES)
                y = self.node(
                    "Slice",
                    self.at,
                    self.constant([first + lo], np.int64),
                    self.constant([first + hi], np.int64),
                    self.constant([1], np.int64),
                )
                y = self.node("Sigmoid", y) if logistic else y
                if lo == 0 and scale != 1:
                    y = self.node("Sub", self.node("Mul", y, self.constant(scale)), self.constant((scale - 1) / 2))
                parts.append(y)
        options = {
            "mask": mask,
            "classes": CLASSES,
            "num": 6,
            "anchors": [10, 14, 23, 27, 37, 58],
            "scale_x_y": scale,
            "jitter": 0.3,
            "random": 1,
        }
        return self.done("yolo", options, self.node("Concat", *parts, axis=1), self.channels[-1])

    def darknet(self, folder: Path) -> Path:
        path = folder / "tiny.cfg"
        path.write_text(cfg(SIZE, *self.layers))
        data = b"".join(a.astype("<f4").tobytes() for a in self.floats)
        path.with_suffix(".weights").write_bytes(struct.pack("<3iQ", 0, 2, 5, 32013312) + data)
        return path

    def onnx(self, folder: Path) -> Path:
        # Slice works along the first axis it is not told otherwise.
        for node in self.nodes:
            if node.op_type == "Slice":
                node.input.insert(3, "channels")
        axis = numpy_helper.from_array(np.array([1], np.int64), "channels")
        outputs = [o for o, (kind, _) in zip(self.outputs, self.layers) if kind == "yolo"]
        graph = helper.make_graph(
            self.nodes,
            "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SIZE])],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
            [*self.constants, axis],
        )
        path = folder / "tiny.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return path


def v3_tiny(seed: int = 0) -> Twin:
    """Convolutions between pools, the last with stride 1; a head, and another from the middle beside the upsampled
    end."""
    t = Twin(seed)
    for filters in (4, 6, 8):
        t.conv(filters, 3)
        t.maxpool(2, 2)
    middle = t.conv(12, 3)
    t.maxpool(2, 2)
    t.conv(16, 3)
    t.maxpool(2, 1)
    end = t.conv(16, 1)
    t.conv(20, 3)
    t.conv(3 * (5 + CLASSES), 1, activation="linear", norm=False)
    t.yolo([3, 4, 5])
    t.route(end)
    t.conv(8, 1)
    up = t.upsample()
    t.route(up, middle)
    t.conv(12, 3)
    t.conv(3 * (5 + CLASSES), 1, activation="linear", norm=False)
    t.yolo([0, 1, 2])
    return t


def v4_tiny(seed: int = 1) -> Twin:
    """Strided convolutions, blocks over one half of the channels, spatial pyramid pooling, shortcuts, Mish, scaled
    centres."""
    t = Twin(seed)
    t.conv(8, 3, 2)
    t.conv(16, 3, 2)
    middle = 0
    for filters in (16, 32):
        whole = t.conv(filters, 3)
        t.route(whole, half=True)
        first = t.conv(filters // 2, 3, activation="mish")
        second = t.conv(filters // 2, 3, activation="mish")
        t.shortcut(first)
        t.route(second, first)
        middle = t.conv(filters, 1)
        t.route(whole, middle)
        t.maxpool(2, 2)
    end = t.conv(24, 3)
    pools = []
    for size in (3, 5):
        pools.append(t.maxpool(size, 1))
        t.route(end)
    t.route(*reversed(pools), end)
    neck = t.conv(24, 1)
    t.conv(2 * (5 + CLASSES), 1, activation="linear", norm=False)
    t.yolo([3, 4], 1.05)
    t.route(neck)
    t.conv(8, 1)
    up = t.upsample()
    t.route(up, middle)
    t.conv(2 * (5 + CLASSES), 1, activation="linear", norm=False)
    t.yolo([1, 2], 1.05)
    return t


@pytest.mark.parametrize("make", [v3_tiny, v4_tiny])
def test_agrees_with_the_same_network_in_onnx(make: Callable[[], Twin], tmp_path: Path) -> None:
    twin = make()
    other_path = twin.onnx(tmp_path)
    darknet, other = (
        weft.compile(path, target="llvm -threads=1", cache=False) for path in (twin.darknet(tmp_path), other_path)
    )
    darknet.save(tmp_path / "tiny.weft")
    saved = weft.Executable.load(tmp_path / "tiny.weft")
    runtime = (
        importlib.import_module("onnxruntime").InferenceSession if importlib.util.find_spec("onnxruntime") else None
    )
    heads = 3 if make is v3_tiny else 2
    for batch in (1, 2):
        x = np.random.default_rng(batch).random((batch, *SIZE), np.float32)
        found = list(darknet.run({"x": x}).values())
        assert [a.shape for a in found] == [(batch, heads * (5 + CLASSES), SIZE[1] // s, SIZE[2] // s) for s in (16, 8)]
        assert min(float(a.std()) for a in found) > 0.05
        for a, b in zip(found, other.run({"x": x}).values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(found, saved.run({"x": x}).values(), strict=True):
            np.testing.assert_array_equal(a, b)
        if runtime is not None:
            for a, b in zip(
                found, runtime(str(other_path), providers=["CPUExecutionProvider"]).run(None, {"x": x}), strict=True
            ):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_outputs_are_those_of_the_detection_layers(tmp_path: Path) -> None:
    graph = weft.load(v3_tiny().darknet(tmp_path))
    assert graph.output_names == ["yolo_13", "yolo_20"]
    assert {name for node in graph.nodes for name in node.names} >= {
        "convolutional_0",
        "maxpool_1",
        "route_17",
        "yolo_20",
    }
    assert graph.name == "tiny"
    assert all(value.name.startswith(name) for value, name in zip(graph.outputs, graph.output_names))


@pytest.mark.parametrize("command", [["run"], ["inspect", "--stage", "load"], ["compile", "-o", "tiny.weft"]])
def test_command_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = Twin(2)
    twin.conv(3 * (5 + CLASSES), 3)
    twin.yolo([0, 1, 2])
    twin.darknet(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main([command[0], "tiny.cfg", *command[1:], "--target", "llvm -threads=1"])
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    if command[0] == "run":
        assert "yolo_1" in said.out and "float32[1, 27, 64, 96]" in said.out
    if command[0] == "inspect":
        assert '"convolutional_0"' in said.out and '"yolo_1"' in said.out
    assert (tmp_path / "tiny.weft").exists() == (command[0] == "compile")


def test_plugins_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plugins"])
    assert "darknet" in capsys.readouterr().out
