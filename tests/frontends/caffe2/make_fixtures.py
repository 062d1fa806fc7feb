"""Makes fixtures.zip: networks, inputs and what Caffe2 answers. Runs under Python 3.8, whose PyTorch has Caffe2:
`pip install torch==1.8.1 "numpy<1.24" "protobuf<3.21" future six`:

    python tests/frontends/caffe2/make_fixtures.py
"""

# ruff: noqa: E501, SIM905, UP031 - tables, and Python 3.8

import io
import json
import os
import zipfile

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import core, workspace

R = np.random.RandomState(5)
X = (2, 4, 6, 7)
CASES = {}


def r(*shape):
    return R.randn(*shape).astype(np.float32)


def case(name, kind, x=X, weights=(), more=(), outputs=1, **arguments):
    """One operator on x, on further inputs of the shapes `more`, and on weights."""
    inputs = {"x": x if isinstance(x, np.ndarray) else r(*x)}
    inputs.update({"x%d" % k: s if isinstance(s, np.ndarray) else r(*s) for k, s in enumerate(more, 1)})
    names = [*inputs, *("w%d" % k for k in range(len(weights)))]
    op = core.CreateOperator(kind, names, ["y"] + ["y%d" % k for k in range(1, outputs)], **arguments)
    CASES[name] = [op], inputs, {"w%d" % k: w for k, w in enumerate(weights)}, ["y"]


for _kind in "Abs Ceil Cos Cosh Erf Exp Floor Negative Relu Sigmoid Sign Sin Sinh Softplus Softsign Swish Tan Tanh Sqr Cube Atan Copy StopGradient".split():
    case(_kind, _kind, x=(3, 5))
for _kind in "Log Sqrt Rsqrt Reciprocal".split():
    case(_kind, _kind, x=abs(r(3, 5)) + 0.1)
for _kind in "Acos Asin".split():
    case(_kind, _kind, x=np.tanh(r(3, 5)))
for _kind in "Add Sub Mul Div LT LE GT GE EQ NE".split():
    case(_kind, _kind, more=[np.sign(r(*X)) + 0.5 if _kind in ("EQ", "NE") else r(*X)])
    case(_kind + " numpy", _kind, more=[r(6, 1)])
    case(_kind + " along", _kind, more=[r(4)], broadcast=1, axis=1)
    case(_kind + " end", _kind, more=[r(6, 7)], broadcast=1)
for _kind in "And Or Xor".split():
    case(_kind, _kind, x=r(3, 5) > 0, more=[r(3, 5) > 0])
case("Not", "Not", x=r(3, 5) > 0)
case("Where", "Where", x=r(3, 5) > 0, more=[(3, 5), (3, 5)])
for _kind in "Sum Max Min Mean".split():
    case(_kind, _kind, more=[X, X])
