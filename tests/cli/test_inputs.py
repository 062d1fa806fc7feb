"""Inputs that are made up: what they may be, and sizes by formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.cli.inputs import make_inputs, random_array
from weft.cli.run import write_arrays
from weft.errors import InputError
from weft_runtime.plan import TensorInfo


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("bool", 0, 1),
        ("int64", 0, 1),
        ("uint32", 0, 1),
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("float32", -8, 8),
        ("bfloat16", -8, 8),
    ],
)
def test_values_suit_the_type(dtype: str, low: int, high: int) -> None:
    array = random_array(np.random.default_rng(0), dtype, (1000,))
    assert str(array.dtype) == dtype
    assert low <= array.astype(np.float64).min() < array.astype(np.float64).max() <= high


def test_sizes_follow_formulas_over_symbols_that_other_inputs_bind() -> None:
    infos = [
        TensorInfo("x", "float32", ("n", 4)),
        TensorInfo("y", "float32", ("n*2 + 1",)),
        TensorInfo("z", "int32", ("m",)),
    ]
    arrays, origins = make_inputs(infos, {}, {"x": (3, 4)}, 0)
    assert [a.shape for a in arrays.values()] == [(3, 4), (7,), (1,)]
    assert origins == {"x": "random, seed 0", "y": "random, seed 0", "z": "random, seed 0, m = 1"}


def test_a_size_that_cannot_be_known() -> None:
    with pytest.raises(InputError) as caught:
        make_inputs([TensorInfo("y", "float32", ("n*2",))], {}, {}, 0)
    assert (
        str(caught.value) == "the size n*2 of input 'y' is not known\n  y: float32[n*2]\n  hint: give --input-shape y=…"
    )


def test_a_shape_of_another_rank_or_name() -> None:
    with pytest.raises(InputError, match="input 'x' has 2 dimensions, 1 are given"):
        make_inputs([TensorInfo("x", "float32", ("n", 4))], {}, {"x": (3,)}, 0)
    with pytest.raises(InputError) as caught:
        make_inputs([TensorInfo("picture", "float32", (4,))], {}, {"pictur": (4,)}, 0)
    assert (
        str(caught.value)
        == "--input-shape names 'pictur', which is no input\n  picture: float32[4]\n  hint: did you mean 'picture'?"
    )


def test_output_files_have_distinct_names_that_file_systems_take(tmp_path: Path) -> None:
    arrays = {"a/b": np.zeros(1), "a:b": np.ones(1), "../c": np.ones(2), "": np.ones(3)}
    written = write_arrays(arrays, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_c.npy", "a_b.npy", "a_b_1.npy", "output.npy"]
    assert np.load(written["a:b"]).tolist() == [1.0]
