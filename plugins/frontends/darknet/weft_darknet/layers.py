"""The kinds of layers. They mean what pjreddie/darknet and AlexeyAB/darknet compute when they do not train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import weft_ops as ops
from weft.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, Value, tensor_type

BYTES = (bytes, bytearray, memoryview)
LARGEST = 2**31 - 1  # Darknet counts in 32 bits: sizes, and the elements of a layer's output.
# Operators one after another; a pair is a range to clip to. The constants are Darknet's.
ACTIVATIONS: dict[str, Sequence[Any]] = {
    "linear": (), "logistic": (ops.Sigmoid(),), "relu": (ops.Relu(),), "relu6": ((0, 6),), "leaky": (ops.LeakyRelu(0.1),
        ), "relie": (ops.LeakyRelu(0.01),),
    "elu": (ops.Elu(),), "selu": (ops.Selu(1.6732, 1.0507),), "gelu": (ops.Gelu(approximate=True),),
    "tanh": (ops.Tanh(),), "hardtan": ((-1, 1),),
    "mish": (ops.Mish(),), "swish": (ops.Swish(),), "silu": (ops.Swish(),),
}  # fmt: skip
Size: TypeAlias = int  # from 1
Count: TypeAlias = int  # from 0
Ints: TypeAlias = Sequence[int]
Function: TypeAlias = Callable[[Value], Value]


def size_of(x: Value) -> Any:
    """Channels, height, width, all ints; every layer gives [batch, channels, height, width], also where that is 1 ×
    1."""
    return x.shape[1:]


class Weights:
    """A header (int32 major, minor, revision; images seen, 64 bits from version 0.2 on), then float32 in the layers'
    order. Arrays are views of the file, which is mapped. `transposed`: matrices are stored input by input; versions
    beyond 1000 say so. `revision`: see `weft_darknet.recurrent`."""

    def __init__(self, source: Any) -> None:
        self.name, self.place = "the .weights" if isinstance(source, BYTES) else f"'{source!s}'", ""
        try:
            data = (
                source
                if isinstance(source, BYTES)
                else np.memmap(source, np.uint8, "r")
                if Path(source).stat().st_size
                else b""
            )
        except OSError as error:
            raise FrontendError(
                f"cannot read {self.name}",
                why=error.strerror,
                hint="put the .weights beside the .cfg, or name it: weights=…",
            ) from error
        self.data: Any = np.frombuffer(data, np.uint8)
        if len(self.data) < 16:
            raise FrontendError(
                f"{self.name} is no Darknet weights: a header of 16 or 20 bytes is wanted, {len(self.data)} are there",
                hint="is it whole?",
            )
        major, minor, self.revision = (int(number) for number in self.data[:12].view("<i4"))
        self.transposed = major > 1000 or minor > 1000
        self.at = 20 if major * 10 + minor >= 2 and not self.transposed else 16

    def take(self, *shape: int) -> Any:
        start, self.at = self.at, self.at + 4 * math.prod(shape)
        if self.at > len(self.data):
            raise FrontendError(
                f"{self.name} is too short",
                where=self.place,
                why=f"{self.at} bytes are wanted up to here, {len(self.data)} are there",
            )
        return self.data[start : self.at].view("<f4").reshape(shape)


@dataclass
class Layers:
    """The layers so far, and the one being built: its name (kind_index) and its input `x`."""

    builder: GraphBuilder
    weights: Weights
    x: Any = None
    done: list[Value] = field(default_factory=list)
    name: str = ""
    state: str | None = None
    after: list[tuple[str, Value]] = field(default_factory=list)
    """Of networks that keep something between calls: the option `state`, and what is kept after the call, by name."""

    def step(self, kind: str, build: Callable[..., Value], options: dict[str, Any]) -> None:
        """Adds the layer of a section."""
        self.name = f"{kind}_{len(self.done)}"
        self.x = build(self, **options)
        self.need(
            min(size_of(self.x)) > 0 and math.prod(size_of(self.x)) <= LARGEST,
            f"its size is {size_of(self.x)}; Darknet counts from 1 to {LARGEST}",
        )
        self.done += [self.x] if kind not in ("net", "network") else []

    def need(self, condition: bool, why: str) -> None:
        if not condition:
            raise FrontendError("a layer does not fit the network", where=self.weights.place, why=why)

    def earlier(self, numbers: Ints) -> list[Value]:
        """The outputs of layers; numbers below 0 count back from this one."""
        at = [number if number >= 0 else len(self.done) + number for number in numbers]
        self.need(
            bool(at) and all(0 <= k < len(self.done) for k in at),
            f"it should name layers before layer {len(self.done)}, it names {list(numbers)}",
        )
        return [self.done[k] for k in at]

    def add(self, op: Any, *inputs: Any) -> Value:
        """Inputs that are no values become constants."""
        values = [v if isinstance(v, Value) else self.builder.constant(v, self.name, "float32") for v in inputs]
        result: Value = self.builder.add(op, *values, name=self.name)
        return result

    def reshape(self, x: Value, *shape: int) -> Value:
        """`shape` is that of one element of the batch."""
        return self.add(ops.Reshape((x.shape[0], *shape)), x)

    def part(self, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
        """`size` elements of an axis from `start`."""
        starts, sizes, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return x if sizes == list(x.shape) else self.add(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)

    def activate(self, x: Value, activation: str) -> Value:
        for op in ACTIVATIONS[activation]:
            x = self.add(ops.Clip(), x, *op) if isinstance(op, tuple) else self.add(op, x)
        return x

    def finish(self, x: Value, bias: Any, norm: Sequence[Any], activation: str) -> Value:
        """Normalised by scale, mean and variance if they are given, the bias added, activated."""
        if norm:
            return self.activate(self.add(ops.BatchNorm(1e-5), x, norm[0], bias, norm[1], norm[2]), activation)
        return self.activate(self.add(ops.Add(), x, bias if bias.ndim > 1 else bias.reshape(-1, 1, 1)), activation)

    def boxes(self, count: int, parts: Sequence[tuple[int, Function]]) -> Value:
        """`count` boxes in the channels, the numbers of each, part after part, through a function."""
        (c, h, w), length, start, done = size_of(self.x), sum(n for n, _ in parts), 0, list[Value]()
        self.need(
            c == count * length, f"{count} boxes of {length} numbers are {count * length} channels, its input has {c}"
        )
        x = self.reshape(self.x, count, length, h, w)
        for n, function in parts:
            done += [function(self.part(x, 2, start, n))] if n else []
            start += n
        return self.reshape(self.add(ops.Concat(2), *done), c, h, w)


class Kinds(Layers):
    """A method builds the layer of the section of its name; its parameters are the section's keys."""

    def net(self, channels: Count = 0, height: Count = 0, width: Count = 0, inputs: Count = 0) -> Value:
        return self.builder.input(
            "x", tensor_type("float32", (Var("batch"), *((inputs, 1, 1) if inputs else (channels, height, width))))
        )

    def convolutional(
        self, filters: Size = 1, size: Size = 1, stride: Size = 1, stride_x: Size = 0, stride_y: Size = 0,
        dilation: Size = 1, groups: Size = 1,
        pad: Count = 0, padding: Count = 0, activation: str = "logistic", batch_normalize: Count = 0, cbn: Count = 0,
    ) -> Value:  # fmt: skip
        """`pad` is a switch: by half the kernel."""
        strides, pad, norm = (
            (stride_y or stride, stride_x or stride),
            size // 2 if pad else padding,
            batch_normalize or cbn,
        )
        channels = size_of(self.x)[0]
        return self._filters(channels, filters, size, strides, dilation, groups, pad, activation, bool(norm))(self.x)

    def _filters(
        self, channels: int, filters: int, size: int, strides: tuple[int, int], dilation: int, groups: int, pad: int,
        activation: str, normalised: bool,
    ) -> Function:  # fmt: skip
        """A convolution with the next weights of the file."""
        dilation = dilation if size > 1 else 1
        self.need(
            channels % groups == filters % groups == 0,
            f"{channels} channels and {filters} filters cannot be cut into groups={groups}",
        )
        # Darknet sizes the output without regard to the dilation.
        self.need(
            dilation == 1 or 2 * pad == size - 1,
            f"dilation={dilation} and size={size} need a padding of {(size - 1) / 2:g}, it is {pad}",
        )
        bias, norm = (
            self.weights.take(filters),
            [self.weights.take(filters) for _ in range(3 if normalised else 0)],
        )
        op = ops.Conv(strides, (pad * dilation,) * 4, (dilation,) * 2, groups)
        weights = self.weights.take(filters, channels // groups, size, size)
        return lambda x: self.finish(self.add(op, x, weights), bias, norm, activation)

    def connected(self, output: Size = 1, activation: str = "logistic", batch_normalize: Count = 0) -> Value:
        return self._matrix(math.prod(size_of(self.x)), output, activation, bool(batch_normalize))(self.x)

    def _matrix(self, inputs: int, output: int, activation: str, normalised: bool) -> Function:
        """A product with the next weights of the file."""
        take = self.weights.take
        bias, weights = take(output), take(inputs, output) if self.weights.transposed else take(output, inputs).T
        norm = [take(output) for _ in range(3 if normalised else 0)]

        def apply(x: Value) -> Value:
            y = self.reshape(self.add(ops.MatMul(), self.reshape(x, inputs), weights), output, 1, 1)
            return self.finish(y, bias, norm, activation)

        return apply

    def local(
        self, filters: Size = 1, size: Size = 1, stride: Size = 1, pad: Count = 0, activation: str = "logistic"
    ) -> Value:
        """A convolution with weights of their own at every place; `pad` is in elements."""
        channels, *places = size_of(self.x)
        self.need(2 * pad in (0, size - 1), f"pad={pad} and size={size}: Darknet pads by nothing or by half the kernel")
        h, w = ((d + 2 * pad - size) // stride + 1 for d in places)
        self.need(min(h, w) > 0, f"size={size} is greater than its input of {places} with a padding of {pad}")
        bias, weights = self.weights.take(filters, h, w), self.weights.take(h * w, filters, channels * size * size)
        x = self.add(ops.Pad((0, 0, pad, pad) * 2), self.x)
        taps = [self.part(self.part(x, 2, k // size, h, stride), 3, k % size, w, stride) for k in range(size * size)]
        columns = self.reshape(
            self.add(ops.Concat(2), *(self.reshape(tap, channels, 1, h * w) for tap in taps)),
            channels * size * size,
            h * w,
        )
        y = self.add(
            ops.Transpose((2, 1, 0)), self.add(ops.MatMul(), weights, self.add(ops.Transpose((2, 1, 0)), columns))
        )
        return self.finish(self.reshape(y, filters, h, w), bias, (), activation)

    def batchnorm(self) -> Value:
        """AlexeyAB's, which stores a bias."""
        bias, *norm = (self.weights.take(size_of(self.x)[0]) for _ in range(4))
        return self.finish(self.x, bias, norm, "linear")

    def activation(self, activation: str = "linear") -> Value:
        return self.activate(self.x, activation)

    def maxpool(
        self, stride: Size = 1, stride_x: Size = 0, stride_y: Size = 0, size: Size = 0, padding: Count | None = None
    ) -> Value:
        """The odd one of the padding is behind; the mean of [local_avgpool] is of what lies inside."""
        size, padding = size or stride, (size or stride) - 1 if padding is None else padding
        self.need(padding < 2 * size, f"padding={padding} makes windows of size={size} that hold nothing")
        pads, kind = (
            (padding // 2,) * 2 + (padding - padding // 2,) * 2,
            ops.MaxPool if self.name.startswith("max") else ops.AveragePool,
        )
        return self.add(kind((size, size), (stride_y or stride, stride_x or stride), pads), self.x)

    def avgpool(self) -> Value:
        return self.add(ops.ReduceMean((2, 3), keepdims=True), self.x)

    def softmax(self, groups: Size = 1, temperature: float = 1) -> Value:
        """Over all elements, in groups one after another."""
        elements = math.prod(size_of(self.x))
        self.need(
            elements % groups == 0 and temperature != 0,
            f"groups={groups} or temperature={temperature} cannot divide its {elements} elements",
        )
        x = self.reshape(self.add(ops.Divide(), self.x, temperature), groups, elements // groups)
        return self.reshape(self.add(ops.Softmax(-1), x), *size_of(self.x))

    def upsample(self, stride: Size = 2, scale: float = 1) -> Value:
        c, h, w = size_of(self.x)
        op = ops.Resize(
            (self.x.shape[0], c, h * stride, w * stride),
            "nearest",
            "asymmetric",
            "floor",
            None,
            (1.0, 1.0, float(stride), float(stride)),
        )
        return self.add(ops.Multiply(), self.add(op, self.x), scale)

    def reorg(self, stride: Size = 1, reverse: Count = 0) -> Value:
        """Squares of places become channels: in [reorg3d] of the input, in [reorg] of the input taken for one of fewer
        channels and more places."""
        (c, h, w), s, old = size_of(self.x), stride, self.name.startswith("reorg_")
        self.need(not old or c % (s * s) == 0, f"{c} channels cannot be cut by stride={s} twice")
        self.need(old or not reverse, "reverse=1 has no meaning in [reorg3d]")
        if reverse:
            return self.reshape(
                self.add(ops.Transpose((0, 3, 4, 1, 5, 2)), self.reshape(self.x, s, s, c // (s * s), h, w)),
                c // (s * s),
                h * s,
                w * s,
            )
        self.need(h % s == w % s == 0, f"its input of {h} × {w} cannot be cut by stride={s}")
        x = self.reshape(self.x, c // (s * s), h, s, w, s) if old else self.reshape(self.x, c, h // s, s, w // s, s)
        return self.reshape(self.add(ops.Transpose((0, 3, 5, 1, 2, 4)), x), c * s * s, h // s, w // s)

    def route(self, layers: Ints = (), groups: Size = 1, group_id: Count = 0) -> Value:
        """Earlier layers' channels one after another; of several groups of them, one."""
        parts = self.earlier(layers)
        self.need(
            len({size_of(p)[1:] for p in parts}) == 1, f"its layers differ: {', '.join(str(size_of(p)) for p in parts)}"
        )
        self.need(
            group_id < groups and all(size_of(p)[0] % groups == 0 for p in parts),
            f"group_id={group_id} of groups={groups} cuts no channels",
        )
        parts = [self.part(p, 1, size_of(p)[0] // groups * group_id, size_of(p)[0] // groups) for p in parts]
        return parts[0] if len(parts) == 1 else self.add(ops.Concat(1), *parts)

    def shortcut(self, from_: Ints = (), activation: str = "linear") -> Value:
        """The input plus earlier layers, in the channels that both have; of a greater one, every second (third, …)
        place (pjreddie)."""
        total, (c, h, w) = self.x, size_of(self.x)
        for other in self.earlier(from_):
            n, *places = size_of(other)
            step = places[0] // h
            self.need(
                step > 0 and places == [h * step, w * step],
                f"its input is {h} × {w}, a layer to add {places[0]} × {places[1]}",
            )
            other = self.part(self.part(self.part(other, 1, 0, min(n, c)), 2, 0, h, step), 3, 0, w, step)
            total = self.add(
                ops.Add(), total, other if n >= c else self.add(ops.Pad((0, 0, 0, 0, 0, c - n, 0, 0)), other)
            )
        return self.activate(total, activation)

    def scale_channels(self, from_: Ints = (), scale_wh: Count = 0, activation: str = "linear") -> Value:
        """An earlier layer times the input, which has an element for each of its channels, places (scale_wh) or
        elements ([sam])."""
        other, size = self.earlier(from_)[0], size_of(self.x)
        n, h, w = size_of(other)
        wanted = (n, h, w) if self.name.startswith("sam") else (1, h, w) if scale_wh else (n, 1, 1)
        self.need(size == wanted and len(from_) == 1, f"its input is {size}, to scale one layer it should be {wanted}")
        return self.activate(self.add(ops.Multiply(), self.x, other), activation)

    def yolo(
        self, classes: Size = 20, num: Size = 1, mask: Ints = (), scale_x_y: float = 1, new_coords: Count = 0
    ) -> Value:
        """Of each box x, y (logistic, scaled about the middle), width, height (as they are), objectness, classes
        (logistic); new_coords: no logistic."""
        logistic: Function = lambda x: self.activate(x, "linear" if new_coords else "logistic")
        centre: Function = lambda x: self.add(
            ops.Add(), self.add(ops.Multiply(), logistic(x), scale_x_y), -0.5 * (scale_x_y - 1)
        )
        return self.boxes(len(mask) or num, [(2, centre), (2, lambda x: x), (1 + classes, logistic)])

    def region(self, classes: Size = 20, num: Size = 1, coords: Count = 4, softmax: Count = 0) -> Value:
        """Of each box x, y (logistic), other coordinates (as they are), objectness (logistic), classes (softmax or
        logistic); as pjreddie's."""
        self.need(coords >= 2, f"coords={coords}: a box has at least x and y")
        logistic, softened = lambda x: self.activate(x, "logistic"), lambda x: self.add(ops.Softmax(2), x)
        return self.boxes(
            num, [(2, logistic), (coords - 2, lambda x: x), (1, logistic), (classes, softened if softmax else logistic)]
        )
