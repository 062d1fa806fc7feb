"""torch.compile(model, backend="weft") against PyTorch's eager mode: inference."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.needs import require

require("torch")
import torch
from torch import nn

from weft.hooks import Converter, hookimpl
from weft.plugins import host
from weft_ops import LeakyRelu
from weft_torch import backend

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own deprecations
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend="weft", **options)


def same(got: Any, wanted: Any) -> None:
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert not isinstance(a, torch.Tensor) or a.stride() == b.stride()


def test_operands_that_are_not_contiguous_and_strides_of_results() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    fast = compiled(model)
    x = torch.randn(2, 3, 8, 8)
    same(fast(x), model(x))
    across = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    same(fast(across), model(across))
    turned = compiled(lambda x: (x.transpose(0, 1) + 1, x * 2))
    same(turned(x[0, 0]), (x[0, 0].transpose(0, 1) + 1, x[0, 0] * 2))


def test_weights_are_constants_until_they_are_written_to() -> None:
    model = nn.Linear(4, 3)
    fast = compiled(model)
    x = torch.randn(2, 4)
    same(fast(x), model(x))
    model.weight.mul_(2)
    same(fast(x), model(x))
    model.weight = nn.Parameter(torch.ones(3, 4))
    same(fast(x), model(x))


def test_weights_that_change_often_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model is evaluated while it is trained."""
    built: list[Any] = []
    build = backend.Captured.build
    monkeypatch.setattr(backend.Captured, "build", lambda self, args: (built.append(self), build(self, args)))
    model = nn.Linear(4, 3)
    fast = compiled(model)
    x = torch.randn(2, 4)
    for _ in range(7):
        same(fast(x), model(x))
        model.weight.mul_(1.5)
    assert len(built) == backend.BUILT + 1


def test_weights_that_are_set_to_other_memory() -> None:
    model = nn.Linear(4, 3)
    fast = compiled(model)
    x = torch.randn(2, 4)
    same(fast(x), model(x))
    model.weight.data = torch.ones(3, 4)
    same(fast(x), model(x))
    model._apply(lambda p: p * 2)
    same(fast(x), model(x))


def test_weights_whose_writes_are_not_counted() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 3)
        fast = compiled(model)
        x = torch.randn(2, 4)
        for factor in (1, 2):
            model.weight.mul_(factor)
            same(fast(x), model(x))


def views(x: torch.Tensor) -> Any:
    y = x.t() + 1
    z = torch.complex(x, x) * 2
    first, second = y.chunk(2)
    return y[1:], y, x * 2, first, second, y.view(torch.int32), y.expand(2, *y.shape), torch.view_as_real(z), z.conj()


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_in_the_same_memory_share_it(dynamic: bool | None) -> None:
    """A write to one is a write to the others: what comes behind a break of the graph sees it."""
    fast = compiled(views, dynamic=dynamic)
    for shape in ((4, 6), (3, 8)):
        x = torch.randn(shape)
        got, wanted = fast(x), views(x)
        same(got, wanted)
        for results in (got, wanted):
            results[1][1].zero_()
            results[7][0].fill_(3)
        same(got, wanted)


def test_writes_behind_a_break_of_the_graph() -> None:
    def broken(x: torch.Tensor) -> Any:
        y = x + 1
        row = y[1:]
        torch._dynamo.graph_break()
        y.zero_()
        return row, torch.zeros(0, 3) + y[:0, :3]

    x = torch.ones(4, 6)
    same(compiled(broken)(x), broken(x))


def test_complex_numbers() -> None:
    def turned(x: torch.Tensor, z: torch.Tensor) -> Any:
        spectrum = torch.fft.rfft(x) * z.conj() + 2j
        return spectrum, torch.fft.irfft(spectrum, 8), spectrum.abs(), (spectrum / (z + 1)).sum(0)

    x, z = torch.randn(3, 8), torch.randn(5, dtype=torch.complex64)
    same(compiled(turned)(x, z), turned(x, z))


