"""Compiled products of any shape agree with numpy: tails of rows and columns, operands as they come, batches, few rows
and deep sums."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.passes.library import run_passes

from weft import dtypes as dt
from weft.compilation import Compilation
from weft.expr.nodes import Var
from weft.graph.group import Group
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.lower.lower import lower_group
from weft.resolve import resolve_target
from weft.scheduling.schedule import Schedule
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Transpose

quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
edge = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 24, 31, 32, 33, 48, 65, 86, 100]))


def compiled(builder: GraphBuilder, threads: int = 2) -> tuple[Compilation, Any]:
    compilation = Compilation(resolve_target(f"llvm -threads={threads}"), cache=False)
    executable = compilation.run(builder.build())
    for kernel in compilation.kernels.values():
        assert not [why for _, why in kernel.declines if why.startswith("failed")]
    return compilation, executable


def scheduled(builder: GraphBuilder, target_string: str) -> Schedule:
    """The one convolution among the graph's groups as the rule schedules it."""
    target = resolve_target(target_string)
    groups: list[Group] = [
        n.op for n in run_passes(builder.build(), target.capabilities).nodes if isinstance(n.op, Group)
    ]
    (group,) = (g.body for g in groups if any(isinstance(m.op, Conv) for m in g.body.nodes))
    (rule,) = (r for r in target.rules if r.name == "contraction")
    s = Schedule(lower_group(group), target.machine, intrinsics=target.intrinsics)
    rule.apply(s)
    return s


def check(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(want).max())))


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@quick
@given(
    m=edge,
    k=edge,
    n=edge,
    batch=st.sampled_from([(), (3,), (2, 2)]),
    transposed=st.booleans(),
    constant=st.booleans(),
    tail=st.booleans(),
)
def test_products(m: int, k: int, n: int, batch: tuple[int, ...], transposed: bool, constant: bool, tail: bool) -> None:
    b = GraphBuilder()
    x, w, bias = normal(0, *batch, m, k), normal(1, *batch, *((n, k) if transposed else (k, n))), normal(2, n)
    left = b.input("x", tensor_type("float32", x.shape))
    right = b.constant(w) if constant else b.input("w", tensor_type("float32", w.shape))
    if transposed:
        right = b.add(Transpose((*range(len(batch)), len(batch) + 1, len(batch))), right)
    y = b.add(MatMul(), left, right)
    want = x @ (np.swapaxes(w, -1, -2) if transposed else w)
    if tail:
        y, want = b.add(Relu(), b.add(Add(), y, b.constant(bias))), np.maximum(want + bias, 0)
    b.output(y, "y")
    _, executable = compiled(b)
    check(executable.run({"x": x} if constant else {"x": x, "w": w})["y"], want)


def test_short_sums_write_each_row_from_end_to_end() -> None:
    b = GraphBuilder()
    x, w = normal(0, 1, 10, 41, 37), normal(1, 208, 5, 1, 1)
    b.output(
        b.add(Conv((1, 1), (0, 0, 0, 0), (1, 1), 2), b.input("x", tensor_type("float32", x.shape)), b.constant(w)), "y"
    )
    compilation, executable = compiled(b)
    want = np.einsum("gchw,goc->gohw", x.reshape(2, 5, 41, 37), w.reshape(2, 104, 5)).reshape(1, 208, 41, 37)
    check(executable.run({"x": x})["y"], want)
    (kernel,) = [k for k in compilation.kernels.values() if k.rule == "contraction"]
    first = next(line for line in str(kernel.trace).splitlines() if line.startswith("reorder("))
    assert first.index("'conv_i1_1_0'") < first.index(
        "'conv_i3_0'"
    )  # tiles of output channels, then tiles along the picture


PARTS = [(128, 1056, 2), (32, 1056, 2), (64, 1056, 1), (127, 1056, 1), (128, 1050, 2), (470, 343, 5), (368, 16, 1)]


