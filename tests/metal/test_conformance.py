"""The conformance kit on a Metal that is played: its memory, and faults. Samples run by the same shim in
tests/gpu/test_shims.py."""

from __future__ import annotations

import pytest
from tests.metal.fake import Gpu

from weft_testing.conform import run


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param({"unified": False}, id="discrete", marks=pytest.mark.full),
        pytest.param({"unified": True}, id="unified"),
    ],
    indirect=True,
)
def test_device_and_faults(gpu: Gpu) -> None:
    report = run("metal", levels=(2, 8), quick=True)
    assert report.passed, report.summary()
    assert report.counts(2) and report.counts(8)
