"""Layouts of groups in blocks of their own: what is stored where, and zeros in all padding, whoever writes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.graph.relayout import Relayout
from weft.loop.nodes import Program, int_const
from weft.lower.lower import lower_group
from weft.passes.layout_offers import conv_layout, conv_weight_layout
from weft_interpreter.interpret import interpret
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv


def run(program: Program, *arrays: np.ndarray) -> np.ndarray:
    (found,) = interpret(
        program, [a.reshape([int_const(d) for d in b.shape]) for a, b in zip(arrays, program.inputs)]
    ).values()
    return np.asarray(found)


@given(st.integers(1, 4), st.integers(1, 11), st.integers(2, 5))
def test_every_element_is_where_the_map_says_and_padding_is_zero(groups: int, size: int, lanes: int) -> None:
    layout = conv_layout(3, groups * size, groups, lanes)
    x = np.arange(1, 1 + 2 * groups * size * 3, dtype=np.float32).reshape(2, groups * size, 3)
    stored = layout.pack(x)
    np.testing.assert_array_equal(layout.unpack(stored, x.shape), x)
    assert np.count_nonzero(stored) == x.size and layout.pads(x.shape) == (stored.size > x.size)
    for index in np.ndindex(*x.shape):
        place = tuple(int_const(i) for i in layout.map(index))
        assert stored[place] == x[index]  # type: ignore[index]
        at, inside = layout.joined([i for i in place if i is not None], x.shape)
        assert tuple(int_const(i) for i in at) == index and all(getattr(c, "value", None) for c in inside)


@given(st.integers(1, 3), st.integers(1, 11), st.integers(2, 4))
def test_conversions_write_the_padding_of_every_group(groups: int, size: int, lanes: int) -> None:
    layout = conv_layout(3, groups * size, groups, lanes)
    x = np.random.default_rng(size).standard_normal((2, groups * size, 3), np.float32)
    for before, after in ((None, layout), (layout, None), (layout, blocked(3, 1, 3))):
        b = GraphBuilder()
        value = b.input("x", tensor_type("float32", x.shape).with_layout(before))
        b.output(b.add(Relayout(after), value))
        want = x if after is None else after.pack(x)
        np.testing.assert_array_equal(
            run(lower_group(b.build()), x if before is None else before.pack(x)).reshape(want.shape), want
        )


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(3, 5, 6), (2, 4, 7), (2, 7, 4), (4, 1, 3), (1, 6, 5)])
def test_a_convolution_of_groups_in_blocks(groups: int, inputs: int, outputs: int, rows: bool) -> None:
    r = np.random.default_rng(0)
    x, w = (
        r.standard_normal((2, groups * inputs, 5, 4), np.float32),
        r.standard_normal((groups * outputs, inputs, 3, 2), np.float32),
    )
    bias = r.standard_normal((groups * outputs, 1, 1), np.float32)
    layouts = (
        None if rows else conv_layout(4, groups * inputs, groups, 4),
        conv_weight_layout(4, 4, not rows, False, group=outputs if groups > 1 else None),
    )
    result = conv_layout(4, groups * outputs, groups, 4)
    b = GraphBuilder()
    operands = [
        b.input(n, tensor_type("float32", a.shape).with_layout(layout)) for n, a, layout in zip("xw", (x, w), layouts)
    ]
    y = b.add(Conv(pads=(1, 0, 1, 0), groups=groups), *operands)
    z = b.add(Add(), y, b.input("b", tensor_type("float32", bias.shape)))
    for value in (y, z):
        value.type = value.tensor.with_layout(result)
    b.output(z)
    program = lower_group(b.build())
    got = run(program, *(a if layout is None else layout.pack(a) for a, layout in zip((x, w), layouts)), bias)
    want = result.pack(Conv(pads=(1, 0, 1, 0), groups=groups).reference(x, w) + bias)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    if not rows and inputs > 4:
        assert any(
            "r0i" in str(loop) for loop in str(program).splitlines()
        )  # the padded block of input channels is a loop of its own


def test_splits_within_splits_know_what_pads() -> None:
    layout = Layout((Split(0, 6), Split(1, 4), Permute((1, 0, 2))))
    assert layout.stored_shape((18,)) == (2, 3, 4) and layout.pads((18,))
    assert not Layout((Split(0, 8), Split(1, 4))).pads((16,))
