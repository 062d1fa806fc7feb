"""Makes fixtures.zip: symbols, parameters, inputs and what MXNet 1.9.1 answers. Runs under Python 3.11 with
`pip install mxnet==1.9.1 numpy==1.23.5`:

    python tests/frontends/mxnet/make_fixtures.py
"""

# ruff: noqa: E501 - a table

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

S = mx.sym
R = np.random.RandomState(5)
data, other = S.var("data"), S.var("other")
CASES: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {}


def case(name: str, symbol: Any, **shapes: tuple[int, ...]) -> None:
    CASES[name] = symbol, shapes or {"data": (2, 4, 6, 7)}


def chain() -> Any:
    x = S.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name="conv")
    x = S.Activation(S.BatchNorm(x, fix_gamma=False, name="bn"), act_type="relu")
    x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = x + S.Convolution(x, kernel=(1, 1), num_filter=8, name="narrow")
    x = S.Dropout(S.FullyConnected(S.Flatten(x), num_hidden=5, name="fc"))
    return S.SoftmaxOutput(x, S.var("softmax_label"), name="softmax")


case("net", chain(), data=(2, 3, 8, 8))
case(
    "Convolution",
    S.Convolution(data, kernel=(3, 2), stride=(2, 1), pad=(1, 0), dilate=(1, 2), num_filter=6, num_group=2),
)
case("Convolution 1", S.Convolution(data, kernel=(3,), num_filter=6), data=(2, 4, 9))
case("Convolution 3", S.Convolution(data, kernel=(2, 2, 2), num_filter=3), data=(1, 2, 4, 5, 3))
case(
    "Deconvolution",
    S.Deconvolution(data, kernel=(4, 3), stride=(2, 2), pad=(1, 1), adj=(1, 0), num_filter=4, num_group=2),
)
case("Deconvolution bias", S.Deconvolution(data, kernel=(3, 3), num_filter=2, no_bias=False))
case("FullyConnected", S.FullyConnected(data, num_hidden=5))
case("FullyConnected rows", S.FullyConnected(data, num_hidden=5, flatten=False, no_bias=True))
for kind in ("max", "avg", "sum"):
    case(f"Pooling {kind}", S.Pooling(data, kernel=(3, 2), stride=(2, 2), pad=(1, 0), pool_type=kind))
    case(f"Pooling global {kind}", S.Pooling(data, kernel=(1, 1), global_pool=True, pool_type=kind))
case("Pooling full", S.Pooling(data, kernel=(3, 3), stride=(2, 2), pool_type="max", pooling_convention="full"))
case("Pooling full avg", S.Pooling(data, kernel=(3, 3), stride=(2, 2), pool_type="avg", pooling_convention="full"))
case(
    "Pooling inside",
    S.Pooling(data, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False),
)
case("Pooling lp", S.Pooling(data, kernel=(2, 2), pool_type="lp", p_value=2))
case("Pooling 1", S.Pooling(data, kernel=(2,), stride=(2,), pool_type="max"), data=(2, 3, 9))
case("AdaptiveAvgPooling2D", S.contrib.AdaptiveAvgPooling2D(data, output_size=(4, 3)))
case("UpSampling", S.UpSampling(data, scale=3, sample_type="nearest"))
case("BatchNorm", S.BatchNorm(data, eps=0.01))
case("BatchNorm gamma", S.BatchNorm(data, fix_gamma=False, axis=2))
case("InstanceNorm", S.InstanceNorm(data, gamma=S.var("g"), beta=S.var("b")))
case("LayerNorm", S.LayerNorm(data, gamma=S.var("g"), beta=S.var("b")))
case("LayerNorm axis", S.LayerNorm(data, gamma=S.var("g"), beta=S.var("b"), axis=1, eps=0.1))
case("GroupNorm", S.GroupNorm(data, gamma=S.var("g"), beta=S.var("b"), num_groups=2))
case("LRN", S.LRN(data, nsize=3, alpha=0.1))
for mode in ("instance", "channel", "spatial"):
    case(f"L2Normalization {mode}", S.L2Normalization(data, mode=mode))
case("softmax", S.softmax(data, axis=1, temperature=2.0))
case("log_softmax", S.log_softmax(data))
case("softmin", S.softmin(data))
for mode in ("instance", "channel"):
    case(
        f"SoftmaxActivation {mode}",
        S.SoftmaxActivation(data, mode=mode),
        data=(3, 5, 4) if mode == "channel" else (3, 5),
    )
case("SoftmaxOutput multi", S.SoftmaxOutput(data, S.var("l"), multi_output=True))
case("LogisticRegressionOutput", S.LogisticRegressionOutput(data, S.var("l")))
case("LinearRegressionOutput", S.LinearRegressionOutput(data, S.var("l")))
case("BlockGrad", S.BlockGrad(data))
for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
    case(f"Activation {kind}", S.Activation(data, act_type=kind))
