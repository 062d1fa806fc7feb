"""Gradients of what moves, reduces, scans, sorts, transforms and attends, beyond first differences of samples: sizes
that only a run knows, gradients of gradients, narrow floats, kernels, and PyTorch's gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.ops.test_symbolic import symbolic
from tests.training.differences import Applied, applied, check

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.errors import GraphError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Value
from weft.graph.operator import Operator, Sample
from weft_ops.composing import Composer
from weft_training import grad, vjp

Array = np.ndarray[Any, Any]
MODULES = [
    "attention", "gathering", "indexing", "linear_algebra", "loss", "movement", "quantization", "reduction", "scanning",
    "scattering", "signal", "slicing", "sorting", "trees",
]  # fmt: skip
CASES = [
    pytest.param(sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ops.ALL_OPERATORS
    if op.__module__.rpartition(".")[2] in MODULES and not op.no_gradient
    for k, sample in enumerate(op.samples())
    if applied(sample) is not None
]
SINGULAR = "Det-singular"
"""A matrix whose size is known has its cofactors; else they are made of an inverse that this one has not."""
COARSE = {"Dequantize-float8": "it computes in float32", "DynamicQuantize-zero": "a jump"}
"""Samples without differences of gradients."""


def graph_of(sample: Sample, open_sizes: bool = False) -> Graph:
    """One operator; all operands are inputs, the float results outputs.

    Raises:
        GraphError: attributes name a size, which may then not be open.
    """
    builder = GraphBuilder("sample")
    values: list[Value | None] = []
    for k, a in enumerate(sample.inputs):
        shape = () if a is None else symbolic(a.shape) if open_sizes else a.shape
        values.append(None if a is None else builder.input(f"x{k}", TensorType(dt.dtype(a.dtype), shape)))
    results = builder.add_all(sample.op, *values)
    for k, value in enumerate(v for v in results if isinstance(v.type, TensorType) and v.dtype.is_float):
        builder.output(value, f"y{k}")
    return builder.build()


def with_seeds(graph: Graph, given: dict[str, Array], backward: Graph) -> dict[str, Array]:
    """The inputs of the gradient: the graph's, and random gradients of its results."""
    rng = np.random.default_rng(1)
    seeds = backward.inputs[len(graph.inputs) :]
    results = evaluate(graph, given)
    return given | {
        v.name: np.asarray(rng.uniform(0.5, 1.5, np.shape(r)) * rng.choice([-1, 1], np.shape(r))).astype(v.dtype.numpy)
        for v, r in zip(seeds, results)
    }


def close(got: Sequence[Array], want: Sequence[Array], narrow: float = 1e-2, wide: float = 1e-4) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        within = narrow if dt.dtype(b.dtype).bits < 32 else wide
        scale = max(1.0, float(np.max(np.abs(b.astype(np.float64)), initial=0.0)))
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=within, atol=within * scale)


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_of_open_sizes_is_that_of_known_ones(sample: Sample, request: pytest.FixtureRequest) -> None:
    given = {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}
    known = graph_of(sample)
    try:
        backward_open = vjp(graph_of(sample, open_sizes=True), unreached="zeros")
    except GraphError:
        pytest.skip("attributes name a size, or the operator needs a number")
    backward = vjp(known, unreached="zeros")
    given = with_seeds(known, given, backward)
    if request.node.callspec.id == SINGULAR:
        assert np.isnan(evaluate(backward_open, given)[0]).all()
        return
    close(evaluate(backward_open, given), evaluate(backward, given))