@pytest.mark.parametrize(("rows", "columns", "parts"), PARTS)
def test_rows_in_parts(rows: int, columns: int, parts: int) -> None:
    """Rows are cut into parts where their last tile would be low; a part's last tile ends with it, whatever follows the
    product."""
    b = GraphBuilder()
    x, w, bias = normal(0, rows, 768), normal(1, 768, columns), normal(2, columns)
    y = b.add(Add(), b.add(MatMul(), b.input("x", tensor_type("float32", x.shape)), b.constant(w)), b.constant(bias))
    b.output(b.add(Relu(), y), "y")
    for target in ("llvm -threads=2", "llvm -mcpu=znver3 -mtriple=x86_64-unknown-linux-gnu -threads=2"):
        compilation = Compilation(resolve_target(target), cache=False)
        executable = compilation.run(b.build())
        traces = [str(k.trace) for k in compilation.kernels.values()]
        assert not [why for k in compilation.kernels.values() for _, why in k.declines if why.startswith("failed")]
        if target == "llvm -threads=2":
            check(executable.run({"x": x})["y"], np.maximum(x @ w + bias, 0))
    chosen = [line for t in traces for line in t.splitlines() if line.startswith("choose('row_parts'")]
    assert [int(line.split("→")[1]) for line in chosen] == [parts] or (parts == 1 and not chosen)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_sizes_known_when_run(transposed: bool) -> None:
    b = GraphBuilder()
    m, k, n = Var("m"), Var("k"), Var("n")
    left, right = (
        b.input("x", tensor_type("float32", (m, k))),
        b.input("w", tensor_type("float32", (n, k) if transposed else (k, n))),
    )
    b.output(b.add(MatMul(), left, b.add(Transpose((1, 0)), right) if transposed else right), "y")
    _, executable = compiled(b)
    for size in ((1, 1, 1), (5, 7, 33), (40, 20, 16), (19, 64, 100)):
        x, w = normal(0, size[0], size[1]), normal(1, size[1], size[2])
        check(executable.run({"x": x, "w": np.ascontiguousarray(w.T) if transposed else w})["y"], x @ w)


def test_a_transposed_operand_is_copied_into_panels_inside_the_kernel() -> None:
    b = GraphBuilder()
    left, right = b.input("x", tensor_type("float32", (40, 30))), b.input("w", tensor_type("float32", (50, 30)))
    b.output(b.add(MatMul(), left, b.add(Transpose((1, 0)), right)), "y")
    compilation, _ = compiled(b)
    (kernel,) = compilation.kernels.values()
    assert kernel.rule == "contraction" and "cache_read" in str(kernel.trace)


def test_few_rows_read_a_transposed_operand_as_it_lies() -> None:
    b = GraphBuilder()
    left, right = b.input("x", tensor_type("float32", (3, 203))), b.input("w", tensor_type("float32", (50, 203)))
    b.output(b.add(MatMul(), left, b.add(Transpose((1, 0)), right)), "y")
    compilation, executable = compiled(b)
    (kernel,) = compilation.kernels.values()
    assert kernel.rule == "contraction" and "rfactor" in str(kernel.trace) and "cache_read" not in str(kernel.trace)
    x, w = normal(0, 3, 203), normal(1, 50, 203)
    check(executable.run({"x": x, "w": w})["y"], x @ w.T)


