"""The kit on llvm: in CI one sample of some operators, with --full all of it."""

from __future__ import annotations

import pytest

from weft_testing.conform import run

ALONE = (
    "(float32 and (MatMul or Softmax or Resize or LSTM or TopK)) or (Conv and int8) or (Cast and float16) or intrinsic"
    " or something"
)
"""One of each way to a kernel: products, rows, tables, scans, loop programs, conversions."""
TOGETHER = "dense or odd or attention or movement or mlp or resnet18"


TILES = "(product and MatMul and float32) or meaning"
CHECKS = [((1, 2, 8), ""), ((3, 4, 9), ALONE), ((5, 6), TOGETHER), ((7,), "seeds or results"), ((10,), TILES)]


@pytest.mark.parametrize(("levels", "keyword"), CHECKS)
def test_quick(levels: tuple[int, ...], keyword: str) -> None:
    report = run("llvm", levels=levels, quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert report.owner.startswith("weft-llvm ")
    assert all(report.counts(level) for level in levels)


@pytest.mark.full
def test_in_full() -> None:
    report = run("llvm")
    assert report.passed, report.summary()
    assert not report.refused()
    assert all(share.share == 1 for share in report.shares)
    assert all(use.launches for use in (*report.usage.rules.values(), *report.usage.intrinsics.values()))