for kind in ("leaky", "elu", "selu", "gelu"):
    case(f"LeakyReLU {kind}", S.LeakyReLU(data, act_type=kind, slope=0.3))
case("LeakyReLU prelu", S.LeakyReLU(data, S.var("g"), act_type="prelu"))
case("LeakyReLU rrelu", S.LeakyReLU(data, act_type="rrelu")[0])
positive = S.abs(data) + 1.1
inside = S.tanh(data) * 0.9
for name in ("abs", "arctan", "arcsinh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "fix", "negative", "relu",
             "rint", "round", "sigmoid", "sign", "sin", "sinh", "softsign", "square", "tan", "tanh", "trunc"):  # fmt: skip
    case(name, getattr(S, name)(data))
for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "arccosh"):
    case(name, getattr(S, name)(positive))
for name in ("arcsin", "arccos", "arctanh"):
    case(name, getattr(S, name)(inside))
case("hard_sigmoid", S.hard_sigmoid(data))
case("smooth_l1", S.smooth_l1(data, scalar=1.5))
case("clip", S.clip(data, a_min=-0.5, a_max=0.25))
pair = {"data": (2, 4, 6), "other": (2, 4, 6)}
for name in ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div"):
    case(name, getattr(S, name)(data, other), **pair)
for name in ("add", "sub", "mul", "div", "maximum", "minimum", "equal", "not_equal", "greater", "greater_equal", "lesser",
             "lesser_equal", "plus", "minus"):  # fmt: skip
    case(
        f"broadcast_{name}",
        getattr(S, f"broadcast_{name}")(S.round(data), S.round(other)),
        data=(2, 4, 6),
        other=(1, 4, 1),
    )
case("broadcast_power", S.broadcast_power(positive, other), data=(2, 4, 6), other=(1, 4, 1))
for name, symbol in {
    "_plus_scalar": data + 2, "_minus_scalar": data - 2, "_mul_scalar": data * 2, "_div_scalar": data / 2,
    "_rminus_scalar": 2 - data, "_rdiv_scalar": 2 / positive, "_power_scalar": positive**1.5, "_rpower_scalar": 2**data,
    "_maximum_scalar": S.maximum(data, 0.5), "_minimum_scalar": S.minimum(data, 0.5), "_equal_scalar": S.round(data) == 1,
    "_not_equal_scalar": S.round(data) != 1, "_greater_scalar": data > 0.5, "_greater_equal_scalar": S.round(data) >= 1,
    "_lesser_scalar": data < 0.5, "_lesser_equal_scalar": S.round(data) <= 1,
}.items():  # fmt: skip
    case(name, symbol)
case("_maximum", S.maximum(data, other), **pair)
case("_power", positive**other, **pair)
case("_greater", data > other, **pair)
case("_not_equal", S.round(data) != S.round(other), **pair)
case("add_n", S.add_n(data, other, data), **pair)
case("where", S.where(S.round(other), data, -data), **pair)
case("where rows", S.where(S.var("rows"), data, -data), data=(2, 4), rows=(2,))
case("Cast", S.Cast(data, dtype="int32"))
case("zeros_like", S.zeros_like(data))
case("ones_like", S.ones_like(data))
case("identity", S.identity(data))
for name in ("sum", "mean", "max", "min", "prod"):
    case(name, getattr(S, name)(data, axis=(1, 3)))
    case(f"{name} all", getattr(S, name)(data))
case("sum keep", S.sum(data, axis=-1, keepdims=True))
case("sum exclude", S.sum(data, axis=1, exclude=True))
case("norm", S.norm(data, axis=1))
case("norm 1", S.norm(data, ord=1, axis=(1, 2), keepdims=True))
case("argmax", S.argmax(data, axis=1))
case("argmin keep", S.argmin(data, axis=2, keepdims=True))
case("argmax_channel", S.argmax_channel(data), data=(3, 5))
case("topk", S.topk(data, k=3))
case("topk both", S.topk(data, k=2, axis=1, ret_typ="both", is_ascend=True))
case("sort", S.sort(data, axis=1))
case("argsort", S.argsort(data, is_ascend=False))
case("Flatten", S.Flatten(data))
for name, shape in {"0": (0, -1), "-2": (0, 4, -2), "-3": (0, -3, -2), "-4": (0, -4, 2, -1, -2), "-1": (-1, 7)}.items():
    case(f"Reshape {name}", S.reshape(data, shape=shape))
