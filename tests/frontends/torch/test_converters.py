"""Converters one by one, on data that reaches their cases; test_coverage has the rest of PyTorch's operators."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch")
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft_testing.frontend import compare
from weft_torch.tensors import array_of

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: torch.Tensor) -> Any:
        return self.function(*xs)


def agrees(function: Callable[..., Any], *xs: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """The function interpreted gives what PyTorch gives."""
    graph = weft.load(Applied(function), inputs=xs)
    used = {v.name: k for k, v in enumerate(graph.inputs)}
    names = [f"xs_{k}" for k in range(len(xs))]
    got = evaluate(graph, {name: x.numpy() for name, x in zip(names, xs) if name in used})
    wanted = [w for w in torch.utils._pytree.tree_leaves(function(*xs)) if w is not None]
    assert len(got) == len(wanted)
    for k, (a, b) in enumerate(zip(got, wanted)):
        compare({f"{k}": a}, {f"{k}": b.numpy()}, "interpreted", rtol, atol)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, B = random(2, 5, 5), random(2, 5, 3, seed=1)
POSITIVE = A @ A.mT + torch.eye(5)
LOWER = torch.linalg.cholesky(POSITIVE)
SWAPS = torch.tensor([[0.0, 2, 1], [0, 0, 3], [4, 1, 1]])
LINALG: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "det": (torch.linalg.det, (A,)),
    "slogdet": (torch.linalg.slogdet, (A,)),
    "slogdet of exchanged rows": (torch.linalg.slogdet, (SWAPS,)),
    "inv": (torch.linalg.inv, (A,)),
    "inv of exchanged rows": (torch.linalg.inv, (SWAPS,)),
    "solve": (torch.linalg.solve, (A, B)),
    "solve for a vector": (torch.linalg.solve, (A[0], B[0, :, 0])),
    "solve from the right": (lambda a, b: torch.linalg.solve(a, b, left=False), (A, B.mT)),
    "lu_factor": (torch.linalg.lu_factor, (A,)),
    "lu of tall matrices": (torch.linalg.lu, (A[..., :3],)),
    "lu of wide matrices": (torch.linalg.lu, (A[:, :3],)),
    "cholesky": (torch.linalg.cholesky, (POSITIVE,)),
    "upper cholesky": (lambda a: torch.linalg.cholesky(a, upper=True), (POSITIVE,)),
    "cholesky_solve": (lambda b, a: torch.cholesky_solve(b, a), (B, LOWER)),
    "cholesky_inverse": (torch.cholesky_inverse, (LOWER,)),
    "solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), (LOWER, B)),
    "solve_triangular from the right": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, left=False, unitriangular=True),
        (LOWER, B.mT),
    ),
    "triangular_solve": (lambda b, a: torch.triangular_solve(b, a, upper=True, transpose=True), (B, LOWER.mT)),
    "qr of tall matrices": (torch.linalg.qr, (A[..., :3],)),
    "qr of wide matrices": (torch.linalg.qr, (A[:, :3],)),
    "qr, complete": (lambda a: torch.linalg.qr(a, mode="complete"), (A[..., :3],)),
    "r alone": (lambda a: torch.linalg.qr(a, mode="r")[1], (A,)),
}


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra(name: str) -> None:
    function, xs = LINALG[name]
    agrees(function, *xs, rtol=1e-3, atol=1e-4)


def test_a_matrix_without_an_inverse_ends_the_run() -> None:
    graph = weft.load(Applied(torch.linalg.inv), inputs=(A,))
    with pytest.raises(Exception, match="the matrix is singular"):
        evaluate(graph, [np.zeros((2, 5, 5), np.float32)])
    graph = weft.load(Applied(torch.linalg.cholesky), inputs=(POSITIVE,))
    with pytest.raises(Exception, match="or not as it should be"):
        evaluate(graph, [-POSITIVE.numpy()])


LINE = torch.cat([torch.linspace(-9.75, 9.8, 60), torch.tensor([0.5, 1.0, 2.0, 1e-3, 30.0, 1e4, torch.nan, torch.inf])])
EDGES = torch.tensor([0.0, -0.0, 1, -2, torch.inf, -torch.inf, torch.nan])
INTEGERS = torch.tensor([-7, -6, -1, 1, 5, 6, 7])
DIVISORS = torch.tensor([2, -3, 5, -2, -5, 4, 3])
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "lgamma": (torch.lgamma, (LINE,)),
    "digamma": (torch.digamma, (LINE[:-1],)),
    "digamma of whole numbers": (torch.digamma, (torch.tensor([0.0, -1.0, -2.0, 1.0]),)),
    "trigamma": (lambda x: torch.polygamma(1, x), (LINE[:-2],)),
    "erfc": (torch.erfc, (LINE,)),
    "erfcx": (torch.special.erfcx, (LINE[LINE > -5],)),
    "log_ndtr": (torch.special.log_ndtr, (LINE,)),
    "erfinv": (torch.erfinv, (torch.cat([torch.linspace(-1.25, 1.25, 51), torch.tensor([0.999999, torch.nan])]),)),
    "angle": (torch.angle, (LINE,)),
    "sign of NaN": (torch.sign, (LINE,)),
    "atan2": (lambda x: torch.atan2(x[:, None], x), (EDGES,)),
    "floor_divide of floats": (lambda x, y: torch.floor_divide(x, y), (LINE[:60], LINE[:60].flip(0) + 0.1)),
    "floor_divide of integers": (lambda x, y: torch.floor_divide(x, y), (INTEGERS, DIVISORS)),
    "truncated division": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (INTEGERS, DIVISORS)),
    "remainder": (lambda x, y: (torch.remainder(x, y), torch.fmod(x, y)), (INTEGERS, DIVISORS)),
    "remainder of floats": (lambda x: (torch.remainder(x, -3.5), torch.fmod(x, -3.5)), (LINE[:60],)),
    "promotion": (
        lambda x, y: (x + 1.5, x * y, x / 2, x > 0.5, torch.where(x > 0, x, y)),
        (INTEGERS, DIVISORS.half()),
    ),
    "numbers of Python": (lambda x: (x + 1, x * 2.5, x**2, 2**x.abs()), (INTEGERS.to(torch.int8),)),
    "floats as small integers": (lambda x: (x.to(torch.uint8), x.to(torch.int8)), (torch.tensor([3.7, -1.2, 300.5]),)),
    "cummax": (lambda x: torch.cummax(x, 0), (torch.tensor([[1.0, 3], [1, 2], [-1, torch.nan], [2, 5]]),)),
    "cummin": (lambda x: torch.cummin(x, 1), (torch.tensor([[1.0, 3, 1, 0], [-torch.inf, 2, -torch.inf, 4]]),)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), (torch.tensor([[-500.0, 0, 500], [1, -torch.inf, 2]]),)),
    "median": (
        lambda x: (torch.median(x, 1), torch.nanmedian(x, 1).values),
        (torch.tensor([[3.0, torch.nan, 1, 2], [4, 2, 1, 3]]),),
    ),
    "std_mean": (lambda x: torch.std_mean(x, (0, 2), correction=0), (A,)),
    "clamp": (lambda x: (x.clamp(-2, 1), x.clamp(min=3), x.clamp(2, -2)), (LINE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, xs = FUNCTIONS[name]
    agrees(function, *xs)


X = random(4, 6, 5)
ROWS, COLUMNS = torch.tensor([[0, -1], [2, 3]]), torch.tensor([1, 4])
MOVED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "index": (lambda x, i, j: (x[i], x[:, j], x[i, j], x[i, :, j], x[:, i, j], x[None, i, 2]), (X, ROWS, COLUMNS)),
    "a mask": (lambda x: (x[x > 0.5], x[x[:, 0, 0] > 0], torch.nonzero(x > 1)), (X,)),
    "index_put": (lambda x, i, j: torch.index_put(x, (i, j), x[0, 0, :], accumulate=True), (X, ROWS, COLUMNS)),
    "index_put apart": (
        lambda x, i, j: torch.ops.aten.index_put(x, [i, None, j], torch.ones(2, 2, 6)),
        (X, ROWS, COLUMNS),
    ),
    "masked assignment": (lambda x: torch.index_put(x, (x > 0,), torch.tensor(7.0)), (X,)),
    "scatter": (lambda x, i: x.scatter(1, i[None], 2 * x), (X[:, :, :2].contiguous(), ROWS.abs())),
    "scatter_reduce": (
        lambda x, i: [x.scatter_reduce(1, i[None], x + 1, r, include_self=own)
                      for r in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)],
        (X[:, :, :2].contiguous(), ROWS.abs()),
    ),
    "slices": (lambda x: (x[1:-1, ::2], x[..., -3:], x[:, 5:2], x.flip(0, 2), x.roll((1, -2), (0, 1))), (X,)),
    "as_strided": (lambda x: torch.as_strided(x, (3, 2), (7, 2), 1), (X,)),
    "as_strided of views": (
        lambda x: (
            x[1].as_strided((2, 3), (12, 1)),
            x[:, 2:].as_strided((2, 2), (30, 3), 4),
            x[:1].expand(5, 6, 5).as_strided((3,), (1,)),
            x.unfold(1, 3, 2).as_strided((2, 2), (5, 2)),
            torch.ops.aten._unsafe_view(x[1:3], [12, 5]).as_strided((2, 2), (8, 1), 0),
        ),
        (X,),
    ),
    "bits seen otherwise": (
        lambda x: (
            x.view(torch.int8),
            x[:, :, :4].contiguous().view(torch.int64),
            x.to(torch.int64).view(torch.float32),
            x[:, :, :4].to(torch.int16).view(torch.float64),
        ),
        (X,),
    ),
    "views of prims": (lambda x: torch.ops.prims.collapse(x, 0, 1), (X,)),
    "_index_put_impl": (
        lambda x, i, j: torch.ops.aten._index_put_impl_(x.clone(), [i, j], x[0, 0, :], True, False),
        (X, ROWS, COLUMNS),
    ),
    "iota, sum and product of prims": (
        lambda x: (
            torch.ops.prims.iota(4, start=3, step=-2, dtype=torch.int64, device="cpu", requires_grad=False) * x.size(0),
            torch.ops.prims.sum(x, [0, 2]),
            torch.ops.prims.prod(x, [1]),
        ),
        (X,),
    ),
    "_trilinear": (
        lambda x: (
            torch._trilinear(x[0], x[1], x, [0], [0], [], [1], 1),
            torch._trilinear(x[0, 0], x[0, :, 0], x[0], [0], [1], [], []),
            torch._trilinear(x, x, x, [], [], [], [0, 2]),
        ),
        (X,),
    ),
    "diagonals": (lambda x: (x.diagonal(1, 1, 2), x.diagonal(-2), torch.diag_embed(x[0], 1), x.tril(-1)), (X,)),
    "masked_scatter": (lambda x: torch.masked_scatter(x, x > 0, x.flatten() * 2), (X,)),
    "unfold of a scalar": (lambda x: (x[0, 0, 0].unfold(0, 0, 1), x[0, 0, 0].unfold(0, 1, 1)), (X,)),
    "unfold": (lambda x: (x.unfold(1, 3, 2), F.unfold(x[None], (2, 3), padding=1)), (X,)),
    "searchsorted": (
        lambda x, y: (torch.searchsorted(x, y), torch.bucketize(y, x, right=True)),
        (torch.arange(5.0), torch.tensor([0.0, 2.5, 9])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_movement(name: str) -> None:
    function, xs = MOVED[name]
    agrees(function, *xs)


TBC = random(3, 9, 4)
IMAGE, FILTERS, SMALL, GRID = random(1, 2, 7, 9), random(2, 3, 3, 3), random(4, 1, 2, 3), random(1, 4, 4, 2).tanh()
IMAGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest": lambda x: [F.interpolate(x, size=s, mode="nearest") for s in ((14, 18), (5, 4), (10, 13))],
    "nearest-exact": lambda x: [F.interpolate(x, size=s, mode="nearest-exact") for s in ((14, 18), (5, 4))],
    "bilinear": lambda x: [F.interpolate(x, size=(12, 5), mode="bilinear", align_corners=a) for a in (True, False)],
    "a scale": lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(12, 5), mode="bicubic"),
    "antialias": lambda x: [F.interpolate(x, size=(3, 5), mode=m, antialias=True) for m in ("bilinear", "bicubic")],
    "max_pool with places": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
    "max_unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 9)),
    "avg_pool": lambda x: [F.avg_pool2d(x, 3, 2, 1, c, i) for c in (True, False) for i in (True, False)],
    "avg_pool by another number": lambda x: [F.avg_pool2d(x, 3, 2, 1, c, divisor_override=5) for c in (True, False)],
    "adaptive means": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
    "transposed convolution": lambda x: F.conv_transpose2d(x, FILTERS, None, 2, 1, 1),
    "adaptive means of what is not finite": lambda x: F.adaptive_avg_pool2d(x / (x > -1.5), (3, 4)),
    "rrelu, not training": lambda x: torch.ops.aten.rrelu(x, 0.1, 0.9, False),
    "_convolution": lambda x: torch.ops.aten._convolution(
        x, FILTERS, None, [2, 1], [1, 0], [1, 1], True, [1, 0], 1, False, False, True
    ),
    "conv_tbc": lambda x: torch.conv_tbc(x[0], TBC, TBC[0, 0], 1),
    "same padding": lambda x: F.conv2d(x, SMALL, None, padding="same", groups=2, dilation=(1, 2)),
    "pads": lambda x: [F.pad(x, (2, 1, 3, 0), mode=m) for m in ("constant", "reflect", "replicate", "circular")],
    "norms": lambda x: (F.group_norm(x, 2), F.instance_norm(x), F.layer_norm(x, (9,)), F.rms_norm(x, (9,))),
    "grid_sample": lambda x: F.grid_sample(x, GRID, align_corners=False),
    "pixel_shuffle": lambda x: (F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2), F.pixel_unshuffle(x[..., :6, :8], 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    agrees(IMAGES[name], IMAGE)


def test_attention() -> None:
    q, k, v = random(2, 4, 5, 8), random(2, 2, 6, 8, seed=1), random(2, 2, 6, 7, seed=2)
    mask = random(5, 6) > 0
    attend = F.scaled_dot_product_attention
    agrees(lambda q, k, v: attend(q, k, v, enable_gqa=True, is_causal=True), q, k, v)
    agrees(lambda q, k, v, m: attend(q[:, :2], k, v, m, scale=0.3), q, k, v, mask)
    agrees(lambda q, k, v: attend(q[0, 0], k[0, 0], v[0, 0]), q, k, v)


def test_bags() -> None:
    table, places, offsets = random(9, 4), torch.tensor([1, 8, 3, 3, 0]), torch.tensor([0, 2, 2])
    for mode in ("sum", "mean", "max"):
        agrees(lambda t, i, o, m=mode: F.embedding_bag(i, t, o, mode=m), table, places, offsets)


def test_memory_seen_otherwise() -> None:
    x = torch.randn(3, 4, 2)
    agrees(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1).as_strided((2, 5), (3, 1), 2), x)
    agrees(lambda x: (x + 1).permute(2, 0, 1).as_strided((3, 3), (4, 2)), x)


def test_angles_of_complex_numbers() -> None:
    x, y = torch.randn(2, 5, 4)
    agrees(lambda x, y: torch.angle(torch.complex(x, y)), x, y)


def test_activations_of_complex_numbers() -> None:
    x, y = torch.randn(2, 5, 4)
    agrees(lambda x, y: torch.view_as_real(F.silu(torch.complex(x, y))), x, y)


def test_quotients_of_large_and_small_complex_numbers() -> None:
    def quotients(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        return torch.view_as_real(a / b), torch.view_as_real(b.reciprocal())

    x = torch.tensor([[1e30, 1e30], [1e-30, 2e-30], [3e25, -1e25], [1.0, -2.0], [0.0, 0.0]])
    y = torch.tensor([[1e30, -1e30], [1e-30, 1e-30], [2e25, 1e25], [0.0, 0.0], [1.0, 1.0]])
    agrees(quotients, x, y)
    agrees(lambda x: torch.view_as_real(torch.view_as_complex(x).exp()), torch.tensor([[100.0, 0.0], [1.0, 3.0]]))


def test_complex_numbers_beside_real_ones() -> None:
    """Of a real operand the imaginary part is zero; a factor may be complex."""
    x, y = random(3, 4, 2), random(3, 4, seed=1)
    cases: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "add": lambda z, r: torch.add(z, z.conj(), alpha=2 + 1j),
        "sub": lambda z, r: torch.sub(z, r, alpha=2j),
        "stack": lambda z, r: torch.stack([z, r]),
        "sum": lambda z, r: r.sum(dtype=torch.complex64) + r.sum(1, dtype=torch.complex64),
        "mean": lambda z, r: r.mean(1, dtype=torch.complex64),
        "cumsum": lambda z, r: r.cumsum(1, dtype=torch.complex64),
        "slice_scatter": lambda z, r: torch.slice_scatter(z, r[:2], 0, 0, 2),
        "select_scatter": lambda z, r: torch.select_scatter(z, r[0], 0, 1),
        "as_strided": lambda z, r: (z * 1j).as_strided((2, 2), (1, 4), 1),
    }
    for function in cases.values():

        def parts(x: torch.Tensor, y: torch.Tensor, f: Any = function) -> Any:
            return torch.view_as_real(f(torch.view_as_complex(x), y))

        agrees(parts, x, y)


def test_different_elements() -> None:
    x = torch.tensor([[3.0, 1, torch.nan, 3], [torch.nan, 1, 1, -0.5]])
    agrees(lambda x: torch.unique(x), x)
    agrees(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    agrees(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x)
    agrees(lambda n: torch.unique(n, return_counts=True), torch.tensor([7, 2, 2, -1, 7]))
    agrees(lambda n: torch.unique_consecutive(n, dim=0), torch.tensor([True, True, False, True]))
    graph = weft.load(Applied(lambda x: torch.unique(x, return_counts=True)), inputs=(x,))
    values, counts = weft.compile(graph, "llvm", cache=False)(x.numpy())
    assert counts.tolist() == [1, 3, 2, 1, 1] and values[:3].tolist() == [-0.5, 1, 3]


def test_norms_of_complex_numbers() -> None:
    x, y = torch.randn(2, 5, 4)
    for p in (2, 3.5, torch.inf, -torch.inf, 0, 1):
        agrees(lambda x, y, p=p: torch.linalg.vector_norm(torch.complex(x, y), p, 1, keepdim=True), x, y)
    agrees(lambda x, y: torch.linalg.norm(torch.complex(x, y), dim=[0, 1]), x, y)


def test_fake_quantisation() -> None:
    x = torch.cat([torch.randn(3, 4) * 9, torch.tensor([[0.05, 0.15, -0.25, 99.0]])])
    scale, zero = torch.tensor([0.1, 0.3, 0.2, 0.5]), torch.tensor([0, 3, -7, 1], dtype=torch.int32)
    agrees(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), x)
    agrees(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[1], z[1], 0, 255), x, scale, zero)
    agrees(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7), x, scale, zero)


def test_fake_quantisation_with_zero_points_between_steps() -> None:
    x = torch.linspace(-2, 2, 41).expand(2, 41)
    scale, zero = torch.tensor([0.13, 0.2]), torch.tensor([3.4, 6.7])
    agrees(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, 0, 15), x, scale, zero)


def test_an_infinite_row_counts_in_its_bag_alone() -> None:
    table = random(6, 3)
    table[4], table[5] = torch.inf, torch.nan
    places, bags = torch.tensor([0, 1, 4, 2, 3, 5]), torch.tensor([0, 2, 4, 5])
    for mode in ("sum", "mean", "max"):
        agrees(lambda i, o, t, m=mode: F.embedding_bag(i, t, o, mode=m), places, bags, table)


def test_an_infinite_weight_counts_in_its_group_alone() -> None:
    weights = random(3, 8, 8, seed=1).bfloat16()
    weights[1] = torch.inf
    xs = random(7, 8).bfloat16(), weights, torch.tensor([2, 3, 6], dtype=torch.int32)
    (got,) = evaluate(weft.load(Applied(torch._grouped_mm), inputs=xs), [array_of(x) for x in xs])
    finite = np.isfinite(got.astype(np.float32)).all(1)
    assert finite.tolist() == [True, True, False, True, True, True, True]


def test_nan_comes_behind_all_boundaries() -> None:
    x, bounds = torch.tensor([torch.nan, 2.0, -torch.inf, torch.inf]), torch.tensor([1.0, 2, 3])
    for right in (False, True):
        agrees(lambda x, b, r=right: (torch.bucketize(x, b, right=r), torch.searchsorted(b, x, right=r)), x, bounds)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rms_norm_without_an_epsilon(dtype: torch.dtype) -> None:
    x = (random(3, 8) * 0.01).to(dtype)
    (got,) = evaluate(weft.load(Applied(lambda x: F.rms_norm(x, (8,))), inputs=(x,)), [array_of(x)])
    wanted = F.rms_norm(x, (8,)).float().numpy()
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=1e-5 if dtype.itemsize > 2 else 1e-2)


def test_weights_that_share_memory_with_their_conjugates() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            z = torch.view_as_complex(random(3, 4, 2))
            for name, buffer in {"z": z, "conj": z.conj(), "im": z.imag, "negative": z.conj().imag}.items():
                self.register_buffer(name, buffer)

        def forward(self, x: torch.Tensor) -> Any:
            return torch.view_as_real(self.z * x), torch.view_as_real(self.conj * x), self.im * x, self.negative * x

    module, x = Both(), random(3, 4, seed=1)
    got = evaluate(weft.load(module, inputs=(x,)), [x.numpy()])
    for a, b in zip(got, module(x), strict=True):
        compare({"y": a}, {"y": b.numpy()}, "interpreted")


def test_powers_of_minus_a_half() -> None:
    agrees(lambda x: x**-0.5, EDGES)


def test_margins_of_several_labels() -> None:
    """PyTorch's decomposition is wrong where labels end early."""
    rows = random(3, 5), torch.tensor([[1, 3, -1, 0, 2], [-1, 0, 1, 2, 3], [4, 0, 1, 3, 2]])
    for reduction in ("mean", "sum", "none"):
        agrees(lambda x, i, r=reduction: F.multilabel_margin_loss(x, i, reduction=r), *rows)
    agrees(F.multilabel_margin_loss, *(x[0] for x in rows))


