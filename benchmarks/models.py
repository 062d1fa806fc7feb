"""The eight architectures of the benchmarks and, from `own_models`, six more, in two forms; a small one as twin only.

`export(name, folder)` lets PyTorch make them (the extra `bench`): the published models with seeded weights, and the
framework's own output to compare with. `twin(name)` builds the same graphs with `onnx` alone: same operators, structure
and shapes as the exporter emits, random weights of their own. Tests that must run anywhere use twins; `layers` makes
them shallow without making them narrow.

    python -m benchmarks.models FOLDER [NAME …] [--twins]
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import own_models

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
NAMES: tuple[str, ...] = (
    "resnet18",
    "resnet50",
    "mobilenet_v1",
    "mobilenet_v2",
    "bert_base_s128",
    "gpt2_s128",
    "lstm",
    "mlp",
)
OPSET, IR_VERSION = 20, 10
EVERY = (*NAMES, *own_models.OWN)
TINY: tuple[str, ...] = ("resnet8",)
"""Twins of models for microcontrollers and browsers, of which there is no export."""
TORCH_HINT = "install the extra `bench`: pip install torch transformers onnxscript"


# -- twins ------------------------------------------------------------------------------------------------------------


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Arrays by name, as an .npz file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes a name for its argument `allow_pickle`


def twin(
    name: str, *, layers: int | None = None, seed: int = 0, **sizes: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A torch-free twin of an exported model, and inputs for it.

    Args:
        layers: at most so many blocks per stage (residual nets), blocks (mobilenets), layers (transformers, LSTM) or
            hidden layers (mlp).
        sizes: others than the usual ones, such as `length`, of models that have them.
    """
    twins: dict[str, Callable[..., dict[str, Array]]] = {**_TWINS, **own_models.TWINS}
    if name not in twins:
        raise KeyError(f"no model '{name}': there are {', '.join((*EVERY, *TINY))}")
    build = Build(name, seed)
    inputs = twins[name](build, layers, **sizes)
    return build.model(inputs), inputs


def save_twin(
    name: str, folder: str | os.PathLike[str], *, layers: int | None = None, seed: int = 0
) -> tuple[Path, dict[str, Array]]:
    """Writes the twin as FOLDER/NAME.onnx."""
    import onnx

    model, inputs = twin(name, layers=layers, seed=seed)
    path = Path(folder) / f"{name}.onnx"
    onnx.save(model, path)
    return path, inputs


