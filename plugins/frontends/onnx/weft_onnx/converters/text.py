"""Strings and pictures, which are no numeric work: steps on the host. Counts of n-grams, of numbers or of strings that
have become numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.bodies import shaped
from weft_frontend.contents import LIMIT
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


def _step(c: Context, op: ops.HostOperator, *inputs: Value) -> Any:
    """A step on the host; what it gives of sizes known only at run time has symbols for them."""
    return tuple(shaped(c.builder, v) for v in c.builder.add_all(op, *inputs))


@onnx_op("StringConcat")
def string_concat(c: Context) -> Any:
    return _step(c, ops.StringConcat(), c.value(0), c.value(1))


@onnx_op("StringSplit")
def string_split(c: Context) -> Any:
    return _step(c, ops.StringSplit(c.string("delimiter"), c.integer("maxsplit", -1)), c.value(0))


@onnx_op("StringNormalizer")
def string_normalizer(c: Context) -> Any:
    op = ops.StringNormalizer(
        c.string("case_change_action", "NONE"), c.flag("is_case_sensitive"), c.strings("stopwords") or ()
    )
    return _step(c, op, c.value(0))


@onnx_op("RegexFullMatch")
def regex_full_match(c: Context) -> Any:
    return _step(c, ops.RegexFullMatch(c.string("pattern")), c.value(0))


@onnx_op("ImageDecoder")
def image_decoder(c: Context) -> Any:
    return _step(c, ops.ImageDecoder(c.string("pixel_format", "RGB")), c.value(0))


@onnx_op("TfIdfVectorizer")
def tf_idf(c: Context) -> Value:
    """Every place is compared with every n-gram of the pool; the sum over places is the count."""
    x, pool = c.value(0), c.integers("pool_int64s")
    words = c.strings("pool_strings")
    if words is not None:
        keys = tuple(dict.fromkeys(words))
        x, pool = c.builder.add(ops.StringIndex(keys), x), tuple(map(keys.index, words))
    if pool is None:
        raise c.error("there is neither pool_int64s nor pool_strings")
    length = x.shape[-1]
    if not isinstance(length, int):
        raise c.unsupported("sequences of unknown length")
    flat = len(x.shape) == 1
    rows = c.cast(c.reshape(x, (1, length) if flat else x.shape), dt.int64)
    starts, indexes = (*(c.integers("ngram_counts") or ()), len(pool)), c.integers("ngram_indexes") or ()
    shortest, longest, skips = c.integer("min_gram_length"), c.integer("max_gram_length"), c.integer("max_skip_count")
    if not indexes or min(indexes) < 0:
        raise c.error(f"ngram_indexes: expected the place of each n-gram, got {list(indexes)}")
    counts: list[Value] = []
    for n in range(1, len(starts)):
        grams = np.array(pool[starts[n - 1] : starts[n]], np.int64).reshape(-1, n)
        if not len(grams):
            continue
        total = c(ops.Fill(dt.int64, (rows.shape[0], len(grams)), 0))
        # The neighbours of a single word are no matter.
        for step in range(1, (skips if n > 1 else 0) + 2) if shortest <= n <= longest else ():
            places = length - (n - 1) * step
            if places <= 0:
                break
            if step > LIMIT:
                raise c.unsupported(f"more than {LIMIT} skips")
            found: Value | None = None
            for k in range(n):
                word = c.reshape(c.slice(rows, 1, k * step, places), (rows.shape[0], places, 1))
                same = c(ops.Equal(), word, c.builder.constant(np.ascontiguousarray(grams[:, k])))
                found = same if found is None else c(ops.LogicalAnd(), found, same)
            assert found is not None
            total = c.add(total, c.sum(c.cast(found, dt.int64), (1,), False))
        counts.append(total)
    counted = c.cast(c.concat([*counts, c(ops.Fill(dt.int64, (rows.shape[0], 1), 0))], 1), dt.float32)
    weights = np.array([*(c.reals("weights") or [1.0] * len(indexes)), 0.0], np.float32)
    mode = c.string("mode")
    if mode == "IDF":
        counted = c.cast(c(ops.Greater(), counted, 0.0), dt.float32)
    elif mode not in ("TF", "TFIDF"):
        raise c.error(f"mode is '{mode}', expected TF, IDF or TFIDF")
    if mode != "TF":
        counted = c.mul(counted, c.builder.constant(weights))
    # Places of the result that no n-gram has are zero, the last of the counts.
    c.affordable(max(indexes) + 1, "the result")
    source = np.full(max(indexes) + 1, len(indexes), np.int64)
    source[list(indexes)] = np.arange(len(indexes))
    y = c.gather(counted, c.builder.constant(source), 1)
    return c.reshape(y, (len(source),)) if flat else y