def test_sizes_do_not_compile_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    build = backend.Captured.build
    monkeypatch.setattr(backend.Captured, "build", lambda self, args: (built.append(self), build(self, args)))

    def scores(x: torch.Tensor) -> Any:
        return torch.softmax(x @ x.T, -1) * x.shape[0], x.shape[0] + 1

    fast = compiled(scores, dynamic=True)
    for n in (3, 7, 9):
        x = torch.randn(n, 4)
        same(fast(x), scores(x))
    assert len(built) == 1


def test_two_open_sizes_make_one_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    build = backend.core.compile
    monkeypatch.setattr(backend.core, "compile", lambda *a, **o: made.append(build(*a, **o)) or made[-1])
    model = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    fast = compiled(model, dynamic=True)
    for batch, length in ((2, 5), (3, 9), (4, 2)):
        tokens = torch.randint(11, (batch, length))
        same(fast(tokens), model(tokens))
    assert len(made) == 1


def test_layers_that_pytorch_runs_whole() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    own = nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def both(x: torch.Tensor, padding: torch.Tensor) -> Any:
        y = layer(x, src_key_padding_mask=padding)
        return own(y, y, y)

    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    same(compiled(both)(x, padding), both(x, padding))


class Vendor:
    @hookimpl
    def converters(self, frontend: str) -> list[Converter]:
        return [Converter("torch", "acme_graph", "leak", lambda c: c(LeakyRelu(c.argument("slope")), c.value(0)))]


def test_operators_of_users() -> None:
    @torch.library.custom_op("acme_graph::leak", mutates_args=())
    def leak(x: torch.Tensor, slope: float = 0.5) -> torch.Tensor:
        return torch.nn.functional.leaky_relu(x, slope)

    leak.register_fake(lambda x, slope=0.5: torch.empty_like(x))

    def function(x: torch.Tensor) -> torch.Tensor:
        return leak(x, 0.25) + leak(x)

    with pytest.raises(Exception, match=r"operator acme_graph\.leak[\s\S]*hook `converters`"):
        compiled(function)(torch.randn(4))
    torch._dynamo.reset()
    host().register(Vendor(), "acme")
    try:
        same(compiled(function)(torch.arange(4.0) - 2), function(torch.arange(4.0) - 2))
    finally:
        host().unregister("acme")


def test_buffers_that_a_call_writes_to() -> None:
    class Cache(nn.Module):
        keys: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(4, 3))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(0, at, x)
            return self.keys.sum(0)

    model = Cache()
    fast = compiled(model)
    for k in (1, 2, 3):
        same(fast(torch.ones(1, 3), torch.tensor([k])), torch.full((3,), float(k)))
    same(model.keys[:, 0].clone(), torch.tensor([0.0, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize("fallback", [False, True])
def test_operands_that_are_swapped(fallback: bool) -> None:
    @torch.library.custom_op("acme_graph::plain", mutates_args=())
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    plain.register_fake(torch.empty_like)

    def swapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)
        return plain(x) if fallback else x + 1

    x, y = torch.zeros(3), torch.ones(3)
    same(compiled(swapped, options={"fallback": fallback})(x, y), torch.full((3,), 2.0))
    same((x, y), (torch.ones(3), torch.zeros(3)))


def test_what_is_not_supported_is_an_error_or_runs_in_pytorch() -> None:
    @torch.library.custom_op("acme_graph::odd", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    own.register_fake(torch.empty_like)

    def odd(x: torch.Tensor) -> torch.Tensor:
        return own(x) + 1

    with pytest.raises(Exception, match=r"operator acme_graph\.odd") as caught:
        compiled(odd)(torch.eye(3))
    assert type(caught.value).__name__ == "UnsupportedError" and "test_backend.py" in str(caught.value)
    torch._dynamo.reset()
    backend.unsupported.clear()
    same(compiled(odd, options={"fallback": True})(torch.eye(3)), odd(torch.eye(3)))
    assert backend.unsupported == {"operator acme_graph.odd": 1}


def test_options_that_do_not_exist() -> None:
    with pytest.raises(Exception, match="backend 'weft' has no option 'fall'"):
        compiled(lambda x: x + 1, options={"fall": True})(torch.ones(2))
