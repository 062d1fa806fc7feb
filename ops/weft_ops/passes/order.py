"""Where the passes of this package run among the core's."""

from __future__ import annotations

from weft.passes.capabilities import Capabilities
from weft.passes.fold_constants import fold_constants
from weft.passes.pipeline import GraphPass
from weft_ops.passes.cancel_transposes import cancel_transposes
from weft_ops.passes.choose_algorithms import choose_algorithms
from weft_ops.passes.fold_batch_norm import fold_batch_norm
from weft_ops.passes.fold_scale import fold_scale
from weft_ops.passes.fuse_attention import fuse_attention
from weft_ops.passes.fuse_quantization import fuse_quantization
from weft_ops.passes.mask_trees import mask_trees
from weft_ops.passes.merge_groups import merge_groups
from weft_ops.passes.narrow_products import narrow_products
from weft_ops.passes.narrow_weights import narrow_weights
from weft_ops.passes.reduce_precision import reduce_precision
from weft_ops.passes.simplify_algebra import simplify_algebra


def _has_channel_blocks(capabilities: Capabilities) -> bool:
    return capabilities.channel_block is not None


def _has_dot_products(capabilities: Capabilities) -> bool:
    return bool(capabilities.dots)


def _has_precision(capabilities: Capabilities) -> bool:
    return capabilities.precision is not None


def _has_winograd(capabilities: Capabilities) -> bool:
    return capabilities.winograd is not None


PASSES: tuple[GraphPass, ...] = (
    GraphPass(
        "fuse_quantization",
        fuse_quantization,
        before="decompose",
        shared=True,
        invariant="no product, convolution or mean of quantised numbers with constant scales is computed in floats",
    ),
    GraphPass(
        "fold_batch_norm",
        fold_batch_norm,
        before="decompose",
        shared=True,
        invariant="no constant batch normalisation follows a convolution or product with constant weights",
    ),
    GraphPass(
        "fold_decomposed",
        fold_constants,
        before="fold_constants_2",
        shared=True,
        invariant="constants that decomposition computes are folded: the rules of algebra see them",
    ),
    GraphPass(
        "simplify_algebra",
        simplify_algebra,
        before="fold_constants_2",
        shared=True,
        invariant="no rule of algebra applies",
    ),
    GraphPass(
        "cancel_transposes",
        cancel_transposes,
        before="fold_constants_2",
        shared=True,
        invariant="no region between transpositions has fewer of them in another order of axes",
    ),
    GraphPass(
        "fuse_attention",
        fuse_attention,
        before="eliminate_common_subexpressions",
        shared=True,
        invariant="attention whose scores have no other reader is one operator, if the target claims it",
    ),
    GraphPass(
        "fold_scale",
        fold_scale,
        before="eliminate_common_subexpressions",
        shared=True,
        invariant="no constant scale follows a convolution or product with constant weights",
    ),
    GraphPass(
        "merge_groups",
        merge_groups,
        before="eliminate_common_subexpressions",
        when=_has_channel_blocks,
        invariant="a grouped convolution has whole channel blocks per group where that costs less than rows",
    ),
    GraphPass(
        "narrow_products",
        narrow_products,
        before="eliminate_common_subexpressions",
        when=_has_dot_products,
        invariant="contractions with constant weights that fit a dot product of the target are in its form",
    ),
    GraphPass(
        "reduce_precision",
        reduce_precision,
        before="choose_layouts",
        when=_has_precision,
        invariant="constant weights of contractions are rounded to the precision of the target",
    ),
    GraphPass(
        "choose_algorithms",
        choose_algorithms,
        before="choose_layouts",
        when=_has_winograd,
        invariant="convolutions for which the target has a faster algorithm use it",
    ),
    GraphPass(
        "mask_trees",
        mask_trees,
        before="choose_layouts",
        when=_has_channel_blocks,
        invariant="ensembles of small trees are masks of leaves where that takes fewer instructions",
    ),
    GraphPass(
        "narrow_weights",
        narrow_weights,
        before="fuse",
        when=_has_precision,
        invariant="weights that are read in vectors are stored in the precision of the target",
    ),
)
"""In the order in which they run."""