@pytest.mark.parametrize(
    ("channels", "height", "width", "taps", "pad"),
    [(5, 19, 19, 5, 0), (3, 45, 45, 3, 1), (2, 30, 56, 7, 3), (4, 9, 33, 3, 0), (3, 1, 40, 1, 0), (2, 7, 61, 5, 2)],
)
def test_rows_of_one_channel_are_computed_side_by_side(
    channels: int, height: int, width: int, taps: int, pad: int
) -> None:
    """Rows that are no whole vectors: with one alone every multiply-add would wait for the last one."""
    b = GraphBuilder()
    x, w = normal(0, 1, channels, height, width), normal(1, channels, 1, taps, taps)
    op = Conv((1, 1), (pad,) * 4, (1, 1), channels)
    b.output(b.add(op, b.input("x", tensor_type("float32", x.shape)), b.constant(w)), "y")
    compilation, executable = compiled(b)
    check(executable.run({"x": x})["y"], op.reference(x, w))
    if (
        height >= 19 and len(compilation.kernels) == 1
    ):  # few rows leave no whole tiles; of several kernels others bring channels into blocks
        (kernel,) = compilation.kernels.values()
        columns = int(re.search(r"tile_columns'.*→ (\d+)", str(kernel.trace)).group(1))  # type: ignore[union-attr]
        vectors = -(-(width + 2 * pad - taps + 1) // resolve_target("llvm").machine.lanes(dt.float32))
        assert columns > vectors or columns >= 4


def product_of_constants(m: int, k: int, n: int) -> tuple[Any, str]:
    """The kernel of a product by constant weights, whose numbers are right, and its trace."""
    b = GraphBuilder()
    x, w = normal(0, m, k), normal(1, k, n)
    b.output(b.add(MatMul(), b.input("x", tensor_type("float32", x.shape)), b.constant(w)), "y")
    compilation, executable = compiled(b)
    check(executable.run({"x": x})["y"], x @ w)
    (kernel,) = compilation.kernels.values()
    return kernel, str(kernel.trace)


def test_weights_from_memory_are_asked_for_ahead() -> None:
    second = resolve_target("llvm").machine.caches[1]
    columns = 2 * second // (4 * 200) // 32 * 32
    kernel, trace = product_of_constants(20, 200, columns)
    assert "prefetch(" in trace and str(kernel.lowered).count("@prefetch(") > 0
    # Weights that stay in the second cache; one tile of rows, which is a stream; a panel that has no room.
    assert "prefetch(" not in product_of_constants(20, 200, 64)[1]
    assert "prefetch(" not in product_of_constants(1, 200, columns)[1]
    assert "prefetch(" not in product_of_constants(20, second // 64, 64)[1]


def pointwise(channels: int, size: int, stride: int = 1) -> str:
    """The trace of the second of two 1×1 convolutions, which reads channels in blocks; its result is checked."""
    b = GraphBuilder()
    x, first, second = (
        normal(0, 1, channels, size, size),
        normal(1, channels, channels, 1, 1),
        normal(2, 24, channels, 1, 1),
    )
    middle, last = Conv((1, 1), (0,) * 4, (1, 1)), Conv((stride, stride), (0,) * 4, (1, 1))
    b.output(
        b.add(
            last,
            b.add(Relu(), b.add(middle, b.input("x", tensor_type("float32", x.shape)), b.constant(first))),
            b.constant(second),
        ),
        "y",
    )
    compilation, executable = compiled(b)
    check(executable.run({"x": x})["y"], last.reference(np.maximum(middle.reference(x, first), 0), second))
    return str(next(k for k in compilation.kernels.values() if k.rule == "contraction" and "relu" not in k.name).trace)


def test_the_next_block_of_channels_is_asked_for_ahead() -> None:
    machine = resolve_target("llvm").machine
    channels = 16 * machine.lanes(dt.float32)
    assert "prefetch(" in pointwise(channels, 13) and "prefetch(" in pointwise(channels, 13, stride=2)
    # The next tile's rows, too, where nothing lies between them; of a tile with many rows those alone.
    few = machine.vector_registers <= 16
    assert [pointwise(channels, 13, stride).count("prefetch(") for stride in (1, 2)] == [1 + few, 1]
    # Rows that stay in the first cache; few blocks.
    assert "prefetch(" not in pointwise(channels, 3)
    assert "prefetch(" not in pointwise(channels // 4, 60)


@quick
@given(
    channels=st.sampled_from([1, 3, 8, 13, 16, 24]),
    outputs=st.sampled_from([1, 2, 8, 11, 16, 21, 40]),
    size=st.tuples(st.integers(5, 15), st.integers(5, 15)),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2]),
    padded=st.booleans(),
)
def test_convolutions(
    channels: int, outputs: int, size: tuple[int, int], kernel: int, stride: int, dilation: int, padded: bool
) -> None:
    op = Conv(
        (stride, stride),
        (dilation * (kernel // 2),) * 4 if padded else (0,) * 4,
        (dilation, dilation) if kernel == 3 else (1, 1),
    )
    if any(s + 2 * op.pads[0] < op.dilations[0] * (kernel - 1) + 1 for s in size):
        return
    b = GraphBuilder()
    x, w, bias = normal(0, 1, channels, *size), normal(1, outputs, channels, kernel, kernel), normal(2, outputs, 1, 1)
    y = b.add(
        Relu(), b.add(Add(), b.add(op, b.input("x", tensor_type("float32", x.shape)), b.constant(w)), b.constant(bias))
    )
    b.output(y, "y")
    _, executable = compiled(b)
    check(executable.run({"x": x})["y"], np.maximum(op.reference(x, w) + bias, 0))


@quick
@given(
    groups=st.sampled_from([2, 3, 5, 8]),
    inputs=st.sampled_from([1, 2, 3, 7, 8, 10, 13]),
    outputs=st.sampled_from([1, 2, 3, 5, 8, 9, 12, 61]),
    size=st.tuples(st.integers(7, 14), st.integers(7, 14)),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 2]),
)
def test_grouped_convolutions(
    groups: int, inputs: int, outputs: int, size: tuple[int, int], kernel: int, stride: int
) -> None:
    op = Conv((stride, stride), (kernel // 2,) * 4, groups=groups)
    b = GraphBuilder()
    x, w, bias = (
        normal(0, 2, groups * inputs, *size),
        normal(1, groups * outputs, inputs, kernel, kernel),
        normal(2, groups * outputs, 1, 1),
    )
    y = b.add(
        Relu(), b.add(Add(), b.add(op, b.input("x", tensor_type("float32", x.shape)), b.constant(w)), b.constant(bias))
    )
    b.output(y, "y")
    compilation, executable = compiled(b)
    rules = [k.rule for k in compilation.kernels.values()]
    # One output channel of a group at a stride is no product of rows, and one tap of one channel no sum.
    assert rules.count("contraction") == 1 or ((outputs == 1 or inputs * kernel == 1) and "fallback" not in rules)
    check(executable.run({"x": x})["y"], np.maximum(op.reference(x, w) + bias, 0))


@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "kernel", "stride", "size"),
    [(4, 8, 136, 3, 1, 9), (16, 2, 43, 3, 2, 44), (3, 8, 232, 3, 1, 15)],
)
def test_groups_of_prime_numbers_of_blocks(
    groups: int, inputs: int, outputs: int, kernel: int, stride: int, size: int
) -> None:
    """Neither tiles nor tasks may reach from one group's channels into the next group's."""
    op = Conv((stride, stride), (kernel // 2,) * 4, groups=groups)
    b = GraphBuilder()
    x, w = normal(0, 1, groups * inputs, size, size), normal(1, groups * outputs, inputs, kernel, kernel)
    b.output(b.add(op, b.input("x", tensor_type("float32", x.shape)), b.constant(w)), "y")
    compilation, executable = compiled(b)
    assert [k.rule for k in compilation.kernels.values()].count("contraction") == 1
    check(executable.run({"x": x})["y"], op.reference(x, w))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "kernel", "size"),
    [(3, 19, 93, 1, 37), (8, 6, 61, 1, 66), (5, 4, 61, 3, 34), (8, 79, 2, 1, 40), (4, 5, 1, 3, 40)],
)
def test_groups_whose_rows_no_tile_divides(
    groups: int, inputs: int, outputs: int, kernel: int, size: int, threads: int
) -> None:
    """Rows of single channels: the last tile of a group is lower, and what follows in the next group's rows stays
    untouched."""
    op = Conv(groups=groups)
    b = GraphBuilder()
    x, w, bias = (
        normal(0, 2, groups * inputs, size, size),
        normal(1, groups * outputs, inputs, kernel, kernel),
        normal(2, groups * outputs, 1, 1),
    )
    b.output(
        b.add(
            Relu(),
            b.add(Add(), b.add(op, b.input("x", tensor_type("float32", x.shape)), b.constant(w)), b.constant(bias)),
        ),
        "y",
    )
    compilation, executable = compiled(b, threads)
    assert [k.rule for k in compilation.kernels.values()] == ["contraction"]
    check(executable.run({"x": x})["y"], np.maximum(op.reference(x, w) + bias, 0))


def test_rows_of_one_group_are_of_no_use_to_another() -> None:
    """Rows that the second cache has no room for are not taken in parts around all groups, which no loop over parts and
    pictures could share out."""
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (Var("batch"), 224, 24, 24)))
    b.output(b.add(Conv((1, 1), (1, 1, 1, 1), groups=16), x, b.constant(normal(0, 400, 14, 3, 3))))
    s = scheduled(b, "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -threads=2")
    assert any(step.do == "parallel" for step in s.trace.steps)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "threads"), [(144, 32, 28, 1), (192, 64, 14, 1), (144, 32, 28, 4), (144, 24, 56, 16)]
)
def test_parts_of_rows_whose_last_tile_is_not_whole(inputs: int, outputs: int, size: int, threads: int) -> None:
    """All columns in one tile, so that tasks are made of rows, which are taken in parts: the rule schedules them, and
    no loop runs over two parts' tiles."""
    b = GraphBuilder()
    w = normal(0, outputs, inputs, 1, 1)
    b.output(
        b.add(
            Add(),
            b.add(Conv(), b.input("x", tensor_type("float32", (1, inputs, size, size))), b.constant(w)),
            b.constant(normal(1, outputs, 1, 1)),
        )
    )
    s = scheduled(b, f"llvm -mtriple=x86_64-linux-gnu -mcpu=znver3 -threads={threads}")
    assert any(step.do == "parallel" for step in s.trace.steps)
