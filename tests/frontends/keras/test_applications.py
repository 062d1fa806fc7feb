"""A net of keras.applications; `python -m tests.frontends.keras.applications` compares all of them."""

from __future__ import annotations

import pytest
from tests.frontends.keras.applications import MOST, difference, net, transpositions

pytestmark = pytest.mark.needs("keras")


@pytest.mark.needs("weft_llvm")
def test_a_mobilenet_keeps_the_transposition_of_its_input_alone() -> None:
    """Its layout is the caller's."""
    assert transpositions(net("MobileNet", size=32, alpha=0.25)) == (28, 1)


def test_a_mobilenet_agrees_with_keras() -> None:
    assert difference(net("MobileNetV2", size=32, alpha=0.35), None) < MOST
