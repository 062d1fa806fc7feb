"""The conformance kit on the target "cuda", with a driver that is played: in CI some samples of some operators, with
--full all levels but speed."""

from __future__ import annotations

import pytest
from tests.cuda.fake import FakeApi

from weft_testing.conform import run

TARGET = "cuda -arch=sm_90"
ALONE = "float32 and (Relu or Add or Softmax or Transpose)"


@pytest.mark.parametrize(("levels", "keyword"), [((1, 2, 8), ""), ((3,), ALONE)])
def test_quick(api: FakeApi, levels: tuple[int, ...], keyword: str) -> None:
    api.piece = api.memory
    report = run(TARGET, levels=levels, quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert all(report.counts(level) for level in levels)


@pytest.mark.full
def test_in_full(api: FakeApi) -> None:
    api.piece = api.memory
    report = run(TARGET, levels=(1, 2, 3, 4, 5, 6, 8))
    assert report.passed, report.summary()