case("Reshape reverse", S.reshape(data, shape=(-1, 0), reverse=True))
case("transpose", S.transpose(data, axes=(0, 2, 3, 1)))
case("transpose all", S.transpose(data))
case("SwapAxis", S.SwapAxis(data, dim1=1, dim2=3))
case("expand_dims", S.expand_dims(data, axis=1))
case("squeeze", S.squeeze(data, axis=1), data=(2, 1, 3, 1))
case("squeeze all", S.squeeze(data), data=(2, 1, 3, 1))
case("Concat", S.concat(data, other, dim=2), data=(2, 4, 3), other=(2, 4, 5))
case("stack", S.stack(data, other, axis=1), **pair)
case("SliceChannel", S.SliceChannel(data, num_outputs=2, axis=1))
case("SliceChannel squeeze", S.SliceChannel(data, num_outputs=4, axis=1, squeeze_axis=True))
case("slice", S.slice(data, begin=(None, 1, -4), end=(None, 3, None)))
case("slice step", S.slice(data, begin=(0, 3, 5), end=(2, 0, None), step=(1, -1, -2)))
case("slice_axis", S.slice_axis(data, axis=3, begin=-5, end=-1))
case("slice_like", S.slice_like(data, other, axes=(1, 2)), data=(2, 4, 6), other=(1, 3, 5))
for mode in ("constant", "edge", "reflect"):
    case(f"Pad {mode}", S.pad(data, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=1.5))
case("tile", S.tile(data, reps=(2, 1, 3)), data=(4, 3))
case("repeat", S.repeat(data, repeats=2, axis=1))
case("repeat all", S.repeat(data, repeats=3), data=(2, 3))
case("broadcast_to", S.broadcast_to(data, shape=(0, 4, 5)), data=(2, 1, 5))
case("broadcast_axis", S.broadcast_axis(data, axis=1, size=3), data=(2, 1, 5))
case("broadcast_like", S.broadcast_like(data, other), data=(1, 4, 1), other=(2, 4, 6))
case("reverse", S.reverse(data, axis=(1, 3)))
case("Embedding", S.Embedding(S.abs(S.round(data * 3)), input_dim=5, output_dim=3), data=(2, 4))
case("take", S.take(data, S.round(other * 3), axis=1), data=(2, 4, 6), other=(3,))
case("one_hot", S.one_hot(S.abs(S.round(data)), depth=3, on_value=2), data=(2, 4))
case("depth_to_space", S.depth_to_space(data, block_size=2), data=(2, 8, 3, 2))
case("space_to_depth", S.space_to_depth(data, block_size=2), data=(2, 3, 4, 6))
case("dot", S.dot(data, other, transpose_b=True), data=(2, 3, 4), other=(5, 4))
case("dot reversed", S.dot(data, other, transpose_a=True), data=(4, 3, 2), other=(4, 5))
case("batch_dot", S.batch_dot(data, other, transpose_a=True), data=(3, 4, 2), other=(3, 4, 5))
for mode, states in (("lstm", 2), ("gru", 1), ("rnn_tanh", 1), ("rnn_relu", 1)):
    cell = {"state_cell": S.var("cell")} if states == 2 else {}
    rnn = S.RNN(data, S.var("weights"), S.var("state"), mode=mode, state_size=4, num_layers=2, bidirectional=True,
                state_outputs=True, **cell)  # fmt: skip
    case(f"RNN {mode}", rnn, data=(5, 3, 6))
case("RNN lstm forward", S.RNN(data, S.var("weights"), S.var("state"), S.var("cell"), mode="lstm", state_size=4, num_layers=1),
     data=(5, 3, 6))  # fmt: skip


def main() -> None:
    path = Path(__file__).with_name("fixtures.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        listed = []
        for k, (name, (symbol, shapes)) in enumerate(CASES.items()):
            executor = symbol.simple_bind(mx.cpu(), grad_req="null", **shapes)
            inputs = {n: R.randn(*s).astype(np.float32) for n, s in shapes.items()}
            params = {}
            for n, array in {**executor.arg_dict, **executor.aux_dict}.items():
                value = inputs[n] if n in inputs else R.randn(*array.shape).astype(np.float32)
                value = np.abs(value) + 0.5 if n.endswith("_var") else value
                array[:] = value
                if n not in inputs and not n.endswith("label") and n != "l":
                    params[("aux:" if n in executor.aux_dict else "arg:") + n] = mx.nd.array(value)
            outputs = [
                o.asnumpy() for o in executor.forward(is_train=False, **{n: mx.nd.array(v) for n, v in inputs.items()})
            ]
            archive.writestr(f"{k}/symbol.json", symbol.tojson())
            if params:
                with tempfile.TemporaryDirectory() as folder:
                    mx.nd.save(f"{folder}/p", params)
                    archive.writestr(f"{k}/params", Path(folder, "p").read_bytes())
            for kind, arrays in (("inputs", inputs), ("outputs", {str(j): o for j, o in enumerate(outputs)})):
                sink = io.BytesIO()
                np.savez(sink, **arrays)
                archive.writestr(f"{k}/{kind}.npz", sink.getvalue())
            listed.append({"name": name, "shapes": shapes})
        archive.writestr("cases.json", json.dumps(listed))
    print(f"{len(CASES)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
