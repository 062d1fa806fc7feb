"""Makes fixtures.zip: small graphs, inputs, and what TensorFlow computes of them.

    python tests/frontends/tensorflow/make_fixtures.py      # needs tensorflow (2.21.0 made the committed file)

Cases of one operator are frozen graphs (N/graph.pb); those of functions, variables and control flow SavedModels
(N/saved_model.pb, N/variables/…). N/inputs.npz and N/outputs.npz are by name.
"""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

R = np.random.default_rng(0)
raw = tf.raw_ops
T = tf.TensorSpec
Case = tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]
OPERATORS: dict[str, Case] = {}


def f(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def i(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    return R.integers(low, high, shape).astype(dtype)


def op(name: str, function: Callable[..., Any], _open: dict[str, Any] | None = None, **inputs: Any) -> None:
    """A case; `_open`: shapes of inputs of which some sizes are None."""
    OPERATORS[name] = (function, inputs, _open or {})


X = f(2, 3, 4)
POSITIVE = np.abs(X) + 0.5
INSIDE = np.tanh(X) * 0.9
UNARY = {
    "Abs": X, "Acos": INSIDE, "Acosh": POSITIVE + 1, "Asin": INSIDE, "Asinh": X, "Atan": X, "Atanh": INSIDE, "Ceil": X, "Cos": X,
    "Cosh": X, "Elu": X, "Erf": X, "Erfc": X, "Exp": X, "Expm1": X, "Floor": X, "Inv": POSITIVE, "IsFinite": X, "IsInf": X, "IsNan": X,
    "Log": POSITIVE, "Log1p": POSITIVE, "Neg": X, "Reciprocal": POSITIVE, "Relu": X, "Relu6": X * 5, "Rint": X * 3, "Round": X * 3,
    "Rsqrt": POSITIVE, "Selu": X, "Sigmoid": X, "Sign": X, "Sin": X, "Sinh": X, "Softplus": X, "Softsign": X, "Sqrt": POSITIVE,
    "Square": X, "Tan": X, "Tanh": X, "OnesLike": X, "ZerosLike": X, "StopGradient": X, "Identity": X, "Snapshot": X,
    "LeakyRelu": X, "Softmax": X, "LogSoftmax": X, "L2Loss": X, "PreventGradient": X,
}  # fmt: skip
NAMES = {
    **dict.fromkeys(("Elu", "Relu", "Relu6", "Selu", "Softplus", "Softsign", "LeakyRelu"), "features"),
    **dict.fromkeys(("StopGradient", "Identity", "Snapshot", "PreventGradient"), "input"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "logits"), "L2Loss": "t",
}  # fmt: skip
for _name, _x in UNARY.items():
    op(_name, lambda x, n=_name: getattr(raw, n)(**{NAMES.get(n, "x"): x}), x=_x)
A, B = f(2, 3, 4), f(3, 1)
BINARY = {
    "Add": (A, B), "AddV2": (A, B), "Sub": (A, B), "Mul": (A, B), "RealDiv": (A, B), "Div": (A, B), "Maximum": (A, B), "Minimum": (A, B),
    "SquaredDifference": (A, B), "Pow": (POSITIVE, B), "FloorDiv": (A, B), "FloorMod": (A, B), "TruncateMod": (A, B), "Mod": (A, B),
    "DivNoNan": (A, np.array([[0], [1], [2]], np.float32)), "MulNoNan": (A, np.array([[0], [1], [2]], np.float32)),
    "Xdivy": (np.array([[0], [1], [2]], np.float32), POSITIVE), "Xlogy": (np.array([[0], [1], [2]], np.float32), POSITIVE),
    "Xlog1py": (np.array([[0], [1], [2]], np.float32), POSITIVE), "Atan2": (A, B), "Equal": (A, A), "NotEqual": (A, B), "Less": (A, B),
    "LessEqual": (A, B), "Greater": (A, B), "GreaterEqual": (A, B),
    "BitwiseAnd": (i(0, 99, 4), i(0, 99, 4)), "BitwiseOr": (i(0, 99, 4), i(0, 99, 4)), "BitwiseXor": (i(0, 99, 4), i(0, 99, 4)),
    "LeftShift": (i(0, 99, 4), i(0, 9, 4)), "RightShift": (i(-99, 99, 4), i(0, 9, 4)), "TruncateDiv": (i(-99, 99, 4), i(1, 9, 4)),
    "LogicalAnd": (A > 0, B > 0), "LogicalOr": (A > 0, B > 0),
}  # fmt: skip
for _name, (_a, _b) in BINARY.items():
    op(_name, lambda x, y, n=_name: getattr(raw, n)(x=x, y=y), x=_a, y=_b)
op("FloorDiv int", lambda x, y: x // y, x=i(-99, 99, 8), y=np.array([-3, 3] * 4, np.int32))
op("FloorMod int", lambda x, y: x % y, x=i(-99, 99, 8), y=np.array([-3, 3] * 4, np.int32))
op("Invert", lambda x: raw.Invert(x=x), x=i(0, 99, 4))
op("LogicalNot", lambda x: tf.logical_not(x), x=A > 0)
op("AddN", lambda x, y: tf.add_n([x, y, x]), x=A, y=A * 2)
op("ClipByValue", lambda x: raw.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=0.5), x=A)
op("Select", lambda c, x, y: raw.Select(condition=c, x=x, y=y), c=np.array([True, False]), x=A, y=A * 2)
op("SelectV2", lambda c, x, y: tf.where(c, x, y), c=B > 0, x=A, y=A * 2)
for _from, _to in (
    ("float32", "int32"),
    ("float32", "bool"),
    ("int32", "float32"),
    ("float32", "float16"),
    ("int32", "uint8"),
    ("bool", "float32"),
    ("float32", "uint8"),
):
    op(f"Cast {_from} {_to}", lambda x, t=_to: tf.cast(x, t), x=(np.abs(A) * 9).astype(_from))
for _bits, _narrow in ((8, False), (4, True)):
    op(
        f"FakeQuantWithMinMaxArgs {_bits}",
        lambda x, b=_bits, n=_narrow: tf.quantization.fake_quant_with_min_max_args(x, -1.3, 2.1, b, n),
        x=A,
    )
    op(
        f"FakeQuantWithMinMaxVars {_bits}",
        lambda x, b=_bits, n=_narrow: tf.quantization.fake_quant_with_min_max_vars(x, -1.3, 2.1, b, n),
        x=A,
    )
op(
    "FakeQuantWithMinMaxVarsPerChannel",
    lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(x, [-1.0, -0.5, -2, -0.1], [1.0, 0.5, 2, 3]),
    x=A,
)
op("CheckNumerics", lambda x: tf.debugging.check_numerics(x, "no"), x=A)
op("EnsureShape", lambda x: tf.ensure_shape(x, (2, None, 4)), x=A)
op("IdentityN", lambda x, y: tf.add(*tf.identity_n([x, y])), x=A, y=B)
op("PlaceholderWithDefault", lambda x: tf.compat.v1.placeholder_with_default(x, (2, 3, 4)) + 1, x=A)

# -- movement
op("Reshape", lambda x: tf.reshape(x, (4, -1)), x=A)
op(
    "Reshape open",
    lambda x: tf.reshape(x, (tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:]))),
    {"x": (None, 3, None)},
    x=A,
)
op("Squeeze", lambda x: tf.squeeze(x, [1]), x=f(2, 1, 3))
op("Squeeze all", lambda x: tf.squeeze(x), x=f(2, 1, 3, 1))
op("ExpandDims", lambda x: tf.expand_dims(x, -2), x=A)
op("Transpose", lambda x: tf.transpose(x, (2, 0, 1)), x=A)
op("BroadcastTo", lambda x: tf.broadcast_to(x, (2, 3, 4)), x=B)
op("BroadcastArgs", lambda x: tf.broadcast_to(x[:, :, :1], tf.broadcast_dynamic_shape(tf.shape(x), (1, 3, 4))), x=A)
op("Tile", lambda x: tf.tile(x, (2, 1, 3)), x=A)
op("ConcatV2", lambda x, y: tf.concat([x, y], -1), x=A, y=f(2, 3, 2))
op("Concat", lambda x, y: raw.Concat(concat_dim=1, values=[x, y]), x=A, y=f(2, 1, 4))
op("Pack", lambda x, y: tf.stack([x, y], 1), x=A, y=A * 2)
op("Unpack", lambda x: tf.unstack(x, axis=1)[2], x=A)
op("Split", lambda x: tf.split(x, 2, 2)[1], x=A)
op("Split open", lambda x: tf.split(x, 2, 0)[1], {"x": (None, 3, 4)}, x=A)
op("SplitV", lambda x: tf.split(x, [1, -1, 2], 2)[1], x=f(2, 3, 7))
op("Slice", lambda x: tf.slice(x, (0, 1, 1), (1, -1, 2)), x=A)
op("StridedSlice", lambda x: x[:, ::-2, tf.newaxis, 1:3], x=A)
op("StridedSlice ellipsis", lambda x: x[..., 1], x=A)
op("StridedSlice single", lambda x: x[-1, 1:], x=A)
op("StridedSlice at run time", lambda x, k: x[:, k[0]], x=A, k=np.array([-1], np.int32))
op("Pad", lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 1))), x=A)
op("PadV2", lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=3.0), x=A)
op("MirrorPad", lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 1)), "REFLECT"), x=A)
op("MirrorPad symmetric", lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 1)), "SYMMETRIC"), x=A)
op(
    "SpaceToBatchND",
    lambda x: raw.SpaceToBatchND(input=x, block_shape=(2, 3), paddings=((1, 1), (0, 2))),
    x=f(2, 4, 4, 3),
)
op("BatchToSpaceND", lambda x: raw.BatchToSpaceND(input=x, block_shape=(2, 2), crops=((0, 1), (1, 0))), x=f(8, 2, 3, 2))
op("SpaceToBatch", lambda x: raw.SpaceToBatch(input=x, paddings=((1, 1), (0, 0)), block_size=2), x=f(2, 4, 4, 3))
op("BatchToSpace", lambda x: raw.BatchToSpace(input=x, crops=((1, 1), (0, 0)), block_size=2), x=f(8, 2, 3, 2))
op("ReverseV2", lambda x: tf.reverse(x, (0, 2)), x=A)
op("Reverse", lambda x: raw.Reverse(tensor=x, dims=(False, True, False)), x=A)
op("ReverseSequence", lambda x, n: tf.reverse_sequence(x, n, 1, 0), x=A, n=np.array([2, 3], np.int32))
op("Roll", lambda x: tf.roll(x, (1, -1), (0, 2)), x=A)
op("Fill", lambda x: tf.fill(tf.shape(x), 2.5) + x, {"x": (None, 3, 4)}, x=A)
op("Bitcast", lambda x: tf.bitcast(x, tf.int32), x=A)
op("DepthToSpace", lambda x: tf.nn.depth_to_space(x, 2), x=f(2, 3, 2, 8))
op("SpaceToDepth", lambda x: tf.nn.space_to_depth(x, 2), x=f(2, 4, 2, 3))
op("Shape", lambda x: tf.shape(x), {"x": (None, 3, None)}, x=A)
op("ShapeN", lambda x, y: raw.ShapeN(input=[x, y])[1] + 1, {"y": (None, 1)}, x=A, y=B)
op("Rank", lambda x: raw.Rank(input=x) + tf.zeros((2,), tf.int32), {"x": (None, 3, 4)}, x=A)
op("Size", lambda x: tf.size(x), {"x": (None, 3, 4)}, x=A)
op(
    "sizes",
    lambda x: tf.reshape(x, tf.concat([tf.maximum(tf.shape(x)[:1] // 2, 1), [-1]], 0)),
    {"x": (None, 3, None)},
    x=f(4, 3, 2),
)

# -- indices
op("GatherV2", lambda x: tf.gather(x, [2, 0, 0], axis=1), x=A)
op("GatherV2 batch", lambda x, k: tf.gather(x, k, axis=1, batch_dims=1), x=A, k=i(0, 3, 2, 2))
op("Gather", lambda x: raw.Gather(params=x, indices=[1, 0, 1]), x=A)
op("GatherNd", lambda x, k: tf.gather_nd(x, k), x=A, k=np.array([[0, 1], [1, 2]], np.int32))
op("ScatterNd", lambda k, u: tf.scatter_nd(k, u, (4, 3)), k=np.array([[1], [3], [1]], np.int32), u=f(3, 3))
for _name, _raw in (("Update", "update"), ("Add", "add"), ("Sub", "sub"), ("Max", "max"), ("Min", "min")):
    op(
        f"TensorScatter{_name}",
        lambda x, u, n=_raw: getattr(tf, f"tensor_scatter_nd_{n}")(x, [[0, 2], [1, 1]], u),
        x=A,
        u=f(2, 4),
    )
op("OneHot", lambda k: tf.one_hot(k, 4, 2.0, -1.0), k=np.array([[0, 3], [5, -1]], np.int32))
op("OneHot first", lambda k: tf.one_hot(k, 4, axis=0), k=np.array([0, 3], np.int64))
op("Range", lambda x: tf.range(tf.shape(x)[0]) * 2, {"x": (None, 3, 4)}, x=A)
op("Range floats", lambda x: tf.range(0.0, 1.0, 0.3) + x, x=f(4))
op("LinSpace", lambda x: tf.linspace(x[0], x[1], 5), x=f(2))
op("Where", lambda x: tf.where(x > 0), x=A)
op("MatrixDiag", lambda x: raw.MatrixDiag(diagonal=x), x=A)
op("MatrixDiagV3", lambda x: tf.linalg.diag(x, k=1), x=A)
op("MatrixDiagPart", lambda x: raw.MatrixDiagPart(input=x), x=A)
op("MatrixDiagPartV3", lambda x: tf.linalg.diag_part(x, k=-1), x=A)
op("MatrixSetDiag", lambda x, d: raw.MatrixSetDiag(input=x, diagonal=d), x=A, d=f(2, 3))
op("MatrixSetDiagV3", lambda x, d: tf.linalg.set_diag(x, d, k=1), x=A, d=f(2, 3))
op("MatrixBandPart", lambda x: tf.linalg.band_part(x, 1, 0), x=f(2, 4, 4))
op("MatrixDeterminant", lambda x: tf.linalg.det(x), x=f(2, 3, 3))
IDS = np.array([0, 0, 2, 2, 3], np.int32)
for _name in ("Sum", "Prod", "Max", "Min"):
    op(
        f"UnsortedSegment{_name}",
        lambda x, k, n=_name: getattr(raw, f"UnsortedSegment{n}")(data=x, segment_ids=k, num_segments=4),
        x=f(5, 2),
        k=np.array([3, 0, 3, -1, 1], np.int32),
    )
    op(f"Segment{_name}", lambda x, n=_name: getattr(raw, f"Segment{n}")(data=x, segment_ids=IDS), x=f(5, 2))
op("SegmentMean", lambda x: tf.math.segment_mean(x, IDS), x=f(5, 2))
for _name in ("Sum", "Mean", "SqrtN"):
    op(
        f"SparseSegment{_name}",
        lambda x, n=_name: getattr(raw, f"SparseSegment{n}")(data=x, indices=[0, 2, 4, 1], segment_ids=[0, 0, 2, 2]),
        x=f(5, 2),
    )
op("Bucketize", lambda x: raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), x=A)
op(
    "SparseToDense",
    lambda v: raw.SparseToDense(
        sparse_indices=[[0, 1], [2, 3]], output_shape=(3, 4), sparse_values=v, default_value=-1.0
    ),
    v=f(2),
)
op("InvertPermutation", lambda k: tf.math.invert_permutation(k), k=np.array([2, 0, 1], np.int32))

# -- reductions
for _name in ("sum", "mean", "prod", "max", "min", "euclidean_norm"):
    op(f"reduce_{_name}", lambda x, n=_name: getattr(tf.math, f"reduce_{n}")(x, (0, -1)), x=A)
    op(f"reduce_{_name} kept", lambda x, n=_name: getattr(tf.math, f"reduce_{n}")(x, 1, keepdims=True), x=A)
op("reduce_any", lambda x: tf.reduce_any(x > 1, 1), x=A)
op("reduce_all", lambda x: tf.reduce_all(x > -1, 1), x=A)
op("Mean int", lambda x: tf.reduce_mean(x, 1), x=i(-9, 9, 3, 4))
op("ArgMax", lambda x: tf.argmax(x, 1), x=A)
op("ArgMin", lambda x: tf.argmin(x, -1, tf.int32), x=A)
op("TopKV2", lambda x: tf.math.top_k(x, 2).indices, x=A)
op("InTopKV2", lambda x, t: tf.math.in_top_k(t, x, 2), x=f(5, 4), t=i(0, 4, 5))
op("InTopK", lambda x, t: raw.InTopK(predictions=x, targets=t, k=1), x=f(5, 4), t=i(0, 4, 5))
op("Cumsum", lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), x=A)
op("Cumprod", lambda x: tf.math.cumprod(x, 2), x=A)

# -- networks
IMAGE = f(2, 7, 8, 4)
for _padding in ("SAME", "VALID"):
    for _stride in (1, 2):
        op(
            f"Conv2D {_padding} {_stride}",
            lambda x, w, p=_padding, s=_stride: tf.nn.conv2d(x, w, s, p),
            x=IMAGE,
            w=f(3, 2, 4, 5),
        )
        op(
            f"DepthwiseConv2dNative {_padding} {_stride}",
            lambda x, w, p=_padding, s=_stride: tf.nn.depthwise_conv2d(x, w, (1, s, s, 1), p),
            x=IMAGE,
            w=f(3, 3, 4, 2),
        )
        op(f"MaxPool {_padding} {_stride}", lambda x, p=_padding, s=_stride: tf.nn.max_pool2d(x, (3, 2), s, p), x=IMAGE)
        op(f"AvgPool {_padding} {_stride}", lambda x, p=_padding, s=_stride: tf.nn.avg_pool2d(x, (3, 2), s, p), x=IMAGE)
        op(
            f"Conv2DBackpropInput {_padding} {_stride}",
            lambda x, w, p=_padding, s=_stride: tf.nn.conv2d_transpose(
                x, w, (2, 7 * s if p == "SAME" else 6 * s + 3, 8 * s if p == "SAME" else 7 * s + 2, 5), s, p
            ),
            x=IMAGE,
            w=f(3, 2, 5, 4),
        )
op(
    "Conv2D dilated",
    lambda x, w: raw.Conv2D(input=x, filter=w, strides=(1, 1, 1, 1), padding="SAME", dilations=(1, 2, 1, 1)),
    x=IMAGE,
    w=f(3, 2, 4, 5),
)
op("Conv2D explicit", lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [2, 1], [0, 1], [0, 0]]), x=IMAGE, w=f(3, 2, 4, 5))
op("Conv2D groups", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x=IMAGE, w=f(3, 3, 2, 6))
op("Conv2D open", lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), {"x": (None, None, None, 4)}, x=IMAGE, w=f(3, 3, 4, 6))
op(
    "dilated by blocks",
    lambda x, w: tf.nn.convolution(x, w, dilations=[2, 2], padding="SAME"),
    x=IMAGE,
    w=f(3, 3, 4, 6),
)
op("Conv3D", lambda x, w: tf.nn.conv3d(x, w, (1, 1, 2, 1, 1), "SAME"), x=f(1, 4, 5, 6, 2), w=f(2, 3, 3, 2, 3))
op(
    "Conv3DBackpropInputV2",
    lambda x, w: tf.nn.conv3d_transpose(x, w, (1, 4, 10, 6, 3), (1, 1, 2, 1, 1), "SAME"),
    x=f(1, 4, 5, 6, 2),
    w=f(2, 3, 3, 3, 2),
)
op(
    "DepthwiseConv2dNativeBackpropInput",
    lambda x, w: raw.DepthwiseConv2dNativeBackpropInput(
        input_sizes=(2, 14, 16, 2), filter=w, out_backprop=x, strides=(1, 2, 2, 1), padding="SAME"
    ),
    x=IMAGE,
    w=f(3, 3, 2, 2),
)
op("MaxPool3D", lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), x=f(1, 4, 5, 6, 2))
op("AvgPool3D", lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME"), x=f(1, 4, 5, 6, 2))
op("MaxPoolV2", lambda x: raw.MaxPoolV2(input=x, ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID"), x=IMAGE)
op(
    "MaxPoolWithArgmax",
    lambda x: (
        raw.MaxPoolWithArgmax(
            input=x, ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID", include_batch_in_index=True
        ).argmax
    ),
    x=IMAGE,
)
for _range in (True, False):
    for _mode, _axis in (("HALF_TO_EVEN", -1), ("HALF_UP", -1 if _range else 3)):
        op(
            f"QuantizeAndDequantizeV2 {_range} {_mode}",
            lambda x, g=_range, m=_mode, a=_axis: raw.QuantizeAndDequantizeV2(
                input=x,
                input_min=-1.0 if a < 0 else [-1.0, -2.0, 0.0, -0.5],
                input_max=1.5 if a < 0 else [1.0, 0.5, 1.0, 3.0],
                range_given=g,
                round_mode=m,
                axis=a,
            ),
            x=IMAGE,
        )
op(
    "QuantizeAndDequantizeV3",
    lambda x: raw.QuantizeAndDequantizeV3(input=x, input_min=0.0, input_max=1.5, num_bits=6, signed_input=False),
    x=IMAGE,
)
op(
    "QuantizeAndDequantizeV4",
    lambda x: raw.QuantizeAndDequantizeV4(input=x, input_min=-1.0, input_max=1.5, narrow_range=True),
    x=IMAGE,
)
op("ResizeArea", lambda x: raw.ResizeArea(images=x, size=(3, 5)), x=IMAGE)
op(
    "ExtractImagePatches",
    lambda x: tf.image.extract_patches(x, (1, 3, 2, 1), (1, 2, 1, 1), (1, 1, 2, 1), "SAME"),
    x=IMAGE,
)
op("AdjustContrastv2", lambda x: tf.image.adjust_contrast(x, 1.7), x=f(2, 5, 6, 3))
op("AdjustSaturation", lambda x: tf.image.adjust_saturation(x, 0.4), x=np.abs(f(2, 5, 6, 3)))
op(
    "CropAndResize open",
    lambda x, z: tf.image.crop_and_resize(x, [[0.1, 0.2, 0.9, 1.1]], [1], z),
    {"x": (None, None, None, 4)},
    x=IMAGE,
    z=np.array([3, 1], np.int32),
)

# -- spectra
op("RFFT", lambda x: tf.abs(tf.signal.rfft(x, [12])), x=f(2, 10))
op("RFFT2D", lambda x: tf.math.imag(tf.signal.rfft2d(x)), x=f(2, 4, 10))
op("Angle", lambda x, y: tf.math.angle(tf.complex(x, y)), x=f(2, 10), y=f(2, 10))
op("IRFFT", lambda x: tf.signal.irfft(tf.signal.rfft(x), [9]), x=f(2, 10))
op("IRFFT2D", lambda x: tf.signal.irfft2d(tf.signal.rfft2d(x)), x=f(2, 4, 10))
op("FFT", lambda x, y: tf.math.real(tf.signal.fft(tf.complex(x, y))), x=f(2, 10), y=f(2, 10))
op("IFFT2D", lambda x, y: tf.math.imag(tf.signal.ifft2d(tf.math.conj(tf.complex(x, y)))), x=f(2, 4, 10), y=f(2, 4, 10))
op("stft", lambda x: tf.abs(tf.signal.stft(x, 16, 8)), x=f(2, 100))

# -- numbers of results known only at run time
op("Unique", lambda x: raw.Unique(x=x), x=np.array([3, 1, 3, 2, 1], np.int32))
op("UniqueWithCounts", lambda x: raw.UniqueWithCounts(x=x), x=np.array([3, 1, 3, 2, 1], np.float32))
BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]],
    np.float32,
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3], np.float32)
op(
    "NonMaxSuppressionV2",
    lambda b, s: raw.NonMaxSuppressionV2(boxes=b, scores=s, max_output_size=3, iou_threshold=0.5),
    b=BOXES,
    s=SCORES,
)
op("NonMaxSuppressionV3", lambda b, s: tf.image.non_max_suppression(b, s, 4, 0.5, 0.4), b=BOXES, s=SCORES)
op(
    "NonMaxSuppressionV4",
    lambda b, s: raw.NonMaxSuppressionV4(
        boxes=b, scores=s, max_output_size=5, iou_threshold=0.5, score_threshold=0.4, pad_to_max_output_size=True
    ),
    b=BOXES,
    s=SCORES,
)
op(
    "NonMaxSuppressionV5",
    lambda b, s: raw.NonMaxSuppressionV5(
        boxes=b, scores=s, max_output_size=5, iou_threshold=0.5, score_threshold=0.4, soft_nms_sigma=0.0
    ),
    b=BOXES,
    s=SCORES,
)
op("DynamicPartition", lambda x, k: tf.dynamic_partition(x, k, 2), x=f(5, 2), k=np.array([0, 1, 1, 0, 1], np.int32))
op(
    "DynamicStitch",
    lambda x: tf.dynamic_stitch([[0, 2], [[3, 1], [2, 4]]], [x[:2], tf.reshape(x[2:], (2, 2, 3))]),
    x=f(6, 3),
)
op("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros(0, np.float32)), x=i(0, 7, 9))
op("DenseBincount weights", lambda x, w: raw.DenseBincount(input=x, size=5, weights=w), x=i(0, 7, 9), w=f(9))
op("Bincount", lambda x: raw.Bincount(arr=x, size=5, weights=np.zeros(0, np.int32)), x=i(0, 7, 9))
op("Roll at run time", lambda x, k: tf.roll(x, k, (0, 2)), {"x": (None, 3, 4)}, x=A, k=np.array([1, -3], np.int32))
op("Range floats at run time", lambda x: tf.range(x[0], x[1], 0.25), x=np.array([0.5, 3.1], np.float32))
op("Slice at run time", lambda x, n: tf.slice(x, (0, 1, 0), n), x=A, n=np.array([-1, 2, -1], np.int32))
op("Sum at run time", lambda x, k: tf.reduce_sum(x, k), x=A, k=np.array([1, -1], np.int32))
for _name in ("Sum", "Mean", "SqrtN"):
    op(
        f"SparseSegment{_name}WithNumSegments",
        lambda x, n=_name: getattr(raw, f"SparseSegment{n}WithNumSegments")(
            data=x, indices=[0, 2, 4, 1], segment_ids=[0, 0, 2, 2], num_segments=4
        ),
        x=f(5, 2),
    )
op("LinSpace op", lambda x: raw.LinSpace(start=x[0], stop=x[1], num=5), x=f(2))
op(
    "TensorList push",
    lambda x: raw.TensorListStack(
        input_handle=raw.TensorListPushBack(
            input_handle=raw.EmptyTensorList(element_shape=(3, 4), max_num_elements=4, element_dtype=tf.float32),
            tensor=x[0],
        ),
        element_shape=(3, 4),
        element_dtype=tf.float32,
        num_elements=-1,
    ),
    x=A,
)
LIST = {"element_dtype": tf.float32}
op(
    "TensorList pop",
    lambda x: (
        raw.TensorListPopBack(
            input_handle=raw.TensorListFromTensor(tensor=x, element_shape=(3, 4)), element_shape=(3, 4), **LIST
        ).tensor
    ),
    x=A,
)
op(
    "TensorList gather",
    lambda x: raw.TensorListGather(
        input_handle=raw.TensorListFromTensor(tensor=x, element_shape=(3, 4)),
        indices=[1, 0, 1],
        element_shape=(3, 4),
        **LIST,
    ),
    x=A,
)
op(
    "TensorList concat",
    lambda x: (
        raw.TensorListConcatV2(
            input_handle=raw.TensorListFromTensor(tensor=x, element_shape=(3, 4)),
            element_shape=(3, 4),
            leading_dims=tf.constant([], tf.int64),
            **LIST,
        ).tensor
    ),
    x=A,
)
op(
    "TensorList scatter",
    lambda x: raw.TensorListStack(
        input_handle=raw.TensorListScatterIntoExistingList(
            input_handle=raw.TensorListReserve(element_shape=(3, 4), num_elements=3, **LIST), tensor=x, indices=[2, 0]
        ),
        element_shape=(3, 4),
        num_elements=-1,
        **LIST,
    ),
    x=A,
)
op(
    "TensorList length",
    lambda x: raw.TensorListLength(input_handle=raw.TensorListFromTensor(tensor=x, element_shape=(3, 4))) + 0,
    x=A,
)
op("BiasAdd", lambda x, b: tf.nn.bias_add(x, b), x=IMAGE, b=f(4))
op("BiasAddV1", lambda x, b: raw.BiasAddV1(value=x, bias=b), x=IMAGE, b=f(4))
op(
    "FusedBatchNorm",
    lambda x, s, m: (
        raw.FusedBatchNorm(x=x, scale=s, offset=s, mean=m, variance=s * s + 1, epsilon=0.01, is_training=False).y
    ),
    x=IMAGE,
    s=f(4),
    m=f(4),
)
op(
    "FusedBatchNormV2",
    lambda x, s, m: raw.FusedBatchNormV2(x=x, scale=s, offset=s, mean=m, variance=s * s + 1, is_training=False).y,
    x=IMAGE,
    s=f(4),
    m=f(4),
)
op(
    "FusedBatchNormV3",
    lambda x, s, m: raw.FusedBatchNormV3(x=x, scale=s, offset=s, mean=m, variance=s * s + 1, is_training=False).y,
    x=IMAGE,
    s=f(4),
    m=f(4),
)
op(
    "FusedBatchNormV3 training",
    lambda x, s: raw.FusedBatchNormV3(x=x, scale=s, offset=s, mean=[], variance=[], is_training=True)[:3],
    x=IMAGE,
    s=f(4),
)
op("LRN", lambda x: tf.nn.lrn(x, 2, 1.0, 0.3, 0.6), x=f(1, 3, 2, 9))
op("MatMul", lambda x, y: tf.matmul(x, y, transpose_b=True), x=f(3, 4), y=f(5, 4))
op("BatchMatMulV2", lambda x, y: tf.matmul(x, y, transpose_a=True), x=f(2, 4, 3), y=f(1, 4, 5))
op("BatchMatMul", lambda x, y: raw.BatchMatMul(x=x, y=y, adj_y=True), x=f(2, 3, 4), y=f(2, 5, 4))
op(
    "BatchMatMulV3",
    lambda x, y: raw.BatchMatMulV3(x=x, y=y, Tout=tf.int32),
    x=i(-9, 9, 2, 3, 4, dtype=np.int8),
    y=i(-9, 9, 2, 4, 5, dtype=np.int8),
)
op("SparseMatMul", lambda x, y: raw.SparseMatMul(a=x, b=y), x=f(3, 4), y=f(4, 5))
op("Einsum", lambda x, y: tf.einsum("bij,bkj->bik", x, y), x=A, y=f(2, 5, 4))
op("Cross", lambda x, y: tf.linalg.cross(x, y), x=f(4, 3), y=f(4, 3))
op(
    "SoftmaxCrossEntropyWithLogits",
    lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x),
    x=f(3, 4),
    y=np.abs(f(3, 4)),
)
op(
    "SparseSoftmaxCrossEntropyWithLogits",
    lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
    x=f(3, 4),
    y=i(0, 4, 3),
)
for _half, _align in ((False, False), (True, False), (False, True)):
    for _name in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"):
        for _size in ((9, 13), (3, 5)):
            op(
                f"{_name} {_half} {_align} {_size}",
                lambda x, n=_name, h=_half, a=_align, z=_size: getattr(raw, n)(
                    images=x, size=z, half_pixel_centers=h, align_corners=a
                ),
                x=IMAGE,
            )