def test_a_program_that_pytorch_mistakes_is_refused() -> None:
    """The exporter says one element, PyTorch's kernel and our decomposition give a scalar."""
    loss = Applied(lambda x, i: F.multilabel_margin_loss(x, i, reduction="none"))
    said = r"taken apart it is torch.float32\[\], the exporter says torch.float32\[1\]"
    with pytest.raises(FrontendError, match=said):
        weft.load(loss, inputs=(random(3), torch.tensor([1, -1, 2])))


def test_gradients_of_thresholds() -> None:
    back = torch.ops.aten.threshold_backward
    x = torch.tensor([0.5, 1.0, 2.0, torch.nan])
    agrees(lambda g, x: back(g, x, 1), x + 1, x)
    with pytest.raises(UnsupportedError, match="threshold_backward: operands of two dtypes"):
        weft.load(Applied(lambda g, x: back(g, x, 1)), inputs=(torch.ones(4, dtype=torch.int64), x))


def test_a_result_written_to_another_shape_is_refused() -> None:
    module = Applied(lambda x: torch.arange(1, 13, out=x))
    with pytest.raises(UnsupportedError, match=r"aten.arange.start_out: out= of another shape than the result"):
        weft.load(module, inputs=(torch.zeros(3, 4, dtype=torch.int64),))


