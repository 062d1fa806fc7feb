"""Operators of com.microsoft into which ONNX Runtime and its tools fuse others: products, convolutions, activations,
normalisations, embeddings."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_frontend.activations import clipped
from weft_onnx.contrib import contrib_op, fixed
from weft_onnx.converters.contraction import gemm
from weft_onnx.converters.image import grid_sample
from weft_onnx.converters.indexing import gather_nd, trilu
from weft_onnx.converters.network import conv
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr, dim_floordiv, product

CONV = "auto_pad dilations group kernel_shape pads strides"
ACTIVATION = "activation activation_params"


def activated(c: Context, x: Value, name: str, *given: float) -> Value:
    """`x` through an activation that ONNX Runtime names, with its parameters, as far as they are given.

    Raises:
        Unsupported: an activation of another name.
    """
    first, second = (*given, None, None)[:2]
    if name in ("", "Identity"):
        return x
    if name == "Clip":
        return clipped(c, x, first, second)
    known: dict[str, Any] = {
        "Relu": ops.Relu(),
        "Tanh": ops.Tanh(),
        "Sigmoid": ops.Sigmoid(),
        "LeakyRelu": ops.LeakyRelu(0.01 if first is None else first),
        "Elu": ops.Elu(1.0 if first is None else first),
        "HardSigmoid": ops.HardSigmoid(0.2 if first is None else first, 0.5 if second is None else second),
        "HardSwish": ops.HardSwish(),
        "Softplus": ops.Softplus(),
        "Softsign": ops.Softsign(),
        "Selu": ops.Selu(),
        "ThresholdedRelu": ops.ThresholdedRelu(1.0 if first is None else first),
        "Gelu": ops.Gelu(),
    }
    if name not in known:
        raise c.unsupported(f"activation '{name}'")
    return c(known[name], x)


# -- products ---------------------------------------------------------------------------------------------------------


def _turned(c: Context, x: Value, matrix: bool, batch: bool) -> Value:
    """A factor with its first axis moved behind the others but the last (`batch`), and its last two axes swapped."""
    order = list(range(len(x.shape)))
    if len(order) < 2:
        return x
    if batch:
        order = [*order[1:-1], order[0], order[-1]]
    if matrix:
        order[-2:] = order[:-3:-1]
    return c.transpose(x, order)


@contrib_op("FusedMatMul", "TransposeMatMul", attributes="alpha transA transB transBatchA transBatchB")
def fused_matmul(c: Context) -> Value:
    a, b = (_turned(c, c.value(k), c.flag(f"trans{n}"), c.flag(f"transBatch{n}")) for k, n in enumerate("AB"))
    y, alpha = c(ops.MatMul(), a, b), c.real("alpha", 1.0)
    return y if alpha == 1 else c.mul(y, alpha)


@contrib_op(
    "FusedGemm",
    attributes="alpha beta transA transB activation activation_alpha activation_beta activation_gamma",
)
def fused_gemm(c: Context) -> Value:
    if c.has("activation_gamma"):
        raise c.unsupported("attribute 'activation_gamma'")
    given = [c.real(n) for n in ("activation_alpha", "activation_beta") if c.has(n)]
    return activated(c, gemm(c), c.string("activation"), *given)


@contrib_op("FusedConv", attributes=f"{CONV} {ACTIVATION}")
def fused_conv(c: Context) -> Value:
    y, added = conv(c), c.optional(3) if c.count > 3 else None
    y = y if added is None else c.add(y, added)
    return activated(c, y, c.string("activation"), *(c.reals("activation_params") or ()))


@contrib_op("Trilu", attributes="upper")
def triangle(c: Context) -> Any:
    return trilu(c)


# -- activations ------------------------------------------------------------------------------------------------------


@contrib_op("Gelu")
def gelu(c: Context) -> Value:
    return c(ops.Gelu(), c.value(0))


@contrib_op("BiasGelu")
def bias_gelu(c: Context) -> Value:
    return c(ops.Gelu(), c.add(c.value(0), c.value(1)))


@contrib_op("FastGelu")
def fast_gelu(c: Context) -> Value:
    x, bias = c.value(0), c.optional(1)
    return c(ops.Gelu(True), x if bias is None else c.add(x, bias))


@contrib_op("QuickGelu", attributes="alpha")
def quick_gelu(c: Context) -> Value:
    return c(ops.Swish(c.real("alpha", 1.702)), c.value(0))


@contrib_op("BiasSplitGelu")
def bias_split_gelu(c: Context) -> Value:
    """The left half of the last axis, times gelu of the right one."""
    x = c.add(c.value(0), c.value(1))
    half = dim_floordiv(x.shape[-1], 2)
    left, right = (c.slice(x, -1, start, half) for start in (0, half))
    return c.mul(left, c(ops.Gelu(), right))


@contrib_op("BiasAdd")
def bias_add(c: Context) -> Value:
    return c.add(c.add(c.value(0), c.value(1)), c.value(2))


@contrib_op("BiasSoftmax", attributes="axis is_inner_broadcast")
def bias_softmax(c: Context) -> Value:
    """Softmax over all axes from `axis` on, as one. The bias lacks the axes before it, those of the batch; where it is
    broadcast inside, the batch comes first and axes of one element stand for the others."""
    x, bias = c.value(0), c.value(1)
    axis = axis_of(c.integer("axis", 1), len(x.shape))
    y = c.add(x, bias)
    flat = c.reshape(y, (product(y.shape[:axis]), product(y.shape[axis:])))
    return c.reshape(c(ops.Softmax(1), flat), y.shape)


@contrib_op("BiasDropout", attributes="seed")
def bias_dropout(c: Context) -> Value:
    """Of inference, in which nothing is dropped."""
    training = c.constant(4) if c.given(4) else None
    if c.given(4) and (training is None or bool(training.reshape(-1)[0])):
        raise c.unsupported("training_mode")
    y, residual = c.add(c.value(0), c.value(1)), c.optional(2)
    return y if residual is None else c.add(y, residual)


# -- normalisations ---------------------------------------------------------------------------------------------------


@contrib_op("SkipLayerNormalization", attributes="epsilon", outputs=(0, 3))
def skip_layer_norm(c: Context) -> Any:
    total, bias = c.add(c.value(0), c.value(1)), c.optional(4)
    total = total if bias is None else c.add(total, bias)
    return c(ops.LayerNorm(-1, c.real("epsilon", 1e-12)), total, c.value(2), c.optional(3)), None, None, total


@contrib_op("SkipSimplifiedLayerNormalization", attributes="epsilon", outputs=(0, 3))
def skip_rms_norm(c: Context) -> Any:
    total, bias = c.add(c.value(0), c.value(1)), c.optional(3)
    total = total if bias is None else c.add(total, bias)
    return c(ops.RMSNorm(-1, c.real("epsilon", 1e-12)), total, c.value(2)), None, None, total


@contrib_op("SimplifiedLayerNormalization", attributes="axis epsilon stash_type")
def rms_norm(c: Context) -> Value:
    fixed(c, "stash_type", 1)
    return c(ops.RMSNorm(c.integer("axis", -1), c.real("epsilon", 1e-5)), c.value(0), c.value(1))


# ONNX Runtime registers it under ONNX's own domain, where ONNX has no operator of that name.
onnx_op("SimplifiedLayerNormalization")(rms_norm)


@contrib_op("GroupNorm", "SkipGroupNorm", attributes="activation channels_last epsilon groups", outputs=(0, 1))
def group_norm(c: Context) -> Any:
    x, skip, bias = c.value(0), c.optional(3), c.optional(4)
    last = c.flag("channels_last", True)
    rank = len(x.shape)
    if skip is not None:
        if len(skip.shape) == 2:
            skip = c.reshape(skip, (skip.shape[0], *(1 for _ in range(rank - 2)), skip.shape[1]))
        x = c.add(x, skip)
    if bias is not None:
        x = c.add(x, bias if last else c.reshape(bias, (bias.shape[0], *(1 for _ in range(rank - 2)))))
    y = c.transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x
    scale, shift = (c.cast(c.value(k), x.dtype) for k in (1, 2))
    y = c(ops.GroupNorm(c.real("epsilon", 1e-5), c.integer("groups")), y, scale, shift)
    y = c.transpose(y, (0, *range(2, rank), 1)) if last else y
    activation = c.integer("activation")
    if activation not in (0, 1):
        raise c.unsupported(f"attribute 'activation' = {activation}")
    y = c(ops.Swish(), y) if activation else y
    return (y, x) if len(c.node.output) > 1 else y


# -- embeddings -------------------------------------------------------------------------------------------------------


@contrib_op("EmbedLayerNormalization", attributes="epsilon mask_index_type", outputs=(0, 1, 2))
def embed_layer_norm(c: Context) -> Any:
    """Of words, positions and segments; then the number of words that the mask of each sentence has."""
    ids, segments, positions = c.value(0), c.optional(1), c.optional(8)
    words = _looked_up(c, c.value(2), ids)
    places = c.value(3)
    if positions is None:
        total = c.add(words, c.slice(places, 0, 0, ids.shape[1]))
    else:
        total = c.add(words, _looked_up(c, places, positions))
    kinds = c.optional(4)
    if segments is not None and kinds is not None:
        total = c.add(total, _looked_up(c, kinds, segments))
    y = c(ops.LayerNorm(-1, c.real("epsilon", 1e-12)), total, c.value(5), c.value(6))
    mask = c.optional(7)
    counted = c.cast(c.sum(mask, (1,), False), dt.int32) if mask is not None else None
    if counted is None:
        counted = c(ops.Fill(dt.int32, (ids.shape[0],), 0))
    return y, counted, total


def _looked_up(c: Context, table: Value, ids: Value) -> Value:
    return c.gather(table, c.within(ids, 0, as_dim(dim_expr(table.shape[0]) - 1), "index"), 0)


@contrib_op("QEmbedLayerNormalization", attributes="epsilon", outputs=(0, 1))
def quantised_embed_layer_norm(c: Context) -> Any:
    """As EmbedLayerNormalization, its tables and its scale and bias integers of 8 bits."""
    ids, segments = c.value(0), c.optional(1)

    def real(x: Value, k: int) -> Value:
        return c(ops.Dequantize(0), x, c.value(8 + k), c.optional(13 + k))

    total = c.add(real(_looked_up(c, c.value(2), ids), 0), real(c.slice(c.value(3), 0, 0, ids.shape[1]), 1))
    if segments is not None:
        total = c.add(total, real(_looked_up(c, c.value(4), segments), 2))
    y = c(ops.LayerNorm(-1, c.real("epsilon", 1e-12)), total, real(c.value(5), 3), real(c.value(6), 4))
    mask = c.optional(7)
    if mask is None:
        return y, c(ops.Fill(dt.int32, (ids.shape[0],), 0))
    return y, c.cast(c.sum(mask, (1,), False), dt.int32)


# -- older names of ONNX's own operators, and distances ---------------------------------------------------------------

contrib_op("GatherND")(gather_nd)
contrib_op("GridSample", attributes="align_corners mode padding_mode")(grid_sample)


@contrib_op("MatMulInteger16")
def matmul_integer_16(c: Context) -> Value:
    return c(ops.MatMulInteger(), c.value(0), c.value(1))


@contrib_op("CDist", attributes="metric")
def distances(c: Context) -> Value:
    """[M, K] between the rows of [M, N] and [K, N]."""
    metric = c.choice("metric", "sqeuclidean", ("euclidean", "sqeuclidean"))
    a, b = c.value(0), c.value(1)
    low = c.sub(c.reshape(a, (a.shape[0], 1, a.shape[1])), c.reshape(b, (1, *b.shape)))
    squares = c.sum(c.mul(low, low), (2,), False)
    return squares if metric == "sqeuclidean" else c(ops.Sqrt(), squares)
