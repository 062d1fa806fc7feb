"""Darknet in numpy, by its own index formulas: what the frontend's graphs are compared with. Draws the weights that a
network needs on the way."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Layer = tuple[str, dict[str, Any]]


def cfg(size: Sequence[int], *layers: Layer) -> str:
    """The text of a network over images of (channels, height, width)."""
    lines = ["[net]", "batch=64", *(f"{key}={n}" for key, n in zip(("channels", "height", "width"), size))]
    for kind, options in layers:
        lines += [
            "",
            f"[{kind}]",
            *(f"{key} = {','.join(map(str, v)) if isinstance(v, (list, tuple)) else v}" for key, v in options.items()),
        ]
    return "\n".join(lines) + "\n"


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "linear": lambda x: x,
    "logistic": sigmoid,
    "relu": lambda x: x * (x > 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: (x >= 0) * x + (x < 0) * (np.exp(x) - 1),
    "selu": lambda x: (x >= 0) * 1.0507 * x + (x < 0) * 1.0507 * 1.6732 * (np.exp(x) - 1),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3)),
    "tanh": lambda x: 2 / (1 + np.exp(-2 * x)) - 1,
    "hardtan": lambda x: np.where(x < -1, -1, np.where(x > 1, 1, x)),
    "mish": lambda x: x * np.tanh(np.log(np.exp(x) + 1)),
    "swish": lambda x: x * sigmoid(x),
    "silu": lambda x: x * sigmoid(x),
}


class Network:
    """Runs layers over x [batch, channels, height, width] in float64; `outputs` are the layers', `weights` the bytes of
    the file."""

    def __init__(self, x: Array, *layers: Layer, seed: int = 0, version: tuple[int, int] = (0, 2)) -> None:
        self.rng, self.version = np.random.default_rng(seed), version
        self.floats: list[Array] = []
        self.outputs: list[Array] = []
        self.x: Array = x.astype(np.float64)
        for kind, options in layers:
            self.x = getattr(self, kind)(dict(options))
            self.outputs.append(self.x)

    @property
    def weights(self) -> bytes:
        seen = struct.pack("<Q" if self.version == (0, 2) else "<I", 12345)
        return struct.pack("<3i", *self.version, 0) + seen + b"".join(a.astype("<f4").tobytes() for a in self.floats)

    def draw(self, *shape: int, lo: float = -1.0, hi: float = 1.0) -> Array:
        array = self.rng.uniform(lo, hi, shape).astype(np.float32)
        self.floats.append(array)
        return array.astype(np.float64)

    def act(self, y: Array, o: dict[str, Any], default: str = "logistic") -> Array:
        return ACTIVATIONS[o.get("activation", default)](y)

    def norm(self, n: int) -> tuple[Array, Array, Array]:
        return self.draw(n, lo=0.5, hi=1.5), self.draw(n), self.draw(n, lo=0.5, hi=2)

    def normalized(self, y: Array, vectors: tuple[Array, Array, Array] | None, bias: Array) -> Array:
        column = (-1, 1, 1)
        if vectors:
            scale, mean, variance = vectors
            y = (y - mean.reshape(column)) / np.sqrt(variance + 0.00001).reshape(column) * scale.reshape(column)
        return y + bias.reshape(column)

    def convolutional(self, o: dict[str, Any]) -> Array:
        b, c, h, w = self.x.shape
        n, size, groups = o.get("filters", 1), o.get("size", 1), o.get("groups", 1)
        sy, sx = o.get("stride_y", o.get("stride", 1)), o.get("stride_x", o.get("stride", 1))
        d = o.get("dilation", 1) if size > 1 else 1
        pad = size // 2 if o.get("pad") else o.get("padding", 0)
        bias = self.draw(n)
        vectors = self.norm(n) if o.get("batch_normalize") or o.get("cbn") else None
        k = self.draw(n, c // groups, size, size, lo=-0.5, hi=0.5)
        oh, ow = (h + 2 * pad - size) // sy + 1, (w + 2 * pad - size) // sx + 1
        y = np.zeros((b, n, oh, ow))
        for f in range(n):
            for ic in range(c // groups):
                channel = f // (n // groups) * (c // groups) + ic
                for ky in range(size):
                    for kx in range(size):
                        for i in range(oh):
                            for j in range(ow):
                                p, q = i * sy + ky * d - pad * d, j * sx + kx * d - pad * d
                                if 0 <= p < h and 0 <= q < w:
                                    y[:, f, i, j] += k[f, ic, ky, kx] * self.x[:, channel, p, q]
        return self.act(self.normalized(y, vectors, bias), o)

    def connected(self, o: dict[str, Any]) -> Array:
        flat, n = self.x.reshape(len(self.x), -1), o.get("output", 1)
        bias = self.draw(n)
        stored = self.draw(flat.shape[1], n) if self.version[0] > 1000 else self.draw(n, flat.shape[1]).T
        vectors = self.norm(n) if o.get("batch_normalize") else None
        return self.act(self.normalized((flat @ stored).reshape(-1, n, 1, 1), vectors, bias), o)

    def local(self, o: dict[str, Any]) -> Array:
        b, c, h, w = self.x.shape
        n, size, stride, pad = o.get("filters", 1), o.get("size", 1), o.get("stride", 1), o.get("pad", 0)
        oh, ow = ((d - (1 if pad else size)) // stride + 1 for d in (h, w))
        bias, k = self.draw(n, oh, ow), self.draw(oh * ow, n, c, size, size)
        padded = np.pad(self.x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
        y = np.zeros((b, n, oh, ow))
        for i in range(oh):
            for j in range(ow):
                patch = padded[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
                y[:, :, i, j] = np.einsum("bcyx,ncyx->bn", patch, k[i * ow + j])
        return self.act(y + bias, o)

    def batchnorm(self, o: dict[str, Any]) -> Array:
        bias = self.draw(self.x.shape[1])
        return self.normalized(self.x, self.norm(self.x.shape[1]), bias)

    def activation(self, o: dict[str, Any]) -> Array:
        return self.act(self.x, o, "linear")

    def dropout(self, o: dict[str, Any]) -> Array:
        return self.x

    cost = dropout

    def pooled(self, o: dict[str, Any], mean: bool) -> Array:
        b, c, h, w = self.x.shape
        stride = o.get("stride", 1)
        sx, sy, size = o.get("stride_x", stride), o.get("stride_y", stride), o.get("size", stride)
        pad = o.get("padding", size - 1)
        oh, ow = (h + pad - size) // sy + 1, (w + pad - size) // sx + 1
        y = np.zeros((b, c, oh, ow))
        for i in range(oh):
            for j in range(ow):
                rows = [r for r in range(i * sy - pad // 2, i * sy - pad // 2 + size) if 0 <= r < h]
                columns = [q for q in range(j * sx - pad // 2, j * sx - pad // 2 + size) if 0 <= q < w]
                window = self.x[:, :, rows][:, :, :, columns].reshape(b, c, -1)
                y[:, :, i, j] = window.mean(-1) if mean else window.max(-1)
        return y

    def maxpool(self, o: dict[str, Any]) -> Array:
        return self.pooled(o, False)

    def local_avgpool(self, o: dict[str, Any]) -> Array:
        return self.pooled(o, True)

    def avgpool(self, o: dict[str, Any]) -> Array:
        return self.x.mean((2, 3), keepdims=True)

    def softmax(self, o: dict[str, Any]) -> Array:
        z = self.x.reshape(len(self.x), o.get("groups", 1), -1) / o.get("temperature", 1.0)
        e = np.exp(z - z.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).reshape(self.x.shape)

    def upsample(self, o: dict[str, Any]) -> Array:
        s = o.get("stride", 2)
        return self.x.repeat(s, 2).repeat(s, 3) * o.get("scale", 1.0)

    def squares(self, w: int, h: int, c: int, s: int, forward: bool) -> Array:
        """Darknet's loop over flat elements: one index counts squares, the other their elements."""
        given, taken = self.x.reshape(len(self.x), -1), np.zeros((len(self.x), self.x[0].size))
        fewer = c // (s * s)
        for k in range(c):
            for j in range(h):
                for i in range(w):
                    here = i + w * (j + h * k)
                    offset = k // fewer
                    there = i * s + offset % s + w * s * (j * s + offset // s + h * s * (k % fewer))
                    if forward:
                        taken[:, there] = given[:, here]
                    else:
                        taken[:, here] = given[:, there]
        return taken

    def reorg(self, o: dict[str, Any]) -> Array:
        b, c, h, w = self.x.shape
        s = o.get("stride", 1)
        if o.get("reverse"):
            return self.squares(w, h, c, s, True).reshape(b, c // (s * s), h * s, w * s)
        return self.squares(w, h, c, s, False).reshape(b, c * s * s, h // s, w // s)

    def reorg3d(self, o: dict[str, Any]) -> Array:
        b, c, h, w = self.x.shape
        s = o.get("stride", 1)
        return self.squares(w // s, h // s, c * s * s, s, False).reshape(b, c * s * s, h // s, w // s)

    def before(self, numbers: Sequence[int]) -> list[Array]:
        return [self.outputs[n if n >= 0 else len(self.outputs) + n] for n in numbers]

    def route(self, o: dict[str, Any]) -> Array:
        groups, k = o.get("groups", 1), o.get("group_id", 0)
        return np.concatenate(
            [a[:, a.shape[1] // groups * k : a.shape[1] // groups * (k + 1)] for a in self.before(o["layers"])], 1
        )

    def shortcut(self, o: dict[str, Any]) -> Array:
        y = self.x.copy()
        for a in self.before(o["from"]):
            n, step = min(y.shape[1], a.shape[1]), a.shape[2] // y.shape[2]
            y[:, :n] += a[:, :n, ::step, ::step]
        return self.act(y, o, "linear")

    def scale_channels(self, o: dict[str, Any]) -> Array:
        (other,) = self.before(o["from"])
        b, c, h, w = other.shape
        factor = self.x.reshape((b, 1, h, w) if o.get("scale_wh") else (b, c, 1, 1))
        return self.act(other * factor, o, "linear")

    def sam(self, o: dict[str, Any]) -> Array:
        (other,) = self.before(o["from"])
        return self.act(other * self.x, o, "linear")

    def yolo(self, o: dict[str, Any]) -> Array:
        classes, n, s = o.get("classes", 20), len(o.get("mask", ())) or o.get("num", 1), o.get("scale_x_y", 1.0)
        y = self.x.copy()
        for k in range(n):
            first = k * (5 + classes)
            if not o.get("new_coords"):
                y[:, first : first + 2] = sigmoid(y[:, first : first + 2])
                y[:, first + 4 : first + 5 + classes] = sigmoid(y[:, first + 4 : first + 5 + classes])
            y[:, first : first + 2] = y[:, first : first + 2] * s - 0.5 * (s - 1)
        return y

    def region(self, o: dict[str, Any]) -> Array:
        classes, n, coords = o.get("classes", 20), o.get("num", 1), o.get("coords", 4)
        y = self.x.copy()
        for k in range(n):
            first = k * (coords + 1 + classes)
            last = first + coords + 1
            y[:, first : first + 2] = sigmoid(y[:, first : first + 2])
            y[:, last - 1] = sigmoid(y[:, last - 1])
            part = y[:, last : last + classes]
            e = np.exp(part)
            y[:, last : last + classes] = e / e.sum(1, keepdims=True) if o.get("softmax") else sigmoid(part)
        return y
