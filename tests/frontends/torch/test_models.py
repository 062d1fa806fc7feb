"""Modules against PyTorch itself: read, interpreted, compiled, saved and loaded again, at other sizes."""
# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch")
import torch
from tests.frontends.torch import models
from torch import nn
from torch.nn import functional as F

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft_testing.frontend import FrontendCase, check_frontend

pytestmark = pytest.mark.needs("torch")
BATCH = torch.export.Dim("batch")


def case(module: nn.Module, *inputs: torch.Tensor, dynamic: Any = None, others: Sequence[Any] = ()) -> FrontendCase:
    """A module and its own answers; `others`: tuples of tensors of other sizes."""
    module = module.eval()
    names = list(weft.load(module, inputs=inputs, dynamic_shapes=dynamic).inputs)
    named = [v.name for v in names]

    def answer(given: Mapping[str, Any]) -> list[Any]:
        with torch.no_grad():
            results = module(*(torch.from_numpy(given[n]) for n in named))
        return [r.numpy() for r in torch.utils._pytree.tree_leaves(results)]

    feed = [dict(zip(named, (x.numpy() for x in xs))) for xs in (inputs, *others)]
    options = {"inputs": inputs, "dynamic_shapes": dynamic}
    return FrontendCase(module, feed[0], answer, options=options, others=feed[1:])


def kinds(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


def test_a_perceptron_of_open_batch() -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(-1))
    x = torch.randn(2, 4)
    graph, _ = check_frontend(case(mlp, x, dynamic=({0: BATCH},), others=[(torch.randn(5, 4),), (torch.randn(1, 4),)]))
    # Weights stay what the model has, under their names; compilations fold the transpositions.
    assert kinds(graph) == ["Transpose", "MatMul", "Add", "Gelu", "Transpose", "MatMul", "Add", "Softmax"]


class Block(nn.Module):
    """A block of a residual network, which writes to its values."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.down, self.pool, self.head = nn.Conv2d(3, 8, 1, 2), nn.MaxPool2d(3, 2, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.b1(self.c1(x)))
        y = self.b2(self.c2(y))
        y += self.down(x)
        y = self.pool(torch.relu(y))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


def test_a_residual_block() -> None:
    torch.manual_seed(1)
    graph, _ = check_frontend(case(Block(), torch.randn(2, 3, 16, 16)))
    assert kinds(graph).count("Conv") == 3 and kinds(graph).count("BatchNorm") == 2


def test_a_transformer_layer_keeps_attention_and_norms_whole() -> None:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=True)
    graph, _ = check_frontend(case(layer, torch.randn(2, 5, 16)))
    found = kinds(graph)
    assert found.count("Attention") == 1 and found.count("LayerNorm") == 2 and found.count("Gelu") == 1


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru, self.rnn = nn.GRU(12, 5), nn.RNN(5, 3, nonlinearity="relu", bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        y, (h, c) = self.lstm(x)
        z, _ = self.gru(y)
        return self.rnn(z)[0], h, c


def test_recurrent_networks_stay_whole() -> None:
    torch.manual_seed(3)
    graph, _ = check_frontend(case(Recurrent(), torch.randn(2, 7, 4)))
    found = kinds(graph)
    assert (found.count("LSTM"), found.count("GRU"), found.count("RNN")) == (2, 1, 1)


class Cache(nn.Module):
    """A buffer that every call writes to."""

    keys: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, at, x)
        return self.keys.sum(0)


def test_what_a_call_writes_to_is_an_output_of_its_own() -> None:
    graph = weft.load(Cache(), inputs=(torch.ones(1, 3), torch.tensor([2])))
    assert graph.output_names == ["sum_1", "keys.after"]
    total, after = evaluate(graph, [np.full((1, 3), 2.0, np.float32), np.array([1])])
    np.testing.assert_array_equal(total, np.full(3, 2.0))
    np.testing.assert_array_equal(after, np.array([[0], [2], [0], [0]]) * np.ones((1, 3)))


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if n > 5:
            x = x + 1
        return torch.cat([x, x[: n // 2]]).reshape(-1, 2) * n


def test_sizes_are_formulas_and_conditions_on_them_are_checked() -> None:
    model = case(Sizes(), torch.randn(6, 2), dynamic=({0: torch.export.Dim.AUTO},), others=[(torch.randn(9, 2),)])
    graph, _ = check_frontend(model, target=None)
    with pytest.raises(Exception, match=r"size 's\d+' is 5, the program was exported for 6"):
        evaluate(graph, [np.ones((5, 2), np.float32)])


class Sums(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] + y.shape[0] > 9 else y


def test_conditions_of_several_sizes_are_checked() -> None:
    auto = torch.export.Dim.AUTO
    graph = weft.load(Sums(), inputs=(torch.ones(6), torch.ones(8)), dynamic_shapes=({0: auto}, {0: auto}))
    assert evaluate(graph, [np.ones(9, np.float32), np.ones(2, np.float32)])[0].shape == (9,)
    with pytest.raises(Exception, match=r"sizes are not as the program was exported for: .*> 9"):
        evaluate(graph, [np.ones(4, np.float32), np.ones(2, np.float32)])


class Named(nn.Module):
    """Arguments that differ in nothing but case, and nested ones."""

    def forward(self, M: torch.Tensor, m: torch.Tensor, xs: Any, *, K: torch.Tensor) -> torch.Tensor:
        return torch.cat([M, m, xs["y"]]) * K if M.shape[0] + 2 * m.shape[0] + xs["y"].shape[0] > 20 else m


def test_conditions_name_arguments_as_the_model_does() -> None:
    auto = {0: torch.export.Dim.AUTO}
    shapes = {"M": auto, "m": auto, "xs": {"y": auto}, "K": None}
    inputs, named = (torch.ones(6), torch.ones(7), {"y": torch.ones(8)}), {"K": torch.ones(1)}
    graph = weft.load(Named(), inputs=inputs, named_inputs=named, dynamic_shapes=shapes)
    feeds = [np.ones(n, np.float32) for n in (2, 9, 3, 1)]
    assert evaluate(graph, feeds)[0].shape == (14,)
    with pytest.raises(Exception, match=r"sizes are not as the program was exported for: .*L\['m'\].* > 20"):
        evaluate(graph, [feeds[1], feeds[0], *feeds[2:]])


def test_weights_that_share_memory_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(i))

    graph = weft.load(Tied(), inputs=(torch.tensor([1, 4]),))
    assert len({id(v) for n in graph.nodes for v in n.inputs if v is not None and v.constant is not None}) <= 2
    check_frontend(case(Tied(), torch.tensor([1, 4])), target=None)


def test_whole_models_as_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["GRU", "MultiheadAttention"]) == 0
    said = capsys.readouterr().out
    assert said.count(" agrees, ") == 2 and "2 of 2 agree" in said


def test_what_is_not_a_number_is_no_agreement() -> None:
    want = torch.tensor([1.0, -4.0, torch.inf, torch.nan])
    assert models.apart(want.clone(), want) == 0
    assert models.apart(torch.tensor([1.0, -3.0, torch.inf, torch.nan]), want) == 0.25
    for wrong in (torch.nan, torch.inf):
        assert np.isnan(models.apart(torch.tensor([1.0, wrong, torch.inf, torch.nan]), want))
