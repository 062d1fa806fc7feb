"""Training through torch.compile(model, backend="weft") against PyTorch's eager mode: losses, gradients and buffers
over steps of PyTorch's own optimisers."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.needs import require

require("torch")
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.graph.evaluate import evaluate
from weft_torch import backend

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own deprecations
]
CLOSE = {"rtol": 2e-4, "atol": 2e-5}
"""Sums in float32 differ by their order."""
EXACT = {"rtol": 1e-7, "atol": 1e-9}
"""Of float64, after some steps."""
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.enable_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What executables are made of, in order."""
    made: list[Any] = []
    build = backend.Captured.build
    monkeypatch.setattr(backend.Captured, "build", lambda self, args: (made.append(self), build(self, args)))
    return made


class Interpreted:
    """A graph that is interpreted in place of an executable: what is tested is the graph."""

    def __init__(self, graph: Any, target: str) -> None:
        self.graph = graph

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        found = evaluate(self.graph, [feeds[v.name] for v in self.graph.inputs])
        return dict(zip(self.graph.output_names, found, strict=True))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.core, "compile", Interpreted)


def compiled(function: Function, **options: Any) -> Any:
    return torch.compile(function, backend="weft", **options)


def close(got: Any, wanted: Any, **tolerance: float) -> None:
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, **(CLOSE | tolerance))
        assert not isinstance(a, Tensor) or a.stride() == b.stride()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


def train_both(
    model: nn.Module, batches: Sequence[Any], loss: Function, optimizer: Function,
    tolerance: dict[str, float] = CLOSE, **options: Any,
) -> list[float]:  # fmt: skip
    """Takes a step for each batch in eager mode and compiled, with the same random numbers; the losses."""
    own = copy.deepcopy(model)
    fast = compiled(own, **options)
    losses = []
    nets = [(model, model, optimizer(model.parameters())), (fast, own, optimizer(own.parameters()))]
    for k, batch in enumerate(batches):
        found = []
        for net, holder, steps in nets:
            torch.manual_seed(k)
            steps.zero_grad()
            value = loss(net, *batch)
            value.backward()
            gradients = {n: p.grad for n, p in holder.named_parameters()}
            found.append((value.detach(), gradients, dict(holder.named_buffers())))
        close(*reversed(found), **tolerance)
        for _, _, steps in nets:
            steps.step()
        losses.append(float(found[1][0]))
    return losses


def scored(net: Function, x: Tensor, targets: Tensor) -> Tensor:
    """Scores [..., classes] against targets."""
    return F.cross_entropy(net(x).flatten(0, -2), targets.flatten())


def gradients(function: Function, inputs: Sequence[Tensor]) -> tuple[Any, list[Any]]:
    """Results, and the gradients by the inputs of the sum of the results with weights that differ."""
    own = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.is_floating_point()) for x in inputs]
    results = function(*own)
    total = 0
    for y in torch.utils._pytree.tree_leaves(results):
        if isinstance(y, Tensor) and y.requires_grad:
            total = total + (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
    total.backward()  # type: ignore[union-attr,attr-defined]
    return results, [x.grad for x in own]


def same_gradients(function: Function, *inputs: Tensor, **options: Any) -> None:
    wanted = gradients(function, inputs)
    close(gradients(compiled(function, **options), inputs), wanted)


# -- models -----------------------------------------------------------------------------------------------------------


def test_a_perceptron(built: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.GELU())
    batches = [(torch.randn(5, 8), torch.randn(5, 4))] * 5
    losses = train_both(model, batches, lambda net, x, y: F.mse_loss(net(x), y), adamw)
    assert losses[-1] < losses[0]
    assert len(built) == 2, "parameters change at every step, and are inputs"


def test_convolutions_batch_norm_and_pooling(built: list[Any]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Dropout(0.0),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2, 1), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(32, 5),
    )  # fmt: skip
    batches = [(torch.randn(4, 3, 14, 14), torch.randint(5, (4,))) for _ in range(3)]
    train_both(model, batches, lambda net, x, y: F.cross_entropy(net(x), y), sgd)
    assert len(built) == 2 and int(model[1].num_batches_tracked) == 3