case("Pow", "Pow", x=abs(r(3, 5)), exponent=2.5)
case("Pow blob", "Pow", x=abs(r(3, 5)), more=[(5,)], broadcast=1)
case("Scale", "Scale", scale=0.25)
case("LeakyRelu", "LeakyRelu", alpha=0.2)
case("LeakyRelu default", "LeakyRelu")
case("Elu", "Elu", alpha=0.7)
case("Selu", "Selu")
case("HardSigmoid", "HardSigmoid", alpha=0.3, beta=0.4)
case("Gelu", "Gelu")
case("Gelu fast", "Gelu", fast_gelu=True)
case("Clip", "Clip", min=-0.5, max=0.75)
case("Clip above", "Clip", max=0.75)
case("PRelu", "PRelu", weights=[r(4)])
case("PRelu one", "PRelu", weights=[r(1)])
case("PRelu last", "PRelu", weights=[r(7)], order="NHWC")
case("Cast", "Cast", x=r(3, 5) * 3, to=core.DataType.INT32)
case("Cast named", "Cast", x=np.arange(6, dtype=np.int64), to="float")
case("Dropout", "Dropout", is_test=1, ratio=0.3, outputs=2)
case("Concat", "Concat", more=[(2, 3, 6, 7)], outputs=2)
case("Concat axis", "Concat", more=[(2, 4, 6, 2)], outputs=2, axis=-1)
case("Concat last", "Concat", more=[(2, 4, 6, 2)], outputs=2, order="NHWC")
case("Concat new axis", "Concat", more=[X], outputs=2, axis=2, add_axis=1)
case("Slice", "Slice", starts=[0, 1, 0, 0], ends=[-1, 3, -1, -1])
case("Slice end", "Slice", x=(5, 6), starts=[0, -4], ends=[-1, -2])
case("Reshape", "Reshape", shape=[0, -1, 7], outputs=2)
case("Flatten", "Flatten")
case("Flatten axis", "Flatten", axis=3)
case("FlattenToVec", "FlattenToVec")
case("Transpose", "Transpose", axes=[0, 2, 3, 1])
case("Transpose reversed", "Transpose")
case("NCHW2NHWC", "NCHW2NHWC")
case("NHWC2NCHW", "NHWC2NCHW")
case("ExpandDims", "ExpandDims", dims=[0, 2])
case("Squeeze", "Squeeze", x=(1, 3, 1, 5), dims=[0, 2])
case("Shape", "Shape")
case("Tile", "Tile", tiles=3, axis=2)
case("Gather", "Gather", x=(6, 3), more=[np.array([[5, 0], [2, 2]], np.int64)])
case("Gather axis", "Gather", x=(3, 6), more=[np.array([5, 1], np.int32)], axis=1)
case("BatchGather", "BatchGather", x=(3, 6, 2), more=[np.array([5, 1], np.int32)])
case("ChannelShuffle", "ChannelShuffle", group=2)
case("ChannelShuffle last", "ChannelShuffle", x=(2, 5, 6, 6), group=3, order="NHWC")
case("ResizeNearest", "ResizeNearest", width_scale=2.0, height_scale=1.5)
case("ResizeNearest less", "ResizeNearest", width_scale=0.5, height_scale=0.7)
case("UpsampleBilinear", "UpsampleBilinear", width_scale=2.0, height_scale=3.0)
case("PadImage", "PadImage", pad_t=1, pad_l=2, pad_b=0, pad_r=3, value=0.5)
case("PadImage reflect", "PadImage", pad=2, mode="reflect")
case("PadImage edge", "PadImage", pad=2, mode="edge", order="NHWC")
for _kind in "Sum Mean Max Min L1 L2".split():
    case("Reduce" + _kind, "Reduce" + _kind, axes=[1, 3])
    case("Reduce all " + _kind, "Reduce" + _kind, keepdims=0)
for _kind in "Sum Mean Max".split():
    case("ReduceFront" + _kind, "ReduceFront" + _kind, num_reduce_dim=2)
    case("ReduceBack" + _kind, "ReduceBack" + _kind)
