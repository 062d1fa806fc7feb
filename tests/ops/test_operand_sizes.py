"""Type rules refuse sizes of operands that do not fit together: what they let pass, the reference computes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import numpy as np
import pytest

import weft_ops
from weft import dtypes as dt
from weft.errors import GraphError, TensorError
from weft.graph.inferred import Inferred
from weft.graph.nodes import TensorType
from weft.graph.operator import Operator

INDICES = "their elements are indices, which a run checks"
ZEROS = "the number of zero points is checked by what they are broadcast to"
NOT_CHECKED = {
    "GatherElements": INDICES,
    "ScatterElements": INDICES,
    "RoiAlign": INDICES,
    "RoiAlignGreatest": INDICES,
    "TreeEnsemble": INDICES,
    "MaskedTrees": INDICES,
    "MatMulInteger": ZEROS,
    "ConvInteger": ZEROS,
    "QLinearConv": ZEROS,
    "QLinearMatMul": ZEROS,
    "Recurrence": "made by RecurrentNetwork alone, which states what it needs",
}


def classes() -> list[type[Operator]]:
    """Those of the library that have samples with several operands."""
    for module in pkgutil.iter_modules(weft_ops.__path__):
        importlib.import_module(f"weft_ops.{module.name}")

    def below(cls: type[Operator]) -> Iterator[type[Operator]]:
        for sub in cls.__subclasses__():
            yield sub
            yield from below(sub)

    found = {c for c in below(Operator) if c.__module__.startswith("weft_ops.")}
    return sorted((c for c in found if _operands(c) > 1), key=lambda c: c.__name__)


def _operands(cls: type[Operator]) -> int:
    try:
        samples = list(cls.samples())
    except (TypeError, NotImplementedError):  # an abstract base
        return 0
    return max((sum(a is not None for a in s.inputs) for s in samples), default=0)


def resized(array: np.ndarray, axis: int, change: int) -> np.ndarray | None:  # type: ignore[type-arg]
    """The array with another size along an axis."""
    size = array.shape[axis]
    if not size or size + change < 1:
        return None
    return np.take(array, np.arange(size + change) % size, axis)


@pytest.mark.parametrize("cls", [c for c in classes() if c.__name__ not in NOT_CHECKED], ids=lambda c: c.__name__)
def test_sizes_that_do_not_fit(cls: type[Operator]) -> None:
    for sample in list(cls.samples())[:6]:
        for k, array in enumerate(sample.inputs):
            for axis in range(np.ndim(array) if array is not None else 0):
                for change in (1, -1):
                    other = resized(np.asarray(array), axis, change)
                    if other is None:
                        continue
                    given = [other if n == k else a for n, a in enumerate(sample.inputs)]
                    types = [None if a is None else TensorType(dt.dtype(a.dtype), a.shape) for a in given]
                    try:
                        inferred = Inferred.of(sample.op.infer(*types)).types
                    except (GraphError, TensorError):
                        continue
                    with np.errstate(all="ignore"):
                        results = sample.op.reference(*given)
                    results = results if isinstance(results, tuple) else (results,)
                    assert [np.shape(r) for r in results] == [t.shape for t in inferred], (sample.name, k, axis, change)


def test_what_is_not_checked_is_there() -> None:
    assert set(NOT_CHECKED) <= {c.__name__ for c in classes()}