class Build:
    """Nodes and initializers of a graph, in order; a method per layer that the exporter emits as a pattern."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.initializers: dict[str, Array] = {}
        self.by_value: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.count = 0
        self.output: tuple[str, tuple[int, ...]] = ("", ())

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        import onnx.helper

        names = [f"{kind.lower()}_{self.count}" + (f"_{k}" if outputs > 1 else "") for k in range(outputs)]
        self.count += 1
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), names, name=f"node_{names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, label: str, *shape: int, deviation: float) -> str:
        values = self.random.standard_normal(shape, np.float32)
        values *= np.float32(deviation)
        return self.hold(label, values)

    def hold(self, label: str, values: Array) -> str:
        self.initializers[label] = values
        return label

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """An initializer by value: equal ones are one, as the exporter leaves them."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.by_value:
            self.by_value[key] = self.hold(f"constant_{len(self.by_value)}", array)
        return self.by_value[key]

    def scalar(self, value: float) -> str:
        return self.constant(value, np.float32)

    def finish(self, value: str, *shape: int) -> None:
        last = next(n for n in reversed(self.nodes) if value in n.output)
        last.output[list(last.output).index(value)] = "out"
        self.output = ("out", shape)

    def model(self, inputs: Mapping[str, Array]) -> onnx.ModelProto:
        import onnx
        from onnx import helper, numpy_helper

        graph = helper.make_graph(
            self.nodes,
            self.name,
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in inputs.items()
            ],
            [helper.make_tensor_value_info(self.output[0], onnx.TensorProto.FLOAT, self.output[1])],
            [numpy_helper.from_array(a, n) for n, a in self.initializers.items()],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="weft-twins"
        )

    # -- vision
    def conv(
        self,
        x: str,
        inner: int,
        outer: int,
        kernel: int,
        stride: int = 1,
        *,
        pads: Sequence[int] | None = None,
        group: int = 1,
        dilation: int = 1,
        gain: float = 2.0,
    ) -> str:
        label = f"conv{self.count}"
        fan = inner // group * kernel * kernel
        w = self.weight(f"{label}.weight", outer, inner // group, kernel, kernel, deviation=math.sqrt(gain / fan))
        b = self.weight(f"{label}.bias", outer, deviation=0.1)
        pads = list(pads or [dilation * (kernel // 2)] * 4)
        y = self.op(
            "Conv", x, w, b, group=group, pads=pads, auto_pad="NOTSET", strides=[stride] * 2, dilations=[dilation] * 2,
            kernel_shape=[kernel] * 2
        )  # fmt: skip
        return str(y)

    def relu6(self, x: str) -> str:
        return str(self.op("Clip", x, self.scalar(0.0), self.scalar(6.0)))

    def classifier(self, x: str, channels: int, *, classes: int = 1000, bias: bool = True) -> None:
        pooled = self.op("ReduceMean", x, self.constant([-1, -2]), keepdims=1, noop_with_empty_axes=0)
        flat = self.op("Reshape", pooled, self.constant([1, channels]), allowzero=1)
        w = [self.weight("classifier.weight", classes, channels, deviation=channels**-0.5)]
        if bias:
            w.append(self.weight("classifier.bias", classes, deviation=0.1))
        self.finish(self.op("Gemm", flat, *w, alpha=1.0, beta=1.0, transA=0, transB=1), 1, classes)

    # -- transformers
    def linear(self, x: str, inner: int, outer: int) -> str:
        label = f"linear{self.count}"
        y = self.op("MatMul", x, self.weight(f"{label}.weight", inner, outer, deviation=inner**-0.5))
        return str(self.op("Add", y, self.weight(f"{label}.bias", outer, deviation=0.1)))

    def gemm(self, x: str, inner: int, outer: int, *, transposed: bool = False) -> str:
        label = f"gemm{self.count}"
        shape = (outer, inner) if transposed else (inner, outer)
        w = self.weight(f"{label}.weight", *shape, deviation=inner**-0.5)
        b = self.weight(f"{label}.bias", outer, deviation=0.1)
        return str(self.op("Gemm", x, w, b, alpha=1.0, beta=1.0, transA=0, transB=int(transposed)))

    def layer_norm(self, x: str, width: int, epsilon: float) -> str:
        label = f"norm{self.count}"
        scale = self.hold(f"{label}.weight", (1 + 0.1 * self.random.standard_normal(width)).astype(np.float32))
        return str(
            self.op(
                "LayerNormalization",
                x,
                scale,
                self.weight(f"{label}.bias", width, deviation=0.1),
                axis=-1,
                epsilon=epsilon,
                stash_type=1,
            )
        )

    def attention(self, q: str, k: str, v: str, mask: str, heads: int, length: int, size: int) -> str:
        """scaled_dot_product_attention as the exporter writes it: both operands scaled, the mask from Where, rows of
        NaN answered with zeros."""
        root = self.scalar(size**-0.25)
        k = self.op("Reshape", k, self.constant([-1, length, size]), allowzero=0)
        k = self.op("Transpose", k, perm=[0, 2, 1])
        k = self.op("Reshape", k, self.constant([1, heads, size, length]), allowzero=0)
        scores = self.op("MatMul", self.op("Mul", q, root), self.op("Mul", k, root))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        weights = self.op("Where", self.op("IsNaN", weights), self.scalar(0.0), weights)
        return str(self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3]))

    def heads(self, x: str, length: int, size: int) -> str:
        return str(
            self.op(
                "Transpose", self.op("Reshape", x, self.constant([1, length, -1, size]), allowzero=1), perm=[0, 2, 1, 3]
            )
        )


def _picture(build: Build) -> dict[str, Array]:
    return {"pixel_values": build.random.standard_normal((1, 3, 224, 224), np.float32)}


def _resnet(build: Build, blocks: Sequence[int], bottleneck: bool, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    x = build.op("Relu", build.conv("pixel_values", 3, 64, 7, 2))
    x = build.op(
        "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, auto_pad="NOTSET", ceil_mode=0, storage_order=0
    )
    channels = 64
    for stage, count in enumerate(blocks):
        narrow = 64 << stage
        wide = narrow * 4 if bottleneck else narrow
        for block in range(min(count, layers or count)):
            stride = 2 if stage and not block else 1
            shortcut = x
            if bottleneck:
                y = build.op("Relu", build.conv(x, channels, narrow, 1))
                y = build.op("Relu", build.conv(y, narrow, narrow, 3, stride))
                y = build.conv(y, narrow, wide, 1, gain=0.5)
            else:
                y = build.op("Relu", build.conv(x, channels, narrow, 3, stride))
                y = build.conv(y, narrow, wide, 3, gain=0.5)
            if stride != 1 or channels != wide:
                shortcut = build.conv(x, channels, wide, 1, stride, gain=1.0)
            x = build.op("Relu", build.op("Add", y, shortcut))
            channels = wide
    build.classifier(x, channels)
    return inputs


def _resnet8(build: Build, layers: int | None) -> dict[str, Array]:
    """The picture classifier of MLPerf Tiny (arXiv:2106.07597): pictures of 32×32, 12.5 million multiply-adds."""
    inputs = {"image": build.random.standard_normal((1, 3, 32, 32), np.float32)}
    x, channels = build.op("Relu", build.conv("image", 3, 16, 3)), 16
    for wide in (16, 32, 64)[:layers]:
        stride = wide // channels
        y = build.op("Relu", build.conv(x, channels, wide, 3, stride))
        y = build.conv(y, wide, wide, 3, gain=0.5)
        shortcut = x if wide == channels else build.conv(x, channels, wide, 1, stride, gain=1.0)
        x, channels = build.op("Relu", build.op("Add", y, shortcut)), wide
    build.classifier(x, channels, classes=10)
    return inputs


def _mobilenet_v1(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    x = build.relu6(build.conv("pixel_values", 3, 32, 3, 2, pads=[0, 0, 1, 1]))
    channels = 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for outer, stride in plan[:layers]:
        pads = [0, 0, 1, 1] if stride == 2 else [1] * 4
        x = build.relu6(build.conv(x, channels, channels, 3, stride, pads=pads, group=channels))
        x = build.relu6(build.conv(x, channels, outer, 1))
        channels = outer
    build.classifier(x, channels, bias=False)
    return inputs


def _mobilenet_v2(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    x = build.relu6(build.conv("pixel_values", 3, 32, 3, 2, pads=[0, 0, 1, 1]))
    x = build.relu6(build.conv(x, 32, 32, 3, group=32))
    x = build.conv(x, 32, 16, 1, gain=1.0)
    channels = 16
    plan = [
        (24, 2),
        (24, 1),
        (32, 2),
        *[(32, 1)] * 2,
        (64, 2),
        *[(64, 1)] * 3,
        *[(96, 1)] * 3,
        (160, 2),
        *[(160, 1)] * 2,
        (320, 1),
    ]
    for outer, stride in plan[:layers]:
        wide = channels * 6
        y = build.relu6(build.conv(x, channels, wide, 1))
        y = build.relu6(build.conv(y, wide, wide, 3, stride, pads=[0, 0, 1, 1] if stride == 2 else [1] * 4, group=wide))
        y = build.conv(y, wide, outer, 1, gain=1.0)
        x = build.op("Add", x, y) if stride == 1 and outer == channels else y
        channels = outer
    x = build.relu6(build.conv(x, channels, 1280, 1))
    build.classifier(x, 1280, bias=False)
    return inputs


def _bert(
    build: Build, layers: int | None, *, width: int = 768, heads: int = 12, length: int = 128, vocabulary: int = 30522
) -> dict[str, Array]:
    inputs = {"input_ids": build.random.integers(0, 30000, (1, length))}
    places = build.constant(np.arange(length)[None])
    segments = build.op("GatherElements", build.constant(np.zeros((1, 512))), places, axis=1)
    table = build.weight("embeddings.word", vocabulary, width, deviation=0.5)
    x = build.op("Gather", table, "input_ids", axis=0)
    x = build.op(
        "Add", x, build.op("Gather", build.weight("embeddings.segment", 2, width, deviation=0.5), segments, axis=0)
    )
    x = build.op(
        "Add", x, build.op("Gather", build.weight("embeddings.position", 512, width, deviation=0.5), places, axis=0)
    )
    x = build.layer_norm(x, width, 1e-12)
    seen = build.constant(np.ones((1, 1, length, length)), np.bool_)
    mask = None  # made where the first layer needs it, as the exporter orders it
    size = width // heads
    for _ in range(layers or 12):
        q, k, v = (build.heads(build.linear(x, width, width), length, size) for _ in range(3))
        mask = mask or build.op("Where", seen, build.scalar(0.0), build.scalar(float(np.finfo(np.float32).min)))
        y = build.attention(q, k, v, mask, heads, length, size)
        y = build.op("Reshape", y, build.constant([1, length, -1]), allowzero=1)
        x = build.layer_norm(build.op("Add", build.linear(y, width, width), x), width, 1e-12)
        y = build.op("Gelu", build.linear(x, width, 4 * width), approximate="none")
        x = build.layer_norm(build.op("Add", build.linear(y, 4 * width, width), x), width, 1e-12)
    build.finish(x, 1, length, width)
    return inputs


def _gpt2(
    build: Build, layers: int | None, *, width: int = 768, heads: int = 12, length: int = 128, vocabulary: int = 50257
) -> dict[str, Array]:
    inputs = {"input_ids": build.random.integers(0, 30000, (1, length))}
    table = build.weight("wte", vocabulary, width, deviation=0.2)
    ids = build.op("Reshape", "input_ids", build.constant([-1, length]), allowzero=1)
    x = build.op("Gather", table, ids, axis=0)
    x = build.op(
        "Add",
        x,
        build.op(
            "Gather", build.weight("wpe", 1024, width, deviation=0.2), build.constant(np.arange(length)[None]), axis=0
        ),
    )
    seen = build.op("And", build.constant(True, np.bool_), build.constant(np.ones((1, 1, length, length)), np.bool_))
    seen = build.op("And", seen, build.constant(np.tril(np.ones((1, 1, length, length))), np.bool_))
    mask = None
    size = width // heads
    for _ in range(layers or 12):
        y = build.op("Reshape", build.layer_norm(x, width, 1e-5), build.constant([-1, width]), allowzero=1)
        y = build.op("Reshape", build.gemm(y, width, 3 * width), build.constant([1, length, 3 * width]), allowzero=1)
        q, k, v = build.op("Split", y, outputs=3, axis=2, num_outputs=3)
        k, v, q = (build.heads(part, length, size) for part in (k, v, q))
        mask = mask or build.op("Where", seen, build.scalar(0.0), build.scalar(float(np.finfo(np.float32).min)))
        y = build.attention(q, k, v, mask, heads, length, size)
        y = build.gemm(build.op("Reshape", y, build.constant([length, width])), width, width)
        x = build.op("Add", build.op("Reshape", y, build.constant([1, length, width]), allowzero=1), x)
        y = build.op("Reshape", build.layer_norm(x, width, 1e-5), build.constant([-1, width]), allowzero=1)
        y = build.op("Reshape", build.gemm(y, width, 4 * width), build.constant([1, length, 4 * width]), allowzero=1)
        # Its tanh-approximated GELU is written out.
        half = build.op("Mul", y, build.scalar(0.5))
        cube = build.op("Mul", build.op("Pow", y, build.scalar(3.0)), build.scalar(0.044715))
        inner = build.op("Tanh", build.op("Mul", build.op("Add", y, cube), build.scalar(math.sqrt(2 / math.pi))))
        y = build.op("Mul", half, build.op("Add", inner, build.scalar(1.0)))
        y = build.gemm(build.op("Reshape", y, build.constant([-1, 4 * width]), allowzero=1), 4 * width, width)
        x = build.op("Add", x, build.op("Reshape", y, build.constant([1, length, width]), allowzero=1))
    x = build.op("Reshape", build.layer_norm(x, width, 1e-5), build.constant([-1, length, width]), allowzero=1)
    build.finish(build.op("MatMul", x, build.op("Transpose", table, perm=[1, 0])), 1, length, vocabulary)
    return inputs


def _lstm(
    build: Build, layers: int | None, *, features: int = 256, hidden: int = 512, length: int = 100, classes: int = 100
) -> dict[str, Array]:
    inputs = {"x": build.random.standard_normal((1, length, features), np.float32)}
    x = build.op("Transpose", "x", perm=[1, 0, 2])
    first = build.constant([0])
    state = build.constant(np.zeros((1, 1, hidden)), np.float32)
    bound = hidden**-0.5 / math.sqrt(3)

    def gates(label: str, inner: int) -> str:
        # The framework orders gates i f g o, ONNX i o f g: the exporter leaves the reordering in the graph.
        w = build.weight(label, 4 * hidden, inner, deviation=bound)
        i, f, g, o = (
            build.op("Slice", w, build.constant([k * hidden]), build.constant([(k + 1) * hidden]), first)
            for k in range(4)
        )
        return str(build.op("Concat", i, o, f, g, axis=0))

    for layer in range(layers or 2):
        inner = features if layer == 0 else hidden
        wide, deep = gates(f"weight_ih_l{layer}", inner), gates(f"weight_hh_l{layer}", hidden)
        bias = build.weight(f"bias_l{layer}", 1, 8 * hidden, deviation=bound)
        y = build.op(
            "LSTM", x, build.op("Unsqueeze", wide, first), build.op("Unsqueeze", deep, first), bias, "", state, state,
            hidden_size=hidden, direction="forward", input_forget=0, layout=0,
        )  # fmt: skip
        x = build.op(
            "Reshape", build.op("Transpose", y, perm=[0, 2, 1, 3]), build.constant([length, 1, hidden]), allowzero=0
        )
    build.finish(build.linear(build.op("Transpose", x, perm=[1, 0, 2]), hidden, classes), 1, length, classes)
    return inputs


def _mlp(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = {"x": build.random.standard_normal((32, 784), np.float32)}
    x, inner = "x", 784
    for _ in range(layers or 2):
        x = build.op("Relu", build.gemm(x, inner, 1024, transposed=True))
        inner = 1024
    build.finish(build.gemm(x, inner, 10, transposed=True), 32, 10)
    return inputs


_TWINS: dict[str, Callable[[Build, int | None], dict[str, Array]]] = {
    "resnet18": lambda b, n: _resnet(b, (2, 2, 2, 2), False, n),
    "resnet50": lambda b, n: _resnet(b, (3, 4, 6, 3), True, n),
    "mobilenet_v1": _mobilenet_v1,
    "mobilenet_v2": _mobilenet_v2,
    "bert_base_s128": _bert,
    "gpt2_s128": _gpt2,
    "lstm": _lstm,
    "mlp": _mlp,
    "resnet8": _resnet8,
}


# -- exported by the framework ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchModel:
    """A module in evaluation mode with seeded weights, the names of its inputs, and example inputs."""

    module: Any
    names: tuple[str, ...]
    args: tuple[Any, ...]


def torch_model(name: str) -> TorchModel:
    """The framework's own model.

    Raises:
        ImportError: the extra `bench` is not installed.
        KeyError: no such model.
    """
    # Weights are random, so nothing is to be asked of a hub; without this a machine without network waits for it.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch
        import transformers
        from torch import nn
    except ImportError as error:
        raise ImportError(f"the framework's models need {error.name}: {TORCH_HINT}", name=error.name) from error
    transformers.logging.set_verbosity_error()

    class OneField(nn.Module):  # type: ignore[misc, name-defined]  # torch has no types for us
        """Calls a model by keyword and answers one field of its result, as an exporter needs it."""

        def __init__(self, model: Any, field: str, keyword: str) -> None:
            super().__init__()
            self.model, self.field, self.keyword = model, field, keyword

        def forward(self, x: Any) -> Any:
            return getattr(self.model(**{self.keyword: x}, return_dict=True), self.field)

    class Lstm(nn.Module):  # type: ignore[misc, name-defined]  # torch has no types for us
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(256, 512, 2, batch_first=True)
            self.head = nn.Linear(512, 100)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0])

    def vision(make: str, config: str, **options: Any) -> Callable[[], tuple[Any, str, Any]]:
        def build() -> tuple[Any, str, Any]:
            model = getattr(transformers, make)(getattr(transformers, config)(num_labels=1000, **options))
            return OneField(model, "logits", "pixel_values"), "pixel_values", torch.randn(1, 3, 224, 224)

        return build

    def text(make: str, config: str, field: str, **options: Any) -> Callable[[], tuple[Any, str, Any]]:
        def build() -> tuple[Any, str, Any]:
            model = getattr(transformers, make)(getattr(transformers, config)(**options))
            return OneField(model, field, "input_ids"), "input_ids", torch.randint(0, 30000, (1, 128))

        return build

    def mlp() -> Any:
        return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    models: dict[str, Callable[[], tuple[Any, str, Any]]] = {
        "resnet18": vision(
            "ResNetForImageClassification", "ResNetConfig", depths=[2, 2, 2, 2], layer_type="basic", hidden_sizes=[64,
                128, 256, 512]
        ),
        "resnet50": vision("ResNetForImageClassification", "ResNetConfig"),
        "mobilenet_v1": vision("MobileNetV1ForImageClassification", "MobileNetV1Config"),
        "mobilenet_v2": vision("MobileNetV2ForImageClassification", "MobileNetV2Config"),
        "bert_base_s128": text("BertModel", "BertConfig", "last_hidden_state"),
        "gpt2_s128": text("GPT2LMHeadModel", "GPT2Config", "logits", use_cache=False),
        "lstm": lambda: (Lstm(), "x", torch.randn(1, 100, 256)),
        "mlp": lambda: (mlp(), "x", torch.randn(32, 784)),
    }  # fmt: skip
    models |= own_models.torch_builders(OneField)
    if name not in models:
        raise KeyError(f"no model '{name}': there are {', '.join(EVERY)}")
    torch.manual_seed(0)
    module, keyword, arg = models[name]()
    module.eval()
    if name in own_models.OWN:
        for parameter in module.parameters():
            if parameter.dim() <= 1:
                # Fresh biases are 0, scales 1 or 1e-6: an exporter makes one constant of all, and an optimiser may
                # leave out what they do.
                nn.init.normal_(parameter, float(parameter.detach().mean().round()), 0.1)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            # Fresh statistics are 0 and 1, which would leave nothing to fold.
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return TorchModel(module, (keyword,), (arg,))


def export(name: str, folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Array], Array]:
    """Writes FOLDER/NAME.onnx and NAME.npz (inputs by name, the framework's output as "out"); returns path, inputs and
    output."""
    import warnings

    model = torch_model(name)
    import torch

    path = Path(folder) / f"{name}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.module(*model.args).numpy()
        torch.onnx.export(
            model.module, model.args, str(path), input_names=list(model.names), output_names=["out"],
            dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
        )  # fmt: skip
    inputs = {n: a.numpy() for n, a in zip(model.names, model.args)}
    save_arrays(path.with_suffix(".npz"), {"out": out, **inputs})
    return path, inputs, out


def main(arguments: Sequence[str]) -> int:
    twins = "--twins" in arguments
    words = [a for a in arguments if not a.startswith("-")]
    if not words:
        print(__doc__)
        return 2
    folder = Path(words[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in words[1:] or EVERY:
        path = save_twin(name, folder)[0] if twins else export(name, folder)[0]
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