@pytest.mark.parametrize("sample", [c for c in CASES if c.id not in COARSE])
def test_the_gradient_of_the_gradient_agrees_with_differences(sample: Sample) -> None:
    case = applied(sample)
    assert case is not None
    backward = vjp(case.graph, unreached="zeros")
    check(Applied(backward, with_seeds(case.graph, case.inputs, backward)), seed=2)


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_computed_by_kernels(sample: Sample) -> None:
    graph = graph_of(sample)
    backward = vjp(graph, unreached="zeros")
    given = with_seeds(graph, {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}, backward)
    results = weft.compile(backward, "llvm", cache=False)(*(given[v.name] for v in backward.inputs))
    close(list(results) if isinstance(results, (tuple, list)) else [results], evaluate(backward, given), 2e-2, 1e-4)


EDGES: list[tuple[Operator, list[tuple[int, ...] | Array]]] = [
    (ops.Gather(1), [(3, 4, 2), np.array(2)]),
    (ops.Gather(-1), [(3, 4), np.array([[1, 1], [0, 3]])]),
    (ops.GatherND(), [(3, 4), np.zeros((2, 0), np.int64)]),
    (ops.GatherND(1), [(3, 4), np.zeros((3, 2, 0), np.int64)]),
    (ops.Pad((3, -2), "edge"), [(6,)]),
    (ops.Pad((-6, 2), "edge"), [(6,)]),
    (ops.Pad((1, 1), "edge"), [(1,)]),
    (ops.Pad((-1, 5), "reflect"), [(6,)]),
    (ops.Pad((-1, 9), "reflect"), [(6,)]),
    (ops.Pad((2, 1), "reflect"), [(1,)]),
    (ops.Pad((-5, 2), "wrap"), [(6,)]),
    (ops.Pad((-7, 2), "wrap"), [(6,)]),
    (ops.Slice((5,), (0,), (2,)), [(6,)]),
    (ops.Slice((5, 0), (3, 2), (-2, 2)), [(6, 4)]),
    (ops.Slice((0,), (1,), (-3,)), [(6,)]),
    (ops.Det(), [(1, 1)]),
    (ops.Det(), [(7, 7)]),
    (ops.Einsum("i,i->"), [(1,), (4,)]),
    (ops.Einsum("iij,j->j"), [(3, 3, 1), (5,)]),
    (ops.Einsum("...i,...i->..."), [(2, 1, 4), (3, 4)]),
    (ops.OneHot(3), [np.array([1, -1]), (2,)]),
    (ops.DFT(0, length=1), [(3, 2)]),
    (ops.DFT(0, False, True, length=4), [(9, 1)]),
    (ops.DFT(0, True, True, length=9), [(3, 2)]),
    (ops.DFT(0, True, True, length=6), [(9, 1)]),
    (ops.NegativeLogLikelihood("mean", 1), [(3, 4), np.array([-1, 9, 1]), (4,)]),
]
"""Operators, and for each operand its shape or itself."""


@pytest.mark.parametrize(("op", "inputs"), [pytest.param(*c, id=f"{k}-{c[0]}") for k, c in enumerate(EDGES)])
def test_corners_of_attributes(op: Operator, inputs: list[Any]) -> None:
    arrays = (a if isinstance(a, np.ndarray) else numbers(*a, seed=k) for k, a in enumerate(inputs))
    case = applied(Sample(op, tuple(arrays)))
    assert case is not None
    assert check(case)


# -- special cases ----------------------------------------------------------------------------------------------------


def gradient_of(op: Operator, *arrays: Array, result: int = 0) -> list[Array]:
    """The gradients of Σ result by the float operands."""
    builder = GraphBuilder("case")
    values = [builder.input(f"x{k}", TensorType(dt.dtype(a.dtype), a.shape)) for k, a in enumerate(arrays)]
    builder.output(builder.add_all(op, *values)[result], "y")
    return list(evaluate(grad(builder.build()), arrays))


def test_products_with_zeros() -> None:
    x = np.array([[2, 0, 3], [0, 0, 5], [1, 2, 4]], np.float64)
    (got,) = gradient_of(ops.ReduceProd((1,)), x)
    np.testing.assert_array_equal(got, [[0, 6, 0], [0, 0, 0], [8, 4, 2]])
    (got,) = gradient_of(ops.CumProd(1), x)
    np.testing.assert_array_equal(got, [[1, 8, 0], [1, 0, 0], [11, 5, 2]])


