"""What becomes one kernel and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import keeps_meaning, numbers

import weft
from weft.compilation import Compilation
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.group import Group, kernel_text
from weft.graph.identity import Identity
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, SequenceType, Value, tensor_type
from weft.graph.operator import Operator
from weft.graph.relayout import Relayout
from weft.passes.fuse import fuse
from weft.passes.grouping import MOST_FUNCTIONS, at_most
from weft.resolve import resolve_target
from weft_ops.activation import Relu, Sigmoid, Tanh
from weft_ops.arithmetic import Add, Clip, Divide, Maximum, Multiply, Power, Subtract
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import BroadcastTo, Concat, Reshape, Transpose
from weft_ops.normalization import Softmax
from weft_ops.reduction import Argmax, ReduceMax, ReduceSum
from weft_ops.signal import Window
from weft_ops.transcendental import Exp, Sin

N = Var("n")


def groups(graph: Graph, *inputs: Any) -> list[str]:
    after = fuse(graph)
    keeps_meaning(graph, after, inputs)
    return [
        n.op.body.name + (" view" if n.op.view else "") if isinstance(n.op, Group) else type(n.op).__name__
        for n in after.nodes
    ]


def product(b: GraphBuilder, x: Value, seed: int = 0) -> Value:
    return b.add(MatMul(), x, b.constant(numbers(4, 4, seed=seed)))  # type: ignore[no-any-return]


def start() -> tuple[GraphBuilder, Value]:
    b = GraphBuilder()
    return b, b.input("x", tensor_type("float32", (N, 4)))


def test_epilogue() -> None:
    b, x = start()
    with b.named("product"):
        y = product(b, x)
    with b.named("bias"):
        y = b.add(Add(), y, b.constant(numbers(4)))
    b.output(b.add(Multiply(), b.add(Relu(), y), b.constant(np.float32(3))))
    graph = fuse(b.build())
    assert groups(b.build(), numbers(2, 4)) == ["matmul_add_relu_multiply"]
    (node,) = graph.nodes
    assert isinstance(node.op, Group) and node.names == {"product", "bias"}
    assert [v.shape for v in node.op.body.inputs] == [(N, 4), (4, 4), (4,)]  # scalars stay inside
    assert all(v.constant is None for v in node.op.body.inputs)


def test_an_epilogue_that_uses_a_value_twice() -> None:
    b, x = start()
    y = product(b, x)
    b.output(b.add(Multiply(), y, b.add(Sigmoid(), y)))
    assert groups(b.build(), numbers(2, 4)) == ["matmul_sigmoid_multiply"]


def test_a_value_needed_elsewhere_ends_the_group() -> None:
    b, x = start()
    y = b.add(Relu(), product(b, x))
    b.output(b.add(Add(), product(b, y, 1), y))
    assert groups(b.build(), numbers(2, 4)) == ["matmul_relu", "matmul_add"]


def test_no_cycle_through_another_kernel() -> None:
    """y → product → add and y → add: the sum cannot join the kernel of y."""
    b, x = start()
    y = product(b, x)
    z = b.add(ReduceSum((0,), True), product(b, y, 1))
    b.output(b.add(Add(), y, z))
    assert groups(b.build(), numbers(2, 4)) == ["matmul", "matmul", "reducesum", "add"]


def test_no_cycle_through_two_groups_that_each_wait_for_the_other() -> None:
    b, x = start()
    p, q = product(b, x, 1), product(b, x, 2)
    b.output(b.add(Relu(), b.add(Add(), p, b.add(Softmax(), q))))
    b.output(b.add(Tanh(), b.add(Maximum(), q, b.add(Softmax(), p))))
    assert groups(b.build(), numbers(2, 4)) == ["matmul", "matmul", "softmax_add_relu", "softmax_maximum_tanh"]


def test_broadcasting_ends_an_epilogue() -> None:
    b, x = start()
    y = b.add(MatMul(), b.add(BroadcastTo((1, 4)), b.constant(numbers(4))), b.constant(numbers(4, 4)))
    b.output(b.add(Add(), y, x))
    assert groups(b.build(), numbers(2, 4)) == ["broadcastto", "matmul", "add"]


def test_elementwise_and_injective_chains() -> None:
    b, x = start()
    y = b.add(Transpose((1, 0)), b.add(Tanh(), b.add(Add(), x, x)))
    y = b.add(Concat(0), b.add(Relu(), y), y)
    b.output(b.add(Relu(), y))
    b.output(b.add(Identity(), x))
    assert groups(b.build(), numbers(2, 4)) == ["add_tanh", "transpose_relu_concat_relu", "identity"]


def test_expensive_formulas_are_not_repeated() -> None:
    b, x = start()
    row = b.input("row", tensor_type("float32", (1, 4)))
    b.output(b.add(Add(), x, b.add(Exp(), row)))
    b.output(b.add(Add(), x, b.add(Relu(), row)))
    assert groups(b.build(), numbers(2, 4), numbers(1, 4)) == ["exp", "add", "relu_add"]


def test_reductions_take_what_comes_before_and_the_rows_around() -> None:
    b, x = start()
    b.output(b.add(ReduceSum((1,)), b.add(Multiply(), x, x)))
    e = b.add(Exp(), b.add(Subtract(), x, b.add(ReduceMax((1,), True), x)))
    b.output(b.add(Divide(), e, b.add(ReduceSum((-1,), True), e)))
    c = b.add(Exp(), b.add(Subtract(), x, b.add(ReduceMax((0,), True), x)))
    b.output(b.add(Divide(), c, b.add(ReduceSum((0,), True), c)))
    assert groups(b.build(), numbers(2, 4)) == [
        "multiply_reducesum", "reducemax_subtract_exp_reducesum_divide", "reducemax", "subtract_exp", "reducesum",
        "divide",
    ]  # fmt: skip


def test_composites_take_cheap_formulas_on_their_rows() -> None:
    b, x = start()
    b.output(
        b.add(
            Relu(),
            b.add(Softmax(), b.add(Multiply(), b.add(Add(), x, b.constant(numbers(4))), b.constant(np.float32(0.5)))),
        )
    )
    b.output(b.add(Softmax(), b.add(Tanh(), x)))
    assert groups(b.build(), numbers(2, 4)) == ["add_multiply_softmax_relu", "tanh", "softmax"]


def test_reshapes_are_views_unless_an_output_would_not_own_its_memory() -> None:
    b, x = start()
    y = b.add(Reshape((N * 4,)), product(b, b.add(Reshape((-1, 2, 2)), x) and x))
    b.output(b.add(Tanh(), y))
    b.output(b.add(Reshape((N * 2, 2)), x))
    z = b.add(Tanh(), x)
    b.output(z)
    b.output(b.add(Reshape((N * 2, 2)), z))
    b.output(b.add(Reshape((N * 2, 2)), b.add(Exp(), x)))
    b.output(b.add(Reshape((2, 2)), b.constant(numbers(4))))
    found = groups(b.build(), numbers(2, 4))
    assert sorted(found) == sorted(
        ["matmul", "reshape view", "tanh", "reshape", "tanh", "reshape", "exp", "reshape view", "reshape"]
    )


def test_layouts_bound_groups() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 4, 3, 3)))
    y = b.add(Relayout(blocked(4, 1, 4)), b.add(Relu(), x))
    y = b.add(Conv(), y, b.constant(numbers(4, 4, 1, 1)))
    y.type = y.tensor.with_layout(blocked(4, 1, 4))
    y = b.add(Tanh(), y)
    y.type = y.tensor.with_layout(blocked(4, 1, 4))
    b.output(b.add(Relu(), b.add(Relayout(None), y)))
    assert groups(b.build(), numbers(1, 4, 3, 3)) == ["relu_relayout", "conv_tanh", "relayout_relu"]


def test_sizes_are_computed_before_the_kernels_that_have_them() -> None:
    b = GraphBuilder()
    s = b.input("s", tensor_type("int64", (1,)))
    t = b.add(Add(), s, s)
    b.output(b.add(Add(), b.add(BroadcastTo((b.symbol(t), 1)), b.constant(np.int64(2))), t))
    assert groups(b.build(), np.array([2])) == ["add", "broadcastto_add"]


def test_sequences_stay_outside() -> None:
    b = GraphBuilder()
    b.output(b.add(Identity(), b.input("s", SequenceType(tensor_type("float32", (2,))))))
    assert [type(n.op).__name__ for n in fuse(b.build()).nodes] == ["Identity"]


def test_equal_kernels_have_equal_text() -> None:
    b, x = start()
    for k, factor in enumerate((2, 2, 3)):
        with b.named(f"layer{k}"):
            x = b.add(Power(), product(b, x, k), b.constant(np.float32(factor), f"factor{k}"))
    b.output(x)
    one, two, three = (kernel_text(n.op.body) for n in fuse(b.build()).nodes if isinstance(n.op, Group))
    assert one == two != three and "layer" not in one


def test_sizes_compare() -> None:
    assert at_most((N, 3), (N, 4)) and not at_most((N, 4), (4, 4)) and at_most((), (1,)) and not at_most((N, 2), (N, N))


def test_a_window_has_no_inputs() -> None:
    b = GraphBuilder()
    b.output(b.add(Window("hann", 8)), "w")
    assert groups(b.build()) == ["window"]


@pytest.mark.needs("weft_llvm")
def test_an_output_whose_sizes_are_computed_is_no_view_of_what_comes_before_them() -> None:
    b = GraphBuilder()
    x, sizes = b.input("x", tensor_type("float32", (4, 6))), b.input("s", tensor_type("int64", (2,)))
    y = b.add(Transpose((1, 0)), x)
    shape = b.add(Add(), sizes, b.constant(np.int64(1)))
    b.output(b.add(Reshape((b.symbol(shape, 0), b.symbol(shape, 1))), y), "y")
    graph = b.build()
    executable = weft.compile(graph, target="llvm", cache=False)
    data = numbers(4, 6)
    (got,) = executable.run({"x": data, "s": np.array([2, 7], np.int64)}).values()
    np.testing.assert_array_equal(got, data.T.reshape(3, 8))


def test_what_reads_its_operand_twice_reads_a_value_in_memory() -> None:
    """A sum of products may be rounded differently where it is computed again, and the greatest element would not be
    found."""
    b, x = start()
    b.output(b.add(Argmax(1, True), b.add(Add(), b.add(Multiply(), x, x), x)))
    assert groups(b.build(), numbers(3, 4)) == ["multiply_add", "argmax"]
    b, x = start()
    b.output(b.add(Argmax(1, True), b.add(Subtract(), x, b.add(ReduceMax((1,), True), x))))
    assert groups(b.build(), numbers(3, 4)) == ["reducemax_subtract", "argmax"]


@pytest.mark.needs("weft_llvm")
def test_many_functions_one_after_the_other() -> None:
    """Python's limit on nesting and the compiler's time both bound how long a formula may become."""
    b = GraphBuilder()
    y = b.input("x", tensor_type("float64", (N, 4)))
    for _ in range(6 * MOST_FUNCTIONS):
        y = b.add(Add(), b.add(Sin(), y), y)
    b.output(y)
    graph = b.build()
    x = numbers(2, 4).astype(np.float64)
    functions = [
        sum(isinstance(m.op, Sin) for m in n.op.body.nodes) for n in fuse(graph).nodes if isinstance(n.op, Group)
    ]
    assert (
        max(functions) == MOST_FUNCTIONS
        and sum(functions) == 6 * MOST_FUNCTIONS
        and functions.count(MOST_FUNCTIONS) >= 5
    )
    want = x
    for _ in range(6 * MOST_FUNCTIONS):
        want = np.sin(want) + want
    np.testing.assert_allclose(weft.compile(graph, target="llvm")(x), want, rtol=1e-12)


def layers(size: str | int, op: Operator, *numbers: float) -> Graph:
    """A convolution for each number, clipped to 0 … 6, then `op` with the number."""
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (1, 16, size, 5)))
    least, most = b.constant(np.float32(0)), b.constant(np.float32(6))
    for k, number in enumerate(numbers):
        w = b.constant(np.full((16, 16, 3, 3), 0.01 * (k + 1), np.float32))
        x = b.add(Clip(), b.add(Conv((1, 1), (1, 1, 1, 1)), x, w), least, most)
        x = b.add(op, x, b.constant(np.array([number], np.float32)))
    b.output(x)
    return b.build()


def bodies(graph: Graph) -> list[Graph]:
    return [n.op.body for n in fuse(graph).nodes if isinstance(n.op, Group)]


def test_groups_of_open_sizes_read_the_numbers_in_which_they_differ() -> None:
    graph = layers("h", Add(), 0.5, 0.75, 1.25)
    assert len({kernel_text(body) for body in bodies(graph)}) == 1
    assert [len(body.inputs) for body in bodies(graph)] == [3, 3, 3]  # 0 and 6 stand in the code
    data = np.random.default_rng(0).standard_normal((1, 16, 7, 5)).astype(np.float32)
    compilation = Compilation(resolve_target("llvm"), cache=False)
    (got,) = compilation.run(graph).run({"x": data}).values()
    assert len([k for k in compilation.kernels if "conv" in k]) == 1
    np.testing.assert_allclose(got, evaluate(layers("h", Add(), 0.5, 0.75, 1.25), [data])[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "op", "numbers", "kinds"),
    [(7, Add(), (0.5, 0.75), 2), ("h", Power(), (1.5, 2.5), 2), ("h", Add(), (0.5, 0.5), 1)],
    ids=["known sizes", "no factor or term", "equal numbers"],
)
def test_other_numbers_stand_in_the_code(size: str | int, op: Operator, numbers: tuple[float, ...], kinds: int) -> None:
    found = bodies(layers(size, op, *numbers))
    assert len({kernel_text(body) for body in found}) == kinds and all(len(body.inputs) == 2 for body in found)
