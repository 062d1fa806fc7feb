"""Gradients of products, convolutions, pools, resampling and normalisations, beyond first differences of samples: sizes
that only a run knows, gradients of gradients, narrow floats, kernels, and PyTorch's gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.training.differences import Applied, applied, check
from tests.training.test_movement import close, graph_of, with_seeds

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.errors import GraphError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, TensorType
from weft.graph.operator import Operator, Sample
from weft_training import grad, jvp, vjp

Array = np.ndarray[Any, Any]
MODULES = ["contraction", "image", "normalization", "resizing", "sampling", "window"]
CASES = [
    pytest.param(sample, id=f"{op.__name__}-{sample.name or k}")
    for op in ops.ALL_OPERATORS
    if op.__module__.rpartition(".")[2] in MODULES and not op.no_gradient
    for k, sample in enumerate(op.samples())
    if applied(sample) is not None
]


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_of_open_sizes_is_that_of_known_ones(sample: Sample) -> None:
    try:
        graph = graph_of(sample, open_sizes=True)
    except GraphError:
        pytest.skip("attributes name a size, or the operator needs a number")
    wrt = differentiable(sample)
    known = graph_of(sample)
    backward_open, backward = vjp(graph, wrt=wrt, unreached="zeros"), vjp(known, wrt=wrt, unreached="zeros")
    given = with_seeds(known, {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}, backward)
    close(evaluate(backward_open, given), evaluate(backward, given))


def differentiable(sample: Sample) -> list[str]:
    """The operands by which the operator has a gradient."""
    names = [k for k, a in enumerate(sample.inputs) if a is not None and a.dtype.kind not in "biu"]
    return [f"x{k}" for k in names if k not in sample.op.no_gradient_by]


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_of_the_gradient_agrees_with_differences(sample: Sample) -> None:
    case = applied(sample)
    assert case is not None
    backward = vjp(case.graph, unreached="zeros")
    check(Applied(backward, with_seeds(case.graph, case.inputs, backward)), seed=2)


@pytest.mark.parametrize("sample", CASES)
def test_the_gradient_computed_by_kernels(sample: Sample) -> None:
    graph = graph_of(sample)
    backward = vjp(graph, wrt=differentiable(sample), unreached="zeros")
    given = with_seeds(graph, {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}, backward)
    results = weft.compile(backward, "llvm", cache=False)(*(given[v.name] for v in backward.inputs))
    close(list(results) if isinstance(results, (tuple, list)) else [results], evaluate(backward, given), 2e-2, 1e-4)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


EDGES: list[tuple[Any, list[tuple[int, ...] | Array]]] = [
    (ops.MatMul(), [(2, 1, 3, 4), (5, 4, 2)]),
    (ops.MatMul(), [(3, 4), (2, 4, 5)]),
    (ops.MatMul(), [(1, 3, 4), (1, 4, 2)]),
    (ops.MatMul(), [(6, 2, 3, 4), (1, 4, 2)]),
    (ops.MatMul(), [(3, 2, 4), (3, 4, 1)]),
    (ops.MatMul(), [(2, 0), (0, 3)]),
    (ops.Conv((2, 3)), [(2, 3, 8, 9), (4, 3, 1, 2)]),
    (ops.Conv((2, 2), groups=2), [(2, 4, 7, 8), (6, 2, 1, 1)]),
    (ops.Conv((1, 1), (1, 0, 0, 1)), [(1, 2, 3, 4), (3, 2, 1, 1)]),
    (ops.Conv((3, 2), (2, 1, 0, 3), (2, 3), 2), [(2, 4, 11, 12), (6, 2, 3, 2)]),
    (ops.Conv((2,), (0, 2), (), 3), [(2, 6, 10), (3, 2, 4)]),
    (ops.Conv((2, 1, 2), (1, 1, 0, 0, 1, 1)), [(1, 2, 5, 4, 6), (2, 2, 3, 2, 3)]),
    (ops.ConvTranspose((2, 3), (), (), (1, 2), 2), [(2, 4, 3, 2), (4, 3, 1, 2)]),
    (ops.ConvTranspose((3, 2), (0, 0, -2, -1), (), (2, 1)), [(1, 2, 3, 3), (2, 2, 2, 3)]),
    (ops.ConvTranspose((2,), (1, 0), (2,), (3,)), [(1, 2, 4), (2, 1, 3)]),
    (ops.AveragePool((2, 3), (3, 2), (1, 0, 0, 2), (2, 3), True, True), [(1, 2, 8, 11)]),
    (ops.AveragePool((3, 3), (1, 1), (2, 2, 2, 2)), [(1, 1, 4, 3)]),
    (ops.SumPool((2,), (5,), (), (3,)), [(1, 2, 14)]),
    (ops.MaxPool((2, 2), (3, 1), (1, 0, 1, 1), (2, 3), True), [(2, 2, 9, 8)]),
    (ops.LpPool((3, 2), (2, 1), (1, 0, 1, 1), p=4), [(1, 2, 6, 5)]),
    (ops.LayerNorm(0), [(3, 4), (3, 1), (1, 4)]),
    (ops.LayerNorm(-1), [(2, 3, 4), (2, 1, 4), (1,)]),
    (ops.GroupNorm(1e-5, 3), [(2, 6), (6,), (6,)]),
    (ops.BatchNorm(1e-2, 0), [(3, 2, 4), (3,), (3,), (3,), np.array([0.5, 2.0, 1.0])]),
    (ops.LRN(7, 0.5, 0.75, 1.0), [(2, 3, 2)]),
    (ops.LRN(4, 0.5, 1.5, 2.0), [(2, 9)]),
    (ops.Resize((1, 1, 6, 12), "nearest", "asymmetric", "floor"), [(1, 1, 2, 4)]),
    (ops.Resize((3, 8), "nearest", axes=(1,)), [(3, 4)]),
    (ops.Resize((7, 2, 5), "linear", axes=(0, 2)), [(3, 2, 2)]),
    (ops.Resize((9, 5), "cubic", scales=(2.5, 3.5)), [(4, 2)]),
    (ops.Resize((3,), "linear", antialias=True), [(11,)]),
    (ops.AffineGrid((1, 4), True), [(2, 2, 3)]),
    (ops.Windows((2, 3), (3, 1), (1, 2, 0, 0), (2, 1)), [(1, 2, 9, 4)]),
]
"""Operators, and for each operand its shape or itself."""


@pytest.mark.parametrize(("op", "inputs"), [pytest.param(*c, id=f"{k}-{c[0]}") for k, c in enumerate(EDGES)])
def test_corners_of_attributes(op: Any, inputs: list[Any]) -> None:
    arrays = (a if isinstance(a, np.ndarray) else numbers(*a, seed=k) for k, a in enumerate(inputs))
    sample = Sample(op, tuple(arrays))
    case = applied(sample)
    assert case is not None
    check(case)
    backward = vjp(case.graph, unreached="zeros")
    given = with_seeds(case.graph, case.inputs, backward)
    check(Applied(backward, given), seed=3)
    try:
        backward_open = vjp(graph_of(sample, open_sizes=True))
    except GraphError:
        return  # attributes name a size
    close(evaluate(backward_open, given), evaluate(backward, given))


# -- special cases ----------------------------------------------------------------------------------------------------


def gradients_of(op: Any, arrays: Sequence[Array], seed: Array | None = None, first: int | None = None) -> list[Array]:
    """The gradients of Σ seed · the first result by the float operands, or the `first` of them, in kernels."""
    builder = GraphBuilder("case")
    values = [builder.input(f"x{k}", TensorType(dt.dtype(a.dtype), a.shape)) for k, a in enumerate(arrays)]
    builder.output(builder.add_all(op, *values)[0], "y")
    graph = builder.build()
    wrt = [v.name for k, v in enumerate(values) if v.dtype.is_float and k not in op.no_gradient_by][:first]
    backward = grad(graph, wrt=wrt) if seed is None else vjp(graph, wrt=wrt)
    results = weft.compile(backward, "llvm", cache=False)(*arrays, *([] if seed is None else [seed]))
    return list(results) if isinstance(results, (tuple, list)) else [results]


def test_of_equal_elements_the_first_has_the_gradient() -> None:
    (got,) = gradients_of(ops.MaxPool((2, 2), (2, 2)), [np.ones((1, 1, 4, 4), np.float32)])
    np.testing.assert_array_equal(got[0, 0], [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])


def test_windows_without_elements_have_no_part_in_gradients() -> None:
    sample = Sample(ops.MaxPool((2,), (1,), (4, 0)), (numbers(1, 1, 5),))
    graph = graph_of(sample)
    (got,) = evaluate(vjp(graph), [*sample.inputs, np.ones((1, 1, 8))])
    assert got.sum() == 5
    twice = vjp(vjp(graph), wrt="seed_maxpool", unreached="zeros")
    (got,) = evaluate(twice, [*sample.inputs, np.ones((1, 1, 8)), np.ones((1, 1, 5))])
    np.testing.assert_array_equal(got, [[[0, 0, 0, 1, 1, 1, 1, 1]]])


def test_a_window_of_zeros_has_no_gradient() -> None:
    x = np.zeros((1, 1, 4), np.float32)
    x[..., 3] = 2
    (got,) = gradients_of(ops.LpPool((2,), (2,)), [x])
    np.testing.assert_array_equal(got, [[[0, 0, 0, 1]]])


def test_operands_that_choose_elements_have_no_gradient() -> None:
    x, rois, batch = (numbers(1, 2, 4, 4), numbers(3, 4), np.zeros(3, np.int64))
    graph = graph_of(Sample(ops.RoiAlign(2, 2), (x, rois, batch)))
    with pytest.raises(UnsupportedError, match="RoiAlign has no gradient by operand 1") as caught:
        vjp(graph)
    assert caught.value.why == ops.RoiAlign.no_gradient_by[1]
    assert len(vjp(graph, wrt="x0").outputs) == 1


def test_sums_of_float16_are_of_float32() -> None:
    """A sum of 4096 ones in float16 would stay at 2048."""
    x, w = np.ones((1, 1, 64, 64), np.float16), np.ones((1, 1, 1, 1), np.float16)
    assert gradients_of(ops.Conv(), [x, w])[1] == 4096
    assert gradients_of(ops.MatMul(), [x.reshape(4096, 1), np.ones((1, 1), np.float16)])[1] == 4096
    scale = np.zeros(1, np.float16)
    assert gradients_of(ops.BatchNorm(), [x, scale, scale, scale, scale + 1])[2] == 4096
    assert gradients_of(ops.InstanceNorm(), [x, scale, scale])[2] == 4096
    assert gradients_of(ops.LayerNorm(), [x.reshape(4096, 1), scale, scale])[2] == 4096


TANGENTS = [
    ops.Conv, ops.ConvTranspose, ops.MatMul, ops.MaxPool, ops.LpPool, ops.LayerNorm, ops.BatchNorm, ops.LRN, ops.Resize,
    ops.GridSample, ops.RoiAlign,
]  # fmt: skip


@pytest.mark.parametrize("op", TANGENTS)
def test_derivatives_along_a_direction(op: type[Operator]) -> None:
    """Against differences: what they are made of, gradients of gradients by their seeds, is linear in the seeds."""
    case = next(c for s in reversed(list(op.samples())) if (c := applied(s)) is not None)
    rng, step = np.random.default_rng(4), 1e-6
    tangents = {k: rng.standard_normal(a.shape) for k, a in case.inputs.items()}
    forward = jvp(case.graph)
    got = evaluate(forward, case.inputs | {f"tangent_{k}": t for k, t in tangents.items()})
    ends = [evaluate(case.graph, {k: a + h * tangents[k] for k, a in case.inputs.items()}) for h in (-step, step)]
    for a, low, high in zip(got, *ends, strict=True):
        np.testing.assert_allclose(a, (high - low) / (2 * step), rtol=1e-5, atol=1e-5)


# -- PyTorch's gradients ----------------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
class TestTorch:
    """Against torch.autograd, in sizes as models have them."""

    @staticmethod
    def compare(
        op: Any, function: Callable[..., Any], *arrays: Array, within: float = 2e-5, extra: Sequence[Array] = ()
    ) -> None:
        """The gradients of Σ seed · the first result by the first operands, the `arrays`, all floats."""
        import torch

        given = [torch.tensor(a, requires_grad=True) for a in arrays]
        rest = [torch.tensor(a) for a in extra]
        result = function(*given, *rest)
        seed = torch.tensor(numbers(*result.shape, seed=99).astype(arrays[0].dtype))
        want = [v.numpy() for v in torch.autograd.grad(result, given, seed)]
        got = gradients_of(op, [*arrays, *extra], seed.numpy(), len(arrays))
        close(got, want, 1e-2, within)

    @pytest.mark.parametrize(
        ("shape", "weights", "stride", "pad", "dilation", "groups"),
        [
            ((2, 3, 64, 64), (16, 3, 7, 7), 2, 3, 1, 1),
            ((2, 16, 28, 28), (32, 16, 3, 3), 1, 1, 1, 1),
            ((2, 16, 28, 27), (32, 16, 3, 3), 2, 1, 1, 1),
            ((2, 32, 14, 14), (64, 32, 1, 1), 2, 0, 1, 1),
            ((2, 32, 14, 14), (64, 32, 1, 1), 1, 0, 1, 1),
            ((2, 24, 20, 20), (24, 1, 5, 5), 2, 2, 1, 24),
            ((2, 16, 20, 20), (24, 4, 3, 3), 1, 2, 2, 4),
            ((1, 8, 33, 31), (8, 4, 3, 3), 3, 4, 2, 2),
        ],
    )
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_convolution(
        self, shape: Any, weights: Any, stride: int, pad: int, dilation: int, groups: int, dtype: str
    ) -> None:
        from torch.nn.functional import conv2d

        op = ops.Conv((stride,) * 2, (pad,) * 4, (dilation,) * 2, groups)
        arrays = (numbers(*shape).astype(dtype), numbers(*weights, seed=1).astype(dtype))
        self.compare(op, lambda x, w: conv2d(x, w, None, stride, pad, dilation, groups), *arrays)

    @pytest.mark.parametrize(
        ("kernel", "stride", "pad", "extra", "groups"), [(4, 2, 1, 0, 1), (3, 2, 1, 1, 2), (2, 3, 0, 2, 1)]
    )
    def test_transposed_convolution(self, kernel: int, stride: int, pad: int, extra: int, groups: int) -> None:
        from torch.nn.functional import conv_transpose2d

        op = ops.ConvTranspose((stride,) * 2, (pad,) * 4, (), (extra,) * 2, groups)
        arrays = (numbers(2, 8, 9, 7), numbers(8, 6, kernel, kernel, seed=1))
        self.compare(op, lambda x, w: conv_transpose2d(x, w, None, stride, pad, extra, groups), *arrays)

    @pytest.mark.parametrize(
        ("kernel", "stride", "pad", "dilation", "ceil"),
        [(3, 2, 1, 1, False), (3, 2, 0, 1, True), (2, 1, 1, 3, False), (3, 4, 1, 2, True)],
    )
    def test_greatest_of_windows(self, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> None:
        from torch.nn.functional import max_pool2d

        # Few values, so that most windows have several greatest elements.
        x = np.random.default_rng(0).integers(0, 4, (2, 3, 17, 16)).astype(np.float32)
        op = ops.MaxPool((kernel,) * 2, (stride,) * 2, (pad,) * 4, (dilation,) * 2, ceil)
        self.compare(op, lambda v: max_pool2d(v, kernel, stride, pad, dilation, ceil), x)

    @pytest.mark.parametrize("include", [False, True])
    @pytest.mark.parametrize("ceil", [False, True])
    @pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 1), (2, 3, 1), (5, 1, 2)])
    def test_means_of_windows(self, kernel: int, stride: int, pad: int, ceil: bool, include: bool) -> None:
        from torch.nn.functional import avg_pool2d

        op = ops.AveragePool((kernel,) * 2, (stride,) * 2, (pad,) * 4, (), ceil, include)
        self.compare(op, lambda v: avg_pool2d(v, kernel, stride, pad, ceil, include), numbers(2, 3, 17, 14))

    def test_unpooling(self) -> None:
        from torch.nn.functional import max_unpool2d

        flat = np.random.default_rng(0).permutation(64)[:16].reshape(1, 1, 4, 4)
        op = ops.MaxUnpool((1, 1, 8, 8))
        self.compare(op, lambda x, i: max_unpool2d(x, i, 2), numbers(1, 1, 4, 4), extra=[flat])

    @pytest.mark.parametrize("align", [False, True])
    @pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
    @pytest.mark.parametrize(("mode", "name"), [("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest")])
    def test_sampling_at_places(self, mode: Any, name: str, padding: Any, align: bool) -> None:
        from torch.nn.functional import grid_sample

        grid = np.random.default_rng(1).uniform(-1.3, 1.3, (2, 6, 7, 2))
        if mode == "cubic" and padding == "border":
            grid *= 0.7  # torch does not move places to the border
        op = ops.GridSample(mode, padding, align)
        if mode == "nearest":
            x = numbers(2, 3, 9, 8)
            self.compare(op, lambda v, at: grid_sample(v, at, name, padding, align), x, extra=[grid])
        else:
            self.compare(op, lambda v, at: grid_sample(v, at, name, padding, align), numbers(2, 3, 9, 8), grid)

    @pytest.mark.parametrize("align", [False, True])
    def test_affine_grid(self, align: bool) -> None:
        from torch.nn.functional import affine_grid

        op = ops.AffineGrid((5, 7), align)
        self.compare(op, lambda theta: affine_grid(theta, [2, 3, 5, 7], align), numbers(2, 2, 3))

    @pytest.mark.parametrize(
        ("mode", "name", "coordinates", "settings"),
        [
            ("nearest", "nearest", "asymmetric", {}),
            ("linear", "bilinear", "pytorch_half_pixel", {"align_corners": False}),
            ("linear", "bilinear", "align_corners", {"align_corners": True}),
            ("cubic", "bicubic", "pytorch_half_pixel", {"align_corners": False}),
            ("linear", "bilinear", "pytorch_half_pixel", {"align_corners": False, "antialias": True}),
        ],
    )
    @pytest.mark.parametrize("size", [(16, 20), (11, 27), (5, 4)])
    def test_resizing(self, mode: Any, name: str, coordinates: Any, settings: dict[str, bool], size: Any) -> None:
        from torch.nn.functional import interpolate

        antialias = settings.get("antialias", False)
        op = ops.Resize(
            (2, 3, *size), mode, coordinates, "floor", (2, 3), cubic_a=-0.75, antialias=antialias,
            exclude_outside=antialias,
        )  # fmt: skip
        x = numbers(2, 3, 8, 10)
        self.compare(op, lambda v: interpolate(v, size, mode=name, **settings), x)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_normalisations(self, dtype: str) -> None:
        from torch.nn import functional as f

        x, scale, bias = (a.astype(dtype) for a in (numbers(4, 8, 6, 5), numbers(8, seed=1), numbers(8, seed=2)))
        mean, variance = numbers(8, seed=3).astype(dtype), (0.5 + numbers(8, seed=4) ** 2).astype(dtype)
        self.compare(ops.GroupNorm(groups=2), lambda v, a, b: f.group_norm(v, 2, a, b), x, scale, bias)
        self.compare(ops.InstanceNorm(), lambda v, a, b: f.instance_norm(v, None, None, a, b), x, scale, bias)
        rows = x.transpose(0, 2, 3, 1).copy()
        self.compare(ops.LayerNorm(), lambda v, a, b: f.layer_norm(v, (8,), a, b, 1e-5), rows, scale, bias)
        self.compare(ops.RMSNorm(epsilon=1e-5), lambda v, a: f.rms_norm(v, (8,), a, 1e-5), rows, scale)
        self.compare(
            ops.BatchNorm(),
            lambda v, a, b, m, s: (v - m[:, None, None]) / (s[:, None, None] + 1e-5).sqrt() * a[:, None, None]
            + b[:, None, None],
            x, scale, bias, mean, variance,
        )  # fmt: skip
        if dtype == "float32":
            self.compare(ops.LRN(5, 0.1, 0.75, 2.0), lambda v: f.local_response_norm(v, 5, 0.1, 0.75, 2.0), x)

    def test_a_layer_far_from_zero(self) -> None:
        """The mean square of 10⁴ ± 1 in float32 has no digits of the variance."""
        from torch.nn.functional import layer_norm

        x = (1e4 + numbers(8, 64)).astype(np.float32)
        got = gradients_of(ops.LayerNorm(), [x], numbers(8, 64, seed=1).astype(np.float32))
        import torch

        wide = torch.tensor(x.astype(np.float64), requires_grad=True)
        seed = torch.tensor(numbers(8, 64, seed=1).astype(np.float32).astype(np.float64))
        (want,) = torch.autograd.grad(layer_norm(wide, (64,), None, None, 1e-5), wide, seed)
        close(got, [want.numpy().astype(np.float32)], wide=1e-4)
