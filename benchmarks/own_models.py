"""Six more architectures, which stress what the eight do not: in two forms, as those.

They are (all of batch 1, pictures of 224 × 224):

    efficientnet_b0   squeeze-excite and swish, depthwise 5×5 (Tan and Le, 2019)
    resnext_deeplab   grouped and dilated convolutions, an atrous pyramid, bilinear upsampling (Xie et al., 2017; Chen
                      et al., 2017)
    convnext_tiny     depthwise 7×7, layer norm and GELU over channels-last (Liu et al., 2022)
    swin_tiny         attention in shifted windows with a relative position bias (Liu et al., 2021)
    whisper_encoder   1,500 positions behind a convolutional stem; six layers, 512 wide (Radford et al., 2022)
    llama_prefill     RMS norm, rotary positions, SwiGLU, grouped queries (Touvron et al., 2023); four layers, 512 wide,
                      128 tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.models import Array, Build

OWN = ("efficientnet_b0", "resnext_deeplab", "convnext_tiny", "swin_tiny", "whisper_encoder", "llama_prefill")
ENDS = 2**63 - 1


# -- twins ------------------------------------------------------------------------------------------------------------


def _picture(build: Build) -> dict[str, Array]:
    return {"pixel_values": build.random.standard_normal((1, 3, 224, 224), np.float32)}


def _swish(build: Build, x: str) -> str:
    return str(build.op("Mul", x, build.op("Sigmoid", x)))


def _efficientnet(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    axes = build.constant([-1, -2])
    x = _swish(build, build.conv("pixel_values", 3, 32, 3, 2, pads=[0, 0, 1, 1]))
    channels = 32
    for expand, outer, count, stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for block in range(min(count, layers or count)):
            step = stride if block == 0 else 1
            wide = channels * expand
            y = _swish(build, build.conv(x, channels, wide, 1)) if expand != 1 else x
            half = kernel // 2
            pads = [half - 1, half - 1, half, half] if step == 2 else [half] * 4
            y = _swish(build, build.conv(y, wide, wide, kernel, step, pads=pads, group=wide))
            squeezed = build.op("ReduceMean", y, axes, keepdims=1, noop_with_empty_axes=0)
            narrow = max(1, channels // 4)
            squeezed = _swish(build, build.conv(squeezed, wide, narrow, 1))
            y = build.op("Mul", y, build.op("Sigmoid", build.conv(squeezed, narrow, wide, 1, gain=1.0)))
            y = build.conv(y, wide, outer, 1, gain=1.0)
            x = build.op("Add", y, x) if step == 1 and channels == outer else y
            channels = outer
    x = _swish(build, build.conv(x, channels, 1280, 1))
    build.classifier(x, 1280)
    return inputs


def _resnext_deeplab(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    relu = lambda y: build.op("Relu", y)
    x = relu(build.conv("pixel_values", 3, 64, 7, 2))
    x = build.op(
        "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, auto_pad="NOTSET", ceil_mode=0, storage_order=0
    )
    channels = 64
    for narrow, wide, stride, dilation in _DEEPLAB_STAGES:
        for block in range(min(2, layers or 2)):
            step = stride if block == 0 else 1
            y = relu(build.conv(x, channels, narrow, 1))
            y = relu(build.conv(y, narrow, narrow, 3, step, group=32, dilation=dilation))
            y = build.conv(y, narrow, wide, 1, gain=0.5)
            shortcut = build.conv(x, channels, wide, 1, step, gain=1.0) if step != 1 or channels != wide else x
            x = relu(build.op("Add", y, shortcut))
            channels = wide
    pyramid = [
        relu(build.conv(x, channels, 256, 1)),
        *(relu(build.conv(x, channels, 256, 3, dilation=d)) for d in (6, 12)),
    ]
    x = relu(build.conv(build.op("Concat", *pyramid, axis=1), 768, 256, 1))
    x = build.conv(x, 256, 21, 1)
    size = build.constant([1, 21, 224, 224])
    build.finish(
        build.op("Resize", x, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel"), 1, 21, 224, 224
    )
    return inputs


_DEEPLAB_STAGES = ((128, 256, 1, 1), (256, 512, 2, 1), (512, 1024, 2, 1), (1024, 2048, 1, 2))


def _convnext(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    last, first = [0, 2, 3, 1], [0, 3, 1, 2]

    def norm(x: str, width: int) -> str:
        return str(
            build.op("Transpose", build.layer_norm(build.op("Transpose", x, perm=last), width, 1e-6), perm=first)
        )

    x = norm(build.conv("pixel_values", 3, 96, 4, 4, pads=[0] * 4), 96)
    for stage, count in enumerate((3, 3, 9, 3)):
        width = 96 << stage
        if stage:
            x = build.conv(norm(x, width // 2), width // 2, width, 2, 2, pads=[0] * 4)
        for _ in range(min(count, layers or count)):
            y = build.op("Transpose", build.conv(x, width, width, 7, group=width), perm=last)
            y = build.linear(build.layer_norm(y, width, 1e-6), width, 4 * width)
            y = build.linear(build.op("Gelu", y, approximate="none"), 4 * width, width)
            y = build.op("Mul", build.weight(f"scale{build.count}", width, deviation=0.3), y)
            x = build.op("Add", x, build.op("Transpose", y, perm=first))
    x = build.layer_norm(
        build.op("ReduceMean", x, build.constant([-2, -1]), keepdims=0, noop_with_empty_axes=0), 768, 1e-12
    )
    w, b = (
        build.weight("classifier.weight", 1000, 768, deviation=768**-0.5),
        build.weight("classifier.bias", 1000, deviation=0.1),
    )
    build.finish(build.op("Gemm", x, w, b, alpha=1.0, beta=1.0, transA=0, transB=1), 1, 1000)
    return inputs


def _roll(build: Build, x: str, axis: int, length: int, shift: int) -> str:
    """The exporter's circular shift: what leaves at the front comes in at the back."""
    one, cut = build.constant([1]), build.constant([shift])
    front = build.op("Slice", x, build.constant([0]), cut, build.constant([axis]), one)
    back = build.op("Slice", x, cut, build.constant([length]), build.constant([axis]), one)
    return str(build.op("Concat", back, front, axis=axis))


