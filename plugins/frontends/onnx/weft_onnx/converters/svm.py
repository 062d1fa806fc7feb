"""Support vector machines of ai.onnx.ml: libsvm's (sums of kernels with support vectors) and liblinear's (without
any)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Value
from weft_onnx.converters.trees import chosen, matrix, transformed
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.composing import Composer

DOMAIN = "ai.onnx.ml"

MOST_CLASSES = 128
"""With coupled probabilities, of which an iteration goes through the classes one after the other."""
TRIPS = 100
"""Of the search for coupled probabilities at least, as libsvm and ONNX Runtime have it."""


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
    votes = _votes(c, scores, classes) if sum(counts) else scores
    place = c(ops.Argmax(-1), votes)
    two = classes == 2 and len(rho) == 1 and not coupled
    if two and (weights >= 0).all():
        second = c(ops.GreaterEqual(), c.max(votes, (1,), False), 0.5)
        place = c(ops.Where(), second, c.number(1, dt.int64), place)
    if strings or ints:
        label = chosen(c, place, "classlabels_ints")
    else:
        label = c.cast(c(ops.Greater(), c.max(votes, (1,), False), 0.0), dt.int64)
    if coupled:
        scores = _coupled(c, scores, classes)
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
    weights, begin = weights.reshape(classes - 1, total), np.cumsum([0, *counts])
    columns = np.zeros((total, len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        columns[begin[i] : begin[i + 1], p] = weights[j - 1, begin[i] : begin[i + 1]]
        columns[begin[j] : begin[j + 1], p] = weights[i, begin[j] : begin[j + 1]]
    kernels = _kernel(c, x, vectors.reshape(total, -1))
    return c.add(c(ops.MatMul(), kernels, c.builder.constant(columns)), c.builder.constant(rho))


def _votes(c: Context, scores: Value, classes: int) -> Value:
    """How many pairs each class wins: [n, classes]."""
    pairs = list(combinations(range(classes), 2))
    of = np.zeros((len(pairs), classes), np.float32)
    for p, (i, j) in enumerate(pairs):
        of[p, i], of[p, j] = 1, -1
    won = c(ops.MatMul(), c.cast(c(ops.Greater(), scores, 0.0), dt.float32), c.builder.constant(of))
    return c.add(won, c.builder.constant(np.arange(classes, dtype=np.float32)))  # class j is second in j pairs


def _coupled(c: Context, scores: Value, classes: int) -> Value:
    """Probabilities of classes from scores of pairs: the second approach of Wu, Lin and Weng, "Probability Estimates
    for Multi-class Classification by Pairwise Coupling" (JMLR 5, 2004), in the steps of libsvm; a row that has
    converged stays as it is."""
    pairs = list(combinations(range(classes), 2))
    a, b = (np.array(c.reals(name) or (), np.float32) for name in ("prob_a", "prob_b"))
    if not len(a) == len(b) == len(pairs):
        raise c.error(f"prob_a and prob_b: expected {len(pairs)} of each, got {len(a)} and {len(b)}")
    if classes > MOST_CLASSES:
        raise c.unsupported(f"coupled probabilities of more than {MOST_CLASSES} classes")
    first = c(ops.Sigmoid(), c(ops.Negative(), c.add(c.mul(scores, c.builder.constant(a)), c.builder.constant(b))))
    first = c(ops.Clip(), first, 1e-7, 1 - 1e-7)
    # r[i, j]: how probable class i is where it is i or j.
    at = np.full((classes, classes), 2 * len(pairs), np.int64)
    for p, (i, j) in enumerate(pairs):
        at[i, j], at[j, i] = p, len(pairs) + p
    every = c.concat([first, c.sub(1.0, first), c.mul(c.slice(first, 1, 0, 1), 0.0)], 1)
    r = c.gather(every, c.builder.constant(at), 1)
    squares = c.sum(c.mul(r, r), (1,))
    q = c(
        ops.Where(),
        c.builder.constant(np.eye(classes, dtype=bool)),
        squares,
        c(ops.Negative(), c.mul(r, c.transpose(r, (0, 2, 1)))),
    )
    even = c.add(c.mul(c.pick(q, 1, 0), 0.0), 1.0 / classes)  # of what is not a number, nothing is
    return c(ops.Loop(_search(q, classes), 1, True), c.number(max(TRIPS, classes), dt.int64), None, even, q)


def _search(q: Value, classes: int) -> Graph:
    """An iteration of the search for p that makes pᵀqp the least."""
    k = Composer(GraphBuilder("coupling"))
    k.builder.input("trip", TensorType(dt.int64, ()))
    p = k.builder.input("p", TensorType(dt.float32, (q.shape[0], classes)))
    q = k.builder.input("q", TensorType(dt.float32, q.shape))
    qp = k.sum(k.mul(q, k.reshape(p, (q.shape[0], 1, classes))), (2,), False)
    pqp = k.sum(k.mul(p, qp), (1,))
    open_ = k(ops.GreaterEqual(), k.max(k(ops.Absolute(), k.sub(qp, pqp)), (1,)), 0.005 / classes)
    new = p
    for t in range(classes):
        row = k.pick(q, 1, t)
        own, of = k.slice(row, 1, t, 1), k.slice(qp, 1, t, 1)
        step = k.div(k.sub(pqp, of), own)
        more = k.add(step, 1.0)
        pqp = k.div(k.add(pqp, k.mul(step, k.add(k.mul(step, own), k.mul(of, 2.0)))), k.mul(more, more))
        new = k.div(k.add(new, k.mul(step, k.builder.constant(np.eye(classes, dtype=np.float32)[t : t + 1]))), more)
        qp = k.div(k.add(qp, k.mul(step, row)), more)
    k.builder.output(k(ops.ReduceMax(None, False), open_), "going")
    k.builder.output(k(ops.Where(), open_, new, p), "next")
    return k.builder.build()


def _kernel(c: Context, x: Value, vectors: Any) -> Value:
    """Of every row of x [n, f] with every vector [s, f]: [n, s]."""
    gamma, shift, degree = (*(c.reals("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    kind = c.string("kernel_type", "LINEAR")
    if kind == "RBF":
        apart = c.sub(c.reshape(x, (x.shape[0], 1, x.shape[1])), c.builder.constant(vectors))
        return c(ops.Exp(), c.mul(c.sum(c.mul(apart, apart), (2,), False), -float(gamma)))
    dot = c(ops.MatMul(), x, c.builder.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dot
    inner = c.add(c.mul(dot, float(gamma)), float(shift))
    if kind == "POLY":
        return c(ops.Power(), inner, float(degree))
    if kind == "SIGMOID":
        return c(ops.Tanh(), inner)
    raise c.unsupported(f"kernel_type {kind}")