class Tagger(nn.Module):
    """A layer of a transformer's encoder between an embedding and scores, [batch, length] → [batch, length, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.scores = nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.layer(self.embedding(x)))


def test_a_transformer_of_open_sizes(built: list[Any]) -> None:
    sizes = ((3, 7), (4, 5), (2, 9))
    batches = [(torch.randint(11, size), torch.randint(11, size)) for size in sizes]
    train_both(Tagger(), batches, scored, adamw, dynamic=True)
    assert len(built) == 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.scores = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.cells(x)[0])


def test_a_recurrent_net(built: list[Any]) -> None:
    batches = [(torch.randn(3, 4, 6), torch.randint(3, (3, 4))) for _ in range(2)]
    with torch._dynamo.config.patch(allow_rnn=True):  # else PyTorch captures none of it
        train_both(Recurrent(), batches, scored, sgd)
    assert len(built) == 2


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet18(classes: int) -> nn.Module:
    """He et al., 2015, table 1."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = (64, 64, 128, 256, 512)
    for k in range(4):
        stem += [Block(widths[k], widths[k + 1], 1 if k == 0 else 2), Block(widths[k + 1], widths[k + 1], 1)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


@pytest.mark.full
def test_a_residual_net(built: list[Any]) -> None:
    """In float64: normalisations over few pictures make much of what float32 rounds."""
    batches = [(torch.randn(4, 3, 64, 64).double(), torch.randint(10, (4,))) for _ in range(3)]
    losses = train_both(resnet18(10).double(), batches, lambda net, x, y: F.cross_entropy(net(x), y), sgd, EXACT)
    assert len(built) == 2 and len(set(losses)) == 3


# -- random numbers ---------------------------------------------------------------------------------------------------


def test_dropout_draws_what_eager_mode_draws() -> None:
    fast = compiled(lambda x: F.dropout(F.dropout2d(x, 0.4), 0.5) + torch.randn_like(x))

    def eager(x: Tensor) -> Tensor:
        return F.dropout(F.dropout2d(x, 0.4), 0.5) + torch.randn_like(x)

    x = torch.randn(3, 4, 5, 6)
    for _ in range(2):  # the generator goes on
        states = torch.get_rng_state()
        wanted = gradients(eager, [x])
        after = torch.get_rng_state()
        torch.set_rng_state(states)
        close(gradients(fast, [x]), wanted)
        assert torch.equal(torch.get_rng_state(), after)


def test_dropout_keeps_its_share_and_its_gradient_has_the_same_mask() -> None:
    x = torch.ones(100, 100, requires_grad=True)
    fast = compiled(lambda x: F.dropout(x, 0.25))
    y, other = fast(x), fast(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad) and not torch.equal(y, other)
    assert set(y.detach().flatten().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(float((y > 0).float().mean()) - 0.75) < 0.02  # four standard deviations are 0.017


def test_random_numbers_that_follow_from_data_are_refused() -> None:
    with pytest.raises(Exception, match=r"aten\.bernoulli: random numbers"):
        compiled(lambda x: torch.bernoulli(x.detach().sigmoid()) * x)(torch.ones(3, requires_grad=True))


def test_a_backward_pass_that_would_draw_again_is_refused() -> None:
    """With a smaller budget of memory PyTorch computes dropout's mask again, from numbers that are no longer there."""

    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = F.dropout(x @ w, 0.5).tanh()
        return x

    given = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    budget = torch._functorch.config.patch(activation_memory_budget=0.0)
    with budget, pytest.raises(Exception, match="the backward pass draws random numbers"):
        compiled(layers, options={"fallback": True})(*given)


# -- what crosses between the passes ----------------------------------------------------------------------------------


def test_layouts_of_operands_results_and_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    own = copy.deepcopy(model)
    fast = compiled(own)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 6, 6).contiguous(memory_format=layout)
        across = torch.randn(2, 4, 4, 4).contiguous(memory_format=torch.channels_last)
        for g in (across, across.transpose(2, 3), torch.ones(()).expand(2, 4, 4, 4)):
            found = []
            for net in (model, fast):
                given = x.clone(memory_format=torch.preserve_format).requires_grad_()
                y = net(given)
                y.backward(g)
                found.append((y, given.grad))
            close(found[1], found[0])
    close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()])


