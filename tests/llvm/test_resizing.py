"""Resizing of any shape along any axes: axis after axis, with tables of places and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.test_samples import assert_close

import weft
from weft.compilation import Compilation
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.graph.operator import Sample
from weft.resolve import resolve_target
from weft_ops.image import Resize
from weft_ops.words import COORDINATES, NEAREST


@st.composite
def resizings(draw: Any) -> tuple[Resize, tuple[int, ...], str]:
    rank = draw(st.integers(1, 4))
    most = {1: 200, 2: 40, 3: 24, 4: 12}[rank]
    before, after = (draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank)) for _ in range(2))
    axes = draw(st.permutations(range(rank)).flatmap(lambda p: st.integers(1, rank).map(lambda k: tuple(p[:k]))))
    shape = tuple(after[d] if d in axes else before[d] for d in range(rank))
    mode = draw(st.sampled_from(("nearest", "linear", "linear", "cubic")))
    op = Resize(
        shape,
        mode,
        draw(st.sampled_from([c for c in COORDINATES if c != "tf_crop_and_resize"])),
        draw(st.sampled_from(NEAREST)),
        axes,
        exclude_outside=draw(st.booleans()),
        antialias=mode != "nearest" and draw(st.booleans()),
    )
    # Cubic weights lead out of the range of uint8.
    bytes_ = () if mode == "cubic" else ("uint8",)
    return op, tuple(before), draw(st.sampled_from(("float32", "float32", "float64", "float16", *bytes_)))


@settings(max_examples=80, deadline=None)
@given(resizings())
def test_every_resizing_is_that_of_its_reference(case: tuple[Resize, tuple[int, ...], str]) -> None:
    op, before, dtype = case
    t = tensor_type(dtype, before)
    values = np.random.default_rng(0)
    x = values.integers(0, 255, before) if dtype == "uint8" else values.standard_normal(before)
    x = x.astype(t.dtype.numpy)
    b = GraphBuilder()
    b.output(b.add(op, b.input("x", t)), "y")
    y = weft.compile(b.build(), target="llvm -threads=2", cache=False).run({"x": x})["y"]
    if dtype == "uint8" and op.mode != "nearest":
        # Weights are float32, the reference's are float64: beside a whole number their sums are cut off differently.
        assert y.shape == op.shape and y.dtype == np.uint8
        assert np.abs(y.astype(int) - op.reference(x).astype(int)).max() <= op.tolerance(t)
    else:
        assert_close(op, Sample(op, (x,)), y, op.reference(x))


def kernel(op: Resize, before: tuple[int, ...]) -> Any:
    b = GraphBuilder()
    b.output(b.add(op, b.input("x", tensor_type("float32", before))), "y")
    compilation = Compilation(resolve_target("llvm -threads=1"), cache=False)
    executable = compilation.run(b.build())
    x = np.random.default_rng(0).standard_normal(before, np.float32)
    assert_close(op, Sample(op, (x,)), executable.run({"x": x})["y"], op.reference(x))
    (only,) = compilation.kernels.values()
    return only


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        ((3, 40, 30), (3, 80, 60), ["along2", "along1"]),  # what grows comes last
        ((3, 80, 60), (3, 40, 30), ["along1", "along2"]),
        ((3, 40, 60), (3, 80, 30), ["along2", "along1"]),
    ],
)
def test_the_innermost_axis_is_resized_where_the_fewest_elements_are(
    before: tuple[int, ...], after: tuple[int, ...], order: list[str]
) -> None:
    made = kernel(Resize(after, "linear"), before)
    text = str(made.scheduled)
    places = {name: text.index(f"block {name}(") for name in order}
    assert sorted(places, key=places.__getitem__) == order
    # Rows share the places of their elements; the other axis has vectors.
    ways = {c.name: c.value for c in made.choices}
    assert (ways["along2.lanes"], ways["along2.rows"], ways["along1.lanes"]) == ("none", 4, "contiguous")


def test_elements_that_are_gathered_and_read_twice_are_stored() -> None:
    """Not gathered again for each of the rows that are blended, however few of these there are."""
    text = str(kernel(Resize((3, 45, 53), "linear"), (3, 40, 30)).scheduled)
    assert "block along1(" in text and "block along2(" in text


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_places_of_a_wide_window_are_computed_once(mode: Any) -> None:
    made = kernel(Resize((2, 9, 11), mode, antialias=True), (2, 40, 64))
    (along,) = [x for x in str(made.scheduled).split("block ") if x.startswith("along2(")]
    assert "floor" not in along.split("@ op")[1]
