"""The conformance kit on the example accelerator: in CI one sample of some operators, with --full all of it."""

from __future__ import annotations

import pytest

from weft_testing.conform import run

pytestmark = pytest.mark.usefixtures("npu")

ALONE = "(float32 and (MatMul or Relu or Softmax or Transpose or TopK)) or (Add and not Pad) or intrinsic or something"
"""The matrix unit, the vector unit, sums, copies, and what is declined."""
TOGETHER = "dense or odd or fork or mlp"


@pytest.mark.parametrize(
    ("levels", "keyword"), [((1, 2, 8), ""), ((3, 4, 9), ALONE), ((5, 6), TOGETHER), ((7,), "seeds or results")]
)
def test_quick(levels: tuple[int, ...], keyword: str) -> None:
    report = run("npu", levels=levels, quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert all(report.counts(level) for level in levels)


def test_products_are_the_matrix_units() -> None:
    """Whole, ragged and several tiles, alone and among other operators."""
    report = run("npu", levels=(10,), keyword="product and (whole or several or more)", quick=True)
    assert report.passed, report.summary()
    products = report.usage.products[10]
    assert products.by_intrinsics == products.launches > 5
    assert report.usage.rules["gemm"].multiply_adds > 0 == report.usage.rules["vector"].multiply_adds
    assert all(report.usage.intrinsics[name].multiply_adds for name in ("gemm8x8", "gemm1x8"))


@pytest.mark.full
def test_in_full() -> None:
    report = run("npu")
    assert report.passed, report.summary()
    assert all(use.launches for use in (*report.usage.rules.values(), *report.usage.intrinsics.values()))
    assert report.usage.products[10].share > 0.9
    shares = {share.model: share.share for share in report.shares}
    assert shares["resnet18"] == shares["mobilenet_v2"] == 1
    assert {"MatMul", "Conv", "Softmax", "MaxPool", "LayerNorm"} <= set(report.claimed())