def test_products_of_small_floats() -> None:
    x, y = random(16, 32).to(torch.float8_e4m3fn), random(32, 16, seed=1).t().contiguous().t().to(torch.float8_e4m3fn)
    one, rows, columns = torch.tensor(0.25), torch.rand(16, 1), torch.rand(1, 16)
    for a, b in ((one, one), (rows, columns)):
        product = Applied(lambda x, y, a, b: torch._scaled_mm(x, y, a, b, out_dtype=torch.float32))
        graph = weft.load(product, inputs=(x, y, a, b))
        named = {f"xs_{k}": array_of(v) for k, v in enumerate((x, y, a, b))}
        (got,) = evaluate(graph, [named[v.name] for v in graph.inputs])
        wanted = (x.float() * a) @ (y.float() * b)
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("to", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16", "int32", "bool"])
def test_casts_to_small_floats_beyond_their_range(source: str, to: str) -> None:
    numbers = [0.0, 1.0, 1 / 3, 239, 241, 247, 249, 447, 448, 464, 465, 480, 500, 57344, 61439, 61441, 1e5]
    edges = [*numbers, *(-v for v in numbers), *([torch.inf, -torch.inf, torch.nan] if "float" in source else [])]
    first, second = getattr(torch, source), getattr(torch, to)
    agrees(lambda x: x.to(first).to(second).to(torch.float32), torch.tensor(edges))


def test_products_of_complex_matrices() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    agrees(lambda x, y: torch.view_as_real(torch.complex(x, x + 1) @ torch.complex(y, y - 1)), x, y)
    agrees(lambda x, y: torch.fft.ifft2(torch.fft.fft2(x, norm="ortho"), norm="forward").abs(), x, y)


SPECIAL = [
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
    "airy_ai",
    "ndtri",
]


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str) -> None:
    x = torch.cat(
        [torch.linspace(-29.7, 29.7, 67), torch.tensor([0.0, 1e-6, 0.3, 0.99, 1.01, 1e4, torch.inf, torch.nan])]
    )
    agrees(getattr(torch.special, name), x, atol=1e-5)