def test_operands_that_are_views_and_results_that_are() -> None:
    def views(x: Tensor, y: Tensor) -> Any:
        z = x.t() @ y
        return z[1:].t(), z, x[0], (x * y.sum()).expand(2, *x.shape), z.chunk(2)

    x, y = torch.randn(6, 4).t()[1:], torch.randn(3, 10)[:, ::2]
    same_gradients(views, x, y)


def test_gradients_of_what_is_used_twice_or_not_at_all() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Any:
        return x + y, (x + y).detach() * y, z.detach() + 1

    same_gradients(function, torch.randn(3, 4), torch.randn(4), torch.randn(4))


@pytest.mark.parametrize(
    "function", [lambda a, b: a + b, lambda a, b: (a + b).sin(), lambda a, b: a.view(3, 1) + b[:, None]]
)
def test_gradients_have_memory_of_their_own(function: Function) -> None:
    a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
    compiled(function)(a, b).sum().backward()
    for x in (a, b):
        assert x.grad is not None
        x.grad.add_(1)
    assert torch.equal(a.grad, b.grad) and torch.equal(a.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_no_tensor_of_the_backward_pass_has(dynamic: bool, built: list[Any]) -> None:
    def sums(x: Tensor) -> Tensor:
        return x.sum(2).reshape(-1) * x.shape[0]

    fast = compiled(sums, dynamic=dynamic)
    for shape in ((3, 4, 5), (3, 4, 5), (2, 7, 3)) if dynamic else ((3, 4, 5), (3, 4, 5)):
        x = torch.randn(shape)
        close(gradients(fast, [x]), gradients(sums, [x]))
    assert len(built) == 2


def test_several_forward_passes_before_a_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    own = copy.deepcopy(model)
    fast = compiled(own)
    for net in (model, fast):
        torch.manual_seed(1)
        values = [net(torch.randn(3, 4)).square().sum() for _ in range(3)]
        (values[0] + 2 * values[1]).backward()
        values[2].backward()
    close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()])


def test_writes_between_the_passes_are_errors_as_in_eager_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for net in (model, compiled(model)):
        y = net(torch.randn(2, 3, requires_grad=True)).sum()
        with torch.no_grad():
            model[1].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    for function in (torch.exp, compiled(torch.exp)):
        y = function(torch.randn(2, 3, requires_grad=True))
        y.detach().zero_()  # the result is what was saved
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


