"""Support vector machines of ai.onnx.ml: libsvm's (sums of kernels with support vectors) and liblinear's (without
any)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.support_vectors import coupled as coupled_probabilities
from weft_frontend.support_vectors import kernel, pair_scores, votes
from weft_onnx.converters.trees import chosen, matrix, transformed
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op

DOMAIN = "ai.onnx.ml"


@onnx_op("SVMRegressor", domain=DOMAIN)
def svm_regressor(c: Context) -> Value:
    """Sums of kernels with the support vectors; without any, the coefficients are one vector."""
    x = c.cast(matrix(c), dt.float32)
    supports, weights = c.integer("n_supports"), np.array(c.reals("coefficients") or (), np.float32)
    vectors = (
        np.array(c.reals("support_vectors") or (), np.float32).reshape(supports, -1)
        if supports
        else weights.reshape(1, -1)
    )
    y = _kernel(c, x, vectors)
    y = c(ops.MatMul(), y, c.builder.constant(weights.reshape(-1, 1))) if supports else y
    y = c.add(y, float((c.reals("rho") or (0.0,))[0]))
    if c.integer("one_class"):
        return c(ops.Where(), c(ops.Greater(), y, 0.0), c.number(1.0, dt.float32), c.number(-1.0, dt.float32))
    return transformed(c, y, c.string("post_transform", "NONE"))


@onnx_op("SVMClassifier", domain=DOMAIN)
def svm_classifier(c: Context) -> Any:
    """A vote per pair of classes, or a score per class; the scores are of pairs, or coupled probabilities where
    `prob_a` is given.

    Where the specification is silent, as ONNX Runtime: of two classes without probabilities there are two scores, one
    the negative of the other; one alone is not transformed.
    """
    x = c.cast(matrix(c), dt.float32)
    strings, ints = c.strings("classlabels_strings"), c.integers("classlabels_ints")
    classes = max(len(strings or ints or ()), 1)
    counts = c.integers("vectors_per_class") or ()
    weights, rho = (np.array(c.reals(name) or (), np.float32) for name in ("coefficients", "rho"))
    if not weights.size or not rho.size:
        raise c.error(f"expected coefficients and rho, got {weights.size} and {rho.size}")
    if min(counts, default=0) < 0 or (counts and len(counts) != classes):
        raise c.error(
            f"vectors_per_class: expected one number, not negative, for each of {classes} class(es), got {counts}"
        )
    coupled = bool(sum(counts) and c.reals("prob_a"))
    scores = (
        _by_vectors(c, x, classes, counts, weights, rho) if sum(counts) else _by_planes(c, x, classes, weights, rho)
    )
    found = votes(c, scores, classes) if sum(counts) else scores
    place = c(ops.Argmax(-1), found)
    two = classes == 2 and len(rho) == 1 and not coupled
    if two and (weights >= 0).all():
        second = c(ops.GreaterEqual(), c.max(found, (1,), False), 0.5)
        place = c(ops.Where(), second, c.number(1, dt.int64), place)
    if strings or ints:
        label = chosen(c, place, "classlabels_ints")
    else:
        label = c.cast(c(ops.Greater(), c.max(found, (1,), False), 0.0), dt.int64)
    if coupled:
        a, b = (np.array(c.reals(name) or (), np.float32) for name in ("prob_a", "prob_b"))
        scores = coupled_probabilities(c, scores, classes, a, b)
    elif two and scores.shape[1] == 1:
        scores = c.concat([c(ops.Negative(), scores), scores], 1)
    return label, scores if scores.shape[1] == 1 else transformed(c, scores, c.string("post_transform", "NONE"))


def _by_planes(c: Context, x: Value, classes: int, weights: Any, rho: Any) -> Value:
    """A score of each class: [n, classes]."""
    if weights.size % classes:
        raise c.error(f"coefficients: expected some for each of {classes} class(es), got {weights.size}")
    planes = c.builder.constant(np.ascontiguousarray(weights.reshape(classes, -1).T))
    return c.add(c(ops.MatMul(), x, planes), float(rho[0]))


def _by_vectors(c: Context, x: Value, classes: int, counts: tuple[int, ...], weights: Any, rho: Any) -> Value:
    """A score of each pair of classes, the first's if it is positive: [n, classes·(classes - 1)/2]."""
    total = sum(counts)
    vectors = np.array(c.reals("support_vectors") or (), np.float32)
    pairs = list(combinations(range(classes), 2))
    if not vectors.size or vectors.size % total or weights.size != total * (classes - 1) or len(rho) != len(pairs):
        raise c.error(
            f"of {total} support vectors and {classes} classes expected {total * (classes - 1)} coefficients and"
            f" {len(pairs)} rho, got {vectors.size} numbers in vectors, {weights.size} coefficients and {len(rho)} rho"
        )
    kernels = _kernel(c, x, vectors.reshape(total, -1))
    return pair_scores(c, kernels, counts, weights.reshape(classes - 1, total), rho)


def _kernel(c: Context, x: Value, vectors: Any) -> Value:
    """Of every row of x [n, f] with every vector [s, f]: [n, s]."""
    gamma, shift, degree = (*(c.reals("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    return kernel(c, x, vectors, c.string("kernel_type", "LINEAR"), gamma, shift, degree)