POLYNOMIALS = [f"{kind}_polynomial_{k}" for kind in ("chebyshev", "shifted_chebyshev") for k in "tuvw"]
POLYNOMIALS += ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    x = torch.cat([torch.linspace(-3, 3, 61), torch.tensor([1.0, -1.0])])
    agrees(getattr(torch.special, name), x, torch.arange(63) % 12 - 1.0, atol=1e-4)


def test_functions_of_two_numbers() -> None:
    a = torch.tensor([0.5, 1.0, 3.0, 30.0, 5.0, 0.0, 2.0, -1.0, 2.0]).reshape(9, 1)
    x = torch.tensor([0.0, 0.1, 1.5, 4.0, 40.0, 200.0, torch.inf, -2.0])
    agrees(torch.special.gammainc, a, x)
    agrees(torch.special.gammaincc, a, x)
    agrees(
        torch.special.zeta,
        torch.tensor([[1.5], [2.0], [3.0], [7.5], [1.0], [0.5]]),
        torch.tensor([0.3, 1, 2.5, 20, -2, -1.5]),
    )
    y = torch.tensor([0.0, -0.0, 1.0, -3.5, 1e-42, torch.inf, torch.nan])
    agrees(torch.nextafter, y.reshape(7, 1), y, rtol=0, atol=0)
    agrees(lambda x: torch.frexp(x)[0], y)
    agrees(lambda x: torch.frexp(x[:5])[1], y)