class Running(nn.Module):
    """What it was called with before counts; writes to its operand."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        before = self.total.clone() * self.weight
        self.total += x.detach().sum(0)
        x.mul_(self.weight)
        return before + self.total * x.sin()


def test_operands_that_are_written_to() -> None:
    model, own = Running(), Running()
    fast = compiled(own)
    for _ in range(3):
        x, found = torch.randn(2, 3), []
        for net in (model, fast):
            leaf = x.clone().requires_grad_()
            given = leaf * 1
            y = net(given)
            (y * given).sum().backward()
            found.append((y, given, leaf.grad))
        close(found[1], found[0])
        close(own.total, model.total)
        close(own.weight.grad, model.weight.grad)


def test_a_backward_pass_twice_and_one_of_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    own = copy.deepcopy(model)
    x = torch.randn(2, 3)
    for net in (model, compiled(own)):
        y = net(x).sum()
        y.backward(retain_graph=True)
        y.backward()
    close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()])
    given = x.clone().requires_grad_()
    (by_x,) = torch.autograd.grad(compiled(own)(given).sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        by_x.sum().backward()


def test_breaks_of_the_graph() -> None:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).tanh()
        torch._dynamo.graph_break()
        return (y @ w).sin()

    same_gradients(broken, torch.randn(3, 3), torch.randn(3, 3))


def test_results_without_gradients_are_inference(built: list[Any]) -> None:
    model = nn.Linear(4, 3)
    fast = compiled(lambda x: model(x).argmax(-1))
    x = torch.randn(5, 4)
    assert torch.equal(fast(x), model(x).argmax(-1)) and len(built) == 1 and built[0].held


def test_gradients_inside_of_no_grad() -> None:
    def function(x: Tensor, w: Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            with torch.enable_grad():
                z = (w * y).sin()
        return z, y

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    found = []
    for f in (function, compiled(function)):
        with torch.no_grad():
            z, y = f(x, w)
        assert z.requires_grad and not y.requires_grad
        found.append((z, y, torch.autograd.grad(z.sum(), w)))
    close(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GELU(), nn.LayerNorm(8)).to(dtype)
    own = copy.deepcopy(model)
    x = torch.randn(3, 2, 8, dtype=dtype)
    found = [(net(x), net(x).square().mean().backward()) for net in (model, compiled(own))]
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-9, "atol": 1e-12}
    close(found[1][0], found[0][0], **tolerance)
    close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()], **tolerance)


def test_mixed_precision() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    own = copy.deepcopy(model)
    x = torch.randn(4, 8)
    for net in (model, compiled(own)):
        with torch.autocast("cpu", torch.bfloat16):
            y = net(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()], rtol=5e-2, atol=5e-2)


# -- what is not supported --------------------------------------------------------------------------------------------


def two_odd_operators() -> Function:
    """An operator of a user, with a gradient that is another one."""

    @torch.library.custom_op("acme_training::odd", mutates_args=())
    def odd(x: Tensor) -> Tensor:
        return torch.relu(x)

    @torch.library.custom_op("acme_training::odd_gradient", mutates_args=())
    def odd_gradient(g: Tensor, x: Tensor) -> Tensor:
        return g * (x > 0)

    odd.register_fake(torch.empty_like)
    odd_gradient.register_fake(lambda g, x: torch.empty_like(g))
    odd.register_autograd(
        lambda ctx, g: odd_gradient(g, ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return lambda x: odd(x * 2) + 1


def test_what_is_not_supported_of_both_passes_is_one_error() -> None:
    function, x = two_odd_operators(), torch.randn(3, 3, requires_grad=True)
    with pytest.raises(Exception, match=r"operator acme_training\.odd:") as caught:
        compiled(function)(x)
    assert type(caught.value).__name__ == "UnsupportedError"
    assert "operator acme_training.odd_gradient:" in str(caught.value) and "hook `converters`" in str(caught.value)


def test_what_is_not_supported_runs_in_pytorch_if_that_is_asked_for() -> None:
    function = two_odd_operators()
    backend.unsupported.clear()
    same_gradients(function, torch.randn(3, 3), options={"fallback": True})
    assert backend.unsupported == {"operator acme_training.odd": 1, "operator acme_training.odd_gradient": 1}


def test_sizes_that_are_not_known_before_the_call() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fast = compiled(lambda x, n: x * torch.randn(n.item()).sum())
        with pytest.raises(Exception, match=r"its size u\d+ is not known[\s\S]*dynamic=False"):
            fast(torch.ones(2, requires_grad=True), torch.tensor(3))


def test_sampling_of_which_weft_has_another_definition() -> None:
    x, grid = torch.randn(1, 2, 4, 4, requires_grad=True), torch.zeros(1, 3, 3, 2)
    with pytest.raises(Exception, match="mode bicubic with padding_mode border"):
        compiled(lambda x: F.grid_sample(x, grid, "bicubic", "border", False))(x)


# -- single operators -------------------------------------------------------------------------------------------------


def _at(*places: int) -> Tensor:
    return torch.tensor(places)


# Name → a function of tensors, and the shapes of these, or the tensors.
OPERATORS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ((2, 3, 7, 5),)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), ((1, 2, 3, 4, 5),)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), ((2, 3, 7, 5),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), ((2, 3, 9),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), ((2, 3, 8, 7),)),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), ((3, 8, 7),)),
    "avg_pool2d_inside": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), ((2, 3, 5, 5),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), ((1, 2, 4, 4, 5),)),
    "batch_norm_eval": (lambda x, w: F.batch_norm(x, torch.ones(3), torch.ones(3), w, w), ((4, 3, 5), (3,))),
    "cdist": (lambda x, y: torch.cdist(x, y), ((4, 3), (5, 3))),
    "cdist_1": (lambda x, y: torch.cdist(x, y, 1.0), ((4, 3), (5, 3))),
    "cdist_3": (lambda x, y: torch.cdist(x, y, 3.0), ((2, 4, 3), (2, 5, 3))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2), ((2, 4, 11), (6, 4, 3), (6,))),
    "conv2d_depthwise": (lambda x, w: F.conv2d(x, w, None, 2, 1, groups=4), ((2, 4, 7, 6), (8, 1, 3, 3))),
    "conv2d_unbatched": (lambda x, w, b: F.conv2d(x, w, b, padding="same"), ((3, 5, 6), (4, 3, 3, 2), (4,))),
    "conv3d": (lambda x, w: F.conv3d(x, w, stride=(1, 2, 1)), ((1, 2, 4, 5, 4), (3, 2, 2, 2, 2))),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, groups=2), ((2, 4, 4, 5), (4, 3, 3, 3), (6,)),
    ),
    "cross_entropy": (
        lambda x, w: F.cross_entropy(x, _at(1, 0, -100, 4), w.detach().abs(), label_smoothing=0.1), ((4, 5), (5,)),
    ),
    "cross_entropy_2d": (
        lambda x: F.cross_entropy(x, torch.tensor([[[1, 0], [2, 1]]]), reduction="sum"), ((1, 3, 2, 2),),
    ),
    "cumulative": (lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1)), ((3, 4),)),
    "elu": (lambda x: (F.elu(x), F.celu(x, 0.5), F.selu(x), F.softplus(x), F.logsigmoid(x)), ((3, 5),)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 3, 1], [0, 3, 2]]), w, padding_idx=3), ((5, 4),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 2, 2], [1, 1, 0]])), ((2, 4),)),
    "gelu": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.relu6(x)), ((3, 5),)),
    "glu": (lambda x: F.glu(x, 1), ((3, 6),)),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), ((1, 2, 4, 5), (1, 3, 3, 2)),
    ),
    "grid_sample_nearest": (lambda x, g: F.grid_sample(x, g.tanh(), "nearest"), ((1, 2, 4, 5), (1, 3, 3, 2))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((3, 4, 5), (4,), (4,))),
    "hardshrink": (lambda x: (F.hardshrink(x), F.softshrink(x), F.hardtanh(x), F.hardswish(x * 4)), ((4, 5),)),
    "index": (lambda x: (x[_at(0, 2, 0)], x[:, _at(1, 1)], x[1], x[..., None, -1]), ((3, 4),)),
    "index_add": (lambda x, y: x.index_add(0, _at(1, 1), y, alpha=2), ((3, 4), (2, 4))),
    "index_put": (lambda x, y: x.index_put((_at(1, 1, 0),), y, accumulate=True), ((3, 4), (3, 4))),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w), ((2, 3, 5), (3,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b), ((2, 3, 4), (3, 4), (3, 4))),
    "linalg": (
        lambda x: (torch.linalg.cholesky(x @ x.T + torch.eye(3)), torch.linalg.inv(x @ x.T + torch.eye(3))), ((3, 3),),
    ),
    "losses": (
        lambda x, y: (F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.kl_div(x, y.softmax(1)),
                      F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.soft_margin_loss(x, y.detach().sign())),
        ((3, 4), (3, 4)),
    ),
    "matmul": (lambda x, y, z: (x @ y, x @ z.T, torch.einsum("bij,kj->bik", x, z)), ((2, 3, 4), (4, 5), (3, 4))),
    "max": (lambda x: (x.max(1)[0], x.amax(0), x.min(), x.median(1)[0], x.sort(1)[0], x.topk(2)[0]), ((3, 5),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), ((2, 3, 9),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 1, 1), ((2, 3, 6, 5),)),
    "max_pool2d_dilated": (lambda x: F.max_pool2d(x, 2, 2, 1, 2, ceil_mode=True), ((3, 7, 6),)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), ((1, 2, 4, 5, 4),)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), ((2, 3, 4, 6),)),
    "movement": (
        lambda x: (x.flip(0), x.roll(1, 1), x.unfold(1, 2, 1), x.diagonal(), x.tril(), x.repeat(2, 1), x[1:, ::2],
                   torch.cat([x, x * 2], 1), torch.stack([x, x]), x.as_strided((2, 2), (1, 2)), F.pad(x, (1, -1))),
        ((3, 4),),
    ),
    "norms": (lambda x: (x.norm(), x.norm(1, dim=0), x.var(1), x.std(), x.logsumexp(0), F.normalize(x)), ((3, 4),)),
    "padding": (
        lambda x: (F.pad(x, (1, 2, 0, 1), "replicate"), F.pad(x, (1, 2, 0, 1), "reflect"),
                   F.pad(x, (1, 1, 1, 0), "circular")),
        ((1, 2, 4, 5),),
    ),
    "pointwise": (
        lambda x, y: (x / y.exp(), x.abs() ** y, x.atan2(y), x.erf(), x.exp().rsqrt(), x.sin() * y.cos(),
                      torch.maximum(x, y), torch.where(x > y, x, y * 2), x.clamp(-0.5, 0.5), x.lerp(y, 0.3)),
        ((3, 4), (4,)),
    ),
    "prelu": (lambda x, w: (F.prelu(x, w), F.leaky_relu(x, 0.2), F.threshold(x, 0.1, 3.0)), ((2, 3, 4), (3,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), ((3, 4), (4,))),
    "scatter_add": (lambda x, y: x.scatter_add(0, torch.tensor([[0, 1, 1, 2]] * 2), y), ((3, 4), (2, 4))),
    "softmax": (lambda x: (x.softmax(0), x.log_softmax(1), F.softmin(x, 1)), ((3, 4),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 3)),
    ),
    "attention_masked": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m), ((2, 5, 4), (2, 6, 4), (5, 6)),
    ),
    "upsample_bicubic2d": (lambda x: F.interpolate(x, (5, 7), mode="bicubic"), ((1, 2, 4, 3),)),
    "upsample_bilinear2d": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), ((1, 2, 4, 3),)),
    "upsample_corners": (lambda x: F.interpolate(x, 7, mode="linear", align_corners=True), ((1, 2, 4),)),
    "upsample_nearest2d": (
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 7)),
                   F.interpolate(x, (2, 2), mode="nearest-exact")),
        ((1, 2, 4, 3),),
    ),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), ((3, 4), (3, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_operators(name: str, interpreted: None) -> None:
    function, shapes = OPERATORS[name]
    same_gradients(function, *(s if isinstance(s, Tensor) else torch.randn(s) for s in shapes))
