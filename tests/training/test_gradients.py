"""Every operator has a gradient that agrees with differences, or a reason why it has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.training.differences import applied, check

from weft.errors import UnsupportedError
from weft.graph.operator import Operator, Sample
from weft_ops import ALL_OPERATORS, TopK


def distinct(sample: Sample) -> Sample:
    """The sample without equal elements: of three that share several places of an order, each has the gradient of one
    place, which need not lie between those of the first and the last."""
    arrays = [None if a is None else a + 1e-3 * np.arange(a.size).reshape(a.shape) for a in sample.inputs]
    return replace(sample, inputs=tuple(arrays)) if sample.name.startswith("heap") else sample


CASES = [
    pytest.param(op, sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ALL_OPERATORS
    for k, sample in enumerate(map(distinct if op is TopK else lambda s: s, op.samples()))
    if applied(sample) is not None
]


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_the_gradient_agrees_with_differences(op: type[Operator], sample: Sample) -> None:
    case = applied(sample)
    assert case is not None
    if op.no_gradient:
        with pytest.raises(UnsupportedError, match=f"no gradient passes {op.operator_name}") as caught:
            check(case)
        assert caught.value.why == op.no_gradient
        return
    compared = check(case)
    assert compared or not any(a.size for a in case.inputs.values())