def test_counts() -> None:
    x = torch.tensor([0.1, 3.0, 2.0, -1.0, 5.0, 2.5, 2.0])
    agrees(lambda x: torch.histc(x, 4), x)
    agrees(lambda x: torch.histc(x, 3, 0, 3), x)
    n = torch.tensor([3, 1, 1, 5])
    agrees(lambda n: torch.bincount(n) * 2, n)
    agrees(lambda n, w: torch.bincount(n, w, 9), n, torch.rand(4))
    often = torch.tensor([0, 2, 0, 3, 1, 0])
    agrees(torch.ops.aten.repeat_interleave.Tensor, often)
    agrees(lambda n: torch.ops.aten.repeat_interleave.Tensor(n, output_size=6), often)
    agrees(lambda x, n: torch.repeat_interleave(x, n, 1), random(2, 6), often)
    graph = weft.load(Applied(lambda n: torch.ops.aten.repeat_interleave.Tensor(n, output_size=6)), inputs=(often,))
    with pytest.raises(Exception, match="repeats make 9 elements, output_size is 6"):
        evaluate(graph, [np.array([9, 0, 0, 0, 0, 0])])
    agrees(torch.gcd, torch.tensor([12, -18, 0, 7, 0]), torch.tensor([8, 12, 5, 0, 0]))
    agrees(lambda x: torch.mode(x, 0), torch.tensor([[1, 2], [3, 2], [3, 1], [1, 2]]))
    for kind in ("sum", "mean", "max", "min", "prod"):
        agrees(
            lambda x, n, kind=kind: torch.segment_reduce(x, kind, lengths=n, unsafe=True), x, torch.tensor([2, 4, 1])
        )


