"""The formulas of `benchmarks.formulas`: schedules by hand, and those of the rule `searched`, give what numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks import formulas

import weft


def wanted(name: str, inputs: dict[str, Any]) -> Any:
    if name == "stencil":
        x, side = inputs["x"], 2 * formulas.RADIUS + 1
        n = formulas.SIDE
        near = [(a, b) for a in range(side) for b in range(side)]
        return sum(x[a : a + n, b : b + n] / (2 + abs(a - formulas.RADIUS) + abs(b - formulas.RADIUS)) for a, b in near)
    if name == "inverse":
        return np.linalg.inv(inputs["a"])
    far = np.abs(np.arange(formulas.TOKENS)[:, None] - np.arange(formulas.TOKENS)) * 0.05
    scores = inputs["q"] @ inputs["k"].transpose(0, 2, 1) * formulas.WIDTH**-0.5
    return 1 / (1 + np.exp(far - scores)) @ inputs["v"]


@pytest.mark.parametrize("name", formulas.FORMULAS)
def test_schedules_of_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, n in {"SIDE": 70, "BATCH": 24, "HEADS": 2, "TOKENS": 80}.items():
        monkeypatch.setattr(formulas, what, n)
    make, by_hand = formulas.FORMULAS[name]
    s = weft.schedule(make(), target="llvm -threads=2")
    inputs = formulas.inputs_of(s, name)
    work = formulas.Work(weft.schedule(make(), target="llvm -threads=2"), inputs)
    (key,) = work.calls
    default = work.space(key).default.choices
    by_hand(s)
    expected = wanted(name, inputs)
    for kernel in (weft.build(s), formulas._built(work, default)):
        found = kernel(*(inputs[i.name] for i in kernel.executable.inputs))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
