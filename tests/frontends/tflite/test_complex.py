"""Fourier transforms and complex numbers of TFLite, against LiteRT: 1e-5 of what are sums of some dozen numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import ModelWriter
from tests.frontends.tflite.oracle import litert

import weft
from weft.errors import FrontendError, UnsupportedError
from weft_testing.frontend import FrontendCase, check_frontend

X = np.random.default_rng(3).standard_normal((2, 6, 10)).astype(np.float32)
Step = tuple[str, Sequence[Any], dict[str, Any]]
"""An operator, its constants, its result."""


def model(lengths: Sequence[int], *steps: Step, shape: Sequence[int] = X.shape) -> bytes:
    """RFFT2D of one input, and what follows it."""
    writer = ModelWriter()
    g = writer.graph()
    x = g.input("float32", shape, name="x")
    half = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    (y,) = g.op("RFFT2D", [x, g.constant(np.int32(lengths))], [{"type": "COMPLEX64", "shape": half}])
    for name, constants, result in steps:
        (y,) = g.op(name, [y, *map(g.constant, constants)], [{"type": "COMPLEX64", **result}])
    g.outputs.append(y)
    return writer.bytes()


def real(name: str, shape: Sequence[int], **options: Any) -> Step:
    return name, [], {"type": "float32", "shape": shape, **options}


@pytest.mark.needs("ai_edge_litert")
@pytest.mark.parametrize("name", ["REAL", "IMAG", "COMPLEX_ABS"])
@pytest.mark.parametrize("lengths", [(8, 16), (4, 8), (1, 8)])
def test_transforms(name: str, lengths: tuple[int, int]) -> None:
    """Cut or padded to their lengths, which are powers of two in LiteRT."""
    shape = (2, lengths[0], lengths[1] // 2 + 1)
    source = model(lengths, real(name, shape))
    check_frontend(FrontendCase(source, {"x": X}, litert(source, True), "tflite", rtol=1e-5, atol=1e-5), target=None)


@pytest.mark.needs("ai_edge_litert")
def test_parts_move_together() -> None:
    """As in spectrograms, whose axes are moved between the transform and its real parts."""
    steps: list[Step] = [
        ("TRANSPOSE", [np.int32([1, 0, 2])], {"shape": (8, 2, 5)}),
        ("RESHAPE", [np.int32([16, 5])], {"shape": (16, 5)}),
        real("CAST", (16, 5)),
    ]
    source = model((8, 8), *steps)
    answer = litert(source, True)
    check_frontend(FrontendCase(source, {"x": X}, answer, "tflite", rtol=1e-5, atol=1e-5), target=None)


def test_magnitudes_of_large_numbers_are_finite() -> None:
    source = model((1, 2), real("COMPLEX_ABS", (1, 2)), shape=(1, 2))
    x = np.float32([[3e30, 2e30]])
    (got,) = weft.compile(source, "llvm").run({"x": x}).values()
    assert got == pytest.approx(np.abs(np.fft.rfft(x.astype(np.float64))), rel=1e-6)


def test_refusals() -> None:
    with pytest.raises(FrontendError, match="expected two lengths from 1"):
        weft.load(model((0, 10), real("REAL", (2, 1, 6))))
    with pytest.raises(UnsupportedError, match="operator EXP of complex numbers"):
        weft.load(model((6, 10), ("EXP", [], {"shape": (2, 6, 6)}), real("REAL", (2, 6, 6))))
    with pytest.raises(UnsupportedError, match=r"has complex numbers(.|\n)*real and imaginary parts"):
        weft.load(model((6, 10)))
