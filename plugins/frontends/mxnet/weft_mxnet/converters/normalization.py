"""Normalisation, softmax, dropout and the outputs of training."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node
from weft_ops.shapes import product


def _decimal(value: float) -> float:
    return float(str(np.float32(value)))


@op("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm")
def batch_norm(c: Node) -> Value:
    x, gamma, beta, mean, variance = (c.value(k) for k in range(5))
    if c.flag("fix_gamma", True):
        gamma = c.builder.constant(np.ones(tuple(c.fixed(gamma.shape, "gamma")), gamma.dtype.numpy), "gamma")
    return c(ops.BatchNorm(c.real("eps", 1e-3), c.axis(c.integer("axis", 1))), x, gamma, beta, mean, variance)


@op("InstanceNorm")
def instance_norm(c: Node) -> Value:
    return c(ops.InstanceNorm(c.real("eps", 1e-3)), c.value(0), c.value(1), c.value(2))


@op("LayerNorm")
def layer_norm(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis", -1))
    epsilon = c.real("eps", 1e-5)
    if c.flag("output_mean_var"):
        raise c.unsupported("output_mean_var")
    if axis == len(x.shape) - 1:
        return c(ops.LayerNorm(-1, epsilon), x, c.value(1), c.value(2))
    order = (*(k for k in range(len(x.shape)) if k != axis), axis)
    y = c(ops.LayerNorm(-1, epsilon), c.transpose(x, order), c.value(1), c.value(2))
    return c.transpose(y, [order.index(k) for k in range(len(order))])


@op("GroupNorm")
def group_norm(c: Node) -> Value:
    """Scale and bias are of groups; of channels in later versions."""
    x, groups = c.value(0), c.integer("num_groups", 1)
    (channels,) = c.fixed(x.shape[1:2], "channels")
    if groups < 1 or channels % groups:
        raise c.error(f"{channels} channels in {groups} groups")
    factors = [c.value(1), c.value(2)]
    if groups != channels:
        each = channels // groups
        spread = [c.broadcast(c.reshape(f, (groups, 1)), (groups, each)) for f in factors if f.shape == (groups,)]
        factors = [c.reshape(f, (channels,)) for f in spread] or factors
    return c(ops.GroupNorm(c.real("eps", 1e-5), groups), x, *factors)


@op("LRN")
def lrn(c: Node) -> Value:
    size = c.integer("nsize")
    if size < 1 or size % 2 == 0:
        raise c.error(f"nsize is {size}, expected an odd number")
    return c(ops.LRN(size, c.real("alpha", 1e-4), c.real("beta", 0.75), c.real("knorm", 2.0)), c.value(0))


@op("L2Normalization")
def l2_normalization(c: Node) -> Value:
    x = c.value(0)
    mode = c.choice("mode", "instance", ("instance", "channel", "spatial"))
    rank = len(x.shape)
    axes = {"instance": tuple(range(1, rank)), "channel": (1,), "spatial": tuple(range(2, rank))}[mode]
    norm = c(ops.Sqrt(), c.add(c.sum(c.mul(x, x), axes), c.real("eps", 1e-10)))
    return c.div(x, norm)


@op("softmax", "log_softmax", "softmin")
def softmax(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis", -1))
    if c.flag("use_length") or c.given(1):
        raise c.unsupported("use_length")
    temperature = c.real("temperature", 1.0)
    if temperature <= 0:
        raise c.error(f"temperature is {temperature}")
    x = x if temperature == 1 else c.mul(x, 1 / temperature)
    x = c(ops.Negative(), x) if c.op_type == "softmin" else x
    y = c(ops.LogSoftmax(axis) if c.op_type == "log_softmax" else ops.Softmax(axis), x)
    return y if c.text("dtype") is None else c.cast(y, c.dtype("dtype", y.dtype))


@op("SoftmaxActivation")
def softmax_activation(c: Node) -> Value:
    x = c.value(0)
    if c.choice("mode", "instance", ("instance", "channel")) == "channel":
        return c(ops.Softmax(1), x)
    if len(x.shape) > 2:
        raise c.unsupported("mode instance of more than two dimensions, which MXNet's versions compute differently")
    return c(ops.Softmax(1), x)


@op("SoftmaxOutput", "Softmax")
def softmax_output(c: Node) -> Value:
    x = c.value(0)
    if c.flag("multi_output"):
        return c(ops.Softmax(1), x)
    if c.flag("preserve_shape"):
        return c(ops.Softmax(-1), x)
    return c.reshape(c(ops.Softmax(1), c.reshape(x, (x.shape[0], product(x.shape[1:])))), x.shape)


@op("LogisticRegressionOutput")
def logistic(c: Node) -> Value:
    return c(ops.Sigmoid(), c.value(0))


@op("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput", "Dropout", "make_loss", "MakeLoss",
    "_copy", "identity", "IdentityAttachKLSparseReg")  # fmt: skip
def same(c: Node) -> Value:
    if c.op_type == "Dropout" and c.choice("mode", "training", ("training", "always")) == "always":
        raise c.unsupported("mode always, which is random")
    return c.value(0)


@op("BlockGrad", "stop_gradient")
def stop_gradient(c: Node) -> Value:
    found: Value = c.detached(c.value(0))
    return found