@pytest.mark.parametrize("op", [ops.ReduceProd, ops.ReduceMax, ops.ReduceMin, ops.ReduceMean, ops.ReduceSum])
def test_reductions_over_axes_known_at_run_time(op: type[Any]) -> None:
    x = np.array([[2, 0, 3], [0, 0, 5], [7, 2, 7]], np.float64)
    builder = GraphBuilder("axes")
    value, axis = builder.input("x", TensorType(dt.float64, x.shape)), builder.input("axis", TensorType(dt.int64, (1,)))
    builder.output(builder.add(op((builder.symbol(axis, 0),), True), value), "y")
    backward = grad(builder.build())
    for k in (0, 1):
        np.testing.assert_allclose(evaluate(backward, [x, np.array([k])])[0], gradient_of(op((k,), True), x)[0])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", [ops.CumSum, ops.CumProd])
def test_running_totals_along_an_axis_known_at_run_time(op: type[Any], exclusive: bool) -> None:
    x = np.array([[2, 0, 3], [0, 0.5, 5], [7, 2, 7]], np.float64)
    builder = GraphBuilder("axes")
    value, axis = builder.input("x", TensorType(dt.float64, x.shape)), builder.input("axis", TensorType(dt.int64, (1,)))
    builder.output(builder.add(op(builder.symbol(axis, 0), exclusive), value), "y")
    backward = grad(builder.build())
    for k in (0, 1):
        np.testing.assert_allclose(evaluate(backward, [x, np.array([k])])[0], gradient_of(op(k, exclusive), x)[0])


def test_a_slice_whose_step_is_a_formula() -> None:
    builder = GraphBuilder("step")
    value, step = builder.input("x", TensorType(dt.float32, (7,))), builder.input("step", TensorType(dt.int64, (1,)))
    builder.output(builder.add(ops.Slice((0,), (3,), (builder.symbol(step, 0),)), value), "y")
    backward = grad(builder.build())
    for k in (1, 2, 3):
        got = evaluate(backward, [np.zeros(7, np.float32), np.array([k])])[0]
        np.testing.assert_array_equal(got, np.isin(np.arange(7), k * np.arange(3)))


def test_the_value_of_a_pad_has_the_gradient_of_what_it_fills() -> None:
    x, value = np.zeros((2, 3), np.float32), np.zeros((), np.float32)
    by_x, by_value = gradient_of(ops.Pad((1, -1, 0, 2)), x, value)
    np.testing.assert_array_equal(by_x, [[0, 1, 1], [0, 1, 1]])
    assert by_value == 3 * 4 - 2 * 2
    assert by_value.shape == ()


def test_updates_that_are_replaced_have_no_gradient() -> None:
    x, updates = np.zeros((4, 2), np.float32), np.ones((3, 2), np.float32)
    by_x, by_updates = gradient_of(ops.ScatterND(), x, np.array([[1], [3], [1]]), updates)
    np.testing.assert_array_equal(by_x[:, 0], [1, 0, 1, 0])
    np.testing.assert_array_equal(by_updates[:, 0], [0, 1, 1])
    by_x, by_updates = gradient_of(ops.ScatterElements(0), x[:, 0], np.array([1, 3, 1]), updates[:, 0])
    np.testing.assert_array_equal(by_updates, [0, 1, 1])


def test_an_embedding_in_float16_adds_in_float32() -> None:
    table, ids = np.zeros((3, 2), np.float16), np.zeros(4096, np.int64)
    (got,) = gradient_of(ops.Gather(0), table, ids)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, [[4096, 4096], [0, 0], [0, 0]])