case("SumElements", "SumElements")
case("SumElements average", "SumElements", average=1)
case("SumSqrElements", "SumSqrElements")
case("ArgMax", "ArgMax")
case("ArgMin", "ArgMin", axis=1, keepdims=0)
case("Softmax", "Softmax")
case("Softmax axis", "Softmax", axis=3)
case("SpatialBN", "SpatialBN", weights=[r(4), r(4), r(4), abs(r(4)) + 0.5], is_test=1, epsilon=1e-3, momentum=0.9)
case("SpatialBN last", "SpatialBN", weights=[r(7), r(7), r(7), abs(r(7)) + 0.5], is_test=1, order="NHWC")
case("LRN", "LRN", outputs=2, size=3, alpha=0.1, beta=0.75, bias=2.0)
case("LRN last", "LRN", outputs=2, size=5, alpha=0.1, beta=0.5, order="NHWC")
case("InstanceNorm", "InstanceNorm", weights=[r(4), r(4)], epsilon=1e-3)
case("GroupNorm", "GroupNorm", weights=[r(4), r(4)], outputs=3, group=2)
case("LayerNorm", "LayerNorm", outputs=3, axis=2)
case("LayerNorm factors", "LayerNorm", x=(3, 4, 5), weights=[r(4, 5), r(4, 5)], outputs=3, elementwise_affine=True)
case("Normalize", "Normalize", axis=1)
case("Normalize end", "Normalize")
case("AffineChannel", "AffineChannel", weights=[r(4), r(4)])
case("AffineChannel last", "AffineChannel", weights=[r(7), r(7)], order="NHWC")
case("NormalizePlanarYUV", "NormalizePlanarYUV", x=(2, 3, 4, 5), weights=[r(2, 3), abs(r(2, 3)) + 1])
case("Conv", "Conv", weights=[r(6, 4, 3, 3), r(6)], kernel=3, pad=1, stride=2)
case("Conv no bias", "Conv", weights=[r(6, 4, 3, 2)], kernel_h=3, kernel_w=2, stride_h=2, stride_w=1)
case(
    "Conv lists",
    "Conv",
    weights=[r(6, 2, 3, 2), r(6)],
    kernels=[3, 2],
    strides=[1, 2],
    pads=[1, 0, 2, 1],
    dilations=[2, 1],
    group=2,
)
case("Conv sides", "Conv", weights=[r(6, 4, 3, 3), r(6)], kernel=3, pad_t=1, pad_l=0, pad_b=2, pad_r=1)
case("Conv last", "Conv", x=(2, 6, 7, 4), weights=[r(6, 3, 3, 4), r(6)], kernel=3, pad=1, order="NHWC")
case("Conv same", "Conv", weights=[r(6, 4, 3, 3), r(6)], kernel=3, stride=2, legacy_pad=2)
case("Conv valid", "Conv", weights=[r(6, 4, 3, 3), r(6)], kernel=3, stride=2, legacy_pad=1)
case("Conv 1", "Conv", x=(2, 4, 9), weights=[r(6, 4, 3), r(6)], kernels=[3], pads=[1, 0])
case("Conv 3", "Conv", x=(1, 2, 4, 5, 3), weights=[r(3, 2, 2, 2, 2), r(3)], kernels=[2, 2, 2])
case("ConvTranspose", "ConvTranspose", weights=[r(4, 3, 4, 4), r(3)], kernel=4, stride=2, pad=1)
case("ConvTranspose groups", "ConvTranspose", weights=[r(4, 3, 3, 3), r(6)], kernel=3, stride=2, group=2, adj=1)
case(
    "ConvTranspose last",
    "ConvTranspose",
    x=(2, 5, 6, 4),
    weights=[r(4, 3, 3, 3), r(3)],
    kernel=3,
    stride=2,
    order="NHWC",
)
for _kind in "Max Average".split():
    case(_kind + "Pool", _kind + "Pool", kernel=3, stride=2, pad=1)
    case(_kind + "Pool lists", _kind + "Pool", kernels=[3, 2], strides=[1, 2], pads=[1, 0, 2, 1])
    case(_kind + "Pool global", _kind + "Pool", global_pooling=1)
    case(_kind + "Pool last", _kind + "Pool", kernel=2, stride=2, order="NHWC")
    case(_kind + "Pool caffe", _kind + "Pool", x=(2, 4, 7, 8), kernel=3, stride=2, legacy_pad=3)
    case(_kind + "Pool caffe padded", _kind + "Pool", x=(2, 4, 7, 8), kernel=3, stride=2, pad=1, legacy_pad=3)
    case(_kind + "Pool 1", _kind + "Pool", x=(2, 4, 9), kernels=[3], strides=[2])
    case(_kind + "Pool 3", _kind + "Pool", x=(1, 2, 5, 5, 4), kernels=[2, 3, 2], strides=[1, 2, 1])
    case(_kind + "Pool2D", _kind + "Pool2D", kernel=2)