def test_matrices_taken_apart() -> None:
    a, b = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    agrees(torch.linalg.svdvals, torch.randn(2, 3, 5))
    agrees(torch.linalg.eigvalsh, a)
    agrees(lambda a: torch.linalg.svd(a)[0].abs(), a)
    agrees(torch.linalg.pinv, torch.randn(3, 5), atol=1e-4)
    agrees(torch.linalg.matrix_exp, a * 3, rtol=1e-3)
    agrees(lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)), a)
    for left, adjoint in ((True, False), (True, True), (False, False), (False, True)):
        c = b if left else b.mT.contiguous()
        agrees(
            lambda a, b, left=left, adjoint=adjoint: torch.linalg.lu_solve(
                *torch.linalg.lu_factor(a), b, left=left, adjoint=adjoint
            ), a, c, rtol=1e-3, atol=1e-3
        )  # fmt: skip
    q, tau = torch.geqrf(torch.randn(5, 3))
    agrees(torch.linalg.householder_product, q, tau)
    for shape in ((2, 5, 3), (3, 5), (4, 4)):
        agrees(torch.geqrf, random(*shape))
    agrees(torch.geqrf, torch.tensor([[2.0, 1], [0, -3], [0, 0]]))
    for size in (1e25, 1e-30):  # whose squares overflow and vanish
        agrees(lambda x, s=size: torch.linalg.qr(x)[1] / s, random(4, 3) * size)
        agrees(lambda x, s=size: (torch.linalg.qr(x)[0], torch.geqrf(x)[1]), random(4, 3) * size)
    for left, turned in ((True, False), (True, True), (False, False)):
        y = torch.randn(5, 2) if left else torch.randn(2, 5)
        agrees(lambda q, t, y, left=left, turned=turned: torch.ormqr(q, t, y, left, turned), q, tau, y)


def test_groups_of_rows() -> None:
    x, w = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(3, 8, 8, dtype=torch.bfloat16)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    graph = weft.load(Applied(lambda x, w, e: torch._grouped_mm(x, w, offs=e).float()), inputs=(x, w, ends))
    wanted = torch.cat([x[:2] @ w[0], x[2:] @ w[2]]).float().numpy()
    got = evaluate(graph, [np.asarray(v) for v in map(array_of, (x, w, ends))])[0]
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-2, atol=2e-2)