def test_the_gradient_of_an_embedding_is_the_same_every_time() -> None:
    rng = np.random.default_rng(0)
    ids, seed = rng.integers(0, 50, 2000), rng.standard_normal((2000, 16)).astype(np.float32)
    builder = GraphBuilder("embedding")
    table = builder.input("table", TensorType(dt.float32, (50, 16)))
    builder.output(builder.add(ops.Gather(0), table, builder.constant(ids, "ids")), "y")
    executable = weft.compile(vjp(builder.build()), "llvm", cache=False)
    want = np.zeros((50, 16), np.float32)
    np.add.at(want, ids, seed)
    for _ in range(3):
        np.testing.assert_array_equal(executable(np.zeros((50, 16), np.float32), seed), want)


def test_the_largest_elements_share_although_they_are_computed() -> None:
    """x = a · b + c in the kernel that finds the greatest is the same as in that which compares with it."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((64, 33)).astype(np.float32) for _ in range(3)]
    builder = GraphBuilder("computed")
    a, b, c = (builder.input(n, TensorType(dt.float32, (64, 33))) for n in "abc")
    builder.output(builder.add(ops.ReduceMax((1,)), builder.add(ops.Add(), builder.add(ops.Multiply(), a, b), c)), "y")
    got = weft.compile(grad(builder.build(), wrt="c"), "llvm", cache=False)(*arrays)
    np.testing.assert_array_equal(got.sum(1), np.ones(64))


def test_no_row_of_a_masked_attention_has_a_gradient() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)) for _ in range(3))
    mask = np.zeros((3, 3), np.bool_)
    mask[1, :2] = True
    for blank in ("zero", "empty"):
        by_q, by_k, by_v = gradient_of(ops.ScaledDotProductAttention(0.5, blank=blank), q, k, v, mask)
        assert not by_q[:, :, [0, 2]].any() and by_q[:, :, 1].any()
        assert not by_k[:, :, 2].any() and not by_v[:, :, 2].any()
        np.testing.assert_allclose(by_v[:, :, :2].sum(2), np.ones((1, 2, 4)))


def test_a_determinant_of_many_rows() -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 9))
    (got,) = gradient_of(ops.Det(), x)
    np.testing.assert_allclose(got, np.linalg.det(x)[:, None, None] * np.linalg.inv(x).swapaxes(1, 2), rtol=1e-9)


def test_complex_numbers_are_refused() -> None:
    builder = GraphBuilder("complex")
    x = builder.input("x", TensorType(dt.float32, (3,)))
    z = builder.add(ops.Cast(dt.complex64), x)
    square = builder.add(ops.Multiply(), z, z)
    builder.output(builder.add(ops.Cast(dt.float32), square), "y")
    builder.output(builder.add(ops.Multiply(), x, x), "other")
    with pytest.raises(UnsupportedError, match="no gradient passes complex numbers"):
        grad(builder.build(), of="y")
    np.testing.assert_array_equal(evaluate(grad(builder.build(), of="other"), [np.ones(3, np.float32)])[0], [2, 2, 2])


def test_what_an_attention_passes_on_has_the_gradient_of_both_uses() -> None:
    builder = GraphBuilder("keys")
    q, k, v = (builder.input(n, TensorType(dt.float32, (1, 1, 2, 4))) for n in "qkv")
    _, keys, _, _ = builder.add_all(ops.Attention(), q, k, v)
    builder.output(keys, "keys")
    builder.output(builder.add(ops.Multiply(), k, k), "squares")
    backward = vjp(builder.build(), wrt="k")
    assert [v.name for v in backward.inputs[3:]] == [f"seed_{v.name}" for v in builder.graph.outputs]
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    np.testing.assert_array_equal(evaluate(backward, [x, x, x, np.ones_like(x), np.ones_like(x)])[0], 1 + 2 * x)


# -- PyTorch ----------------------------------------------------------------------------------------------------------

Build = Callable[[GraphBuilder, list[Value]], Value]


def agree(build: Build | Operator, function: Callable[..., Any], *arrays: Array, rtol: float = 2e-4) -> None:
    """Compares the gradients by the float operands, in kernels, with those of PyTorch, for random gradients of the
    result."""
    import torch

    builder = GraphBuilder("case")
    values = [builder.input(f"x{k}", TensorType(dt.dtype(a.dtype), a.shape)) for k, a in enumerate(arrays)]
    result = builder.add_all(build, *values)[0] if isinstance(build, Operator) else build(builder, values)
    builder.output(result, "y")
    backward = vjp(builder.build())
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    want = function(*tensors)
    assert tuple(want.shape) == tuple(result.shape)
    seed = np.asarray(np.random.default_rng(3).standard_normal(want.shape)).astype(want.detach().numpy().dtype)
    want.backward(torch.tensor(seed))
    got = weft.compile(backward, "llvm", cache=False)(*arrays, seed)
    for a, t in zip(got if isinstance(got, (list, tuple)) else [got], (t for t in tensors if t.requires_grad)):
        expected = np.zeros(t.shape, np.float32) if t.grad is None else t.grad.numpy()
        scale = float(np.abs(expected).max(initial=1e-6))
        np.testing.assert_allclose(a.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol * scale)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.needs("torch")
class TestPyTorch:
    def test_embedding(self) -> None:
        import torch

        ids = np.random.default_rng(0).integers(0, 1000, (8, 64))
        agree(ops.Gather(0), lambda t, i: torch.nn.functional.embedding(i, t), numbers(1000, 48), ids)

    @pytest.mark.parametrize("axis", [1, 2])
    def test_index_select(self, axis: int) -> None:
        ids = np.random.default_rng(0).integers(0, 5, 9)
        agree(ops.Gather(axis), lambda x, i: x.index_select(axis, i), numbers(4, 5, 6), ids)

    @pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
    def test_pads_of_images(self, mode: Any) -> None:
        import torch

        name = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode]
        op = ops.Pad((0, 0, 3, 1, 0, 0, 2, 4), mode)
        agree(op, lambda x: torch.nn.functional.pad(x, (1, 4, 3, 2), name), numbers(2, 3, 20, 17))

    @pytest.mark.parametrize("largest", [True, False])
    def test_top_k(self, largest: bool) -> None:
        agree(ops.TopK(5, 1, largest), lambda x: x.topk(5, 1, largest)[0], numbers(4, 30, 3))

    def test_ties_of_the_greatest(self) -> None:
        x = np.random.default_rng(0).integers(0, 4, (5, 6, 7)).astype(np.float32)
        agree(ops.ReduceMax((0, 2), True), lambda x: x.amax((0, 2), True), x)
        agree(ops.ReduceMin((1,)), lambda x: x.amin(1), x)

    @pytest.mark.parametrize(("how", "name"), [("add", "sum"), ("min", "amin"), ("max", "amax"), ("mul", "prod")])
    def test_scatter(self, how: Any, name: str) -> None:
        ids = np.random.default_rng(0).integers(0, 6, (9, 5))
        x, updates = np.abs(numbers(6, 5)) + 0.5, np.abs(numbers(9, 5, seed=1)) + 0.5
        if how in ("min", "max"):
            x, updates = np.round(x * 2), np.round(updates * 2)
        agree(ops.ScatterElements(0, how), lambda x, i, u: x.scatter_reduce(0, i, u, name), x, ids, updates)

    def test_products_with_zeros(self) -> None:
        x = np.random.default_rng(0).integers(-2, 3, (40, 6)).astype(np.float32)
        agree(ops.ReduceProd((1,)), lambda x: x.prod(1), x)
        agree(ops.CumProd(1), lambda x: x.cumprod(1), x)

    def test_einsum(self) -> None:
        import torch

        for equation, shapes in (
            ("bhqd,bhkd->bhqk", [(2, 3, 17, 8), (2, 3, 19, 8)]),
            ("nc,chk,nk->nh", [(5, 6), (6, 3, 4), (5, 4)]),
            ("bii->bi", [(3, 4, 4)]),
            ("ij,ij->", [(3, 4), (3, 4)]),
        ):
            arrays = [numbers(*s, seed=k) for k, s in enumerate(shapes)]
            agree(ops.Einsum(equation), lambda *xs, text=equation: torch.einsum(text, *xs), *arrays)

    def test_fourier_transforms(self) -> None:
        import torch

        def both(z: Any) -> Any:
            return torch.view_as_real(z)

        agree(ops.DFT(1, onesided=True), lambda x: both(torch.fft.rfft(x[..., 0], dim=1)), numbers(3, 30, 1))
        agree(
            ops.DFT(1, inverse=True, onesided=True),
            lambda x: torch.fft.irfft(torch.view_as_complex(x), dim=1)[..., None],
            numbers(3, 16, 2),
        )
        window = np.abs(numbers(16)) + 0.1
        agree(
            ops.STFT(4, 16),
            lambda x, w: both(torch.stft(x[..., 0], 16, 4, window=w, center=False, return_complex=True)).swapaxes(1, 2),
            numbers(2, 100, 1),
            window,
        )

    def test_determinant(self) -> None:
        agree(ops.Det(), lambda x: x.det(), numbers(3, 4, 4))

    @pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
    @pytest.mark.parametrize("places", [(), (7, 5)])
    def test_cross_entropy(self, reduction: Any, places: tuple[int, ...]) -> None:
        import torch

        target = np.random.default_rng(0).integers(0, 11, (6, *places))
        weight = np.abs(numbers(11, seed=1)) + 0.5
        cross = torch.nn.functional.cross_entropy
        x = numbers(6, 11, *places)
        agree(ops.SoftmaxCrossEntropy(reduction), lambda x, t: cross(x, t, reduction=reduction), x, target)
        target[::2] = -100

        def weighted(x: Any, t: Any) -> Any:
            return cross(x, t, torch.tensor(weight), ignore_index=-100, reduction=reduction)

        def build(builder: GraphBuilder, values: list[Value]) -> Value:
            x, t = values
            return builder.add_all(ops.SoftmaxCrossEntropy(reduction, -100), x, t, builder.constant(weight, "w"))[0]

        agree(build, weighted, x, target)
        logs = numbers(6, 11, *places, seed=4)
        nll = torch.nn.functional.nll_loss
        agree(
            lambda b, v: b.add(ops.NegativeLogLikelihood(reduction, -100), *v, b.constant(weight, "w")),
            lambda x, t: nll(x, t, torch.tensor(weight), ignore_index=-100, reduction=reduction),
            logs,
            target,
        )

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("groups", [4, 2])
    def test_attention(self, causal: bool, groups: int) -> None:
        import torch

        q, k, v = (numbers(2, h, 24, 16, seed=h) for h in (4, groups, groups))
        mask = numbers(24, 24, seed=5)

        def attend(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
            k, v = (x.repeat_interleave(4 // groups, 1) for x in (k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal and bias is None)

        agree(ops.Attention(causal=causal), attend, q, k, v)
        agree(ops.Attention(), attend, q, k, v, mask)

    def test_attention_with_a_soft_cap(self) -> None:
        import torch

        def attend(q: Any, k: Any, v: Any) -> Any:
            scores = torch.tanh(q @ k.swapaxes(2, 3) / 4 / 0.7) * 0.7
            hidden = torch.ones(12, 12).triu(1).bool()
            return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v

        agree(ops.Attention(softcap=0.7, causal=True), attend, *(numbers(2, 3, 12, 16, seed=s) for s in range(3)))

    def test_a_block_of_a_language_model_with_an_open_length(self) -> None:
        import torch

        n, words, size, heads = Var("n", dt.int64), 53, 32, 4
        half = size // heads // 2
        builder = GraphBuilder("block")
        c = Composer(builder)
        table = builder.input("table", TensorType(dt.float32, (words, size)))
        ids = builder.input("ids", TensorType(dt.int64, (2, n)))
        w = builder.input("w", TensorType(dt.float32, (size, 3 * size)))
        cos, sin = (builder.input(name, TensorType(dt.float32, (2, n, half))) for name in ("cos", "sin"))
        x = c.gather(table, ids, 0)
        q, k, v = (c.slice(c(ops.MatMul(), x, w), 2, size * i, size) for i in range(3))
        q, k = (c(ops.RotaryEmbedding(heads=heads), y, cos, sin) for y in (q, k))
        y = builder.add_all(ops.Attention(causal=True, q_heads=heads, kv_heads=heads), q, k, v)[0]
        logits = c.transpose(c(ops.MatMul(), c.add(x, y), c.transpose(table, (1, 0))), (0, 2, 1))
        builder.output(builder.add_all(ops.SoftmaxCrossEntropy("mean", 0), logits, ids)[0], "loss")
        executable = weft.compile(grad(builder.build(), wrt=["table", "w"]), "llvm", cache=False)

        for length in (1, 7, 20):
            rng = np.random.default_rng(length)
            angle = rng.uniform(0, 6, (2, length, half)).astype(np.float32)
            given = [
                numbers(words, size) * np.float32(0.3), rng.integers(0, words, (2, length)),
                numbers(size, 3 * size, seed=1) * np.float32(0.1), np.cos(angle), np.sin(angle),
            ]  # fmt: skip
            t, i, m, co, si = (torch.tensor(a, requires_grad=k in (0, 2)) for k, a in enumerate(given))

            def by_heads(x: Any, turned: bool, co: Any = co, si: Any = si) -> Any:
                x = x.view(*x.shape[:2], heads, -1)
                if turned:
                    a, b = x[..., :half], x[..., half:]
                    u, v = co[:, :, None], si[:, :, None]
                    x = torch.cat([u * a - v * b, v * a + u * b], -1)
                return x.swapaxes(1, 2)

            e = t[i]
            parts = [by_heads(p, k < 2) for k, p in enumerate((e @ m).split(size, -1))]
            y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).swapaxes(1, 2).flatten(2)
            torch.nn.functional.cross_entropy(((e + y) @ t.T).swapaxes(1, 2), i, ignore_index=0).backward()
            close(executable(*given), [t.grad.numpy(), m.grad.numpy()], wide=2e-5)

    def test_float16(self) -> None:
        import torch

        x = numbers(8, 100).astype(np.float16)
        agree(ops.ReduceMean((1,)), lambda x: x.mean(1), x, rtol=2e-3)
        agree(ops.SoftmaxCrossEntropy("mean"), lambda x, t: torch.nn.functional.cross_entropy(x.float(), t).half(), x,
              np.arange(8), rtol=2e-3)  # fmt: skip


def test_a_symbol_in_a_gathered_batch() -> None:
    """Rows of a batch whose size a run brings, as an embedding and a loss over it have them."""
    n = Var("n", dt.int64)
    builder = GraphBuilder("model")
    table, ids = (
        builder.input("table", TensorType(dt.float32, (11, 7))),
        builder.input("ids", TensorType(dt.int64, (n,))),
    )
    rows = builder.add(ops.Gather(0), table, ids)
    loss, _ = builder.add_all(ops.SoftmaxCrossEntropy("mean"), rows, builder.add(ops.Mod(), ids, _constant(builder, 7)))
    builder.output(loss, "loss")
    backward = grad(builder.build(), wrt="table")
    executable = weft.compile(backward, "llvm", cache=False)
    for size in (1, 5, 40):
        given = numbers(11, 7), np.random.default_rng(size).integers(0, 11, size)
        close([executable(*given)], evaluate(backward, given))


def _constant(builder: GraphBuilder, value: int) -> Value:
    return builder.constant(np.array(value), "c")