case("AveragePool pads too", "AveragePool", kernel=3, stride=2, pad=1, count_include_pad=1)
case("FC", "FC", x=(3, 5), weights=[r(4, 5), r(4)])
case("FC rows", "FC", x=(3, 2, 5), weights=[r(4, 10), r(4)])
case("FC axis", "FC", x=(3, 2, 5), weights=[r(4, 5), r(4)], axis=2)
case("FC deep", "FC", x=(3, 2, 5), weights=[r(4, 2, 5), r(4)])
case("FCTransposed", "FCTransposed", x=(3, 5), weights=[r(5, 4), r(4)])
case("MatMul", "MatMul", x=(3, 5), more=[(5, 4)])
case("MatMul turned", "MatMul", x=(5, 3), more=[(4, 5)], trans_a=1, trans_b=1)
case("BatchMatMul", "BatchMatMul", x=(2, 3, 5), more=[(2, 4, 5)], trans_b=1)
case("BatchMatMul broadcast", "BatchMatMul", x=(2, 3, 5), more=[(5, 4)], broadcast=1)
case("ConstantFill", "ConstantFill", value=2.5)
case("ConstantFill dtype", "ConstantFill", value=3, dtype=core.DataType.INT64)
op = core.CreateOperator("Split", ["x"], ["y", "y1"], axis=1)
CASES["Split"] = [op], {"x": r(*X)}, {}, ["y", "y1"]
op = core.CreateOperator("Split", ["x"], ["y", "y1", "y2"], split=[1, 2, 4], order="NHWC")
CASES["Split lengths"] = [op], {"x": r(*X)}, {}, ["y", "y1", "y2"]
ops = [core.CreateOperator("Reshape", ["x", "s"], ["y", "o"])]
CASES["Reshape blob"] = ops, {"x": r(*X)}, {"s": np.array([2, 0, -1], np.int64).clip(-1) + [0, 0, 0]}, ["y"]
ops = [
    core.CreateOperator("Conv", ["data", "conv_w", "conv_b"], ["conv"], kernel=3, pad=1, order="NCHW"),
    core.CreateOperator("SpatialBN", ["conv", "s", "b", "m", "v"], ["bn"], is_test=1, epsilon=1e-5, order="NCHW"),
    core.CreateOperator("Relu", ["bn"], ["bn"]),
    core.CreateOperator("MaxPool", ["bn"], ["pool"], kernel=2, stride=2, order="NCHW", cudnn_exhaustive_search=0),
    core.CreateOperator("Conv", ["pool", "narrow_w", "narrow_b"], ["narrow"], kernel=1),
    core.CreateOperator("Sum", ["pool", "narrow"], ["sum"]),
    core.CreateOperator("FC", ["sum", "fc_w", "fc_b"], ["fc"]),
    core.CreateOperator("Dropout", ["fc"], ["fc", "_mask"], is_test=1, ratio=0.5),
    core.CreateOperator("Softmax", ["fc"], ["softmax"]),
]
weights = {
    "conv_w": r(8, 3, 3, 3),
    "conv_b": r(8),
    "s": r(8),
    "b": r(8),
    "m": r(8),
    "v": abs(r(8)) + 1,
    "narrow_w": r(8, 8, 1, 1) / 3,
    "narrow_b": r(8),
    "fc_w": r(5, 128) / 9,
    "fc_b": r(5),
}
CASES["net"] = ops, {"data": r(2, 3, 8, 8)}, weights, ["softmax"]

FILLS = {
    "float32": "GivenTensorFill",
    "int64": "GivenTensorInt64Fill",
    "int32": "GivenTensorIntFill",
    "bool": "GivenTensorBoolFill",
}


def main(path):
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (ops, inputs, weights, outputs) in CASES.items():
            workspace.ResetWorkspace()
            init, net = caffe2_pb2.NetDef(name="init"), caffe2_pb2.NetDef(name="net")
            net.op.extend(ops)
            net.external_input.extend([*inputs, *weights])
            net.external_output.extend(outputs)
            for key, w in weights.items():
                fill = FILLS[str(w.dtype)]
                init.op.extend([core.CreateOperator(fill, [], [key], shape=w.shape, values=w.flatten().tolist())])
            for key, x in inputs.items():
                workspace.FeedBlob(key, x)
            if weights:
                workspace.RunNetOnce(init)
            try:
                workspace.RunNetOnce(net)
            except RuntimeError as error:
                print("FAILS", name, str(error)[:300])
                continue
            k = len(listed)
            listed.append({"name": name, "weights": bool(weights)})
            archive.writestr("%d/predict_net.pb" % k, net.SerializeToString())
            if weights:
                archive.writestr("%d/init_net.pb" % k, init.SerializeToString())
            for kind, arrays in (("inputs", inputs), ("outputs", {n: workspace.FetchBlob(n) for n in outputs})):
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)
                archive.writestr("%d/%s.npz" % (k, kind), buffer.getvalue())
        archive.writestr("cases.json", json.dumps(listed))
    print(len(listed), "cases")


main(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures.zip"))