op(
    "CropAndResize",
    lambda x: tf.image.crop_and_resize(
        x, [[0.1, 0.2, 0.9, 1.1], [0.5, 0.0, 0.2, 0.7]], [1, 0], (3, 4), "bilinear", -2.0
    ),
    x=IMAGE,
)
op(
    "CropAndResize nearest",
    lambda x: tf.image.crop_and_resize(x, [[0.1, 0.2, 0.9, 1.1], [0.5, 0.0, 0.2, 0.7]], [1, 0], (3, 4), "nearest"),
    x=IMAGE,
)

# -- SavedModels ------------------------------------------------------------------------------------------------------
MODELS: dict[str, Case] = {}


class Net(tf.Module):
    """Functions inside of functions, and variables of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(f(3, 3, 4, 6), name="w")
        self.b = tf.Variable(f(6), name="b")
        self.dense = tf.Variable(f(6, 3), name="dense")
        self.k = tf.Variable(np.array([True]), name="k")
        self.steps = tf.Variable(0, name="steps")

    @tf.function
    def features(self, x: Any) -> Any:
        return tf.nn.relu(tf.nn.conv2d(x, self.w, 2, "SAME") + self.b)

    @tf.function
    def call(self, x: Any) -> Any:
        y = tf.reduce_mean(self.features(x), (1, 2)) @ self.dense
        return {"scores": tf.nn.softmax(y), "sizes": tf.shape(x)[:1]}


def model(name: str, make: Callable[[], Any], specs: dict[str, Any], **inputs: Any) -> None:
    MODELS[name] = (make, inputs, specs)


def functional(function: Callable[..., Any]) -> Callable[[], Any]:
    """A module whose only method is a function."""

    def make() -> Any:
        module = tf.Module()
        module.call = tf.function(function)
        return module

    return make


model("net", Net, {"x": (None, 8, 8, 4)}, x=f(2, 8, 8, 4))
model(
    "while",
    functional(
        lambda x: {
            "y": tf.while_loop(
                lambda k, v: k < tf.shape(x)[0], lambda k, v: (k + 1, v * 1.5 + x[k]), (0, tf.zeros((3,)))
            )[1]
        }
    ),
    {"x": (None, 3)},
    x=f(5, 3),
)
model(
    "if",
    functional(lambda x: {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: tf.sqrt(tf.abs(x)) + 1)}),
    {"x": (None, 3)},
    x=f(5, 3),
)
model(
    "if of other sizes",
    functional(lambda x: {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: x[:2] * 2, lambda: x)}),
    {"x": (None, 3)},
    x=f(5, 3),
)
model("map", functional(lambda x: {"y": tf.map_fn(lambda row: tf.cumsum(row) * 2, x)}), {"x": (None, 3)}, x=f(5, 3))
model(
    "scan",
    functional(lambda x: {"y": tf.scan(lambda a, row: a * 0.5 + row, x, initializer=tf.zeros((3,)))}),
    {"x": (None, 3)},
    x=f(5, 3),
)
model(
    "switch_case",
    functional(lambda x: {"y": tf.switch_case(tf.constant(1), [lambda: x, lambda: x * 2])}),
    {"x": (None, 3)},
    x=f(5, 3),
)


class Tables(tf.Module):
    """Rows of a variable, and one that a loop reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(f(7, 3), name="rows")
        self.scale = tf.Variable(f(3), name="scale")

    @tf.function
    def call(self, k: Any) -> Any:
        found = tf.nn.embedding_lookup(self.rows, k)
        y = tf.while_loop(
            lambda n, v: n < tf.shape(k)[0], lambda n, v: (n + 1, v * self.scale + self.rows[n]), (0, found[0])
        )[1]
        return {"found": found, "y": y, "sizes": raw.VariableShape(input=self.rows.handle)}