def _window_mask(side: int, window: int, shift: int) -> Array:
    """float32[windows, window², window²]: -100 between places that were no neighbours before the shift."""
    region = np.zeros((side, side), np.float32)
    cuts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
        region[rows, columns] = number
    count = side // window
    places = region.reshape(count, window, count, window).transpose(0, 2, 1, 3).reshape(-1, window * window)
    return np.where(places[:, None, :] != places[:, :, None], np.float32(-100), np.float32(0))


def _swin(build: Build, layers: int | None) -> dict[str, Array]:
    inputs = _picture(build)
    window, size = 7, 32
    area = window * window
    x = build.conv("pixel_values", 3, 96, 4, 4, pads=[0] * 4)
    x = build.op("Transpose", build.op("Reshape", x, build.constant([1, 96, 3136]), allowzero=1), perm=[0, 2, 1])
    x = build.layer_norm(x, 96, 1e-5)
    for stage, (count, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
        width, side = 96 << stage, 56 >> stage
        windows = (side // window) ** 2
        split = build.constant([1, side // window, window, side // window, window, width])
        joined = build.constant([1, side // window, side // window, window, window, width])
        flat, picture = build.constant([1, side * side, width]), build.constant([1, side, side, width])
        for block in range(min(count, layers or count)):
            shift = window // 2 if block % 2 and side > window else 0
            y = build.op("Reshape", build.layer_norm(x, width, 1e-5), picture, allowzero=1)
            for axis in (1, 2) if shift else ():
                y = _roll(build, y, axis, side, shift)
            y = build.op("Transpose", build.op("Reshape", y, split, allowzero=1), perm=[0, 1, 3, 2, 4, 5])
            y = build.op("Reshape", y, build.constant([windows, area, width]), allowzero=0)
            apart = build.constant([windows, area, -1, size])
            parts = [build.op("Reshape", build.linear(y, width, width), apart, allowzero=1) for _ in range(3)]
            q, k, v = (build.op("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
            bias: Array = 0.5 * build.random.standard_normal((1, heads, area, area)).astype(np.float32)
            if shift:
                bias = bias + _window_mask(side, window, shift)[:, None]
            root = build.scalar(size**-0.25)
            k = build.op("Reshape", k, build.constant([-1, area, size]), allowzero=0)
            k = build.op(
                "Reshape",
                build.op("Transpose", k, perm=[0, 2, 1]),
                build.constant([windows, heads, size, area]),
                allowzero=0,
            )
            scores = build.op("MatMul", build.op("Mul", q, root), build.op("Mul", k, root))
            weights = build.op("Softmax", build.op("Add", scores, build.constant(bias, np.float32)), axis=-1)
            y = build.op("Transpose", build.op("MatMul", weights, v), perm=[0, 2, 1, 3])
            y = build.linear(build.op("Reshape", y, build.constant([windows, area, -1]), allowzero=1), width, width)
            y = build.op("Transpose", build.op("Reshape", y, joined, allowzero=1), perm=[0, 1, 3, 2, 4, 5])
            y = build.op("Reshape", y, picture, allowzero=1)
            for axis in (1, 2) if shift else ():
                y = _roll(build, y, axis, side, side - shift)
            x = build.op("Add", x, build.op("Reshape", y, flat, allowzero=1))
            y = build.op("Gelu", build.linear(build.layer_norm(x, width, 1e-5), width, 4 * width), approximate="none")
            x = build.op("Add", build.linear(y, 4 * width, width), x)
        if stage < 3:
            x = build.op("Reshape", x, picture, allowzero=1)
            zero, one, two, ends = (build.constant([n]) for n in (0, 1, 2, ENDS))
            rows = [build.op("Slice", x, start, ends, one, two) for start in (zero, one)]
            parts = [build.op("Slice", row, start, ends, two, two) for start in (zero, one) for row in rows]
            y = build.op(
                "Reshape", build.op("Concat", *parts, axis=-1), build.constant([1, -1, 4 * width]), allowzero=1
            )
            y = build.layer_norm(y, 4 * width, 1e-5)
            x = build.op(
                "MatMul", y, build.weight(f"merge{stage}", 4 * width, 2 * width, deviation=(4 * width) ** -0.5)
            )
    x = build.op("ReduceMean", build.layer_norm(x, 768, 1e-5), build.constant([1]), keepdims=0, noop_with_empty_axes=0)
    w, b = (
        build.weight("classifier.weight", 1000, 768, deviation=768**-0.5),
        build.weight("classifier.bias", 1000, deviation=0.1),
    )
    build.finish(build.op("Gemm", x, w, b, alpha=1.0, beta=1.0, transA=0, transB=1), 1, 1000)
    return inputs


def _whisper(
    build: Build, layers: int | None, *, width: int = 512, heads: int = 8, frames: int = 3000
) -> dict[str, Array]:
    inputs = {"input_features": build.random.standard_normal((1, 80, frames), np.float32)}
    length, size = frames // 2, width // heads

    def stem(x: str, inner: int, stride: int) -> str:
        w = build.weight(f"stem{stride}.weight", width, inner, 3, deviation=math.sqrt(2 / (3 * inner)))
        b = build.weight(f"stem{stride}.bias", width, deviation=0.1)
        y = build.op(
            "Conv", x, w, b, group=1, pads=[1, 1], auto_pad="NOTSET", strides=[stride], dilations=[1], kernel_shape=[3]
        )
        return str(build.op("Gelu", y, approximate="none"))

    x = build.op("Transpose", stem(stem("input_features", 80, 1), width, 2), perm=[0, 2, 1])
    x = build.op(
        "Add",
        x,
        build.op(
            "Gather", build.weight("positions", length, width, deviation=0.5), build.constant(np.arange(length)), axis=0
        ),
    )
    root = build.scalar(size**-0.5)
    for _ in range(layers or 6):
        y = build.layer_norm(x, width, 1e-5)
        q = build.heads(build.op("Mul", build.linear(y, width, width), root), length, size)
        k = build.op("MatMul", y, build.weight(f"key{build.count}", width, width, deviation=width**-0.5))
        k, v = build.heads(k, length, size), build.heads(build.linear(y, width, width), length, size)
        k = build.op(
            "Transpose", build.op("Reshape", k, build.constant([-1, length, size]), allowzero=0), perm=[0, 2, 1]
        )
        k = build.op("Reshape", k, build.constant([1, heads, size, length]), allowzero=0)
        y = build.op("MatMul", build.op("Softmax", build.op("MatMul", q, k), axis=-1), v)
        y = build.op(
            "Reshape", build.op("Transpose", y, perm=[0, 2, 1, 3]), build.constant([1, length, -1]), allowzero=1
        )
        x = build.op("Add", x, build.linear(y, width, width))
        y = build.op("Gelu", build.linear(build.layer_norm(x, width, 1e-5), width, 4 * width), approximate="none")
        x = build.op("Add", x, build.linear(y, 4 * width, width))
    build.finish(build.layer_norm(x, width, 1e-5), 1, length, width)
    return inputs


def _llama(
    build: Build,
    layers: int | None,
    *,
    width: int = 512,
    heads: int = 8,
    groups: int = 2,
    inner: int = 1376,
    length: int = 128,
    vocabulary: int = 8000,
) -> dict[str, Array]:
    inputs = {"input_ids": build.random.integers(0, vocabulary, (1, length))}
    size = width // heads
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cosine, sine = (build.constant(np.tile(f(angles), (1, 2))[None, None], np.float32) for f in (np.cos, np.sin))
    mask = np.where(np.tril(np.ones((1, 1, length, length), bool)), np.float32(0), np.finfo(np.float32).min)

    def project(x: str, inside: int, outside: int) -> str:
        return str(
            build.op("MatMul", x, build.weight(f"projection{build.count}", inside, outside, deviation=inside**-0.5))
        )

    def rms_norm(x: str) -> str:
        mean = build.op(
            "ReduceMean",
            build.op("Pow", x, build.scalar(2.0)),
            build.constant([-1]),
            keepdims=1,
            noop_with_empty_axes=0,
        )
        root = build.op("Reciprocal", build.op("Sqrt", build.op("Add", mean, build.scalar(1e-6))))
        scale = build.hold(f"norm{build.count}", (1 + 0.1 * build.random.standard_normal(width)).astype(np.float32))
        return str(build.op("Mul", scale, build.op("Mul", x, root)))

    def rotate(x: str) -> str:
        zero, half, ends, axis, one = (build.constant([n]) for n in (0, size // 2, ENDS, 3, 1))
        low, high = build.op("Slice", x, zero, half, axis, one), build.op("Slice", x, half, ends, axis, one)
        turned = build.op("Concat", build.op("Neg", high), low, axis=-1)
        return str(build.op("Add", build.op("Mul", x, cosine), build.op("Mul", turned, sine)))

    def repeat(x: str) -> str:
        y = build.op("Unsqueeze", x, build.constant([2]))
        y = build.op("Expand", y, build.constant([1, groups, heads // groups, length, size]))
        return str(build.op("Reshape", y, build.constant([1, heads, length, size]), allowzero=1))

    x = build.op("Gather", build.weight("embedding", vocabulary, width, deviation=0.5), "input_ids", axis=0)
    for _ in range(layers or 4):
        y = rms_norm(x)
        q, k, v = (build.heads(project(y, width, n * size), length, size) for n in (heads, groups, groups))
        y = build.attention(
            rotate(q), repeat(rotate(k)), repeat(v), build.constant(mask, np.float32), heads, length, size
        )
        y = build.op("Reshape", y, build.constant([1, length, -1]), allowzero=1)
        x = build.op("Add", x, project(y, width, width))
        y = rms_norm(x)
        y = build.op("Mul", _swish(build, project(y, width, inner)), project(y, width, inner))
        x = build.op("Add", x, project(y, inner, width))
    build.finish(project(rms_norm(x), width, vocabulary), 1, length, vocabulary)
    return inputs


TWINS: dict[str, Callable[[Build, int | None], dict[str, Array]]] = {
    "efficientnet_b0": _efficientnet,
    "resnext_deeplab": _resnext_deeplab,
    "convnext_tiny": _convnext,
    "swin_tiny": _swin,
    "whisper_encoder": _whisper,
    "llama_prefill": _llama,
}


# -- exported by the framework ----------------------------------------------------------------------------------------


def torch_builders(one_field: Callable[[Any, str, str], Any]) -> dict[str, Callable[[], tuple[Any, str, Any]]]:
    """name → function that makes the module, the name of its input and an example of it.

    Args:
        one_field: (model, field, keyword) → module that calls the model by keyword and answers that field.
    """
    import torch
    import transformers
    from torch import nn

    def picture(make: str, config: Any) -> tuple[Any, str, Any]:
        return (
            one_field(getattr(transformers, make)(config), "logits", "pixel_values"),
            "pixel_values",
            torch.randn(1, 3, 224, 224),
        )

    def efficientnet() -> tuple[Any, str, Any]:
        config = transformers.EfficientNetConfig(
            num_labels=1000, image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280
        )
        made = picture("EfficientNetForImageClassification", config)
        # The framework's pools over windows of 1280 × 1280, cut to the picture, which OpenVINO refuses; this is the
        # same mean.
        made[0].model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
        return made

    def whisper() -> tuple[Any, str, Any]:
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config = transformers.WhisperConfig(
            d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048, num_mel_bins=80
        )
        return (
            one_field(WhisperEncoder(config), "last_hidden_state", "input_features"),
            "input_features",
            torch.randn(1, 80, 3000),
        )

    def llama() -> tuple[Any, str, Any]:
        config = transformers.LlamaConfig(
            vocab_size=8000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=1024, use_cache=False,
        )  # fmt: skip
        return (
            one_field(transformers.LlamaForCausalLM(config), "logits", "input_ids"),
            "input_ids",
            torch.randint(0, 8000, (1, 128)),
        )

    def conv(inner: int, outer: int, kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> Sequence[Any]:
        pad = dilation * (kernel // 2)
        return nn.Conv2d(inner, outer, kernel, stride, pad, dilation, groups, bias=False), nn.BatchNorm2d(outer)

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]  # torch has no types for us
        def __init__(self, inner: int, narrow: int, outer: int, stride: int, dilation: int) -> None:
            super().__init__()
            middle = conv(narrow, narrow, 3, stride, dilation, 32)
            self.body = nn.Sequential(*conv(inner, narrow, 1), nn.ReLU(), *middle, nn.ReLU(), *conv(narrow, outer, 1))
            self.shortcut = (
                nn.Sequential(*conv(inner, outer, 1, stride)) if stride != 1 or inner != outer else nn.Identity()
            )

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.shortcut(x))

    class Deeplab(nn.Module):  # type: ignore[misc, name-defined]  # torch has no types for us
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            blocks, inner = [], 64
            for narrow, outer, stride, dilation in _DEEPLAB_STAGES:
                blocks += [
                    Bottleneck(inner, narrow, outer, stride, dilation),
                    Bottleneck(outer, narrow, outer, 1, dilation),
                ]
                inner = outer
            self.body = nn.Sequential(*blocks)
            self.pyramid = nn.ModuleList(
                [nn.Sequential(*conv(2048, 256, 1 if d == 1 else 3, 1, d), nn.ReLU()) for d in (1, 6, 12)]
            )
            self.head = nn.Sequential(*conv(768, 256, 1), nn.ReLU(), nn.Conv2d(256, 21, 1))

        def forward(self, x: Any) -> Any:
            y = self.body(self.stem(x))
            y = self.head(torch.cat([part(y) for part in self.pyramid], 1))
            return nn.functional.interpolate(y, size=(224, 224), mode="bilinear", align_corners=False)

    return {
        "efficientnet_b0": efficientnet,
        "resnext_deeplab": lambda: (Deeplab(), "pixel_values", torch.randn(1, 3, 224, 224)),
        "convnext_tiny": lambda: picture(
            "ConvNextForImageClassification", transformers.ConvNextConfig(num_labels=1000)
        ),
        "swin_tiny": lambda: picture(
            "SwinForImageClassification", transformers.SwinConfig(num_labels=1000, image_size=224)
        ),
        "whisper_encoder": whisper,
        "llama_prefill": llama,
    }
