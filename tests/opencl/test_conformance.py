"""The conformance kit on an OpenCL device, in tests PoCL's: in CI some samples of some operators, with --full all of
it."""

from __future__ import annotations

import pytest

from weft_testing.conform import run

ALONE = "(float32 and (MatMul or Relu or Softmax or Transpose or GRU)) or (Add and not Pad) or intrinsic"
"""Products, elementwise groups, rows, copies, loops around launches."""


CHECKS = [
    ((1, 2, 8), ""),
    ((3, 4), ALONE),
    ((5, 6), "dense or odd or mlp"),
    ((7,), "seeds or results"),
    ((9,), "Relu and float32"),
    ((10,), "whole"),
]


@pytest.mark.parametrize(("levels", "keyword"), CHECKS)
def test_quick(levels: tuple[int, ...], keyword: str) -> None:
    report = run("opencl", levels=levels, quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert all(report.counts(level) for level in levels)


@pytest.mark.full
def test_in_full() -> None:
    report = run("opencl")
    assert report.passed, report.summary()
    shares = {share.model: share.share for share in report.shares}
    assert shares["resnet18"] == shares["mobilenet_v2"] == 1
    assert {"MatMul", "Conv", "Softmax", "MaxPool", "LayerNorm", "GRU"} <= set(report.claimed())