model("tables", Tables, {"k": (None,)}, k=i(0, 7, 4))


class Counter(tf.Module):
    """A variable that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.total = tf.Variable(np.array([1, 2, 3], np.float32), name="total")

    @tf.function
    def call(self, x: Any) -> Any:
        before = self.total.read_value()
        self.total.assign_add(x)
        return {"before": before, "after": self.total.read_value() * 2}


model("counter", Counter, {"x": (3,)}, x=f(3))


class Lstm(tf.Module):
    """A recurrent layer as Keras writes it: lists of tensors in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u, self.b = tf.Variable(f(3, 16)), tf.Variable(f(4, 16)), tf.Variable(f(16))

    @tf.function
    def call(self, x: Any) -> Any:
        items = tf.TensorArray(tf.float32, tf.shape(x)[1]).unstack(tf.transpose(x, (1, 0, 2)))
        found = tf.TensorArray(tf.float32, tf.shape(x)[1])
        zero = tf.zeros((tf.shape(x)[0], 4))

        def step(k: Any, h: Any, c: Any, found: Any) -> Any:
            i, f, g, o = tf.split(items.read(k) @ self.w + h @ self.u + self.b, 4, 1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return k + 1, h, c, found.write(k, h)

        _, h, _, found = tf.while_loop(lambda k, *_: k < tf.shape(x)[1], step, (0, zero, zero, found))
        return {"y": tf.transpose(found.stack(), (1, 0, 2)), "h": h}


model("lstm", Lstm, {"x": (None, None, 3)}, x=f(2, 5, 3))


# -- strings ----------------------------------------------------------------------------------------------------------

WORDS = np.array([["warp", "Weft É"], ["", "LOOM 1"]])
op("StringLower", lambda x: (tf.strings.lower(x), tf.strings.lower(x, "utf-8")), x=WORDS)
op("StringUpper", lambda x: (tf.strings.upper(x), tf.strings.upper(x, "utf-8")), x=WORDS)
op("StringJoin", lambda x, y: (tf.strings.join([x, y, "!"], "-"), tf.strings.join([x, y])), x=WORDS, y=WORDS[::-1])
op("StaticRegexFullMatch", lambda x: tf.strings.regex_full_match(x, "[A-Z]+ [0-9]"), x=WORDS)
op("RegexFullMatch", lambda x: raw.RegexFullMatch(input=x, pattern="w.*"), x=WORDS)
op("StringToNumber", lambda x: (tf.strings.to_number(x), tf.strings.to_number(x, tf.int64)), x=np.array(["12", "-3"]))
op("AsString int", lambda x: (tf.strings.as_string(x), tf.strings.as_string(x, width=5, fill="0")), x=i(-99, 99, 4))
op(
    "AsString float",
    lambda x: (
        tf.strings.as_string(x),
        tf.strings.as_string(x, precision=2),
        tf.strings.as_string(x, scientific=True),
        tf.strings.as_string(x, shortest=True),
    ),
    x=f(4),
)
op("Equal string", lambda x, y: (tf.equal(x, y), tf.not_equal(x, "warp")), x=WORDS, y=WORDS[::-1])
op(
    "moved strings",
    lambda x, y: (
        tf.concat([x, y, [["a", "b"]]], 0)[1:, ::-1],
        tf.stack([x, y], 1),
        tf.gather(x, [1, 1, 0]),
        tf.where(x == "", y, x),
        tf.transpose(x),
        tf.fill((2,), y[0, 0]),
        tf.tensor_scatter_nd_update(x, [[0]], y[1:]),
    ),
    x=WORDS,
    y=WORDS[::-1],
)

# -- diagonals, ragged and sparse tensors ------------------------------------------------------------------------------

for _align in ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"):
    op(
        f"MatrixDiagPartV3 {_align}",
        lambda x, a=_align: (
            raw.MatrixDiagPartV3(input=x, k=(-2, 1), padding_value=-7.0, align=a),
            raw.MatrixDiagPartV3(input=x, k=2, padding_value=-7.0, align=a),
        ),
        x=f(2, 4, 5),
    )
    op(
        f"MatrixDiagV3 {_align}",
        lambda x, a=_align: (
            raw.MatrixDiagV3(diagonal=x, k=(-1, 1), num_rows=-1, num_cols=-1, padding_value=9.0, align=a),
            raw.MatrixDiagV3(diagonal=x, k=(-2, 0), num_rows=5, num_cols=3, padding_value=9.0, align=a),
        ),
        x=f(2, 3, 3),
    )
    op(
        f"MatrixSetDiagV3 {_align}",
        lambda x, y, a=_align: raw.MatrixSetDiagV3(input=x, diagonal=y, k=(-1, 1), align=a),
        x=f(2, 4, 5),
        y=f(2, 3, 4),
    )
op(
    "diagonals of the run",
    lambda x, k: (
        raw.MatrixDiagPartV3(input=x, k=k, padding_value=0.0),
        raw.MatrixDiagV3(diagonal=x[:, 0], k=k, num_rows=-1, num_cols=-1, padding_value=0.0),
    ),
    x=f(2, 4, 5),
    k=np.array([-2], np.int32),
)
op(
    "band of the run",
    lambda x, k: raw.MatrixDiagPartV3(input=x, k=k, padding_value=0.0),
    x=f(2, 4, 5),
    k=np.array([-2, 1], np.int32),
)
op("ExpandDims of the run", lambda x, k: tf.expand_dims(x, k), x=f(3, 4), k=np.array([-2], np.int32))
op(
    "DenseBincount rows",
    lambda x, y: (
        tf.math.bincount(x, axis=-1),
        tf.math.bincount(x, axis=-1, binary_output=True),
        tf.math.bincount(x, y, axis=-1, maxlength=5, minlength=5),
    ),
    x=i(0, 9, 3, 6),
    y=f(3, 6),
)
op(
    "AdjustHue",
    lambda x: (tf.image.adjust_hue(x, 0.3), tf.image.adjust_hue(x, -0.7)),
    x=np.concatenate([np.abs(f(2, 3, 4, 3)), np.ones((2, 3, 1, 3), np.float32)], 2),
)
op(
    "RaggedRange",
    lambda x, y, z: (
        *tf.nest.flatten(raw.RaggedRange(starts=x, limits=y, deltas=z)),
        *raw.RaggedRange(starts=x, limits=9, deltas=2),
    ),
    x=np.array([0, 5, 8, 3], np.int32),
    y=np.array([7, 5, 0, 4], np.int32),
    z=np.array([3, 1, -3, 5], np.int32),
)
op(
    "RaggedRange float",
    lambda x, y: tuple(raw.RaggedRange(starts=x, limits=y, deltas=0.75)),
    x=np.array([0, 5, -8], np.float32),
    y=np.array([7, 5, -6], np.float32),
)
SPLITS, ITEMS = np.array([0, 3, 3, 5, 9, 10], np.int64), f(10)
op(
    "RaggedGather",
    lambda s, x, k: tuple(
        tf.nest.flatten(
            raw.RaggedGather(params_nested_splits=[s], params_dense_values=x, indices=k, OUTPUT_RAGGED_RANK=1)
        )
    ),
    s=SPLITS,
    x=ITEMS,
    k=i(0, 5, 7),
)
op(
    "RaggedTensorToTensor",
    lambda s, x: (
        tf.RaggedTensor.from_row_splits(x, s, validate=False).to_tensor(7.0),
        tf.RaggedTensor.from_row_splits(x, s, validate=False).to_tensor(shape=(4, 2)),
        tf.RaggedTensor.from_row_splits(x, s, validate=False).to_tensor(shape=(None, 6)),
    ),
    s=SPLITS,
    x=ITEMS,
)
op(
    "RaggedTensorToTensor nested",
    lambda s, t, x: tf.RaggedTensor.from_nested_row_splits(x, [s, t], validate=False).to_tensor(),
    s=np.array([0, 1, 1, 5], np.int64),
    t=SPLITS,
    x=f(10, 2),
)
op(
    "RaggedTensorToTensor of rows",
    lambda s, x: tf.RaggedTensor.from_value_rowids(x, s, 5, validate=False).to_tensor(),
    s=np.array([0, 0, 2, 2, 2, 4], np.int64),
    x=f(6),
)
op(
    "RaggedTensorToSparse",
    lambda s, t, x: tuple(raw.RaggedTensorToSparse(rt_nested_splits=[s, t], rt_dense_values=x)),
    s=np.array([0, 1, 1, 5], np.int64),
    t=SPLITS,
    x=ITEMS,
)
for _kind in ("a-b", "b-a", "intersection", "union"):
    op(
        f"DenseToDenseSetOperation {_kind}",
        lambda x, y, k=_kind: tuple(raw.DenseToDenseSetOperation(set1=x, set2=y, set_operation=k)),
        x=i(0, 9, 3, 6),
        y=i(0, 9, 3, 5),
    )
op(
    "CTCGreedyDecoder",
    lambda x, n: tuple(
        tf.nest.flatten(
            (
                raw.CTCGreedyDecoder(inputs=x, sequence_length=n),
                raw.CTCGreedyDecoder(inputs=x, sequence_length=n, merge_repeated=True),
                raw.CTCGreedyDecoder(inputs=x, sequence_length=n, merge_repeated=True, blank_index=0),
            )
        )
    ),
    x=f(9, 3, 3),
    n=np.array([9, 4, 0], np.int32),
)
op(
    "SparseReshape",
    lambda x, s: tuple(raw.SparseReshape(input_indices=x, input_shape=s, new_shape=(2, -1, 3))),
    x=np.array([[0, 1], [1, 5], [2, 0]], np.int64),
    s=np.array([3, 6], np.int64),
)
op(
    "SparseFillEmptyRows",
    lambda x, v: tuple(raw.SparseFillEmptyRows(indices=x, values=v, dense_shape=(5, 3), default_value=-1.0)),
    x=np.array([[1, 0], [1, 2], [3, 1]], np.int64),
    v=f(3),
)
CORNERS = np.sort(R.random((2, 12, 2, 2)).astype(np.float32), 2).reshape(2, 12, 1, 4) * 1.4 - 0.2
op(
    "CombinedNonMaxSuppression",
    lambda x, s: tuple(tf.image.combined_non_max_suppression(x, s, 3, 7, 0.4, 0.3)),
    x=CORNERS,
    s=R.random((2, 12, 3)).astype(np.float32),
)
op(
    "CombinedNonMaxSuppression of classes",
    lambda x, s: tuple(
        tf.image.combined_non_max_suppression(x, s, 4, 50, 0.4, 0.6, pad_per_class=True, clip_boxes=False)
    ),
    x=np.concatenate([CORNERS, CORNERS[:, ::-1], CORNERS * 0.9], 2),
    s=R.random((2, 12, 3)).astype(np.float32),
)

# -- tables -----------------------------------------------------------------------------------------------------------


class Vocabulary(tf.Module):
    """Tables of constants and of a file, which the model fills when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        file = Path(tempfile.mkdtemp()) / "words.txt"
        file.write_text("warp\t3\nweft É\t5\nloom\t-2\n")
        self.file = tf.saved_model.Asset(str(file))
        words, numbers = tf.constant(["loom", "warp", ""]), tf.constant([7, 1 << 40, -3], tf.int64)
        table, filled = tf.lookup.StaticHashTable, tf.lookup.KeyValueTensorInitializer
        of_file = tf.lookup.TextFileInitializer
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        self.numbers = table(filled(words, numbers), -1)
        self.words = table(filled(numbers, words), "none")
        self.dense = table(filled(tf.constant([2, 5, 3], tf.int64), tf.constant([0.5, 1.5, 2.5])), -1.0)
        self.columns = table(of_file(self.file, tf.string, 0, tf.int64, 1), -1)
        self.lines = table(of_file(self.file, tf.int64, number, tf.string, line), "none")

    @tf.function
    def call(self, x: Any, k: Any) -> Any:
        return {
            "numbers": self.numbers.lookup(x), "words": self.words.lookup(k), "dense": self.dense.lookup(k),
            "columns": self.columns.lookup(x), "lines": self.lines.lookup(k), "size": self.lines.size(),
        }  # fmt: skip


model(
    "vocabulary",
    Vocabulary,
    {"x": (None,), "k": (None, 2)},
    x=np.array(["warp", "loom", "weft É", "", "x"]),
    k=np.array([[0, 2], [5, 7], [1 << 40, -3]], np.int64),
)


# -- writing ----------------------------------------------------------------------------------------------------------


def specs(inputs: dict[str, Any], shapes: dict[str, Any]) -> list[Any]:
    return [T(shapes.get(n, a.shape), tf.as_dtype(a.dtype), name=n) for n, a in inputs.items()]


def texts(array: Any) -> Any:
    return np.array([t.decode() for t in array.reshape(-1)], str).reshape(array.shape)


def arrays(given: dict[str, Any]) -> bytes:
    """Arrays as a file; strings as texts, which need no pickle."""
    sink = io.BytesIO()
    np.savez(sink, **{n: texts(np.asarray(a)) if np.asarray(a).dtype == object else a for n, a in given.items()})
    return sink.getvalue()


def frozen(
    function: Callable[..., Any], inputs: dict[str, Any], shapes: dict[str, Any]
) -> tuple[bytes, list[str], list[Any]]:
    concrete = tf.function(function).get_concrete_function(*specs(inputs, shapes))
    found = tf.nest.flatten(concrete(*map(tf.constant, inputs.values())))

    fixed = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    graph = fixed.graph.as_graph_def()
    return (
        graph.SerializeToString(deterministic=True),
        [t.name.removesuffix(":0") for t in fixed.outputs],
        [t.numpy() for t in found],
    )


def first_version(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """A SavedModel as TensorFlow 1 wrote it: variables that are references, restored by Assign."""
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        x = v1.placeholder(tf.float32, (None, 3), "x")
        w = v1.get_variable("w", initializer=f(3, 4), use_resource=False)
        b = v1.get_variable("b", initializer=f(4), use_resource=True)
        steps = v1.get_variable("steps", initializer=np.float32(3), use_resource=False)
        y = v1.nn.relu(x @ w + b) * v1.assign_add(steps, 1.0)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder), {"x": x}, {"y": y})
        return {"y": session.run(y, {x: inputs["x"]})}


def main() -> None:
    path = Path(__file__).with_name("fixtures.zip")
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (function, inputs, shapes) in OPERATORS.items():
            k = len(listed)
            graph, outputs, found = frozen(function, inputs, shapes)
            archive.writestr(f"{k}/graph.pb", graph)
            archive.writestr(f"{k}/inputs.npz", arrays(inputs))
            archive.writestr(f"{k}/outputs.npz", arrays(dict(zip(outputs, found))))
            listed.append({"name": name, "kind": "graph", "outputs": outputs})
        for name, (make, inputs, shapes) in MODELS.items():
            k = len(listed)
            module = make()
            concrete = module.call.get_concrete_function(*specs(inputs, shapes))
            folder = Path(tempfile.mkdtemp())
            tf.saved_model.save(module, str(folder), concrete)
            found = {n: v.numpy() for n, v in module.call(*map(tf.constant, inputs.values())).items()}
            for file in sorted(folder.rglob("*")):
                if file.is_file() and file.name != "fingerprint.pb":
                    archive.write(file, f"{k}/{file.relative_to(folder)}")
            shutil.rmtree(folder)
            archive.writestr(f"{k}/inputs.npz", arrays(inputs))
            archive.writestr(f"{k}/outputs.npz", arrays(found))
            listed.append({"name": name, "kind": "model"})
        inputs, folder = {"x": f(2, 3)}, Path(tempfile.mkdtemp()) / "model"
        found = first_version(folder, inputs)
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{len(listed)}/{file.relative_to(folder)}")
        shutil.rmtree(folder)
        archive.writestr(f"{len(listed)}/inputs.npz", arrays(inputs))
        archive.writestr(f"{len(listed)}/outputs.npz", arrays(found))
        listed.append({"name": "first version", "kind": "model"})
        archive.writestr("cases.json", json.dumps(listed))
    print(f"{len(listed)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
